//! Moves that made it worse are taken back, and not tried again for a while.
//!
//! Theory of operation. That a task does better on another core is a guess: there it may meet tasks that push its memory out of a
//! cache, or be far from its own. So each move is a *trial*. The work that its two cores did before is compared with what they
//! do afterwards, by what was moved: frames and bytes, not time. Only while one of the two is still full: where neither is, all
//! there was to do is being done, and less work is less demand. If they do [`WORSE`] less, the task goes back, and is banned from
//! moves for [`BAN`], ten times as long each time, up to [`LONGEST_BAN`].
//!
//! No other move is tried during a trial, since it would change what is compared.

use std::collections::{HashMap, VecDeque};

use super::sample::Sample;

/// Decisions after a move that say nothing: caches and rings find their new state.
const SETTLE: u32 = 5;
/// Decisions whose work is compared with what was before.
const JUDGED: u32 = 10;
/// A move that cost so many thousandths of the work is taken back.
const WORSE: u64 = 50;
/// Decisions for which its task does not move then, and how long that can become: 10 s and 500 s.
const BAN: u64 = 100;
const LONGEST_BAN: u64 = 5_000;
/// What was done before is that of so many decisions: for as many a core has to be full before it gives anything away.
const KEPT: usize = 3;

/// A move that is being judged.
#[derive(Clone, Copy, Debug)]
struct Trial {
    task: u64,
    from: usize,
    to: usize,
    /// Work of both cores in the time of a decision, before.
    before: u64,
    /// Work since, and the decisions that it was done in.
    after: u64,
    seen: u32,
    /// One of the cores was full in so many of those.
    full: u32,
}

/// A task that moved in vain.
#[derive(Clone, Copy, Debug)]
struct Ban {
    until: u64,
    length: u64,
}

/// What is remembered of moves.
#[derive(Debug, Default)]
pub(super) struct Regrets {
    decisions: u64,
    /// Work of each core in the time of each of the last decisions.
    work: VecDeque<Vec<u64>>,
    trial: Option<Trial>,
    bans: HashMap<u64, Ban>,
}

impl Regrets {
    /// Looks at what the active cores did since the last decision. A task and a core: its move is regretted, and it has to go
    /// back there.
    pub(super) fn judge(&mut self, active: &[Sample]) -> Option<(u64, usize)> {
        self.decisions += 1;
        let now = self.decisions;
        self.work.truncate(KEPT - 1);
        self.work.push_front(active.iter().map(Sample::work).collect());
        // A ban is remembered for as long again, and forgotten with its task.
        let there = |task: &u64| active.iter().any(|core| core.has(*task));
        self.bans.retain(|task, ban| now < ban.until.saturating_add(ban.length) && there(task));
        let trial = self.trial.as_mut()?;
        let (Some(from), Some(to)) = (active.get(trial.from), active.get(trial.to)) else {
            self.trial = None;
            return None;
        };
        if !to.has(trial.task) {
            // It is elsewhere, or gone: by hand.
            self.trial = None;
            return None;
        }
        trial.seen += 1;
        if trial.seen <= SETTLE {
            return None;
        }
        trial.after += from.work() + to.work();
        trial.full += u32::from(from.is_full() || to.is_full());
        if trial.seen < SETTLE + JUDGED {
            return None;
        }
        let Trial { task, from, before, after, full, .. } = *trial;
        self.trial = None;
        let least = before * (1000 - WORSE) / 1000 * u64::from(JUDGED);
        if full < JUDGED || after >= least {
            return None;
        }
        let length = self.bans.get(&task).map_or(BAN, |ban| (10 * ban.length).min(LONGEST_BAN));
        self.bans.insert(task, Ban { until: now + length, length });
        Some((task, from))
    }

    /// A task moves from one core to another.
    pub(super) fn begin(&mut self, task: u64, from: usize, to: usize) {
        let work =
            |core: usize| self.work.iter().map(|cores| cores.get(core).copied().unwrap_or(0)).sum::<u64>();
        let before = (work(from) + work(to)) / (self.work.len() as u64).max(1);
        self.trial = Some(Trial { task, from, to, before, after: 0, seen: 0, full: 0 });
    }

    /// Cores come or go: what they do cannot be compared with what they did.
    pub(super) fn give_up(&mut self) {
        self.trial = None;
    }

    /// Whether a move is being judged.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether the task stays where it is for now.
    pub(super) fn is_banned(&self, task: u64) -> bool {
        self.bans.get(&task).is_some_and(|ban| self.decisions < ban.until)
    }
}
