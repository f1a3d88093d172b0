//! Neighbours on one switch of the real daemon: one forges the other's address, floods, or has its interface
//! in two ports. The other one's frames are numbered, and each is looked for.

use std::time::{Duration, Instant};

use crate::rig::{Daemon, Testbed, LIMIT};
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};

const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VICTIM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const BROADCAST: [u8; 6] = [0xff; 6];
/// Where a frame has its number.
const NUMBER: usize = 14;

fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5], &number.to_le_bytes()].concat();
    bytes.resize(60, 0);
    bytes
}

fn meet(bed: &Testbed, name: &str) -> NetDriver {
    let socket = bed.path(&format!("{name}.sock"));
    NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), Config::default()).unwrap()
}

fn sock(bed: &Testbed, name: &str, options: &str) -> String {
    format!("{name}=vhost-user:{}{options}", bed.at(&format!("{name}.sock")))
}

fn await_show(bed: &Testbed, topic: &str, what: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = bed.show(topic);
        if what(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer}");
    }
}

/// A daemon with their ports, with these options beside.
fn daemon(bed: &Testbed, options: [&str; 3]) -> Daemon {
    let [s, v, a] = [("s", options[0]), ("v", options[1]), ("a", options[2])]
        .map(|(name, options)| sock(bed, name, options));
    bed.daemon(&["--port", &s, "--port", &v, "--port", &a])
}

/// Three guests that run: sender, victim, attacker.
fn three(bed: &Testbed) -> [NetDriver; 3] {
    let drivers = ["s", "v", "a"].map(|name| meet(bed, name));
    await_show(bed, "ports", |ports| {
        ports["ports"].as_array().unwrap().iter().all(|port| port["state"]["peer"] == "running")
    });
    drivers
}

fn send(driver: &mut NetDriver, bytes: &[u8]) {
    driver.complete(0).unwrap();
    driver.send(0, &[bytes]).unwrap();
}

/// Waits for the frame of that number; others are not looked at.
fn await_number(driver: &mut NetDriver, number: u32) {
    let deadline = Instant::now() + LIMIT;
    let mut found = false;
    while !found {
        let mut numbers = Vec::new();
        driver.receive(0, |_, bytes| numbers.push(bytes[NUMBER..NUMBER + 4].to_vec())).unwrap();
        found = numbers.iter().any(|bytes| bytes[..] == number.to_le_bytes());
        assert!(found || Instant::now() < deadline, "frame {number} does not arrive");
        if !found {
            driver.wait(Duration::from_millis(20)).unwrap();
        }
    }
}

fn state(bed: &Testbed, name: &str, key: &str) -> Value {
    bed.port(name)["state"][key].clone()
}

/// Waits until `doctor` finds that a port and another one have one address, and says that `cure` helps.
fn await_doctor(bed: &Testbed, port: &str, cure: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        // It fails where something is wrong.
        let report: Value = serde_json::from_slice(&bed.run(&["doctor", port, "--json"]).stdout).unwrap();
        let checks = report["ports"][0]["checks"].as_array().unwrap();
        if let Some(check) = checks.iter().find(|check| check["name"] == "address_twice") {
            assert!(check["text"].as_str().unwrap().contains(cure), "{check}");
            return;
        }
        assert!(Instant::now() < deadline, "{report}");
    }
}

fn reason(drops: &Value, port: &str, reason: &str) -> bool {
    drops["drops"].as_array().unwrap().iter().any(|drop| drop["port"] == port && drop["reason"] == reason)
}

/// The attack that once worked: some frames with a neighbour's source address, and its frames are gone for
/// good.
#[test]
fn who_only_receives_goes_on_receiving() {
    let bed = Testbed::new();
    let _daemon = daemon(&bed, [""; 3]);
    let [mut sender, mut victim, mut attacker] = three(&bed);
    // The victim is heard once, and never again.
    send(&mut victim, &frame(SENDER, VICTIM, 0));
    await_number(&mut sender, 0);
    for number in 1..51 {
        send(&mut attacker, &frame(SENDER, VICTIM, 1000 + number));
        await_number(&mut sender, 1000 + number);
        send(&mut sender, &frame(VICTIM, SENDER, number));
        await_number(&mut victim, number);
        // A station that has really moved there gets its frames, too, from its first one on.
        await_number(&mut attacker, number);
    }
    assert_eq!(state(&bed, "a", "mac_moved"), 1);
    let table = bed.show("mac");
    let row =
        table["addresses"].as_array().unwrap().iter().find(|row| row["mac"] == "02:00:00:00:00:02").unwrap();
    assert_eq!(
        (&row["port"], &row["claimed_by"], &row["state"]),
        (&"v".into(), &"a".into(), &"learned".into())
    );
    // Who looks why a router is not rid of its frames learns what to choose.
    await_doctor(&bed, "v", "sidecore set a mac-move=learn");
    // The victim speaks: the claim was wrong, and the attacker gets no more than floods.
    send(&mut victim, &frame(SENDER, VICTIM, 60));
    await_number(&mut sender, 60);
    send(&mut sender, &frame(VICTIM, SENDER, 61));
    await_number(&mut victim, 61);
    send(&mut sender, &frame(BROADCAST, SENDER, 62));
    let mut seen = Vec::new();
    let deadline = Instant::now() + LIMIT;
    while !seen.contains(&62) {
        attacker.receive(0, |_, bytes| seen.push(bytes[NUMBER])).unwrap();
        assert!(Instant::now() < deadline);
    }
    assert!(!seen.contains(&61), "{seen:?}");
}

#[test]
fn an_address_that_is_pinned_cannot_be_claimed() {
    let bed = Testbed::new();
    let _daemon = daemon(&bed, [",fdb=02:00:00:00:00:0f", ",mac=02:00:00:00:00:02", ""]);
    let [mut sender, mut victim, mut attacker] = three(&bed);
    // Before the victim was ever heard.
    await_show(&bed, "mac", |table| {
        let states: Vec<_> =
            table["addresses"].as_array().unwrap().iter().map(|row| row["state"].clone()).collect();
        states == ["pinned", "static"]
    });
    for number in 1..20 {
        send(&mut attacker, &frame(SENDER, VICTIM, 1000 + number));
        await_number(&mut sender, 1000 + number);
        send(&mut sender, &frame(VICTIM, SENDER, number));
        await_number(&mut victim, number);
    }
    assert_eq!((state(&bed, "a", "mac_claimed"), state(&bed, "a", "macs")), (19.into(), 0.into()));
    assert_eq!(state(&bed, "v", "mac_guard"), "claim");
    // What the attacker may use is said: everything else is dropped.
    bed.ok(&["set", "a", "mac-guard=strict", "allow-mac=02:00:00:00:00:03+vrrp"]);
    send(&mut attacker, &frame(SENDER, VICTIM, 2000));
    await_show(&bed, "drops", |drops| reason(drops, "a", "mac_guard"));
    send(&mut attacker, &frame(SENDER, ATTACKER, 2001));
    await_number(&mut sender, 2001);
    send(&mut attacker, &frame(SENDER, [0, 0, 0x5e, 0, 1, 9], 2002));
    await_number(&mut sender, 2002);
    let refused = bed.fails(&["set", "a", "fdb=02:00:00:00:00:02"]);
    assert!(refused.contains("port a") && refused.contains("key `"), "{refused}");
}

/// A station that sends while another forges its address all the time: after ten times in a second no claim
/// is heeded, and although the forger was here first, the station gets its frames.
#[test]
fn an_address_that_goes_to_and_fro_is_held_and_both_ports_are_named() {
    let bed = Testbed::new();
    let daemon = daemon(&bed, [""; 3]);
    let [mut sender, mut victim, mut attacker] = three(&bed);
    let deadline = Instant::now() + LIMIT;
    let mut number = 0;
    while state(&bed, "v", "mac_flap") == 0 {
        // Many in one second, however slow the machine is at asking.
        for _ in 0..100 {
            number += 1;
            send(&mut attacker, &frame(SENDER, VICTIM, number));
            await_number(&mut sender, number);
            send(&mut victim, &frame(SENDER, VICTIM, number));
            await_number(&mut sender, number);
        }
        assert!(Instant::now() < deadline);
    }
    send(&mut sender, &frame(VICTIM, SENDER, number + 1));
    await_number(&mut victim, number + 1);
    let line = daemon.await_log("02:00:00:00:00:02 came in by ports");
    assert!(line.contains("ports v and a") || line.contains("ports a and v"), "{line}");
    for port in ["a", "v"] {
        let hint = state(&bed, port, "hint");
        assert!(hint.as_str().is_some_and(|hint| hint.contains("(a loop)")), "{port}: {hint}");
    }
    assert_eq!(state(&bed, "s", "hint"), Value::Null);
}

/// Two stations with one address ping five times a second: each claim is refuted at once, and nothing is
/// held.
#[test]
fn two_stations_with_one_address_are_named() {
    let bed = Testbed::new();
    let daemon = daemon(&bed, [""; 3]);
    let [mut sender, mut victim, mut attacker] = three(&bed);
    let deadline = Instant::now() + LIMIT;
    let mut number = 0;
    while state(&bed, "v", "hint") == Value::Null {
        for station in [&mut attacker, &mut victim] {
            number += 1;
            send(station, &frame(SENDER, VICTIM, number));
            await_number(&mut sender, number);
        }
        // The rate is what the test is about: a faster one is a flap.
        std::thread::sleep(Duration::from_millis(200));
        assert!(Instant::now() < deadline, "nobody is named");
    }
    let line = daemon.await_log("02:00:00:00:00:02 comes in by ports");
    assert!(line.contains("ports v and a") || line.contains("ports a and v"), "{line}");
    for port in ["a", "v"] {
        await_doctor(&bed, port, "give one of them another (QEMU: mac=…)");
    }
    assert_eq!((state(&bed, "a", "mac_flap"), state(&bed, "s", "hint")), (0.into(), Value::Null));
}

/// A virtual router's address goes to its new master by that one's first frame, and the former one gets
/// nothing more.
#[test]
fn a_station_moves_at_once_where_the_operator_says_so() {
    let virtual_router = |id| [0, 0, 0x5e, 0, 1, id];
    let moved = |bed: &Testbed, station: [u8; 6]| {
        let [mut sender, mut former, mut master] = three(bed);
        send(&mut former, &frame(SENDER, station, 1));
        await_number(&mut sender, 1);
        send(&mut master, &frame(SENDER, station, 2));
        await_number(&mut sender, 2);
        send(&mut sender, &frame(station, SENDER, 3));
        await_number(&mut master, 3);
        // Behind that, on the same way.
        send(&mut sender, &frame(BROADCAST, SENDER, 4));
        let (mut seen, deadline) = (Vec::new(), Instant::now() + LIMIT);
        while !seen.contains(&4) {
            former.receive(0, |_, bytes| seen.push(bytes[NUMBER])).unwrap();
            assert!(Instant::now() < deadline);
        }
        !seen.contains(&3)
    };
    let bed = Testbed::new();
    let _daemon =
        daemon(&bed, ["", "", ",mac-guard=strict,allow-mac=vrrp+02:00:00:00:00:02+02:00:00:00:00:03"]);
    assert!(moved(&bed, virtual_router(1)), "allow-mac=vrrp");
    assert!(!moved(&bed, VICTIM), "by default both get its frames");
    bed.ok(&["set", "a", "mac-move=learn"]);
    assert!(moved(&bed, ATTACKER), "at the port");
    bed.ok(&["set", "a", "mac-move=claim"]);
    assert!(!moved(&bed, virtual_router(2)), "what is said goes before what follows");
    let bed = Testbed::new();
    let ports = ["s", "v", "a"].map(|name| sock(&bed, name, ""));
    let ports = ports.iter().flat_map(|port| ["--port", port]);
    let _daemon =
        bed.daemon(&["--switch", "lan,mac-move=learn"].into_iter().chain(ports).collect::<Vec<_>>());
    assert!(moved(&bed, VICTIM), "at the switch");
}

#[test]
fn one_interface_stands_behind_one_port() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    let file = bed.write(
        "two.toml",
        "[[port]]\nname = 't'\nkind = 'tap'\nwhere = 'sctwice'\n\
         [[port]]\nname = 'p'\nkind = 'packet'\nwhere = 'sctwice'\n",
    );
    let refused = bed.fails(&["apply", file.to_str().unwrap()]);
    assert!(refused.contains("port p: key `where`: port t has this place; choose another"), "{refused}");
}
