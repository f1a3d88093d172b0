//! Tunnels over the loopback interface: what goes into one end comes out of the other, and what must not come
//! in is named.
//!
//! Invariant: options of sockets are set from values that live as long as the call.

use std::net::UdpSocket;

use proptest::prelude::*;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::gro::join;
use super::*;
use crate::mem::Arena;
use crate::packet::{Batch, Gso, Offload, Offloads, Plan, Sum, HEAD, MAX_HEADER};
use crate::port::{DropReason, EgressQueue, IngressQueue, Outcome, Tally};

/// A station of the test.
fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    bytes.extend((14..len).map(|n| u8::try_from(n % 251).unwrap()));
    bytes
}

/// One end of a tunnel at 127.0.0.`host`.
struct End {
    ingress: VxlanIngress,
    egress: VxlanEgress,
    underlay: Arc<Underlay>,
    vteps: Arc<Vteps>,
    vni: u32,
}

impl End {
    fn new(host: u8, port: u16, vni: u32, peers: &[u8]) -> End {
        End::of(host, port, vni, Some(peers.iter().map(|peer| at(*peer)).collect()))
    }

    fn of(host: u8, port: u16, vni: u32, peers: Option<Vec<IpAddr>>) -> End {
        End::at(SocketAddr::new(at(host), port), vni, peers)
    }

    fn at(at: SocketAddr, vni: u32, peers: Option<Vec<IpAddr>>) -> End {
        let config = VxlanConfig { at, vni, peers, ttl: 64, dscp: 0 };
        let vteps = Arc::new(Vteps::new(config.peers.as_deref()));
        let underlay = Underlay::join(at, vni, &vteps).unwrap();
        let sources = (0..SOURCES).map(|_| source(&config).unwrap()).collect();
        End {
            ingress: VxlanIngress::new(Arc::clone(&underlay), Arc::clone(&vteps), vni),
            egress: VxlanEgress::new(sources, Arc::clone(&vteps), at.port(), vni),
            underlay,
            vteps,
            vni,
        }
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> Outcome {
        let mut arena = Arena::new(frames.len(), 2048);
        let mut batch = Batch::new();
        for (slot, bytes) in frames.iter().enumerate() {
            let piece = (bytes.len() > HEAD).then(|| arena.put(slot, bytes, HEAD));
            let pushed = batch.push_with(&bytes[..bytes.len().min(HEAD)], bytes.len(), Offload::NONE, |to| {
                piece.is_none_or(|piece| to.push(piece))
            });
            assert!(pushed);
        }
        let mut outcome = Outcome::new();
        let picks: Vec<u16> = (0..).take(frames.len()).collect();
        self.egress.send(&batch, &picks, &mut outcome);
        outcome
    }

    /// What comes in until there are `count` frames or drops.
    fn receive(&mut self, count: usize) -> (Vec<Vec<u8>>, Tally) {
        let (mut got, mut all) = (Vec::new(), Tally::default());
        while all.frames < count as u64 {
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            let waits = self.ingress.want_kicks(true);
            let fd = self.ingress.kick_fd().unwrap();
            assert!(waits || poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap() == 1);
            let (mut batch, mut tally) = (Batch::new(), Tally::default());
            self.ingress.fetch(&mut batch, &mut tally);
            for frame in batch.frames() {
                let mut bytes = vec![0; frame.len as usize];
                assert_eq!(batch.read(frame, 0, &mut bytes), bytes.len());
                got.push(bytes);
            }
            self.ingress.release(&mut tally);
            all.frames += tally.frames;
            all.drops.merge(&tally.drops);
        }
        (got, all)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.underlay.leave(self.vni);
    }
}

fn at(host: u8) -> IpAddr {
    [127, 0, 0, host].into()
}

fn dropped(tally: &Tally, why: DropReason) -> u32 {
    tally.drops.counts[why as usize]
}

#[test]
fn addresses_as_people_write_them() {
    let said = |text| address(text).map(|at| at.to_string()).unwrap_or_default();
    assert_eq!(said("10.0.0.1"), "10.0.0.1:4789");
    assert_eq!(said("10.0.0.1:8472"), "10.0.0.1:8472");
    assert_eq!(said("[2001:db8::1]"), "[2001:db8::1]:4789");
    assert_eq!(said("[2001:db8::1]:1"), "[2001:db8::1]:1");
    for bad in ["", "eth0", "0.0.0.0", "[::]", "224.0.0.1", "10.0.0.1:0", "10.0.0.1/24"] {
        assert!(address(bad).unwrap_err().contains("192.0.2.1"), "{bad}");
    }
}

#[test]
fn frames_come_out_as_they_went_in_and_stations_are_learned() {
    let (mut a, mut b) = (End::new(11, 14789, 7, &[12, 13]), End::new(12, 14789, 7, &[11]));
    let mut c = End::new(13, 14789, 7, &[11]);
    let all: Vec<_> = [14, 60, 64, 65, 1000, 1514].map(|len| frame([0xff; 6], mac(1), len)).to_vec();
    assert_eq!(a.send(&all).frames, 6);
    assert_eq!((b.receive(6).0, c.receive(6).0), (all.clone(), all));
    // Each of them knows where it is now, and the answer goes there alone.
    let answers: Vec<_> = (0..200).map(|n| frame(mac(1), mac(2), 60 + n % 7)).collect();
    assert_eq!(b.send(&answers).frames, 200);
    assert_eq!(a.receive(200).0, answers);
    let question = vec![frame(mac(2), mac(1), 100)];
    a.send(&question);
    a.send(&[frame([0xff; 6], mac(3), 99)]);
    assert_eq!(b.receive(2).0[0], question[0]);
    assert_eq!(c.receive(1).0, [frame([0xff; 6], mac(3), 99)]);
    assert_eq!(a.vteps.counts(), (2, 1));
    // One without others has nowhere to send to.
    let mut alone = End::new(14, 14789, 7, &[]);
    assert_eq!(alone.send(&question).drops.counts[DropReason::NoDestination as usize], 1);
}

#[test]
fn each_network_gets_its_own_and_strangers_are_named() {
    let (mut a, mut red, mut blue) =
        (End::new(21, 24789, 1, &[22]), End::new(22, 24789, 1, &[21]), End::new(22, 24789, 2, &[23]));
    let same = Vteps::new(None);
    assert!(Underlay::join(SocketAddr::from(([127, 0, 0, 22], 24789)), 2, &Arc::new(same)).is_err());
    let raw = UdpSocket::bind("127.0.0.23:0").unwrap();
    let datagram = |flags: u8, vni: u8, len: usize| {
        [&[flags, 0, 0, 0, 0, 0, vni, 0], &frame([0xff; 6], mac(9), 80)[..len]].concat()
    };
    let strange = [(8, 2, 80), (8, 1, 80), (8, 3, 80), (0, 2, 80), (0x48, 2, 80), (8, 2, 13), (8, 2, 0)]
        .map(|(f, v, n)| datagram(f, v, n));
    for bytes in strange.iter().map(Vec::as_slice).chain([&[8u8, 0, 0][..], &[]]) {
        raw.send_to(bytes, "127.0.0.22:24789").unwrap();
    }
    a.send(&[frame(mac(4), mac(5), 70)]);
    // Reserved bits mean nothing (RFC 7348 §5). What is nobody's is dropped at the one with the lowest VNI,
    // also when another receives.
    let (got, tally) = blue.receive(4);
    assert_eq!(got, [frame([0xff; 6], mac(9), 80), frame([0xff; 6], mac(9), 80)]);
    assert_eq!((dropped(&tally, DropReason::TooShort), tally.frames), (2, 4));
    let (got, tally) = red.receive(2 + 1 + 3);
    assert_eq!(got, [frame(mac(4), mac(5), 70)]);
    let of = |why| dropped(&tally, why);
    assert_eq!((of(DropReason::VxlanPeer), of(DropReason::VxlanVni), of(DropReason::VxlanHeader)), (1, 1, 3));
}

/// A question by ARP: the station `from` with the address 10.0.0.`own` asks for 10.0.0.`whom`.
fn arp(from: u8, own: [u8; 4], whom: [u8; 4], operation: u8) -> Vec<u8> {
    let fixed = [8, 6, 0, 1, 8, 0, 6, 4, 0, operation];
    [&[0xff; 6][..], &mac(from), &fixed, &mac(from), &own, &[0; 6], &whom, &[0; 18]].concat()
}

/// A neighbour solicitation (RFC 4861 §4.3).
fn solicit(from: u8, own: u8, whom: u8) -> Vec<u8> {
    let address = |n: u8| [&[0xfd][..], &[0; 14], &[n]].concat();
    let own = if own == 0 { vec![0; 16] } else { address(own) };
    let (group, option) = ([0x33, 0x33, 0xff, 0, 0, whom], [&[1, 1][..], &mac(from)].concat());
    let ip = [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &own, &[0xff; 16]].concat();
    let icmp = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address(whom), &option].concat();
    [&group[..], &mac(from), &[0x86, 0xdd], &ip, &icmp].concat()
}

#[test]
fn who_asks_for_an_address_that_is_known_asks_one_endpoint() {
    let mut a = End::of(41, 44789, 7, None);
    let (mut b, mut c) = (End::new(42, 44789, 7, &[41]), End::new(43, 44789, 7, &[41]));
    assert!(
        a.vteps.flood(&[at(42), at(43)]) && a.vteps.put(u64::from_le_bytes([2, 0, 0, 0, 0, 2, 0, 0]), at(42))
    );
    let two = Some(u64::from_le_bytes([2, 0, 0, 0, 0, 2, 0, 0]));
    a.vteps.resolve([10, 0, 0, 2].into(), two);
    a.vteps.resolve("fd00::2".parse().unwrap(), two);
    // The control plane has told of this address, and not where its station is.
    a.vteps.resolve([10, 0, 0, 3].into(), Some(77));
    let ip = |n| [10, 0, 0, n];
    let known = [arp(1, ip(1), ip(2), 1), solicit(1, 1, 2), arp(1, [0; 4], ip(2), 1), solicit(1, 0, 2)];
    let all = [
        arp(1, ip(1), ip(3), 1),
        arp(1, ip(1), ip(4), 1),
        solicit(1, 1, 4),
        // What is said to all: a station's own address, also where another has it, and an answer.
        arp(2, ip(2), ip(2), 1),
        arp(2, ip(1), ip(2), 1),
        arp(1, ip(1), ip(2), 2),
    ];
    a.send(&known);
    a.send(&all);
    let mut got = b.receive(known.len() + all.len()).0;
    got.sort();
    let mut both = [&known[..], &all].concat();
    both.sort();
    assert_eq!(got, both);
    let (mut got, mut all) = (c.receive(all.len()).0, all.to_vec());
    got.sort();
    all.sort();
    assert_eq!(got, all);
    // The last one to say so has an address; one without says nothing.
    let here = |is_here: fn(u64) -> bool| {
        let mut all: Vec<_> = a.vteps.addresses(is_here).into_iter().map(|it| it.0.to_string()).collect();
        all.sort();
        all
    };
    assert_eq!(here(|_| true), ["10.0.0.1", "10.0.0.2", "fd00::1"]);
    assert_eq!(here(|mac| Some(mac) == Some(u64::from_le_bytes([2, 0, 0, 0, 0, 2, 0, 0]))), ["10.0.0.2"]);
    assert!(here(|_| true).len() == 1 && a.vteps.news() > 2);
    a.vteps.resolve([10, 0, 0, 2].into(), None);
    a.send(&known[..1]);
    assert_eq!(c.receive(1).0, known[..1]);
}

/// As many limited networks as would hold all slots, were each to hold as much as it could alone.
#[test]
fn many_networks_that_do_not_read_stop_no_other() {
    let mut senders: Vec<_> = (1..=9).map(|vni| End::new(33, 33789, vni, &[34])).collect();
    let mut networks: Vec<_> = (1..=9).map(|vni| End::new(34, 33789, vni, &[33])).collect();
    let many: Vec<_> = (0..100).map(|n| frame(mac(1), mac(2), 60 + n % 2)).collect();
    let (mut ninth, mut from) = (networks.pop().unwrap(), senders.pop().unwrap());
    for round in 0..3 {
        for sender in &mut senders {
            sender.send(&many);
        }
        from.send(&many);
        assert_eq!(ninth.receive(100).0, many, "{round}");
        // What they have taken and not forwarded they hold as well.
        for network in &mut networks {
            network.ingress.fetch(&mut Batch::new(), &mut Tally::default());
        }
    }
    for network in &mut networks {
        network.ingress.release(&mut Tally::default());
    }
    senders[0].send(&many[..20]);
    assert!(networks[0].receive(20).0.ends_with(&many[..20]));
}

/// RFC 7348 §5, RFC 6935 §5: whoever sends none is heard, as with IPv4.
#[test]
fn datagrams_over_ipv6_need_no_checksum() {
    const UDP_NO_CHECK6_TX: c_int = 101;
    let own: SocketAddr = "[::1]:36789".parse().unwrap();
    let mut end = End::at(own, 7, Some(vec![own.ip()]));
    let raw = UdpSocket::bind("[::1]:0").unwrap();
    let fd = OwnedFd::from(raw.try_clone().unwrap());
    // SAFETY: the option takes an int.
    unsafe { set_option(&fd, libc::SOL_UDP, UDP_NO_CHECK6_TX, &1i32) }.unwrap();
    let sent = frame(mac(1), mac(2), 90);
    raw.send_to(&[&[8, 0, 0, 0, 0, 0, 7, 0], &sent[..]].concat(), own).unwrap();
    assert_eq!(end.receive(1).0, [sent]);
}

/// An IP packet with this ECN field, behind as many tags.
fn with_ecn(v6: bool, tags: usize, ecn: u8) -> Vec<u8> {
    let mut bytes = segment(v6, 1, 0x10, b"payload");
    match v6 {
        false => bytes[15] |= ecn,
        true => bytes[15] |= ecn << 4,
    }
    if !v6 {
        bytes[24..26].fill(0);
        let sum = Sum::of(&bytes[14..34]).checksum();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    (0..tags).for_each(|_| drop(bytes.splice(12..12, [0x81, 0, 0, 10])));
    bytes
}

/// RFC 6040 §4.2: what a router between the endpoints has marked.
#[test]
fn congestion_in_the_tunnel_reaches_who_can_answer_to_it() {
    let [none, ect_1, ect_0, ce]: [u8; 4] = [0, 1, 2, 3];
    let mut end = End::new(37, 37789, 7, &[38]);
    let raw = UdpSocket::bind("127.0.0.38:0").unwrap();
    let fd = OwnedFd::from(raw.try_clone().unwrap());
    // By the inner field, and then by the outer one.
    let table = [
        (none, [none, none, none, none]),
        (ect_1, [ect_1, ect_1, ect_1, ce]),
        (ect_0, [ect_0, ect_1, ect_0, ce]),
        (ce, [ce; 4]),
    ];
    let mut lost = 0;
    for (v6, tags, outer) in (0..16u8).map(|n| (n & 1 > 0, usize::from(n >> 1 & 1), n >> 2)) {
        // SAFETY: the option takes an int.
        unsafe { set_option(&fd, libc::IPPROTO_IP, libc::IP_TOS, &c_int::from(outer)) }.unwrap();
        for (inner, becomes) in table {
            let bytes = [&[8, 0, 0, 0, 0, 0, 7, 0], &with_ecn(v6, tags, inner)[..]].concat();
            raw.send_to(&bytes, "127.0.0.37:37789").unwrap();
            let (got, tally) = end.receive(1);
            if (inner, outer) == (none, ce) {
                assert_eq!((got, dropped(&tally, DropReason::VxlanEcn)), (vec![], 1));
                lost += 1;
                continue;
            }
            assert_eq!(got, [with_ecn(v6, tags, becomes[usize::from(outer)])], "{inner} in {outer}");
        }
    }
    assert_eq!(lost, 4);
    // What is no IP says nothing of it, and passes.
    raw.send_to(&[&[8, 0, 0, 0, 0, 0, 7, 0], &frame(mac(1), mac(2), 60)[..]].concat(), "127.0.0.37:37789")
        .unwrap();
    assert_eq!(end.receive(1).0, [frame(mac(1), mac(2), 60)]);
}

/// RFC 7348 says nothing of tags inside; with `trunk` a station is where it is in its VLAN.
#[test]
fn a_station_may_be_elsewhere_in_another_vlan() {
    let tagged = |to: u8, from: u8, vlan: u8| {
        [&mac(to)[..], &mac(from), &[0x81, 0, 0x40, vlan, 0x88, 0xb5], &[0; 60]].concat()
    };
    let mut a = End::new(51, 51789, 7, &[52, 53]);
    let (mut b, mut c) = (End::new(52, 51789, 7, &[51]), End::new(53, 51789, 7, &[51]));
    b.send(&[tagged(1, 9, 10)]);
    c.send(&[tagged(1, 9, 20)]);
    a.receive(2);
    assert_eq!(a.vteps.counts().1, 2);
    a.send(&[tagged(9, 1, 10), tagged(9, 1, 20), tagged(9, 1, 30)]);
    assert_eq!(b.receive(2).0, [tagged(9, 1, 10), tagged(9, 1, 30)]);
    assert_eq!(c.receive(2).0, [tagged(9, 1, 20), tagged(9, 1, 30)]);
}

/// What one network leaves unread stops no other, and is counted once there are too many.
#[test]
fn a_network_that_does_not_read_stops_no_other() {
    let (mut one, mut two) = (End::new(31, 34789, 1, &[32]), End::new(31, 34789, 2, &[32]));
    let (mut red, mut blue) = (End::new(32, 34789, 1, &[31]), End::new(32, 34789, 2, &[31]));
    // Frames of two lengths in turn: each is a datagram of its own.
    let many: Vec<_> = (0..200).map(|n| frame(mac(1), mac(2), 60 + n % 2)).collect();
    for _ in 0..4 {
        one.send(&many);
        two.send(&many[..100]);
        assert_eq!(blue.receive(100).0, many[..100]);
    }
    let (got, tally) = red.receive(800);
    assert_eq!(got.len() + dropped(&tally, DropReason::HostOverrun) as usize, 800);
    assert!(got.len() >= 100, "{}", got.len());
    one.send(&many);
    assert_eq!(red.receive(200).0, many);
}

/// A TCP segment over IPv4 or IPv6.
fn segment(v6: bool, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut tcp =
        [&[0, 80, 1, 2][..], &sequence.to_be_bytes(), &[0, 0, 0, 9, 0x80, flags, 1, 0, 0, 0, 0, 0]].concat();
    tcp.extend_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    tcp.extend_from_slice(payload);
    let len = u16::try_from(tcp.len()).unwrap();
    let (ether, ip, addresses) = match v6 {
        true => {
            let addresses = [[7; 16], [9; 16]].concat();
            let ip = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[6, 64], &addresses].concat();
            ([0x86, 0xdd], ip, addresses)
        }
        false => {
            let addresses = vec![10, 0, 0, 1, 10, 0, 0, 2];
            let fixed =
                [&[0x45, 0][..], &(len + 20).to_be_bytes(), &[0, 0, 0x40, 0, 64, 6, 0, 0], &addresses];
            let mut ip = fixed.concat();
            let sum = Sum::of(&ip).checksum();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ([8, 0], ip, addresses)
        }
    };
    let (src, dst) = addresses.split_at(addresses.len() / 2);
    let mut sum = Sum::pseudo(src, dst, 6, tcp.len());
    sum.add(&tcp);
    tcp[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
    [&mac(1)[..], &mac(2), &ether, &ip, &tcp].concat()
}

/// The segments of a frame, as the graph makes them.
fn cut(frame: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let head = frame[..offload.header_bound(frame.len())].to_vec();
    let plan = Plan::new(&head, frame.len(), offload, 0).unwrap();
    let one = |index| {
        let mut header = [0; MAX_HEADER];
        let segment = plan.segment(index, &mut header).unwrap();
        segment.seal(&mut header, Sum::of(&frame[segment.summed.clone()]));
        [&header[..segment.header_len], &frame[segment.payload.clone()]].concat()
    };
    (0..plan.count).map(one).collect()
}

proptest! {
    /// What is joined, cut again, is what it was; and nothing is joined that a sender's card would not have
    /// cut.
    #[test]
    fn streams_are_joined_and_cut_again(
        v6 in any::<bool>(), size in 1usize..1400, count in 1usize..60, last in 1usize..1400, odd in 0usize..60, what in 0u8..8,
    ) {
        let mut sequence = 0xffff_f000u32;
        let mut frames = Vec::new();
        for n in 0..count {
            let len = if n + 1 == count { last.min(size) } else { size };
            let payload: Vec<u8> = (0..len).map(|at| u8::try_from((at * 7 + n) % 251).unwrap()).collect();
            let flags = if n + 1 == count { 0x18 } else { 0x10 };
            frames.push(segment(v6, sequence, flags, &payload));
            sequence = sequence.wrapping_add(u32::try_from(len).unwrap());
        }
        // One that does not belong, or that is broken.
        let l4 = if v6 { 54 } else { 34 };
        let spoilt = (odd < count).then_some(odd);
        if let Some(at) = spoilt {
            let end = frames[at].len() - 1;
            match what {
                0 => frames[at][end] ^= 1,
                1 => frames[at][l4 + 7] ^= 1,
                2 => frames[at][0] ^= 4,
                3 => frames[at].push(0),
                4 => frames[at].truncate(end),
                5 => frames[at][l4 + 13] |= 2,
                6 => frames[at][16] ^= 1,
                _ => frames[at][l4 + 16] ^= 1,
            }
        }
        // What the one frame must be: whole segments of one stream up to that.
        let expected = spoilt.unwrap_or(count);
        let most = |n: usize| frames[..n].iter().map(|it| it.len()).sum::<usize>() - (n - 1) * (l4 + 32) <= 65_535;
        let expected = (0..=expected).rev().find(|n| *n < 2 || most(*n)).unwrap();
        let joined = join(frames.iter().map(Vec::as_slice));
        // A changed address that the checksum does not cover leaves a first frame good.
        let first_is_other = spoilt == Some(0) && what == 2;
        match joined {
            None => prop_assert!(expected < 2),
            Some(joined) => {
                prop_assert!(!first_is_other);
                prop_assert_eq!(joined.count, expected);
                let mut whole = frames[0].clone();
                frames[1..joined.count].iter().for_each(|it| whole.extend_from_slice(&it[joined.payload..]));
                prop_assert_eq!(whole.len(), joined.len);
                for (at, pair) in joined.patches {
                    whole[at..at + 2].copy_from_slice(&pair);
                }
                let facts = joined.offload.check(&whole[..HEAD.min(whole.len())], whole.len(), Offloads::ALL);
                let facts = facts.unwrap();
                prop_assert_eq!(facts.gso, if v6 { Gso::Tcp6 } else { Gso::Tcp4 });
                let cut = cut(&whole, facts);
                let same = |(a, b): (&Vec<u8>, &Vec<u8>)| {
                    // Numbers of IPv4 packets go up with each, which says nothing where they may not be cut.
                    let blank = |it: &Vec<u8>| { let mut it = it.clone(); if !v6 { it[18..20].fill(0); it[24..26].fill(0); } it };
                    blank(a) == blank(b)
                };
                prop_assert_eq!(cut.len(), joined.count);
                prop_assert!(cut.iter().zip(&frames).all(same));
            }
        }
    }
}
