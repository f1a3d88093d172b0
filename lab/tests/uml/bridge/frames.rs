//! Random frames, and marks: the frames that tell that what was sent before them has passed.

use super::config::{Config, Protocol, VLANS};
use super::random::Random;
use super::PORTS;

/// VLANs of tags that no port takes.
const STRANGE: [u16; 3] = [2, 40, 4095];
/// The address of PAUSE frames.
pub const PAUSE: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 1];
/// The address of LLDP frames (IEEE 802.1AB §7.1).
pub const LLDP: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0x0e];
/// Reserved addresses, by their last byte, that a provider's bridge passes on (802.1Q table 8-2), and one
/// that becomes its own.
pub const PROVIDER: [u8; 5] = [0x08, 0x0b, 0x0c, 0x0d, 0x0f];
/// Bytes of Ethernet's addresses, of its header, of a tag, and the most behind them.
pub const ADDRESSES: usize = 12;
const HEADER: usize = 14;
pub const TAG: usize = 4;
const MTU: usize = 1500;
/// A mark's type, which lists permit, and what its payload begins with.
pub const MARK_TYPE: u16 = 0x88b6;
pub const MARK: &[u8] = b"a mark of the test: ";
/// Types: a local experiment's, and those of which rules speak.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
pub const IPV4: [u8; 2] = [8, 0];
pub const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [8, 6];
/// Protocols in IP.
const ICMP: u8 = 1;
pub const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const GRE: u8 = 47;
pub const AH: u8 = 51;
/// Extension headers of IPv6.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const OPTIONS: u8 = 60;
/// Where a fragment begins, in eights of bytes, is in the upper bits of what IPv6 says of it.
const OFFSET_SHIFT: u16 = 3;

/// Station `number` behind port `at`.
pub fn station(at: usize, number: u8) -> [u8; 6] {
    [2, 0, 0, 0, u8::try_from(at).unwrap(), number]
}

/// A random frame that the peer of port `from` sends, which is configured so. With `lists`, one in which
/// nftables sees what ours see: honest packets, behind one tag of the port's at most.
pub fn random_frame(random: &mut Random, from: usize, config: &Config, lists: bool) -> Vec<u8> {
    let to = match random.below(10) {
        0..=4 => {
            let behind = usize::try_from(random.below(PORTS as u64)).unwrap();
            station(behind, random.one(&[0, 1]))
        }
        5 => [2, 0, 0, 0, 0xee, random.byte()],
        6 => [0xff; 6],
        7 => [1, 0, 0x5e, 0, 0, random.byte()],
        8 => [0x33, 0x33, 0, 0, 0, random.byte()],
        // Those that end at a bridge, the spanning tree's, which passes, and two behind them.
        _ => loop {
            let last = random.byte() % 18;
            let provider = config.protocol == Protocol::Service && PROVIDER.contains(&last);
            if !(provider || lists && last == LLDP[5]) {
                break [1, 0x80, 0xc2, 0, 0, last];
            }
        },
    };
    // Who asks for a PAUSE is asked for nothing: see `what_differs`.
    let number = if to == PAUSE { 0xfe } else { random.one(&[0, 1]) };
    let mut frame = [to, station(from, number)].concat();
    let carried: Vec<u16> = config.vlans().into_keys().collect();
    let tags = match config.own() {
        Some(_) => random.one(&[0, 0, 0, 0, 1, 1, 1, 2]),
        None => random.one(&[0, 1, 1, 1, 1, 1, 2, 2]),
    };
    let tags = if lists { tags.min(1) } else { tags };
    for at in 0..tags {
        let vlan = match random.below(20) {
            0 | 1 => 0,
            2 => random.one(&STRANGE),
            3 | 4 => random.one(&VLANS),
            _ => random.one(&carried),
        };
        let usual = if at == 0 { config.protocol } else { Protocol::Customer };
        let protocol = if lists || random.percent(90) { usual } else { usual.other() };
        // Any priority, with and without the bit that says that it may be dropped.
        frame.extend(protocol.tag(vlan | (u16::from(random.byte()) << 8 & 0xf000)));
    }
    let most = MTU - if tags == 2 { TAG } else { 0 };
    match random.below(10) {
        0..=5 if lists => packet(random, &mut frame),
        0..=2 => packet(random, &mut frame),
        3 => frame.extend([&[0, 38, 0x42, 0x42, 3][..], &[0; 35]].concat()),
        _ => {
            // A local experiment, IP and ARP that are none, and a length instead of a type.
            let any = [EXPERIMENT, IPV4, IPV6, ARP, [0, 40]];
            frame.extend(if lists { EXPERIMENT } else { random.one(&any) });
            let payload = match random.below(10) {
                // Shorter than Ethernet's, as virtual cards send them.
                0 => 2 + random.size(44),
                1 => most,
                2 => random.size(most).max(2),
                _ => 46 + random.size(20),
            };
            frame.extend((0..payload).map(|_| random.byte()));
        }
    }
    frame
}

/// Appends an honest packet of IPv4, IPv6 or ARP with its type, and sometimes the bytes up to Ethernet's
/// shortest frame.
fn packet(random: &mut Random, frame: &mut Vec<u8>) {
    let (kind, bytes) = match random.below(10) {
        0..=4 => (IPV4, random_ipv4(random)),
        5..=8 => (IPV6, random_ipv6(random)),
        _ => (ARP, arp(random)),
    };
    frame.extend(kind);
    frame.extend(bytes);
    if random.percent(50) {
        frame.resize(frame.len().max(60), 0);
    }
}

fn arp(random: &mut Random) -> Vec<u8> {
    let operation = [0, random.one(&[1, 2])];
    let (sender, target) = (four_address(random), four_address(random));
    [&[0, 1, 8, 0, 6, 4][..], &operation, &[2; 6], &sender, &[0; 6], &target].concat()
}

/// Near those that rules name.
fn four_address(random: &mut Random) -> [u8; 4] {
    let [a, b, c] = random.one(&[[192, 0, 2], [198, 51, 100], [203, 0, 113]]);
    [a, b, c, random.one(&[1, 2, 129])]
}

fn six_address(random: &mut Random) -> [u8; 16] {
    let mut address = [0; 16];
    address[..6].copy_from_slice(&random.one(&[
        [0x20, 1, 0xd, 0xb8, 0, 1],
        [0x20, 1, 0xd, 0xb8, 0, 2],
        [0xfe, 0x80, 0, 0, 0, 0],
    ]));
    address[15] = random.one(&[1, 2]);
    address
}

/// A transport's header, near what rules name, and something behind it. Nobody here asks for its checksum.
fn transport(random: &mut Random, protocol: u8) -> Vec<u8> {
    let mut port = || random.one(&[22u16, 53, 66, 80, 1024, 40_000]).to_be_bytes();
    let ports = [port(), port()].concat();
    let mut bytes = match protocol {
        TCP => {
            let options = random.one(&[0u8, 1, 3]);
            let flags = random.one(&[0x02, 0x12, 0x10, 0x18, 0x04, 0x29]);
            let mut header = [&ports[..], &[0; 8], &[(5 + options) << 4, flags], &[0; 6]].concat();
            header.resize(20 + 4 * usize::from(options), 1);
            header
        }
        UDP => [&ports[..], &[0, 20, 0, 0]].concat(),
        ICMP | ICMPV6 => vec![random.one(&[0, 3, 8, 134, 135]), random.one(&[0, 1]), 0, 0, 0, 0, 0, 0],
        _ => vec![0; 4],
    };
    bytes.extend((0..random.size(30)).map(|_| random.byte()));
    bytes
}

fn random_ipv4(random: &mut Random) -> Vec<u8> {
    let protocol = random.one(&[TCP, TCP, UDP, UDP, ICMP, GRE]);
    // Whole, not to be cut, a first fragment, later ones.
    let fragment = match random.below(8) {
        0 => 0x4000,
        1 => 0x2000,
        2 => 0x2002 + u16::from(random.byte()),
        3 => 2 + u16::from(random.byte()),
        _ => 0,
    };
    let behind = match fragment & 0x1fff {
        0 => transport(random, protocol),
        _ => (0..8 + random.size(30)).map(|_| random.byte()).collect(),
    };
    let options = random.one(&[0, 0, 0, 4, 12, 40]);
    let (src, dst) = (four_address(random), four_address(random));
    ipv4(options, fragment, protocol, [src, dst], &behind)
}

/// A packet of IPv4 with so many bytes of options, of which each is the one for padding (RFC 791 §3.1).
pub fn ipv4(options: u8, fragment: u16, protocol: u8, [src, dst]: [[u8; 4]; 2], behind: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + usize::from(options) + behind.len()).unwrap();
    let words = [length.to_be_bytes(), [0, 0], fragment.to_be_bytes(), [64, protocol], [0, 0]].concat();
    let padding = vec![1; options.into()];
    [&[0x45 + options / 4, 0][..], &words, &src, &dst, &padding, behind].concat()
}

fn random_ipv6(random: &mut Random) -> Vec<u8> {
    let protocol = random.one(&[TCP, TCP, UDP, UDP, ICMPV6, GRE]);
    // Headers, each of which says of what kind the next one is (RFC 8200 §4.1).
    let mut chain: Vec<(u8, Vec<u8>)> = Vec::new();
    let options = |random: &mut Random| {
        let length = random.one(&[0, 0, 1, 2]);
        let mut bytes = vec![0; 8 + 8 * usize::from(length)];
        bytes[1] = length;
        // PadN (§4.2).
        (bytes[2], bytes[3]) = (1, 4 + 8 * length);
        bytes
    };
    if random.percent(20) {
        chain.push((HOP_BY_HOP, options(random)));
    }
    if random.percent(20) {
        chain.push((OPTIONS, options(random)));
    }
    if random.percent(10) {
        let mut routing = vec![0; 24];
        routing[1] = 2;
        chain.push((ROUTING, routing));
    }
    let mut behind = transport(random, protocol);
    if random.percent(30) {
        let offset = if random.percent(50) { 0 } else { 1 + u16::from(random.byte()) };
        let place = (offset << OFFSET_SHIFT | random.one(&[0, 1])).to_be_bytes();
        chain.push((FRAGMENT, [&[0, 0][..], &place, &[0, 0, 0, 1]].concat()));
        if offset != 0 {
            behind = (0..8 + random.size(30)).map(|_| random.byte()).collect();
        } else if random.percent(20) {
            chain.push((OPTIONS, options(random)));
        }
    }
    let (src, dst) = (six_address(random), six_address(random));
    ipv6(chain, protocol, [src, dst], &behind)
}

/// A packet of IPv6 with these headers, each with its kind, before the transport's.
pub fn ipv6(chain: Vec<(u8, Vec<u8>)>, protocol: u8, [src, dst]: [[u8; 16]; 2], behind: &[u8]) -> Vec<u8> {
    let mut next = protocol;
    let mut bytes = behind.to_vec();
    for (kind, mut header) in chain.into_iter().rev() {
        header[0] = std::mem::replace(&mut next, kind);
        bytes.splice(..0, header);
    }
    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0x60, 0, 0, 0][..], &length, &[next, 64], &src, &dst, &bytes].concat()
}

/// The tag at this place of a frame.
fn tag_at(frame: &[u8], at: usize, protocol: Protocol) -> Option<u16> {
    match *frame.get(at..at + TAG)? {
        [a, b, c, d] if [a, b] == protocol.number() => Some(u16::from_be_bytes([c, d])),
        _ => None,
    }
}

/// What a Linux bridge gives port `to`, and our switch does not, of a frame that `from` sent: one with two
/// tags, of which the first goes, since the port's frames of that VLAN have none. Whoever is there would take
/// it for a frame of the VLAN that the second one names, which the sender chose ("VLAN hopping";
/// docs/switch.md).
pub fn bared(frame: &[u8], from: &Config, to: &Config) -> Option<Vec<u8>> {
    let first = tag_at(frame, ADDRESSES, from.protocol)?;
    tag_at(frame, ADDRESSES + TAG, to.protocol)?;
    let vlan = match first & 0xfff {
        0 => from.own()?,
        vlan => vlan,
    };
    let goes = to.own() == Some(vlan) && from.vlans().contains_key(&vlan);
    goes.then(|| [&frame[..ADDRESSES], &frame[ADDRESSES + TAG..]].concat())
}

/// The end of batch `number`: to everybody in `vlan` from a station of its own behind `from`, with a tag if
/// there is a protocol.
pub fn mark(from: usize, number: u32, vlan: u16, tag: Option<Protocol>) -> Vec<u8> {
    let tag = tag.map_or_else(Vec::new, |protocol| protocol.tag(vlan));
    let mut frame = [
        &[0xff; 6][..],
        &station(from, 0xff),
        &tag,
        &MARK_TYPE.to_be_bytes(),
        MARK,
        &marked(from, number, vlan),
    ]
    .concat();
    frame.resize(HEADER + tag.len() + 46, 0);
    frame
}

/// What tells marks apart.
pub fn marked(from: usize, number: u32, vlan: u16) -> Vec<u8> {
    [&number.to_be_bytes()[..], &vlan.to_be_bytes(), &[u8::try_from(from).unwrap()]].concat()
}
