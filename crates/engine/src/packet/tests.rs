//! Properties of the wire module. `etherparse`, which shares no code with it, judges every segment.
#![allow(clippy::cast_possible_truncation)]

use super::wrapped_tests::{wrapped, Link, Wrapped};
use super::{ether::be16, ip::Ip, *};
use crate::util::slice::upto;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::{collection::vec, prelude::*};
use serde::{de::value::Error, de::value::StrDeserializer, Deserialize, Serialize};
use std::{fmt, ops::Range};

const SEQUENCE: u32 = 0xffff_f000; // wraps within the first few segments
const IDENT: u32 = 0x1234_5678;

/// A frame to be cut.
#[derive(Clone, Debug)]
struct Shape {
    tags: usize,
    gso: Gso,
    v6: bool,
    /// IPv4 options and TCP options, in words of 4 bytes.
    options: [usize; 2],
    /// Hop-by-hop and destination options, in units of 8 bytes.
    extensions: [usize; 2],
    /// A segment routing header of two addresses: kind, and segments left.
    route: Option<(u8, u8)>,
    tcp_flags: u8,
    payload: usize,
    size: u16,
    seed: u8,
}

fn bytes(n: usize, seed: u8) -> impl Iterator<Item = u8> {
    let next =
        |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(u64::from(seed)), next).map(|x| (x >> 56) as u8).take(n)
}

impl Shape {
    fn udp(&self) -> bool {
        matches!(self.gso, Gso::Udp4 | Gso::Udp6 | Gso::Ufo)
    }

    /// This shape with datagrams instead of fragments.
    fn uncut(&self) -> Shape {
        let gso = match (self.gso, self.v6) {
            (Gso::Ufo, false) => Gso::Udp4,
            (Gso::Ufo, true) => Gso::Udp6,
            (gso, _) => gso,
        };
        Shape { gso, ..self.clone() }
    }

    /// The frame, its offload facts, and the length of its headers.
    fn build(&self) -> (Vec<u8>, Offload, usize) {
        let mut frame: Vec<u8> = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in [[0x88, 0xa8, 0x00, 0x64], [0x81, 0x00, 0x60, 0x07]].iter().skip(2 - self.tags) {
            frame.extend(tag);
        }
        let protocol = if self.udp() { 17 } else { 6 };
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0xee, 0xee]);
            let mut headers = vec![];
            let [hop, destination] = self.extensions;
            if hop > 0 {
                headers.push((0, option_header(hop)));
            }
            if let Some((kind, left)) = self.route {
                let mut route = vec![0, 4, kind, left, 1, 0, 0, 0];
                route.extend(bytes(32, self.seed ^ 3));
                headers.push((43, route));
            }
            if destination > 0 {
                headers.push((60, option_header(destination)));
            }
            frame.extend([headers.first().map_or(protocol, |h| h.0), 64]);
            frame.extend(bytes(32, self.seed ^ 1));
            for i in 0..headers.len() {
                headers[i].1[0] = headers.get(i + 1).map_or(protocol, |h| h.0);
                frame.extend(&headers[i].1);
            }
        } else {
            let words = 5 + self.options[0];
            frame.extend([0x08, 0x00, 0x40 | words as u8, 0, 0xee, 0xee, 0xff, 0xfe, 0x40, 0, 64, protocol]);
            frame.extend([0xba, 0xad]); // checksum, to be replaced
            frame.extend(bytes(8, self.seed ^ 1));
            frame.resize(frame.len() + 4 * self.options[0], 1);
        }
        let start = frame.len();
        frame.extend([0x30, 0x39, 0x00, 0x50]);
        if self.udp() {
            frame.extend([0xee, 0xee, 0xba, 0xad]);
        } else {
            frame.extend(SEQUENCE.to_be_bytes());
            frame.extend([
                0,
                0,
                0,
                9,
                (5 + self.options[1] as u8) << 4,
                self.tcp_flags,
                1,
                0,
                0xba,
                0xad,
                0,
                0,
            ]);
            frame.resize(frame.len() + 4 * self.options[1], 1);
        }
        let header = frame.len();
        frame.extend(bytes(self.payload, self.seed));
        let offload = Offload {
            flags: Offload::NEEDS_CSUM,
            gso: self.gso,
            ecn: false,
            hdr_len: u16::from(self.seed), // a lie
            gso_size: self.size,
            csum_start: start as u16,
            csum_offset: if self.udp() { 6 } else { 16 },
        };
        (frame, offload, header)
    }
}

/// An extension header full of padding.
fn option_header(units: usize) -> Vec<u8> {
    let mut header = vec![0; 8 * units];
    header[1] = units as u8 - 1;
    header[2] = 1; // PadN
    header[3] = 8 * units as u8 - 4;
    header
}

fn shapes() -> impl Strategy<Value = Shape> {
    let kinds = [
        (Gso::Tcp4, false),
        (Gso::Tcp6, true),
        (Gso::Udp4, false),
        (Gso::Udp6, true),
        (Gso::Ufo, false),
        (Gso::Ufo, true),
    ];
    let route = proptest::option::of((prop_oneof![Just(0u8), Just(4)], 0..=1u8));
    let options = ([0..=10usize, 0..=10], [0..=1usize, 0..=1], route);
    (
        0..=2usize,
        prop::sample::select(kinds.to_vec()),
        options,
        any::<u8>(),
        prop_oneof![1 => Just(0), 20 => 0..20_000usize],
        24..3000u16,
        any::<u8>(),
    )
        .prop_map(
            |(tags, (gso, v6), (options, mut extensions, mut route), tcp_flags, payload, size, seed)| {
                if gso == Gso::Ufo {
                    extensions[1] = 0;
                }
                // Headers at their longest: 22 + 40 + 16 + 40 + 60 = 178.
                if !v6 {
                    (extensions, route) = ([0; 2], None);
                }
                Shape { tags, gso, v6, options, extensions, route, tcp_flags, payload, size, seed }
            },
        )
}

/// A segment, and which bytes of the frame it carries.
type Cut = (Vec<u8>, Range<usize>);

/// Cuts a frame as the engine does, the payload lying in pieces of `piece` bytes.
fn cut(frame: &[u8], offload: Offload, piece: usize) -> Result<Vec<Cut>, BadOffload> {
    let head = frame[..offload.header_bound(frame.len())].to_vec();
    let plan = Plan::new(&head, frame.len(), offload, IDENT)?;
    let mut header = [0x55; MAX_HEADER];
    let segments = (0..plan.count).map(|i| {
        let segment = plan.segment(i, &mut header).unwrap();
        let mut sum = Sum::default();
        frame[segment.summed.clone()].chunks(piece).for_each(|piece| sum.add(piece));
        segment.seal(&mut header, sum);
        let mut out = header[..segment.header_len].to_vec();
        out.extend(&frame[segment.payload.clone()]);
        (out, segment.payload)
    });
    let segments = segments.collect();
    assert_eq!(plan.segment(plan.count, &mut header), None);
    Ok(segments)
}

/// Verifies lengths and checksums of a frame that is no fragment; returns its transport part.
fn judge<'a>(frame: &'a [u8], shape: &Shape) -> TransportSlice<'a> {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    assert_eq!(packet.link_exts.len(), shape.tags);
    // The pseudo header of a routed packet names the last address (RFC 8200 §8.1).
    let routed = |to| match shape.route {
        Some((kind, 1..)) => {
            let route: Vec<u8> = bytes(32, shape.seed ^ 3).collect();
            let last = if kind == 4 { 0 } else { 16 };
            route[last..last + 16].try_into().unwrap()
        }
        _ => to,
    };
    let transport = packet.transport.unwrap();
    match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let h = ip.header();
            let rest = frame.len() - 14 - 4 * shape.tags;
            assert_eq!(usize::from(h.total_len()), rest);
            assert_eq!(h.header_checksum(), h.to_header().calc_header_checksum());
            let (from, to) = (h.source(), h.destination());
            match &transport {
                TransportSlice::Tcp(t) => {
                    let sum = t.to_header().calc_checksum_ipv4_raw(from, to, t.payload()).unwrap();
                    assert_eq!(t.checksum(), sum);
                }
                TransportSlice::Udp(u) => {
                    let sum = u.to_header().calc_checksum_ipv4_raw(from, to, u.payload()).unwrap();
                    assert_eq!(u.checksum(), sum);
                }
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Ipv6(ip) => {
            let h = ip.header();
            assert_eq!(usize::from(h.payload_length()), frame.len() - 54 - 4 * shape.tags);
            let (from, to) = (h.source(), routed(h.destination()));
            match &transport {
                TransportSlice::Tcp(t) => {
                    let sum = t.to_header().calc_checksum_ipv6_raw(from, to, t.payload()).unwrap();
                    assert_eq!(t.checksum(), sum);
                }
                TransportSlice::Udp(u) => {
                    let sum = u.to_header().calc_checksum_ipv6_raw(from, to, u.payload()).unwrap();
                    assert_eq!(u.checksum(), sum);
                }
                other => panic!("{other:?}"),
            }
        }
        other @ NetSlice::Arp(_) => panic!("{other:?}"),
    }
    transport
}

proptest! {
    #[test]
    fn tcp_and_udp_segments_are_right(shape in shapes(), piece in 1..2000usize) {
        let shape = shape.uncut();
        let (frame, offload, header) = shape.build();
        let segments = cut(&frame, offload, piece).unwrap();
        let size = usize::from(shape.size);
        prop_assert_eq!(segments.len(), shape.payload.div_ceil(size).max(1));
        let mut payload: Vec<u8> = vec![];
        for (i, (segment, _)) in segments.iter().enumerate() {
            let (first, last) = (i == 0, i + 1 == segments.len());
            prop_assert_eq!(&segment[..offload.csum_start.into()][..14 + 4 * shape.tags], &frame[..14 + 4 * shape.tags]);
            if !shape.v6 {
                let at = 14 + 4 * shape.tags;
                prop_assert_eq!(be16(segment, at + 4), Some(0xfffe_u16.wrapping_add(i as u16)));
                prop_assert_eq!(&segment[at + 12..at + 20], &frame[at + 12..at + 20]);
            }
            let part = match judge(segment, &shape) {
                TransportSlice::Tcp(tcp) => {
                    prop_assert_eq!(tcp.sequence_number(), SEQUENCE.wrapping_add((i * size) as u32));
                    let kept = 0x76 | if last { 0x09 } else { 0 } | if first { 0x80 } else { 0 };
                    prop_assert_eq!(tcp.slice()[13], shape.tcp_flags & kept);
                    prop_assert_eq!(tcp.options().len(), 4 * shape.options[1]);
                    tcp.payload()
                }
                TransportSlice::Udp(udp) => {
                    prop_assert_eq!(usize::from(udp.length()), 8 + udp.payload().len());
                    udp.payload()
                }
                other => panic!("{other:?}"),
            };
            prop_assert!(last || part.len() == size);
            payload.extend(part);
        }
        prop_assert_eq!(&payload, &frame[header..]);
    }

    #[test]
    fn udp_fragments_make_the_datagram(shape in shapes(), piece in 1..2000usize) {
        // etherparse 0.18 takes the last IPv6 fragment at offset 32, 64 or 96 for a whole packet.
        let shape = Shape { gso: Gso::Ufo, size: shape.size.max(104), ..shape };
        let (frame, offload, _) = shape.build();
        if shape.v6 && shape.extensions[1] > 0 {
            prop_assert_eq!(cut(&frame, offload, piece), Err(BadOffload::WrongProtocol));
            return Ok(());
        }
        let start = usize::from(offload.csum_start);
        let segments = cut(&frame, offload, piece).unwrap();
        let l3 = 14 + 4 * shape.tags;
        let mut datagram: Vec<u8> = vec![];
        for (i, (segment, _)) in segments.iter().enumerate() {
            let packet = SlicedPacket::from_ethernet(segment).unwrap();
            prop_assert_eq!(packet.is_ip_payload_fragmented(), segments.len() > 1);
            let (more, offset) = match packet.net.as_ref().unwrap() {
                NetSlice::Ipv4(ip) => {
                    let h = ip.header();
                    prop_assert_eq!(usize::from(h.total_len()), segment.len() - l3);
                    prop_assert_eq!(h.header_checksum(), h.to_header().calc_header_checksum());
                    prop_assert_eq!(h.identification(), 0xfffe);
                    (h.more_fragments(), usize::from(h.fragments_offset().value()) * 8)
                }
                NetSlice::Ipv6(ip) if segments.len() > 1 => {
                    prop_assert_eq!(usize::from(ip.header().payload_length()), segment.len() - l3 - 40);
                    let fragment = segment[start..start + 8].to_vec();
                    prop_assert_eq!(&fragment[..2], &[17, 0]);
                    prop_assert_eq!(&fragment[4..], &IDENT.to_be_bytes());
                    let place = be16(&fragment, 2).unwrap();
                    (place & 1 != 0, usize::from(place & !7))
                }
                _ => (false, 0),
            };
            prop_assert_eq!(more, i + 1 < segments.len());
            prop_assert_eq!(offset, datagram.len());
            let part = packet.ip_payload().unwrap().payload;
            prop_assert!(!more || part.len() == usize::from(shape.size) & !7);
            datagram.extend(part);
        }
        // The datagram behind the headers of an unfragmented packet must be one that the judge accepts.
        let whole = Shape { size: 0xffff, ..shape.uncut() };
        let (unfragmented, _, _) = whole.build();
        let mut expected = cut(&unfragmented, Offload { gso: whole.gso, gso_size: 0xffff, ..offload }, piece).unwrap();
        let (expected, _) = expected.remove(0);
        judge(&expected, &whole);
        prop_assert_eq!(&datagram, &expected[start..]);
    }

    #[test]
    fn completed_checksums_verify(shape in shapes()) {
        // With the pseudo header's sum in its place, as drivers leave it; by way of one large segment.
        // A segment as large as the frame, and from its checksum back to what a driver leaves in the field:
        // the sum of the pseudo header, which is the sum of all less that of the transport part.
        let shape = Shape { size: 0xffff, ..shape.uncut() };
        let (frame, offload, _) = shape.build();
        let (done, _) = cut(&frame, offload, 1000).unwrap().remove(0);
        let (start, at) = (usize::from(offload.csum_start), usize::from(offload.csum_offset));
        let mut frame = done.clone();
        let field = start + at..start + at + 2;
        frame[field.clone()].fill(0);
        let mut seed = Sum::of(&(!be16(&done, field.start).unwrap()).to_be_bytes());
        seed.add(&Sum::of(&frame[start..]).checksum().to_be_bytes());
        frame[field].copy_from_slice(&seed.value().to_be_bytes());
        let plain = Offload { gso: Gso::None, ..offload }.check(&frame, frame.len(), Offloads::CSUM).unwrap();
        prop_assert_eq!((plain.hdr_len, plain.gso_size), (0, 0));
        plain.complete(&mut frame).unwrap();
        prop_assert_eq!(frame, done);
    }

    /// Whatever a sender asks for, a completed checksum changes nothing that rules look at.
    #[test]
    fn no_checksum_request_changes_what_rules_look_at(
        it in wrapped(),
        protocol in prop::sample::select(vec![1u8, 4, 6, 17, 33, 41, 47, 50, 58, 89, 115, 132, 136, 137]),
        rest in vec(any::<u8>(), 60),
        (apart, csum_offset) in (prop_oneof![Just(0isize), -40..60isize], 0..20u16),
    ) {
        let (frame, at) = it.frame(1 << 120 | 0xffff_0a00_0001, protocol, &rest);
        let csum_start = u16::try_from(at.saturating_add_signed(apart)).unwrap();
        let facts = Offload { flags: Offload::NEEDS_CSUM, csum_start, csum_offset, ..Offload::NONE };
        let Ok(near) = facts.check(upto(&frame, 64), frame.len(), Offloads::CSUM) else { return Ok(()) };
        // Judged again when more is seen.
        let again = near.check(upto(&frame, MAX_HEADER), frame.len(), Offloads::CSUM);
        if again.is_ok() {
            let mut done = frame.clone();
            near.complete(&mut done).unwrap();
            prop_assert_eq!(Fields::find(&done), Fields::find(&frame));
        }
    }

    /// What guests ask for is taken: the transport's own checksum behind tags and extension headers, and
    /// those of packets within.
    #[test]
    fn honest_checksum_requests_are_taken(it in wrapped(), tags in 0usize..=2, rest in vec(any::<u8>(), 120)) {
        let tag = |_| Link::Tag(0x8100, 7);
        let it = Wrapped { links: (0..tags).map(tag).collect(), ..it };
        let checked = |protocol: u8, apart: usize, csum_offset: u16, flags: u8| {
            let (mut frame, at) = it.frame(1, protocol, &rest);
            frame[at] = flags;
            let csum_start = (at + apart) as u16;
            let facts = Offload { flags: Offload::NEEDS_CSUM, csum_start, csum_offset, ..Offload::NONE };
            let all = [64, MAX_HEADER].map(|seen| facts.check(upto(&frame, seen), frame.len(), Offloads::CSUM));
            (all == [Ok(facts); 2], at < MAX_HEADER)
        };
        for (protocol, csum_offset) in [(6, 16), (17, 6), (136, 6), (33, 6), (58, 2), (47, 4)] {
            let (taken, seen) = checked(protocol, 0, csum_offset, 0x80);
            prop_assert!(taken || !seen, "{protocol}");
            // GRE without a checksum; other fields.
            let refused = [(protocol, 0, 0x80), (protocol, csum_offset + 2, 0x80), (47, 4, 0)];
            for (protocol, csum_offset, flags) in refused {
                prop_assert!(!checked(protocol, 0, csum_offset, flags).0, "{protocol} {csum_offset}");
            }
        }
        for (protocol, apart) in [(17, 8 + 8 + 14 + 20), (17, 8 + 8), (47, 4 + 40), (4, 20), (41, 40), (115, 4 + 14 + 20), (137, 4 + 20)] {
            let (taken, seen) = checked(protocol, apart, 16, 0);
            prop_assert!(taken || !seen, "{protocol} {apart}");
        }
        prop_assert!(!checked(17, 7, 16, 0).0 && !checked(6, 20, 16, 0).0 && !checked(58, 8, 16, 0).0);
    }

    #[test]
    fn a_header_is_right_if_its_sum_is_all_ones(bytes: [u8; 20], same in any::<bool>()) {
        // Equal words carry most often.
        let mut header = if same { [bytes[0]; 20] } else { bytes };
        prop_assert_eq!(is_right(&header), Sum::of(&header).value() == 0xffff);
        header[10..12].fill(0);
        let sum = Sum::of(&header).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        prop_assert_eq!(is_right(&header), header != [0; 20]);
        header[3] ^= 0x10;
        prop_assert!(!is_right(&header));
    }

    #[test]
    fn sum_is_that_of_single_bytes(data in vec(any::<u8>(), 0..300), cuts in vec(0..40usize, 0..12)) {
        let oracle = data.iter().enumerate().fold(0u32, |sum, (i, &byte)| {
            let sum = sum + (u32::from(byte) << if i % 2 == 0 { 8 } else { 0 });
            (sum & 0xffff) + (sum >> 16)
        });
        prop_assert_eq!(u32::from(Sum::of(&data).value()), oracle);
        let (mut added, mut appended, mut rest) = (Sum::default(), Sum::default(), &data[..]);
        for n in cuts.into_iter().chain([usize::MAX]) {
            let (piece, after) = rest.split_at(n.min(rest.len()));
            added.add(piece);
            appended.append(Sum::of(piece));
            rest = after;
        }
        prop_assert_eq!(added, Sum::of(&data));
        prop_assert_eq!(appended, Sum::of(&data));
    }

    #[test]
    fn update_is_a_new_sum(mut data in vec(any::<u8>(), 2..100), new: u16, word: prop::sample::Index) {
        let at = word.index(data.len() / 2) * 2;
        data[0] |= 1; // of data that is all zero, zero has two representations
        let updated = update(Sum::of(&data).checksum(), be16(&data, at).unwrap(), new);
        data[at..at + 2].copy_from_slice(&new.to_be_bytes());
        let fresh = Sum::of(&data).checksum();
        prop_assert!(updated == fresh || (updated == 0 && fresh == 0xffff), "{updated:#x} {fresh:#x}");
    }

    #[test]
    fn arbitrary_bytes_are_judged(frame in vec(any::<u8>(), 0..300), header: [u8; 12], len: usize) {
        exercise(&frame, header, frame.len());
        exercise(&frame, header, len);
    }

    /// Nearly right frames and facts get further than arbitrary ones.
    #[test]
    fn damaged_frames_are_judged(
        shape in shapes(),
        damage in vec((0..200usize, any::<u8>()), 0..4),
        header_damage in vec((0..10usize, any::<u8>()), 0..3),
        cut_off in 0..200usize,
        size in 0..200u16,
    ) {
        let shape = Shape { payload: shape.payload % 2000, size, ..shape };
        let (mut frame, offload, _) = shape.build();
        frame.truncate(frame.len().saturating_sub(cut_off * usize::from(cut_off % 3 == 0)));
        for (at, byte) in damage {
            if let Some(b) = frame.get_mut(at) {
                *b = byte;
            }
        }
        let mut header = offload.to_bytes(0);
        for (at, byte) in header_damage {
            header[at] = byte;
        }
        exercise(&frame, header, frame.len());
        exercise(&frame, header, frame.len() / 2);
    }

    #[test]
    fn mac_text_is_read_back(mac: [u8; 6]) {
        let text = Mac(mac).to_string();
        prop_assert_eq!(text.parse(), Ok(Mac(mac)));
        prop_assert_eq!(text.to_uppercase().replace(':', "-").parse(), Ok(Mac(mac)));
        prop_assert_eq!(Mac::deserialize(StrDeserializer::<Error>::new(&text)), Ok(Mac(mac)));
        prop_assert_eq!(Serialized(Mac(mac)).to_string(), text);
    }

    #[test]
    fn any_text_is_a_mac_or_not(text: String) {
        if let Ok(mac) = text.parse::<Mac>() {
            prop_assert_eq!(mac.to_string(), text.to_lowercase().replace('-', ":"));
        }
    }
}

/// Shows what `Mac` serialises to; `fmt::Formatter` is a serialiser of plain values.
struct Serialized(Mac);

impl fmt::Display for Serialized {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.serialize(f)
    }
}

/// Runs everything over a hostile frame. No panic; and what is accepted keeps its promises.
fn exercise(frame: &[u8], header: [u8; 12], len: usize) {
    let _ = flow_hash(frame);
    let _ = Ether::parse(frame);
    let head = &frame[..frame.len().min(64)];
    let raw = |i: usize| u16::from_le_bytes([header[i], header[i + 1]]);
    let raw = Offload {
        flags: header[0],
        gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp4, Gso::Udp6, Gso::Ufo][usize::from(header[1] % 6)],
        ecn: header[1] > 127,
        hdr_len: raw(2),
        gso_size: raw(4),
        csum_start: raw(6),
        csum_offset: raw(8),
    };
    let parsed = Offload::parse(&header, head, len, Offloads::ALL);
    for facts in [Some(raw), parsed.ok(), raw.check(head, len, Offloads::ALL).ok()].into_iter().flatten() {
        let mut copy = frame.to_vec();
        let _ = facts.complete(&mut copy);
        let _ = Plan::new(frame, len, facts, 0).map(|plan| plan.segment(0, &mut [0; MAX_HEADER]));
    }
    let Ok(facts) = parsed else { return };
    assert_eq!(facts.check(head, len, facts.required() | Offloads::VALID), Ok(facts));
    assert_eq!(Offload::parse(&facts.to_bytes(7), head, len, Offloads::ALL), Ok(facts));
    if len != frame.len() || !facts.needs_csum() {
        return;
    }
    let mut copy = frame.to_vec();
    facts.complete(&mut copy).unwrap();
    let ip = Ip::parse(frame).unwrap();
    assert_eq!(copy[..ip.end], frame[..ip.end], "a checksum may not forge an address");
    if let Ok(segments) = cut(frame, facts, 333) {
        let mut next = segments[0].1.start;
        for (segment, payload) in &segments {
            assert_eq!(payload.start, next);
            assert_eq!(segment[..14], frame[..14]);
            assert_eq!(segment[ip.src..ip.src + 8], frame[ip.src..ip.src + 8]);
            next = payload.end;
        }
        assert_eq!(next, frame.len());
    }
}

fn shape(gso: Gso, payload: usize, size: u16) -> Shape {
    let v6 = matches!(gso, Gso::Tcp6 | Gso::Udp6);
    let (options, extensions) = ([0; 2], [0; 2]);
    Shape { tags: 0, gso, v6, options, extensions, route: None, tcp_flags: 0x18, payload, size, seed: 7 }
}

#[test]
fn each_lie_has_its_name() {
    use BadOffload::*;
    let (frame, good, header) = shape(Gso::Tcp4, 3000, 1448).build();
    let all = Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6;
    let head = &frame[..64];
    let check = |facts: Offload| facts.check(head, frame.len(), all);
    let checked = check(good).unwrap();
    assert_eq!(checked, good);
    assert_eq!(check(Offload { flags: 0xff, hdr_len: 9999, ..good }).unwrap().hdr_len, frame.len() as u16);
    assert_eq!(check(Offload { gso: Gso::Ufo, ..good }), Err(NotNegotiated(Offloads::UFO)));
    assert_eq!(check(Offload { ecn: true, ..good }), Err(NotNegotiated(Offloads::ECN)));
    assert_eq!(good.check(head, frame.len(), Offloads::TSO4), Err(NotNegotiated(Offloads::CSUM)));
    assert_eq!(check(Offload { gso: Gso::None, ecn: true, ..good }), Err(UnknownGso(0x80)));
    assert_eq!(check(Offload { flags: 0, ..good }), Err(GsoWithoutCsum));
    assert_eq!(check(Offload { gso_size: 0, ..good }), Err(ZeroGsoSize));
    assert_eq!(check(Offload { gso: Gso::Tcp6, ..good }), Err(WrongProtocol));
    assert_eq!(check(Offload { csum_start: 36, ..good }), Err(WrongProtocol));
    assert_eq!(check(Offload { csum_offset: 6, ..good }), Err(WrongProtocol));
    for (csum_start, csum_offset) in [(33, 16), (0, 0), (34, 3019), (0xffff, 0xffff)] {
        assert_eq!(check(Offload { csum_start, csum_offset, ..good }), Err(CsumOutside));
    }
    let mut arp = frame.clone();
    arp[13] = 6;
    assert_eq!(good.check(&arp[..64], arp.len(), all), Err(NotIp));
    let mut wire = good.to_bytes(0);
    wire[1] = 2;
    assert_eq!(Offload::parse(&wire, head, frame.len(), all), Err(UnknownGso(2)));

    let plan = |frame: &[u8], len, facts| Plan::new(&frame[..header], len, facts, 0).map(|p| p.count);
    assert_eq!(plan(&frame, frame.len(), good), Ok(3));
    assert_eq!(plan(&frame, frame.len(), Offload { gso_size: 2, ..good }), Err(TooManySegments));
    assert_eq!(plan(&frame, 70_000, Offload { gso_size: 0xffff, ..good }), Err(SegmentTooLong));
    let udp = shape(Gso::Ufo, 3000, 1480).build();
    assert_eq!(plan(&udp.0, 65_549, udp.1), Ok(45));
    assert_eq!(plan(&udp.0, 65_550, udp.1), Err(SegmentTooLong));
    assert_eq!(plan(&frame, frame.len(), Offload { gso: Gso::None, ..good }), Err(UnknownGso(0)));
    for doff in [0x40, 0xf0] {
        let mut short = frame.clone();
        short[34 + 12] = doff;
        assert_eq!(plan(&short, header, good), Err(HeaderCut));
    }
    let mut fragment = frame.clone();
    fragment[20] |= 0x20;
    assert_eq!(good.check(&fragment[..64], fragment.len(), all), Err(WrongProtocol));

    // Extension headers that end behind the first 64 bytes pass at first; what the plan says depends on them.
    let plan = |units, gso| {
        let deep = Shape { v6: true, extensions: [units, 0], options: [0, 10], ..shape(gso, 3000, 1000) };
        let (frame, facts, _) = deep.build();
        assert_eq!(facts.check(&frame[..64], frame.len(), Offloads::ALL), Ok(facts));
        cut(&frame, facts, 100).map(|segments| segments.len())
    };
    assert_eq!((plan(9, Gso::Tcp6), plan(14, Gso::Ufo)), (Ok(3), Ok(4)));
    assert_eq!((plan(10, Gso::Tcp6), plan(15, Gso::Ufo)), (Err(HeaderTooLong), Err(HeaderTooLong)));
    let (frame, facts, _) = Shape { extensions: [4, 1], ..shape(Gso::Tcp6, 3000, 1000) }.build();
    assert_eq!(cut(&frame, Offload { csum_start: 90, ..facts }, 100), Err(WrongProtocol));
    // A routing header with segments left and no room for an address.
    let (mut frame, facts, _) = Shape { extensions: [1, 0], ..shape(Gso::Tcp6, 3000, 1000) }.build();
    frame[20] = 43;
    frame[54 + 2..54 + 4].copy_from_slice(&[4, 1]);
    assert_eq!(cut(&frame, facts, 100), Err(WrongProtocol));
}

#[test]
fn verified_checksums_are_believed_of_hosts_only() {
    let (frame, _, _) = shape(Gso::Tcp4, 100, 0).build();
    // All flags but NEEDS_CSUM; the unknown ones are to be ignored.
    let header = Offload { flags: 0xfe, ..Offload::NONE }.to_bytes(0);
    let parse = |allowed| Offload::parse(&header, &frame, frame.len(), allowed).unwrap().flags;
    assert_eq!(parse(Offloads::CSUM), 0);
    assert_eq!(parse(Offloads::VALID), Offload::DATA_VALID);
}

#[test]
fn udp_checksum_is_never_stored_as_none() {
    // The sum of everything is 0xffff, so that the checksum would be zero.
    let (mut frame, _, _) = shape(Gso::Udp4, 2, 0).build();
    let part = [0x12, 0x34, 0x56, 0x78, 0, 10, 0, 0];
    frame[34..42].copy_from_slice(&part);
    let rest = Sum::of(&part).checksum();
    frame[42..44].copy_from_slice(&rest.to_be_bytes());
    let facts = Offload { flags: 1, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    facts.complete(&mut frame).unwrap();
    assert_eq!(frame[40..42], [0xff, 0xff]);
}

#[test]
fn header_bytes_are_those_of_the_specification() {
    // virtio 1.2 §5.1.6: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers.
    let bytes = [1, 0x81, 66, 0, 0xa8, 0x05, 34, 0, 16, 0, 3, 0];
    let facts = Offload {
        flags: 1,
        gso: Gso::Tcp4,
        ecn: true,
        hdr_len: 66,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    assert_eq!(facts.to_bytes(3), bytes);
    let (frame, _, _) = shape(Gso::Tcp4, 3000, 1448).build();
    assert_eq!(Offload::parse(&bytes, &frame[..64], frame.len(), Offloads::ALL), Ok(facts));
    assert_eq!(facts.required(), Offloads::CSUM | Offloads::TSO4 | Offloads::ECN);
    assert_eq!(facts.required().to_string(), "csum,tso4,ecn");
    assert_eq!(Offloads::from_bits(0xff00 | facts.required().bits()), facts.required());
    assert_eq!(
        (Offload::NONE.to_bytes(1), Offload::NONE.is_none()),
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], true)
    );
    assert!(!facts.is_none());
}

#[test]
fn tags_are_looked_through_twice() {
    let mut frame = vec![0xff; 12];
    frame.extend([0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x07, 0x81, 0x00, 0, 1, 0x08, 0x00]);
    let three = Ether::parse(&frame).unwrap();
    assert_eq!((three.tci, three.ethertype, three.l3), (Some(0x2064), 0x8100, 22));
    frame.drain(12..16);
    let two = Ether::parse(&frame).unwrap();
    assert_eq!((two.tci, two.ethertype, two.l3), (Some(7), 0x0800, 22));
    let cut_short = Ether::parse(&frame[..17]).unwrap();
    assert_eq!((cut_short.tci, cut_short.ethertype, cut_short.l3), (None, 0x8100, 14));
    assert_eq!(Ether::parse(&frame[..13]), None);
    assert!(two.dst.is_group() && two.dst == Mac::BROADCAST);
    assert!(!Mac([2, 1, 1, 1, 1, 1]).is_group() && Mac([0x33, 0x33, 0, 0, 0, 1]).is_group());
}

#[test]
fn bad_macs_say_what_is_wanted() {
    for text in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "2:0:0:0:0:1",
        "+2:00:00:00:00:01",
        "02:00:00:00:00:0é",
    ] {
        let error = text.parse::<Mac>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{text}`")) && error.contains("02:00:00:00:00:01"), "{error}");
    }
}

#[test]
fn flows_differ_by_ports_and_not_by_tags_or_payload() {
    for gso in [Gso::Tcp4, Gso::Tcp6, Gso::Udp4, Gso::Udp6] {
        let plain = shape(gso, 10, 0);
        let (mut tagged, facts, _) = Shape { tags: 2, ..plain.clone() }.build();
        let before = flow_hash(&tagged);
        tagged[usize::from(facts.csum_start)] ^= 1;
        assert_ne!(flow_hash(&tagged), before);
        let (frame, facts, _) = plain.build();
        let hash = flow_hash(&frame);
        assert_eq!(hash, flow_hash(&Shape { tags: 1, ..plain.clone() }.build().0));
        assert_eq!(hash, flow_hash(&Shape { payload: 900, ..plain.clone() }.build().0));
        let at = usize::from(facts.csum_start);
        let with_port = |port: u16| {
            let mut frame = frame.clone();
            frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
            flow_hash(&frame)
        };
        assert_ne!(hash, with_port(1));
        // 4096 neighbouring ports over 4 queues, by either end of the hash: within a tenth of even.
        for queue in [|hash: u32| (hash % 4) as usize, |hash: u32| (hash >> 30) as usize] {
            let mut load = [0; 4];
            (0..4096).for_each(|port| load[queue(with_port(port))] += 1);
            assert!(load.iter().all(|n| (922..=1126).contains(n)), "{load:?}");
        }
    }
}

#[test]
fn fragments_of_a_datagram_share_a_hash() {
    for v6 in [false, true] {
        let shape = Shape { v6, ..shape(Gso::Ufo, 5000, 1480) };
        let (frame, facts, _) = shape.build();
        let segments = cut(&frame, facts, 700).unwrap();
        assert_eq!(segments.len(), 4);
        let hashes: Vec<u32> = segments.iter().map(|s| flow_hash(&s.0)).collect();
        assert!(hashes.iter().all(|&hash| hash == hashes[0]), "{hashes:?}");
    }
}
