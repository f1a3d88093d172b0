//! What rules look at in a frame.

use crate::packet::{Batch, Fields, Frame, IPV4, L4, TCP, UDP};

/// Words of what rules look at.
pub(super) const WORDS: usize = 7;

/// Words of what rules look at: their bits are those of [`Field`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub(super) [u64; WORDS]);

/// A field: its word, its lowest bit there, and how many bits it has. Addresses have two words.
#[derive(Clone, Copy)]
pub(super) struct Field(pub usize, pub u32, pub u32);

pub(super) const DST_MAC: Field = Field(0, 0, 48);
pub(super) const VLAN: Field = Field(0, 48, 12);
pub(super) const SRC_MAC: Field = Field(1, 0, 48);
pub(super) const TYPE: Field = Field(1, 48, 16);
/// Ports; of ICMP its type and code.
pub(super) const DPORT: Field = Field(2, 0, 16);
pub(super) const SPORT: Field = Field(2, 16, 16);
pub(super) const FLAGS: Field = Field(2, 32, 8);
/// One bit more than a protocol's number has, for those that are not known.
pub(super) const PROTO: Field = Field(2, 40, 9);
/// What is known of protocol, ports and flags: the bits below.
pub(super) const SEEN: Field = Field(2, 49, 8);
/// The words of the two addresses; IPv4 is mapped (RFC 4291 §2.5.5.2).
pub(super) const SRC: usize = 3;
pub(super) const DST: usize = 5;

/// The ports are there; the flags are; it is a later fragment; ports cannot be seen; flags cannot be seen;
/// nor the protocol.
pub(super) const PORTS: u64 = 1;
pub(super) const HAS_FLAGS: u64 = 1 << 1;
pub(super) const LATER: u64 = 1 << 2;
pub(super) const NO_PORTS: u64 = 1 << 3;
pub(super) const NO_FLAGS: u64 = 1 << 4;
pub(super) const NO_PROTO: u64 = 1 << 5;
/// Is no protocol's number: no rule names it.
const UNKNOWN: u64 = 1 << 8;

impl Field {
    /// `value` where it stands in its word.
    pub(super) fn at(self, value: u64) -> u64 {
        value << self.1
    }

    /// All its bits.
    pub(super) fn all(self) -> u64 {
        ((1 << self.2) - 1) << self.1
    }
}

impl Headers {
    /// Those of the most frequent frames by a shorter way: without a tag, and with a whole packet of IPv4
    /// without options, of TCP or UDP.
    #[inline]
    pub(super) fn plain(head: &[u8; 48], vlan: u16) -> Option<Headers> {
        let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let (protocol, flags) = (head[23], if head[23] == TCP { head[47] } else { 0 });
        // Type, version and length; more fragments, or an offset.
        if word(12) >> 40 != 0x0008_0045 || word(14) & 0x3fff != 0 || !matches!(protocol, TCP | UDP) {
            return None;
        }
        let mapped = |address: u64| 0xffff << 32 | address;
        let seen = FLAGS.at(flags.into()) | PROTO.at(protocol.into()) | SEEN.at(PORTS | HAS_FLAGS);
        let (to, from) = (word(0) >> 16 | VLAN.at(vlan.into()), word(6) >> 16 | TYPE.at(IPV4.into()));
        let (src, dst) = (mapped(word(26) >> 32), mapped(word(30) >> 32));
        Some(Headers([to, from, word(34) >> 32 | seen, 0, src, 0, dst]))
    }

    /// Those of `frame` of `batch`, which is in VLAN `vlan`; 0: in that of its tag, if it has one.
    #[inline]
    pub fn of(batch: &Batch, frame: &Frame, vlan: u16) -> Headers {
        let plain = frame.head().first_chunk().and_then(|head| Headers::plain(head, vlan));
        plain.unwrap_or_else(|| Headers::any(Fields::of(batch, frame), vlan))
    }

    /// As [`Headers::of`], for the frame that begins with `bytes`.
    pub fn find(bytes: &[u8], vlan: u16) -> Headers {
        Headers::any(Fields::find(bytes), vlan)
    }

    /// Those of any frame.
    fn any(fields: Option<Fields>, vlan: u16) -> Headers {
        let mut words = [0; WORDS];
        let Some(fields) = fields else { return Headers(words) };
        let vlan = if vlan == 0 { fields.tag } else { vlan };
        words[0] = fields.dst_mac | VLAN.at(vlan.into());
        words[1] = fields.src_mac | TYPE.at(fields.ethertype.into());
        let seen = match fields.l4 {
            L4::None => 0,
            L4::Later => LATER,
            L4::Hidden => NO_PORTS | NO_FLAGS,
            L4::Unknown => NO_PROTO,
            L4::Ports(_, _, None) => PORTS | NO_FLAGS,
            L4::Ports(_, _, Some(_)) => PORTS | HAS_FLAGS,
        };
        let protocol = if seen == NO_PROTO { UNKNOWN } else { fields.protocol.into() };
        words[2] = PROTO.at(protocol) | SEEN.at(seen);
        if let L4::Ports(source, destination, flags) = fields.l4 {
            words[2] |= SPORT.at(source.into()) | DPORT.at(destination.into());
            words[2] |= FLAGS.at(flags.unwrap_or(0).into());
        }
        [words[3], words[4]] = halves(fields.src);
        [words[5], words[6]] = halves(fields.dst);
        Headers(words)
    }
}

/// The two words of an address.
#[inline]
pub(super) fn halves(address: u128) -> [u64; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "both halves")]
    [(address >> 64) as u64, address as u64]
}
