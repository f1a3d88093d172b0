//! Statistics registers (8254x SDM §13.7): 32 bits, cleared by reading, standing still at their maximum.
//!
//! The I/O cores count in 64 bits and never clear; a read gives what has come since the read before, so the
//! hot path shares no counter with the driver. Each counter has one writer at a time: the owner of its
//! direction's ring. Byte counts include the four bytes of the FCS. Registers that are not in the table
//! (collisions, line errors, flow control) read as zero: a virtual wire has none of these.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::frame::{is_group, Frame};

/// Bytes of the FCS.
const FCS: u64 = 4;
const BROADCAST: u64 = 0xffff_ffff_ffff;

/// What is counted.
#[derive(Clone, Copy)]
pub(super) enum Counter {
    /// Frames that found no descriptor.
    Missed,
    /// Frames that were longer than the driver allows.
    Oversize,
    /// Segmentation requests.
    Segmented,
    /// Received.
    Rx(Kind),
    /// Sent.
    Tx(Kind),
}

/// What is counted in both directions.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Frames.
    Frames,
    /// Bytes.
    Bytes,
    /// Broadcast frames.
    Broadcast,
    /// Multicast frames.
    Multicast,
    /// Frames of one of six classes of size: up to 64, 127, 255, 511, 1023 bytes, and longer ones.
    Size(usize),
}

const KINDS: usize = 4 + 6;
const COUNTERS: usize = 3 + 2 * KINDS;

impl Kind {
    const fn place(self) -> usize {
        match self {
            Kind::Frames => 0,
            Kind::Bytes => 1,
            Kind::Broadcast => 2,
            Kind::Multicast => 3,
            Kind::Size(class) => 4 + class,
        }
    }
}

impl Counter {
    const fn place(self) -> usize {
        match self {
            Counter::Missed => 0,
            Counter::Oversize => 1,
            Counter::Segmented => 2,
            Counter::Rx(kind) => 3 + kind.place(),
            Counter::Tx(kind) => 3 + KINDS + kind.place(),
        }
    }
}

/// Registers with their counters. Those of `Bytes` are the lower halves of pairs.
const TABLE: [(u32, Counter); 28] = {
    use Counter::{Missed, Oversize, Rx, Segmented, Tx};
    use Kind::{Broadcast, Bytes, Frames, Multicast, Size};
    [
        (0x4010, Missed), // MPC
        (0x405c, Rx(Size(0))),
        (0x4060, Rx(Size(1))),
        (0x4064, Rx(Size(2))),
        (0x4068, Rx(Size(3))),
        (0x406c, Rx(Size(4))),
        (0x4070, Rx(Size(5))),
        (0x4074, Rx(Frames)), // GPRC
        (0x4078, Rx(Broadcast)),
        (0x407c, Rx(Multicast)),
        (0x4080, Tx(Frames)), // GPTC
        (0x4088, Rx(Bytes)),  // GORCL, GORCH
        (0x4090, Tx(Bytes)),  // GOTCL, GOTCH
        (0x40a0, Missed),     // RNBC
        (0x40ac, Oversize),   // ROC
        (0x40c0, Rx(Bytes)),  // TORL, TORH
        (0x40c8, Tx(Bytes)),  // TOTL, TOTH
        (0x40d0, Rx(Frames)), // TPR
        (0x40d4, Tx(Frames)), // TPT
        (0x40d8, Tx(Size(0))),
        (0x40dc, Tx(Size(1))),
        (0x40e0, Tx(Size(2))),
        (0x40e4, Tx(Size(3))),
        (0x40e8, Tx(Size(4))),
        (0x40ec, Tx(Size(5))),
        (0x40f0, Tx(Multicast)),
        (0x40f4, Tx(Broadcast)),
        (0x40f8, Segmented), // TSCTC
    ]
};
/// The upper halves: register, place of the lower one in `TABLE`. Reading them clears both.
const HIGH: [(u32, usize); 4] = [(0x408c, 11), (0x4094, 12), (0x40c4, 15), (0x40cc, 16)];

/// A device's counters.
pub(super) struct Stats {
    counts: [AtomicU64; COUNTERS],
    seen: [AtomicU64; TABLE.len()],
    /// What the lower half of a pair was read of, until its upper half is read.
    latched: [AtomicU64; TABLE.len()],
}

impl Stats {
    pub(super) fn new() -> Stats {
        Stats {
            counts: [const { AtomicU64::new(0) }; COUNTERS],
            seen: [const { AtomicU64::new(0) }; TABLE.len()],
            latched: [const { AtomicU64::new(0) }; TABLE.len()],
        }
    }

    /// Counts `n` more; by the owner of the counter.
    #[inline]
    pub(super) fn add(&self, counter: Counter, n: u64) {
        let count = &self.counts[counter.place()];
        count.store(count.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Counts frames that were sent or received, in `direction`.
    pub(super) fn frames(&self, direction: fn(Kind) -> Counter, frames: &Frames) {
        if frames.count == 0 {
            return;
        }
        let add = |kind, n| self.add(direction(kind), n);
        add(Kind::Frames, frames.count);
        add(Kind::Bytes, frames.bytes);
        add(Kind::Broadcast, frames.broadcast);
        add(Kind::Multicast, frames.multicast);
        frames.sizes.iter().enumerate().for_each(|(class, n)| add(Kind::Size(class), *n));
    }

    /// What has been counted for `counter` since the device came to be.
    pub(super) fn total(&self, counter: Counter) -> u64 {
        self.counts[counter.place()].load(Ordering::Relaxed)
    }

    /// The driver reads the register at `offset`.
    pub(super) fn read(&self, offset: u32) -> u32 {
        if let Some((_, low)) = HIGH.iter().find(|(high, _)| *high == offset) {
            // Of the same moment as the lower half, if that was read before: nothing is lost or torn between them.
            let count = match self.latched[*low].swap(0, Ordering::Relaxed) {
                0 => self.total(TABLE[*low].1),
                latched => latched,
            };
            let seen = self.seen[*low].swap(count, Ordering::Relaxed);
            return half(count.wrapping_sub(seen) >> 32);
        }
        let Some(place) = TABLE.iter().position(|(register, _)| *register == offset) else { return 0 };
        let counter = TABLE[place].1;
        let count = self.total(counter);
        if matches!(counter, Counter::Rx(Kind::Bytes) | Counter::Tx(Kind::Bytes)) {
            self.latched[place].store(count, Ordering::Relaxed);
            return half(count.wrapping_sub(self.seen[place].load(Ordering::Relaxed)) & 0xffff_ffff);
        }
        half(count.wrapping_sub(self.seen[place].swap(count, Ordering::Relaxed)))
    }

    /// The registers start at zero again.
    pub(super) fn reset(&self) {
        for ((seen, latched), (_, counter)) in self.seen.iter().zip(&self.latched).zip(&TABLE) {
            seen.store(self.total(*counter), Ordering::Relaxed);
            latched.store(0, Ordering::Relaxed);
        }
    }
}

/// A batch's frames, counted in private memory.
#[derive(Default)]
pub(super) struct Frames {
    count: u64,
    bytes: u64,
    broadcast: u64,
    multicast: u64,
    sizes: [u64; 6],
}

impl Frames {
    /// Counts one more.
    #[inline]
    pub(super) fn count(&mut self, frame: &Frame) {
        let bytes = u64::from(frame.len) + FCS;
        self.count += 1;
        self.bytes += bytes;
        // Up to 64, 127, 255, 511, 1023 bytes, and longer ones.
        let class = match bytes {
            ..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            _ => 5,
        };
        self.sizes[class] += 1;
        if is_group(frame.dst()) {
            *(if frame.dst() == BROADCAST { &mut self.broadcast } else { &mut self.multicast }) += 1;
        }
    }
}

fn half(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
