//! The fields of a frame that a filter looks at, from its Ethernet addresses to the flags of TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ether::{be16, Ether, Mac, ARP, IPV4, IPV6};
use super::frame::{Batch, Frame, HEAD, MAX_BATCH, PRIORITIES};
use super::ip::{Ip, Upper, ICMP, ICMPV6, MAX_HEADER, TCP, UDP};
use super::offload::{BadOffload, Offloads};
use crate::mem::Arena;
use crate::util::slice::{behind, upto};

/// Bytes of a frame that are read once: tags may go on its way, that of a VLAN and [`PRIORITIES`], and what
/// is looked at is then that much longer.
const READ_ONCE: usize = MAX_HEADER + 4 * (1 + PRIORITIES as usize);
/// Bytes of ARP for addresses of IPv4 and Ethernet, and of a request what its operation is.
const ARP_LEN: usize = 28;
const REQUEST: u16 = 1;
/// How ARP begins that resolves addresses of IPv4 to stations of Ethernet (RFC 826).
const ARP_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Neighbour solicitation and advertisement: types of ICMPv6 (RFC 4861 §4.3, §4.4).
pub const SOLICITATION: u16 = 135;
/// See [`SOLICITATION`].
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
    /// It is no IP packet, or its protocol has no ports: ESP, GRE, no next header, one that is not known.
    None,
    /// A fragment without the ports, which are in the first one.
    Later,
    /// The ports lie behind the bytes at hand, or where no honest sender puts them (RFC 1858).
    Hidden,
    /// The headers cannot be followed to a protocol within the bytes at hand. It may be any.
    Unknown,
    /// Source and destination, of ICMP type and code; and the flags, if they lie within the bytes at hand.
    /// Other protocols than TCP have none set.
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
    /// What follows its tags and SNAP headers.
    pub ethertype: u16,
    /// The protocol in IP; 0 of other frames.
    pub protocol: u8,
    /// The source of IP and ARP; IPv4 mapped (RFC 4291 §2.5.5.2); 0 of other frames.
    pub src: u128,
    /// The destination.
    pub dst: u128,
    /// What follows.
    pub l4: L4,
    /// For which address an ARP request or a neighbour solicitation asks, or which one a neighbour
    /// advertisement announces.
    pub target: Option<u128>,
}

impl Fields {
    /// Those of `frame`: found in its head, and only if something is missing there, in as many bytes as
    /// headers may have.
    #[must_use]
    pub fn of(batch: &Batch, frame: &Frame) -> Option<Fields> {
        let near = Fields::find(frame.head())?;
        if near.is_whole() || frame.len as usize <= frame.head.len() {
            return Some(near);
        }
        let mut bytes = [0; MAX_HEADER];
        let len = batch.read(frame, 0, &mut bytes);
        Fields::find(upto(&bytes, len))
    }

    /// Whether all that rules look at lies in `head`, with which a frame of `len` bytes begins.
    #[must_use]
    #[inline]
    pub fn end_in(head: &[u8], len: usize) -> bool {
        // IPv4 without tags and options, but for later fragments: the most frequent frames.
        let plain = |it: &[u8; 48]| {
            it[12..15] == [8, 0, 0x45]
                && [it[20] & 0x1f, it[21]] == [0, 0]
                && matches!(it[23], TCP | UDP | ICMP)
        };
        len <= head.len()
            || head.first_chunk().is_some_and(plain)
            || Fields::find(head).is_none_or(|fields| fields.is_whole())
    }

    /// Those of the frame that begins with `head`, of which at most [`MAX_HEADER`] bytes are looked at.
    /// `None`: it has no whole Ethernet header.
    #[must_use]
    #[inline]
    pub fn find(head: &[u8]) -> Option<Fields> {
        let head = upto(head, MAX_HEADER);
        let ether = Ether::parse(head)?.innermost(head);
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
            target: None,
        };
        match ether.ethertype {
            ARP => fields.resolve(behind(head, ether.l3)),
            IPV4 | IPV6 => match Ip::at(head, ether.ethertype, ether.l3) {
                Some(ip) => fields.packet(head, &ip),
                None => fields.l4 = L4::Unknown,
            },
            _ if ether.hides(head) => fields.l4 = L4::Unknown,
            _ => {}
        }
        Some(fields)
    }

    /// Who asks by ARP, and for whom.
    fn resolve(&mut self, arp: &[u8]) {
        let address = |at: usize| arp.get(at..)?.first_chunk().copied();
        if arp.len() < ARP_LEN {
            self.l4 = L4::Unknown;
        } else if arp.starts_with(&ARP_IPV4) {
            self.src = address(14).map_or(0, mapped);
            self.dst = address(24).map_or(0, mapped);
            self.target = (be16(arp, 6) == Some(REQUEST)).then_some(self.dst);
        }
    }

    #[inline]
    fn packet(&mut self, head: &[u8], ip: &Ip) {
        // The destination is that of the fixed header, by which the packet travels: what a routing header
        // names may lie behind the bytes at hand.
        let both = [ip.src, ip.src + ip.address_len()].map(|at| address(head, ip, at).unwrap_or(0));
        [self.src, self.dst] = both;
        (self.protocol, self.l4) = match ip.upper {
            Upper::At(protocol, at) => (protocol, ports(head, protocol, at)),
            // RFC 1858: the second fragment may not begin within the header of TCP. In IPv6 no fragments may
            // overlap (RFC 5722).
            Upper::Later(TCP, 1) if !ip.v6 => (TCP, L4::Hidden),
            Upper::Later(protocol, _) => (protocol, L4::Later),
            Upper::Hidden => (0, L4::Unknown),
        };
        if let (true, Upper::At(_, at)) = (self.is_about_neighbour(), ip.upper) {
            self.target = behind(head, at + 8).first_chunk().map(|it| u128::from_be_bytes(*it));
        }
    }

    /// Whether it may be of `protocol`, with ports of which `is` says yes, as far as that can be seen.
    #[must_use]
    pub fn may_be(&self, protocol: u8, is: impl Fn(u16, u16) -> bool) -> bool {
        match self.l4 {
            L4::Unknown => true,
            L4::Ports(from, to, _) => self.protocol == protocol && is(from, to),
            l4 => self.protocol == protocol && l4 == L4::Hidden,
        }
    }

    /// Whether it is a neighbour solicitation or advertisement.
    fn is_about_neighbour(&self) -> bool {
        self.protocol == ICMPV6 && matches!(self.l4, L4::Ports(SOLICITATION | ADVERTISEMENT, ..))
    }

    /// Whether nothing that rules look at is missing.
    fn is_whole(&self) -> bool {
        let missing = matches!(self.l4, L4::Unknown | L4::Hidden | L4::Ports(_, _, None));
        !missing && (self.target.is_some() || !self.is_about_neighbour())
    }
}

impl Batch {
    /// Reads headers that do not end in their frame's head, once, into memory of the batch: whoever looks at
    /// them later, and the receiver, gets what was read here. `lost` is told of frames for which there is no
    /// room, and of those that ask for a checksum elsewhere than in these headers, and why.
    pub fn see_through(&mut self, mut lost: impl FnMut(u16, Option<BadOffload>)) {
        for pick in 0..u16::try_from(self.len()).unwrap_or(u16::MAX) {
            let frame = self.frame(pick);
            if Fields::end_in(frame.head(), frame.len as usize) {
                continue;
            }
            let mut bytes = [0; READ_ONCE];
            let len = self.read(frame, 0, &mut bytes);
            let bytes = upto(&bytes, len);
            if let Err(why) = frame.offload.check(upto(bytes, MAX_HEADER), frame.len as usize, Offloads::ALL)
            {
                lost(pick, Some(why));
                continue;
            }
            let memory = self.headers.get_or_insert_with(|| Arena::new(MAX_BATCH, READ_ONCE));
            let read = memory.put(pick.into(), bytes, HEAD.min(len));
            if len > HEAD && !self.put_behind_head(pick.into(), read) {
                lost(pick, None);
            }
        }
    }
}

/// Whose address the sender of a frame for many says that it has, and for which it asks, by ARP or Neighbor
/// Discovery. `None`: the frame is of neither.
#[must_use]
pub fn asks(batch: &Batch, frame: &Frame) -> Option<(u128, Option<u128>)> {
    let fields = Fields::of(batch, frame).filter(|fields| fields.tag == 0)?;
    match (fields.ethertype, fields.l4) {
        (ARP, _) => Some((fields.src, fields.target)),
        (_, L4::Ports(ADVERTISEMENT, ..)) if fields.protocol == ICMPV6 => Some((fields.target?, None)),
        _ => fields.is_about_neighbour().then_some((fields.src, fields.target)),
    }
}

fn mapped(address: [u8; 4]) -> u128 {
    Ipv4Addr::from(address).to_ipv6_mapped().to_bits()
}

/// The address at byte `at`. A mapped one in IPv6, which no packet may have, is no IPv4 address: its first
/// bit is another.
#[inline]
fn address(head: &[u8], ip: &Ip, at: usize) -> Option<u128> {
    let bytes = head.get(at..)?;
    if !ip.v6 {
        return bytes.first_chunk().copied().map(mapped);
    }
    let number = Ipv6Addr::from(*bytes.first_chunk::<16>()?).to_bits();
    Some(if number >> 32 == 0xffff { number | 1 << 127 } else { number })
}

/// The ports of a packet whose transport header begins at byte `at`.
#[inline]
fn ports(head: &[u8], protocol: u8, at: usize) -> L4 {
    let pair = || Some((be16(head, at)?, be16(head, at + 2)?));
    match protocol {
        TCP => pair().map_or(L4::Hidden, |(from, to)| L4::Ports(from, to, head.get(at + 13).copied())),
        UDP => pair().map_or(L4::Hidden, |(from, to)| L4::Ports(from, to, Some(0))),
        ICMP | ICMPV6 => be16(head, at).map_or(L4::Hidden, |both| L4::Ports(both >> 8, both & 0xff, Some(0))),
        _ => L4::None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wrapped_tests::wrapped;
    use super::super::{Offload, HEAD};
    use super::*;
    use crate::mem::Arena;

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
        assert_eq!(
            (l4(&long[..54]), l4(&long[..58]), l4(&long[..64])),
            (L4::Unknown, L4::Hidden, L4::Hidden)
        );
        // A fragment whose first header is not the transport's; protocols of their own, among them such as
        // could be followed.
        let behind =
            |kind: u8, next: u8| l4(&six(kind, &[&[next, 0, 0, 0, 0, 0, 0, 0][..], &PORTS].concat()));
        assert_eq!((behind(44, 6), behind(44, 60)), (tcp, L4::Unknown));
        assert_eq!([47, 50, 59, 132, 253].map(|kind| behind(kind, 6)), [L4::None; 5]);
        assert_eq!([135, 139, 140].map(|kind| (behind(kind, 59), behind(kind, 6))), [(L4::None, tcp); 3]);
        assert_eq!(l4(&frame(0x0800, &[&[0x65; 40]])), L4::Unknown);
    }

    /// A frame of 802.2 is what it says that it is, unless it could hide an EtherType.
    #[test]
    fn honest_llc_is_what_it_is_and_other_llc_is_not_known() {
        let l4 = |len: u16, llc: &[u8]| {
            let fields = Fields::find(&frame(len, &[llc, &[0; 40]])).unwrap();
            (fields.ethertype, fields.l4)
        };
        // The spanning tree, IS-IS, NetBIOS, what an access point says of a new station, IPX; discovery of
        // Cisco's, AppleTalk.
        for llc in [&[0x42, 0x42, 3][..], &[0xfe, 0xfe, 3], &[0xf0, 0xf0, 3], &[0, 1, 0xaf], &[0xff; 3]] {
            assert_eq!(l4(38, llc), (38, L4::None), "{llc:x?}");
        }
        for oui in [[0, 0, 0x0c], [8, 0, 7]] {
            assert_eq!(l4(38, &[&[0xaa, 0xaa, 3][..], &oui, &[8, 0]].concat()), (38, L4::None));
        }
        // No SNAP that anybody sends; IP and ARP by RFC 1042; IP behind a length.
        for llc in [&[0xaa, 0xaa, 0xf3][..], &[6, 6, 3], &[0x98, 0x98, 3], &[0x45, 0, 0], &[0x60, 0, 0]] {
            assert_eq!(l4(38, llc), (38, L4::Unknown), "{llc:x?}");
        }
        // Cut off: a SNAP header, what stands behind a length, a tag, ARP.
        for bytes in [frame(8, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8]]), frame(0, &[]), frame(0x8100, &[&[0, 0]])] {
            assert_eq!(Fields::find(&bytes).unwrap().l4, L4::Unknown, "{bytes:x?}");
        }
        assert_eq!(Fields::find(&frame(0x0806, &[&ARP_IPV4, &[0; 21]])).unwrap().l4, L4::Unknown);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]
        /// The transport is found behind whatever stands in front of it, or it is known to be hidden.
        #[test]
        fn headers_are_followed_as_far_as_they_can_be(
            it in wrapped(),
            (protocol, from, to, flags) in (prop::sample::select(vec![6u8, 17, 58]), any::<u16>(), any::<u16>(), any::<u8>()),
        ) {
            let mut rest = PORTS;
            rest[..2].copy_from_slice(&from.to_be_bytes());
            rest[2..4].copy_from_slice(&to.to_be_bytes());
            rest[13] = flags;
            let rest = [&rest[..], &[9; 40]].concat();
            let src = if it.v6 { 5 } else { mapped([10, 0, 0, 1]) };
            let (bytes, at) = it.frame(src, protocol, &rest);
            let fields = Fields::find(&bytes).unwrap();
            let seen = MAX_HEADER.saturating_sub(at);
            let whole = match protocol {
                6 => (seen >= 4).then_some(L4::Ports(from, to, (seen > 13).then_some(flags))),
                17 => (seen >= 4).then_some(L4::Ports(from, to, Some(0))),
                _ => (seen >= 2).then_some(L4::Ports(from >> 8, from & 0xff, Some(0))),
            };
            match whole {
                Some(whole) => prop_assert_eq!((fields.src, fields.protocol, fields.l4), (src, protocol, whole)),
                None => prop_assert!(fields.may_be(protocol, |_, _| false), "{:?}", fields),
            }
            let is_asked = protocol == 58 && matches!(from >> 8, 135 | 136);
            prop_assert_eq!(fields.target.is_some(), is_asked && seen >= 24);
            // In a batch: nothing is missing where it is said that nothing is.
            let mut batch = Batch::new();
            let mut arena = Arena::new(1, bytes.len() + HEAD);
            let far = arena.put(0, &bytes, HEAD.min(bytes.len()));
            prop_assert!(batch.push_with(&bytes, bytes.len(), Offload::NONE, |pieces| bytes.len() <= HEAD || pieces.push(far)));
            let frame = batch.frame(0);
            prop_assert_eq!(Fields::of(&batch, frame), Some(fields));
            if Fields::end_in(frame.head(), bytes.len()) {
                prop_assert_eq!(Fields::find(frame.head()), Some(fields));
            }
        }

        /// Fields of any bytes are found in as many as may be looked at, and their being whole is no
        /// guess.
        #[test]
        fn any_bytes_have_fields(mut bytes in prop::collection::vec(any::<u8>(), 14..250), ethertype in prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8100, 0x20])) {
            bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            let fields = Fields::find(&bytes);
            prop_assert_eq!(fields, Fields::find(upto(&bytes, MAX_HEADER)));
            if Fields::end_in(upto(&bytes, HEAD), bytes.len()) {
                prop_assert_eq!(Fields::find(upto(&bytes, HEAD)), fields);
            }
        }
    }

    /// What rules look at when tags have gone cannot be changed by the sender, wherever it lies.
    #[test]
    fn what_was_read_once_stays_when_tags_go() {
        // The ports stand behind an authentication header, at the end of what is looked at.
        let ports = four(51, 0, &[&[6, 36][..], &[0; 150], &PORTS].concat());
        assert_eq!(Fields::find(&ports).map(|it| it.l4), Some(L4::Ports(80, 256, None)));
        for tags in [1, 2, 3, 40] {
            let bytes = [&ports[..12], &[0x81, 0, 0, 0].repeat(tags), &ports[12..]].concat();
            let mut arena = Arena::new(1, bytes.len());
            let far = arena.put(0, &bytes, HEAD);
            let mut batch = Batch::new();
            assert!(batch.push_with(&bytes, bytes.len(), Offload::NONE, |pieces| pieces.push(far)));
            batch.see_through(|_, _| panic!("there is room"));
            batch.take_priorities();
            let left = tags.saturating_sub(PRIORITIES as usize);
            assert_eq!(batch.frame(0).len as usize, ports.len() + 4 * left, "{tags}");
            let judged = Fields::of(&batch, batch.frame(0));
            assert!(left > 0 || judged == Fields::find(&ports), "{tags}: {judged:?}");
            arena.put(0, &vec![0xff; bytes.len()], HEAD);
            assert!(left > 0 || Fields::of(&batch, batch.frame(0)) == judged, "{tags}");
        }
    }

    /// A routing header (RFC 8754 §2) that names another destination behind the bytes at hand hides neither
    /// address.
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
