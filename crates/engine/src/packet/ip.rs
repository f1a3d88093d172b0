//! Where the IP header of a frame lies and where its transport header begins.

use super::ether::{be16, Ether, IPV4, IPV6};

/// The longest headers that can be segmented, Ethernet to TCP: room for two VLAN tags (22), IPv6 (40), TCP
/// with all options (60) and 70 bytes of extension headers; IPv4 with all options needs less.
pub const MAX_HEADER: usize = 192;

pub(super) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
/// IPv6 extension headers (RFC 8200 §4.1).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const DESTINATION: u8 = 60;
/// Length of the fixed IPv6 header.
pub(super) const IPV6_LEN: usize = 40;

/// The outline of a frame's IP header; all offsets count from the start of the frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ip {
    /// Where the header begins.
    pub at: usize,
    pub v6: bool,
    /// The first byte after the header, IPv4 options included, IPv6 extension headers not.
    pub end: usize,
    /// Source address.
    pub src: usize,
    /// The destination that the pseudo header names (RFC 8200 §8.1): behind a routing header, the last one.
    pub dst: usize,
    /// The transport protocol and where its header begins. `None` for a fragment and where the extension
    /// headers cannot be followed within the bytes at hand.
    pub l4: Option<(u8, usize)>,
    /// The byte that names the transport protocol, and the extension header (or 255) that it lies in.
    pub named: (usize, u8),
}

impl Ip {
    /// Reads the IP header of the frame that begins with `head`, of which at most [`MAX_HEADER`] bytes are
    /// looked at. `None`: not IP, or not a whole and well-formed fixed header.
    #[inline]
    pub fn parse(head: &[u8]) -> Option<Self> {
        let head = head.get(..MAX_HEADER).unwrap_or(head);
        let Ether { ethertype, l3: at, .. } = Ether::parse(head)?;
        Ip::at(head, ethertype, at)
    }

    /// Reads the header of this type that begins at byte `at` of `head`.
    #[inline]
    pub fn at(head: &[u8], ethertype: u16, at: usize) -> Option<Self> {
        let first = *head.get(at)?;
        match (ethertype, first >> 4) {
            (IPV4, 4) if head.len() >= at + 20 && first & 0xf >= 5 => {
                let end = at + usize::from(first & 0xf) * 4;
                // RFC 791 §3.1: a fragment has an offset, or more fragments behind it.
                let whole = be16(head, at + 6)? & 0x3fff == 0;
                let l4 = if whole { Some((*head.get(at + 9)?, end)) } else { None };
                Some(Ip { at, v6: false, end, src: at + 12, dst: at + 16, l4, named: (at + 9, 255) })
            }
            (IPV6, 6) if head.len() >= at + IPV6_LEN => {
                let end = at + IPV6_LEN;
                let mut ip =
                    Ip { at, v6: true, end, src: at + 8, dst: at + 24, l4: None, named: (at + 6, 255) };
                ip.l4 = ip.follow(head);
                Some(ip)
            }
            _ => None,
        }
    }

    /// Walks the extension headers. Each is at least 8 bytes, so that the walk ends with `head`.
    fn follow(&mut self, head: &[u8]) -> Option<(u8, usize)> {
        let mut at = self.end;
        loop {
            let kind = *head.get(self.named.0)?;
            match kind {
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    let length = (usize::from(*head.get(at + 1)?) + 1) * 8;
                    if kind == ROUTING && *head.get(at + 3)? > 0 {
                        self.dst = match *head.get(at + 2)? {
                            _ if length < 24 => return None,
                            0 | 2 => at + length - 16, // RFC 2460 §4.4, RFC 6275 §6.4: the last comes last
                            4 => at + 8,               // RFC 8754 §2: the last comes first
                            _ => return None,
                        };
                    }
                    self.named = (at, kind);
                    at += length;
                }
                FRAGMENT => return None,
                _ => return Some((kind, at)),
            }
        }
    }

    /// Length of an address, in bytes.
    pub fn address_len(&self) -> usize {
        if self.v6 {
            16
        } else {
            4
        }
    }
}

/// Where the parts of an IPv4 packet lie, for devices that find their way through headers themselves; all places count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline4 {
    /// Where the header begins.
    pub at: usize,
    /// The first byte after it.
    pub transport: usize,
    /// The first byte after the packet, by its header; the frame may be shorter.
    pub end: usize,
    /// The transport protocol; none of a fragment.
    pub protocol: Option<u8>,
    /// Source and destination address.
    pub src: usize,
    /// See `src`.
    pub dst: usize,
}

impl Outline4 {
    /// Reads the header of the frame that begins with `head`. `None`: not IPv4, or not a whole and well-formed fixed header.
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Outline4> {
        let ip = Ip::parse(head).filter(|ip| !ip.v6)?;
        let total = usize::from(be16(head, ip.at + 2)?);
        let protocol = ip.l4.map(|(protocol, _)| protocol);
        Some(Outline4 {
            at: ip.at,
            transport: ip.end,
            end: ip.at + total,
            protocol,
            src: ip.src,
            dst: ip.dst,
        })
    }
}
