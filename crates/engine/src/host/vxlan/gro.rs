//! Segments of one TCP stream that came in one behind the other become one frame again, which its receiver
//! may take whole.
//!
//! What is joined is what a sender with segmentation offload would have cut: whole packets with right
//! checksums that differ in length, sequence number and the flag PSH alone, each but the last of the first
//! one's size. The frame asks for the offloads that make the segments again.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::packet::{is_right, update, Gso, Offload, Sum};
use crate::util::slice::{behind, upto};

/// Bytes of an Ethernet header.
const ETHER: usize = 14;
/// The protocol number of TCP, and its flags in the second of two bytes, behind the length of its header.
const TCP: u8 = 6;
const ACK: u8 = 0x10;
const PSH: u8 = 8;
/// Largest IP packet.
const MOST: usize = 65_535;

/// Frames that become one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// How many they are, two at least.
    pub(super) count: usize,
    /// Where the payload begins in each.
    pub(super) payload: usize,
    /// Bytes of the whole.
    pub(super) len: usize,
    /// What makes the segments of it again.
    pub(super) offload: Offload,
    /// Pairs of bytes that its headers have in place of those of the first one.
    pub(super) patches: [(usize, [u8; 2]); 4],
}

/// A segment.
#[derive(Clone, Copy)]
struct Segment<'f> {
    bytes: &'f [u8],
    v6: bool,
    tcp: usize,
    payload: usize,
    sequence: u32,
}

fn pair(bytes: &[u8], at: usize) -> Option<u16> {
    behind(bytes, at).first_chunk().map(|pair| u16::from_be_bytes(*pair))
}

impl<'f> Segment<'f> {
    /// The segment that `bytes`, a frame, are, if it may be joined to others.
    fn read(bytes: &'f [u8]) -> Option<Segment<'f>> {
        let ip = behind(bytes, ETHER);
        let (v6, header, whole, protocol, addresses) = match (pair(bytes, 12)?, *ip.first()?) {
            // Without options, not cut and not to be cut.
            (0x0800, 0x45) if pair(ip, 6)? == 0x4000 && is_right(ip.first_chunk()?) => {
                (false, 20, usize::from(pair(ip, 2)?), *ip.get(9)?, ip.get(12..20)?)
            }
            (0x86dd, 0x60..=0x6f) => (true, 40, 40 + usize::from(pair(ip, 4)?), *ip.get(6)?, ip.get(8..40)?),
            _ => return None,
        };
        let segment = ip.get(header..).filter(|_| whole == ip.len() && protocol == TCP)?;
        let [length, flags] = pair(segment, 12)?.to_be_bytes();
        let payload = usize::from(length >> 4) * 4;
        let (src, dst) = addresses.split_at(addresses.len() / 2);
        let mut sum = Sum::pseudo(src, dst, TCP, segment.len());
        sum.add(segment);
        let good = flags & !PSH == ACK && payload >= 20 && payload < segment.len() && sum.value() == 0xffff;
        let sequence = u32::from_be_bytes(*behind(segment, 4).first_chunk()?);
        let tcp = ETHER + header;
        good.then_some(Segment { bytes, v6, tcp, payload: tcp + payload, sequence })
    }

    fn size(&self) -> usize {
        self.bytes.len() - self.payload
    }

    fn pushes(&self) -> bool {
        self.bytes.get(self.tcp + 13).is_some_and(|flags| flags & PSH != 0)
    }

    /// Whether `next` comes right behind this one in a stream whose first one here is `first`.
    fn is_before(&self, next: &Segment, first: &Segment) -> bool {
        let at = |from: usize, to: usize| self.bytes.get(from..to) == next.bytes.get(from..to);
        // Addresses and type; of IP what is neither length, number nor checksum.
        let ip = match self.v6 {
            false => at(0, 16) && at(20, 24) && at(26, self.tcp + 4),
            true => at(0, 18) && at(20, self.tcp + 4),
        };
        // What of TCP has to be equal: the acknowledgement, the window, and behind the checksum the options.
        let tcp = at(self.tcp + 8, self.tcp + 13)
            && at(self.tcp + 14, self.tcp + 16)
            && at(self.tcp + 18, self.payload);
        let order = self.sequence.wrapping_add(u32::try_from(self.size()).unwrap_or(0)) == next.sequence;
        (self.v6, self.tcp, self.payload) == (next.v6, next.tcp, next.payload)
            && ip
            && tcp
            && order
            && self.size() == first.size()
            && next.size() <= first.size()
            && !self.pushes()
    }
}

/// How many of `frames`, from the first one on, become one, and what that is. `None`: the first one stays
/// alone.
pub(super) fn join<'f>(mut frames: impl Iterator<Item = &'f [u8]>) -> Option<Joined> {
    let first = Segment::read(frames.next()?)?;
    let (mut last, mut count, mut len) = (first, 1, first.bytes.len());
    for bytes in frames {
        if len + bytes.len() - first.payload.min(bytes.len()) > MOST {
            break;
        }
        let Some(next) = Segment::read(bytes).filter(|next| last.is_before(next, &first)) else { break };
        (count, len, last) = (count + 1, len + next.size(), next);
    }
    if count < 2 {
        return None;
    }
    let ip = behind(first.bytes, ETHER);
    let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    // The length, and for IPv4 the checksum with it; else the length once more.
    let whole = len - ETHER;
    let (length, sum, addresses) = match first.v6 {
        true => {
            let length = (ETHER + 4, short(whole - 40).to_be_bytes());
            (length, length, behind(upto(ip, 40), 8))
        }
        false => {
            let old = (pair(ip, 2)?, pair(ip, 10)?);
            let sum = update(old.1, old.0, short(whole));
            (
                (ETHER + 2, short(whole).to_be_bytes()),
                (ETHER + 10, sum.to_be_bytes()),
                behind(upto(ip, 20), 12),
            )
        }
    };
    let (src, dst) = addresses.split_at(addresses.len() / 2);
    let seed = Sum::pseudo(src, dst, TCP, len - first.tcp).value();
    let [header, flags] = pair(first.bytes, first.tcp + 12)?.to_be_bytes();
    let offload = Offload {
        flags: Offload::NEEDS_CSUM,
        gso: if first.v6 { Gso::Tcp6 } else { Gso::Tcp4 },
        ecn: false,
        hdr_len: short(first.payload),
        gso_size: short(first.size()),
        csum_start: short(first.tcp),
        csum_offset: 16,
    };
    Some(Joined {
        count,
        payload: first.payload,
        len,
        offload,
        patches: [
            length,
            sum,
            (first.tcp + 12, [header, flags | if last.pushes() { PSH } else { 0 }]),
            (first.tcp + 16, seed.to_be_bytes()),
        ],
    })
}
