//! Where an I/O core's time goes.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::count;

/// Written by one core, read by any thread.
#[derive(Debug, Default)]
pub(super) struct TimeSpent {
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
    /// Whether it has tasks; one that does not sleeps until it is needed.
    #[serde(default)]
    pub active: bool,
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

impl TimeSpent {
    #[inline]
    pub(super) fn busy(&self, ns: u64, moved: u64) {
        count(&self.busy, ns);
        count(&self.rounds, 1);
        count(&self.moved, moved);
    }

    #[inline]
    pub(super) fn idle(&self, ns: u64) {
        count(&self.idle, ns);
    }

    pub(super) fn asleep(&self, ns: u64) {
        count(&self.asleep, ns);
        count(&self.sleeps, 1);
    }

    /// Nanoseconds busy, and in all.
    pub(super) fn times(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let busy = load(&self.busy);
        (busy, busy + load(&self.idle) + load(&self.asleep))
    }

    pub(super) fn status(
        &self,
        number: usize,
        cpu: Option<usize>,
        queues: usize,
        active: bool,
    ) -> CoreStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CoreStatus {
            number,
            cpu,
            shared: cpu.is_none_or(|cpu| !crate::place::is_kept(cpu)),
            queues,
            active,
            busy_ns: load(&self.busy),
            idle_ns: load(&self.idle),
            sleep_ns: load(&self.asleep),
            busy_rounds: load(&self.rounds),
            frames: load(&self.moved),
            sleeps: load(&self.sleeps),
        }
    }
}
