//! VLANs of the real daemon, with virtio guests of our own: what each gets is looked at byte by byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::rig::{Testbed, LIMIT};
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};

const EVERYBODY: [u8; 6] = [0xff; 6];

fn mac(guest: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, guest]
}

/// A frame with this tag, if there is one, and this number.
fn frame(to: [u8; 6], from: u8, tag: Option<u16>, number: u8) -> Vec<u8> {
    let tag = tag.map_or_else(Vec::new, |tci| [&[0x81, 0][..], &tci.to_be_bytes()].concat());
    let mut bytes = [&to[..], &mac(from), &tag, &[0x88, 0xb5, number]].concat();
    bytes.resize(100 + tag.len(), number);
    bytes
}

/// A guest, and what came to it and was not looked at.
struct Guest(NetDriver, VecDeque<Vec<u8>>);

impl Guest {
    fn meet(bed: &Testbed, name: &str) -> Guest {
        let socket = bed.path(&format!("{name}.sock"));
        let driver = NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), Config::default()).unwrap();
        Guest(driver, VecDeque::new())
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.complete(0).unwrap();
        self.0.send(0, &[bytes]).unwrap();
    }

    /// Waits for `expected`, before which nothing else comes.
    fn gets(&mut self, expected: &[u8]) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let Guest(driver, got) = self;
            driver.receive(0, |_, bytes| got.push_back(bytes.to_vec())).unwrap();
            if let Some(first) = got.pop_front() {
                return assert_eq!(first, expected);
            }
            assert!(Instant::now() < deadline, "nothing comes");
            self.0.wait(Duration::from_millis(20)).unwrap();
        }
    }
}

fn guests<const N: usize>(bed: &Testbed, names: [&str; N]) -> [Guest; N] {
    let guests = names.map(|name| Guest::meet(bed, name));
    let deadline = Instant::now() + LIMIT;
    let runs = |port: &Value| port["state"]["peer"] == "running";
    while !bed.show("ports")["ports"].as_array().unwrap().iter().all(runs) {
        assert!(Instant::now() < deadline);
    }
    guests
}

fn port(bed: &Testbed, name: &str, options: &str) -> String {
    format!("{name}=vhost-user:{},{options}", bed.at(&format!("{name}.sock")))
}

#[test]
fn two_tenants_share_a_trunk_and_see_nothing_of_each_other() {
    let bed = Testbed::new();
    let options = ["vlan=10", "vlan=20", "trunk=10+20,native=10", "trunk=10+20"];
    let names = ["red", "blue", "up", "all"];
    let ports: Vec<_> = names
        .iter()
        .zip(options)
        .flat_map(|(name, it)| ["--port".to_owned(), port(&bed, name, it)])
        .collect();
    let _daemon = bed.daemon(&ports.iter().map(String::as_str).collect::<Vec<_>>());
    let [mut red, mut blue, mut up, mut all] = guests(&bed, names);
    // A flood stays in its VLAN, and has the form of each port.
    red.send(&frame(EVERYBODY, 1, None, 1));
    up.gets(&frame(EVERYBODY, 1, None, 1));
    all.gets(&frame(EVERYBODY, 1, Some(10), 1));
    blue.send(&frame(EVERYBODY, 2, None, 2));
    up.gets(&frame(EVERYBODY, 2, Some(20), 2));
    all.gets(&frame(EVERYBODY, 2, Some(20), 2));
    // One station in two VLANs, as a router on the trunk: each tenant has it.
    for (number, tag) in [(3, None), (4, Some(20))] {
        up.send(&frame(EVERYBODY, 9, tag, number));
    }
    red.gets(&frame(EVERYBODY, 9, None, 3));
    blue.gets(&frame(EVERYBODY, 9, None, 4));
    all.gets(&frame(EVERYBODY, 9, Some(10), 3));
    all.gets(&frame(EVERYBODY, 9, Some(20), 4));
    let table = bed.show("mac");
    let known: Vec<_> = table["addresses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["vlan"].as_u64(), row["mac"].as_str().unwrap(), row["port"].as_str().unwrap()))
        .collect();
    let [one, two, nine] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:09"];
    let expected =
        [(Some(10), one, "red"), (Some(10), nine, "up"), (Some(20), two, "blue"), (Some(20), nine, "up")];
    assert_eq!(known, expected);
    // To a station that lives in the other VLAN alone: it is not known in this one.
    red.send(&frame(mac(2), 1, None, 5));
    up.gets(&frame(mac(2), 1, None, 5));
    all.gets(&frame(mac(2), 1, Some(10), 5));
    // A guest that sends tags of its own.
    red.send(&frame(EVERYBODY, 1, Some(20), 6));
    let drops = |reason: &str| {
        let drops = bed.show("drops");
        let its = drops["drops"].as_array().unwrap().iter();
        its.filter(|row| row["port"] == "red" && row["reason"] == reason).count()
    };
    let deadline = Instant::now() + LIMIT;
    while drops("vlan") == 0 {
        assert!(Instant::now() < deadline);
    }
    // What is changed holds from the next frame on.
    bed.ok(&["set", "red", "vlan=20", "isolated=on"]);
    bed.ok(&["set", "blue", "isolated=on"]);
    red.send(&frame(mac(2), 1, None, 7));
    red.send(&frame(mac(9), 1, None, 8));
    up.gets(&frame(mac(9), 1, Some(20), 8));
    let isolated = bed.show("drops");
    let row = isolated["drops"].as_array().unwrap().iter().find(|row| row["reason"] == "isolated");
    assert_eq!(row.map(|row| (row["port"].clone(), row["frames"].clone())), Some(("blue".into(), 1.into())));
    bed.ok(&["set", "blue", "isolated=off"]);
    red.send(&frame(mac(2), 1, None, 9));
    blue.gets(&frame(mac(2), 1, None, 9));
}

/// LLDP ends at a switch, unless it is to pass; the spanning tree passes, unless a port says otherwise.
#[test]
fn control_frames_pass_where_the_operator_says_so() {
    let bed = Testbed::new();
    let ports = ["a", "b", "c"].map(|name| port(&bed, name, "switch=s"));
    let [a, b, c] = &ports;
    let _daemon = bed.daemon(&["--switch", "s", "--port", a, "--port", b, "--port", c]);
    let [mut a, mut b, mut c] = guests(&bed, ["a", "b", "c"]);
    let (lldp, stp) = ([1, 0x80, 0xc2, 0, 0, 0x0e], [1, 0x80, 0xc2, 0, 0, 0]);
    a.send(&frame(lldp, 1, None, 1));
    a.send(&frame(stp, 1, None, 2));
    b.gets(&frame(stp, 1, None, 2));
    c.gets(&frame(stp, 1, None, 2));
    bed.ok(&["set", "--switch", "s", "control-frames=pass"]);
    bed.ok(&["set", "b", "bpdu=drop"]);
    a.send(&frame(stp, 1, None, 3));
    a.send(&frame(lldp, 1, None, 4));
    b.gets(&frame(lldp, 1, None, 4));
    c.gets(&frame(stp, 1, None, 3));
    c.gets(&frame(lldp, 1, None, 4));
    b.send(&frame(stp, 2, None, 5));
    b.send(&frame(lldp, 2, None, 6));
    c.gets(&frame(lldp, 2, None, 6));
    let drops = bed.show("drops");
    let count = |port: &str| {
        let its = drops["drops"].as_array().unwrap().iter();
        its.filter(|row| row["port"] == port && row["reason"] == "control_frame")
            .map(|row| row["frames"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((count("a"), count("b"), count("c")), (1, 2, 0));
}
