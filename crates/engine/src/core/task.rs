//! What an I/O core schedules.
//!
//! A [`Task`] is work that comes again and again: a queue of frames, of requests to a disk. A core polls it
//! (`visit`) until nothing comes, then asks it to wake the core (`arm`) and sleeps. What the work is, the
//! core does not know. `L` is what each core has for its tasks alone (its *local*): scratch memory, and
//! whatever all tasks look at; nothing of it is locked.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use super::lease::Lent;
use super::ledger::VisitEnd;
use super::tenant::Tenant;

/// Work for an I/O core. One core has it at a time; nothing in it blocks. A queue of frames is
/// `graph::NetTask` (`graph/ingress.rs`), a disk's queue is in `device/virtio_blk/queue.rs`.
pub trait Task<L>: Any + Send {
    /// Its owner.
    fn owner(&self) -> Arc<dyn Owner>;

    /// Which of its owner's tasks it is, for people: the number of a queue.
    fn index(&self) -> usize {
        0
    }

    /// Whether there is work, by no more than a look at a cache line; false where that would not tell. What a
    /// core looks at between two visits of others.
    fn has_work(&mut self) -> bool {
        false
    }

    /// Does the work that has come, at most a budget's worth of it.
    fn visit(&mut self, local: &mut L, budget: Budget) -> Visit;

    /// Asks to wake the core, which is about to sleep. True: there is work already, and the core must not
    /// sleep.
    #[must_use]
    fn arm(&mut self) -> bool;

    /// Declines to: the core polls from now on.
    fn disarm(&mut self);

    /// Shows `each` the descriptors that become readable when work comes: what a sleeping core waits for,
    /// edge-triggered. None, where there are none, or where the task has stopped itself; asked for after
    /// `arm`.
    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>));

    /// How long the core may sleep without a look at it, for work that comes without an event, or at a set
    /// time. Asked after `arm`; `None`: until it is woken.
    fn next_look(&self) -> Option<Duration>;

    /// How a visit that finds nothing compares with reading a cache line: true if it takes a system call, so
    /// that the core asks less often.
    fn is_costly(&self) -> bool {
        false
    }

    /// One of its events has woken the core.
    fn woken(&mut self, local: &mut L) {
        let _ = local;
    }

    /// Ends what a visit began and left for the next one: afterwards nothing is under way. Called before the
    /// task leaves the core, and before the cores rest.
    fn settle(&mut self, local: &mut L);
}

/// A task as a core has it: it can be returned to its owner.
pub type TaskHandle<L> = Lent<dyn Task<L>>;

impl<L: 'static> TaskHandle<L> {
    /// Gives the task back to its owner.
    pub fn return_to_owner(self) {
        self.map(|task| task as Box<dyn Any + Send>).return_to_owner();
    }
}

/// What a visit may take: it ends with the item that reaches one of these bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Items: frames, requests.
    pub items: usize,
    /// Bytes to copy.
    pub bytes: u64,
    /// Nanoseconds. What a task can do about it is to look at the clock now and then; `items` is chosen to
    /// fit.
    pub ns: u64,
}

/// What a visit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visit {
    /// Items that were finished. None: there was nothing to do, or nothing that could be done now.
    pub moved: u64,
    /// Items that were begun.
    pub items: usize,
    /// Bytes of those.
    pub bytes: u64,
    /// What they cost, in items that go to one receiver each: more than there were, if some went to several.
    pub cost: usize,
    /// Nanoseconds of it that are others' overruns.
    pub others_ns: u64,
    /// Why it ended.
    pub end: VisitEnd,
}

/// The owner of tasks.
pub trait Owner: Send + Sync {
    /// Its number among all owners, below 65,534.
    fn number(&self) -> u16;
    /// Its name, for the log.
    fn name(&self) -> &str;
    /// Who pays for their time: itself, or a tenant that has several owners.
    fn tenant(&self) -> &Arc<Tenant>;
    /// Its visits that took very long.
    fn slow(&self) -> &Slow;
    /// The NUMA node that most of its memory is on, if that is known.
    fn node(&self) -> Option<usize> {
        None
    }
}

/// A visit that takes longer counts: a full one takes some 0.05 ms. In nanoseconds.
pub(super) const SLOW_VISIT: u64 = 1_000_000;

crate::util::form::view! {
    /// Unusually long times that I/O cores spent on a port, since it was made.
    #[derive(Copy, Default)]
    SlowCount {
        /// Batches that took longer than a millisecond.
        batches: u64,
        /// Microseconds of those together.
        total_us: u64,
        /// Microseconds of the longest.
        longest_us: u64,
    }
}

/// The counters of one owner's slow visits, which are so rare that I/O cores may share them.
#[derive(Debug, Default)]
pub struct Slow {
    batches: AtomicU64,
    ns: AtomicU64,
    longest: AtomicU64,
}

impl Slow {
    /// Counts a slow visit.
    #[cold]
    pub fn visit(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.longest.fetch_max(ns, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn count(&self) -> SlowCount {
        let us = |counter: &AtomicU64| counter.load(Ordering::Relaxed) / 1_000;
        let batches = self.batches.load(Ordering::Relaxed);
        SlowCount { batches, total_us: us(&self.ns), longest_us: us(&self.longest) }
    }
}
