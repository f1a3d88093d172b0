//! The page in a browser, with guests: `lab/web/page.mjs` looks at it, and ends with an error where it is not
//! as it should be.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sidecore_lab::traffic::Pinging;
use sidecore_lab::{browser, Daemon, Guest, Nic, Result, Role, RunDir};

/// A VMM may call itself so.
const HOSTILE: &str = "<img src=x>";

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `sidecore web --write` for `daemon`, and the URL that it prints.
fn start(daemon: &Daemon) -> (Running, String) {
    let sidecore = std::env::current_exe().unwrap().with_file_name("../sidecore");
    let mut web = Command::new(&sidecore);
    web.args(["web", "--listen", "127.0.0.1:0", "--write", "--socket", daemon.socket()]);
    let mut web = Running(web.stdout(Stdio::piped()).spawn().unwrap());
    let url = line(&mut web);
    (web, url)
}

/// The first line that it prints.
fn line(running: &mut Running) -> String {
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Node (`apt-get install nodejs`) with a script of ours, these words, and where its packages are.
fn node(script: &str, words: &[&str]) -> Result<Command> {
    let mut node = Command::new("node");
    node.arg(format!("{}/web/{script}.mjs", env!("CARGO_MANIFEST_DIR")))
        .args(words)
        .arg(browser::packages()?);
    Ok(node)
}

#[test]
fn the_page_shows_what_is_so() -> Result<()> {
    let dir = RunDir::new("page")?;
    // Paths with markup.
    let sockets = ["a", "b"].map(|name| dir.join(&format!("{name}<b onclick=x>.sock")));
    let ports = [
        format!("a=vhost-user:{}", sockets[0]),
        format!("b=e1000e:{}", sockets[1]),
        "up=switch:lan,router=r,address=10.0.0.1/24".to_owned(),
        "g0=group:g,interface=0,switch=lan,mac=52:54:00:00:09:01,address=10.1.0.1/24".to_owned(),
        "m0=router:r,group=g,member=m,interface=0".to_owned(),
        "n0=router:q,group=g,member=n,interface=0".to_owned(),
    ];
    let mut arguments = vec!["--router", "r", "--router", "q", "--group", "g", "--tenant", "gold"];
    arguments.extend(ports.iter().flat_map(|port| ["--port", port.as_str()]));
    let daemon = Daemon::start(&arguments)?;
    let virtio = Nic::vhost_user(&sockets[0], Role::QemuClient { reconnect_ms: 200 }, 1);
    let [mut a, mut b] = Guest::boot_all([
        Guest::named("a").nic(virtio).argument("-name").argument(&format!("guest={HOSTILE}")),
        Guest::named("b").nic(Nic::vfio_user(&sockets[1])),
    ])?;
    a.address("10.0.0.2/24")?;
    b.address("10.0.0.3/24")?;
    let _pinging = Pinging::start(&mut a, "10.0.0.3")?;
    a.run_in_background("iperf3 --server")?;
    a.wait_until("netstat -lnt | grep -q :5201", Duration::from_secs(60))?;
    b.run_in_background("iperf3 --client 10.0.0.2 --udp --bitrate 1M --length 1200 --time 600")?;

    let (_web, url) = start(&daemon);
    let words = [&url, daemon.socket(), HOSTILE, &b.pid().to_string()];
    let looked = node("page", &words)?.status().unwrap();
    assert!(looked.success(), "{looked}");
    Ok(())
}

/// Seconds of a processor that all threads of a process have taken.
fn processor(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap()
    });
    nanoseconds.sum::<f64>() / 1e9
}

#[test]
#[ignore = "it measures, for a minute"]
fn what_a_page_of_200_ports_costs() -> Result<()> {
    const WHILE: Duration = Duration::from_secs(30);
    let dir = RunDir::new("page")?;
    let ports: Vec<_> = (0..200).map(|n| format!("p{n}=vhost-user:{}", dir.join(&format!("{n}")))).collect();
    let arguments: Vec<_> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    let daemon = Daemon::start(&arguments)?;
    let share = || {
        let before = processor(daemon.pid());
        std::thread::sleep(WHILE);
        (processor(daemon.pid()) - before) / WHILE.as_secs_f64()
    };
    let alone = share();
    let (web, url) = start(&daemon);
    let mut browser = node("paint", &[&url])?;
    let mut browser = browser.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(Running).unwrap();
    let paint = line(&mut browser);
    let with = share();
    let status = std::fs::read_to_string(format!("/proc/{}/status", web.0.id())).unwrap();
    let memory = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    println!("daemon: {:.2} % of a processor, {:.2} % without a page", with * 100.0, alone * 100.0);
    println!("page: {memory}; first paint {paint}");
    // It ends with its input.
    drop(browser.0.stdin.take());
    assert!(browser.0.wait().unwrap().success());
    Ok(())
}
