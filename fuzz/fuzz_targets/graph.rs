//! Everything between a sender's queue and its receivers': switches with guards, limits, routers on switches
//! and beside them, a group of two guests and a router, wires to one queue and to several, receivers with and
//! without offloads, with and without room, slow ones and silent ones. What came in, and was made on the way,
//! goes out or is dropped by name; no frame comes twice; what needs an offload reaches nobody who lacks it;
//! and from honest packets come packets whose lengths and sums are right, however they were cut and routed.
//!
//! Theory of operation. Ports, routers and their neighbours stay from input to input, which keeps an input
//! some tens of microseconds short; switches and connections are new for each. The real `NetTask` of each
//! queue is visited by hand. One bit of an input says whether its frames are honest packets only (`packets`),
//! which are checked further where they arrive, or any bytes, too.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidecore_engine::core::{Budget, Lease};
use sidecore_engine::graph::{Attach, Candidate, Group, Interface, Local, Own, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::{Mac, Offloads};
use sidecore_engine::policy::acl::{read_rules, Acl, Action};
use sidecore_engine::policy::{
    EgressRate, IpGuard, MacGuard, Mirror, Policy, PortVlans, SourceGuard, Storm, StormLimits, TagProtocol,
    VlanSet,
};
use sidecore_engine::port::{Port, PortId};
use sidecore_engine::router::{Gateway, Member, Net, Router, Rpf, Static, Target};
use sidecore_engine::switch::{Kind, Switch, SwitchOptions};
use sidecore_fuzz::ends::{Hand, Receiver, Sink, Source, Waiting};
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::packets::{packet, Packet, Station};

/// Guests 0 and 1 on the first switch, 3 and 4 on the second, 9 on the third. 2 and 5 are the first router's
/// on the first two, 6 is a port of it beside them; 7 and 10 are the second router's on the last two. 8
/// stands for port 2 before a control plane. 11 and 12 are a wire's, 12 with two queues. 13 is connected to
/// nothing. 14 is a group's on the first switch, with 15 and 16 behind it, and the second router by its
/// gateway 17.
const PORTS: u16 = 18;
const GATEWAYS: [u16; 4] = [2, 5, 7, 10];
const WIRE: [u16; 2] = [11, 12];
const GROUP: u16 = 14;
const MEMBERS: [u16; 3] = [15, 16, 17];
/// Ports without a peer outside.
const INSIDE: [u16; 6] = [2, 5, 7, 10, GROUP, 17];
/// Frames that wait at one port, at most.
const MOST: usize = 200;
/// What the receivers accept, by a number.
const ACCEPTS: [u32; 8] = [0, 1, 0x7, 0xff, 0x31, 0x81, 0x4f, 0x80];

fn mac(port: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

fn word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The number of the switch that a port is on.
fn on(port: u16) -> u8 {
    match port {
        0..=2 | 8 | 14.. => 0,
        9 | 10 => 2,
        6 => 3,
        _ => 1,
    }
}

/// The station behind a port, or the router there.
fn station(port: u16) -> Station {
    let last = if GATEWAYS.contains(&port) || port == 6 { 1 + u8::from(port == 7) } else { 10 + port as u8 };
    let mut six = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    six[5] = on(port);
    Station { mac: mac(port), four: [10, on(port), 0, last], six }
}

/// Where nobody is: a circle of routers, a prefix without a route, and prefixes that lead nowhere.
fn nowhere(what: u8) -> Station {
    let net = [77, 78, 66, 67, 68, 1][usize::from(what) % 6];
    let mut six = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99];
    six[5] = net;
    Station { mac: mac(99), four: [10, net, 0, 99], six }
}

struct Rig {
    ports: Vec<Arc<Port>>,
    waiting: Vec<Waiting>,
    receivers: Vec<Arc<Mutex<Receiver>>>,
    sinks: Vec<Option<Lease<Sink>>>,
    local: Local,
    hands: [Arc<Hand>; 2],
    routers: [Arc<Router>; 2],
    group: Arc<Group>,
    /// The members that get flows, a bit each.
    takes: u8,
    balance: i64,
    _sources: Vec<Lease<Source>>,
    _others: (Lease<Sink>, Vec<Gateway>, CounterFile),
}

impl Rig {
    fn new() -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |id| {
            let name = format!("p{id}");
            Arc::new(Port::new(PortId(id), &name, file.open_slot(PortId(id), &name), 1500).unwrap())
        };
        let ports: Vec<_> = (0..PORTS).map(port).collect();
        let receiver = || Receiver { free: 0, accepts: Offloads::NONE, honest: true };
        let receivers: Vec<_> = ports.iter().map(|_| Arc::new(Mutex::new(receiver()))).collect();
        let waiting: Vec<Waiting> = ports.iter().map(|_| Waiting::default()).collect();
        // One of them waits for room as long as it takes, the other not at all.
        let hands = [Hand::new(Duration::from_secs(1_000_000)), Hand::new(Duration::ZERO)];
        let mut sources = Vec::new();
        for id in (0..PORTS).map(usize::from) {
            let hand = &hands[usize::from(id == 12)];
            sources.push(hand.serve(&ports[id], Source::new(&waiting[id])));
        }
        let gateways =
            INSIDE.iter().map(|id| Gateway::open(&ports[usize::from(*id)], String::new())).collect();
        let second = ports[12].lend(1, Sink::new(&receivers[12]));
        let routers = ["r", "other"].map(|name| Arc::new(Router::new(name).unwrap()));
        let sinks = ports.iter().map(|_| None).collect();
        let others = (second, gateways, file);
        let local = Local::by_hand();
        let mut rig = Rig {
            ports,
            waiting,
            receivers,
            sinks,
            local,
            hands,
            routers,
            group: Arc::new(Group::new(1, None)),
            takes: 0,
            balance: 0,
            _sources: sources,
            _others: others,
        };
        rig.configure(0);
        (0..PORTS).for_each(|id| rig.plug(id, true));
        rig
    }

    /// The routers are told their ports and routes.
    fn configure(&self, how: u8) {
        let net = |id: u16| {
            let station = station(id);
            let (four, six) = (Ipv4Addr::from(station.four), Ipv6Addr::from(station.six));
            vec![format!("{four}/24").parse().unwrap(), format!("{six}/64").parse().unwrap()]
        };
        let member = |id: u16| Member {
            port: Arc::clone(&self.ports[usize::from(id)]),
            mac: mac(id),
            addresses: net(id),
            control: (id == 2).then_some(PortId(8)),
            rpf: [Rpf::Off, Rpf::Loose, Rpf::Strict, Rpf::Off][usize::from(how >> (id & 1) & 3)],
        };
        let via = |prefix: &str, to: &[Station]| {
            let six = prefix.contains(':');
            let gateways = to.iter().map(|it| if six { it.six.into() } else { it.four.into() }).collect();
            Static { prefix: prefix.parse::<Net>().unwrap(), target: Target::Via(gateways, None) }
        };
        let to = |prefix: &str, target| Static { prefix: prefix.parse().unwrap(), target };
        let next = [station(7)];
        // Two ways, to whom a flow may go.
        let two = [station(7), station(3)];
        let statics = [
            via("10.2.0.0/16", if how & 8 == 0 { &next } else { &two }),
            via("2001:db8:2::/64", &next),
            via("10.77.0.0/16", &next),
            via("2001:db8:4d::/64", &next),
            to("10.66.0.0/16", Target::Blackhole),
            to("10.67.0.0/16", Target::Unreachable),
            to("2001:db8:43::/64", Target::Unreachable),
            to("10.68.0.0/16", Target::Prohibit),
            to("2001:db8:44::/64", Target::Prohibit),
        ];
        self.routers[0].configure(&[member(2), member(5), member(6)], &statics, 1);
        let back = [via("0.0.0.0/0", &[station(5)]), via("::/0", &[station(5)])];
        let behind = Member { mac: mac(GROUP), addresses: net(GROUP), ..member(MEMBERS[2]) };
        self.routers[1].configure(&[member(7), member(10), behind], &back, 1);
    }

    /// Port `id` gets its receiver, or loses it.
    fn plug(&mut self, id: u16, there: bool) {
        let at = usize::from(id);
        if INSIDE.contains(&id) || self.sinks[at].is_some() == there {
            return;
        }
        self.sinks[at] = there.then(|| self.ports[at].lend(0, Sink::new(&self.receivers[at])));
    }

    /// New switches and connections; all receivers have room.
    fn begin(&mut self, flags: u8, choice: u8) -> [Arc<Switch>; 3] {
        for (port, receiver) in self.ports.iter().zip(&self.receivers) {
            port.set_silent(false);
            port.set_accepts(Offloads::NONE);
            *receiver.lock().unwrap() =
                Receiver { free: 1 << 20, accepts: Offloads::NONE, honest: flags & 1 == 0 };
        }
        (0..PORTS).for_each(|id| self.plug(id, true));
        self.settle(7, 0);
        let (control_frames, moves) = (choice & 0x20 != 0, choice & 0x40 != 0);
        let options = SwitchOptions { table_size: 64, ageing: 30, control_frames, moves };
        let switches = [
            Arc::new(Switch::new("a", options)),
            Arc::new(Switch::new("b", options)),
            Arc::new(Switch::new("c", options)),
        ];
        let attach = |id: u16| {
            let switch = || Arc::clone(&switches[usize::from(on(id))]);
            match id {
                2 | 5 => Attach::Gateway(Arc::clone(&self.routers[0]), Box::new(Attach::Switch(switch()))),
                7 | 10 => Attach::Gateway(Arc::clone(&self.routers[1]), Box::new(Attach::Switch(switch()))),
                6 => Attach::Router(Arc::clone(&self.routers[0])),
                8 => Attach::Wire(PortId(2)),
                11 => Attach::Wire(PortId(12)),
                12 => Attach::Wire(PortId(11)),
                13 => Attach::Nothing,
                GROUP => Attach::Interface(Arc::new(self.interface(switch()))),
                15 | 16 => Attach::Behind(PortId(GROUP), u8::from(id == MEMBERS[1])),
                17 => {
                    let behind = Attach::Behind(PortId(GROUP), 2);
                    Attach::Gateway(Arc::clone(&self.routers[1]), Box::new(behind))
                }
                _ => Attach::Switch(switch()),
            }
        };
        let joined: Vec<_> =
            (0..).zip(&self.ports).map(|(id, port)| (Arc::clone(port), attach(id))).collect();
        let policy = |id: PortId| {
            let own = word(mac(id.0));
            let vlans = self.vlans(id.0, choice);
            if GATEWAYS.contains(&id.0) {
                let guard = SourceGuard::new(MacGuard::Claim, own, &[], &[], false);
                return Policy { guard, vlans, ..Policy::default() }.compile();
            }
            let mode = [MacGuard::Off, MacGuard::Claim, MacGuard::Strict, MacGuard::Off];
            let guard = SourceGuard::new(
                mode[usize::from(choice >> (id.0 & 1) & 3)],
                own,
                &[],
                &[word(mac(0))],
                id.0 == 1,
            );
            let storm = StormLimits { broadcast: 40, multicast: 20, unicast: 30 };
            let storm = (choice & 8 != 0).then(|| Storm::new(storm)).flatten();
            // What is behind a wire or a router has egress rules, too.
            let more = choice & 0x80 != 0;
            let mirror = (more && id.0 % 3 == 0).then_some(PortId(13));
            let rate = EgressRate::new(Some(1), None, Duration::from_millis(20));
            let list = || {
                let rules = [
                    "permit proto=tcp dport=0-40000",
                    "deny proto=tcp+udp src=10.0.0.0/13",
                    "deny type=arp dst=10.0.0.0/29",
                ];
                Arc::new(Acl::compile(read_rules(rules).unwrap(), Action::Permit, [0x9e37_79b9; 8]))
            };
            Policy {
                acl: [(more && id.0 & 2 != 0).then(list), (more && id.0 & 4 != 0).then(list)],
                mac_limit: [0, 1, 3, 0][usize::from(choice >> 4 & 3)],
                guard,
                storm,
                vlans,
                isolated: more && id.0 < 4,
                no_bpdu: more && id.0 & 1 == 0,
                egress_rate: rate.filter(|_| more && [4, 6, 12].contains(&id.0)),
                mirror: mirror.map(|to| Mirror { to, ways: [true, id.0 != 3], acl: None, snap: None }),
                ip_guard: IpGuard::new(
                    more.then(|| [("10.0.0.0".parse().unwrap(), 8)].into_iter()),
                    more,
                    more,
                )
                .filter(|_| id.0 == 1),
                moves: (more && id.0 == 2).then_some(true),
            }
            .compile()
        };
        let topology = Arc::new(Topology::with_policies(&joined, policy));
        for id in GATEWAYS {
            assert!(switches[usize::from(on(id))].pin(word(mac(id)), PortId(id), Kind::Pinned, 1));
        }
        self.local.connect(&topology);
        self.local.set_apart(false);
        switches
    }

    /// The VLANs of port `id` on a switch, if there are any.
    fn vlans(&self, id: u16, choice: u8) -> Option<PortVlans> {
        let tagged = || Some(VlanSet::new([(10, 10), (20, 30)]));
        let (own, tagged) = match id {
            _ if choice & 0x40 == 0 => return None,
            0 | 2 | 3 | 5 | 7 => (10, None),
            1 => (0, tagged()),
            4 => (20, tagged()),
            GROUP => (10 * (1 + u16::from(choice & 1)), None),
            _ => return None,
        };
        let service = id == 4 && choice & 2 != 0;
        Some(PortVlans::new(own, tagged, if service { TagProtocol::Service } else { TagProtocol::Customer }))
    }

    /// The group's interface on `switch`, with all members.
    fn interface(&self, switch: Arc<Switch>) -> Interface {
        let station = station(GROUP);
        let addresses = [Ipv4Addr::from(station.four).into(), Ipv6Addr::from(station.six).into()];
        Interface {
            group: Arc::clone(&self.group),
            ports: (0..).zip(MEMBERS.map(PortId)).collect(),
            own: Own::new(addresses, Some(station.mac), Some([192, 0, 2, 1].into())),
            beyond: Attach::Switch(switch),
        }
    }

    /// The members of `takes`, a bit each, get flows; those of `leave` lose theirs at once.
    fn settle(&mut self, takes: u8, leave: u8) {
        // It takes as long as an input otherwise.
        if std::mem::replace(&mut self.takes, takes) == takes {
            return;
        }
        let its = (0..3).filter(|n| takes >> n & 1 != 0);
        let candidates: Vec<_> =
            its.map(|n| Candidate::new(n, ["a", "b", "r"][usize::from(n)], 100)).collect();
        self.group.settle(&candidates, leave.into(), Duration::ZERO);
        self.group.set_speaker((takes != 0).then_some(takes.trailing_zeros() as u8));
    }

    fn run(&mut self, data: &[u8]) {
        let [flags, choice, data @ ..] = data else { return };
        let switches = self.begin(*flags, *choice);
        let honest = flags & 1 == 0;
        let mut last = (0, Packet::default());
        let mut input = Input(data);
        for _ in 0..200 {
            let Some(what) = input.next() else { break };
            match what % 16 {
                0..=6 => {
                    last = self.frame(&mut input, honest);
                    self.waiting[usize::from(last.0)].lock().unwrap().push_back(last.1.clone());
                }
                7..=9 => self.visit(input.byte(), usize::from(what >> 4) * 20 + 1),
                10 => {
                    // Many of one sender, of different flows and perhaps of different stations.
                    let (many, other) = (what >> 2 & 0x3f, input.byte());
                    let mut waiting = self.waiting[usize::from(last.0)].lock().unwrap();
                    for n in (0..many).take_while(|_| last.1.bytes.len() > 40) {
                        if waiting.len() == MOST {
                            break;
                        }
                        let mut next = last.1.clone();
                        if !honest || other & 1 != 0 {
                            next.bytes[usize::from(5 + (other >> 1 & 1) * 6)] ^= n;
                        }
                        waiting.push_back(next);
                    }
                }
                11 => {
                    let (id, free) = (usize::from(input.byte()) % self.ports.len(), input.byte());
                    let mut receiver = self.receivers[id].lock().unwrap();
                    receiver.free = if free == 255 { 1 << 20 } else { u32::from(free) / 4 };
                    receiver.accepts = Offloads::from_bits(ACCEPTS[usize::from(what >> 4 & 7)]);
                    self.ports[id].set_accepts(receiver.accepts);
                }
                12 => {
                    let id = u16::from(input.byte()) % PORTS;
                    match what >> 4 & 3 {
                        0 => self.plug(id, what & 0x40 == 0),
                        1 => self.ports[usize::from(id)].set_silent(what & 0x40 == 0),
                        2 => self.settle(id as u8 & 7, id as u8 >> 2 & 7),
                        // Receivers get private copies from now on, or not any more.
                        _ => self.local.set_apart(what & 0x40 == 0),
                    }
                }
                13 => {
                    let (id, now) = (PortId(u16::from(input.byte()) % PORTS), u32::from(input.byte()));
                    let switch = &switches[usize::from(what >> 4) % 3];
                    match what >> 6 {
                        0 => switch.forget(id, now & 1 == 0, now),
                        1 => switch.table.disputes(now, |_| ()),
                        _ => drop(switch.age(now, |_| false)),
                    }
                }
                14 => {
                    let (id, router) =
                        (u16::from(input.byte()) % PORTS, &self.routers[usize::from(what >> 4 & 1)]);
                    let told = station(id);
                    let address = if what & 0x40 == 0 { told.four.into() } else { told.six.into() };
                    let port = &self.ports[[2, 5, 7, 10][usize::from(what >> 5 & 3)]].name;
                    router.kernel_neighbour(
                        port,
                        address,
                        (what & 0x80 == 0).then_some(Mac(told.mac)),
                        false,
                        1,
                    );
                }
                _ => self.configure(input.byte()),
            }
        }
        self.end(&switches);
    }

    /// A frame, and by which port it comes.
    fn frame(&self, input: &mut Input, honest: bool) -> (u16, Packet) {
        let [ends, kind, shape, len] = [(); 4].map(|()| input.byte());
        let from = [0, 1, 3, 4, 6, 8, 9, 11, 12, 13, 15, 0, 3, 16, 11, 9][usize::from(ends & 15)];
        let to = u16::from(ends >> 4) % PORTS;
        // Beside the receiver itself: its router, everybody, a group, nobody.
        let home = [2, 5, 10, 6][usize::from(on(from)).min(3)];
        let far = if kind & 0x80 == 0 { station(to) } else { nowhere(shape) };
        let station_address = match kind >> 5 & 3 {
            0 => mac(to),
            1 => [0xff; 6],
            2 => [0x33, 0x33, 0xff, 0, 0, far.six[15]],
            _ => mac(home),
        };
        let len = usize::from(len) * if shape & 0x18 == 0 { 24 } else { 4 };
        let kind = kind & 31;
        if !honest && kind > 15 {
            let bytes: Vec<u8> = (0..usize::from(shape)).map(|_| input.byte()).collect();
            let frame = [&station_address[..], &mac(from), &bytes].concat();
            let header =
                std::array::from_fn(
                    |i| if kind & 1 == 0 { 0 } else { bytes.get(i + 20).copied().unwrap_or(0) },
                );
            let frame = if frame.len() < 14 { vec![0; 14] } else { frame };
            return (from, Packet { bytes: frame, header });
        }
        let mut made = packet(kind & 15, &station(from), (station_address, &far), shape, len);
        if !honest && shape & 1 != 0 {
            // A byte of it is another.
            let (at, byte) = (usize::from(input.byte()) % made.bytes.len().min(80), input.byte());
            made.bytes[at] ^= byte;
            made.header[at % 12] ^= if shape & 2 == 0 { 0 } else { byte };
        }
        (from, made)
    }

    fn visit(&mut self, port: u8, items: usize) {
        let budget = Budget { items: items.min(256), bytes: 1 << 18, ns: u64::MAX };
        let port = usize::from(port % PORTS as u8);
        // The port's place among those that its hand serves.
        let (hand, at) = if port == 12 { (1, 0) } else { (0, port - usize::from(port > 12)) };
        self.hands[hand].visit(at, &mut self.local, budget);
    }

    /// All that waits is sent, and everything is accounted for.
    fn end(&mut self, switches: &[Arc<Switch>; 3]) {
        for port in 0..PORTS as u8 {
            self.receivers[usize::from(port)].lock().unwrap().free = 1 << 20;
            for _ in 0..1000 {
                self.visit(port, 256);
                if self.waiting[usize::from(port)].lock().unwrap().is_empty() {
                    break;
                }
            }
        }
        self.hands.iter().for_each(|hand| hand.settle(&mut self.local));
        for id in WIRE.into_iter().chain([0]) {
            // Frames that no receiver had room for in all that time.
            self.waiting[usize::from(id)].lock().unwrap().clear();
        }
        assert!(self.waiting.iter().all(|waiting| waiting.lock().unwrap().is_empty()));
        let mut balance = 0;
        for (id, port) in (0..).zip(&self.ports) {
            let sums = port.counters.totals();
            balance += sums.made as i64 - sums.drops.iter().sum::<u64>() as i64;
            if !INSIDE.contains(&id) {
                balance += sums.in_frames as i64 - sums.out_frames as i64;
            }
        }
        let before = std::mem::replace(&mut self.balance, balance);
        assert!(balance == before, "{} frames are unaccounted for: {:?}", balance - before, self.sums());
        for switch in switches {
            for id in (0..PORTS).map(PortId) {
                assert_eq!(switch.table.count(id), switch.table.recount(id));
            }
        }
    }
}

impl Rig {
    /// What each port has counted: in, made, out, and drops by name.
    fn sums(&self) -> Vec<String> {
        let sums = self.ports.iter().map(|port| (&port.name, port.counters.totals()));
        let text = |(name, sums): (&String, sidecore_engine::observe::Totals)| {
            let drops: Vec<_> = sums.named_drops().filter(|(_, n)| *n > 0).collect();
            format!("{name}: {} in, {} made, {} out, {drops:?}", sums.in_frames, sums.made, sums.out_frames)
        };
        sums.map(text).collect()
    }
}

/// One that answers with the port that the frame's length names.
/// Takes bytes from the input; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }
}

thread_local!(static RIG: RefCell<Rig> = RefCell::new(Rig::new()));

fuzz_target!(|data: &[u8]| RIG.with_borrow_mut(|rig| rig.run(data)));
