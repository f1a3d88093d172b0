//! Ethernet addresses, and the Ethernet header with its VLAN tags (IEEE 802.3 §3.2, 802.1Q §9).

use std::{fmt, str::FromStr};

/// EtherType of IPv4.
pub(crate) const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub(crate) const IPV6: u16 = 0x86dd;
/// EtherType of ARP.
pub(crate) const ARP: u16 = 0x0806;
/// 802.1Q customer tag, 802.1ad service tag, and the older number some switches use for the outer tag.
pub(super) const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// Smaller numbers in the place of an EtherType are lengths (802.3 §3.2.6), and LLC follows.
const LEAST_TYPE: u16 = 0x0600;
/// Organizations whose SNAP headers name EtherTypes: RFC 1042, and bridge tunnels (802.1H).
const OF_TYPES: [[u8; 3]; 2] = [[0, 0, 0], [0, 0, 0xf8]];

/// The big-endian number at `at`, if the bytes reach that far.
pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// An Ethernet address. Written and read as six pairs of hexadecimal digits, `02:00:00:00:00:01`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address of every station.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether this addresses several stations: multicast or broadcast (802.3 §3.2.3, the I/G bit).
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address: write six pairs of hexadecimal digits, as in 02:00:00:00:00:01")]
pub struct BadMac(String);

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let bad = || BadMac(text.to_owned());
        let mut mac = [0; 6];
        let mut pairs = text.split([':', '-']);
        for byte in &mut mac {
            let pair = pairs.next().ok_or_else(bad)?;
            // The digits are checked here because from_str_radix also takes a sign.
            if pair.len() != 2 || !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        pairs.next().map_or(Ok(Mac(mac)), |_| Err(bad()))
    }
}

crate::util::form::worded! {
    Mac = crate::util::form::Form::Text("MAC", "52:54:00:12:34:56");
}

/// A view of an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ether {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// The outermost tag's control information: priority (3 bits), drop eligible (1), VLAN identifier (12).
    pub tci: Option<u16>,
    /// What follows at `l3`. A third tag, or one that is cut short, is not looked into and appears here.
    pub ethertype: u16,
    /// Offset of the first byte after the type field: 14, 18 or 22.
    pub l3: usize,
}

impl Ether {
    /// Reads the header of a frame; `None` for fewer than 14 bytes.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (&dst, rest) = frame.split_first_chunk()?;
        let (&src, _) = rest.split_first_chunk()?;
        let mut ether =
            Ether { dst: Mac(dst), src: Mac(src), tci: None, ethertype: be16(frame, 12)?, l3: 14 };
        for _ in 0..2 {
            let Some(inner) = ether.untagged(frame) else { break };
            ether = inner;
        }
        Some(ether)
    }

    /// What is in the tag that the type names.
    #[inline]
    fn untagged(self, frame: &[u8]) -> Option<Self> {
        if !TAGS.contains(&self.ethertype) {
            return None;
        }
        let (tci, ethertype) = (be16(frame, self.l3)?, be16(frame, self.l3 + 2)?);
        Some(Ether { tci: self.tci.or(Some(tci)), ethertype, l3: self.l3 + 4, ..self })
    }

    /// What is in the SNAP header behind a length. Whether the length is right, no receiver asks that takes
    /// such frames (VU#855201).
    fn unwrapped(self, frame: &[u8]) -> Option<Self> {
        let [dsap, ssap, control, oui @ .., a, b] = *frame.get(self.l3..)?.first_chunk::<8>()?;
        // Without the bits for groups, responses, and polls (802.2 §3.3.1, §5.4.1).
        let snap = [dsap & !1, ssap & !1, control & !0x10] == [0xaa, 0xaa, 3] && OF_TYPES.contains(&oui);
        (self.ethertype < LEAST_TYPE && snap).then_some(Ether {
            ethertype: u16::from_be_bytes([a, b]),
            l3: self.l3 + 8,
            ..self
        })
    }

    /// What is behind all tags and SNAP headers, in whatever order.
    pub(super) fn innermost(mut self, frame: &[u8]) -> Self {
        while let Some(inner) = self.untagged(frame).or_else(|| self.unwrapped(frame)) {
            self = inner;
        }
        self
    }

    /// Whether the [innermost](Ether::innermost) header could hide an EtherType: a tag or SNAP header that is
    /// cut off or malformed, LLC that says IP or ARP (RFC 1042), or a length with an IP header instead of
    /// LLC.
    pub(super) fn hides(&self, frame: &[u8]) -> bool {
        if self.ethertype >= LEAST_TYPE {
            return TAGS.contains(&self.ethertype);
        }
        match frame.get(self.l3..).unwrap_or_default() {
            [0xaa, 0xaa, 3, oui @ ..] => oui.first_chunk().is_none_or(|oui| OF_TYPES.contains(oui)),
            [sap, ..] => matches!(sap & !1, 0xaa | 0x06 | 0x98 | 0x44..=0x4e | 0x60..=0x6e),
            [] => true,
        }
    }
}
