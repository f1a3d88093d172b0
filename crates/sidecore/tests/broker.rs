//! The daemon's broker: each of the two is killed, and nothing that runs notices.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod rig;

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rig::{await_end, Daemon, Place};
use rustix::process::{kill_process, Signal};

#[test]
fn a_broker_ends_with_its_daemon_however_that_ends() {
    let place = Place::new();
    for signal in [Signal::KILL, Signal::TERM] {
        let port = format!("a=vhost-user:{}", place.at("a.sock"));
        let daemon = place.daemon(&["--port", &port]);
        let broker = daemon.broker();
        daemon.end(signal);
        await_end(broker);
        assert_eq!(place.path("a.sock").exists(), signal == Signal::KILL);
    }
}

#[test]
fn a_daemon_goes_on_without_its_broker_and_starts_another_when_it_needs_one() {
    let place = Place::new();
    let ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", place.at(name)));
    // One that has locked itself down may not start another broker.
    let daemon = place.daemon(&["--port", &ports[0]]);
    for round in 0..5 {
        let broker = daemon.broker();
        kill_process(broker, Signal::KILL).unwrap();
        await_end(broker);
        daemon.await_log("the broker has ended");
        UnixStream::connect(place.path("a")).unwrap();
        assert_eq!(place.ports().len(), 1, "round {round}");
        place.ok(&["add", &ports[1]]);
        UnixStream::connect(place.path("b")).unwrap();
        place.ok(&["del", "b"]);
        assert!(!place.path("b").exists() && !place.path("control.journals/b").exists());
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// TAP, packet and AF_XDP ports in a network namespace of their own: what the broker opens is what they run with, and goes on
/// when it is gone.
#[test]
fn interfaces_are_opened_by_the_broker_and_outlive_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to make a network namespace");
        return;
    }
    for (port, more) in [("p=packet:lo,queues=2", ",mtu=9000"), ("p=xdp:lo,mode=copy", ",mtu=3000")] {
        let place = Place::new();
        let run = ["-n", env!("CARGO_BIN_EXE_sidecore"), "run", "--port", "t=tap:sctap0,queues=2"];
        let mut command = Command::new("unshare");
        command.args(run).env("SIDECORE_SOCKET", place.path("control.sock")).stdin(Stdio::null());
        let daemon = Daemon::start(&mut command);
        // The interface is down, and has another MTU: the broker changes that.
        place.ok(&["add", &format!("{port}{more}")]);
        assert_eq!(place.port("p")["state"]["peer"], "running");
        let broker = daemon.broker();
        kill_process(broker, Signal::KILL).unwrap();
        await_end(broker);
        daemon.await_log("the broker has ended");
        for name in ["p", "t"] {
            assert_eq!(place.port(name)["state"]["peer"], "running", "{name}");
        }
        place.ok(&["set", "p", "mtu=2000"]);
        place.ok(&["del", "p"]);
        place.ok(&["add", &format!("{port},mtu=1800")]);
        assert_eq!(place.port("p")["state"]["mtu"], 1800);
        assert!(daemon.end(Signal::TERM).success());
    }
}

#[test]
fn a_daemon_that_has_locked_itself_down_goes_on_without_its_broker_and_says_what_it_cannot() {
    let place = Place::new();
    let ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", place.at(name)));
    let daemon = place.daemon(&["--sandbox", "on", "--port", &ports[0]]);
    let broker = daemon.broker();
    kill_process(broker, Signal::KILL).unwrap();
    await_end(broker);
    daemon.await_log("the broker has ended");
    UnixStream::connect(place.path("a")).unwrap();
    assert!(place.fails(&["add", &ports[1]]).contains("broker"));
    assert_eq!(place.ports(), ["a"]);
}

#[test]
fn it_is_not_for_people() {
    let place = Place::new();
    let refused = place.fails(&["broker", "--socket", "x"]);
    assert!(refused.contains("not for people"), "{refused}");
}
