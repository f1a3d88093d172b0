//! VLANs of the real daemon, with virtio guests of our own: what each gets is looked at byte by byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::rig::{Testbed, LIMIT};
use serde_json::Value;
use sidecore_driver::{Config, Frontend, NetDriver};

pub const EVERYBODY: [u8; 6] = [0xff; 6];

pub fn mac(guest: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, guest]
}

/// A frame with this tag, if there is one, and this number.
pub fn frame(to: [u8; 6], from: u8, tag: Option<u16>, number: u8) -> Vec<u8> {
    let tag = tag.map_or_else(Vec::new, |tci| [&[0x81, 0][..], &tci.to_be_bytes()].concat());
    let mut bytes = [&to[..], &mac(from), &tag, &[0x88, 0xb5, number]].concat();
    bytes.resize(100 + tag.len(), number);
    bytes
}

/// A guest, and what came to it and was not looked at.
pub struct Guest(NetDriver, VecDeque<Vec<u8>>);

impl Guest {
    fn meet(bed: &Testbed, name: &str) -> Guest {
        let socket = bed.path(&format!("{name}.sock"));
        let driver = NetDriver::start(Frontend::connect(socket, LIMIT).unwrap(), Config::default()).unwrap();
        Guest(driver, VecDeque::new())
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.complete(0).unwrap();
        self.0.send(0, &[bytes]).unwrap();
    }

    /// Waits for `expected`, before which nothing else comes.
    pub fn gets(&mut self, expected: &[u8]) {
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

pub fn guests<const N: usize>(bed: &Testbed, names: [&str; N]) -> [Guest; N] {
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
    // Where a port does not carry a VLAN any more, nobody is known behind it.
    bed.ok(&["set", "red", "vlan=10"]);
    blue.send(&frame(mac(1), 2, None, 10));
    up.gets(&frame(mac(1), 2, Some(20), 10));
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

/// An ARP request or answer, in a tag if there is one.
fn arp(to: [u8; 6], from: u8, sender: [u8; 4], operation: u8, target: [u8; 4]) -> Vec<u8> {
    let head = [&to[..], &mac(from), &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    let mut bytes = [&head[..], &mac(from), &sender, &[0; 6], &target].concat();
    bytes.resize(60, 0);
    bytes
}

/// A router with a port in each of two VLANs, which guests on access ports and on a trunk have as their
/// gateway.
#[test]
fn a_router_stands_in_two_vlans() {
    let bed = Testbed::new();
    let options = ["vlan=10", "trunk=20"];
    let names = ["red", "up"];
    let ports: Vec<_> = names
        .iter()
        .zip(options)
        .flat_map(|(name, it)| ["--port".to_owned(), port(&bed, name, it)])
        .collect();
    let _daemon = bed.daemon(&ports.iter().map(String::as_str).collect::<Vec<_>>());
    bed.ok(&["add", "--router", "r"]);
    for (name, vlan) in [("gw10", 10), ("gw20", 20)] {
        let last = 100 + vlan;
        let port = format!(
            "{name}=switch:lan,router=r,vlan={vlan},address=10.0.{vlan}.1/24,router-mac=02:00:00:00:00:{last}"
        );
        bed.ok(&["add", &port.replace(":110", ":0a").replace(":120", ":14")]);
    }
    let [mut red, mut up] = guests(&bed, names);
    red.send(&arp(EVERYBODY, 1, [10, 0, 10, 2], 1, [10, 0, 10, 1]));
    let answered = |guest: &mut Guest, tag: &[u8], own: u8, from: [u8; 4], to: (u8, [u8; 4])| {
        let answer = [&arp(mac(to.0), own, from, 2, to.1)[..32], &mac(to.0), &to.1].concat();
        guest.gets(&[&answer[..12], tag, &answer[12..]].concat());
    };
    answered(&mut red, &[], 10, [10, 0, 10, 1], (1, [10, 0, 10, 2]));
    let tag = [0x81, 0, 0, 20];
    let question = arp(EVERYBODY, 2, [10, 0, 20, 2], 1, [10, 0, 20, 1]);
    up.send(&[&question[..12], &tag, &question[12..]].concat());
    answered(&mut up, &tag, 20, [10, 0, 20, 1], (2, [10, 0, 20, 2]));
    // A datagram from one VLAN to the other.
    let packet = |dst: [u8; 6], src: [u8; 6], ttl: u8, tag: &[u8]| {
        let mut header = [0x45, 0, 0, 84, 0, 1, 0, 0, ttl, 17, 0, 0, 10, 0, 10, 2, 10, 0, 20, 2];
        let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&dst[..], &src, tag, &[8, 0], &header, &[0; 2], &[7; 62]].concat()
    };
    red.send(&packet(mac(10), mac(1), 64, &[]));
    up.gets(&packet(mac(2), mac(20), 63, &tag));
}

/// A datagram from one port to another, by IPv4.
fn datagram(from: u8, to: u8, port: u16, number: u8) -> Vec<u8> {
    let mut header = [0x45, 0, 0, 46, 0, number, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [&[0, 9][..], &port.to_be_bytes(), &[0, 26, 0, 0], &[number; 18]].concat();
    [&mac(to)[..], &mac(from), &[8, 0], &header, &udp].concat()
}

/// A list from a configuration's file, another from the command line; replaced while frames pass; counted by
/// rule.
#[test]
fn access_lists_decide_in_their_order() {
    let bed = Testbed::new();
    let config = bed.path("c.toml");
    let text = format!(
        "[[acl]]\nname = 'out'\nfile = 'web.acl'\ndefault = 'permit'\n{}",
        ["a", "b"]
            .map(|name| format!(
                "[[port]]\nname = '{name}'\nkind = 'vhost-user'\nwhere = '{}'\n",
                bed.at(&format!("{name}.sock"))
            ))
            .concat()
    );
    std::fs::write(bed.path("web.acl"), "set low = 1-1023\ndeny proto=udp dport=@low # no services\n")
        .unwrap();
    std::fs::write(&config, text).unwrap();
    let _daemon = bed.daemon(&[config.to_str().unwrap()]);
    let [mut a, mut b] = guests(&bed, ["a", "b"]);
    b.send(&frame(EVERYBODY, 2, None, 1));
    a.gets(&frame(EVERYBODY, 2, None, 1));
    bed.ok(&["set", "b", "acl-out=out"]);
    a.send(&datagram(1, 2, 53, 2));
    a.send(&datagram(1, 2, 5353, 3));
    b.gets(&datagram(1, 2, 5353, 3));
    let rules = |list: &str| -> Vec<(String, u64)> {
        let all = bed.show("acl");
        let of =
            all["acls"].as_array().unwrap().iter().find(|it| it["name"] == list).unwrap()["rules"].clone();
        let row =
            |rule: &Value| (rule["rule"].as_str().unwrap().to_owned(), rule["frames"].as_u64().unwrap());
        of.as_array().unwrap().iter().map(row).collect()
    };
    let expected = [("deny proto=udp dport=@low".to_owned(), 1), ("default permit".to_owned(), 1)];
    assert_eq!(rules("out"), expected);
    let metrics = bed.http("GET", "/metrics", "").1;
    let row = "sidecore_acl_frames_total{acl=\"out\",number=\"1\",rule=\"deny proto=udp dport=@low\"} 1\n";
    assert!(metrics.contains(row), "{metrics}");
    // What comes in, by a list of its own that denies all else; another list is not touched by that.
    std::fs::write(bed.path("in.acl"), "permit src=10.0.0.1 dst=10.0.0.2\npermit src=10.0.0.1\n").unwrap();
    bed.ok(&["acl", "in", &bed.at("in.acl")]);
    bed.ok(&["set", "a", "acl-in=in"]);
    a.send(&datagram(9, 2, 5353, 4));
    a.send(&frame(mac(2), 1, None, 5));
    a.send(&datagram(1, 2, 5353, 6));
    b.gets(&datagram(1, 2, 5353, 6));
    let counted: Vec<u64> = rules("in").iter().map(|(_, frames)| *frames).collect();
    assert_eq!(counted, [1, 0, 2]);
    assert_eq!(rules("out").iter().map(|(_, frames)| *frames).collect::<Vec<_>>(), [1, 2]);
    let drops = bed.show("drops");
    let dropped = |port: &str| {
        let its = drops["drops"].as_array().unwrap().iter();
        its.filter(|row| row["port"] == port && row["reason"] == "acl")
            .map(|row| row["frames"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((dropped("a"), dropped("b")), (2, 1));
    // A list that is used stays; one that is wrong changes nothing.
    assert!(bed.fails(&["del", "--acl", "in"]).contains("port a has it"));
    std::fs::write(bed.path("in.acl"), "permit src=10.0.0.300\n").unwrap();
    let refused = bed.fails(&["acl", "in", &bed.at("in.acl")]);
    assert!(refused.contains("acl in: key `rules`") && refused.contains("10.0.0.300"), "{refused}");
    a.send(&datagram(1, 2, 5353, 7));
    b.gets(&datagram(1, 2, 5353, 7));
    std::fs::write(bed.path("in.acl"), "deny src=10.0.0.1 proto=udp\n").unwrap();
    bed.ok(&["acl", "in", &bed.at("in.acl"), "--default", "permit"]);
    a.send(&datagram(1, 2, 5353, 8));
    a.send(&frame(mac(2), 1, None, 9));
    b.gets(&frame(mac(2), 1, None, 9));
    bed.ok(&["set", "a", "acl-in="]);
    bed.ok(&["del", "--acl", "in"]);
}
