//! A group of two members on a switch with two stations.

use super::*;
use crate::graph::group::{Candidate, Group, Own};
use crate::graph::topology::Interface;
use std::collections::BTreeSet;
use std::time::Duration;

/// The group's interface, and its members' ports.
const FRONT: u16 = 2;
const MEMBERS: [u16; 2] = [3, 4];
const OSPF: [u8; 6] = [1, 0, 0x5e, 0, 0, 5];

fn group() -> Rig {
    let file = CounterFile::anonymous().unwrap();
    let port = |id| {
        let counters = file.open_slot(PortId(id), &format!("p{id}"));
        Arc::new(Port::new(PortId(id), &format!("p{id}"), counters, DEFAULT_MTU).unwrap())
    };
    let ports: Vec<_> = (0..5).map(port).collect();
    let got = Got::default();
    let (mut sinks, mut gateways) = (Vec::new(), Vec::new());
    for (id, port) in (0..).zip(&ports) {
        match id == FRONT {
            true => gateways.push(Gateway::open(port, String::new())),
            false => sinks.push(port.lend(0, Sink(id, Arc::clone(&got)))),
        }
    }
    let switches = ["a", "b", "c"].map(|name| Arc::new(Switch::new(name, SwitchOptions::default())));
    let group = Arc::new(Group::new(1, None));
    group.settle(&[Candidate::new(0, "a", 100), Candidate::new(1, "b", 100)], 0, Duration::ZERO);
    group.set_speaker(Some(0));
    let own = Own::new([ip(FRONT).into(), six(FRONT).into()], Some(mac(FRONT)));
    let interface = Interface {
        group,
        ports: vec![(0, PortId(MEMBERS[0])), (1, PortId(MEMBERS[1]))],
        own,
        beyond: Attach::Switch(Arc::clone(&switches[0])),
    };
    let attach = |id| match id {
        FRONT => Attach::Interface(Arc::new(interface.clone())),
        id if MEMBERS.contains(&id) => Attach::Behind(PortId(FRONT), u8::try_from(id - MEMBERS[0]).unwrap()),
        _ => Attach::Switch(Arc::clone(&switches[0])),
    };
    let joined: Vec<_> = (0..).zip(&ports).map(|(id, port)| (Arc::clone(port), attach(id))).collect();
    let topology = Topology::new(&joined);
    let mut walk = Walk::new(0, Instant::now());
    walk.delivery.limit = u64::MAX;
    Rig {
        ports,
        walk,
        topology,
        switches,
        got,
        arena: Arena::new(64, 2048),
        _queues: (sinks, gateways),
        _file: file,
    }
}

/// A datagram of flow `flow`, to or from the station behind port 0.
fn datagram(flow: u16, out: bool) -> Vec<u8> {
    let (mut from, mut to) = ([10, 0, 0, 10], [10, 99, 0, 1]);
    let (mut ports, mut macs) = ([1000 + flow, 53], [mac(FRONT), mac(0)]);
    if !out {
        (from, to) = (to, from);
        ports.reverse();
        macs.reverse();
    }
    let fixed = [0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0];
    let ports = ports.map(u16::to_be_bytes).concat();
    [&macs.concat()[..], &[8, 0], &fixed, &from, &to, &ports, &[0; 32]].concat()
}

/// What arrives at which member's port, or elsewhere: numbers of ports.
fn at(got: &[(u16, Vec<u8>)]) -> Vec<u16> {
    got.iter().map(|(to, _)| *to).collect()
}

/// ARP: `op` 1 asks, 2 answers; from a station with this address.
fn resolution(from: u16, op: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let to = if op == 1 { [0xff; 6] } else { mac(if from == 0 { FRONT } else { 0 }) };
    let source = mac(if MEMBERS.contains(&from) { FRONT } else { from });
    let head = [&to[..], &source, &[8, 6, 0, 1, 8, 0, 6, 4, 0, op]].concat();
    [&head[..], &source, &sender, &[0; 6], &target, &[0; 18]].concat()
}

fn advertisement(target: [u8; 16]) -> Vec<u8> {
    let fixed = [0x60, 0, 0, 0, 0, 24, 58, 255];
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target].concat();
    let all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    [&[0x33, 0x33, 0, 0, 0, 1], &mac(FRONT)[..], &[0x86, 0xdd], &fixed, &six(FRONT), &all, &message].concat()
}

#[test]
fn a_flow_has_one_member_in_both_directions_and_members_are_one_station() {
    let mut rig = group();
    // The station is known, and the group.
    rig.send(0, &[datagram(0, true)]);
    rig.send(MEMBERS[0], &[datagram(0, false)]);
    let mut members = BTreeSet::new();
    for flow in 0..200 {
        let there = at(&rig.send(0, &[datagram(flow, true), datagram(flow, true)]));
        assert!(there[0] == there[1] && there.len() == 2 && MEMBERS.contains(&there[0]), "{there:?}");
        members.insert(there[0]);
        // From whichever member it comes, it is the group that speaks.
        assert_eq!(at(&rig.send(MEMBERS[usize::from(flow % 2)], &[datagram(flow, false)])), [0]);
        // What somebody else says of the flow, such as a router that is too far away, goes to its member.
        let quoted = datagram(flow, true);
        let mut error = datagram(7777, true)[..34].to_vec();
        error[23] = 1;
        error[26..30].copy_from_slice(&[172, 16, 0, 9]);
        error.extend([&[11, 0, 0, 0, 0, 0, 0, 0][..], &quoted[14..]].concat());
        assert_eq!(at(&rig.send(0, &[error])), there[..1]);
    }
    assert_eq!(members.len(), 2);
    let table = rig.switches[0].table.lookup(u64::from_le_bytes([2, 0, 0, 0, 0, 2, 0, 0])).unwrap();
    assert_eq!((table.port, table.claimant), (PortId(FRONT), None));
    // A batch of many flows is delivered to each member once, in its order.
    let many: Vec<_> = (0..64).map(|flow| datagram(flow % 8, true)).collect();
    let got = rig.send(0, &many);
    for member in MEMBERS {
        let its: Vec<_> = got.iter().filter(|(to, _)| *to == member).map(|(_, bytes)| bytes[35]).collect();
        assert_eq!(its.iter().filter(|it| **it == its[0]).count(), 8);
    }
    assert_eq!(got.len(), 64);
}

#[test]
fn all_members_resolve_and_one_answers_for_all() {
    let mut rig = group();
    rig.send(1, &[resolution(1, 1, ip(1), [9; 4])]);
    // A question for the group, and an answer to it, reach all members, and stations as ever.
    assert_eq!(at(&rig.send(0, &[resolution(0, 1, ip(0), ip(FRONT))])), [1, 3, 4]);
    assert_eq!(at(&rig.send(MEMBERS[1], &[resolution(4, 1, ip(FRONT), ip(0))])), [0, 1]);
    assert_eq!(at(&rig.send(0, &[resolution(0, 2, ip(0), ip(FRONT))])), MEMBERS);
    // Both answer; the speaker's answer comes out.
    assert_eq!(at(&rig.send(MEMBERS[1], &[resolution(4, 2, ip(FRONT), ip(0)), datagram(1, false)])), [0]);
    assert_eq!(at(&rig.send(MEMBERS[0], &[resolution(3, 2, ip(FRONT), ip(0))])), [0]);
    // An announcement is an answer without a question: of the group's addresses only.
    let announce = |address| resolution(3, 1, address, address);
    assert_eq!(at(&rig.send(MEMBERS[0], &[announce(ip(FRONT)), announce([10, 0, 0, 77])])), [0, 1]);
    assert_eq!(at(&rig.send(MEMBERS[0], &[advertisement(six(FRONT)), advertisement(six(9))])), [0, 1]);
    // A member's own question may be from no address, and from none that is not the group's.
    assert_eq!(at(&rig.send(MEMBERS[1], &[resolution(4, 1, [0; 4], ip(FRONT))])), [0, 1]);
    assert_eq!(at(&rig.send(MEMBERS[1], &[resolution(4, 1, ip(9), ip(0))])), [0u16; 0]);
    assert_eq!((rig.drops(3)["foreign_address"], rig.drops(4)["foreign_address"]), (2, 1));
    assert_eq!(rig.drops(4)["not_speaker"], 1);
}

#[test]
fn what_is_for_the_group_itself_goes_to_the_speaker_and_members_see_nothing_of_each_other() {
    let mut rig = group();
    let mut ospf = datagram(0, true);
    ospf[..6].copy_from_slice(&OSPF);
    ospf[23] = 89;
    assert_eq!(at(&rig.send(0, &[ospf.clone()])), [1, 3]);
    ospf[6..12].copy_from_slice(&mac(FRONT));
    assert_eq!(at(&rig.send(MEMBERS[0], &[ospf])), [0, 1]);
    let mut bgp = datagram(0, true);
    (bgp[23], bgp[37]) = (6, 179);
    bgp[30..34].copy_from_slice(&ip(FRONT));
    assert_eq!(at(&rig.send(0, &[bgp])), [3]);
    // A member sends a frame back into the group.
    let mut back = datagram(3, true);
    back[6..12].copy_from_slice(&mac(FRONT));
    assert_eq!(at(&rig.send(MEMBERS[1], &[back])), [0u16; 0]);
    assert_eq!(rig.drops(FRONT)["hairpin"], 1);
    // No member is there any more.
    let Some((_, interface)) = rig.topology.interface(PortId(FRONT)) else { panic!() };
    interface.group.settle(&[], !0, Duration::ZERO);
    interface.group.set_speaker(None);
    assert_eq!(at(&rig.send(0, &[datagram(1, true), datagram(2, true)])), [0u16; 0]);
    assert_eq!(rig.drops(FRONT)["no_member"], 2);
}

/// Found by fuzzing: a copy more than was counted.
#[test]
fn a_member_without_a_link_gets_no_copy_beside_its_flows() {
    let mut rig = group();
    // The last one's queue is taken away.
    rig._queues.0.pop();
    let mut frames: Vec<_> = (0..20).map(|flow| datagram(flow, true)).collect();
    frames.push(resolution(0, 1, ip(0), ip(FRONT)));
    let its = at(&rig.send(0, &frames)).into_iter().filter(|to| *to == MEMBERS[0]).count();
    assert_eq!(its as u64 + rig.drops(MEMBERS[1])["link_down"], 21);
}
