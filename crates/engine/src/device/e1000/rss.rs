//! Receive side scaling of the 82574 (datasheet §7.1, "RSS"): which of two rings takes a frame.
//!
//! A hash of what a flow is known by, Toeplitz's with the driver's key, chooses one of 128 entries of a
//! table, and the entry's highest bit the ring. So a flow stays in one ring and in order. Hash and kind stand
//! in the extended descriptor. What the driver did not ask to be hashed goes to the first ring, and so do
//! frames for groups: these are few and belong to no flow. A frame with one tag is hashed as if it had none.
//!
//! The input is the frame's private head: TCP is found behind IP options and extension headers only if its
//! ports lie within the head. Addresses of Mobile IPv6 (RFC 6275) do not take the place of the header's.
//!
//! For speed the hash is added up from a table with what each half of each input byte contributes: four
//! lookups for every two bytes instead of sixteen shifts. It is made again when the key's registers are
//! others than before.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::regs;
use super::state::Registers;
use crate::packet::{is_group, Frame, Ip, TCP};
use crate::util::slice::{upto, upto_mut};

/// Registers of the key.
const KEY: usize = 10;
/// Bytes of the longest input: two IPv6 addresses and two ports.
const INPUT: usize = 36;
/// Bytes of two ports.
const PORTS: usize = 4;
/// Where the IP header begins at most: behind the addresses, one tag and the EtherType.
const DEEPEST: usize = 18;

/// What is hashed, as a descriptor has it (82574 §7.1.5.2, RSS type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TcpIpv4 = 1,
    Ipv4 = 2,
    TcpIpv6 = 3,
    Ipv6Ex = 4,
    Ipv6 = 5,
}

/// The hash and its key.
pub(super) struct Rss {
    key: [u32; KEY],
    /// For each half byte of the input, the higher half first: what its value adds to the hash.
    table: Box<[[u32; 16]]>,
}

impl Rss {
    pub(super) fn new() -> Rss {
        // All zero, and so is every hash by it.
        Rss { key: [0; KEY], table: vec![[0; 16]; 2 * INPUT].into() }
    }

    /// Whether the driver has turned it on.
    pub(super) fn is_on(regs: &Registers) -> bool {
        regs.get(regs::MRQC) & regs::MRQC_ENABLE == regs::MRQC_RSS
            // A legacy descriptor has no place for the hash, and then there is none (82574 §7.1).
            && regs.get(regs::RFCTL) & regs::RFCTL_EXTEN != 0
    }

    /// Takes over the key as the registers have it.
    pub(super) fn refresh(&mut self, regs: &Registers) {
        let mut at = regs::RSSRK;
        let key = [(); KEY].map(|()| {
            at += 4;
            regs.get(at - 4)
        });
        if key != self.key {
            self.set_key(key);
        }
    }

    #[cold]
    fn set_key(&mut self, key: [u32; KEY]) {
        self.key = key;
        // The key's bits in the order in which the hash takes them: byte by byte, the highest bit first.
        let word = |index: usize| key.get(index).map_or(0, |word| u64::from(word.swap_bytes()));
        // The 32 bits from `bit` on.
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let window = |bit: usize| {
            let both = word(bit / 32) << 32 | word(bit / 32 + 1);
            (both >> (32 - bit % 32)) as u32
        };
        for (half, values) in self.table.iter_mut().enumerate() {
            for (value, sum) in values.iter_mut().enumerate() {
                let bits = (0..4).filter(|bit| value >> (3 - bit) & 1 != 0);
                *sum = bits.fold(0, |sum, bit| sum ^ window(4 * half + bit));
            }
        }
    }

    /// Toeplitz's hash of `input`, of at most [`INPUT`] bytes.
    #[inline]
    fn hash(&self, input: &[u8]) -> u32 {
        let halves = self.table.chunks_exact(2);
        let of = |half: Option<&[u32; 16]>, at: u8| {
            half.and_then(|half| half.get(usize::from(at & 0xf))).copied().unwrap_or(0)
        };
        input
            .iter()
            .zip(halves)
            .fold(0, |sum, (byte, halves)| sum ^ of(halves.first(), byte >> 4) ^ of(halves.get(1), *byte))
    }

    /// The ring for `frame` and what its descriptor says of that: kind, ring and hash.
    #[inline]
    pub(super) fn choose(&self, regs: &Registers, frame: &Frame) -> (usize, u64) {
        let Some((kind, hash)) = self.judge(regs, frame) else { return (0, 0) };
        let entry = hash & 0x7f;
        // Bit 7 of the entry (82574 §10.2.5, RETA).
        let ring = regs.get(regs::RETA + (entry & !3)) >> (8 * (entry & 3) + 7) & 1;
        let shown = if regs.get(regs::RXCSUM) & regs::RXCSUM_PCSD != 0 { hash } else { 0 };
        (ring as usize, kind as u64 | u64::from(ring) << 8 | u64::from(shown) << 32)
    }

    #[inline]
    fn judge(&self, regs: &Registers, frame: &Frame) -> Option<(Kind, u32)> {
        if is_group(frame.dst()) {
            return None;
        }
        let head = frame.head();
        let ip = Ip::parse(head).filter(|ip| ip.at <= DEEPEST)?;
        let mut input = [0; INPUT];
        let (addresses, ports) = input.split_at_mut(2 * ip.address_len());
        addresses.copy_from_slice(head.get(ip.addresses())?);
        let len = addresses.len();
        let wanted = regs.get(regs::MRQC);
        let by_fixed = regs.get(regs::RFCTL) & regs::RFCTL_IPV6_EX_DIS != 0 && ip.named.1 != u8::MAX;
        let (tcp, plain) = match ip.v6 {
            false => ((regs::MRQC_TCP_IPV4, Kind::TcpIpv4), [(regs::MRQC_IPV4, Kind::Ipv4); 2]),
            true => (
                (if by_fixed { 0 } else { regs::MRQC_TCP_IPV6 }, Kind::TcpIpv6),
                [
                    (if by_fixed { 0 } else { regs::MRQC_IPV6_EX }, Kind::Ipv6Ex),
                    (regs::MRQC_IPV6, Kind::Ipv6),
                ],
            ),
        };
        let there = ip
            .l4
            .filter(|l4| l4.0 == TCP && wanted & tcp.0 != 0)
            .and_then(|(_, at)| head.get(at..at + PORTS));
        if let Some(there) = there {
            upto_mut(ports, PORTS).copy_from_slice(there);
            return Some((tcp.1, self.hash(upto(&input, len + PORTS))));
        }
        let (_, kind) = plain.into_iter().find(|(bit, _)| wanted & bit != 0)?;
        Some((kind, self.hash(upto(&input, len))))
    }
}

#[cfg(test)]
mod tests;
