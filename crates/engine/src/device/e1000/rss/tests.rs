//! The hash against Microsoft's verification suite ("Verifying the RSS Hash Calculation", Windows driver
//! documentation) and against one that goes bit by bit; and what is hashed.

#![allow(clippy::cast_possible_truncation)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::packet::Batch;

/// The suite's key.
const MICROSOFT: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
/// Source, destination, and the hashes without and with ports.
const SUITE: [(&str, u16, &str, u16, u32, u32); 8] = [
    ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
    ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
    ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
    ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
    ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
    ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
    (
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        "fe80::200:f8ff:fe21:67cf",
        38024,
        0x4b61_e985,
        0x02d1_feef,
    ),
];
const ALL: u32 = regs::MRQC_RSS
    | regs::MRQC_TCP_IPV4
    | regs::MRQC_IPV4
    | regs::MRQC_TCP_IPV6
    | regs::MRQC_IPV6_EX
    | regs::MRQC_IPV6;

/// What a driver programs, with every second entry of the table for ring 1.
fn device(key: &[u8; 40], mrqc: u32) -> (Registers, Rss) {
    let regs = Registers::new(None).unwrap();
    for (word, bytes) in (0..).zip(key.chunks_exact(4)) {
        regs.set(regs::RSSRK + 4 * word, u32::from_le_bytes(bytes.try_into().unwrap()));
    }
    (0..32).for_each(|word| regs.set(regs::RETA + 4 * word, 0x8000_8000));
    regs.set(regs::MRQC, mrqc);
    regs.set(regs::RFCTL, regs::RFCTL_EXTEN);
    regs.set(regs::RXCSUM, regs::RXCSUM_PCSD);
    let mut rss = Rss::new();
    assert!(Rss::is_on(&regs));
    rss.refresh(&regs);
    (regs, rss)
}

/// A packet: tags, addresses, bytes between the fixed header and the transport's, protocol, ports.
fn packet(tags: usize, src: IpAddr, dst: IpAddr, between: &[u8], protocol: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 5]));
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let words = 5 + between.len() / 4;
            frame.extend([8, 0, 0x40 | words as u8, 0, 0, 100, 0, 7, 0, 0, 64, protocol, 0, 0]);
            frame.extend(src.octets().into_iter().chain(dst.octets()));
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 100]);
            frame.extend(if between.is_empty() { [protocol, 64] } else { [60, 64] });
            frame.extend(src.octets().into_iter().chain(dst.octets()));
        }
        _ => unreachable!(),
    }
    frame.extend(between);
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame.extend([0; 16]);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// What is decided on `frame`: ring, kind and hash.
fn choose(regs: &Registers, rss: &Rss, bytes: &[u8]) -> (usize, u64, u32) {
    let mut batch = Batch::new();
    let (frame, _) = batch.next_frame().unwrap();
    let near = bytes.len().min(64);
    frame.head[..near].copy_from_slice(&bytes[..near]);
    (frame.len, frame.pieces) = (bytes.len() as u32, 0);
    batch.commit();
    let (ring, mark) = rss.choose(regs, &batch.frames()[0]);
    assert_eq!(mark >> 8 & 0xff_ffff, ring as u64, "the descriptor names the ring");
    (ring, mark & 0xff, (mark >> 32) as u32)
}

#[test]
fn microsofts_suite_holds() {
    let (regs, rss) = device(&MICROSOFT, ALL);
    for (src, sport, dst, dport, plain, tcp) in SUITE {
        let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let kinds = if src.is_ipv4() { [2, 1] } else { [4, 3] };
        for tags in [0, 1] {
            let of = |protocol| choose(&regs, &rss, &packet(tags, src, dst, &[], protocol, [sport, dport]));
            for (protocol, kind, hash) in [(17, kinds[0], plain), (6, kinds[1], tcp)] {
                assert_eq!(of(protocol), ((hash & 1) as usize, kind, hash), "{src} {protocol} {tags}");
            }
        }
    }
}

#[test]
fn what_is_not_asked_for_goes_to_the_first_ring() {
    const NONE: (usize, u64, u32) = (0, 0, 0);
    let (v4, v6) =
        (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)), IpAddr::V6(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, 8)));
    let (all, rss) = device(&MICROSOFT, ALL);
    (0..32).for_each(|word| all.set(regs::RETA + 4 * word, u32::MAX));
    let tcp = |tags, between: &[u8]| packet(tags, v4, v4, between, 6, [1, 2]);
    let arp = [&tcp(0, &[])[..12], &[8, 6], &[0; 46]].concat();
    let mut group = tcp(0, &[]);
    group[0] |= 1;
    let mut short = tcp(0, &[]);
    short.truncate(30);
    for frame in [arp, group, short, tcp(2, &[])] {
        assert_eq!(choose(&all, &rss, &frame), NONE);
    }
    // Fragments have no ports, whether or not one has a header.
    let mut fragment = tcp(0, &[]);
    fragment[20] = 0x20;
    let plain = choose(&all, &rss, &packet(0, v4, v4, &[], 17, [3, 4]));
    assert_eq!((choose(&all, &rss, &fragment), plain.0, plain.1), (plain, 1, 2));
    // Options move the ports out of the head, and extension headers do: then only addresses count.
    assert_eq!((choose(&all, &rss, &tcp(0, &[])).1, choose(&all, &rss, &tcp(1, &[1; 40]))), (1, plain));
    let six = |between: &[u8]| packet(0, v6, v6, between, 6, [1, 2]);
    let near = choose(&all, &rss, &six(&[]));
    let far = choose(&all, &rss, &packet(0, v6, v6, &[], 17, [1, 2]));
    assert_eq!((near.1, far.1, choose(&all, &rss, &six(&[6, 0, 1, 4, 0, 0, 0, 0]))), (3, 4, far));
    all.set(regs::RFCTL, regs::RFCTL_EXTEN | regs::RFCTL_IPV6_EX_DIS);
    assert_eq!(choose(&all, &rss, &six(&[6, 0, 1, 4, 0, 0, 0, 0])).1, 5);
    assert_eq!(choose(&all, &rss, &six(&[])), near);
    // Each bit for itself.
    for (bit, kinds) in [
        (regs::MRQC_TCP_IPV4, [1, 0, 0, 0]),
        (regs::MRQC_IPV4, [2, 2, 0, 0]),
        (regs::MRQC_TCP_IPV6, [0, 0, 3, 0]),
        (regs::MRQC_IPV6_EX, [0, 0, 4, 4]),
        (regs::MRQC_IPV6, [0, 0, 5, 5]),
    ] {
        let (one, rss) = device(&MICROSOFT, regs::MRQC_RSS | bit);
        let frames = [(v4, 6), (v4, 17), (v6, 6), (v6, 17)];
        let got =
            frames.map(|(ip, protocol)| choose(&one, &rss, &packet(0, ip, ip, &[], protocol, [1, 2])).1);
        assert_eq!(got, kinds, "{bit:#x}");
    }
    // The hash takes the place of a checksum that the driver can ask for instead; the ring is the same.
    all.set(regs::RXCSUM, 0);
    assert_eq!(choose(&all, &rss, &tcp(0, &[])), (1, 1, 0));
    all.set(regs::MRQC, ALL & !regs::MRQC_ENABLE);
    assert!(!Rss::is_on(&all));
    all.set(regs::MRQC, ALL);
    all.set(regs::RFCTL, 0);
    assert!(!Rss::is_on(&all));
}

/// Bit by bit, as Microsoft's documentation has it.
fn oracle(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    (0..8 * input.len())
        .filter(|at| bit(input, *at) == 1)
        .fold(0, |sum, at| sum ^ (at..at + 32).fold(0, |word, at| word << 1 | u32::from(bit(key, at))))
}

proptest! {
    #[test]
    fn the_table_adds_up_to_the_hash(
        keys in prop::array::uniform2(prop::array::uniform32(any::<u8>())),
        input in prop::collection::vec(any::<u8>(), 0..=INPUT),
    ) {
        let mut rss = Rss::new();
        for key in keys {
            let key: [u8; 40] = std::array::from_fn(|at| key[at % 32] ^ (at / 32) as u8);
            let (regs, _) = device(&key, ALL);
            rss.refresh(&regs);
            prop_assert_eq!(rss.hash(&input), oracle(&key, &input));
        }
    }
}
