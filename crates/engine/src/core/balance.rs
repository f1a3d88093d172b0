//! Which core has which task, decided again and again: cores come and go with what there is to do.
//!
//! Theory of operation. A thread of the control plane (`balancer`) reads what the cores wrote down, and asks here ten times a
//! second ([`Memory::decide`]). A core is *full* when it has been busy for [`FULL`] of the time, [`FOR`] decisions in a row: what its tasks
//! would do if they could is not known then, so moving one is assumed to free no more than it uses. If there is a core at rest
//! (`CoreOptions::least_cores` of them always are active), it becomes active, and takes about half of the load; else the
//! task moves that evens the two cores out most, if that makes the fuller of both less full by a quarter at least. When the
//! last core's load would fit on the others with room to spare, for [`QUIET`], its tasks move there and it rests.
//!
//! What keeps tasks from going back and forth: a task that alone fills a core is never moved; two decisions that change
//! anything are [`GRACE`] apart; and a core that was added is not taken away below a load that is less than the one at which
//! it was added.
//!
//! A budget is a part of one core, so all tasks of its owner have to be on one core, and the budgets of a core must fit on it:
//! [`pack`] says what has to move for that, whenever a budget or a task comes.
//!
//! Here are decisions alone: no clock, no lock and no core, so an hour of them takes a test milliseconds.

use super::registry::Load;
use super::service::MOST_RESERVED;

/// A core that is busy for more than this part of the time, in thousandths, is full.
const FULL: u64 = 950;
/// Decisions in a row for which it has to be.
const FOR: u32 = 3;
/// A core is not filled beyond this by a move.
const ROOM: u64 = 800;
/// Cores are taken away when the others would be busy for less than this.
const SPARE: u64 = 700;
/// Decisions in a row for which they would.
const QUIET: u32 = 20;
/// Decisions between two changes.
const GRACE: u32 = 5;
/// A move makes the fuller core less busy by this much, in thousandths of its load, or is not worth it.
const WORTH: u64 = 250;

/// What a core did in the time between two decisions: thousandths of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) busy: u64,
    tasks: Vec<Share>,
}

/// A task's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    id: u64,
    busy: u64,
    /// It stays where it is: its owner has a budget on this core.
    stays: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// One more core is active, and has these tasks.
    Add(Vec<u64>),
    /// The last one rests.
    Remove,
    /// A task moves to a core.
    Move(u64, usize),
}

/// What was seen before.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Decisions in a row in which each core was full.
    full: Vec<u32>,
    /// Decisions in a row in which one core less would have done.
    quiet: u32,
    /// Decisions until the next change.
    grace: u32,
    /// The load of all at which each number of cores became too few.
    grew_at: Vec<u64>,
}

impl Memory {
    /// What to do about `active` cores of which `all` could be and `least` have to be.
    pub(super) fn decide(&mut self, active: &[Sample], all: usize, least: usize) -> Option<Action> {
        self.full.resize(active.len(), 0);
        for (full, core) in self.full.iter_mut().zip(active) {
            *full = if core.busy >= FULL { *full + 1 } else { 0 };
        }
        let load: u64 = active.iter().map(|core| core.busy).sum();
        let cores = active.len() as u64;
        let grew_at = self.grew_at.get(active.len() - 1).copied().unwrap_or(u64::MAX);
        let fits = active.len() > least.max(1)
            && load <= SPARE * (cores - 1)
            // Below what it was when the last core was added, by a tenth of a core for each.
            && load < grew_at.saturating_sub(90 * (cores - 1));
        self.quiet = if fits { self.quiet + 1 } else { 0 };
        self.grace = self.grace.saturating_sub(1);
        if self.grace > 0 {
            return None;
        }
        let action =
            self.grow(active, all, load).or_else(|| (self.quiet >= QUIET).then_some(Action::Remove))?;
        (self.grace, self.quiet) = (GRACE, 0);
        self.full.fill(0);
        Some(action)
    }

    fn grow(&mut self, active: &[Sample], all: usize, load: u64) -> Option<Action> {
        let place = |full: &u32| *full >= FOR;
        let from = self.full.iter().position(place)?;
        let core = &active[from];
        let movable = core.tasks.iter().filter(|task| task.busy > 0).count();
        // An elephant alone: another core would not help it.
        if movable < 2 {
            return None;
        }
        let emptiest = (0..active.len()).filter(|to| *to != from).min_by_key(|to| active[*to].busy);
        if let Some(to) = emptiest {
            if let Some(task) = best(core, &active[to]) {
                return Some(Action::Move(task, to));
            }
        }
        if active.len() < all {
            let half = half(core);
            if !half.is_empty() {
                self.grew_at.resize(all, u64::MAX);
                self.grew_at[active.len()] = load;
                return Some(Action::Add(half));
            }
        }
        None
    }
}

/// The task of the full core `from` that evens it out with `to` most.
fn best(from: &Sample, to: &Sample) -> Option<u64> {
    let after = |task: &&Share| (from.busy - task.busy.min(from.busy)).max(to.busy + task.busy);
    let fits = |task: &&Share| !task.stays && task.busy > 0 && to.busy + task.busy <= ROOM;
    let task = from.tasks.iter().filter(fits).min_by_key(after)?;
    (after(&task) + from.busy * WORTH / 1000 <= from.busy).then_some(task.id)
}

/// Tasks that make up about half of what the core did, but not the largest one, which stays.
fn half(core: &Sample) -> Vec<u64> {
    let mut tasks: Vec<&Share> = core.tasks.iter().filter(|task| !task.stays && task.busy > 0).collect();
    tasks.sort_by_key(|task| (std::cmp::Reverse(task.busy), task.id));
    let stay = core.tasks.iter().filter(|task| task.stays).map(|task| task.busy).sum::<u64>();
    let (mut here, mut there, mut ids) = (stay, 0, Vec::new());
    for task in tasks {
        if here <= there {
            here += task.busy;
        } else {
            there += task.busy;
            ids.push(task.id);
        }
    }
    ids
}

/// The moves after which all tasks of each owner with a budget are on one core of the first `active` ones, and the budgets of
/// each core fit on it, as far as that is possible.
pub(super) fn pack(loads: &[Load], active: usize) -> Vec<(u64, usize)> {
    // Owners with a budget: the largest first, then those that came first.
    let mut owners: Vec<(u64, u16)> =
        loads.iter().filter(|load| load.reserved > 0).map(|load| (load.reserved, load.owner)).collect();
    owners.sort_unstable_by_key(|(reserved, owner)| (std::cmp::Reverse(*reserved), *owner));
    owners.dedup_by_key(|(_, owner)| *owner);
    let mut reserved = vec![0; active];
    let mut moves = Vec::new();
    for (share, owner) in owners {
        let own = || loads.iter().filter(move |load| load.owner == owner);
        let here = |core: usize| own().filter(|load| load.core == core).count();
        let fits = |core: &usize| reserved[*core] + share <= MOST_RESERVED;
        let most = (0..active).filter(fits).max_by_key(|core| (here(*core), std::cmp::Reverse(*core)));
        let Some(to) = most.or_else(|| (0..active).min_by_key(|core| reserved[*core])) else { break };
        reserved[to] += share;
        moves.extend(own().filter(|load| load.core != to).map(|load| (load.id.0, to)));
    }
    moves
}

/// What was read last, to tell what was done since.
#[derive(Default)]
pub(super) struct Before {
    cores: Vec<(u64, u64)>,
    tasks: std::collections::HashMap<u64, u64>,
}

impl Before {
    /// What each of the first `active` cores did since, by their meters (busy and all time) and their tasks' ledgers.
    pub(super) fn samples(&mut self, meters: Vec<(u64, u64)>, loads: &[Load], active: usize) -> Vec<Sample> {
        self.cores.resize(meters.len(), (0, 0));
        let tasks = loads.iter().map(|load| (load.id.0, load.busy_ns)).collect();
        let tasks = std::mem::replace(&mut self.tasks, tasks);
        let cores = std::mem::replace(&mut self.cores, meters);
        let now = &self.cores;
        let sample = |number: usize| {
            let time = now[number].1.saturating_sub(cores[number].1).max(1);
            let thousandths = |ns: u64| (u128::from(ns) * 1000 / u128::from(time)).min(1000) as u64;
            let own = loads.iter().filter(|load| load.core == number);
            let tasks = own.map(|load| {
                let since = tasks.get(&load.id.0).map_or(0, |before| load.busy_ns.saturating_sub(*before));
                Share { id: load.id.0, busy: thousandths(since), stays: load.reserved > 0 }
            });
            Sample {
                busy: thousandths(now[number].0.saturating_sub(cores[number].0)),
                tasks: tasks.collect(),
            }
        };
        (0..active.min(now.len())).map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(busy: u64, tasks: &[(u64, u64)]) -> Sample {
        let tasks = tasks.iter().map(|(id, busy)| Share { id: *id, busy: *busy, stays: false }).collect();
        Sample { busy, tasks }
    }

    fn place(task: u64) -> usize {
        usize::try_from(task).unwrap()
    }

    /// A world in which each task wants so much of a core, and gets its fair part of what there is.
    struct World {
        wants: Vec<u64>,
        at: Vec<usize>,
        active: usize,
        all: usize,
        memory: Memory,
        changes: u64,
    }

    impl World {
        fn new(wants: &[u64], active: usize, all: usize) -> World {
            let (wants, at) = (wants.to_vec(), vec![0; wants.len()]);
            World { wants, at, active, all, memory: Memory::default(), changes: 0 }
        }

        fn samples(&self) -> Vec<Sample> {
            let one = |number: usize| {
                let own: Vec<usize> = (0..self.wants.len()).filter(|task| self.at[*task] == number).collect();
                let want: u64 = own.iter().map(|task| self.wants[*task]).sum();
                let part = |task: &usize| self.wants[*task] * 1000 / want.max(1000);
                let tasks: Vec<(u64, u64)> = own.iter().map(|task| (*task as u64, part(task))).collect();
                core(want.min(1000), &tasks)
            };
            (0..self.active).map(one).collect()
        }

        fn decide(&mut self) {
            let samples = self.samples();
            match self.memory.decide(&samples, self.all, 1) {
                Some(Action::Add(tasks)) => {
                    self.active += 1;
                    tasks.iter().for_each(|task| self.at[place(*task)] = self.active - 1);
                }
                Some(Action::Remove) => {
                    self.active -= 1;
                    let last = self.active;
                    for (place, at) in self.at.iter_mut().enumerate().filter(|(_, at)| **at == last) {
                        *at = place % last;
                    }
                }
                Some(Action::Move(task, to)) => self.at[place(task)] = to,
                None => return,
            }
            self.changes += 1;
        }

        fn run(&mut self, decisions: usize) -> u64 {
            let before = self.changes;
            (0..decisions).for_each(|_| self.decide());
            self.changes - before
        }
    }

    #[test]
    fn full_tasks_spread_and_stay_where_they_are() {
        // Three tasks that would each fill a core.
        let mut world = World::new(&[1000, 1000, 1000], 1, 3);
        world.run(30);
        let mut at = world.at.clone();
        at.sort_unstable();
        assert_eq!((world.active, at), (3, vec![0, 1, 2]));
        assert_eq!(world.run(36_000), 0, "an hour without a move");
    }

    #[test]
    fn an_elephant_is_never_moved_and_equal_ones_do_not_swap() {
        for wants in [&[1000][..], &[2000, 0, 0], &[1000, 1000, 1000, 1000, 1000]] {
            let mut world = World::new(wants, 2, 2);
            world.run(200);
            assert_eq!(world.run(36_000), 0, "{wants:?}");
        }
    }

    #[test]
    fn a_core_comes_when_one_is_full_and_goes_when_one_is_enough() {
        let mut world = World::new(&[300, 300, 300, 300], 1, 4);
        assert!(world.run(10) >= 1 && world.active == 2);
        assert_eq!(world.run(36_000), 0, "600 each");
        world.wants = vec![100; 4];
        world.run(60);
        assert_eq!(world.active, 1);
        assert_eq!(world.run(36_000), 0);
    }

    #[test]
    fn a_load_at_the_threshold_does_not_flap() {
        for load in 230..=245 {
            let mut world = World::new(&[load; 4], 1, 2);
            let changes = world.run(36_000);
            assert!(changes <= 4, "{load}: {changes} changes in an hour");
            // And one that swings around it.
            let mut world = World::new(&[load; 4], 1, 2);
            for round in 0..3_600u64 {
                world.wants = vec![load + round % 3 * 3 - 3; 4];
                world.run(10);
            }
            assert!(world.changes <= 8, "{load}: {} changes in an hour", world.changes);
        }
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let mut before = Before::default();
        assert!(before.samples(Vec::new(), &[], 3).is_empty());
        let samples = before.samples(vec![(0, 0), (5, 5)], &[], 2);
        assert_eq!(samples.iter().map(|core| core.busy).collect::<Vec<_>>(), [0, 1000]);
        let samples = before.samples(vec![(0, 0), (5, 5)], &[], 2);
        assert_eq!(samples.iter().map(|core| core.busy).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(Memory::default().decide(&samples, 2, 1), None);
        // A meter that was read while it was written.
        before.samples(vec![(9, 3)], &[], 1);
    }

    #[test]
    fn a_task_with_a_budget_stays() {
        let mut full = core(1000, &[(1, 500), (2, 500)]);
        full.tasks[0].stays = true;
        assert_eq!(half(&full), [2]);
        full.tasks[1].stays = true;
        assert!(half(&full).is_empty() && best(&full, &core(0, &[])).is_none());
    }

    #[test]
    fn the_tasks_of_a_budget_are_together_and_budgets_fit_on_their_cores() {
        use crate::core::mailbox::TaskId;
        let load = |id: u64, core: usize, owner: u16, percent: u64| Load {
            id: TaskId(id),
            core,
            owner,
            reserved: percent * 10_000,
            busy_ns: 0,
        };
        // Two queues on two cores: one moves, to where it disturbs least.
        assert_eq!(pack(&[load(1, 0, 7, 50), load(2, 1, 7, 50), load(3, 1, 8, 0)], 2), [(2, 0)]);
        // Where most of it is.
        assert_eq!(pack(&[load(1, 0, 7, 5), load(2, 1, 7, 5), load(3, 1, 7, 5)], 2), [(1, 1)]);
        // Two that met on one core, and do not fit there.
        assert_eq!(pack(&[load(1, 0, 7, 60), load(2, 0, 8, 50)], 2), [(2, 1)]);
        // All is well, or there are no budgets, or there is one core.
        assert!(pack(&[load(1, 0, 7, 60), load(2, 1, 8, 50), load(3, 1, 9, 0)], 2).is_empty());
        assert!(pack(&[load(1, 0, 7, 0), load(2, 1, 7, 0)], 2).is_empty());
        assert!(pack(&[load(1, 0, 7, 60), load(2, 0, 8, 60)], 1).is_empty());
        // A core that rests gives its tasks up.
        assert_eq!(pack(&[load(1, 2, 7, 60)], 2), [(1, 0)]);
        assert!(pack(&[], 0).is_empty());
    }
}
