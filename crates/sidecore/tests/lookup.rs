//! Lookup functions on the real daemon: a program from a file, which decides, is bounded and can be replaced while frames
//! pass; a program that is not well-formed; flows spread over ports.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod rig;

use std::collections::BTreeMap;
use std::time::Instant;

use rig::{Testbed, LIMIT};
use serde_json::Value;
use sidecore_port::{Interest, Port};

/// Obeys the first byte behind the type: a port's number, or one of those below.
const OBEDIENT: &str = "
    ldxb r2, [r1+22]
    jeq r2, 0xff, everybody
    jeq r2, 0xfe, nobody
    jeq r2, 0xfd, endless
    jeq r2, 0xfc, astray
    mov r0, r2
    exit
everybody:
    mov r0, -2
    exit
nobody:
    mov r0, -1
    exit
endless:
    ja endless
astray:
    ldxdw r0, [r1+72]
    exit
";
const EVERYBODY: u8 = 0xff;
const NOBODY: u8 = 0xfe;
const ENDLESS: u8 = 0xfd;
const ASTRAY: u8 = 0xfc;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A daemon with ring ports a, b and c, whose switch has that lookup function.
fn start(bed: &Testbed, lookup: &str) -> (rig::Daemon, Vec<Port>) {
    let mut args = vec!["--switch".to_owned(), format!("lan,lookup={lookup}")];
    for name in NAMES {
        args.extend(["--port".to_owned(), format!("{name}=ring:{}", bed.at(name))]);
    }
    let daemon = bed.daemon(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let attach = |name| Port::attach(&bed.at(name)).unwrap();
    (daemon, NAMES.map(attach).into())
}

fn number(bed: &Testbed, name: &str) -> u8 {
    bed.port(name)["number"].as_u64().unwrap().try_into().unwrap()
}

/// A frame that tells the program where to send it.
fn order(what: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, what];
    bytes.resize(60, what);
    bytes
}

/// A datagram of the flow with that number.
fn datagram(flow: u16) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    bytes.resize(60, 0);
    bytes[20..24].copy_from_slice(&[0, 0, 64, 17]);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes
}

fn send(port: &mut Port, bytes: &[u8]) {
    assert!(port.tx[0].push(bytes));
    port.tx[0].sync().unwrap();
}

fn await_frame(port: &mut Port) -> Vec<u8> {
    assert!(port.wait(Interest::RECEIVE, Some(LIMIT)).unwrap(), "no frame arrives");
    let bytes = port.rx[0].take().unwrap().bytes().to_vec();
    port.rx[0].sync().unwrap();
    bytes
}

fn has_none(port: &mut Port) -> bool {
    port.rx[0].sync().unwrap();
    port.rx[0].take().is_none()
}

/// The counters of port a, as soon as it has sent so many frames and each of them has its fate.
fn counters(bed: &Testbed, sent: u64) -> Value {
    let start = Instant::now();
    loop {
        let all = bed.show("ports");
        let ports = all["ports"].as_array().unwrap();
        let of = |key: &str| ports.iter().map(|port| port["counters"][key].as_u64().unwrap()).sum::<u64>();
        let drops = |port: &Value| {
            port["counters"]["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>()
        };
        let dropped: u64 = ports.iter().map(drops).sum();
        if of("in_frames") == sent && of("in_frames") + of("made") == of("out_frames") + dropped {
            return ports[0]["counters"].clone();
        }
        assert!(start.elapsed() < LIMIT, "{all}");
    }
}

#[test]
fn a_program_decides_and_is_bounded() {
    let bed = Testbed::new();
    let file = bed.write("obedient.s", OBEDIENT);
    let (_daemon, mut ports) = start(&bed, &format!("ebpf:{}", file.display()));
    let [a, b, c] = &mut ports[..] else { panic!() };
    let numbers = NAMES.map(|name| number(&bed, name));
    // Whatever goes wrong costs the frame; the next one finds the program as it was.
    for what in [ENDLESS, ASTRAY, NOBODY, numbers[0], 200, numbers[1], ENDLESS, numbers[2], EVERYBODY] {
        send(a, &order(what));
    }
    assert_eq!(await_frame(b)[14], numbers[1]);
    assert_eq!(await_frame(b)[14], EVERYBODY);
    assert_eq!(await_frame(c)[14], numbers[2]);
    assert_eq!(await_frame(c)[14], EVERYBODY);
    let drops = &counters(&bed, 9)["drops"];
    let expected = serde_json::json!({
        "lookup_budget": 2, "lookup_fault": 1, "lookup_drop": 1, "hairpin": 1, "no_destination": 1
    });
    assert_eq!(drops, &expected);
    assert!(has_none(a) && has_none(b) && has_none(c));
    // It learns nothing.
    assert_eq!(bed.show("mac")["switches"][0]["entries"].as_array().map(Vec::len).unwrap_or(0), 0);
    assert!(bed.port("a")["state"]["lookup"].as_str().unwrap().contains("obedient.s"));

    // Another program, in the place of the first: no guest connects again.
    let all = bed.write("all.s", "mov r0, -2\nexit\n");
    bed.ok(&["set", "--switch", "lan", &format!("lookup=ebpf:{}", all.display())]);
    send(a, &order(NOBODY));
    assert_eq!((await_frame(b)[14], await_frame(c)[14]), (NOBODY, NOBODY));
}

#[test]
fn what_is_no_program_changes_nothing() {
    let bed = Testbed::new();
    let good = bed.write("good.s", OBEDIENT);
    let (_daemon, mut ports) = start(&bed, &format!("ebpf:{}", good.display()));
    let [a, b, _] = &mut ports[..] else { panic!() };
    for (name, text) in
        [("jump.s", "ja +5\nexit\n"), ("divide.s", "mov r0, 1\ndiv r0, 0\nexit\n"), ("words.s", "give up\n")]
    {
        let bad = bed.write(name, text);
        let why = bed.fails(&["set", "--switch", "lan", &format!("lookup=ebpf:{}", bad.display())]);
        assert!(why.contains(name), "{why}");
    }
    let why = bed.fails(&["set", "--switch", "lan", &format!("lookup=ebpf:{}", bed.at("missing.s"))]);
    assert!(why.contains("missing.s"), "{why}");
    let to_b = number(&bed, "b");
    send(a, &order(to_b));
    assert_eq!(await_frame(b)[14], to_b);
    let why = bed.fails(&["run", "--socket", &bed.at("other"), "--switch", "lan,lookup=ebpf:jump.s"]);
    assert!(why.contains("jump.s"), "{why}");
}

#[test]
fn port_hash_keeps_flows_together_and_apart() {
    let bed = Testbed::new();
    let (_daemon, mut ports) = start(&bed, "learning");
    bed.ok(&["set", "--switch", "lan", "lookup=port-hash"]);
    let mut at: BTreeMap<u16, usize> = BTreeMap::new();
    let flows = 64;
    for round in 0..2 {
        for flow in 0..flows {
            send(&mut ports[0], &datagram(flow));
        }
        counters(&bed, (round + 1) * u64::from(flows));
        for (number, port) in ports.iter_mut().enumerate().skip(1) {
            port.rx[0].sync().unwrap();
            while let Some(frame) = port.rx[0].take() {
                let flow = u16::from_be_bytes(frame.bytes()[34..36].try_into().unwrap());
                assert_eq!(*at.entry(flow).or_insert(number), number, "flow {flow} moved");
            }
        }
    }
    assert_eq!(at.len(), usize::from(flows));
    assert!(at.values().any(|port| *port == 1) && at.values().any(|port| *port == 2), "{at:?}");
    // Of a port that goes the other gets all flows.
    drop(ports.pop());
    let start = Instant::now();
    while bed.port("c")["state"]["link"] != "down" {
        assert!(start.elapsed() < LIMIT);
    }
    for flow in 0..flows {
        send(&mut ports[0], &datagram(flow));
    }
    for _ in 0..flows {
        await_frame(&mut ports[1]);
    }
}
