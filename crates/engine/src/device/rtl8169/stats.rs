//! The counters that the device dumps into the guest's memory (`DTCCR`). They count from power on and never
//! stand still.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::count;
use crate::packet::{is_group, Frame, BROADCAST};

/// Bytes of a dump.
pub(super) const SIZE: u32 = 64;

/// A device's counters. Each has one writer at a time: the owner of its direction's ring.
#[derive(Default)]
pub(super) struct Stats {
    /// Frames that were sent.
    pub(super) sent: AtomicU64,
    unicast: AtomicU64,
    multicast: AtomicU64,
    broadcast: AtomicU64,
    /// Frames that found no descriptor.
    pub(super) missed: AtomicU64,
    /// What `MPC` had of those when it was cleared.
    pub(super) forgiven: AtomicU64,
}

/// Received frames of a batch, counted in private memory.
#[derive(Default)]
pub(super) struct Received {
    frames: u64,
    multicast: u64,
    broadcast: u64,
}

impl Received {
    /// Counts one more.
    #[inline]
    pub(super) fn count(&mut self, frame: &Frame) {
        self.frames += 1;
        if is_group(frame.dst()) {
            *(if frame.dst() == BROADCAST { &mut self.broadcast } else { &mut self.multicast }) += 1;
        }
    }
}

impl Stats {
    /// Counts what a batch brought.
    pub(super) fn received(&self, frames: &Received) {
        count(&self.unicast, frames.frames - frames.multicast - frames.broadcast);
        count(&self.multicast, frames.multicast);
        count(&self.broadcast, frames.broadcast);
    }

    /// What `MPC` shows: 24 bits.
    pub(super) fn missed(&self) -> u32 {
        let count = self.missed.load(Ordering::Relaxed).wrapping_sub(self.forgiven.load(Ordering::Relaxed));
        u32::try_from(count & 0xff_ffff).unwrap_or(0)
    }

    /// `MPC` is cleared.
    pub(super) fn forgive(&self) {
        self.forgiven.store(self.missed.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// What is written into the guest's memory.
    pub(super) fn dump(&self) -> [u8; SIZE as usize] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (unicast, multicast, broadcast) = (of(&self.unicast), of(&self.multicast), of(&self.broadcast));
        let mut bytes = [0; SIZE as usize];
        // TxOk, RxOk; no errors; frames missed, 16 bits; received: unicast, broadcast, multicast (32 bits).
        let fields = [
            (0, of(&self.sent), 8),
            (8, unicast + multicast + broadcast, 8),
            (28, of(&self.missed), 2),
            (40, unicast, 8),
            (48, broadcast, 8),
            (56, multicast, 4),
        ];
        for (at, value, len) in fields {
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
        bytes
    }
}
