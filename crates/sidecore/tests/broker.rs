//! The daemon's broker: each of the two is killed, and nothing that runs notices.

use crate::rig;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;

use crate::rig::{await_end, Daemon, Testbed};
use rustix::process::{kill_process, Signal};

#[test]
fn a_broker_ends_with_its_daemon_however_that_ends() {
    let bed = Testbed::new();
    for signal in [Signal::KILL, Signal::TERM] {
        let port = format!("a=vhost-user:{}", bed.at("a.sock"));
        let daemon = bed.daemon(&["--port", &port]);
        let broker = daemon.broker();
        daemon.end(signal);
        await_end(broker);
        assert_eq!(bed.path("a.sock").exists(), signal == Signal::KILL);
    }
}

#[test]
fn a_daemon_goes_on_without_its_broker_and_starts_another_when_it_needs_one() {
    let bed = Testbed::new();
    let ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", bed.at(name)));
    // One that has locked itself down, as it does by default, may not start another broker.
    let daemon = bed.daemon(&["--sandbox", "off", "--port", &ports[0]]);
    for round in 0..5 {
        let broker = daemon.broker();
        kill_process(broker, Signal::KILL).unwrap();
        await_end(broker);
        daemon.await_log("the broker has ended");
        UnixStream::connect(bed.path("a")).unwrap();
        assert_eq!(bed.ports().len(), 1, "round {round}");
        bed.ok(&["add", &ports[1]]);
        UnixStream::connect(bed.path("b")).unwrap();
        bed.ok(&["del", "b"]);
        assert!(!bed.path("b").exists() && !bed.path("control.journals/b").exists());
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// TAP, packet and AF_XDP ports in a network namespace of their own: what the broker opens is what they run
/// with, and goes on when it is gone.
#[test]
fn interfaces_are_opened_by_the_broker_and_outlive_it() {
    for (port, more) in [("p=packet:lo,queues=2", ",mtu=9000"), ("p=xdp:lo,mode=copy", ",mtu=3000")] {
        let bed = Testbed::new();
        // Its broker is killed, and has to be replaced: see the test above.
        let run = ["-n", env!("CARGO_BIN_EXE_sidecore"), "run", "--sandbox", "off", "--port"];
        let mut command = rig::unshare();
        command
            .args(run)
            .arg("t=tap:sctap0,queues=2")
            .env("SIDECORE_SOCKET", bed.path("control.sock"))
            .stdin(Stdio::null());
        let daemon = Daemon::start(&mut command);
        // The interface is down, and has another MTU: the broker changes that.
        bed.ok(&["add", &format!("{port}{more}")]);
        assert_eq!(bed.port("p")["state"]["peer"], "running");
        let broker = daemon.broker();
        kill_process(broker, Signal::KILL).unwrap();
        await_end(broker);
        daemon.await_log("the broker has ended");
        for name in ["p", "t"] {
            assert_eq!(bed.port(name)["state"]["peer"], "running", "{name}");
        }
        bed.ok(&["set", "p", "mtu=2000"]);
        bed.ok(&["del", "p"]);
        bed.ok(&["add", &format!("{port},mtu=1800")]);
        assert_eq!(bed.port("p")["state"]["mtu"], 1800);
        assert!(daemon.end(Signal::TERM).success());
    }
}

/// A daemon without privileges gets no interface that no operator has named.
#[test]
fn operators_name_interfaces() {
    let bed = Testbed::new();
    let mut command = rig::unshare();
    command.args(["-n", env!("CARGO_BIN_EXE_sidecore"), "run", "--port", "t=tap:sctap0"]);
    command.env("SIDECORE_SOCKET", bed.path("control.sock")).stdin(Stdio::null());
    let daemon = Daemon::start(&mut command);
    for (kind, name) in [("tap", "sctap1"), ("packet", "lo"), ("xdp", "lo")] {
        let body = format!("{{\"name\": \"x\", \"kind\": \"{kind}\", \"where\": \"{name}\"}}");
        let (_, answer) = bed.http("POST", "/v1/ports", &body);
        assert!(answer.contains("opens interfaces only"), "{kind}: {answer}");
    }
    bed.ok(&["add", "p=packet:lo"]);
    bed.ok(&["set", "t", "mtu=2000"]);
    bed.ok(&["del", "t"]);
    bed.ok(&["add", "t=tap:sctap1,mtu=1800"]);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_daemon_that_has_locked_itself_down_goes_on_without_its_broker_and_says_what_it_cannot() {
    let bed = Testbed::new();
    let ports = ["a", "b"].map(|name| format!("{name}=vhost-user:{}", bed.at(name)));
    let daemon = bed.daemon(&["--port", &ports[0]]);
    let broker = daemon.broker();
    let view = bed.show("daemon")["broker"].clone();
    assert_eq!(
        (&view["pid"], &view["refused"]),
        (&broker.as_raw_nonzero().get().into(), &0.into()),
        "{view}"
    );
    assert!(view["requests"].as_u64() > Some(1), "{view}");
    kill_process(broker, Signal::KILL).unwrap();
    await_end(broker);
    daemon.await_log("the broker has ended");
    UnixStream::connect(bed.path("a")).unwrap();
    assert!(bed.fails(&["add", &ports[1]]).contains("broker"));
    let view = bed.show("daemon")["broker"].clone();
    assert_eq!(
        (&view["pid"], view["refused"].as_u64() > Some(0)),
        (&serde_json::Value::Null, true),
        "{view}"
    );
    assert_eq!(view["missed_by"], serde_json::json!(["a"]), "{view}");
    let table = bed.ok(&["show", "daemon"]);
    assert!(table.contains("gone: ports go on") && table.contains("a: their next VMMs"), "{table}");
    assert_eq!(bed.ports(), ["a"]);
}

/// A daemon without privileges may not say where sockets and journals are made; a user who may open its
/// control socket may.
#[test]
fn an_operator_adds_ports_in_other_folders_and_a_daemon_without_privileges_does_not() {
    let bed = Testbed::new();
    std::fs::create_dir(bed.path("run")).unwrap();
    let socket = bed.at("run/control.sock");
    let daemon = bed.daemon(&["--socket", &socket]);
    let port = |name: &str| {
        let (socket, journal) = (bed.at(&format!("{name}.sock")), bed.at(&format!("{name}.journal")));
        format!("{name}=vhost-user:{socket},journal={journal}")
    };
    // By the control socket alone it is the daemon that asks.
    let mut stream = UnixStream::connect(&socket).unwrap();
    let body = format!("{{\"name\": \"x\", \"kind\": \"vhost-user\", \"where\": \"{}\"}}", bed.at("x.sock"));
    let head =
        "POST /v1/ports HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("makes sockets only") && answer.contains("sidecore add"), "{answer}");
    bed.ok(&["add", "--socket", &socket, &port("a")]);
    UnixStream::connect(bed.path("a.sock")).unwrap();
    assert!(bed.path("a.journal").exists());
    // Those of a configuration file, and of the command line, need nothing more.
    let file = bed.write("b.toml", "[[port]]\nname = \"b\"\nkind = \"vhost-user\"\nwhere = \"DIR/b.sock\"\n");
    bed.ok(&["apply", "--socket", &socket, file.to_str().unwrap()]);
    UnixStream::connect(bed.path("b.sock")).unwrap();
    // What is changed is said anew.
    bed.ok(&["set", "--socket", &socket, "b", &format!("where={}", bed.at("c.sock"))]);
    UnixStream::connect(bed.path("c.sock")).unwrap();
    let vmm = UnixListener::bind(bed.path("vmm.sock")).unwrap();
    bed.ok(&["add", "--socket", &socket, &format!("v=vhost-user:{},role=client", bed.at("vmm.sock"))]);
    vmm.accept().unwrap();
    let operators = bed.path("run/ring/.operators");
    assert_eq!(rig::mode(&operators), rig::mode(Path::new(&socket)));
    let broker = daemon.broker();
    assert!(daemon.end(Signal::TERM).success());
    await_end(broker);
    assert!(!operators.exists());
    std::fs::create_dir(bed.path("other")).unwrap();
    let c = format!("c=vhost-user:{},journal={}", bed.at("other/c.sock"), bed.at("c.journal"));
    let daemon = bed.daemon(&["--socket", &socket, "--port", &c]);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn it_is_not_for_people() {
    let bed = Testbed::new();
    let refused = bed.fails(&["broker", "--socket", "x"]);
    assert!(refused.contains("is internal"), "{refused}");
}
