//! One I/O core: the loop.
//!
//! Theory of operation. A round reads the mailbox and visits each *polled* task once, in turn. A visit takes
//! as many items as fit into a turn, which is shorter the more owners have work, and never longer than
//! [`LONGEST_TURN`]. `accounts` says which owners a round passes over: those that had more than their share,
//! or have used up their budget or their rate. Between two visits the core checks tasks that must not wait
//! for the rest of the round (`urgent`): those of owners with a budget or of class `latency`, and *stuck*
//! queues. A queue is stuck if it has little work at a time and has work now: its guest probably waits for an
//! answer.
//!
//! Tasks that have been silent are visited in few rounds; after [`COLD_AFTER`] they are *cold*: armed, and
//! not visited until their memory shows work, their event comes, or the time at which they asked for a look
//! (`timers`). So a thousand silent queues cost a core at work some looks at memory, and now and then one at
//! its epoll set (`cold`).
//!
//! A core without work for `spin` arms the tasks that it polls, polls them once more, and sleeps in
//! `epoll_wait`. It first visits the tasks that woke it, so the first frame does not wait for polls of all
//! others.

mod cold;
mod mail;

use std::sync::Arc;
use std::time::Duration;

use super::accounts::{Account, Accounts, Right};
use super::clock::Clock;
use super::ledger::TimeSpent;
use super::ledger::{Entry, Heat, Ledger, VisitEnd};
use super::mailbox::{Mailbox, TaskId};
use super::pace::Pace;
use super::pace::{Tuning, LEAST_TURN, LONGEST_TURN, TURN, TURN_BYTES, URGENT_TURN};
use super::poller::Timers;
use super::poller::{Poller, Watched};
use super::registry::Registry;
use super::task::{Budget, TaskHandle, SLOW_VISIT};
use super::watch::Heartbeat;
use crate::mem::{ticks, ticks_in, Act};

// Times are in nanoseconds.

/// A task whose visit is a system call is left alone for this long after it came up empty.
const COSTLY_PAUSE: u64 = 5_000;
/// A look at a ring's index takes less. What a task's looks take beyond this is charged in any case.
const LONGEST_LOOK: u64 = 2_000;
/// To ask the kernel what others had of the processor takes less.
const LONGEST_QUESTION: u64 = 20_000;
/// Tasks that are looked at between two visits of others: a look is a cache line.
const CHECKED: usize = 32;
/// Those of one owner.
const CHECKED_OF_ONE: u8 = 2;
/// How often the checked tasks are looked at.
const CHECK_EVERY: u64 = 2_000;
/// The looks at all checked tasks together take less, unless a page of a guest's is missing.
const LONGEST_CHECK: u64 = 10_000;
/// How long each look is timed after they took longer than [`LONGEST_CHECK`].
const LOOKS_TIMED: u64 = 10_000_000_000;
/// Empty visits in a row after which a task counts as silent.
const SILENT_AFTER: u32 = 256;
/// A silent task is visited once in this many rounds: at full load a round is some 10 µs, so its first frame
/// waits for some 160 µs more at worst.
const SILENT_EVERY: u64 = 16;
/// A task that has been silent for this long is not polled any more.
const COLD_AFTER: u64 = 10_000_000;
/// Items of a visit, on average, up to which a task's guest is taken to wait for each of them. Streams that
/// are visited every few microseconds have more: served early as well they would be ahead of guests that
/// wait.
const LIGHT: u32 = 2;
/// A light task whose work has waited for this long is stuck.
const STUCK: u64 = 5_000;

/// A task that this core has, and what the core knows of it.
pub(super) struct CoreTask<L> {
    pub(super) id: TaskId,
    handle: TaskHandle<L>,
    /// Its owner's number.
    number: u16,
    /// The place of its tenant's account in `accounts`.
    account: usize,
    events: Vec<Watched>,
    ledger: Arc<Ledger>,
    pace: Pace,
    heat: Heat,
    /// A visit is a system call (`Task::is_costly`).
    costly: bool,
    /// Visits in a row that found nothing.
    empty_visits: u32,
    /// Empty visits that the ledger does not have yet.
    unwritten: u64,
    /// A costly task is not visited before this time.
    not_before: u64,
    /// When it last did something.
    moved_at: u64,
    /// Since when it may have had work.
    since: u64,
    /// Items of a visit, on average, in quarters.
    usual: u32,
    /// Since when it was seen to have work, between two visits of others.
    waits_since: Option<u64>,
    /// When it asked to be looked at, as long as it is cold.
    due: u64,
}

/// An I/O core's private state.
pub(super) struct Core<L, C> {
    pub(super) parts: Parts<L>,
    /// The tasks: their places do not change.
    tasks: Vec<Option<CoreTask<L>>>,
    /// Places of those that are polled, in their order.
    pub(super) polled: Vec<usize>,
    /// Places of polled tasks that are looked at between two visits.
    checked: Vec<usize>,
    /// When cold tasks asked to be looked at.
    timers: Timers,
    /// Cold tasks whose events are watched.
    watched: usize,
    accounts: Accounts,
    poller: Poller,
    /// Places of the tasks whose events came.
    woken: Vec<usize>,
    pub(super) clock: C,
    /// When the last visit ended, or the round began.
    now: u64,
    /// When cold tasks were looked at last.
    looked: u64,
    /// When the epoll set was asked for events last.
    asked: u64,
    /// The place that was looked at last for a cold task.
    cold_from: usize,
    /// Some checked tasks must not wait for longer than a short turn.
    hurry: bool,
    /// When the checked tasks were looked at last.
    checked_at: u64,
    /// Until when looks are timed one by one.
    timed_until: u64,
    /// Where in `polled` the choice of checked tasks begins.
    checked_from: usize,
    /// There was work in the last round: what is looked at in vain is at the expense of others.
    at_work: bool,
    /// Nanoseconds of a turn in this round.
    turn: u64,
    /// No task is visited.
    resting: bool,
}

/// What a core is made of.
pub(super) struct Parts<L> {
    pub(super) number: usize,
    pub(super) mailbox: Arc<Mailbox<L>>,
    pub(super) spent: Arc<TimeSpent>,
    pub(super) registry: Arc<Registry<L>>,
    /// What it is at, for the watch.
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) tuning: Tuning,
    pub(super) local: L,
}

impl<L: 'static, C: Clock> Core<L, C> {
    pub(super) fn new(parts: Parts<L>, clock: C) -> std::io::Result<Core<L, C>> {
        let poller = Poller::new(parts.mailbox.event())?;
        Ok(Core {
            tasks: Vec::new(),
            polled: Vec::new(),
            checked: Vec::new(),
            timers: Timers::default(),
            watched: 0,
            accounts: Accounts::new(parts.number),
            poller,
            woken: Vec::new(),
            clock,
            now: 0,
            looked: 0,
            asked: 0,
            cold_from: 0,
            hurry: false,
            checked_at: 0,
            timed_until: 0,
            checked_from: 0,
            at_work: false,
            turn: LONGEST_TURN,
            resting: false,
            parts,
        })
    }

    /// Runs until a message stops it.
    pub(super) fn run(mut self) {
        let spin = u64::try_from(self.parts.tuning.spin.as_nanos()).unwrap_or(u64::MAX);
        let mut round = 0u64;
        let mut before = self.clock.now();
        let mut last_work = before;
        loop {
            if self.parts.mailbox.is_raised() {
                self.parts.heartbeat.pause();
                if !self.read_mail() {
                    return;
                }
            }
            if self.resting {
                if self.parts.mailbox.is_raised() {
                    continue;
                }
                self.parts.heartbeat.pause();
                // Events that come now are kept: cold tasks have no other way to say that there is work.
                self.wait(self.parts.tuning.longest_sleep);
                last_work = self.clock.now();
                self.parts.spent.asleep(last_work - before);
                before = last_work;
                continue;
            }
            let moved = self.round(round, before);
            round = round.wrapping_add(1);
            let now = self.clock.now();
            if moved > 0 {
                self.parts.spent.busy(now - before, moved);
                last_work = now;
            } else {
                self.parts.spent.idle(now - before);
                // Mail that was left for the next round has drained its eventfd: it would not wake us.
                if now - last_work >= spin && !self.parts.mailbox.is_raised() {
                    let (moved, woken) = self.sleep(now);
                    before = self.clock.now();
                    if moved > 0 {
                        self.parts.spent.busy(before - self.looked, moved);
                    }
                    // A nap that ended by itself is followed by one round, not by another spell of spinning.
                    if woken || moved > 0 {
                        last_work = before;
                    }
                    continue;
                }
                std::hint::spin_loop();
            }
            before = now;
        }
    }

    /// Visits every task that is due; returns how much was moved.
    pub(super) fn round(&mut self, round: u64, now: u64) -> u64 {
        self.now = now;
        let tenants = self.accounts.busy_tenants() as u64;
        self.turn = (LONGEST_TURN / tenants.max(1)).max(LEAST_TURN);
        if self.hurry {
            self.turn = self.turn.min(URGENT_TURN);
        }
        let mut all = self.look_at_cold();
        let (mut at, mut passed, mut checked) = (0, None, std::mem::take(&mut self.checked));
        while let Some(place) = self.polled.get(at).copied() {
            match self.is_due(place, round) {
                Due::Visit(most) => {
                    let moved = self.visit(place, most, false);
                    all += moved;
                    if moved > 0 {
                        all += self.urgent(&checked, place);
                    }
                }
                Due::Cold => {
                    let begun = self.now;
                    self.cool(place);
                    self.turn_to(place, begun);
                    self.polled.remove(at);
                    continue;
                }
                Due::Passed => passed = passed.or(Some(at)),
                Due::Later => {}
            }
            at += 1;
        }
        // Else the last of several tasks of one tenant would never have its turn.
        self.polled.rotate_left(passed.unwrap_or(0));
        checked.clear();
        self.checked = checked;
        self.hurry = false;
        if self.polled.len() > 1 && self.parts.tuning.urgent {
            self.choose_checked();
        }
        self.accounts.end_round();
        self.at_work = all > 0;
        all
    }

    /// Finds the tasks that are looked at between two visits of others: a few of each owner, and the next
    /// ones in the next round where there are more.
    fn choose_checked(&mut self) {
        let count = self.polled.len();
        self.checked_from = if self.checked_from < count { self.checked_from } else { 0 };
        let mut looked = 0;
        while looked < count && self.checked.len() < CHECKED {
            let at = self.checked_from + looked;
            looked += 1;
            let place = self.polled[if at < count { at } else { at - count }];
            let Some(task) = &self.tasks[place] else { continue };
            let light = task.usual > 0 && task.usual / 4 <= LIGHT && !task.costly;
            let account = self.accounts.get(task.account);
            let hurry = light || account.is_some_and(Account::is_urgent);
            // An owner with a budget can wait for a longer turn of another: periods are milliseconds.
            let checked = hurry || account.is_some_and(Account::has_budget);
            if checked && self.accounts.one_more_check(task.account, CHECKED_OF_ONE) {
                self.checked.push(place);
            }
            self.hurry |= hurry && task.empty_visits < SILENT_AFTER;
        }
        self.checked_from += looked;
    }

    /// What becomes of the polled task at `place` in this round.
    #[inline]
    fn is_due(&mut self, place: usize, round: u64) -> Due {
        let Some(task) = self.tasks[place].as_mut() else { return Due::Later };
        let now = self.now;
        if task.empty_visits >= SILENT_AFTER {
            // Silent tasks take turns, so that a round never visits them all.
            if round.wrapping_add(place as u64) % SILENT_EVERY != 0 {
                return Due::Later;
            }
            if now.saturating_sub(task.moved_at) > COLD_AFTER && self.parts.tuning.cold {
                return Due::Cold;
            }
        }
        if task.costly && now < task.not_before {
            return Due::Later;
        }
        match self.accounts.right(task.account, now) {
            Right::Reserved { left, .. } => self.most(place, left),
            Right::Turn => self.most(place, u64::MAX),
            Right::Passed => {
                self.accounts.passed(task.account);
                Due::Passed
            }
            Right::Throttled { .. } => {
                task.since = now;
                Due::Passed
            }
        }
    }

    /// How much a visit may take, if its owner has `left` nanoseconds.
    #[inline]
    fn most(&mut self, place: usize, left: u64) -> Due {
        let Some(task) = self.tasks[place].as_ref() else { return Due::Later };
        let ns = self.turn.min(left);
        let items = task.pace.items(ns);
        let Some((most, bytes)) = self.accounts.allowed(task.account, self.now) else { return Due::Passed };
        let items = items.min(usize::try_from(most).unwrap_or(TURN));
        Due::Visit(Budget { items, bytes: bytes.min(TURN_BYTES), ns })
    }

    /// Visits the task at `place` ([`Task::visit`](super::task::Task::visit)), and charges its owner for the
    /// time. Returns how much was moved. `early`: out of turn.
    #[inline]
    pub(super) fn visit(&mut self, place: usize, budget: Budget, early: bool) -> u64 {
        let Some(task) = self.tasks[place].as_mut() else { return 0 };
        self.parts.heartbeat.begin(task.number);
        let begun = self.now;
        // Signals since the last visit, such as interrupts that had to wait, are not this one's.
        let _ = self.clock.signalled();
        let visit = task.handle.visit(&mut self.parts.local, budget);
        let mut now = self.clock.after(&visit);
        let mut took = now - begun;
        // A receiver gets one signal for all its items.
        let mut apart = self.clock.signalled();
        if took > budget.ns || task.pace.is_dear() {
            // Time in which others had the processor is neither the task's to pay for nor what its items
            // cost; the look at it is. After a dear visit all are looked at: short ones do not pass the end
            // of their turn, whoever came in between.
            let lost = self.clock.lost(took);
            let end = std::mem::replace(&mut now, self.clock.now());
            // Others may have it just then, too.
            took = took - lost + (now - end).min(LONGEST_QUESTION);
            // Whom a signal woke may have had the processor in it.
            apart = apart.saturating_sub(lost);
            if took > SLOW_VISIT {
                task.handle.owner().slow().visit(Duration::from_nanos(took));
            }
        }
        self.now = now;
        let own = took.saturating_sub(visit.others_ns);
        if visit.moved == 0 && visit.items == 0 {
            task.empty_visits = task.empty_visits.saturating_add(1);
            task.unwritten += 1;
            if visit.end != VisitEnd::Waits {
                task.since = begun;
            }
            if task.costly {
                task.not_before = now + COSTLY_PAUSE;
            } else {
                self.look_in_vain(place, own);
            }
            return 0;
        }
        task.pace.took(visit.items, own.saturating_sub(apart), budget.ns, now);
        self.accounts.charge(task.account, own, visit.items as u64, visit.bytes, now);
        let wait = begun.saturating_sub(task.waits_since.take().unwrap_or(task.since));
        task.ledger.enter(&Entry {
            end: visit.end,
            ns: own,
            items: visit.items as u64,
            bytes: visit.bytes,
            empty: std::mem::take(&mut task.unwritten),
            wait,
            early,
        });
        task.since = now;
        task.moved_at = now;
        task.empty_visits = 0;
        let items = u32::try_from(visit.items).unwrap_or(u32::MAX).min(1 << 16);
        task.usual = task.usual - task.usual / 4 + items;
        visit.moved
    }

    /// Enters an act for the tenant of `account` that took `ns` nanoseconds in its overrun, if it was long.
    #[inline]
    fn was_act(&self, account: usize, act: Act, ns: u64) {
        if ns > SLOW_VISIT {
            if let Some(tenant) = self.accounts.tenant(account) {
                tenant.overrun.took(act, ticks().wrapping_sub(ticks_in(Duration::from_nanos(ns))));
            }
        }
    }

    /// A look or visit that found no work at the task at `place` took `ns`. As long as that is usual, it is
    /// not charged while there is nothing else to do, or a guest would use its budget up by waiting.
    fn look_in_vain(&mut self, place: usize, ns: u64) {
        if let (Some(task), true) = (&self.tasks[place], self.at_work || ns > LONGEST_LOOK) {
            self.accounts.looked(task.account, ns);
        }
    }

    /// Visits tasks that must not wait for the rest of the round, after a visit of the task at `after`.
    /// Returns how much was moved.
    #[inline]
    fn urgent(&mut self, checked: &[usize], after: usize) -> u64 {
        if checked.is_empty() || self.now.saturating_sub(self.checked_at) < CHECK_EVERY {
            return 0;
        }
        self.checked_at = self.now;
        let mut all = 0;
        // Each visit of an owner with a budget shortens what is left of it; the others have one visit each.
        // Messages, and events of cold tasks, do not wait for a runtime.
        while let Some((place, left)) = self.next_reserved(checked) {
            if self.parts.mailbox.is_raised() {
                break;
            }
            all += self.look_at_cold();
            let Due::Visit(budget) = self.most(place, left) else { break };
            let moved = self.visit(place, budget, true);
            all += moved;
            if moved == 0 {
                break;
            }
        }
        let mut begun = self.now;
        for &place in checked {
            if place != after && self.is_stuck(place) {
                self.looked_at_all(begun);
                if let Due::Visit(budget) = self.most(place, u64::MAX) {
                    all += self.visit(place, budget, true);
                }
                begun = self.now;
            }
        }
        self.looked_at_all(begun);
        all
    }

    /// Whether the task at `place` has work, between two visits of others. A look is a cache line: none is
    /// timed, unless one took long of late. It may wait for a page of the guest's, and the watch is told
    /// whose.
    #[inline]
    fn look(&mut self, place: usize) -> bool {
        let (timed, begun) = (self.now < self.timed_until, self.now);
        let Some(task) = self.tasks[place].as_mut() else { return false };
        if timed
            && matches!(self.accounts.right(task.account, begun), Right::Passed | Right::Throttled { .. })
        {
            return false;
        }
        self.parts.heartbeat.begin(task.number);
        let has_work = task.handle.has_work();
        if timed {
            self.now = self.clock.now();
            let account = task.account;
            self.accounts.looked(account, self.now - begun);
            self.was_act(account, Act::Touch, self.now - begun);
        }
        has_work
    }

    /// Several looks have begun at `begun`. Where they took long, the next ones are timed one by one; the
    /// task that is visited now does not pay for them.
    #[inline]
    fn looked_at_all(&mut self, begun: u64) {
        if self.now >= self.timed_until {
            self.now = self.clock.now();
        }
        if self.now - begun > LONGEST_CHECK {
            self.timed_until = self.now.saturating_add(LOOKS_TIMED);
        }
    }

    /// The task with work whose owner's budget ends first, and how much of that is left.
    fn next_reserved(&mut self, checked: &[usize]) -> Option<(usize, u64)> {
        let (mut first, begun) = (None, self.now);
        for &place in checked {
            let Some(task) = self.tasks[place].as_ref() else { continue };
            if !self.accounts.get(task.account).is_some_and(|account| account.has_budget()) {
                continue;
            }
            let Right::Reserved { left, deadline } = self.accounts.right(task.account, self.now) else {
                continue;
            };
            // Tasks of one tenant take turns.
            let order = (deadline, task.moved_at);
            if first.is_none_or(|(_, _, earliest)| order < earliest) && self.look(place) {
                first = Some((place, left, order));
            }
        }
        self.looked_at_all(begun);
        first.map(|(place, left, _)| (place, left))
    }

    /// Whether the task has to be visited now: it has work that has waited, or that must not.
    #[inline]
    fn is_stuck(&mut self, place: usize) -> bool {
        let has_work = self.look(place);
        let now = self.now;
        let Some(task) = self.tasks[place].as_mut() else { return false };
        if !has_work {
            task.waits_since = None;
            task.since = now;
            return false;
        }
        let since = *task.waits_since.get_or_insert(now);
        let urgent = self.accounts.get(task.account).is_some_and(|account| account.is_urgent());
        (urgent || now.saturating_sub(since) >= STUCK)
            && matches!(self.accounts.right(task.account, now), Right::Turn | Right::Reserved { .. })
    }

    /// Ends all that tasks have begun: after this nothing is under way.
    fn settle(&mut self) {
        for task in self.tasks.iter_mut().flatten() {
            self.parts.heartbeat.begin(task.number);
            task.handle.settle(&mut self.parts.local);
        }
    }
}

/// What becomes of a task in a round.
enum Due {
    /// It is visited.
    Visit(Budget),
    /// Not in this round.
    Later,
    /// Others come first in this round, or its tenant has used up what it has; then it is the first in the
    /// next one.
    Passed,
    /// It has been silent for too long to be polled.
    Cold,
}
