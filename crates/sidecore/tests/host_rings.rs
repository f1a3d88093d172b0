//! Host rings on demand: a program that asks for them talks to the host's own stack. In a network namespace;
//! needs root.

use crate::rig;
use std::process::Command;
use std::time::Instant;

use crate::rig::{Daemon, Testbed, LIMIT};
use sidecore_port::{Interest, Port, RxRing, TxRing};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Who has 10.9.0.1? Tell 10.9.0.2.
fn question() -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend(MAC);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes.extend(MAC);
    bytes.extend([10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1]);
    bytes.resize(60, 0);
    bytes
}

/// Asks until the host answers; it has more to say than that.
fn ask(port: &mut Port, rings: impl Fn(&mut Port) -> (&mut TxRing, &mut RxRing)) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT, "the host does not answer");
        let (tx, _) = rings(port);
        tx.push(&question());
        tx.sync().unwrap();
        port.wait(Interest::RECEIVE, Some(std::time::Duration::from_secs(1))).unwrap();
        let (_, rx) = rings(port);
        while let Some(frame) = rx.take() {
            let bytes = frame.bytes();
            if bytes[..6] == MAC && bytes[12..14] == [8, 6] && bytes[20..22] == [0, 2] {
                return rx.sync().unwrap();
            }
        }
        rx.sync().unwrap();
    }
}

#[test]
fn a_program_reaches_the_hosts_stack() {
    let bed = Testbed::new();
    std::env::set_var("SIDECORE_SOCKET", bed.path("control.sock"));
    let mut command = rig::unshare();
    command.args([
        "--net",
        env!("CARGO_BIN_EXE_sidecore"),
        "run",
        "--port",
        "p=ring:p",
        "--port",
        "q=ring:q,wire=q",
    ]);
    command.env("SIDECORE_SOCKET", bed.path("control.sock")).env_remove("NOTIFY_SOCKET");
    let _daemon = Daemon::start(&mut command);
    let (_, answer) = bed.http("GET", "/v1/daemon", "");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let space = format!("--net=/proc/{}/ns/net", answer["pid"]);
    let ip = |args: &[&str]| {
        let output = Command::new("nsenter").args([&space, "ip"]).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < LIMIT, "waited in vain: {what}");
        }
    };

    let mut port = Port::attach_with_host("p").unwrap();
    assert_eq!((port.tx.len(), port.host_tx.len()), (1, 1));
    assert_eq!(bed.ports(), ["p", "p.host", "p.tap", "q"]);
    assert_eq!(bed.port("p.tap")["state"]["wire"], "p.host");
    ip(&["addr", "add", "10.9.0.1/24", "dev", "p"]);
    ask(&mut port, |port| (&mut port.host_tx[0], &mut port.host_rx[0]));
    // They are not part of the configuration, and go with their user.
    assert!(!bed.http("GET", "/v1/config", "").1.contains("p.tap"));
    drop(port);
    until("they are gone", &|| bed.ports() == ["p", "q"] && !ip(&["link"]).contains(" p:"));
    assert!(Port::attach("p").unwrap().host_tx.is_empty());

    // vale-ctl -h: port and host on one switch.
    bed.ok(&["vale-ctl", "-h", "vale3:q"]);
    assert_eq!(bed.port("q.tap")["state"]["switch"], "3");
    ip(&["addr", "add", "10.9.0.1/24", "dev", "q"]);
    let mut port = Port::attach("q").unwrap();
    ask(&mut port, |port| (&mut port.tx[0], &mut port.rx[0]));
    drop(port);
    bed.ok(&["vale-ctl", "-d", "vale3:q"]);
    assert_eq!(bed.ports(), ["p", "q"]);
    // Names that are no interface's, and ports that are not there.
    let why = Port::attach_with_host("nowhere").unwrap_err().to_string();
    assert!(why.contains("there is no ring port"), "{why}");
}
