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

/// One task, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Its number among all that there were.
    pub id: u64,
    /// Number of its owner.
    pub owner: u16,
    /// Which of its owner's it is: the number of a queue.
    pub index: usize,
    /// The I/O core that has it.
    pub core: usize,
    /// How it is treated.
    pub heat: Heat,
    /// Visits that found something to do.
    pub visits: u64,
    /// Visits that found nothing.
    pub empty: u64,
    /// Visits that ended because nothing was left.
    pub drained: u64,
    /// Visits that ended because it had had the items or bytes of a turn.
    pub budget: u64,
    /// Visits that ended because it had had the time of a turn.
    pub time: u64,
    /// Visits that ended because there was no room where its work goes.
    pub waits: u64,
    /// Visits out of turn, since it was stuck, urgent or had a budget left.
    pub early: u64,
    /// Times that it went to another core.
    pub moves: u64,
    /// Times that its events woke the core.
    pub wakes: u64,
    /// Nanoseconds that its visits took.
    pub busy_ns: u64,
    /// Items of those visits.
    pub items: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Nanoseconds that half of the visits came within after there was work, as far as a core can tell: since it last saw none.
    pub wait_p50_ns: u64,
    /// Nanoseconds within which 99 of 100 visits came.
    pub wait_p99_ns: u64,
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
