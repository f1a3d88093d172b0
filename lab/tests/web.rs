//! The page in a browser, with guests: `lab/web/page.mjs` looks at it, and ends with an error where it is not as it should be.

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

#[test]
fn the_page_shows_what_is_so() -> Result<()> {
    let packages = browser::packages()?;
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

    let sidecore = std::env::current_exe().unwrap().with_file_name("../sidecore");
    let mut web = Command::new(&sidecore);
    web.args(["web", "--listen", "127.0.0.1:0", "--write", "--socket", daemon.socket()]);
    let mut web = Running(web.stdout(Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(web.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/web/page.mjs");
    let words =
        [script, url.trim_end(), daemon.socket(), HOSTILE, &b.pid().to_string(), packages.to_str().unwrap()];
    let looked = Command::new("node").args(words).status().expect("node: apt-get install nodejs");
    assert!(looked.success(), "{looked}");
    Ok(())
}
