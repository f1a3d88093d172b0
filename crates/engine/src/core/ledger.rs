//! What became of one task: its visits, why each ended, and how long its work waited.
//!
//! A [`Ledger`] is written by the core that has the task, read by any thread, and moves with the task.
//!
//! Where an I/O core's time goes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use crate::count;

/// Why a visit ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VisitEnd {
    /// There was no more to do.
    #[default]
    Drained,
    /// It had had as much as its turn has: items or bytes.
    Budget,
    /// It had had as long as its turn is.
    Time,
    /// What it has cannot be done now: there is no room where it goes.
    Waits,
}

/// What is counted of one task.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: AtomicU32,
    visits: AtomicU64,
    empty: AtomicU64,
    ends: [AtomicU64; 4],
    early: AtomicU64,
    moves: AtomicU64,
    wakes: AtomicU64,
    busy: AtomicU64,
    items: AtomicU64,
    bytes: AtomicU64,
    waits: Histogram,
}

/// How a core treats a task at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Heat {
    /// It is looked at in each round.
    Polled,
    /// It has been silent, and wakes the core when it has work.
    Cold,
    /// Its owner has used up its budget or its rate: it is polled, but not visited.
    Throttled,
}

crate::util::form::view! {
    /// Counts of a queue's visits by the I/O core that serves it.
    TaskStatus {
        /// Its number among all tasks that there were.
        id: u64,
        /// Number of its port.
        owner: u16,
        /// Number of the queue.
        index: usize,
        /// The I/O core that serves it.
        core: usize,
        /// `polled`: in each round; `cold`: not polled, a notification wakes the core; `throttled`: its
        /// port's budget or rate is used up.
        heat: Heat = ["polled", "cold", "throttled"],
        /// Visits that found work.
        visits: u64,
        /// Visits that found no work.
        empty: u64,
        /// Visits that ended because nothing was left.
        drained: u64,
        /// Visits that ended because the frames or bytes of a turn were used up.
        budget: u64,
        /// Visits that ended because the time of a turn was used up.
        time: u64,
        /// Visits that ended because the receiver had no room.
        waits: u64,
        /// Visits out of turn.
        early: u64,
        /// Moves to another core.
        moves: u64,
        /// Times that its events woke the core.
        wakes: u64,
        /// Nanoseconds that its visits took.
        busy_ns: u64,
        /// Frames of those visits.
        items: u64,
        /// Bytes of those.
        bytes: u64,
        /// Median time in nanoseconds that work waited for a visit, measured from the last time that the core
        /// found the queue empty.
        wait_p50_ns: u64,
        /// The 99th percentile of the same.
        wait_p99_ns: u64,
    }
}

/// What a visit adds to the ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) end: VisitEnd,
    pub(super) ns: u64,
    pub(super) items: u64,
    pub(super) bytes: u64,
    /// Visits since the last entry that found nothing.
    pub(super) empty: u64,
    /// For how long there had been work.
    pub(super) wait: u64,
    pub(super) early: bool,
}

impl Ledger {
    #[inline]
    pub(super) fn enter(&self, entry: &Entry) {
        count(&self.visits, 1);
        count(&self.ends[entry.end as usize], 1);
        count(&self.busy, entry.ns);
        count(&self.items, entry.items);
        count(&self.bytes, entry.bytes);
        if entry.empty > 0 {
            count(&self.empty, entry.empty);
        }
        if entry.early {
            count(&self.early, 1);
        }
        self.waits.add(entry.wait);
    }

    /// Visits that found nothing, where no entry follows.
    pub(super) fn enter_empty(&self, visits: u64) {
        count(&self.empty, visits);
    }

    /// Another core has it.
    pub(super) fn moved(&self) {
        count(&self.moves, 1);
    }

    pub(super) fn woke(&self) {
        count(&self.wakes, 1);
    }

    pub(super) fn set_heat(&self, heat: Heat) {
        self.state.store(heat as u32, Ordering::Relaxed);
    }

    pub(super) fn busy_ns(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn status(&self, id: u64, owner: u16, index: usize, core: usize) -> TaskStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [drained, budget, time, waits] = self.ends.each_ref().map(load);
        let [wait_p50_ns, wait_p99_ns] = self.waits.quantiles([50, 99]);
        TaskStatus {
            id,
            owner,
            index,
            core,
            heat: match self.state.load(Ordering::Relaxed) {
                0 => Heat::Polled,
                _ => Heat::Cold,
            },
            visits: load(&self.visits),
            empty: load(&self.empty),
            drained,
            budget,
            time,
            waits,
            early: load(&self.early),
            moves: load(&self.moves),
            wakes: load(&self.wakes),
            busy_ns: load(&self.busy),
            items: load(&self.items),
            bytes: load(&self.bytes),
            wait_p50_ns,
            wait_p99_ns,
        }
    }
}

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

crate::util::form::view! {
    /// Where an I/O core's time went since it started.
    CoreStatus {
        /// Its number.
        number: usize,
        /// The processor that it is pinned to, if it is.
        cpu: Option<usize>,
        /// Whether other threads of the daemon may run on its processor, because there is no other one for
        /// them.
        shared: bool,
        /// Ingress queues that it serves.
        queues: usize,
        /// Whether it is active; other cores rest until they are needed.
        #[serde(default)]
        active: bool,
        /// Nanoseconds in rounds that moved frames.
        busy_ns: u64,
        /// Nanoseconds in rounds that found nothing.
        idle_ns: u64,
        /// Nanoseconds asleep.
        sleep_ns: u64,
        /// Rounds that moved frames.
        busy_rounds: u64,
        /// Frames moved.
        frames: u64,
        /// Times that it went to sleep.
        sleeps: u64,
    }
}

impl TimeSpent {
    pub(super) fn busy(&self, ns: u64, moved: u64) {
        count(&self.busy, ns);
        count(&self.rounds, 1);
        count(&self.moved, moved);
    }

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
            shared: cpu.is_none_or(|cpu| !crate::util::place::is_kept(cpu)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_entered_is_told() {
        let ledger = Ledger::default();
        let entry =
            |wait| Entry { end: VisitEnd::Time, ns: 10, items: 2, bytes: 3, empty: 1, wait, early: true };
        (0..98).for_each(|_| ledger.enter(&entry(1_000)));
        (0..2).for_each(|_| ledger.enter(&entry(50_000)));
        let status = ledger.status(1, 2, 3, 0);
        assert!(
            (1_000..1_300).contains(&status.wait_p50_ns) && (50_000..65_000).contains(&status.wait_p99_ns)
        );
        assert_eq!((status.visits, status.time, status.early, status.empty), (100, 100, 100, 100));
        assert_eq!((status.items, status.bytes, status.busy_ns), (200, 300, 1_000));
        assert_eq!(Ledger::default().status(0, 0, 0, 0).wait_p99_ns, 0);
    }
}
