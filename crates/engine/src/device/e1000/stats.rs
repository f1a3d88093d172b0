//! Statistics registers (8254x SDM §13.7): 32 bits, cleared by reading, standing still at their maximum.
//!
//! The I/O cores count in 64 bits and never clear; a read gives what has come since the read before, so the
//! hot path shares no counter with the driver. Each counter has one writer at a time: the owner of its
//! direction's ring. Byte counts include the four bytes of the FCS. Registers that are not in the table
//! (collisions, line errors, flow control) read as zero: a virtual wire has none of these.

use std::sync::atomic::{AtomicU64, Ordering};

use super::regs;
use crate::count;
use crate::packet::{is_group, Frame, BROADCAST};

/// Bytes of the FCS.
const FCS: u64 = 4;

/// Counters: frames that found no descriptor, that were longer than the driver allows, requests for
/// segmentation; then those of each direction.
pub(super) const MISSED: usize = 0;
pub(super) const OVERSIZE: usize = 1;
pub(super) const SEGMENTED: usize = 2;
pub(super) const RX: usize = 3;
pub(super) const TX: usize = RX + KINDS;
/// Places of a direction: six classes of size, all frames, those for groups, bytes.
pub(super) const FRAMES: usize = 6;
const BROADCASTS: usize = 7;
const MULTICASTS: usize = 8;
const BYTES: usize = 9;
const KINDS: usize = 10;
const COUNTERS: usize = TX + KINDS;

/// Registers, each with the counter that it shows, and how many follow each other in both. Bytes have a
/// second register for the upper half.
const TABLE: [(u32, usize, u32); 15] = [
    (0x4010, MISSED, 1),          // MPC
    (0x405c, RX, 9),              // PRC64 to PRC1522, GPRC, BPRC, MPRC
    (0x4080, TX + FRAMES, 1),     // GPTC
    (0x4088, RX + BYTES, 1),      // GORCL, GORCH
    (0x4090, TX + BYTES, 1),      // GOTCL, GOTCH
    (0x40a0, MISSED, 1),          // RNBC
    (0x40ac, OVERSIZE, 1),        // ROC
    (0x40c0, RX + BYTES, 1),      // TORL, TORH
    (0x40c8, TX + BYTES, 1),      // TOTL, TOTH
    (0x40d0, RX + FRAMES, 1),     // TPR
    (0x40d4, TX + FRAMES, 1),     // TPT
    (0x40d8, TX, 6),              // PTC64 to PTC1522
    (0x40f0, TX + MULTICASTS, 1), // MPTC
    (0x40f4, TX + BROADCASTS, 1), // BPTC
    (0x40f8, SEGMENTED, 1),       // TSCTC
];
const REGISTERS: usize = (regs::STATS_END - regs::STATS) as usize / 4;

/// The counter that the register at `offset` shows.
fn counter(offset: u32) -> Option<usize> {
    let behind = |first: u32| offset.wrapping_sub(first) / 4;
    let (first, counter, _) = TABLE.iter().find(|(first, _, count)| behind(*first) < *count)?;
    Some(counter + behind(*first) as usize)
}

/// A device's counters.
pub(super) struct Stats {
    counts: [AtomicU64; COUNTERS],
    /// What was counted when each register was read last.
    seen: [AtomicU64; REGISTERS],
    /// What the lower half of a pair was read of, until its upper half is read.
    latched: [AtomicU64; REGISTERS],
}

impl Stats {
    pub(super) fn new() -> Stats {
        Stats {
            counts: [const { AtomicU64::new(0) }; COUNTERS],
            seen: [const { AtomicU64::new(0) }; REGISTERS],
            latched: [const { AtomicU64::new(0) }; REGISTERS],
        }
    }

    /// Counts `n` more; by the owner of the counter.
    pub(super) fn add(&self, counter: usize, n: u64) {
        count(&self.counts[counter], n);
    }

    /// Counts frames that were sent or received: `direction` is the first counter of that.
    pub(super) fn frames(&self, direction: usize, frames: &Frames) {
        if frames.0[FRAMES] > 0 {
            (direction..).zip(&frames.0).for_each(|(counter, n)| self.add(counter, *n));
        }
    }

    /// The driver reads the register at `offset`.
    pub(super) fn read(&self, offset: u32) -> u32 {
        let low = offset & !4;
        let place = |offset: u32| ((offset - regs::STATS) / 4) as usize;
        let total = |counter: usize| self.counts[counter].load(Ordering::Relaxed);
        let (seen, latched) = (|offset| &self.seen[place(offset)], &self.latched[place(low)]);
        match (counter(low), counter(offset)) {
            (Some(bytes), Some(_)) if bytes == RX + BYTES || bytes == TX + BYTES => {
                let count = total(bytes);
                latched.store(count, Ordering::Relaxed);
                half(count.wrapping_sub(seen(low).load(Ordering::Relaxed)) & 0xffff_ffff)
            }
            (Some(bytes), None) if bytes == RX + BYTES || bytes == TX + BYTES => {
                // It is of the lower half's moment, if that was read before: nothing is lost or torn between
                // them.
                let count = match latched.swap(0, Ordering::Relaxed) {
                    0 => total(bytes),
                    latched => latched,
                };
                half(count.wrapping_sub(seen(low).swap(count, Ordering::Relaxed)) >> 32)
            }
            (_, Some(counter)) => {
                let count = total(counter);
                half(count.wrapping_sub(seen(offset).swap(count, Ordering::Relaxed)))
            }
            (_, None) => 0,
        }
    }

    /// The registers start at zero again.
    pub(super) fn reset(&self) {
        self.latched.iter().for_each(|latched| latched.store(0, Ordering::Relaxed));
        for (offset, seen) in (regs::STATS..).step_by(4).zip(&self.seen) {
            let total = counter(offset).map_or(0, |counter| self.counts[counter].load(Ordering::Relaxed));
            seen.store(total, Ordering::Relaxed);
        }
    }
}

/// A batch's frames, counted in private memory.
#[derive(Default)]
pub(super) struct Frames([u64; KINDS]);

impl Frames {
    /// Counts one more.
    #[inline]
    pub(super) fn count(&mut self, frame: &Frame) {
        let bytes = u64::from(frame.len) + FCS;
        self.0[FRAMES] += 1;
        self.0[BYTES] += bytes;
        // Up to 64, 127, 255, 511, 1023 bytes, and longer ones.
        let class = match bytes {
            ..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            _ => 5,
        };
        self.0[class] += 1;
        if is_group(frame.dst()) {
            self.0[if frame.dst() == BROADCAST { BROADCASTS } else { MULTICASTS }] += 1;
        }
    }
}

fn half(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
