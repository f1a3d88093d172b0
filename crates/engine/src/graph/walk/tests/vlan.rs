//! One switch whose ports have VLANs, beside a switch in a few lines.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::packet::{Gso, Offload};
use crate::policy::{PortVlans, TagProtocol, VlanSet};

/// How a port is configured.
#[derive(Clone, Debug, Default)]
struct Config {
    own: u16,
    tagged: Vec<u16>,
    service: bool,
    isolated: bool,
    no_bpdu: bool,
}

impl Config {
    fn policy(&self) -> Option<Arc<Policy>> {
        let protocol = if self.service { TagProtocol::Service } else { TagProtocol::Customer };
        let set = VlanSet::new(self.tagged.iter().map(|number| (*number, *number)));
        let tagged = (!self.tagged.is_empty()).then_some(set);
        Policy {
            vlans: self.has_vlans().then(|| PortVlans::new(self.own, tagged, protocol)),
            isolated: self.isolated,
            no_bpdu: self.no_bpdu,
            ..Policy::default()
        }
        .compile()
    }

    fn has_vlans(&self) -> bool {
        self.own != 0 || !self.tagged.is_empty()
    }

    fn tag(&self) -> [u8; 2] {
        if self.service {
            [0x88, 0xa8]
        } else {
            [0x81, 0]
        }
    }

    fn carries(&self, vlan: u16) -> bool {
        match vlan {
            0 => !self.has_vlans(),
            _ => vlan == self.own || self.tagged.contains(&vlan),
        }
    }

    /// The VLAN of a frame, its priority if it has a tag, and its bytes without that tag.
    fn open(&self, frame: &[u8]) -> Option<(u16, u8, Vec<u8>)> {
        if !self.has_vlans() {
            return Some((0, 0, frame.to_vec()));
        }
        let mut plain = frame.to_vec();
        let (mut vlan, mut priority) = (0, 0);
        if frame[12..14] == self.tag() {
            vlan = u16::from_be_bytes([frame[14], frame[15]]) % 4096;
            priority = frame[14] & 0xf0;
            plain.drain(12..16);
        }
        if vlan == 0 {
            vlan = self.own;
        }
        (vlan != 0 && self.carries(vlan)).then_some((vlan, priority, plain))
    }

    /// The frame as it leaves by the port; `None`: it would be taken for one of the VLAN that its payload
    /// names.
    fn close(&self, vlan: u16, priority: u8, plain: &[u8]) -> Option<Vec<u8>> {
        let mut frame = plain.to_vec();
        if self.has_vlans() && vlan != self.own {
            let [high, low] = vlan.to_be_bytes();
            let [a, b] = self.tag();
            frame.splice(12..12, [a, b, high | priority, low]);
        } else if self.has_vlans() && plain[12..14] == self.tag() {
            return None;
        }
        Some(frame)
    }
}

/// A switch that learns, and does nothing else.
struct Plain<'c> {
    ports: &'c [Config],
    table: HashMap<(u16, [u8; 6]), usize>,
}

impl Plain<'_> {
    fn pass(&mut self, from: usize, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let sender = &self.ports[from];
        let Some((vlan, priority, plain)) = sender.open(frame) else { return Vec::new() };
        let [dst, src] = [0, 6].map(|at| <[u8; 6]>::try_from(&frame[at..at + 6]).unwrap());
        self.table.insert((vlan, src), from);
        let bpdu = dst == [1, 0x80, 0xc2, 0, 0, 0];
        if dst[..5] == [1, 0x80, 0xc2, 0, 0] && !bpdu || bpdu && sender.no_bpdu {
            return Vec::new();
        }
        let known = self.table.get(&(vlan, dst)).copied().filter(|_| dst[0] & 1 == 0);
        let takes = |at: usize, port: &Config| {
            at != from
                && known.is_none_or(|known| known == at)
                && port.carries(vlan)
                && !(port.isolated && sender.isolated)
                && !(port.no_bpdu && bpdu)
        };
        let to = self.ports.iter().enumerate().filter(|(at, port)| takes(*at, port));
        to.filter_map(|(at, port)| Some((u16::try_from(at).unwrap(), port.close(vlan, priority, &plain)?)))
            .collect()
    }
}

fn config() -> impl Strategy<Value = Config> {
    let tagged = prop::sample::subsequence(vec![10u16, 20, 30], 0..=3);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (prop::sample::select(vec![0u16, 10, 20]), tagged, flags).prop_map(
        |(own, tagged, (service, isolated, no_bpdu))| Config { own, tagged, service, isolated, no_bpdu },
    )
}

/// The port that sends, whether to everybody, a station or the spanning tree, the tags and the length.
fn sent() -> impl Strategy<Value = (usize, u8, Vec<([u8; 2], u16)>, usize)> {
    let vlan = prop::sample::select(vec![0u16, 10, 20, 30, 40, 0xe00a, 0x2014, 4095]);
    let tag = (prop::sample::select(vec![[0x81u8, 0], [0x88, 0xa8]]), vlan);
    (0usize..5, 0u8..9, prop::collection::vec(tag, 0..3), 60usize..150)
}

fn frame(from: usize, to: u8, tags: &[([u8; 2], u16)], len: usize) -> Vec<u8> {
    let station = |at: u8| [2, 0, 0, 0, 0, at];
    let dst = match to {
        5 => [0xff; 6],
        6 => [1, 0x80, 0xc2, 0, 0, 0],
        7 => [1, 0x80, 0xc2, 0, 0, 0x0e],
        8 => [1, 0, 0x5e, 1, 2, 3],
        to => station(to),
    };
    let mut bytes = [&dst[..], &station(u8::try_from(from).unwrap())].concat();
    for (protocol, tci) in tags {
        bytes.extend_from_slice(protocol);
        bytes.extend_from_slice(&tci.to_be_bytes());
    }
    bytes.extend_from_slice(&[0x88, 0xb5]);
    bytes.extend((bytes.len()..len).map(|n| u8::try_from(n % 251).unwrap()));
    bytes
}

proptest! {
    /// Whatever is configured and sent, in batches of any size: each port gets what the plain switch says,
    /// byte by byte and in its order.
    #[test]
    fn ports_get_what_a_plain_switch_gives_them(
        configs in prop::collection::vec(config(), 5),
        batches in prop::collection::vec((0usize..5, prop::collection::vec(sent(), 1..9)), 1..12),
    ) {
        let policies: Vec<_> = configs.iter().map(Config::policy).collect();
        let mut rig = Rig::switch(&policies);
        let mut plain = Plain { ports: &configs, table: HashMap::new() };
        for (from, sent) in batches {
            let frames: Vec<_> = sent.iter().map(|(_, to, tags, len)| frame(from, *to, tags, *len)).collect();
            let got = rig.send(u16::try_from(from).unwrap(), &frames);
            let expected: Vec<_> = frames.iter().flat_map(|frame| plain.pass(from, frame)).collect();
            for port in 0..5u16 {
                let of = |all: &[(u16, Vec<u8>)]| -> Vec<Vec<u8>> {
                    all.iter().filter(|(to, _)| *to == port).map(|(_, frame)| frame.clone()).collect()
                };
                prop_assert_eq!(of(&got), of(&expected), "port {}", port);
            }
        }
    }
}

fn access(own: u16) -> Config {
    Config { own, ..Config::default() }
}

fn trunk(tagged: &[u16]) -> Config {
    Config { tagged: tagged.to_vec(), ..Config::default() }
}

fn rig(configs: &[Config]) -> Rig {
    Rig::switch(&configs.iter().map(Config::policy).collect::<Vec<_>>())
}

#[test]
fn what_a_port_does_not_carry_is_dropped_there_by_name() {
    let mut rig = rig(&[access(10), trunk(&[10, 20]), access(20), Config::default()]);
    let others = [([0x81, 0], 20)];
    assert!(rig.send(0, &[frame(0, 5, &others, 60)]).is_empty());
    assert!(rig.send(1, &[frame(1, 5, &[], 60)]).is_empty(), "a trunk without a VLAN of its own");
    assert_eq!((rig.drops(0)["vlan"], rig.drops(1)["vlan"]), (1, 1));
    // One that is alone in its VLAN.
    assert!(rig.send(3, &[frame(3, 5, &[], 60)]).is_empty());
    assert_eq!(rig.drops(3)["no_destination"], 1);
    assert!(rig.send(0, &[frame(0, 7, &[], 60)]).is_empty());
    assert_eq!(rig.drops(0)["control_frame"], 1);
}

/// A flood is no loss where its VLAN is not carried, however many others the sender shares with that port.
#[test]
fn a_flood_is_for_those_who_carry_its_vlan() {
    let mut rig = rig(&[trunk(&[10, 20]), access(10), access(20)]);
    let sent = |vlan| frame(0, 5, &[([0x81, 0], vlan)], 64);
    assert_eq!(rig.send(0, &[sent(10), sent(10)]).len(), 2);
    assert_eq!(rig.send(0, &[sent(10), sent(20)]).len(), 2);
    assert!((0..3).all(|port| rig.drops(port).is_empty()));
}

/// A frame for an address that a frame between them was learned from goes where that is, as by a Linux
/// bridge.
#[test]
fn an_address_is_looked_up_again_once_it_has_spoken() {
    let mut rig = rig(&[access(10), access(10)]);
    let (asks, itself) = (frame(3, 4, &[], 60), frame(4, 4, &[], 60));
    assert_eq!(rig.send(0, &[asks.clone(), itself, asks]).len(), 1);
    assert_eq!(rig.drops(0)["hairpin"], 2);
}

/// All of a batch goes by the trunk with a tag, in as many rounds as that takes, and each frame once.
#[test]
fn a_full_batch_gets_its_tags() {
    let mut rig = rig(&[access(10), trunk(&[10])]);
    let frames: Vec<_> = (0..64).map(|n| frame(0, 1, &[], 60 + n)).collect();
    let got = rig.send(0, &frames);
    let tagged = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat();
    assert_eq!(got, frames.iter().map(|frame| (1, tagged(frame))).collect::<Vec<_>>());
    let lens: HashSet<usize> = got.iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!(lens.len(), 64);
}

/// Where a checksum begins moves with the tag.
#[test]
fn requests_for_offloads_go_with_the_frame() {
    let offload = Offload {
        flags: Offload::NEEDS_CSUM,
        gso: Gso::Tcp4,
        ecn: false,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
    };
    let there = offload.moved(0, 4);
    assert_eq!((there.hdr_len, there.csum_start, there.csum_offset), (58, 38, 16));
    assert_eq!(there.moved(4, 0), offload);
    assert_eq!(Offload::NONE.moved(0, 4), Offload::NONE);
}
