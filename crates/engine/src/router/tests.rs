//! A router by itself: batches in, verdicts, heads and its own frames out.

mod errors;
mod fed;
mod hops;
mod punt;
mod reverse;
mod room;
mod stations;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use super::header::IPV6;
use super::*;
use crate::mem::Arena;
use crate::observe::account::PortId;
use crate::observe::CounterFile;
use crate::packet::{Batch, Sum, HEAD};
use crate::port::Port;

const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 0xa0], [2, 0, 0, 0, 0, 0xb0], [2, 0, 0, 0, 0, 0xc0]];
/// Stations behind the ports.
const THEIRS: [[u8; 6]; 3] = [[2, 0, 0, 0, 1, 0xa1], [2, 0, 0, 0, 1, 0xb1], [2, 0, 0, 0, 1, 0xc1]];
const NETS: [&[&str]; 3] =
    [&["10.0.0.1/24", "2001:db8:a::1/64"], &["10.0.1.1/24", "2001:db8:b::1/64"], &["10.0.2.1/24"]];

struct Rig {
    router: Arc<Router>,
    ports: Vec<Arc<Port>>,
    context: RouterContext,
    rewrites: RewriteBuffer,
    verdicts: Verdicts,
    now: Now,
    arena: Arena,
    _file: CounterFile,
}

/// What became of a batch: of each frame its port or the name of its drop, the heads, and what was made.
struct Done {
    went: Vec<Result<u16, &'static str>>,
    heads: Vec<Vec<u8>>,
    made: Vec<(u16, Vec<u8>)>,
}

fn member(port: &Arc<Port>, index: usize) -> Member {
    let addresses = NETS[index].iter().map(|net| net.parse().unwrap()).collect();
    Member { port: Arc::clone(port), mac: MACS[index], addresses, control: None, rpf: Rpf::Off }
}

fn net(text: &str) -> Net {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(prefix: &str, target: Target) -> Static {
    Static { prefix: net(prefix), target }
}

fn via(prefix: &str, gateways: &[&str]) -> Static {
    route(prefix, Target::Via(gateways.iter().map(|it| ip(it)).collect(), None))
}

impl Rig {
    fn new(routes: &[Static]) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |id: u16| {
            let name = format!("p{id}");
            let counters = file.open_slot(PortId(id), &name);
            Arc::new(Port::new(PortId(id), &name, counters, 1500).unwrap())
        };
        let ports: Vec<_> = (0..3).map(port).collect();
        let router = Arc::new(Router::new("r").unwrap());
        let members: Vec<_> = ports.iter().enumerate().map(|(i, port)| member(port, i)).collect();
        router.configure(&members, routes, 1);
        let context = RouterContext::new(&router);
        let now = Now { seconds: 100, epoch: Instant::now(), core: 0, sender: PortId(0) };
        let mut rig = Rig {
            router,
            ports,
            context,
            rewrites: RewriteBuffer::for_routers(1),
            verdicts: Verdicts::default(),
            now,
            arena: Arena::new(64, 2048),
            _file: file,
        };
        // Whoever is behind a port has spoken.
        for (i, (near, six)) in
            [("10.0.0.9", Some("2001:db8:a::9")), ("10.0.1.9", Some("2001:db8:b::9")), ("10.0.2.9", None)]
                .iter()
                .enumerate()
        {
            rig.know(i, ip(near), THEIRS[i]);
            six.iter().for_each(|it| rig.know(i, ip(it), THEIRS[i]));
        }
        rig
    }

    fn configure(&mut self, routes: &[Static]) {
        let members: Vec<_> = self.ports.iter().enumerate().map(|(i, port)| member(port, i)).collect();
        self.router.configure(&members, routes, self.now.seconds);
    }

    fn know(&mut self, port: usize, address: IpAddr, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let port = self.ports[port].id;
        self.router.neighbours.heard((port, port), net::number(address), mac, true, self.now.seconds);
    }

    fn send(&mut self, port: usize, frames: &[Vec<u8>]) -> Done {
        self.send_with(port, frames, crate::packet::Offload::NONE)
    }

    fn send_with(&mut self, port: usize, frames: &[Vec<u8>], offload: crate::packet::Offload) -> Done {
        let mut batch = Batch::new();
        for (slot, bytes) in frames.iter().enumerate() {
            let (frame, pieces) = batch.next_frame().unwrap();
            let near = bytes.len().min(HEAD);
            frame.head[..near].copy_from_slice(&bytes[..near]);
            (frame.len, frame.pieces) = (u32::try_from(bytes.len()).unwrap(), 0);
            frame.piece = u32::try_from(pieces.len()).unwrap();
            if bytes.len() > HEAD {
                assert!(pieces.push(self.arena.put(slot, bytes, HEAD)));
                frame.pieces = 1;
            }
            frame.offload = offload;
            batch.commit();
        }
        self.verdicts.clear();
        self.rewrites.clear();
        self.context.decide(&batch, &self.ports[port], &self.now, &mut self.rewrites, &mut self.verdicts);
        self.rewrites.rewrite(&mut batch);
        let mut went = BTreeMap::new();
        let mut picks = Vec::new();
        for id in &self.verdicts.used {
            self.verdicts.picks_alone(PortId(*id), &mut picks);
            picks.iter().for_each(|pick| assert!(went.insert(*pick, Ok(*id)).is_none(), "twice"));
        }
        for (frame, why) in &self.verdicts.drops {
            assert!(went.insert(*frame, Err(why.name())).is_none(), "twice");
        }
        assert_eq!(went.len(), batch.len(), "each frame has a verdict");
        let heads = batch.frames().iter().map(|frame| frame.head().to_vec()).collect();
        let (made, to) = self.rewrites.made();
        let whole = |frame: &Frame| {
            let mut bytes = vec![0; frame.len as usize];
            assert_eq!(made.read(frame, 0, &mut bytes), bytes.len());
            bytes
        };
        let made = made.frames().iter().zip(to).map(|(frame, to)| (to.0, whole(frame))).collect();
        Done { went: went.into_values().collect(), heads, made }
    }

    fn one(&mut self, port: usize, frame: &[u8]) -> Done {
        self.send(port, &[frame.to_vec()])
    }
}

/// An Ethernet frame from the station behind port `from` to the router.
fn ether(from: usize, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&MACS[from][..], &THEIRS[from], &ethertype.to_be_bytes(), payload].concat()
}

fn packet4(src: &str, dst: &str, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (ip(src), ip(dst)) else { panic!() };
    let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut header =
        [&[0x45, 0], &len[..], &[0, 1, 0x40, 0, ttl, protocol, 0, 0], &src.octets(), &dst.octets()].concat();
    let sum = Sum::of(&header).checksum().to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    [header, payload.to_vec()].concat()
}

fn packet6(src: &str, dst: &str, hops: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip(src), ip(dst)) else { panic!() };
    let len = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[0x60, 0, 0, 0], &len[..], &[next, hops], &src.octets(), &dst.octets(), payload].concat()
}

/// From behind port 0.
fn v4(dst: &str) -> Vec<u8> {
    ether(0, 0x0800, &packet4("10.0.0.9", dst, 64, 17, &[7; 30]))
}

fn v6(dst: &str) -> Vec<u8> {
    ether(0, 0x86dd, &packet6("2001:db8:a::9", dst, 64, 17, &[7; 30]))
}

fn icmp6(src: &str, dst: &str, hops: u8, mut message: Vec<u8>) -> Vec<u8> {
    let (IpAddr::V6(a), IpAddr::V6(b)) = (ip(src), ip(dst)) else { panic!() };
    let mut sum = Sum::pseudo(&a.octets(), &b.octets(), 58, message.len());
    message[2..4].fill(0);
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    packet6(src, dst, hops, 58, &message)
}

#[test]
fn a_frame_goes_on_with_new_stations_and_one_hop_less() {
    let mut rig = Rig::new(&[via("192.0.2.0/24", &["10.0.1.9"]), via("::/0", &["2001:db8:b::9"])]);
    let frames = [v4("10.0.1.9"), v4("192.0.2.77"), v6("2001:db8:b::9"), v6("2620::1")];
    let done = rig.send(0, &frames);
    assert_eq!(done.went, [Ok(1); 4]);
    for (head, before) in done.heads.iter().zip(&frames) {
        assert_eq!((&head[..6], &head[6..12]), (&THEIRS[1][..], &MACS[1][..]));
        if head[12] == 8 {
            assert_eq!((head[22], Sum::of(&head[14..34]).value()), (63, 0xffff));
            assert_eq!((&head[26..], &head[14..22]), (&before[26..], &before[14..22]));
        } else {
            assert_eq!((head[21], &head[22..], &head[14..21]), (63, &before[22..HEAD], &before[14..21]));
        }
    }
    assert!(done.made.is_empty());
    assert_eq!(
        rig.router
            .routes(100)
            .iter()
            .map(|it| it.hops.iter().map(|hop| hop.frames).sum::<u64>())
            .sum::<u64>(),
        2
    );
}

#[test]
fn what_no_router_passes_on_has_a_name() {
    let mut rig = Rig::new(&[via("0.0.0.0/0", &["10.0.1.9"])]);
    let bad = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = v4("192.0.2.1");
        change(&mut frame);
        frame
    };
    let from = |src| ether(0, 0x0800, &packet4(src, "192.0.2.1", 64, 17, &[0; 26]));
    let six = |src, dst| ether(0, 0x86dd, &packet6(src, dst, 64, 17, &[0; 26]));
    let table: Vec<(Vec<u8>, &str)> = vec![
        (bad(&|it| it.truncate(33)), "bad_header"),
        (bad(&|it| it[14] = 0x65), "bad_header"),
        (bad(&|it| it[14] = 0x44), "bad_header"),
        (bad(&|it| it[24] ^= 1), "bad_header"),
        (bad(&|it| it.truncate(50)), "bad_header"),
        (bad(&|it| it[0] = 6), "not_for_router"),
        (bad(&|it| it[12] = 0x81), "not_routed"),
        (bad(&|it| it[..6].fill(0xff)), "group_address"),
        (v4("224.0.0.5"), "group_address"),
        (v4("255.255.255.255"), "group_address"),
        (v4("10.0.1.255"), "group_address"),
        (v4("127.0.0.1"), "martian"),
        (v4("0.1.2.3"), "martian"),
        (v4("169.254.1.1"), "martian"),
        (from("10.0.1.1"), "martian"),
        (from("10.0.1.255"), "martian"),
        (from("127.0.0.1"), "martian"),
        (from("224.0.0.1"), "martian"),
        (from("0.0.0.0"), "martian"),
        (six("::", "2001:db8:b::9"), "martian"),
        (six("::1", "2001:db8:b::9"), "martian"),
        (six("ff02::1", "2001:db8:b::9"), "martian"),
        (six("2001:db8:b::1", "2001:db8:b::9"), "martian"),
        (six("::ffff:10.0.0.9", "2001:db8:b::9"), "martian"),
        (six("fe80::9", "2001:db8:b::9"), "martian"),
        (six("2001:db8:a::9", "fe80::7"), "martian"),
        (six("2001:db8:a::9", "ff0e::7"), "group_address"),
        (six("2001:db8:a::9", "2620::1"), "no_route"),
        (six("2001:db8:a::9", "2001:db8:b::9")[..60].to_vec(), "bad_header"),
    ];
    for (frame, why) in table {
        assert_eq!(rig.one(0, &frame).went, [Err(why)], "{frame:02x?}");
    }
    // Fragments that end behind the last byte that a packet can have, and one that ends with it.
    for (field, went) in [(0x1ffe_u16, Err("bad_header")), (0x3fff, Err("bad_header")), (0x1ff8, Ok(1))] {
        let mut packet = packet4("10.0.0.9", "192.0.2.1", 64, 17, &[0; 26]);
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        assert_eq!(rig.one(0, &ether(0, 0x0800, &packet)).went, [went], "{field:x}");
    }
}

#[test]
fn options_pass_but_for_source_routes() {
    let mut rig = Rig::new(&[]);
    let mut with = |options: &[u8]| {
        let plain = packet4("10.0.0.9", "10.0.1.9", 64, 17, &[1; 12]);
        let mut header = [&plain[..20], options].concat();
        header[0] = 0x45 + u8::try_from(options.len() / 4).unwrap();
        header[3] += u8::try_from(options.len()).unwrap();
        header[10..12].fill(0);
        let sum = Sum::of(&header).checksum().to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        let done = rig.one(0, &ether(0, 0x0800, &[&header[..], &plain[20..]].concat()));
        done.went[0]
    };
    assert_eq!(with(&[1, 1, 1, 0]), Ok(1));
    // A router alert, and a header that ends behind the head.
    assert_eq!((with(&[148, 4, 0, 0]), with(&[1; 40])), (Ok(1), Ok(1)));
    for bad in [&[131u8, 3, 4, 0][..], &[137, 3, 4, 0], &[1, 131, 3, 4]] {
        assert_eq!(with(bad), Err("source_route"));
    }
    for bad in [&[7u8, 1, 0, 0][..], &[7, 5, 0, 0], &[1, 1, 1, 7]] {
        assert_eq!(with(bad), Err("bad_header"));
    }
}

/// A header that ends behind the head: its sender changes it after it was judged, and its receiver gets what
/// was judged.
#[test]
fn what_was_judged_behind_the_head_goes_on() {
    let mut rig = Rig::new(&[]);
    let plain = packet4("10.0.0.9", "10.0.1.9", 64, 17, &[1; 30]);
    for (words, pieces) in [(13, 1), (14, 2), (15, 3)] {
        let mut header = [&plain[..20], &vec![1; 4 * words - 20][..]].concat();
        (header[0], header[3]) = (0x40 + u8::try_from(words).unwrap(), u8::try_from(4 * words + 30).unwrap());
        header[10..12].fill(0);
        let sum = Sum::of(&header).checksum().to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        let bytes = ether(0, 0x0800, &[&header[..], &plain[20..]].concat());
        let mut batch = Batch::new();
        // A frame before it, and its own bytes in several pieces.
        assert!(batch.push_short(&v4("10.0.1.9")));
        let (frame, list) = batch.next_frame().unwrap();
        frame.head.copy_from_slice(&bytes[..HEAD]);
        (frame.len, frame.pieces) = (u32::try_from(bytes.len()).unwrap(), pieces);
        (frame.piece, frame.offload) = (0, crate::packet::Offload::NONE);
        let mut body = rig.arena.put(0, &bytes, HEAD);
        for _ in 1..pieces {
            assert!(list.push(body.first(2)));
            body.advance(2);
        }
        assert!(list.push(body));
        batch.commit();
        rig.verdicts.clear();
        rig.rewrites.clear();
        rig.context.decide(&batch, &rig.ports[0], &rig.now, &mut rig.rewrites, &mut rig.verdicts);
        assert!(rig.verdicts.used == [1] && rig.verdicts.drops.is_empty());
        let mut other = bytes.clone();
        other[HEAD..].fill(131);
        rig.arena.put(0, &other, HEAD);
        rig.rewrites.rewrite(&mut batch);
        let frame = &batch.frames()[1];
        let mut got = vec![0; bytes.len()];
        assert_eq!(batch.read(frame, 0, &mut got), bytes.len());
        let end = 14 + 4 * words;
        assert_eq!(got[34..end], bytes[34..end], "{words} words");
        assert_eq!(got[end..], other[end..], "what was not judged is the sender's");
    }
}

#[test]
fn flows_stay_on_their_hop_and_share_several() {
    let mut rig = Rig::new(&[via("0.0.0.0/0", &["10.0.1.9", "10.0.2.9"])]);
    let sinks: Vec<_> = [1, 2].map(|i| rig.ports[i].lend(0, Hole)).into();
    let flow = |n: u16| {
        let udp = [&(1000 + n).to_be_bytes()[..], &[0, 9, 0, 38, 0, 0], &[0; 30]].concat();
        ether(0, 0x0800, &packet4("10.0.0.9", "203.0.113.1", 64, 17, &udp))
    };
    let frames: Vec<_> = (0..60).map(flow).collect();
    let first = rig.send(0, &frames).went;
    assert_eq!(rig.send(0, &frames).went, first);
    let on = |port| first.iter().filter(|went| **went == Ok(port)).count();
    assert!(on(1) > 15 && on(2) > 15 && on(1) + on(2) == 60, "{} {}", on(1), on(2));
    // A hop without a link leaves its flows to the other.
    drop(sinks);
    let _one = rig.ports[1].lend(0, Hole);
    assert!(rig.send(0, &frames).went.iter().all(|went| *went == Ok(1)));
}

/// A receiver that takes everything.
struct Hole;

impl crate::port::EgressQueue for Hole {
    fn send(&mut self, _: &Batch, picks: &[u16], outcome: &mut crate::observe::account::Outcome) {
        picks.iter().for_each(|_| outcome.delivered(60));
    }
}

#[test]
fn routes_change_while_frames_pass_and_numbers_are_used_again() {
    let mut rig = Rig::new(&[via("0.0.0.0/0", &["10.0.1.9"])]);
    assert_eq!(rig.one(0, &v4("203.0.113.1")).went, [Ok(1)]);
    for round in 0..50 {
        let (gateway, port) = if round % 2 == 0 { ("10.0.2.9", 2) } else { ("10.0.1.9", 1) };
        rig.configure(&[via("0.0.0.0/0", &[gateway]), route("203.0.113.128/25", Target::Blackhole)]);
        assert_eq!(rig.one(0, &v4("203.0.113.1")).went, [Ok(port)]);
        assert_eq!(rig.one(0, &v4("203.0.113.129")).went, [Err("blackhole")]);
        rig.configure(&[via("0.0.0.0/0", &[gateway])]);
        assert_eq!(rig.one(0, &v4("203.0.113.129")).went, [Ok(port)]);
    }
    let count = rig.router.control().groups.list().len();
    assert!(count < 16, "{count}");
    rig.configure(&[]);
    assert_eq!(rig.one(0, &v4("203.0.113.1")).went, [Err("no_route")]);
}

#[test]
fn it_explains_what_it_does_and_why_not_otherwise() {
    let mut rig = Rig::new(&[
        via("10.0.0.0/8", &["10.0.1.9"]),
        via("10.1.0.0/16", &["172.16.0.1"]),
        route("10.1.2.0/24", Target::Prohibit),
        via("10.1.3.0/24", &["10.0.1.9", "10.0.2.9"]),
    ]);
    let it = rig.router.explain(ip("10.1.3.4"), Some(PortId(0)), 100);
    assert_eq!(
        (it.action.as_str(), it.route, it.from.as_deref()),
        ("forward", Some(net("10.1.3.0/24")), Some("p0"))
    );
    assert_eq!(it.hops.iter().map(|hop| hop.port.as_str()).collect::<Vec<_>>(), ["p1", "p2"]);
    assert_eq!(
        it.shorter.iter().map(|other| other.prefix).collect::<Vec<_>>(),
        [net("10.1.0.0/16"), net("10.0.0.0/8")]
    );
    assert!(it.shorter[0].why.contains("172.16.0.1 is on no port's network"), "{:?}", it.shorter);
    let it = rig.router.explain(ip("10.1.2.4"), None, 100);
    assert_eq!((it.action.as_str(), it.why.as_deref()), ("drop", Some("prohibit")));
    assert_eq!(rig.router.explain(ip("10.0.1.1"), None, 100).action, "answer");
    let it = rig.router.explain(ip("10.0.1.9"), None, 100);
    assert_eq!(
        (it.hops[0].mac, it.source_mac),
        (Some(crate::packet::Mac(THEIRS[1])), Some(crate::packet::Mac(MACS[1])))
    );
    assert_eq!(rig.router.explain(ip("8.8.8.8"), None, 100).why.as_deref(), Some("no_route"));
    assert_eq!(rig.router.explain(ip("ff02::1"), None, 100).why.as_deref(), Some("group_address"));
    assert_eq!(rig.router.explain(ip("fe80::1"), None, 100).why.as_deref(), Some("martian"));
    let idle: Vec<_> =
        rig.router.routes(100).into_iter().filter(|it| it.idle.is_some()).map(|it| it.prefix).collect();
    assert_eq!(idle, [net("10.1.0.0/16")]);
    // Its port goes, and the route with it.
    rig.ports.pop();
    rig.configure(&[via("10.1.3.0/24", &["10.0.1.9", "10.0.2.9"])]);
    assert_eq!(rig.router.explain(ip("10.1.3.4"), None, 100).why.as_deref(), Some("no_route"));
}

proptest! {
    /// Whatever comes, each frame has one verdict, and only what is whole goes on.
    #[test]
    fn any_bytes_have_a_verdict(
        frames in prop::collection::vec((0u8..6, prop::collection::vec(any::<u8>(), 14..200), any::<u16>()), 1..20)
    ) {
        let mut rig = Rig::new(&[via("0.0.0.0/0", &["10.0.1.9"]), via("::/0", &["2001:db8:b::9"])]);
        let frame = |(kind, bytes, change): (u8, Vec<u8>, u16)| {
            let mut frame = match kind {
                0 => bytes,
                1 => ether(0, 0x0800, &bytes),
                2 => ether(0, 0x86dd, &bytes),
                3 => ether(0, 0x0806, &bytes),
                4 => [v4("203.0.113.1"), bytes].concat(),
                _ => [v6("2620::1"), bytes].concat(),
            };
            let at = usize::from(change >> 8) % frame.len();
            frame[at] ^= (change & 0xff) as u8;
            frame
        };
        let frames: Vec<_> = frames.into_iter().map(frame).collect();
        let done = rig.send(0, &frames);
        for (frame, went) in frames.iter().zip(&done.went) {
            if *went == Ok(1) {
                prop_assert!(frame[..6] == MACS[0] && (frame[14] >> 4 == 4 || frame[14] >> 4 == 6));
            }
        }
    }
}

/// A UDP packet, which is no answer to anything.
fn plain(from: usize, src: &str, dst: &str) -> Vec<u8> {
    ether(from, IPV4, &packet4(src, dst, 64, 17, &[0x5a; 26]))
}

fn hop(link: u32, gateway: &str) -> Object {
    Object::Hop(FedHop { link, gateway: Some(ip(gateway)) })
}

fn links() -> BTreeMap<u32, String> {
    (0..3).map(|i| (10 + i, format!("p{i}"))).collect()
}

/// Where one packet to `to` goes that comes by the first port.
fn goes(rig: &mut Rig, to: &str) -> Result<u16, &'static str> {
    let frame = plain(0, "10.0.0.9", to);
    rig.send(0, &[frame]).went[0]
}

#[test]
fn what_is_for_the_router_goes_to_its_control_plane_within_limits() {
    let mut rig = Rig::new(&[]);
    let mut members: Vec<_> = rig.ports.iter().enumerate().map(|(i, port)| member(port, i)).collect();
    members[0].control = Some(PortId(9));
    rig.router.configure(&members, &[], 1);
    let bgp = |dst: &str| {
        let tcp = [&[0x9c, 0x40, 0, 179][..], &[0; 16]].concat();
        ether(0, IPV4, &packet4("10.0.0.9", dst, 1, 6, &tcp))
    };
    let done = rig.send(0, &[bgp("10.0.0.1"), bgp("10.0.1.1")]);
    assert_eq!(done.went, [Ok(9), Ok(9)], "to any address of the router, and with a TTL of 1");
    assert_eq!(done.heads[0], bgp("10.0.0.1")[..done.heads[0].len()], "as it came");
    let mut hello = plain(0, "10.0.0.9", "224.0.0.5");
    hello[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 5]);
    let mut far = plain(0, "10.0.0.9", "224.0.1.5");
    far[..6].copy_from_slice(&[1, 0, 0x5e, 0, 1, 5]);
    assert_eq!(rig.send(0, &[hello, far]).went, [Ok(9), Err("group_address")]);
    // A flood of something else takes nothing from it, and a port without a control plane keeps to itself.
    let flood: Vec<_> = (0..32).map(|_| plain(0, "10.0.0.9", "10.0.0.1")).collect();
    let went: Vec<_> = (0..20).flat_map(|_| rig.send(0, &flood).went).collect();
    assert!(went.contains(&Err("punt_limit")) && went.contains(&Ok(9)), "{went:?}");
    assert_eq!(rig.send(0, &[bgp("10.0.0.1")]).went, [Ok(9)]);
    assert!(rig.router.punted().iter().any(|it| it.class == "other" && it.refused > 0));
    let other = plain(1, "10.0.1.9", "10.0.1.1");
    assert_eq!(rig.send(1, &[other]).went, [Err("to_router")]);
}

/// A plan may have as many groups as the control plane says ways: to end one takes long, and no core does it.
#[test]
fn a_plan_that_a_core_gives_up_is_ended_by_the_control_plane() {
    let router = Arc::new(Router::new("r").unwrap());
    let mut context = RouterContext::new(&router);
    let old = Arc::downgrade(&context.plan);
    router.set_links(BTreeMap::from([(7, "x".to_owned())]), 1);
    context.renew();
    assert!(old.upgrade().is_some(), "the core has ended it");
    router.tidy(1);
    assert!(old.upgrade().is_none(), "nobody has ended it");
}
