//! The carrier follows the peer: when one end of a wire goes down, so does the other's link, and it comes
//! back. Native drivers and programs at the ends, TAPs in a network namespace of the daemon's own. Needs
//! root.

use crate::rig;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::rig::{Daemon, Testbed, LIMIT};
use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::{Config, Frontend, NetDriver};

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        // What is awaited is another process's doing.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn guest(bed: &Testbed, name: &str) -> NetDriver {
    NetDriver::start(Frontend::connect(bed.path(name), LIMIT).unwrap(), Config::default()).unwrap()
}

fn card(bed: &Testbed, name: &str) -> E1000 {
    E1000::open(&bed.path(name), &e1000::Config::default()).unwrap()
}

/// Waits until port `name` shows this link.
fn await_link(bed: &Testbed, name: &str, link: &str) {
    await_true(&format!("{name} {link}"), || bed.port(name)["state"]["link"] == link);
}

/// A daemon in a network namespace of its own, and what that namespace's interfaces say.
struct Apart {
    _daemon: Daemon,
    space: String,
}

impl Apart {
    fn new(bed: &Testbed, args: &[&str]) -> Apart {
        let mut command = rig::unshare();
        command.args(["--net", env!("CARGO_BIN_EXE_sidecore"), "run"]).args(args);
        command.env("SIDECORE_SOCKET", bed.path("control.sock")).env_remove("NOTIFY_SOCKET");
        let daemon = Daemon::start(&mut command);
        let (_, answer) = bed.http("GET", "/v1/daemon", "");
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        Apart { _daemon: daemon, space: format!("--net=/proc/{}/ns/net", answer["pid"]) }
    }

    fn await_carrier(&self, interface: &str, up: bool) {
        await_true(&format!("{interface}'s carrier, up: {up}"), || {
            let mut show = Command::new("nsenter");
            let output = show.args([&self.space, "ip", "link", "show", "dev", interface]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains(interface), "{text} {}", String::from_utf8_lossy(&output.stderr));
            text.contains("LOWER_UP") == up && text.contains("NO-CARRIER") != up
        });
    }
}

#[test]
fn a_tap_follows_the_guest_at_the_other_end() {
    let bed = Testbed::new();
    let guest_port = format!("v=vhost-user:{},wire=w", bed.at("v"));
    let apart = Apart::new(&bed, &["--port", "t=tap:sct0,wire=w", "--port", &guest_port]);
    apart.await_carrier("sct0", false);
    for _ in 0..2 {
        let driver = guest(&bed, "v");
        apart.await_carrier("sct0", true);
        await_link(&bed, "t", "up");
        drop(driver);
        apart.await_carrier("sct0", false);
        await_link(&bed, "t", "down");
    }
    // On a switch there is no other end to follow.
    bed.ok(&["set", "t", "switch=lan"]);
    apart.await_carrier("sct0", true);
    bed.ok(&["set", "t", "wire=w"]);
    apart.await_carrier("sct0", false);
    // What the operator takes down stays down, even if a VMM comes.
    bed.ok(&["set", "t", "link=down"]);
    let _driver = guest(&bed, "v");
    await_link(&bed, "v", "down");
    apart.await_carrier("sct0", false);
    bed.ok(&["set", "t", "link=up"]);
    apart.await_carrier("sct0", true);
    await_link(&bed, "v", "up");
}

#[test]
fn a_card_follows_a_program_and_two_cards_each_other() {
    let bed = Testbed::new();
    let (e, a, b) = (bed.at("e"), bed.at("a"), bed.at("b"));
    let _daemon = bed.daemon(&[
        &*format!("--port=e=e1000:{e},wire=w1"),
        "--port=r=ring:r,wire=w1",
        &*format!("--port=a=e1000e:{a},wire=w2"),
        &*format!("--port=b=e1000:{b},wire=w2"),
    ]);
    let mut driver = card(&bed, "e");
    assert!(!driver.link().unwrap(), "there is no program yet");
    for _ in 0..2 {
        let program = sidecore_port::Port::attach(&bed.at("ring/r")).unwrap();
        await_true("link up", || driver.link().unwrap());
        await_link(&bed, "r", "up");
        drop(program);
        await_true("link down", || !driver.link().unwrap());
    }
    // Each waits for the other: neither may hold the other down.
    let mut first = card(&bed, "a");
    assert!(!first.link().unwrap());
    let mut second = card(&bed, "b");
    await_true("both up", || first.link().unwrap() && second.link().unwrap());
    drop(second);
    await_true("the first down", || !first.link().unwrap());
    let mut second = card(&bed, "b");
    await_true("both up again", || first.link().unwrap() && second.link().unwrap());
    bed.ok(&["set", "a", "link=down"]);
    await_true("both down", || !first.link().unwrap() && !second.link().unwrap());
    bed.ok(&["set", "a", "link=up"]);
    await_true("both up once more", || first.link().unwrap() && second.link().unwrap());
}
