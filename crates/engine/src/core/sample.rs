//! What cores did between two decisions of the balancer, from what they wrote down.

use super::registry::Load;

/// A core that is busy for more than this part of the time, in thousandths, is full.
pub(super) const FULL: u64 = 950;

/// What a core did in the time between two decisions: thousandths of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) busy: u64,
    /// It has been in one visit since the last decision: it waits in a guest's memory, or does not run.
    pub(super) stands: bool,
    /// Its NUMA node.
    pub(super) node: Option<usize>,
    pub(super) tasks: Vec<Share>,
}

/// A task's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) id: u64,
    pub(super) busy: u64,
    /// The node of its guest's memory.
    pub(super) home: Option<usize>,
    /// It stays where it is: its owner has a budget on this core.
    pub(super) stays: bool,
}

impl Sample {
    /// Whether it was busy for all of the time, as far as that can be told.
    pub(super) fn is_full(&self) -> bool {
        self.busy >= FULL
    }

    /// Whether it is on another node than the memory of the task's guest.
    pub(super) fn is_far(&self, task: &Share) -> bool {
        matches!((self.node, task.home), (Some(here), Some(home)) if here != home)
    }
}

/// What was read last, to tell what was done since.
#[derive(Default)]
pub(super) struct Before {
    cores: Vec<(u64, u64)>,
    /// Nanoseconds busy, of each task.
    tasks: std::collections::HashMap<u64, u64>,
}

impl Before {
    /// What each of the first `active` cores did since, by their times (busy and all time) and their tasks' ledgers. `at_work`:
    /// which of them are in a visit now; `nodes`: where the cores are.
    pub(super) fn samples(
        &mut self,
        times: Vec<(u64, u64)>,
        at_work: &[bool],
        nodes: &[Option<usize>],
        loads: &[Load],
        active: usize,
    ) -> Vec<Sample> {
        self.cores.resize(times.len(), (0, 0));
        let tasks = loads.iter().map(|load| (load.id.0, load.busy_ns)).collect();
        let tasks = std::mem::replace(&mut self.tasks, tasks);
        let cores = std::mem::replace(&mut self.cores, times);
        let now = &self.cores;
        let sample = |number: usize| {
            let time = now[number].1.saturating_sub(cores[number].1);
            // A core writes its time down round by round, and a sleeping one is at nothing.
            let stands = time == 0 && at_work.get(number).copied().unwrap_or(false);
            let time = time.max(1);
            let thousandths = |ns: u64| (u128::from(ns) * 1000 / u128::from(time)).min(1000) as u64;
            let own = loads.iter().filter(|load| load.core == number);
            let tasks = own.map(|load| {
                let busy = tasks.get(&load.id.0).map_or(0, |busy| load.busy_ns.saturating_sub(*busy));
                let stays = load.reserved > 0;
                Share { id: load.id.0, busy: thousandths(busy), home: load.home, stays }
            });
            Sample {
                busy: thousandths(now[number].0.saturating_sub(cores[number].0)),
                stands,
                node: nodes.get(number).copied().flatten(),
                tasks: tasks.collect(),
            }
        };
        (0..active.min(now.len())).map(sample).collect()
    }
}
