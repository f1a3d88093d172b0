//! One I/O core: the loop.
//!
//! Theory of operation. A round looks into the mailbox and visits each of the core's tasks once; a task does a budget's worth
//! of work in a visit and then the next one is looked at, so a busy task waits for at most one visit of each other, and its
//! copies count (`share`). Two kinds of tasks are visited less often: those whose visit is a system call, after they came up
//! empty, and those that have been silent for many rounds while others are busy; both bounds are constants below.
//!
//! A core without work for `spin` arms all tasks, looks once more, and sleeps in `epoll_wait`. The tasks that wake it are
//! visited before anything else, so the first frame does not wait for a look at all others. Time is accounted in three parts:
//! busy (rounds that moved something), idle (rounds that did not), asleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mailbox::{Letter, Mailbox, TaskId, LETTERS_A_ROUND};
use super::meter::Meter;
use super::poller::{Poller, Watched, EVENTS};
use super::share::Share;
use super::slow::SLOW_VISIT;
use super::task::{Budget, Owner, Seat};
use super::watch::Beat;

/// A task whose visit is a system call is left alone for this long after it came up empty.
const COSTLY_PAUSE: Duration = Duration::from_micros(5);
/// Empty visits in a row after which a task counts as silent.
const SILENT_AFTER: u32 = 256;
/// A silent task is visited every so many rounds: at full load a round is some 10 µs, so its first frame
/// waits for some 160 µs more at worst.
const SILENT_EVERY: u64 = 16;
/// Longest sleep: events and letters wake us, this only bounds the damage of a lost one.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A task that this core has, and what the core knows of it.
pub(super) struct Seated<L> {
    id: TaskId,
    task: Box<dyn Seat<L>>,
    owner: Arc<dyn Owner>,
    /// The owner's.
    number: u16,
    events: Vec<Watched>,
    costly: bool,
    empty_visits: u32,
    not_before: Instant,
    share: Share,
    /// It did something in the last round.
    moved: bool,
}

/// An I/O core's private state.
pub(super) struct Core<L> {
    mailbox: Arc<Mailbox<L>>,
    meter: Arc<Meter>,
    pub(super) local: L,
    pub(super) tasks: Vec<Seated<L>>,
    poller: Poller,
    /// Places of the tasks that woke the core.
    woken: Vec<usize>,
    /// Tasks that did something in the last round.
    crowd: usize,
    spin: Duration,
    /// What it is at, for the watch.
    beat: Arc<Beat>,
    /// For how long visits that did something took. Without it (tests) time costs nothing.
    pub(super) busy: Option<Duration>,
    /// When the last visit ended that did something, or the round began: the clock as it was read last.
    clock: Instant,
    /// No task is visited.
    resting: bool,
}

impl<L> Core<L> {
    pub(super) fn new(
        mailbox: Arc<Mailbox<L>>,
        meter: Arc<Meter>,
        beat: Arc<Beat>,
        spin: Duration,
        local: L,
    ) -> std::io::Result<Core<L>> {
        let poller = Poller::new(mailbox.event())?;
        Ok(Core {
            mailbox,
            meter,
            local,
            tasks: Vec::new(),
            poller,
            woken: Vec::with_capacity(EVENTS),
            crowd: 0,
            spin,
            beat,
            busy: Some(Duration::ZERO),
            clock: Instant::now(),
            resting: false,
        })
    }

    /// Runs until a letter stops it.
    pub(super) fn run(mut self) {
        let mut round = 0u64;
        let mut before = Instant::now();
        let mut last_work = before;
        loop {
            if self.mailbox.is_raised() {
                self.beat.pause();
                if !self.read_mail() {
                    return;
                }
            }
            if self.resting {
                if self.mailbox.is_raised() {
                    continue;
                }
                self.beat.pause();
                // An event that comes now is not missed: tasks are looked at when they are visited again.
                self.poller.wait(LONGEST_SLEEP, |_| ());
                last_work = Instant::now();
                self.meter.asleep(last_work - before);
                before = last_work;
                continue;
            }
            let moved = self.round(round, before);
            round = round.wrapping_add(1);
            let now = Instant::now();
            if moved > 0 {
                self.meter.busy(now - before, moved);
                last_work = now;
            } else {
                self.meter.idle(now - before);
                // Mail that was left for the next round has drained its eventfd: it would not wake us.
                if now - last_work >= self.spin && !self.mailbox.is_raised() {
                    let woken = self.sleep();
                    before = Instant::now();
                    self.meter.asleep(before - now);
                    // A nap that ended by itself is followed by one round, not by another spell of spinning.
                    if woken {
                        last_work = before;
                    }
                    let moved = self.wake_up(before);
                    if moved > 0 {
                        let now = Instant::now();
                        self.meter.busy(now - before, moved);
                        before = now;
                    }
                    continue;
                }
                std::hint::spin_loop();
            }
            before = now;
        }
    }

    /// Visits every task that is due; returns how much was moved.
    pub(super) fn round(&mut self, round: u64, now: Instant) -> u64 {
        let mut all = 0;
        let mut crowd = 0;
        self.clock = now;
        for index in 0..self.tasks.len() {
            let seated = &mut self.tasks[index];
            let silent = seated.empty_visits >= SILENT_AFTER;
            // Silent tasks take turns, so that a round never visits them all.
            if silent && (round.wrapping_add(index as u64)) % SILENT_EVERY != 0 {
                continue;
            }
            if seated.costly && now < seated.not_before {
                continue;
            }
            let others = self.crowd > usize::from(seated.moved);
            // Who took long lets the others go first. It is no reason for another one to wait: two of them would for ever.
            if seated.share.waits(others, self.busy.unwrap_or_default(), now) {
                seated.moved = false;
                continue;
            }
            // So does who made more copies than a turn has.
            if seated.share.passes(others) {
                seated.moved = true;
                crowd += 1;
                continue;
            }
            let moved = self.visit(index);
            let seated = &mut self.tasks[index];
            seated.moved = moved > 0;
            crowd += usize::from(seated.moved);
            if moved == 0 {
                seated.empty_visits = seated.empty_visits.saturating_add(1);
                if seated.costly {
                    seated.not_before = now + COSTLY_PAUSE;
                }
            } else {
                seated.empty_visits = 0;
            }
            all += moved;
        }
        self.crowd = crowd;
        all
    }

    /// Visits the task at `index`, with the budget of a turn.
    #[inline]
    pub(super) fn visit(&mut self, index: usize) -> u64 {
        let seated = &mut self.tasks[index];
        self.beat.begin(seated.number);
        let budget = Budget { items: seated.share.limit() };
        let visit = seated.task.visit(&mut self.local, budget);
        if visit.items > 0 {
            seated.share.took(visit.items, visit.cost);
        }
        if visit.moved > 0 {
            let now = Instant::now();
            let took = now - self.clock;
            self.clock = now;
            if let Some(busy) = &mut self.busy {
                *busy += took;
                let others = self.crowd.saturating_sub(seated.moved.into());
                seated.share.took_time(visit.items, took, others, *busy, now);
            }
            if took > SLOW_VISIT {
                seated.owner.slow().visit(took);
            }
        }
        visit.moved
    }

    /// Ends all that tasks have begun: after this nothing is under way.
    fn settle(&mut self) {
        for seated in &mut self.tasks {
            self.beat.begin(seated.number);
            seated.task.settle(&mut self.local);
        }
    }

    /// Reads a round's share of the letters; false if one of them ends the thread.
    pub(super) fn read_mail(&mut self) -> bool {
        for _ in 0..LETTERS_A_ROUND {
            let Some(letter) = self.mailbox.open() else { break };
            match letter {
                Letter::Take { id, seat } => self.take(id, seat),
                Letter::GiveBack { id, answer } => {
                    self.give_back(id);
                    // The asker may have given up.
                    let _ = answer.send(());
                }
                Letter::Evict { owner, answer } => {
                    let its = self.tasks.iter().filter(|seated| seated.number == owner);
                    let its: Vec<TaskId> = its.map(|seated| seated.id).collect();
                    its.into_iter().for_each(|id| self.give_back(id));
                    let _ = answer.send(());
                }
                Letter::Do { what, answer } => {
                    what(&mut self.local);
                    let _ = answer.send(());
                }
                Letter::Rest { rest, answer } => {
                    self.settle();
                    self.resting = rest;
                    let _ = answer.send(());
                }
                Letter::Stop => return false,
            }
        }
        true
    }

    fn take(&mut self, id: TaskId, mut task: Box<dyn Seat<L>>) {
        task.disarm();
        let mut events = Vec::new();
        task.events(&mut |fd| events.extend(self.poller.watch(id, fd)));
        let owner = task.owner();
        let (costly, number) = (task.is_costly(), owner.number());
        let (not_before, share) = (Instant::now(), Share::new());
        self.tasks.push(Seated {
            id,
            task,
            owner,
            number,
            events,
            costly,
            empty_visits: 0,
            not_before,
            share,
            moved: false,
        });
    }

    fn give_back(&mut self, id: TaskId) {
        let Some(place) = self.tasks.iter().position(|seated| seated.id == id) else { return };
        let mut seated = self.tasks.remove(place);
        self.beat.begin(seated.number);
        seated.task.settle(&mut self.local);
        self.beat.pause();
        seated.events.iter().for_each(|event| self.poller.unwatch(event));
        seated.task.go_home();
    }

    /// Sleeps until an event or a letter comes, or for as long as a task allows that nothing will wake us for. True unless it
    /// was only that.
    fn sleep(&mut self) -> bool {
        let mut waiting = false;
        let mut longest = LONGEST_SLEEP;
        for seated in &mut self.tasks {
            self.beat.begin(seated.number);
            waiting |= seated.task.arm();
            longest = longest.min(seated.task.next_look().unwrap_or(LONGEST_SLEEP));
            // A task that stopped itself shows no event any more: it must not keep us awake.
            if !seated.events.is_empty() {
                let mut shown = false;
                seated.task.events(&mut |_| shown = true);
                if !shown {
                    seated.events.drain(..).for_each(|event| self.poller.unwatch(&event));
                }
            }
        }
        self.beat.pause();
        if waiting {
            return true;
        }
        let (tasks, places, local) = (&mut self.tasks, &mut self.woken, &mut self.local);
        self.poller.wait(longest, |id| {
            if let Some(place) = tasks.iter().position(|seated| seated.id == id) {
                tasks[place].task.woken(local);
                places.push(place);
            }
        })
    }

    /// What follows a sleep: the tasks that woke us are visited at once, before the memory of all others is touched, which is
    /// cold by now; then no task needs to wake us any more. Returns how much was moved.
    fn wake_up(&mut self, now: Instant) -> u64 {
        let mut moved = 0;
        self.clock = now;
        while let Some(place) = self.woken.pop() {
            moved += self.visit(place);
        }
        for seated in &mut self.tasks {
            self.beat.begin(seated.number);
            seated.task.disarm();
            seated.empty_visits = 0;
            seated.not_before = now;
        }
        moved
    }
}
