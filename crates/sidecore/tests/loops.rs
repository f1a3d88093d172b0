//! Two ports that are joined outside of the switch: frames circle, and the daemon says by which ports. In a
//! network namespace of its own. Needs root and iproute2.

use std::time::{Duration, Instant};

use crate::rig::net::Net;
use crate::rig::{Daemon, LIMIT};
use sidecore_driver::{Config, Frontend, NetDriver};

#[test]
fn frames_that_circle_are_reported_with_both_ports() {
    let net = Net::new();
    let bed = &net.bed;
    net.ip("link add scl0 type veth peer name scl1");
    net.ip("link set scl0 up");
    net.ip("link set scl1 up");
    let guest = format!("guest=vhost-user:{}", bed.at("guest.sock"));
    let mut command = net.command(env!("CARGO_BIN_EXE_sidecore"));
    command.args(["run", "--port", "one=packet:scl0", "--port", "two=packet:scl1", "--port", &guest]);
    let daemon = Daemon::start(&mut command);
    let frontend = Frontend::connect(bed.path("guest.sock"), LIMIT).unwrap();
    let mut driver = NetDriver::start(frontend, Config::default()).unwrap();
    // One broadcast is enough, once the guest's link is up: from then on it goes round and round.
    let mut broadcast = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 7], &[0x88, 0xb5]].concat();
    broadcast.resize(60, 0);
    let deadline = Instant::now() + LIMIT;
    loop {
        driver.complete(0).unwrap();
        driver.send(0, &[&broadcast]).unwrap();
        let hint = bed.port("two")["state"]["hint"].clone();
        if hint.as_str().is_some_and(|hint| hint.contains("(a loop)")) {
            break;
        }
        assert!(Instant::now() < deadline, "{hint}");
        driver.wait(Duration::from_millis(20)).unwrap();
        driver.receive(0, |_, _| ()).unwrap();
    }
    let line = daemon.await_log("(a loop)");
    assert!(
        line.contains("02:00:00:00:00:07 came in by ports one and two") || line.contains("ports two and one"),
        "{line}"
    );
    let shown = bed.port("one")["state"]["hint"].clone();
    assert!(shown.as_str().is_some_and(|hint| hint.contains("one") && hint.contains("two")), "{shown}");
    // Its frames come to the guest's port still: the address stays where it is.
    let table = bed.show("mac");
    let rows = table["addresses"].as_array().unwrap();
    let row = rows.iter().find(|row| row["mac"] == "02:00:00:00:00:07").unwrap();
    assert_eq!(row["port"], "guest", "{row}");
}
