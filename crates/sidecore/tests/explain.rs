//! What a user sees of single frames: what would become of one, what becomes of the next ones, and captures
//! of some of them.

mod random;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use crate::rig::{wait, Testbed};
use crate::vlan::{frame, guests, mac, Guest, EVERYBODY};
use serde_json::Value;

/// A daemon with three guests, of which the third is in another VLAN and the second has an access list and a
/// mirror.
fn scene() -> (Testbed, crate::rig::Daemon, [Guest; 4]) {
    let bed = Testbed::new();
    bed.write(
        "a.toml",
        &format!(
            "[[switch]]\nname = \"ids\"\n[[acl]]\nname = \"web\"\nrules = [\"deny type=0x88b5 src-mac=02:00:00:00:00:09\"]\ndefault = \"permit\"\n{}",
            [("red", "vlan = 10"), ("web", "vlan = 10\nacl-out = \"web\"\nmirror = \"ids\""), ("blue", "vlan = 20"), ("ids", "switch = \"ids\"")]
                .map(|(name, options)| format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nwhere = \"{}\"\n{options}\n", bed.at(&format!("{name}.sock"))))
                .concat(),
        ),
    );
    let daemon = bed.daemon(&["a.toml"]);
    let guests = guests(&bed, ["red", "web", "blue", "ids"]);
    (bed, daemon, guests)
}

/// The steps that are told: the port, what becomes of it there, and why it is dropped.
fn steps(bed: &Testbed, from: &str, bytes: &[u8]) -> Vec<(String, String, String)> {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let told: Value = serde_json::from_str(&bed.ok(&["explain", "--from", from, &digits, "--json"])).unwrap();
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or("").to_owned();
    let steps = told["steps"].as_array().unwrap();
    steps.iter().map(|step| (text(step, "port"), text(step, "action"), text(step, "why"))).collect()
}

fn step(port: &str, action: &str, why: &str) -> (String, String, String) {
    (port.to_owned(), action.to_owned(), why.to_owned())
}

fn sums(bed: &Testbed) -> Vec<Value> {
    let ports = bed.show("ports");
    ports["ports"].as_array().unwrap().iter().map(|port| port["counters"].clone()).collect()
}

#[test]
fn what_is_explained_happens_and_nothing_before() {
    let (bed, _daemon, [mut red, mut web, mut blue, mut ids]) = scene();
    let all = frame(EVERYBODY, 1, None, 1);
    let before = sums(&bed);
    let told = steps(&bed, "red", &all);
    let flood =
        [step("red", "pass", ""), step("web", "pass", ""), step("web", "out", ""), step("ids", "out", "")];
    assert_eq!(told, flood);
    // Asked for as a user writes it.
    let text = bed.ok(&[
        "explain",
        "--from",
        "red",
        "dst-mac=ff:ff:ff:ff:ff:ff",
        "src-mac=02:00:00:00:00:09",
        "type=0x88b5",
    ]);
    assert!(
        text.contains("is dropped") && text.contains("acl: ") && text.contains("deny type=0x88b5"),
        "{text}"
    );
    assert_eq!(steps(&bed, "blue", &frame(EVERYBODY, 3, Some(10), 1)), [step("blue", "drop", "vlan")]);
    assert_eq!(sums(&bed), before);
    assert!(bed.show("mac")["addresses"].as_array().unwrap().is_empty());

    red.send(&all);
    web.gets(&all);
    ids.gets(&all);
    // Where the answer goes is known now.
    let answer = frame(mac(1), 2, None, 2);
    assert_eq!(
        steps(&bed, "web", &answer),
        [step("web", "pass", ""), step("ids", "out", ""), step("red", "out", "")]
    );
    web.send(&answer);
    red.gets(&answer);
    ids.gets(&answer);
    blue.send(&frame(EVERYBODY, 3, Some(10), 1));
    crate::rig::until("drop", || bed.port("blue")["counters"]["drops"]["vlan"] == 1);
    // What is no question is said to be none.
    for (words, why) in [
        (&["explain", "--from", "nix", "ffffffffffff0200000000010806"][..], "there is no port \"nix\""),
        (&["explain", "--from", "red", "00"], "14 to 65535"),
        (&["explain", "ff"], "--from PORT"),
    ] {
        assert!(bed.fails(words).contains(why), "{words:?}");
    }
}

/// A guest may claim its own addresses only, and is no server and no router.
#[test]
fn guards_follow_set_and_drop_by_name() {
    let (bed, _daemon, [mut red, mut web, _blue, _ids]) = scene();
    let datagram = |last: u8, port: u8| {
        let ports = [0, port, 0, port + 1];
        let head = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, last, 192, 0, 2, 99];
        let mut bytes = [&EVERYBODY[..], &mac(1), &[8, 0], &head, &ports].concat();
        bytes.resize(60, last);
        bytes
    };
    red.send(&datagram(8, 67));
    web.gets(&datagram(8, 67));
    bed.ok(&["set", "red", "allow-ip=192.0.2.7", "dhcp-guard=on", "ra-guard=on"]);
    red.send(&datagram(8, 1));
    red.send(&datagram(7, 67));
    red.send(&datagram(7, 1));
    web.gets(&datagram(7, 1));
    let drops = bed.port("red")["counters"]["drops"].clone();
    assert_eq!((&drops["ip_guard"], &drops["dhcp_guard"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(steps(&bed, "red", &datagram(8, 1)), [step("red", "drop", "ip_guard")]);
    bed.ok(&["set", "red", "allow-ip=", "dhcp-guard=off", "ra-guard=off"]);
    red.send(&datagram(9, 67));
    web.gets(&datagram(9, 67));
}

/// Starts a command whose first output tells that it has begun.
fn begun(bed: &Testbed, args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = bed.command().args(args).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

#[test]
fn a_trace_follows_frames_from_port_to_port() {
    let (bed, _daemon, [mut red, mut web, _blue, _ids]) = scene();
    let (mut trace, out) = begun(&bed, &["trace", "red", "--next", "2", "--json", "ether[14] > 4"]);
    // Ports are captured in the order of their names: this is the last one.
    let watched = || bed.port("web")["state"]["captures"].as_array().is_some_and(|all| !all.is_empty());
    crate::rig::until("trace", watched);
    for number in [1, 5, 6] {
        red.send(&frame(EVERYBODY, if number == 6 { 9 } else { 1 }, None, number));
    }
    web.gets(&frame(EVERYBODY, 1, None, 1));
    web.gets(&frame(EVERYBODY, 1, None, 5));
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(wait(&mut trace).success());
    let steps = |line: &Value| -> Vec<(String, String, String)> {
        let text = |step: &Value, key: &str| step[key].as_str().unwrap_or("").to_owned();
        let steps = line["steps"].as_array().unwrap();
        steps.iter().map(|it| step(&text(it, "port"), &text(it, "direction"), &text(it, "dropped"))).collect()
    };
    let passed = [step("red", "in", ""), step("web", "out", ""), step("ids", "out", "")];
    assert_eq!(
        lines.iter().map(steps).collect::<Vec<_>>(),
        [passed.to_vec(), vec![step("red", "in", ""), step("web", "out", "acl")]]
    );
    let empty = Testbed::new();
    let _daemon = empty.daemon(&[]);
    assert!(empty.fails(&["capture", "-w", "x"]).contains("there is no port to capture"));
    assert!(bed.fails(&["trace", "nix"]).contains("there is no port \"nix\""));
    assert!(bed.fails(&["trace", "red", "tcp port"]).contains("pcap-filter(7)"));
}

#[test]
fn captures_keep_what_is_asked_for() {
    let (bed, _daemon, [mut red, mut web, _blue, _ids]) = scene();
    let (mut drops, mut out) = begun(&bed, &["capture", "--on-drop", "--count", "1", "-w", "-"]);
    // The beginning of the file comes when the capture has begun.
    let mut head = [0; 28];
    out.read_exact(&mut head).unwrap();
    let (mut some, mut other) =
        begun(&bed, &["capture", "red", "web", "--filter", "ether[14] = 7", "--count", "2", "-w", "-"]);
    other.read_exact(&mut head).unwrap();
    red.send(&frame(EVERYBODY, 1, None, 6));
    red.send(&frame(EVERYBODY, 9, None, 6));
    red.send(&frame(EVERYBODY, 1, None, 7));
    web.gets(&frame(EVERYBODY, 1, None, 6));
    web.gets(&frame(EVERYBODY, 1, None, 7));
    let rest = |from: &mut BufReader<std::process::ChildStdout>| {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    };
    let has = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).filter(|window| *window == what).count();
    let (dropped, kept) = (rest(&mut out), rest(&mut other));
    assert!(wait(&mut drops).success() && wait(&mut some).success());
    assert_eq!((has(&dropped, b"dropped: acl"), has(&dropped, &frame(EVERYBODY, 9, None, 6))), (1, 1));
    assert_eq!(
        (has(&kept, &frame(EVERYBODY, 1, None, 7)), has(&kept, &frame(EVERYBODY, 1, None, 6))),
        (2, 0)
    );

    // A ring of files, each of which is whole.
    let mut ring = bed.command();
    ring.args(["capture", "web", "-w", "ring.pcapng", "-C", "64K", "-W", "2", "--count", "2000"]);
    let mut ring = ring.spawn().unwrap();
    crate::rig::until("file", || {
        std::fs::metadata(bed.path("ring.pcapng.0")).is_ok_and(|file| file.len() > 0)
    });
    for _ in 0..2000 {
        red.send(&frame(EVERYBODY, 1, None, 7));
        web.gets(&frame(EVERYBODY, 1, None, 7));
    }
    assert!(wait(&mut ring).success());
    for file in ["ring.pcapng.0", "ring.pcapng.1"] {
        let read =
            std::process::Command::new("tcpdump").args(["-n", "-r"]).arg(bed.path(file)).output().unwrap();
        assert!(read.status.success() && read.stdout.lines().count() > 10, "{file}: {read:?}");
        assert!(std::fs::metadata(bed.path(file)).unwrap().len() <= 64 << 10);
    }
    assert!(!bed.path("ring.pcapng.2").exists());
    assert!(bed.fails(&["capture", "web", "-w", "x", "--filter", "nonsense here"]).contains("can't parse"));
    assert!(!bed.path("x").exists());
}
