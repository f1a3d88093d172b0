//! A group of two members on a switch with two stations; and with a router as one of them, between two
//! networks and behind another router.

use super::*;
use crate::graph::group::{Candidate, Group, Own, Probes};
use crate::graph::topology::Interface;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// The group's interface, and its members' ports.
pub(super) const FRONT: u16 = 2;
pub(super) const MEMBERS: [u16; 2] = [3, 4];
const OSPF: [u8; 6] = [1, 0, 0x5e, 0, 0, 5];

/// Where probes go.
const PROBE: [u8; 4] = [192, 0, 2, 1];

pub(super) fn group() -> Rig {
    probed(PROBE.into())
}

fn probed(to: IpAddr) -> Rig {
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
    let own = Own::new([ip(FRONT).into(), six(FRONT).into()], Some(mac(FRONT)), Some(to));
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
        inside: vec![FRONT],
        got,
        arena: Arena::new(64, 2048),
        _queues: (sinks, gateways),
        _file: file,
    }
}

/// A datagram of flow `flow`, to or from the station behind port 0.
pub(super) fn datagram(flow: u16, out: bool) -> Vec<u8> {
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

#[test]
fn nothing_passes_an_interface_whose_link_is_down() {
    let mut rig = group();
    rig.ports[usize::from(FRONT)].set_silent(true);
    assert_eq!(
        at(&rig.send(MEMBERS[0], &[datagram(0, false), resolution(3, 1, ip(FRONT), ip(0))])),
        [0u16; 0]
    );
    assert_eq!(at(&rig.send(0, &[datagram(0, true)])), [1]);
    assert_eq!(rig.drops(FRONT)["link_down"], 3);
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

/// A group between two networks: 2 is its interface to station 0, 5 the one to station 3. The first member
/// has ports 1 and 4, the second is a router with gateways 6 and 7, of which 8 stands for 6 before its
/// control plane. The router `speaks`, or the other one does. Station 0 is on a switch, or at the other end
/// of a `wire`.
fn native(speaks: bool, wire: bool) -> Rig {
    let mut rig = Rig::with(&[(6, 8)]);
    let group = Arc::new(Group::new(1, None));
    group.settle(&[Candidate::new(0, "a", 100), Candidate::new(1, "r", 100)], 0, Duration::ZERO);
    group.set_speaker(Some(u8::from(speaks)));
    let router = Arc::new(Router::new("r").unwrap());
    let port = |id: u16, front: u16| RouterPort {
        port: Arc::clone(&rig.ports[usize::from(id)]),
        mac: mac(front),
        addresses: vec![format!("{}/24", std::net::Ipv4Addr::from(ip(front))).parse().unwrap()],
        control: (id == 6).then_some(PortId(8)),
        rpf: Rpf::Off,
    };
    let target = Target::Via(vec![ip(3).into()], None);
    let probes = Static { prefix: "192.0.2.0/31".parse().unwrap(), target };
    router.configure(&[port(6, 2), port(7, 5)], &[probes], 1);
    let behind = |id| Attach::Behind(PortId(if [1, 6].contains(&id) { 2 } else { 5 }), u8::from(id > 5));
    let interface = |id: u16, beyond| {
        let [near, far] = if id == 2 { [1, 6] } else { [4, 7] };
        Attach::Interface(Arc::new(Interface {
            group: Arc::clone(&group),
            ports: vec![(0, PortId(near)), (1, PortId(far))],
            own: Own::new([ip(id).into()], Some(mac(id)), Some(PROBE.into())),
            beyond,
        }))
    };
    let attach = |id: u16| match id {
        0 if wire => Attach::Wire(PortId(2)),
        2 if wire => interface(2, Attach::Wire(PortId(0))),
        2 | 5 => interface(id, Attach::Switch(Arc::clone(&rig.switches[on(id)]))),
        1 | 4 => behind(id),
        6 | 7 => Attach::Gateway(Arc::clone(&router), Box::new(behind(id))),
        8 => Attach::Wire(PortId(6)),
        0 | 3 => Attach::Switch(Arc::clone(&rig.switches[on(id)])),
        _ => Attach::Nothing,
    };
    let joined: Vec<_> = (0..).zip(&rig.ports).map(|(id, port)| (Arc::clone(port), attach(id))).collect();
    rig.topology = Topology::new(&joined);
    rig.walk.routers = rig.topology.routers().iter().map(RouterContext::new).collect();
    rig.inside = vec![2, 5, 6, 7];
    rig
}

/// What comes into members, or elsewhere, for probes.
fn probe(rig: &mut Rig, to: IpAddr) -> Vec<(u16, Vec<u8>)> {
    let probes = Probes::new(PortId(FRONT), mac(FRONT), to, &[0, 1], &Arc::default());
    rig.walk.probe(&rig.topology, probes, &mut Batch::new());
    std::mem::take(&mut rig.got.lock().unwrap())
}

fn passed(rig: &Rig) -> [Option<bool>; 2] {
    let (_, interface) = rig.topology.interface(PortId(FRONT)).unwrap();
    [0, 1].map(|member| interface.group.probes.passed(member))
}

#[test]
fn a_probe_counts_once_for_its_member_alone_and_nothing_of_it_leaves_the_group() {
    for to in [IpAddr::from(PROBE), IpAddr::from(six(9))] {
        let mut rig = probed(to);
        assert_eq!(passed(&rig), [None; 2]);
        let got = probe(&mut rig, to);
        let (a, b) = (&got[0].1, &got[1].1);
        assert_eq!(at(&got), MEMBERS);
        assert_eq!(a[..12], [mac(FRONT), mac(FRONT ^ 1)].concat());
        if to.is_ipv4() {
            assert_eq!((a[22], Sum::of(&a[14..34]).value()), (2, 0xffff));
        } else {
            let mut sum = Sum::pseudo(&a[22..38], &a[38..54], 17, 16);
            sum.add(&a[54..70]);
            assert_eq!((a[21], sum.value(), a.len()), (2, 0xffff, 70));
        }
        // Another one's, one of another number, one to where they come from, as an error goes, and one cut
        // short.
        let mut forged = [a, b, b, b].map(Clone::clone);
        let number = if to.is_ipv4() { 49 } else { 69 };
        forged[1][number] ^= 1;
        forged[2][if to.is_ipv4() { 33 } else { 53 }] ^= 1;
        forged[3].truncate(number);
        assert_eq!(at(&rig.send(MEMBERS[1], &forged)), [0u16; 0]);
        let sent = [b.clone(), datagram(1, false), b.clone()];
        assert_eq!(at(&rig.send(MEMBERS[1], &sent[..1])), [0u16; 0]);
        assert!(rig.switches[0].table.lookup(u64::from_le_bytes([2, 0, 0, 0, 0, 2, 0, 0])).is_none());
        assert_eq!(at(&rig.send(MEMBERS[1], &sent[1..])), [0, 1]);
        assert_eq!(passed(&rig), [Some(false), Some(true)]);
        // It is late.
        assert_eq!(at(&rig.send(MEMBERS[0], std::slice::from_ref(a))), [0u16; 0]);
        assert_eq!(passed(&rig), [None; 2]);
        assert_eq!((rig.drops(4)["probe"], rig.drops(4)["bad_probe"], rig.drops(3)["bad_probe"]), (1, 5, 1));
        let totals = rig.ports[3].counters.totals();
        assert_eq!((totals.made, totals.out_frames), (1, 1));
    }
}

#[test]
fn a_router_among_the_members_passes_probes_if_it_has_the_route() {
    let mut rig = native(true, false);
    rig.meet(3, 5);
    let got = probe(&mut rig, PROBE.into());
    assert_eq!((at(&got), passed(&rig)), (vec![1], [Some(false), Some(true)]));
    assert_eq!(rig.drops(7)["probe"], 1);
    // The other one forwards it, too.
    let mut through = probe(&mut rig, PROBE.into()).remove(0).1;
    through[22] -= 1;
    assert_eq!(at(&rig.send(4, &[through])), [0u16; 0]);
    assert_eq!(passed(&rig), [Some(true); 2]);
    // A probe that goes elsewhere is a packet.
    assert_eq!(at(&probe(&mut rig, ip(3).into())), [1, 3]);
}

/// The datagram of a flow to the station behind `to`, by way of `gateway`.
fn of_flow(flow: u16, from: u16, gateway: u16, to: u16) -> Vec<u8> {
    let mut frame = packet(from, gateway, ip(to), 20);
    let mut ports = [1000 + flow, 53];
    if from > to {
        ports.reverse();
    }
    frame[34..38].copy_from_slice(&ports.map(u16::to_be_bytes).concat());
    frame
}

#[test]
fn a_router_is_a_member_beside_others_and_has_its_flows_in_both_directions() {
    for wire in [false, true] {
        let mut rig = native(true, wire);
        rig.meet(0, 2);
        rig.meet(3, 5);
        let mut routed = BTreeSet::new();
        for flow in 0..200 {
            let got = rig.send(0, &[of_flow(flow, 0, 2, 3)]);
            match at(&got)[..] {
                [1] => assert_eq!(got[0].1, of_flow(flow, 0, 2, 3)),
                [3] => {
                    let frame = &got[0].1;
                    assert_eq!((&frame[..12], frame[22]), (&[mac(3), mac(5)].concat()[..], 63));
                    routed.insert(flow);
                }
                _ => panic!("{got:?}"),
            }
            let back = rig.send(3, &[of_flow(flow, 3, 5, 0)]);
            assert_eq!(at(&back), [if routed.contains(&flow) { 0 } else { 4 }]);
            assert!(back[0].0 == 4 || back[0].1[..12] == [mac(0), mac(2)].concat());
        }
        assert!((60..140).contains(&routed.len()), "{}", routed.len());
        // In one batch, with what all members hear.
        let mut many: Vec<_> = (0..200).map(|flow| of_flow(flow, 0, 2, 3)).collect();
        many.insert(100, arp(0, 1, ip(2)));
        let got = rig.send(0, &many);
        let its: BTreeSet<_> = got.iter().filter(|(to, _)| *to == 3).map(|(_, it)| it[35]).collect();
        assert_eq!(its, routed.iter().map(|flow| (1000 + flow).to_be_bytes()[1]).collect());
        assert_eq!((got.len(), at(&got).iter().filter(|to| **to == 0).count()), (202, 1));
        // Its port is down.
        rig.ports[6].set_silent(true);
        let first = of_flow(*routed.first().unwrap(), 0, 2, 3);
        assert_eq!(at(&rig.send(0, &[first, arp(0, 1, ip(2))])), [1]);
        assert_eq!(rig.drops(6)["link_down"], 2);
    }
}

/// One answer comes out, whoever speaks; what a router says beside its answer comes out in any case.
#[test]
fn a_router_that_does_not_speak_for_its_group_answers_no_question_for_its_station() {
    let mut rig = native(false, false);
    assert_eq!(at(&rig.send(0, &[arp(0, 1, ip(2))])), [1]);
    assert_eq!(rig.drops(6)["not_speaker"], 1);
    let ping = |n: u8| {
        let mut ping = packet(0, 2, ip(2), 4);
        (ping[23], ping[25]) = (1, ping[25].wrapping_add(16));
        ping[34..].fill(0);
        (ping[34], ping[39]) = (8, n);
        let sum = Sum::of(&ping[34..]).checksum().to_be_bytes();
        ping[36..38].copy_from_slice(&sum);
        ping
    };
    let all: Vec<_> = (0..50).map(ping).chain([arp(0, 1, ip(2))]).collect();
    let got = rig.send(0, &all);
    // All pings are one flow, whose member is the router or the other one.
    let its = got.iter().filter(|(to, bytes)| *to == 0 && bytes[34] == 0).count();
    assert!([0, 50].contains(&its) && at(&got).iter().filter(|to| **to == 1).count() == 51 - its, "{its}");
    assert_eq!(rig.drops(6)["not_speaker"], 2);
}

#[test]
fn the_control_plane_of_a_member_speaks_for_its_group() {
    let mut rig = native(true, false);
    rig.meet(0, 2);
    let mut bgp = packet(0, 2, ip(2), 20);
    (bgp[23], bgp[25]) = (6, bgp[25].wrapping_add(11));
    bgp[36..38].copy_from_slice(&179u16.to_be_bytes());
    assert_eq!(rig.send(0, &[bgp.clone()]), [(8, bgp.clone())]);
    let answer = [&mac(0)[..], &mac(2), &bgp[12..]].concat();
    assert_eq!(rig.send(8, std::slice::from_ref(&answer)), [(0, answer)]);
    // What it says of addresses is what a member may say.
    let announce = |address: [u8; 4]| {
        let mut frame = arp(2, 1, address);
        frame[28..32].copy_from_slice(&address);
        frame
    };
    assert_eq!(rig.send(8, &[announce(ip(9)), announce(ip(2))]), [(0, announce(ip(2)))]);
    assert_eq!(rig.drops(6)["foreign_address"], 1);
}

/// The chain's two routers with a group between them instead of the switch: 5, a port of the first, is the
/// group's interface. One member has port 4, and the second router, by its gateway 7, is the other one and
/// speaks.
fn behind_a_router(beyond: impl FnOnce(&Arc<Router>) -> Attach) -> Rig {
    let mut rig = Rig::new();
    let attached = |id: u16| rig.topology.get(PortId(id)).unwrap().attach.clone();
    let (Attach::Gateway(first, _), Attach::Gateway(second, _)) = (attached(5), attached(7)) else {
        panic!()
    };
    let group = Arc::new(Group::new(1, None));
    group.settle(&[Candidate::new(0, "a", 100), Candidate::new(1, "r", 100)], 0, Duration::ZERO);
    group.set_speaker(Some(1));
    let interface = Arc::new(Interface {
        group,
        ports: vec![(0, PortId(4)), (1, PortId(7))],
        own: Own::new([ip(7).into()], Some(mac(7)), None),
        beyond: beyond(&first),
    });
    let attach = |id| match id {
        4 => Attach::Behind(PortId(5), 0),
        5 => Attach::Interface(Arc::clone(&interface)),
        7 => Attach::Gateway(Arc::clone(&second), Box::new(Attach::Behind(PortId(5), 1))),
        _ => attached(id),
    };
    let joined: Vec<_> = (0..).zip(&rig.ports).map(|(id, port)| (Arc::clone(port), attach(id))).collect();
    rig.topology = Topology::new(&joined);
    rig
}

#[test]
fn a_group_behind_a_router_has_routers_and_others_as_members() {
    let mut rig = behind_a_router(|router| Attach::Router(Arc::clone(router)));
    rig.meet(0, 2);
    rig.meet(9, 10);
    // The router asks for the group's station: all hear it, and one answers.
    let got = rig.send(0, &[packet(0, 2, ip(9), 9)]);
    assert_eq!((at(&got), &got[0].1[38..42]), (vec![4], &ip(7)[..]));
    // The member that is a router knows who asked.
    assert_eq!(at(&rig.send(9, &[packet(9, 10, ip(0), 9)])), [0]);
    let mut routed = 0;
    for flow in 0..200 {
        let got = rig.send(0, &[of_flow(flow, 0, 2, 9)]);
        let frame = &got[0].1;
        let (macs, ttl) = if got[0].0 == 9 { ([mac(9), mac(10)], 62) } else { ([mac(7), mac(5)], 63) };
        assert_eq!((got.len(), &frame[..12], frame[22]), (1, &macs.concat()[..], ttl));
        routed += usize::from(got[0].0 == 9);
        // Whichever member it has passed on its way there, it comes back.
        let back = rig.send(9, &[of_flow(flow, 9, 10, 0)]);
        assert_eq!((at(&back), back[0].1[22]), (vec![0], 62));
        let mut back = of_flow(flow, 9, 5, 0);
        back[6..12].copy_from_slice(&mac(7));
        assert_eq!(at(&rig.send(4, &[back])), [0]);
    }
    assert!((60..140).contains(&routed), "{routed}");
    // Both take each other for the next hop: what the router among the members has goes to and fro until it
    // has passed enough.
    let circle = |flow| {
        let mut frame = of_flow(flow, 0, 2, 9);
        frame[31] = 77;
        frame[24..26].fill(0);
        let sum = Sum::of(&frame[14..34]).checksum().to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        frame
    };
    let got = rig.send(0, &(0..200).map(circle).collect::<Vec<_>>());
    assert!(got.iter().all(|(to, bytes)| (*to, bytes[22]) == (4, 63)));
    let ends: u64 = [5, 7].iter().filter_map(|port| rig.drops(*port).get("reentry").copied()).sum();
    assert_eq!((got.len() as u64 + ends, ends > 50), (200, true));
}

/// Connections that no configuration makes: a member's router beyond the group, and a wire back to where its
/// frames come from.
#[test]
fn every_circle_through_a_group_has_an_end() {
    let mut rig = behind_a_router(|_| Attach::Wire(PortId(7)));
    let sent = packet(7, 9, ip(9), 9);
    assert_eq!(at(&rig.send(11, &[sent])), [0u16; 0]);
    assert_eq!(rig.drops(5)["reentry"], 1);
    let mut rig = behind_a_router(|_| Attach::Nothing);
    let second = rig.topology.routers().pop().unwrap();
    rig = behind_a_router(|_| Attach::Router(second));
    rig.send(0, &(0..50).map(|flow| of_flow(flow, 0, 2, 9)).collect::<Vec<_>>());
    rig.send(9, &(0..50).map(|flow| of_flow(flow, 9, 10, 0)).collect::<Vec<_>>());
}
