//! Guests of User-mode Linux on our vhost-user sockets: interrupts by sockets, long tables of memory, and no
//! second connection. One of them is the Linux bridge beside which our switch is compared.

mod bridge;

use crate::cards::{reaches, A, B};
use sidecore_lab::traffic::{iperf3, received_gbits, Ping};
use sidecore_lab::uml::{Uml, PORT};
use sidecore_lab::{Daemon, Result, RunDir};

const NAMES: [&str; 2] = ["a", "b"];

fn mac(name: &str) -> String {
    format!("52:54:00:75:6d:0{name}")
}

fn guest(dir: &RunDir, name: &str) -> Uml {
    Uml::named(name).card(&dir.join(name))
}

#[test]
fn two_guests_talk_until_the_daemon_is_killed() -> Result<()> {
    let dir = RunDir::new("uml")?;
    let ports = NAMES.map(|name| format!("{name}=vhost-user:{},mac={},{PORT}", dir.join(name), mac(name)));
    let mut daemon = Daemon::start(&["--port", &ports[0], "--port", &ports[1]])?;
    let [mut a, mut b] = Uml::boot_all(NAMES.map(|name| guest(&dir, name)))?;
    for (guest, address) in [(&mut a, A), (&mut b, B)] {
        // The configuration space is the port's.
        let name = guest.name().to_owned();
        assert_eq!(guest.expect("cat /sys/class/net/eth0/address")?.trim(), mac(&name));
        guest.address(&format!("{address}/24"))?;
    }
    reaches(&mut a, B)?;
    let text = a.expect(&format!("ping -c 10 -i 0.1 {B}"))?;
    assert_eq!(Ping::parse(&text).unwrap().lost(), 0, "{text}");
    let there = iperf3(&mut b, B, "--bytes 8M", |command| a.run(command))?;
    let back = iperf3(&mut b, B, "--bytes 8M --reverse", |command| a.run(command))?;
    println!("TCP {:.2} Gbit/s, back {:.2}", received_gbits(&there), received_gbits(&back));

    // A port serves the next guest when one has gone.
    b.kill();
    daemon.wait_peer("b", "waiting")?;
    let mut b = guest(&dir, "b").boot()?;
    b.address(&format!("{B}/24"))?;
    reaches(&mut b, A)?;
    let balance = daemon.balance()?;
    println!("{balance}; {:?}", balance.drops);
    // All of it inside the sandbox.
    let refused = daemon.show_json("daemon")?["sandbox"]["refused"].clone();
    assert_eq!(refused, serde_json::json!([]), "{refused:#}");

    // It does not connect again, unlike a guest that is started anew.
    daemon.kill_and_restart()?;
    a.kill();
    let a = guest(&dir, "a").boot()?;
    daemon.wait_peer("a", "running")?;
    daemon.wait_peer("b", "waiting")?;
    a.kill();
    b.kill();
    Ok(())
}
