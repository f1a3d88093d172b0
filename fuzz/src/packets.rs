//! Packets as an honest sender makes them, with the offloads that it may ask for, and a look at what became
//! of them. The sums are added up here in the plainest way, not by the engine's code, so that the two are
//! compared.

/// Who sends, or is sent to.
#[derive(Clone, Copy)]
pub struct Station {
    /// Its station address.
    pub mac: [u8; 6],
    /// Its IPv4 address.
    pub four: [u8; 4],
    /// Its IPv6 address.
    pub six: [u8; 16],
}

/// A frame and its virtio-net header.
#[derive(Clone, Default)]
pub struct Packet {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// What the sender asks for (virtio 1.2 §5.1.6).
    pub header: [u8; 12],
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// The sum of RFC 1071, folded and not inverted.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut all = 0u64;
    for part in parts {
        // Each part but the last has an even length.
        for pair in part.chunks(2) {
            all += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while all > 0xffff {
        all = (all & 0xffff) + (all >> 16);
    }
    all as u16
}

fn pseudo(source: &[u8], destination: &[u8], protocol: u8, len: usize) -> u16 {
    sum(&[source, destination, &(len as u32).to_be_bytes(), &[0, protocol]])
}

/// What is in a packet, by a number; and how long it is.
pub fn packet(kind: u8, from: &Station, (mac, to): ([u8; 6], &Station), shape: u8, len: usize) -> Packet {
    let v6 = matches!(kind, 6..=10 | 12 | 15);
    match kind {
        0 | 1 => arp(kind == 1, from, mac, to),
        _ if v6 => over_six(kind, from, mac, to, shape, len),
        _ => over_four(kind, from, mac, to, shape, len),
    }
}

fn ether(from: &Station, mac: [u8; 6], kind: u16) -> Vec<u8> {
    [&mac[..], &from.mac, &kind.to_be_bytes()].concat()
}

/// RFC 826: a request, or an answer.
fn arp(answer: bool, from: &Station, mac: [u8; 6], to: &Station) -> Packet {
    let mut bytes = ether(from, if answer { mac } else { [0xff; 6] }, 0x0806);
    bytes.extend([0, 1, 8, 0, 6, 4, 0, 1 + u8::from(answer)]);
    bytes.extend([&from.mac[..], &from.four, &[0; 6], &to.four].concat());
    Packet { bytes, header: [0; 12] }
}

/// The transport's part: a header whose checksum stands as `offered` says, and a payload.
struct Transport {
    protocol: u8,
    bytes: Vec<u8>,
    /// Where its checksum stands.
    at: usize,
}

fn transport(kind: u8, from: &Station, to: &Station, shape: u8, len: usize) -> Transport {
    let payload: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(31) ^ shape).collect();
    let port = 1024 + u16::from(shape);
    let ports = [port.to_be_bytes(), 53u16.to_be_bytes()].concat();
    match kind {
        2 | 6 | 13..=15 => {
            let len = (8 + payload.len()) as u16;
            let head = [&ports[..], &len.to_be_bytes(), &[0, 0]].concat();
            Transport { protocol: UDP, bytes: [head, payload].concat(), at: 6 }
        }
        3 | 7 | 11 | 12 => {
            // CWR now and then, and options.
            let (flags, options) = (0x10 | (shape & 0x80), usize::from(shape & 3));
            let head =
                [&ports[..], &[0, 0, 0, 9, 0, 0, 0, 7, ((5 + options) as u8) << 4, flags, 1, 0, 0, 0, 0, 0]]
                    .concat();
            Transport { protocol: TCP, bytes: [head, vec![1; 4 * options], payload].concat(), at: 16 }
        }
        // An echo request; over IPv6 also a solicitation or an advertisement for a neighbour (RFC 4861 §4.3,
        // §4.4).
        9 => {
            let head = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &to.six, &[1, 1], &from.mac].concat();
            Transport { protocol: ICMP6, bytes: head, at: 2 }
        }
        10 => {
            let head = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &from.six, &[2, 1], &from.mac].concat();
            Transport { protocol: ICMP6, bytes: head, at: 2 }
        }
        8 => Transport {
            protocol: ICMP6,
            bytes: [vec![128, 0, 0, 0, 0, 1, 0, shape], payload].concat(),
            at: 2,
        },
        _ => Transport { protocol: ICMP, bytes: [vec![8, 0, 0, 0, 0, 1, 0, shape], payload].concat(), at: 2 },
    }
}

/// Puts the checksum into `part`, or has it asked for, and perhaps the packet cut.
fn seal(kind: u8, part: &mut Transport, pseudo: u16, start: usize, shape: u8) -> [u8; 12] {
    let asks = matches!(kind, 11..=15) || matches!(kind, 2 | 3 | 6 | 7) && shape & 4 != 0;
    if asks {
        // TCP's and UDP's field has the pseudo header's sum then (virtio 1.2 §5.1.6.2).
        part.bytes[part.at..part.at + 2].copy_from_slice(&pseudo.to_be_bytes());
        let cwr = part.protocol == TCP && part.bytes[13] & 0x80 != 0;
        let gso = match kind {
            11 => 1,
            12 => 4,
            13 | 15 => 5,
            14 => 3,
            _ => 0,
        };
        let gso = if gso != 0 && gso != 5 && cwr { gso | 0x80 } else { gso };
        let size = if gso == 0 { 0 } else { 64 + 8 * u16::from(shape >> 3) };
        let mut header = [0; 12];
        (header[0], header[1]) = (1, gso);
        let head = start + if part.protocol == TCP { usize::from(part.bytes[12] >> 4) * 4 } else { 8 };
        let fields = [head as u16, size, start as u16, part.at as u16];
        header
            .chunks_exact_mut(2)
            .skip(1)
            .zip(fields)
            .for_each(|(to, field)| to.copy_from_slice(&field.to_le_bytes()));
        return header;
    }
    let sum = match !sum(&[&pseudo.to_be_bytes(), &part.bytes]) {
        0 if part.protocol == UDP => 0xffff,
        sum => sum,
    };
    part.bytes[part.at..part.at + 2].copy_from_slice(&sum.to_be_bytes());
    [0; 12]
}

fn over_four(kind: u8, from: &Station, mac: [u8; 6], to: &Station, shape: u8, len: usize) -> Packet {
    let mut part = transport(kind, from, to, shape, len);
    // Options now and then: an end of the list.
    let options = usize::from(shape >> 5 & 1) * 4;
    let start = 14 + 20 + options;
    let ttl = [64, 64, 64, 1, 2, 255, 0, 64][usize::from(shape >> 2 & 7)];
    let total = (20 + options + part.bytes.len()) as u16;
    let flags = if shape & 0x40 == 0 { 0 } else { 0x40 };
    let mut ip = vec![0x45 + (options / 4) as u8, shape, 0, 0, 0, 7, flags, 0, ttl, part.protocol, 0, 0];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip.extend([from.four, to.four].concat());
    ip.extend(vec![0; options]);
    let own = (!sum(&[&ip])).to_be_bytes();
    ip[10..12].copy_from_slice(&own);
    let pseudo = match part.protocol {
        ICMP => 0,
        protocol => pseudo(&from.four, &to.four, protocol, part.bytes.len()),
    };
    let header = seal(kind, &mut part, pseudo, start, shape);
    Packet { bytes: [ether(from, mac, 0x0800), ip, part.bytes].concat(), header }
}

fn over_six(kind: u8, from: &Station, mac: [u8; 6], to: &Station, shape: u8, len: usize) -> Packet {
    let mut part = transport(kind, from, to, shape, len);
    let hops = if matches!(kind, 9 | 10) {
        255
    } else {
        [64, 64, 64, 1, 2, 255, 0, 64][usize::from(shape >> 2 & 7)]
    };
    let mut ip = vec![0x60, 0, 0, shape];
    ip.extend((part.bytes.len() as u16).to_be_bytes());
    ip.extend([part.protocol, hops]);
    ip.extend([from.six, to.six].concat());
    let pseudo = pseudo(&from.six, &to.six, part.protocol, part.bytes.len());
    let header = seal(kind, &mut part, pseudo, 54, shape);
    Packet { bytes: [ether(from, mac, 0x86dd), ip, part.bytes].concat(), header }
}

/// Checks a frame that comes of an honest packet: lengths and sums are right, but for a checksum (`asked`)
/// that the receiver said it would complete itself, and in frames that it will cut itself (`cut`).
///
/// # Panics
/// If something is wrong.
pub fn check(frame: &[u8], asked: bool, cut: bool) {
    // No station sends a tag: the receiver's port is a trunk.
    let tag = if matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]) { 4 } else { 0 };
    let frame = &frame[tag..];
    let packet = &frame[14..];
    let (v6, start) = match (u16::from_be_bytes([frame[12], frame[13]]), packet[0] >> 4) {
        (0x0800, 4) => (false, usize::from(packet[0] & 15) * 4),
        (0x86dd, 6) => (true, 40),
        (0x0806, _) => return,
        other => panic!("no honest station sends that: {other:?}"),
    };
    let total = match v6 {
        true => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
        false => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
    };
    assert!(cut || total == packet.len(), "{total} bytes are said of {}", packet.len());
    assert!(v6 || sum(&[&packet[..start]]) == 0xffff, "the header's sum");
    let fragment =
        if v6 { packet[6] == 44 } else { u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0 };
    if fragment || asked || cut {
        return;
    }
    let part = &packet[start..];
    let (protocol, ends) = match v6 {
        true => (packet[6], &packet[8..40]),
        false => (packet[9], &packet[12..20]),
    };
    let (source, destination) = ends.split_at(ends.len() / 2);
    let pseudo = if protocol == ICMP { 0 } else { pseudo(source, destination, protocol, part.len()) };
    let unchecked = protocol == UDP && !v6 && part[6..8] == [0, 0];
    assert!(unchecked || sum(&[&pseudo.to_be_bytes(), part]) == 0xffff, "the sum of protocol {protocol}");
}
