//! The fields of a frame that a filter looks at, from its Ethernet addresses to the flags of TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ether::{be16, Ether, Mac, ARP};
use super::frame::{Batch, Frame};
use super::ip::{Ip, FRAGMENT, ICMP, ICMPV6, TCP, UDP};
use crate::slice::upto;

/// How ARP begins that resolves addresses of IPv4 to stations of Ethernet (RFC 826).
const ARP_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Types of ICMPv6 (RFC 4861 §4.3, §4.4).
const SOLICITATION: u16 = 135;
/// A neighbour advertisement.
pub const ADVERTISEMENT: u16 = 136;

/// The unspecified addresses; IPv4 is mapped.
pub const UNSPECIFIED: [u128; 2] = [0, 0xffff << 32];

/// `address` as a number; IPv4 is mapped.
#[must_use]
pub fn ip_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(it) => it.to_ipv6_mapped().to_bits(),
        IpAddr::V6(it) => it.to_bits(),
    }
}

/// What there is behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4 {
    /// It is no IP packet, or its protocol has no ports.
    None,
    /// A fragment without the ports, which are in the first one.
    Later,
    /// The ports lie behind the bytes at hand, or where no honest sender puts them (RFC 1858).
    Hidden,
    /// Source and destination, of ICMP type and code; and the flags, if they lie within the bytes at hand. Other protocols than
    /// TCP have none set.
    Ports(u16, u16, Option<u8>),
}

/// The fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Destination, first byte highest.
    pub dst_mac: u64,
    /// Source, first byte highest.
    pub src_mac: u64,
    /// The VLAN of its outermost tag; 0: none.
    pub tag: u16,
    /// What follows its tags.
    pub ethertype: u16,
    /// The protocol in IP; 0 of other frames.
    pub protocol: u8,
    /// The source of IP and ARP; IPv4 mapped (RFC 4291 §2.5.5.2); 0 of other frames.
    pub src: u128,
    /// The destination.
    pub dst: u128,
    /// What follows.
    pub l4: L4,
}

impl Fields {
    /// Those of the frame that begins with `head`. `None`: it has no whole Ethernet header.
    #[must_use]
    #[inline]
    pub fn find(head: &[u8]) -> Option<Fields> {
        let ether = Ether::parse(head)?;
        let number = |Mac([a, b, c, d, e, f])| u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let mut fields = Fields {
            dst_mac: number(ether.dst),
            src_mac: number(ether.src),
            tag: ether.tci.unwrap_or(0) & 0xfff,
            ethertype: ether.ethertype,
            protocol: 0,
            src: 0,
            dst: 0,
            l4: L4::None,
        };
        if ether.ethertype == ARP {
            fields.resolve(head.get(ether.l3..).unwrap_or_default());
        } else if let Some(ip) = Ip::at(head, ether.ethertype, ether.l3) {
            // That of the fixed header, by which the packet travels: what a routing header names may lie behind the bytes at hand.
            let dst = ip.src + ip.address_len();
            (fields.src, fields.dst) = (address(head, &ip, ip.src)?, address(head, &ip, dst)?);
            (fields.protocol, fields.l4) = transport(head, &ip);
        }
        Some(fields)
    }

    /// Who asks by ARP, and for whom.
    fn resolve(&mut self, arp: &[u8]) {
        let address = |at: usize| arp.get(at..)?.first_chunk().copied();
        if arp.starts_with(&ARP_IPV4) {
            self.src = address(14).map_or(0, mapped);
            self.dst = address(24).map_or(0, mapped);
        }
    }
}

/// Whose address the sender of a frame for many says that it has, and for which it asks, by ARP or Neighbor Discovery.
/// `None`: the frame is of neither.
#[must_use]
pub fn asks(batch: &Batch, frame: &Frame) -> Option<(u128, Option<u128>)> {
    const REQUEST: u16 = 1;
    let mut bytes = [0; 86];
    let len = batch.read(frame, 0, &mut bytes);
    let bytes = upto(&bytes, len);
    let fields = Fields::find(bytes).filter(|fields| fields.tag == 0)?;
    match (fields.ethertype, fields.protocol, fields.l4) {
        (ARP, ..) => Some((fields.src, (be16(bytes, 20) == Some(REQUEST)).then_some(fields.dst))),
        (_, ICMPV6, L4::Ports(SOLICITATION, ..)) => Some((fields.src, advertised(bytes))),
        (_, ICMPV6, L4::Ports(ADVERTISEMENT, ..)) => Some((advertised(bytes)?, None)),
        _ => None,
    }
}

/// The target of the neighbour solicitation or advertisement (RFC 4861 §4.4) in the frame that begins with `head`.
#[must_use]
pub fn advertised(head: &[u8]) -> Option<u128> {
    let (ICMPV6, at) = Ip::parse(head)?.l4? else { return None };
    head.get(at + 8..)?.first_chunk::<16>().map(|it| Ipv6Addr::from(*it).to_bits())
}

fn mapped(address: [u8; 4]) -> u128 {
    Ipv4Addr::from(address).to_ipv6_mapped().to_bits()
}

/// The address at byte `at`. A mapped one in IPv6, which no packet may have, is no IPv4 address: its first bit is another.
#[inline]
fn address(head: &[u8], ip: &Ip, at: usize) -> Option<u128> {
    let bytes = head.get(at..)?;
    if !ip.v6 {
        return bytes.first_chunk().copied().map(mapped);
    }
    let number = Ipv6Addr::from(*bytes.first_chunk::<16>()?).to_bits();
    Some(if number >> 32 == 0xffff { number | 1 << 127 } else { number })
}

/// The protocol of a packet, and what is seen of it.
#[inline]
fn transport(head: &[u8], ip: &Ip) -> (u8, L4) {
    if let Some((protocol, at)) = ip.l4 {
        return (protocol, ports(head, protocol, at));
    }
    let Some(&named) = head.get(ip.named.0) else { return (0, L4::Hidden) };
    if !ip.v6 {
        // A fragment: RFC 791 §3.1. The second one may not begin within the header of TCP.
        let offset = be16(head, ip.at + 6).unwrap_or(0) & 0x1fff;
        return match offset {
            0 => (named, ports(head, named, ip.end)),
            1 if named == TCP => (named, L4::Hidden),
            _ => (named, L4::Later),
        };
    }
    if named != FRAGMENT {
        return (named, L4::Hidden);
    }
    // RFC 8200 §4.5.
    let at = match ip.named {
        (_, u8::MAX) => ip.end,
        (at, _) => at + (usize::from(head.get(at + 1).copied().unwrap_or(0)) + 1) * 8,
    };
    match (head.get(at), be16(head, at + 2)) {
        (Some(&next), Some(offset)) if offset >> 3 == 0 => (next, ports(head, next, at + 8)),
        (Some(&next), Some(_)) => (next, L4::Later),
        _ => (named, L4::Hidden),
    }
}

/// The ports of a packet whose transport header begins at byte `at`.
#[inline]
fn ports(head: &[u8], protocol: u8, at: usize) -> L4 {
    let pair = || Some((be16(head, at)?, be16(head, at + 2)?));
    match protocol {
        TCP => pair().map_or(L4::Hidden, |(from, to)| L4::Ports(from, to, head.get(at + 13).copied())),
        UDP => pair().map_or(L4::Hidden, |(from, to)| L4::Ports(from, to, Some(0))),
        ICMP | ICMPV6 => be16(head, at).map_or(L4::Hidden, |both| L4::Ports(both >> 8, both & 0xff, Some(0))),
        // Extension headers behind a fragment's may lead to ports.
        0 | 43 | 60 => L4::Hidden,
        _ => L4::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ethertype: u16, rest: &[&[u8]]) -> Vec<u8> {
        [&[0x02, 0, 0, 0, 0, 9, 0x02, 0, 0, 0, 0, 1][..], &ethertype.to_be_bytes(), &rest.concat()].concat()
    }

    fn four(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let [a, b] = fragment.to_be_bytes();
        let header = [0x45, 0, 0, 0, 0, 0, a, b, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        frame(0x0800, &[&header, rest])
    }

    fn six(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = [0; 40];
        (header[0], header[6], header[23], header[39]) = (0x60, next, 1, 2);
        frame(0x86dd, &[&header, rest])
    }

    const PORTS: [u8; 20] = [0, 80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0];

    #[test]
    fn ports_are_where_they_are_and_nowhere_else() {
        let l4 = |bytes: &[u8]| Fields::find(bytes).unwrap().l4;
        let tcp = L4::Ports(80, 256, Some(0x12));
        assert_eq!(l4(&four(6, 0, &PORTS)), tcp);
        assert_eq!(l4(&four(17, 0x4000, &PORTS)), L4::Ports(80, 256, Some(0)));
        assert_eq!(l4(&four(1, 0, &[8, 3])), L4::Ports(8, 3, Some(0)));
        // The first of several fragments, the next ones, and one that would lay flags over the first.
        let fragments = [0x2000, 0x2001, 0x2002, 5].map(|it| l4(&four(6, it, &PORTS)));
        assert_eq!(fragments, [tcp, L4::Hidden, L4::Later, L4::Later]);
        assert_eq!(
            (l4(&four(6, 0, &PORTS[..13])), l4(&four(6, 0, &PORTS[..3]))),
            (L4::Ports(80, 256, None), L4::Hidden)
        );
        assert_eq!((l4(&four(47, 0, &PORTS)), l4(&frame(0x88b5, &[&PORTS]))), (L4::None, L4::None));
        assert_eq!(l4(&six(6, &PORTS)), tcp);
        let options = [6, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(l4(&six(60, &[&options[..], &PORTS].concat())), tcp);
        let fragment = |offset: u16| {
            let [a, b] = (offset << 3 | 1).to_be_bytes();
            six(60, &[&[44, 0, 0, 0, 0, 0, 0, 0, 6, 0, a, b, 0, 0, 0, 1][..], &PORTS].concat())
        };
        assert_eq!((l4(&fragment(0)), l4(&fragment(7))), (tcp, L4::Later));
        // Headers that end behind the bytes at hand.
        let long = six(60, &[&options[..], &PORTS].concat());
        assert_eq!((l4(&long[..58]), l4(&long[..64])), (L4::Hidden, L4::Hidden));
    }

    /// A routing header (RFC 8754 §2) that names another destination behind the bytes at hand hides neither address.
    #[test]
    fn a_routing_header_hides_no_address() {
        let mut routed = six(43, &[&[6, 2, 0, 1][..], &[0; 20], &PORTS].concat());
        let seen = |bytes: &[u8]| Fields::find(bytes).map(|it| (it.src, it.dst));
        for (kind, len) in [(0, 78), (0, 64), (4, 64), (4, 54)] {
            routed[56] = kind;
            assert_eq!(seen(&routed[..len]), Some((1, 2)), "{kind} {len}");
        }
    }

    #[test]
    fn addresses_of_all_sorts() {
        let both = |bytes: &[u8]| Fields::find(bytes).map(|it| (it.src, it.dst)).unwrap();
        let ip = |last| mapped([10, 0, 0, last]);
        assert_eq!(both(&four(6, 0, &PORTS)), (ip(1), ip(2)));
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[2; 6], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]].concat();
        assert_eq!(both(&frame(0x0806, &[&arp])), (ip(1), ip(2)));
        assert_eq!(both(&frame(0x0806, &[&[9; 28]])), (0, 0));
        let mut odd = six(6, &PORTS);
        odd[22..38].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(both(&odd), (ip(1) | 1 << 127, 2));
        let tagged = [&odd[..12], &[0x81, 0, 0xe0, 7], &odd[12..]].concat();
        let fields = Fields::find(&tagged).unwrap();
        assert_eq!((fields.tag, fields.ethertype, fields.dst_mac), (7, 0x86dd, 0x0200_0000_0009));
    }
}
