//! Where the IP header of a frame lies and where its transport header begins.

use std::ops::Range;

use super::ether::{be16, Ether, IPV4, IPV6};

/// The longest headers that can be segmented, Ethernet to TCP: room for two VLAN tags (22), IPv6 (40), TCP
/// with all options (60) and 70 bytes of extension headers; IPv4 with all options needs less.
pub const MAX_HEADER: usize = 192;

pub(super) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(super) const GRE: u8 = 47;
pub(crate) const ICMPV6: u8 = 58;
/// IPv6 extension headers (RFC 8200 §4.1; the others are listed by IANA as RFC 7045 §3 asks).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;
/// No next header (RFC 8200 §4.7).
const NOTHING: u8 = 59;
/// The authentication header, of IPv4 as well (RFC 4302).
const AUTHENTICATION: u8 = 51;
/// Length of the fixed IPv6 header.
pub(super) const IPV6_LEN: usize = 40;

/// What the chain of a packet's headers leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    /// The header of this protocol, which begins at this byte, among the bytes at hand or behind them.
    At(u8, usize),
    /// A fragment without it: what its first header is said to be, and its offset in units of 8 bytes.
    Later(u8, u16),
    /// The chain cannot be followed within the bytes at hand.
    Hidden,
}

/// The outline of a frame's IP header; all offsets count from the start of the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ip {
    /// Where the header begins.
    pub at: usize,
    pub v6: bool,
    /// The first byte after the header, IPv4 options included, IPv6 extension headers not.
    pub end: usize,
    /// Source address.
    pub src: usize,
    /// The destination that the pseudo header names (RFC 8200 §8.1): behind a routing header, the last one.
    pub dst: usize,
    /// What its headers lead to.
    pub(super) upper: Upper,
    /// That, of a packet whose transport may be summed and cut: `None` for fragments, behind an
    /// authentication header, and where the destination of the pseudo header is not known.
    pub l4: Option<(u8, usize)>,
    /// The byte that names the next protocol, and the header (or 255) that it lies in: where the chain ends.
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
        let (v6, fixed, end) = match (ethertype, first >> 4) {
            (IPV4, 4) if first & 0xf >= 5 => (false, 20, at + usize::from(first & 0xf) * 4),
            (IPV6, 6) => (true, IPV6_LEN, at + IPV6_LEN),
            _ => return None,
        };
        head.get(at..at + fixed)?;
        let [src, dst, named] = if v6 { [8, 24, 6] } else { [12, 16, 9] }.map(|place| at + place);
        let mut ip = Ip { at, v6, end, src, dst, upper: Upper::Hidden, l4: None, named: (named, 255) };
        ip.follow(head);
        Some(ip)
    }

    /// Walks the headers between that of IP and the transport's. Each is at least 8 bytes, so that the walk
    /// ends with `head`; `None` if it does so.
    #[inline]
    fn follow(&mut self, head: &[u8]) -> Option<()> {
        let (mut at, mut whole) = (self.end, true);
        if !self.v6 {
            // RFC 791 §3.1: a fragment has an offset, or more fragments behind it.
            let fragment = be16(head, self.at + 6)?;
            whole = fragment & 0x3fff == 0;
            if fragment & 0x1fff != 0 {
                self.upper = Upper::Later(*head.get(self.named.0)?, fragment & 0x1fff);
                return Some(());
            }
        }
        loop {
            let kind = *head.get(self.named.0)?;
            let byte = |n: usize| head.get(at + n).copied();
            let units = |n: u8, unit: usize| (usize::from(n) + 1) * unit;
            let length = match kind {
                HOP_BY_HOP | ROUTING | DESTINATION if self.v6 => units(byte(1)?, 8),
                FRAGMENT if self.v6 => {
                    // RFC 8200 §4.5.
                    let place = be16(head, at + 2)?;
                    if place >> 3 != 0 {
                        self.upper = Upper::Later(byte(0)?, place >> 3);
                        return Some(());
                    }
                    8
                }
                // They are protocols of their own, too, and then nothing follows (RFC 6275 §6.1.1, RFC 7401
                // §5.1).
                MOBILITY | HIP | SHIM6 if self.v6 && byte(0)? != NOTHING => units(byte(1)?, 8),
                AUTHENTICATION => units(byte(1)?, 4) + 4,
                _ => {
                    self.upper = Upper::At(kind, at);
                    self.l4 = whole.then_some((kind, at));
                    return Some(());
                }
            };
            whole &= matches!(kind, HOP_BY_HOP | ROUTING | DESTINATION);
            if kind == ROUTING && byte(3)? > 0 {
                match byte(2)? {
                    _ if length < 24 => whole = false,
                    0 | 2 => self.dst = at + length - 16, // RFC 2460 §4.4, RFC 6275 §6.4: the last comes last
                    4 => self.dst = at + 8,               // RFC 8754 §2: the last comes first
                    _ => whole = false,
                }
            }
            self.named = (at, kind);
            at += length;
        }
    }

    /// The first byte after the packet in the frame that begins with `head`, by its header (RFC 791 §3.1, RFC
    /// 8200 §3): a frame may be longer, or shorter.
    pub fn packet_end(&self, head: &[u8]) -> Option<usize> {
        let (from, length) = if self.v6 { (self.end, self.at + 4) } else { (self.at, self.at + 2) };
        Some(from + usize::from(be16(head, length)?))
    }

    /// Both addresses, as the fixed header has them.
    pub fn addresses(&self) -> Range<usize> {
        let src = self.at + if self.v6 { 8 } else { 12 };
        src..src + 2 * self.address_len()
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
