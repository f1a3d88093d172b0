//! Visits that took very long: charged as any other, and counted, since other ports had to wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A visit that takes longer counts: a full one takes some 0.05 ms. In nanoseconds.
pub(super) const SLOW_VISIT: u64 = 1_000_000;

/// What was counted of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowCount {
    /// Visits that took longer than a millisecond of their I/O core.
    pub batches: u64,
    /// Microseconds of those together.
    pub total_us: u64,
    /// Microseconds of the longest.
    pub longest_us: u64,
}

/// The counters of one owner's slow visits, which are so rare that I/O cores may share them.
#[derive(Debug, Default)]
pub struct Slow {
    batches: AtomicU64,
    ns: AtomicU64,
    longest: AtomicU64,
}

impl Slow {
    /// Counts a slow visit.
    #[cold]
    pub fn visit(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.longest.fetch_max(ns, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn count(&self) -> SlowCount {
        let us = |counter: &AtomicU64| counter.load(Ordering::Relaxed) / 1_000;
        let batches = self.batches.load(Ordering::Relaxed);
        SlowCount { batches, total_us: us(&self.ns), longest_us: us(&self.longest) }
    }
}
