//! The daemon's broker: each of the two is killed, and nothing that runs notices.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod rig;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
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
    // One that has locked itself down, as it does by default, may not start another broker.
    let daemon = place.daemon(&["--sandbox", "off", "--port", &ports[0]]);
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
        // Its broker is killed, and has to be replaced: see the test above.
        let run = ["-n", env!("CARGO_BIN_EXE_sidecore"), "run", "--sandbox", "off", "--port"];
        let mut command = Command::new("unshare");
        command
            .args(run)
            .arg("t=tap:sctap0,queues=2")
            .env("SIDECORE_SOCKET", place.path("control.sock"))
            .stdin(Stdio::null());
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

/// A daemon without privileges gets no interface that no operator has named.
#[test]
fn operators_name_interfaces() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to make a network namespace");
        return;
    }
    let place = Place::new();
    let mut command = Command::new("unshare");
    command.args(["-n", env!("CARGO_BIN_EXE_sidecore"), "run", "--port", "t=tap:sctap0"]);
    command.env("SIDECORE_SOCKET", place.path("control.sock")).stdin(Stdio::null());
    let daemon = Daemon::start(&mut command);
    for (kind, name) in [("tap", "sctap1"), ("packet", "lo"), ("xdp", "lo")] {
        let body = format!("{{\"name\": \"x\", \"kind\": \"{kind}\", \"where\": \"{name}\"}}");
        let (_, answer) = place.http("POST", "/v1/ports", &body);
        assert!(answer.contains("opens interfaces only"), "{kind}: {answer}");
    }
    place.ok(&["add", "p=packet:lo"]);
    place.ok(&["set", "t", "mtu=2000"]);
    place.ok(&["del", "t"]);
    place.ok(&["add", "t=tap:sctap1,mtu=1800"]);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_daemon_that_has_locked_itself_down_goes_on_without_its_broker_and_says_what_it_cannot() {
    let place = Place::new();
    let ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", place.at(name)));
    let daemon = place.daemon(&["--port", &ports[0]]);
    let broker = daemon.broker();
    let view = place.show("daemon")["broker"].clone();
    assert_eq!(
        (&view["pid"], &view["refused"]),
        (&broker.as_raw_nonzero().get().into(), &0.into()),
        "{view}"
    );
    assert!(view["requests"].as_u64() > Some(1), "{view}");
    kill_process(broker, Signal::KILL).unwrap();
    await_end(broker);
    daemon.await_log("the broker has ended");
    UnixStream::connect(place.path("a")).unwrap();
    assert!(place.fails(&["add", &ports[1]]).contains("broker"));
    let view = place.show("daemon")["broker"].clone();
    assert_eq!(
        (&view["pid"], view["refused"].as_u64() > Some(0)),
        (&serde_json::Value::Null, true),
        "{view}"
    );
    assert_eq!(view["missed_by"], serde_json::json!(["a"]), "{view}");
    let table = place.ok(&["show", "daemon"]);
    assert!(table.contains("gone: ports go on") && table.contains("a: their next VMMs"), "{table}");
    assert_eq!(place.ports(), ["a"]);
}

/// A daemon without privileges may not say where sockets and journals are made; whoever may open its control socket may.
#[test]
fn an_operator_adds_ports_in_other_folders_and_a_daemon_without_privileges_does_not() {
    let place = Place::new();
    std::fs::create_dir(place.path("run")).unwrap();
    let socket = place.at("run/control.sock");
    let daemon = place.daemon(&["--socket", &socket]);
    let port = |name: &str| {
        let (socket, journal) = (place.at(&format!("{name}.sock")), place.at(&format!("{name}.journal")));
        format!("{name}=vhost-user:{socket},journal={journal}")
    };
    // By the control socket alone it is the daemon that asks.
    let mut stream = UnixStream::connect(&socket).unwrap();
    let body =
        format!("{{\"name\": \"x\", \"kind\": \"vhost-user\", \"where\": \"{}\"}}", place.at("x.sock"));
    let head =
        "POST /v1/ports HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("makes sockets only") && answer.contains("sidecore add"), "{answer}");
    place.ok(&["add", "--socket", &socket, &port("a")]);
    UnixStream::connect(place.path("a.sock")).unwrap();
    assert!(place.path("a.journal").exists());
    // Those of a configuration file, and of the command line, need nothing more.
    let file =
        place.write("b.toml", "[[port]]\nname = \"b\"\nkind = \"vhost-user\"\nwhere = \"DIR/b.sock\"\n");
    place.ok(&["apply", "--socket", &socket, file.to_str().unwrap()]);
    UnixStream::connect(place.path("b.sock")).unwrap();
    // What is changed is said anew.
    place.ok(&["set", "--socket", &socket, "b", &format!("where={}", place.at("c.sock"))]);
    UnixStream::connect(place.path("c.sock")).unwrap();
    let vmm = UnixListener::bind(place.path("vmm.sock")).unwrap();
    place.ok(&["add", "--socket", &socket, &format!("v=vhost-user:{},role=client", place.at("vmm.sock"))]);
    vmm.accept().unwrap();
    let program = place.write("program", "mov r0, 0\nexit\n");
    let lookup = format!("lookup=ebpf:{}", program.display());
    place.ok(&["add", "--socket", &socket, "--switch", &format!("s,{lookup}")]);
    place.ok(&["add", "--socket", &socket, "--switch", "t"]);
    place.ok(&["set", "--socket", &socket, "--switch", "t", &lookup]);
    let operators = place.path("run/ring/.operators");
    assert_eq!(rig::mode(&operators), rig::mode(Path::new(&socket)));
    let broker = daemon.broker();
    assert!(daemon.end(Signal::TERM).success());
    await_end(broker);
    assert!(!operators.exists());
    std::fs::create_dir(place.path("other")).unwrap();
    let c = format!("c=vhost-user:{},journal={}", place.at("other/c.sock"), place.at("c.journal"));
    let daemon = place.daemon(&["--socket", &socket, "--port", &c]);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn it_is_not_for_people() {
    let place = Place::new();
    let refused = place.fails(&["broker", "--socket", "x"]);
    assert!(refused.contains("is internal"), "{refused}");
}
