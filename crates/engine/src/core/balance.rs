//! Which core has which task, decided again and again. Cores become active and rest with the load.
//!
//! Theory of operation. A thread of the control plane (`cores`) reads what the cores wrote down, and asks
//! here ten times a second ([`History::decide`]). A core is *full* when it has been busy for [`sample::FULL`]
//! of the time, [`FOR`] decisions in a row: what its tasks would do if they could is not known then, so
//! moving one is assumed to free no more than it uses. If there is a core at rest (`CoreOptions::least_cores`
//! of them always are active), it becomes active, and takes about half of the load; else the task moves that
//! evens the two cores out most, if that makes the fuller of both less full by a quarter at least. When the
//! last core's load would fit on the others with room to spare, for [`QUIET`], its tasks move there and it
//! rests.
//!
//! What keeps tasks from going back and forth: a task that alone fills a core is never moved; two decisions
//! that change anything are [`GRACE`] apart; a move takes [`WORTH`] off the fuller core at least; and a core
//! that was added is not taken away until the load is less than the one at which it was added.
//!
//! Copying is dearer where the guest's memory is on another NUMA node. So a task moves to a core on its
//! memory's node if one has room, and to another node only if none has; and while nothing is full, a task
//! that is elsewhere goes back to the node of its memory.
//!
//! A core that *stands* has been in one visit since the last decision, and seems to have no work. It gets no
//! task until the visit ends; meanwhile no core rests. Its own tasks stay there: only the core itself hands a
//! task over, between two visits, so that a visit needs no lock.
//!
//! A budget is a part of one core, so all tasks of its tenant must be on one core, and the budgets of a core
//! must fit on it. [`pack`] decides the moves for that, whenever a budget or a task comes.
//!
//! This module only decides. It has no clock, no lock and no core, so a test runs an hour of decisions in
//! milliseconds.
//!
//! What cores did between two decisions of the balancer, from what they wrote down.

#[cfg(doc)]
use super::balance;
use super::registry::Load;
use super::tenant::MOST_RESERVED;

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
pub(super) struct History {
    /// Decisions in a row in which each core was full.
    full: Vec<u32>,
    /// Decisions in a row in which one core less would have done.
    quiet: u32,
    /// Decisions until the next change.
    grace: u32,
    /// The load of all at which each number of cores became too few.
    grew_at: Vec<u64>,
}

impl History {
    /// What to do about `active` cores of which `all` could be and `least` have to be.
    pub(super) fn decide(&mut self, active: &[Sample], all: usize, least: usize) -> Option<Action> {
        let stands = active.iter().any(|core| core.stands);
        self.full.resize(active.len(), 0);
        for (full, core) in self.full.iter_mut().zip(active) {
            *full = if core.is_full() { *full + 1 } else { 0 };
        }
        let load: u64 = active.iter().map(|core| core.busy).sum();
        let cores = active.len() as u64;
        let grew_at = self.grew_at.get(active.len() - 1).copied().unwrap_or(u64::MAX);
        let fits = active.len() > least.max(1)
            && !stands
            && load <= SPARE * (cores - 1)
            // Below what it was when the last core was added, by a tenth of a core for each.
            && load < grew_at.saturating_sub(90 * (cores - 1));
        self.quiet = if fits { self.quiet + 1 } else { 0 };
        self.grace = self.grace.saturating_sub(1);
        if self.grace > 0 {
            return None;
        }
        let action = self
            .grow(active, all, load)
            .or_else(|| (self.quiet >= QUIET).then_some(Action::Remove))
            .or_else(|| to_own_node(active))?;
        (self.grace, self.quiet) = (GRACE, 0);
        self.full.fill(0);
        Some(action)
    }

    fn grow(&mut self, active: &[Sample], all: usize, load: u64) -> Option<Action> {
        // A core with an elephant alone: another core would not help it.
        let shared = |core: &Sample| core.tasks.iter().filter(|task| task.busy > 0).count() >= 2;
        let full = |from: &usize| self.full[*from] >= FOR && shared(&active[*from]);
        let from: Vec<usize> = (0..active.len()).filter(full).collect();
        if let Some(action) = from.iter().find_map(|from| ease(active, *from)) {
            return Some(action);
        }
        if active.len() >= all {
            return None;
        }
        let half = from.iter().map(|from| half(&active[*from])).find(|half| !half.is_empty())?;
        self.grew_at.resize(all, u64::MAX);
        self.grew_at[active.len()] = load;
        Some(Action::Add(half))
    }
}

/// The move of a task from the full core `from` to the emptiest core that one fits on; to its memory's node
/// first.
fn ease(active: &[Sample], from: usize) -> Option<Action> {
    let mut others: Vec<usize> = (0..active.len()).filter(|to| *to != from && !active[*to].stands).collect();
    others.sort_by_key(|to| active[*to].busy);
    let to = |near: bool| {
        others.iter().find_map(|to| Some(Action::Move(best(&active[from], &active[*to], near)?, *to)))
    };
    to(true).or_else(|| to(false))
}

/// The task of the full core `from` that evens it out with `to` most; `near`: of those whose memory is not on
/// another node.
fn best(from: &Sample, to: &Sample, near: bool) -> Option<u64> {
    let after = |task: &&Share| (from.busy - task.busy.min(from.busy)).max(to.busy + task.busy);
    let stays = |task: &&Share| task.stays || near && to.is_far(task);
    let fits = |task: &&Share| !stays(task) && task.busy > 0 && to.busy + task.busy <= ROOM;
    let task = from.tasks.iter().filter(fits).min_by_key(after)?;
    (after(&task) + from.busy * WORTH / 1000 <= from.busy).then_some(task.id)
}

/// A task on another node than its guest's memory goes to a core there that has room. The busiest first.
fn to_own_node(active: &[Sample]) -> Option<Action> {
    let away = active.iter().filter(|core| !core.stands);
    let away = away.flat_map(|core| core.tasks.iter().filter(|task| core.is_far(task)));
    let mut away: Vec<&Share> = away.filter(|task| !task.stays && task.busy > 0).collect();
    away.sort_by_key(|task| std::cmp::Reverse(task.busy));
    away.into_iter().find_map(|task| {
        let fits = |core: &usize| {
            let core = &active[*core];
            !core.stands && core.node == task.home && core.busy + task.busy <= ROOM
        };
        let to = (0..active.len()).filter(fits).min_by_key(|core| active[*core].busy)?;
        Some(Action::Move(task.id, to))
    })
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

/// The moves after which all tasks of each tenant with a budget are on one core of the first `active` ones,
/// and the budgets of each core fit on it, as far as that is possible.
pub(super) fn pack(loads: &[Load], active: usize) -> Vec<(u64, usize)> {
    // Tenants with a budget: the largest first, then those that came first.
    let mut tenants: Vec<(u64, usize)> =
        loads.iter().filter(|load| load.reserved > 0).map(|load| (load.reserved, load.tenant)).collect();
    tenants.sort_unstable_by_key(|(reserved, tenant)| (std::cmp::Reverse(*reserved), *tenant));
    tenants.dedup_by_key(|(_, tenant)| *tenant);
    let mut reserved = vec![0; active];
    let mut moves = Vec::new();
    for (share, tenant) in tenants {
        let own = || loads.iter().filter(move |load| load.tenant == tenant);
        let here = |core: usize| own().filter(|load| load.core == core).count();
        let fits = |core: &usize| reserved[*core] + share <= MOST_RESERVED;
        let most = (0..active).filter(fits).max_by_key(|core| (here(*core), std::cmp::Reverse(*core)));
        let Some(to) = most.or_else(|| (0..active).min_by_key(|core| reserved[*core])) else { break };
        reserved[to] += share;
        moves.extend(own().filter(|load| load.core != to).map(|load| (load.id.0, to)));
    }
    moves
}

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
    /// What each of the first `active` cores did since, by their times (busy and all time) and their tasks'
    /// ledgers. `at_work`: which of them are in a visit now; `nodes`: where the cores are.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn core(busy: u64, tasks: &[(u64, u64)]) -> Sample {
        let share = |(id, busy): &(u64, u64)| Share { id: *id, busy: *busy, home: None, stays: false };
        Sample { busy, stands: false, node: None, tasks: tasks.iter().map(share).collect() }
    }

    fn place(task: u64) -> usize {
        usize::try_from(task).unwrap()
    }

    /// A world in which each task wants so much of a core, and gets its fair part of it.
    struct World {
        wants: Vec<u64>,
        at: Vec<usize>,
        active: usize,
        all: usize,
        history: History,
        changes: u64,
        /// The nodes of cores, and of tasks' memory.
        nodes: Vec<usize>,
        homes: Vec<usize>,
    }

    impl World {
        fn new(wants: &[u64], active: usize, all: usize) -> World {
            let (wants, at) = (wants.to_vec(), vec![0; wants.len()]);
            let (nodes, homes) = (Vec::new(), Vec::new());
            World { wants, at, active, all, history: History::default(), changes: 0, nodes, homes }
        }

        fn samples(&self) -> Vec<Sample> {
            let one = |number: usize| {
                let own: Vec<usize> = (0..self.wants.len()).filter(|task| self.at[*task] == number).collect();
                let want: u64 = own.iter().map(|task| self.wants[*task]).sum();
                let part = |task: &usize| self.wants[*task] * 1000 / want.max(1000);
                let tasks: Vec<(u64, u64)> = own.iter().map(|task| (*task as u64, part(task))).collect();
                let mut core = core(want.min(1000), &tasks);
                core.node = self.nodes.get(number).copied();
                for task in &mut core.tasks {
                    task.home = self.homes.get(place(task.id)).copied();
                }
                core
            };
            (0..self.active).map(one).collect()
        }

        fn decide(&mut self) {
            match self.history.decide(&self.samples(), self.all, 1) {
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
            // A load that swings around it.
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
        assert!(before.samples(Vec::new(), &[], &[], &[], 3).is_empty());
        let samples = before.samples(vec![(0, 0), (5, 5)], &[], &[], &[], 2);
        assert_eq!(samples.iter().map(|core| core.busy).collect::<Vec<_>>(), [0, 1000]);
        let samples = before.samples(vec![(0, 0), (5, 5)], &[], &[], &[], 2);
        assert_eq!(samples.iter().map(|core| core.busy).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(History::default().decide(&samples, 2, 1), None);
        // The times were read while they were written.
        before.samples(vec![(9, 3)], &[], &[], &[], 1);
    }

    #[test]
    fn a_core_stands_that_is_at_work_and_writes_nothing_down() {
        let mut before = Before::default();
        let mut stands = |times: [(u64, u64); 3], at_work: [bool; 3]| {
            let samples = before.samples(times.to_vec(), &at_work, &[], &[], 3);
            samples.iter().map(|core| core.stands).collect::<Vec<_>>()
        };
        assert_eq!(stands([(1, 1); 3], [true; 3]), [false; 3]);
        // One goes on, one waits in a visit, one sleeps.
        assert_eq!(stands([(1, 2), (1, 1), (1, 1)], [true, true, false]), [false, true, false]);
        assert_eq!(stands([(2, 3), (9, 9), (1, 5)], [true; 3]), [false; 3], "it is back");
    }

    #[test]
    fn a_core_that_stands_gets_nothing_and_none_rests_meanwhile() {
        let samples = |stands: bool| {
            let mut samples = [core(1000, &[(1, 500), (2, 500)]), core(0, &[(3, 0)]), core(400, &[(4, 400)])];
            samples[1].stands = stands;
            samples
        };
        let decides = |stands: bool| {
            let mut history = History::default();
            let mut decide = || history.decide(&samples(stands), 3, 1);
            (0..FOR).find_map(|_| decide())
        };
        assert!(matches!(decides(false), Some(Action::Move(_, 1))), "the emptiest");
        // The other one has no room for half a core: to stay is better than a task that no core serves.
        assert_eq!(decides(true), None);
        let mut history = History::default();
        let mut quiet = |stands: bool| {
            let mut samples = [core(100, &[(1, 100)]), core(0, &[])];
            samples[1].stands = stands;
            (0..QUIET).find_map(|_| history.decide(&samples, 2, 1))
        };
        assert_eq!(quiet(true), None);
        assert_eq!(quiet(false), Some(Action::Remove));
        // There a task does not go back to its node, either.
        let mut samples = [core(100, &[(1, 100)]), core(0, &[])];
        samples[0].tasks[0].home = Some(1);
        (samples[0].node, samples[1].node) = (Some(0), Some(1));
        samples[1].stands = true;
        assert_eq!(History::default().decide(&samples, 2, 2), None);
        samples[1].stands = false;
        assert_eq!(History::default().decide(&samples, 2, 2), Some(Action::Move(1, 1)));
    }

    #[test]
    fn equal_loads_do_not_swing_whatever_they_come_to() {
        for (count, cores) in (2..=7).flat_map(|count| [2, 3].map(|cores| (count, cores))) {
            for want in (50..=1050).step_by(25) {
                let mut world = World::new(&vec![want; count], cores, cores);
                world.run(200);
                assert_eq!(world.run(6_000), 0, "{count} of {want} on {cores} cores, ten minutes later");
            }
        }
    }

    #[test]
    fn tasks_move_to_their_memorys_node_first_and_home_when_there_is_room() {
        // Cores 0 and 2 are on node 0, core 1 on node 1; all memory is on node 0.
        let mut world = World::new(&[350, 350, 350], 3, 3);
        (world.nodes, world.homes) = (vec![0, 1, 0], vec![0; 3]);
        world.run(19);
        assert!(world.at.contains(&2) && !world.at.contains(&1), "{:?}", world.at);
        // Where there is no room on it, another node is better than none.
        let mut world = World::new(&[700, 700, 700], 2, 2);
        (world.nodes, world.homes) = (vec![0, 1], vec![0; 3]);
        world.run(40);
        assert!(world.at.contains(&1), "{:?}", world.at);
        // Nothing is full: a task that is elsewhere goes back to its node, once.
        let mut world = World::new(&[200, 200], 2, 2);
        (world.nodes, world.homes, world.at) = (vec![0, 1], vec![0, 1], vec![1, 1]);
        world.run(3);
        assert_eq!(world.at, [0, 1]);
    }

    #[test]
    fn a_full_core_that_cannot_be_helped_holds_up_no_other_one() {
        // An elephant on core 0, two tasks on core 1, nothing on core 2, or a third core that is at rest.
        let mut world = World::new(&[1000, 500, 500], 3, 3);
        world.at = vec![0, 1, 1];
        world.run(10);
        assert_eq!((world.at[0], world.at[1] + world.at[2]), (0, 3), "{:?}", world.at);
        let mut world = World::new(&[1000, 500, 500], 2, 3);
        world.at = vec![0, 1, 1];
        world.run(10);
        assert_eq!((world.active, world.at[0], world.at[1] + world.at[2]), (3, 0, 3), "{:?}", world.at);
        // A task that has no room on its node does not hold up one that has.
        let mut world = World::new(&[700, 100, 150], 3, 3);
        (world.nodes, world.homes, world.at) = (vec![0, 1, 0], vec![1, 0, 1], vec![0, 1, 1]);
        world.run(3);
        assert_eq!(world.at[1], 2);
    }

    #[test]
    fn a_task_with_a_budget_stays() {
        let mut full = core(1000, &[(1, 500), (2, 500)]);
        full.tasks[0].stays = true;
        assert_eq!(half(&full), [2]);
        full.tasks[1].stays = true;
        assert!(half(&full).is_empty() && best(&full, &core(0, &[]), false).is_none());
    }

    #[test]
    fn the_tasks_of_a_budget_are_together_and_budgets_fit_on_their_cores() {
        use crate::core::mailbox::TaskId;
        let load = |id: u64, core: usize, tenant: usize, percent: u64| Load {
            id: TaskId(id),
            core,
            tenant,
            reserved: percent * 10_000,
            busy_ns: 0,
            home: None,
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
