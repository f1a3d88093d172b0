//! What is counted of frames on their way: what a fetch took, what a delivery did, what was dropped and why.
//!
//! A leaf, so that both the ports, which are counted, and the observer, which writes the counters down, stand
//! above it.

pub use sidecore_abi::counters::DropReason;

use crate::mem::{own_time, ticks};
use crate::packet::MAX_BATCH;

/// A port's number: its place in the counters file and in the switch's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// What happened while frames were fetched; the core adds it to the port's counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Frames taken, including those dropped on the spot.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Kicks that were drained.
    pub kicks: u64,
    /// Interrupts that told the sender of buffers given back.
    pub interrupts: u64,
    /// Those of them that were for another queue, whose time had come.
    pub for_others: u64,
    /// Times that there was something to tell it, by an interrupt or without.
    pub occasions: u64,
    /// Frames dropped on the spot, by reason.
    pub drops: Drops,
}

/// Numbers of dropped frames by reason.
#[derive(Clone, Copy, Debug)]
pub struct Drops {
    /// The counts, in the order of the reasons' numbers.
    pub counts: [u32; sidecore_abi::counters::DROP_PLACES],
    any: bool,
}

impl Default for Drops {
    fn default() -> Drops {
        Drops { counts: [0; sidecore_abi::counters::DROP_PLACES], any: false }
    }
}

impl Drops {
    /// Counts `n` drops.
    pub fn add(&mut self, reason: DropReason, n: u32) {
        self.counts[reason as usize] += n;
        self.any = true;
    }

    /// Counts those of `others`, too.
    pub fn merge(&mut self, others: &Drops) {
        self.counts.iter_mut().zip(&others.counts).for_each(|(all, n)| *all += n);
        self.any |= others.any;
    }

    /// Whether anything was dropped.
    pub fn any(&self) -> bool {
        self.any
    }
}

/// A delivery looks at the clock once for this many frames, and first behind `FIRST_LOOK`.
const FRAMES_A_LOOK: usize = 16;
const FIRST_LOOK: usize = 4;

/// What became of the frames given to an egress queue.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Frames delivered.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Times that there was something to tell the receiver, by an interrupt or without.
    pub occasions: u64,
    /// Frames dropped, by reason.
    pub drops: Drops,
    /// While a capture runs: each dropped pick with its reason.
    pub trace: Option<Vec<(u16, DropReason)>>,
    /// When it began, and how long it may take: ticks.
    pub begun: u64,
    time: u64,
    /// It was late once.
    late: bool,
}

impl Outcome {
    /// Nothing yet.
    pub fn new() -> Outcome {
        Outcome { time: u64::MAX, ..Outcome::default() }
    }

    /// The delivery begins, and may take `time` ticks.
    pub fn begin(&mut self, time: u64) {
        (self.begun, self.time) = (ticks(), time);
    }

    /// Whether time is up after `done` picks: asked before each of the others, which are dropped then
    /// ([`DropReason::ReceiverBusy`]).
    pub fn is_late(&mut self, done: usize) -> bool {
        done % FRAMES_A_LOOK == FIRST_LOOK
            && ticks().wrapping_sub(self.begun) > self.time
            && self.has_waited_for_pages()
    }

    /// Whether that time went into a search for pages, for the second time: a process that was stopped looks
    /// so once. Else the delivery has its whole time again.
    #[cold]
    fn has_waited_for_pages(&mut self) -> bool {
        let late = own_time(self.begun, true).is_some_and(|own| own > self.time);
        if std::mem::replace(&mut self.late, late) && late {
            return true;
        }
        self.begun = ticks();
        false
    }

    /// Counts a delivered frame.
    pub fn delivered(&mut self, bytes: u32) {
        self.frames += 1;
        self.bytes += u64::from(bytes);
    }

    /// Counts a dropped pick.
    #[inline]
    pub fn dropped(&mut self, pick: u16, reason: DropReason) {
        self.drops.add(reason, 1);
        if let Some(trace) = &mut self.trace {
            if trace.len() < MAX_BATCH {
                trace.push((pick, reason));
            }
        }
    }

    /// Counts all of `picks` as dropped.
    pub fn dropped_all(&mut self, picks: &[u16], reason: DropReason) {
        for &pick in picks {
            self.dropped(pick, reason);
        }
    }
}
