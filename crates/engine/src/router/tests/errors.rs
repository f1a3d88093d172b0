//! What senders are told, and what is cut for a smaller MTU.

use super::*;
use crate::packet::{Gso, Offload};

/// The message in an error that was made for the station behind port 0, checked.
fn told(done: &Done, v6: bool) -> (u8, u8, u32, Vec<u8>) {
    let [(0, frame)] = &done.made[..] else { panic!("{:?}", done.made) };
    assert_eq!((&frame[..6], &frame[6..12]), (&THEIRS[0][..], &MACS[0][..]));
    let message = if v6 {
        let mut sum = Sum::pseudo(&frame[22..38], &frame[38..54], 58, frame.len() - 54);
        sum.add(&frame[54..]);
        assert_eq!(sum.value(), 0xffff);
        assert_eq!(frame[20..22], [58, 64]);
        &frame[54..]
    } else {
        assert_eq!((Sum::of(&frame[14..34]).value(), Sum::of(&frame[34..]).value()), (0xffff, 0xffff));
        assert_eq!((&frame[26..30], &frame[30..34]), (&[10, 0, 0, 1][..], &[10, 0, 0, 9][..]));
        assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), frame.len() - 14);
        &frame[34..]
    };
    (message[0], message[1], u32::from_be_bytes(message[4..8].try_into().unwrap()), message[8..].to_vec())
}

#[test]
fn senders_are_told_what_became_of_their_packets() {
    let all = [
        route("192.0.2.0/26", Target::Unreachable),
        route("192.0.2.64/26", Target::Prohibit),
        route("192.0.2.128/26", Target::Blackhole),
        route("2620:1::/32", Target::Unreachable),
        route("2620:2::/32", Target::Prohibit),
    ];
    let mut rig = Rig::new(&all);
    let four = |dst, ttl| ether(0, 0x0800, &packet4("10.0.0.9", dst, ttl, 17, &[9; 600]));
    let six = |dst, hops| ether(0, 0x86dd, &packet6("2001:db8:a::9", dst, hops, 17, &[9; 1300]));
    for (dst, ttl, why, message) in [
        ("192.0.2.1", 64, "unreachable", (3, 1)),
        ("192.0.2.65", 64, "prohibit", (3, 13)),
        ("203.0.113.1", 64, "no_route", (3, 0)),
        ("10.0.1.9", 1, "time_exceeded", (11, 0)),
        ("10.0.1.1", 64, "to_router", (3, 3)),
    ] {
        let frame = four(dst, ttl);
        let done = rig.one(0, &frame);
        assert_eq!(done.went, [Err(why)]);
        let (kind, code, word, repeated) = told(&done, false);
        assert_eq!(((kind, code), word), (message, 0), "{dst}");
        assert_eq!(repeated, frame[14..14 + 548]);
    }
    assert!(rig.one(0, &four("192.0.2.129", 64)).made.is_empty());
    for (dst, hops, why, message) in [
        ("2620:1::1", 64, "unreachable", (1, 0)),
        ("2620:2::1", 64, "prohibit", (1, 1)),
        ("2620:3::1", 64, "no_route", (1, 0)),
        ("2001:db8:b::9", 1, "time_exceeded", (3, 0)),
        ("2001:db8:b::1", 64, "to_router", (1, 4)),
    ] {
        let frame = six(dst, hops);
        let done = rig.one(0, &frame);
        assert_eq!(done.went, [Err(why)]);
        let (kind, code, word, repeated) = told(&done, true);
        assert_eq!(((kind, code), word), (message, 0), "{dst}");
        assert_eq!(repeated, frame[14..14 + 1232]);
    }
    // What does not fit through the next port.
    rig.ports[1].set_mtu(1400);
    let mut long = four("10.0.1.9", 64);
    long =
        ether(0, 0x0800, &packet4("10.0.0.9", "10.0.1.9", 64, 17, &vec![9; 1381 + long.len() - long.len()]));
    let done = rig.one(0, &long);
    assert_eq!(
        (done.went.clone(), told(&done, false).0, told(&done, false).1, told(&done, false).2),
        (vec![Err("too_big")], 3, 4, 1400)
    );
    let long = ether(0, 0x86dd, &packet6("2001:db8:a::9", "2001:db8:b::9", 64, 17, &[9; 1361]));
    let done = rig.one(0, &long);
    assert_eq!((told(&done, true).0, told(&done, true).1, told(&done, true).2), (2, 0, 1400));
    let fits = ether(0, 0x0800, &packet4("10.0.0.9", "10.0.1.9", 64, 17, &[9; 1380]));
    assert_eq!(rig.one(0, &fits).went, [Ok(1)]);
}

#[test]
fn what_may_be_cut_goes_on_in_fragments() {
    let mut rig = Rig::new(&[]);
    rig.ports[1].set_mtu(576);
    for (flags, len) in [([0u8, 0], 1400usize), ([0x20, 5], 1000), ([0, 7], 561)] {
        let payload: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut packet = packet4("10.0.0.9", "10.0.1.9", 64, 17, &payload);
        packet[6..8].copy_from_slice(&flags);
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        let done = rig.one(0, &ether(0, 0x0800, &packet));
        assert_eq!((done.went, done.made.len()), (vec![Err("fragmented")], len.div_ceil(552)));
        let mut at = 0;
        for (port, fragment) in &done.made {
            assert_eq!((*port, &fragment[..6], &fragment[6..12]), (1, &THEIRS[1][..], &MACS[1][..]));
            assert_eq!(
                (Sum::of(&fragment[14..34]).value(), fragment[22], &fragment[18..20]),
                (0xffff, 63, &[0, 1][..])
            );
            let (total, field) = (be(fragment, 16), be(fragment, 20));
            assert_eq!((total, fragment.len()), (fragment.len() - 14, total + 14));
            assert!(total <= 576);
            assert_eq!(field & 0x1fff, usize::from(flags[1]) + at / 8);
            assert_eq!(fragment[34..], payload[at..at + total - 20]);
            at += total - 20;
            assert_eq!(field & 0x2000 != 0, at < len || flags[0] != 0);
        }
        assert_eq!(at, len);
    }
    // What is longer than the link takes is padding, behind a packet without a byte and behind one of eight.
    for len in [0, 8] {
        let mut packet = packet4("10.0.0.9", "10.0.1.9", 64, 17, &vec![3; len]);
        packet[6] = 0;
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.resize(800, 0);
        let done = rig.one(0, &ether(0, 0x0800, &packet));
        assert_eq!(done.went, [Err("fragmented")]);
        let [(1, fragment)] = &done.made[..] else { panic!("{:?}", done.made) };
        assert_eq!((fragment.len(), be(fragment, 16), be(fragment, 20)), (34 + len, 20 + len, 0));
    }
    // More than there is room for are refused whole.
    rig.ports[1].set_mtu(68);
    let frames: Vec<_> = (0..3)
        .map(|_| {
            let mut packet = packet4("10.0.0.9", "10.0.1.9", 64, 17, &[1; 1400]);
            packet[6] = 0;
            packet[10..12].fill(0);
            let sum = Sum::of(&packet[..20]).checksum().to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
            ether(0, 0x0800, &packet)
        })
        .collect();
    let done = rig.send(0, &frames);
    assert_eq!(done.went, [Err("fragmented"), Err("fragmented"), Err("too_big")]);
    assert_eq!(done.made.len(), 60);
}

/// What a sender left to others is done before its packet is cut: the fragments are those of whole packets,
/// each with a right checksum.
#[test]
fn offloads_are_done_before_a_packet_is_cut() {
    let mut rig = Rig::new(&[]);
    rig.ports[1].set_mtu(572);
    let kinds = [(Gso::None, 17, 0, 6), (Gso::None, 6, 0, 16), (Gso::None, 17, 28, 16), (Gso::Ufo, 17, 0, 6)];
    let cut = [(Gso::Tcp4, 6, 0, 16), (Gso::Udp4, 17, 0, 6)];
    for ((gso, protocol, inner, csum_offset), len) in
        kinds.into_iter().chain(cut).flat_map(|kind| [601usize, 1400, 1480].map(|len| (kind, len)))
    {
        let mut payload: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let header = if protocol == 6 { 20 } else { 8 };
        payload[12] = 0x50;
        let mut packet = packet4("10.0.0.9", "10.0.1.9", 64, protocol, &payload);
        packet[6] = 0;
        packet[10..12].fill(0);
        let sum = Sum::of(&packet[..20]).checksum().to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        let mut frame = ether(0, 0x0800, &packet);
        let csum_start = 34 + inner;
        let field = usize::from(csum_start + csum_offset);
        frame[field..field + 2].copy_from_slice(
            &Sum::pseudo(&packet[12..16], &packet[16..20], protocol, len).value().to_be_bytes(),
        );
        let gso_size = if gso == Gso::None { 0 } else { 700 };
        let offload =
            Offload { flags: Offload::NEEDS_CSUM, gso, gso_size, csum_start, csum_offset, ..Offload::NONE };
        let done = rig.send_with(0, &[frame.clone()], offload);
        assert_eq!(done.went, [Err("fragmented")], "{offload:?} {len}");
        // By their identification, the packets that they make.
        let mut packets: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (_, fragment) in &done.made {
            assert!(fragment.len() <= 14 + 572 && Sum::of(&fragment[14..34]).value() == 0xffff);
            let packet = packets.entry(be(fragment, 18)).or_default();
            assert_eq!((be(fragment, 20) & 0x1fff) * 8, packet.len());
            packet.extend_from_slice(&fragment[34..]);
        }
        let got: Vec<u8> = packets
            .values()
            .flat_map(|it| if packets.len() == 1 { &it[..] } else { &it[header..] })
            .copied()
            .collect();
        if packets.len() == 1 {
            let mut whole = frame.clone();
            offload.complete(&mut whole).unwrap();
            assert!(got == whole[34..] || gso != Gso::None, "{offload:?} {len}");
        } else {
            assert_eq!(got, payload[header..], "{offload:?} {len}");
        }
        for packet in packets.values().filter(|_| inner == 0) {
            let mut sum = Sum::pseudo(&frame[26..30], &frame[30..34], protocol, packet.len());
            sum.add(packet);
            assert_eq!(sum.value(), 0xffff, "{offload:?} {len}");
        }
    }
}

fn be(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

#[test]
fn errors_are_no_answers_to_errors_fragments_and_groups_and_are_limited() {
    let mut rig = Rig::new(&[]);
    let four = |protocol, payload: &[u8]| packet4("10.0.0.9", "203.0.113.1", 64, protocol, payload);
    assert_eq!(rig.one(0, &ether(0, 0x0800, &four(1, &[8; 20]))).made.len(), 1, "an echo request");
    for kind in [3, 4, 5, 11, 12] {
        assert!(rig.one(0, &ether(0, 0x0800, &four(1, &[kind; 20]))).made.is_empty(), "{kind}");
    }
    let mut later = four(17, &[0; 20]);
    (later[6], later[10], later[11]) = (0x20, 0, 0);
    later[7] = 1;
    let sum = Sum::of(&later[..20]).checksum().to_be_bytes();
    later[10..12].copy_from_slice(&sum);
    let done = rig.one(0, &ether(0, 0x0800, &later));
    assert!(done.went == [Err("no_route")] && done.made.is_empty());
    let six =
        |next, payload: &[u8]| ether(0, 0x86dd, &packet6("2001:db8:a::9", "2620::1", 64, next, payload));
    assert_eq!(rig.one(0, &six(58, &[128; 20])).made.len(), 1);
    assert_eq!(rig.one(0, &six(0, &[&[58, 0][..], &[0; 6], &[128; 9]].concat())).made.len(), 1);
    for (next, payload) in [
        (58, vec![1; 20]),
        (58, vec![137; 20]),
        (58, vec![]),
        (0, [&[58, 0][..], &[0; 6], &[1; 9]].concat()),
        (44, vec![17, 0, 0, 9, 0, 0, 0, 0, 1, 2]),
        (0, vec![0; 4]),
    ] {
        assert!(rig.one(0, &six(next, &payload)).made.is_empty(), "{next} {payload:?}");
    }
    let many = vec![v4("203.0.113.1"); 60];
    let (first, second) = (rig.send(0, &many).made.len(), rig.send(0, &many).made.len());
    assert!(first + second < 90, "{first} {second}: limited");
    assert!(
        !rig.send(1, &[ether(1, 0x0800, &packet4("10.0.1.9", "203.0.113.1", 9, 17, &[]))]).made.is_empty(),
        "by port"
    );
}
