//! What an owner of tasks costs the I/O cores, beyond what is usual: visits that took very long, and stalls, in which a core
//! stood still in its memory.
//!
//! Touching memory that a VMM gave may wait: for a hole that is being punched there (0.3 s for each GiB, for as long as it
//! takes), for a page that is on a disk. Nothing can cut such a wait short, but it can be told whose memory it was.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A visit that took longer counts as slow: a full one takes some 0.05 ms.
pub const SLOW_VISIT: Duration = Duration::from_millis(1);
/// An owner whose own memory stalls a core so often within [`STALL_TIME`] is stopped.
const STALLS: usize = 8;
const STALL_TIME: Duration = Duration::from_secs(3600);

/// What was counted of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowCount {
    /// Batches that took longer than a millisecond of their I/O core.
    pub batches: u64,
    /// Microseconds of those together.
    pub total_us: u64,
    /// Microseconds of the longest.
    pub longest_us: u64,
    /// Times that an I/O core stood still in its memory.
    pub stalls: u64,
    /// Times that one stood still while it copied from or to it: in its memory or in the other one's.
    pub shared_stalls: u64,
    /// Deliveries to it that took longer than they may because of its memory or its buffers.
    #[serde(default)]
    pub deliveries: u64,
    /// Microseconds of those together.
    #[serde(default)]
    pub deliveries_us: u64,
}

/// The same while it is counted.
#[derive(Debug, Default)]
pub struct Slow {
    batches: AtomicU64,
    ns: AtomicU64,
    longest: AtomicU64,
    stalls: AtomicU64,
    shared_stalls: AtomicU64,
    deliveries: AtomicU64,
    deliveries_ns: AtomicU64,
    /// When it stalled lately.
    lately: Mutex<Vec<Instant>>,
}

impl Slow {
    /// Counts a slow visit. Happens so seldom that cores may share the counters.
    #[cold]
    pub fn visit(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.longest.fetch_max(ns, Ordering::Relaxed);
    }

    /// Counts a delivery that was slow because of the receiver.
    #[cold]
    pub fn delivery(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.deliveries.fetch_add(1, Ordering::Relaxed);
        self.deliveries_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts a stall in its own memory at `now`. True: there are too many.
    pub fn stalled(&self, now: Instant) -> bool {
        self.stalls.fetch_add(1, Ordering::Relaxed);
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        lately.retain(|then| now.saturating_duration_since(*then) < STALL_TIME);
        if lately.len() < STALLS {
            lately.push(now);
        }
        lately.len() >= STALLS
    }

    /// Counts a stall in its memory or in that of the one that it exchanged frames with.
    pub fn stalled_with_another(&self) {
        self.shared_stalls.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn count(&self) -> SlowCount {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SlowCount {
            batches: load(&self.batches),
            total_us: load(&self.ns) / 1_000,
            longest_us: load(&self.longest) / 1_000,
            stalls: load(&self.stalls),
            shared_stalls: load(&self.shared_stalls),
            deliveries: load(&self.deliveries),
            deliveries_us: load(&self.deliveries_ns) / 1_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stalls_again_and_again_is_told_from_who_does_seldom() {
        let (slow, start) = (Slow::default(), Instant::now());
        for n in 0..100 {
            assert!(!slow.stalled(start + n * STALL_TIME / 7), "seven an hour are borne");
        }
        let slow = Slow::default();
        let stops: Vec<bool> = (0..10).map(|n| slow.stalled(start + Duration::from_secs(n))).collect();
        assert_eq!(stops.iter().position(|stop| *stop), Some(STALLS - 1));
        assert!(stops[STALLS..].iter().all(|stop| *stop), "and once more is too often then");
        slow.visit(Duration::from_micros(1500));
        slow.visit(Duration::from_micros(1200));
        let count = slow.count();
        assert_eq!((count.batches, count.total_us, count.longest_us, count.stalls), (2, 2700, 1500, 10));
    }
}
