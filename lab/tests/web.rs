//! The page in a browser, with real traffic: `lab/web/page.mjs` looks at it, and ends with an error where it is not as it should be.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use sidecore_lab::{browser, Daemon};

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
fn the_page_shows_what_is_so() {
    let packages = browser::packages().unwrap();
    let dir = std::env::temp_dir().join(format!("sidecore-page-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    // A path and a name of a process, with markup in both.
    let sockets = ["a", "b"].map(|name| at(&format!("{name}<b onclick=x>.sock")));
    let [a, b] =
        [("a", &sockets[0]), ("b", &sockets[1])].map(|(name, path)| format!("{name}=vhost-user:{path}"));
    let arguments = ["--port", &a, "--port", &b, "--port", "up=switch:lan,router=r,address=10.0.0.1/24"];
    let daemon = Daemon::start(&[&["--router", "r", "--tenant", "gold"], &arguments[..]].concat()).unwrap();
    let sidecore = std::env::current_exe().unwrap().with_file_name("../sidecore");
    let guest = dir.join(HOSTILE);
    std::fs::copy(&sidecore, &guest).unwrap();
    let start = |words: &[&str]| {
        let mut command = Command::new(&guest);
        Running(
            command
                .args(words)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    };
    let interface = |socket: &str| format!("vhost-user:{socket}");
    let receiver = start(&["pkt-gen", "-f", "rx", "-i", &interface(&sockets[1]), "--announce"]);
    let sender = start(&["pkt-gen", "-f", "tx", "-i", &interface(&sockets[0]), "-R", "500"]);
    let mut web = Command::new(&sidecore);
    web.args(["web", "--listen", "127.0.0.1:0", "--write", "--socket", daemon.socket()]);
    let mut web = Running(web.stdout(Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(web.0.stdout.take().unwrap()).read_line(&mut url).unwrap();

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/web/page.mjs");
    let ids = [&sender, &receiver].map(|it| it.0.id().to_string());
    let words =
        [script, url.trim_end(), daemon.socket(), HOSTILE, &ids[0], &ids[1], packages.to_str().unwrap()];
    let looked = Command::new("node").args(words).status().expect("node: apt-get install nodejs");
    drop((sender, receiver, web));
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(looked.success(), "{looked}");
}
