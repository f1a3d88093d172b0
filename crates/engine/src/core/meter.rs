//! Where an I/O core's time goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Written by one core, read by anybody.
#[derive(Debug, Default)]
pub(super) struct Meter {
    busy: AtomicU64,
    idle: AtomicU64,
    asleep: AtomicU64,
    rounds: AtomicU64,
    moved: AtomicU64,
    sleeps: AtomicU64,
}

/// Where an I/O core's time went since it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreStatus {
    /// Its number among the I/O cores.
    pub number: usize,
    /// The processor that it is pinned to, if it is.
    pub cpu: Option<usize>,
    /// Whether other threads of the daemon may run on its processor: there is no other one for them.
    pub shared: bool,
    /// Ingress queues that it serves.
    pub queues: usize,
    /// Nanoseconds in rounds that moved frames.
    pub busy_ns: u64,
    /// Nanoseconds in rounds that found nothing.
    pub idle_ns: u64,
    /// Nanoseconds asleep.
    pub sleep_ns: u64,
    /// Rounds that moved frames.
    pub busy_rounds: u64,
    /// Frames moved.
    pub frames: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
}

impl Meter {
    // One writer: a load and a store are enough.
    #[inline]
    fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    fn add_time(counter: &AtomicU64, time: Duration) {
        Self::add(counter, u64::try_from(time.as_nanos()).unwrap_or(0));
    }

    #[inline]
    pub(super) fn busy(&self, time: Duration, moved: u64) {
        Self::add_time(&self.busy, time);
        Self::add(&self.rounds, 1);
        Self::add(&self.moved, moved);
    }

    #[inline]
    pub(super) fn idle(&self, time: Duration) {
        Self::add_time(&self.idle, time);
    }

    pub(super) fn asleep(&self, time: Duration) {
        Self::add_time(&self.asleep, time);
        Self::add(&self.sleeps, 1);
    }

    pub(super) fn status(&self, number: usize, cpu: Option<usize>, queues: usize) -> CoreStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CoreStatus {
            number,
            cpu,
            shared: cpu.is_none_or(|cpu| !crate::place::is_kept(cpu)),
            queues,
            busy_ns: load(&self.busy),
            idle_ns: load(&self.idle),
            sleep_ns: load(&self.asleep),
            busy_rounds: load(&self.rounds),
            frames: load(&self.moved),
            sleeps: load(&self.sleeps),
        }
    }
}
