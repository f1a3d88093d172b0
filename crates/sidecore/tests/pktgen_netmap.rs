//! Programs in C that know netmap's API only, and the real daemon: one exchanges verified frames with
//! `pkt-gen` through a switch, another controls ports and switches.
//!
//! `FRAMES=100000000` makes it the run that PROMISES.md tells of.

use crate::rig;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::rig::Testbed;

/// The C library and one of the programs, built as a user would.
fn build(bed: &Testbed, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let source = |path: &str| root.join(path).into_os_string().into_string().unwrap();
    let run = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: is it installed?"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let out = bed.at("c");
    std::fs::create_dir(&out).unwrap();
    run(Command::new("make").args(["-s", "-C", &source("crates/port/c"), &format!("OUT={out}")]));
    let program = bed.at(name);
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
        .arg(format!("-I{}", source("include")))
        .args([&source(&format!("crates/port/tests/c/{name}.c")), "-o", &program, &format!("-L{out}")])
        .args(["-l:libnetmap.a", "-lpthread"]));
    program.into()
}

#[test]
fn frames_are_exchanged_with_a_netmap_program() {
    let frames: u64 = std::env::var("FRAMES").map_or(100_000, |n| n.parse().unwrap());
    let count = frames.to_string();
    let bed = Testbed::new();
    let program = build(&bed, "verify");
    let _daemon = bed.daemon(&["--port", "g=ring:g", "--port", "c=ring:c,queues=2"]);
    let environment = bed.path("control.sock");
    let netmap = |what: &str| {
        let mut command = Command::new(&program);
        command.args([what, "netmap:c", &count]).env("SIDECORE_SOCKET", &environment);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let generator = |what: &[&str]| {
        let mut command = bed.command();
        command.args(["pkt-gen", "-i", "g", "--verify", "-n", &count]).args(what);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };

    // From pkt-gen to netmap's program.
    let mut receiver = netmap("rx");
    let mut said = BufReader::new(receiver.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let sender = generator(&["-f", "tx", "-l", "60", "-l", "124", "-s", "10.0.0.1:1-10.0.0.1:5"]);
    let sent = sender.wait_with_output().unwrap();
    assert!(sent.status.success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(receiver.wait().unwrap().success());
    assert_eq!(rest, format!("verified {frames} frames of 5 flows\n"));
    let there = String::from_utf8(sent.stdout).unwrap();

    // Frames go back.
    let receiver = generator(&["-f", "rx"]);
    let sent = netmap("tx").wait_with_output().unwrap();
    assert!(sent.status.success());
    assert_eq!(String::from_utf8(sent.stdout).unwrap(), format!("sent {frames}\n"));
    let received = receiver.wait_with_output().unwrap();
    assert!(received.status.success());
    let back = String::from_utf8(received.stdout).unwrap();
    let verified =
        format!("Verified {frames} packets of 7 flows: 0 lost, 0 reordered, 0 corrupt; 0 of others.");
    assert_eq!(back.lines().last(), Some(verified.as_str()), "{back}");
    println!("{there}{back}");
}

#[test]
fn a_netmap_program_controls_ports_and_switches() {
    let bed = Testbed::new();
    let program = build(&bed, "control");
    let daemon = bed.daemon(&["--cores", "0"]);
    let output =
        Command::new(program).arg("0").env("SIDECORE_SOCKET", bed.path("control.sock")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What it made it has removed; the ports on demand went with it.
    let start = std::time::Instant::now();
    while !bed.ports().is_empty() {
        assert!(start.elapsed() < rig::LIMIT, "{:?}", bed.ports());
    }
    drop(daemon);
}
