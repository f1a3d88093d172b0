//! A core without a thread, for tests that go through its rounds by hand: however long these take, they do
//! the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::Arc;

use crate::core::clock::Clock;
use crate::core::ledger::{Ledger, TaskStatus};
use crate::core::mailbox::{CoreMessage, Mailbox, MigrationState, TaskId};
use crate::core::pace::{Tuning, LONGEST_TURN, TURN, TURN_BYTES};
use crate::core::run::{Core, Parts};
use crate::core::task::{Budget, TaskHandle, Visit};

/// Nanoseconds that a delivery is said to take.
pub(crate) const DELIVERY: u64 = 100;
/// What a round takes that finds nothing.
const EMPTY: u64 = 100;

/// A clock that goes on by what visits did.
#[derive(Debug)]
pub(crate) struct Counted {
    now: u64,
    /// What it takes a nanosecond for, in halves of one: 2 is right.
    rate: u64,
    /// What looks at tasks took since it was read.
    looks: Arc<AtomicU64>,
    /// Other programs have the processor now and then.
    others: Option<Others>,
    /// How long they have it when they are asked for next.
    asked: u64,
    /// What a signal takes: one a visit; and those between two rounds.
    signal: u64,
    between: u64,
    /// What signals took since that was asked.
    signalled: u64,
}

/// Other programs on the core's processor: each time the core has run for `core` nanoseconds they have it for
/// `theirs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    pub(crate) core: u64,
    pub(crate) theirs: u64,
    /// The kernel tells of it. A hypervisor that takes the processor away may not.
    pub(crate) known: bool,
    /// When the core's turn ends, how long they had the processor, and when that was last.
    until: u64,
    had: u64,
    at: u64,
}

impl Others {
    pub(crate) fn new(core: u64, theirs: u64, known: bool) -> Others {
        Others { core, theirs, known, until: 0, had: 0, at: 0 }
    }
}

impl Counted {
    fn pass(&mut self, ns: u64) {
        self.now += ns * self.rate / 2;
        if let Some(others) = self.others.as_mut().filter(|others| others.until <= self.now) {
            self.now += others.theirs;
            others.until = self.now + others.core;
            others.had += others.theirs;
            others.at = self.now;
        }
    }
}

impl Clock for Counted {
    fn now(&mut self) -> u64 {
        self.now += self.looks.swap(0, Ordering::Relaxed);
        self.now
    }

    fn lost(&mut self, ns: u64) -> u64 {
        let lately = |others: &&Others| others.known && others.at.saturating_add(ns) >= self.now;
        let lost = self.others.as_ref().filter(lately).map_or(0, |others| others.theirs.min(ns));
        self.now += std::mem::take(&mut self.asked);
        lost
    }

    fn signalled(&mut self) -> u64 {
        std::mem::take(&mut self.signalled)
    }

    fn after(&mut self, visit: &Visit) -> u64 {
        self.pass(DELIVERY * visit.cost as u64 + self.signal);
        self.signalled += self.signal;
        Clock::now(self)
    }
}

pub(crate) struct ByHand<L: 'static> {
    core: Core<L, Counted>,
    mailbox: Arc<Mailbox<L>>,
    ledgers: Vec<Arc<Ledger>>,
    rounds: u64,
}

impl<L: 'static> ByHand<L> {
    pub(crate) fn new(local: L) -> ByHand<L> {
        ByHand::tuned(local, &Tuning::default())
    }

    pub(crate) fn tuned(local: L, tuning: &Tuning) -> ByHand<L> {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let parts = Parts {
            number: 0,
            mailbox: Arc::clone(&mailbox),
            spent: Arc::default(),
            registry: Arc::default(),
            heartbeat: Arc::default(),
            tuning: tuning.clone(),
            local,
        };
        let clock = Counted {
            now: 0,
            rate: 2,
            looks: Arc::default(),
            others: None,
            asked: 0,
            signal: 0,
            between: 0,
            signalled: 0,
        };
        let core = Core::new(parts, clock).unwrap();
        ByHand { core, mailbox, ledgers: Vec::new(), rounds: 0 }
    }

    fn tell(&mut self, message: CoreMessage<L>) {
        self.mailbox.post(message);
        assert!(self.core.read_mail());
    }

    /// Gives it a task, whose number this is.
    pub(crate) fn take(&mut self, handle: TaskHandle<L>) -> u64 {
        let state = MigrationState::default();
        self.ledgers.push(Arc::clone(&state.ledger));
        let id = self.ledgers.len() as u64;
        self.tell(CoreMessage::Take { id: TaskId(id), handle, state });
        id
    }

    pub(crate) fn give_back(&mut self, id: u64) {
        let (answer, back) = sync_channel(1);
        self.tell(CoreMessage::GiveBack { id: TaskId(id), answer });
        back.recv().unwrap();
    }

    pub(crate) fn rest(&mut self, rest: bool) {
        let (answer, _answers) = sync_channel(1);
        self.tell(CoreMessage::Rest { rest, answer });
    }

    /// A message that is not read yet.
    pub(crate) fn post(&mut self) {
        let (answer, _answers) = sync_channel(1);
        self.mailbox.post(CoreMessage::Rest { rest: false, answer });
    }

    pub(crate) fn local(&mut self) -> &mut L {
        &mut self.core.parts.local
    }

    /// Visits the task in place `index`; how much it moved.
    pub(crate) fn visit(&mut self, index: usize) -> u64 {
        let budget = Budget { items: TURN, bytes: TURN_BYTES, ns: LONGEST_TURN };
        self.core.visit(index, budget, false)
    }

    pub(crate) fn round(&mut self, number: u64) {
        let now = self.core.clock.now();
        self.core.round(number, now);
    }

    /// Rounds for `ns` nanoseconds of the clock; an empty one takes [`EMPTY`].
    pub(crate) fn run(&mut self, ns: u64) {
        let end = self.core.clock.now + ns;
        while self.core.clock.now < end {
            let before = self.core.clock.now;
            self.rounds += 1;
            self.core.clock.signalled += self.core.clock.between;
            self.core.round(self.rounds, before);
            if self.core.clock.now == before {
                self.core.clock.pass(EMPTY);
            }
        }
    }

    /// From now on the clock takes a nanosecond for `halves` halves of one.
    pub(crate) fn set_rate(&mut self, halves: u64) {
        self.core.clock.rate = halves;
    }

    /// From now on other programs share the processor.
    pub(crate) fn share_with(&mut self, others: Others) {
        self.core.clock.others = Some(others);
    }

    /// Others have the processor for so long when the core asks next what they had.
    pub(crate) fn lose_while_asking(&mut self, ns: u64) {
        self.core.clock.asked = ns;
    }

    /// From now on each visit ends with a signal of `visit` nanoseconds, and those between two rounds take
    /// `between`.
    pub(crate) fn signals_take(&mut self, visit: u64, between: u64) {
        (self.core.clock.signal, self.core.clock.between) = (visit, between);
    }

    /// How long they had it.
    pub(crate) fn others_had(&self) -> u64 {
        self.core.clock.others.map_or(0, |others| others.had)
    }

    /// The clock goes on by so much at once.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.core.clock.now += ns;
    }

    /// What is added here the clock goes on by when it is read next.
    pub(crate) fn looks(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.core.clock.looks)
    }

    pub(crate) fn now(&self) -> u64 {
        self.core.clock.now
    }

    /// What was written down of the task with this number.
    pub(crate) fn status(&self, id: u64) -> TaskStatus {
        self.ledgers[usize::try_from(id).unwrap() - 1].status(id, 0, 0, 0)
    }

    pub(crate) fn swap(&mut self, a: usize, b: usize) {
        self.core.polled.swap(a, b);
    }

    /// The task in this place is visited no more.
    pub(crate) fn remove(&mut self, index: usize) {
        self.core.polled.remove(index);
    }

    pub(crate) fn truncate(&mut self, count: usize) {
        self.core.polled.truncate(count);
    }
}
