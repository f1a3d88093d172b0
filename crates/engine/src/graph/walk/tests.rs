//! Three switches in a row with a router between each two of them.

mod chain;
mod egress;
mod explain;
mod group;
mod stages;
mod vlan;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::*;
use crate::core::Lease;
use crate::mem::Arena;
use crate::observe::CounterFile;
use crate::packet::{Sum, HEAD, MAX_BATCH};
use crate::policy::{MacGuard, Policy, SourceGuard, Storm, StormLimits};
use crate::port::{EgressQueue, DEFAULT_MTU};
use crate::router::{Gateway, Member as RouterPort, Rpf, Static, Target};
use crate::switch::SwitchOptions;

/// What arrived: at which port, and the frame.
type Got = Arc<Mutex<Vec<(u16, Vec<u8>)>>>;

struct Sink(u16, Got);

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            let frame = batch.frame(*pick);
            let mut bytes = frame.head().to_vec();
            for piece in batch.body(frame) {
                let mut part = vec![0; piece.len()];
                assert_eq!(piece.read(&mut part), part.len());
                bytes.extend(part);
            }
            assert_eq!(bytes.len(), frame.len as usize);
            outcome.delivered(frame.len);
            self.1.lock().unwrap().push((self.0, bytes));
        }
    }
}

/// Guests 0 and 1 on the first switch, 3 and 4 on the second, 9 on the third; 2 and 5 are the router's on the
/// first two, 6 another port of it; 7 and 10 are another router's on the last two. 8, 12 and 11 stand for
/// ports 2, 5 and 7 before a control plane.
const PORTS: u16 = 13;
const GATEWAYS: [u16; 4] = [2, 5, 7, 10];

fn mac(port: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(port).unwrap()]
}

/// The address of the station behind a port, or of the router there.
fn ip(port: u16) -> [u8; 4] {
    match port {
        2 => [10, 0, 0, 1],
        5 => [10, 0, 1, 1],
        7 => [10, 0, 1, 77],
        0 | 1 => [10, 0, 0, 10 + u8::try_from(port).unwrap()],
        3 | 4 => [10, 0, 1, 10 + u8::try_from(port).unwrap()],
        9 => [10, 9, 0, 10],
        10 => [10, 9, 0, 1],
        _ => [10, 0, 2, 10],
    }
}

/// The number of the switch that a port is on.
fn on(port: u16) -> usize {
    match port {
        0..=2 => 0,
        9 | 10 => 2,
        _ => 1,
    }
}

/// The address of guest `port` in IPv6.
fn six(port: u16) -> [u8; 16] {
    let mut address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    (address[5], address[15]) = (u8::try_from(on(port)).unwrap(), u8::try_from(port + 1).unwrap());
    address
}

struct Rig {
    ports: Vec<Arc<Port>>,
    walk: Walk<crate::graph::effects::Live>,
    topology: Topology,
    switches: [Arc<Switch>; 3],
    /// Ports between two nodes.
    inside: Vec<u16>,
    got: Got,
    arena: Arena,
    _queues: (Vec<Lease<Sink>>, Vec<Gateway>),
    _file: CounterFile,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(&[(2, 8)])
    }

    /// With these ports before control planes.
    fn with(controls: &[(u16, u16)]) -> Rig {
        Rig::limited(controls, StormLimits::default())
    }

    /// A rig with these limits for guest 1.
    fn limited(controls: &[(u16, u16)], limits: StormLimits) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |id| {
            let name = format!("p{id}");
            let counters = file.open_slot(PortId(id), &name);
            Arc::new(Port::new(PortId(id), &name, counters, DEFAULT_MTU).unwrap())
        };
        let ports: Vec<_> = (0..PORTS).map(port).collect();
        let got = Got::default();
        let (mut sinks, mut gateways) = (Vec::new(), Vec::new());
        for (id, port) in (0..).zip(&ports) {
            match GATEWAYS.contains(&id) {
                true => gateways.push(Gateway::open(port, String::new())),
                false => sinks.push(port.lend(0, Sink(id, Arc::clone(&got)))),
            }
        }
        let switches = ["a", "b", "c"].map(|name| Arc::new(Switch::new(name, SwitchOptions::default())));
        let routers = ["r", "other"].map(|name| Arc::new(Router::new(name).unwrap()));
        let net = |id: u16| {
            let (four, six) = (std::net::Ipv4Addr::from(ip(id)), std::net::Ipv6Addr::from(six(id)));
            vec![format!("{four}/24").parse().unwrap(), format!("{six}/64").parse().unwrap()]
        };
        let member = |id: u16| RouterPort {
            port: Arc::clone(&ports[usize::from(id)]),
            mac: mac(id),
            addresses: if id == 6 { vec!["10.0.2.1/24".parse().unwrap()] } else { net(id) },
            control: controls.iter().find(|(port, _)| *port == id).map(|(_, beside)| PortId(*beside)),
            rpf: Rpf::Off,
        };
        let via = |prefix: &str, to: std::net::IpAddr| Static {
            prefix: prefix.parse().unwrap(),
            target: Target::Via(vec![to], None),
        };
        // To the far switch, and to nowhere: that goes in a circle.
        let far = ["10.9.0.0/16", "10.77.0.0/16"].map(|prefix| via(prefix, ip(7).into()));
        let far6 = via("2001:db8:2::/64", six(7).into());
        routers[0].configure(&[member(2), member(5), member(6)], &[&far[..], &[far6]].concat(), 1);
        let back = [via("0.0.0.0/0", ip(5).into()), via("::/0", six(5).into())];
        routers[1].configure(&[member(7), member(10)], &back, 1);
        let attach = |id: u16| match id {
            2 | 5 => Attach::Gateway(
                Arc::clone(&routers[0]),
                Box::new(Attach::Switch(Arc::clone(&switches[on(id)]))),
            ),
            7 | 10 => Attach::Gateway(
                Arc::clone(&routers[1]),
                Box::new(Attach::Switch(Arc::clone(&switches[on(id)]))),
            ),
            6 => Attach::Router(Arc::clone(&routers[0])),
            8 => Attach::Wire(PortId(2)),
            11 => Attach::Wire(PortId(7)),
            12 => Attach::Wire(PortId(5)),
            _ => Attach::Switch(Arc::clone(&switches[on(id)])),
        };
        let joined: Vec<_> = (0..).zip(&ports).map(|(id, port)| (Arc::clone(port), attach(id))).collect();
        let own = |id: PortId| {
            let [a, b, c, d, e, f] = mac(id.0);
            let own = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
            let guard = SourceGuard::new(MacGuard::Claim, own, &[], &[], false);
            match id.0 {
                1 => Policy { storm: Storm::new(limits), ..Policy::default() }.compile(),
                id if GATEWAYS.contains(&id) => Policy { guard, ..Policy::default() }.compile(),
                _ => None,
            }
        };
        let topology = Topology::with_policies(&joined, own);
        for id in GATEWAYS {
            let own = own(PortId(id)).unwrap().guard.pinned().unwrap();
            assert!(switches[on(id)].pin(own, PortId(id), crate::switch::Kind::Pinned, 1));
        }
        let mut walk = Walk::new(0, Instant::now());
        walk.routers = topology.routers().iter().map(RouterContext::new).collect();
        walk.delivery.limit = u64::MAX;
        Rig {
            ports,
            walk,
            topology,
            switches,
            inside: GATEWAYS.to_vec(),
            got,
            arena: Arena::new(64, 2048),
            _queues: (sinks, gateways),
            _file: file,
        }
    }

    /// Guests on one switch, each with its policy.
    fn switch(policies: &[Option<Arc<Policy>>]) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |id| {
            let name = format!("p{id}");
            let counters = file.open_slot(PortId(id), &name);
            Arc::new(Port::new(PortId(id), &name, counters, DEFAULT_MTU).unwrap())
        };
        let ports: Vec<_> = (0..).zip(policies).map(|(id, _)| port(id)).collect();
        let got = Got::default();
        let sinks = (0..).zip(&ports).map(|(id, port)| port.lend(0, Sink(id, Arc::clone(&got)))).collect();
        let switches = ["a", "b", "c"].map(|name| Arc::new(Switch::new(name, SwitchOptions::default())));
        let on = |port: &Arc<Port>| (Arc::clone(port), Attach::Switch(Arc::clone(&switches[0])));
        let joined: Vec<_> = ports.iter().map(on).collect();
        let topology = Topology::with_policies(&joined, |id| policies[usize::from(id.0)].clone());
        let mut walk = Walk::new(0, Instant::now());
        walk.delivery.limit = u64::MAX;
        Rig {
            ports,
            walk,
            topology,
            switches,
            inside: Vec::new(),
            got,
            arena: Arena::new(64, 2048),
            _queues: (sinks, Vec::new()),
            _file: file,
        }
    }

    /// What arrives when these frames come from a guest's port.
    fn send(&mut self, from: u16, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let mut batch = Batch::new();
        let (mut tally, mut pieces) = (Tally::default(), Vec::new());
        for (slot, bytes) in frames.iter().enumerate() {
            let (frame, room) = batch.next_frame().unwrap();
            let near = bytes.len().min(HEAD);
            frame.head[..near].copy_from_slice(&bytes[..near]);
            (frame.len, frame.pieces) = (u32::try_from(bytes.len()).unwrap(), 0);
            frame.piece = u32::try_from(room.len()).unwrap();
            frame.offload = crate::packet::Offload::NONE;
            if bytes.len() > HEAD {
                let piece = self.arena.put(slot, bytes, HEAD);
                pieces.push(piece);
                assert!(room.push(piece));
                frame.pieces = 1;
            }
            batch.commit();
            tally.frames += 1;
        }
        self.ports[usize::from(from)].counters.block(0).add_tally(&tally);
        let source = Source { topology: &self.topology, port: &self.ports[usize::from(from)] };
        self.walk.forward(source, &mut batch, None);
        assert!(self.walk.delivery.work.is_empty() && self.walk.round.as_ref().unwrap().is_empty());
        self.conserved();
        std::mem::take(&mut *self.got.lock().unwrap())
    }

    /// What came in, and was made on the way, went out or was dropped. What passes gateways stays inside.
    fn conserved(&self) {
        let (mut came, mut went) = (0, 0);
        for (id, port) in (0..).zip(&self.ports) {
            let sums = port.counters.totals();
            came += sums.made;
            went += sums.named_drops().map(|(_, n)| n).sum::<u64>();
            if !self.inside.contains(&id) {
                (came, went) = (came + sums.in_frames, went + sums.out_frames);
            }
        }
        assert_eq!(came, went);
    }

    fn drops(&self, port: u16) -> BTreeMap<&'static str, u64> {
        self.ports[usize::from(port)].counters.totals().named_drops().collect()
    }

    /// The station behind `port` asks for its router's address, and gets its answer.
    fn meet(&mut self, port: u16, gateway: u16) {
        let got = self.send(port, &[arp(port, 1, ip(gateway))]);
        let reply = got.iter().find(|(to, _)| *to == port).unwrap();
        assert_eq!((&reply.1[..6], &reply.1[6..12], reply.1[21]), (&mac(port)[..], &mac(gateway)[..], 2));
    }
}

/// An ARP packet to everybody: a request for `whom`, or an answer.
fn arp(from: u16, operation: u8, whom: [u8; 4]) -> Vec<u8> {
    let head = [&[0xff; 6][..], &mac(from), &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    let mut frame = [&head[..], &mac(from), &ip(from), &[0; 6], &whom].concat();
    frame.resize(60, 0);
    frame
}

/// A datagram by way of the router at port `gateway`.
fn packet(from: u16, gateway: u16, to: [u8; 4], bytes: usize) -> Vec<u8> {
    let len = u16::try_from(28 + bytes).unwrap().to_be_bytes();
    let mut header = [&[0x45, 0], &len[..], &[0, 1, 0, 0, 64, 17, 0, 0], &ip(from), &to].concat();
    let sum = Sum::of(&header).checksum().to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    let payload: Vec<u8> = (0..8 + bytes).map(|n| u8::try_from(n % 251).unwrap()).collect();
    [&mac(gateway)[..], &mac(from), &[8, 0], &header, &payload].concat()
}

fn to(got: &[(u16, Vec<u8>)]) -> Vec<u16> {
    let mut ports: Vec<u16> = got.iter().map(|(port, _)| *port).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn frames_pass_from_one_switch_to_the_other() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    // Nobody knows the far station: everybody on its switch is asked, and nobody on the near one.
    let got = rig.send(0, &[packet(0, 2, ip(3), 300)]);
    assert_eq!(to(&got), [3, 4]);
    assert!(got.iter().all(|(_, bytes)| bytes[12..14] == [8, 6] && bytes[38..42] == ip(3)));
    assert_eq!(rig.drops(2), BTreeMap::from([("to_router", 1), ("no_neighbour", 1)]));
    rig.meet(3, 5);
    // Then it gets its packets, and nobody else does; a frame among them that stays on the switch does so.
    let mut near = packet(0, 1, ip(1), 20);
    near[..6].copy_from_slice(&mac(1));
    let sent = packet(0, 2, ip(3), 300);
    rig.meet(1, 2);
    let got = rig.send(0, &[sent.clone(), near.clone(), packet(0, 2, ip(3), 0)]);
    assert_eq!(to(&got), [1, 3, 3]);
    assert!(got.contains(&(1, near)));
    let (_, long) = got.iter().find(|(_, bytes)| bytes.len() == sent.len()).unwrap();
    assert_eq!((&long[..6], &long[6..12], long[22]), (&mac(3)[..], &mac(5)[..], 63));
    assert_eq!((&long[26..], Sum::of(&long[14..34]).value()), (&sent[26..], 0xffff));
    // The router's counters there: what entered by the one and left by the other.
    let of = |rig: &Rig, port: usize| {
        let sums = rig.ports[port].counters.totals();
        (sums.in_frames, sums.out_frames)
    };
    assert_eq!((of(&rig, 2).0, of(&rig, 5).1), (1 + 1 + 1 + 2, 1 + 1 + 2));
}

#[test]
fn errors_answers_and_hairpins_go_back_by_the_same_switch() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    rig.meet(1, 2);
    let mut last = packet(0, 2, ip(3), 100);
    last[22] = 1;
    last[24..26].fill(0);
    let sum = Sum::of(&last[14..34]).checksum().to_be_bytes();
    last[24..26].copy_from_slice(&sum);
    let got = rig.send(0, &[last, packet(0, 2, [203, 0, 113, 1], 9)]);
    assert_eq!(got.iter().map(|(port, bytes)| (*port, bytes[34])).collect::<Vec<_>>(), [(0, 11), (0, 3)]);
    // By the router to a station on the same network.
    let got = rig.send(0, &[packet(0, 2, ip(1), 9)]);
    assert_eq!((to(&got), got[0].1[22], &got[0].1[6..12]), (vec![1], 63, &mac(2)[..]));
    // A port of the router that is on no switch sends there, too.
    rig.send(0, &[packet(0, 2, ip(6), 9)]);
    assert_eq!(rig.drops(2)["no_neighbour"], 1);
}

#[test]
fn who_claims_the_routers_station_gets_nothing_of_it() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    rig.meet(3, 5);
    let mut lie = packet(1, 2, ip(0), 9);
    lie[..6].copy_from_slice(&mac(0));
    lie[6..12].copy_from_slice(&mac(2));
    for _ in 0..100 {
        rig.send(1, &[lie.clone()]);
        assert_eq!(to(&rig.send(0, &[packet(0, 2, ip(3), 9)])), [3], "it still is the router's");
    }
    // An ARP answer in the router's name is refused there, and frames to the router from its own station come
    // back to nobody.
    let mut spoof = arp(1, 2, ip(2));
    spoof[28..32].copy_from_slice(&ip(2));
    rig.send(1, &[spoof]);
    assert_eq!(rig.drops(2)["spoofed"], 1);
    let mut own = packet(1, 2, [203, 0, 113, 1], 9);
    own[6..12].copy_from_slice(&mac(2));
    assert!(rig.send(1, &[own]).is_empty());
    assert_eq!(rig.drops(2)["hairpin"], 1);
    assert_eq!(rig.switches[0].table.count(PortId(1)), 1, "its own address, and no other");
}

#[test]
fn a_control_plane_speaks_and_is_spoken_to_through_the_switch() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    // BGP, to the router.
    let mut bgp = packet(0, 2, ip(2), 20);
    bgp[23] = 6;
    bgp[36..38].copy_from_slice(&179u16.to_be_bytes());
    bgp[24..26].fill(0);
    let sum = Sum::of(&bgp[14..34]).checksum().to_be_bytes();
    bgp[24..26].copy_from_slice(&sum);
    assert_eq!(rig.send(0, &[bgp.clone()]), [(8, bgp)]);
    // Its answer, and what it says to everybody.
    let mut answer = packet(2, 0, ip(0), 20);
    assert_eq!(rig.send(8, &[answer.clone()]), [(0, answer.clone())]);
    answer[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 5]);
    assert_eq!(to(&rig.send(8, &[answer])), [0, 1]);
}

#[test]
fn a_gateway_that_is_down_takes_no_frames() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    rig.meet(3, 5);
    rig.ports[5].set_silent(true);
    assert!(rig.send(0, &[packet(0, 2, ip(3), 9)]).is_empty());
    assert_eq!(rig.drops(5)["link_down"], 1);
    rig.ports[5].set_silent(false);
    rig.ports[2].set_silent(true);
    assert!(rig.send(0, &[packet(0, 2, ip(3), 9)]).is_empty());
    assert_eq!(rig.drops(2)["link_down"], 1);
}

/// A full batch, part of it for everybody: each gets its own, in order, and nothing is lost.
#[test]
fn full_batches_pass_whole() {
    let mut rig = Rig::new();
    rig.meet(0, 2);
    rig.meet(3, 5);
    let frames: Vec<_> = (0..MAX_BATCH)
        .map(|n| match n % 4 {
            3 => arp(0, 1, ip(1)),
            _ => packet(0, 2, ip(3), n % 10),
        })
        .collect();
    let got = rig.send(0, &frames);
    let lens: Vec<usize> = got.iter().filter(|(port, _)| *port == 3).map(|(_, bytes)| bytes.len()).collect();
    let sent: Vec<usize> = (0..MAX_BATCH).filter(|n| n % 4 != 3).map(|n| 42 + n % 10).collect();
    assert_eq!(lens, sent);
    assert_eq!(got.iter().filter(|(port, _)| *port == 1).count(), MAX_BATCH / 4);
}

/// A station that the router knows is gone from its switch: frames for it are flooded there, as far as their
/// sender may flood.
#[test]
fn storm_limits_hold_behind_gateways() {
    let mut rig = Rig::limited(&[], StormLimits { broadcast: 10, multicast: 10, unicast: 10 });
    rig.meet(1, 2);
    rig.meet(3, 5);
    rig.switches[1].forget(PortId(3), false, 1);
    let got = rig.send(1, &vec![packet(1, 2, ip(3), 9); 100]);
    let passed = got.iter().filter(|(port, _)| *port == 4).count();
    let dropped = rig.drops(5)["storm_unicast"];
    assert_eq!((passed < 5, passed as u64 + dropped), (true, 100), "{passed}");
    // What the router asks is its own, whoever had it ask.
    rig.send(1, &vec![arp(1, 1, ip(0)); 100]);
    assert_eq!(to(&rig.send(1, &[packet(1, 2, ip(4), 9)])), [3, 4]);
    // Another guest has no limit.
    rig.meet(0, 2);
    let got = rig.send(0, &vec![packet(0, 2, ip(3), 9); 100]);
    assert_eq!(got.iter().filter(|(port, _)| *port == 4).count(), 100);
}
