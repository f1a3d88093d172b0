//! Messages from the control plane to an I/O core.
//!
//! Theory of operation. The core looks at one flag per round and opens the box only if it is raised, so an
//! empty box costs a load of a line that no thread writes. The box is only opened between two batches:
//! whatever a message asks for happens when no batch is under way, and its answer proves it. That is the
//! quiescent point on which the memory rule of `port` rests.
//!
//! The eventfd wakes a core that sleeps; the flag says that it was written to. So the flag is raised after
//! the write: a core that sees it finds what it has to drain. If it were raised before only, a core that
//! looks between the two would drain nothing, the write would come after, and the level-triggered eventfd
//! would never let the core sleep again. It is raised before as well: where the poster shares the core's
//! processor, the core may run as soon as the write has woken it, and without a flag it would poll until its
//! time slice is over. The box is not emptied at once: [`MESSAGES_A_ROUND`] bounds what a round spends on
//! mail, so that guests that have their queues moved without end leave the others their turns.
//! `tests/models.rs` checks both.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use rustix::event::{eventfd, EventfdFlags};

use super::accounts::CarriedAccount;
use super::ledger::Ledger;
use super::pace::Pace;
use super::task::TaskHandle;

/// Messages that a core reads before it turns to its tasks again.
pub(super) const MESSAGES_A_ROUND: usize = 4;

/// Names a task among all that cores ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TaskId(pub(super) u64);

/// What a task takes along from core to core.
#[derive(Debug, Default)]
pub(super) struct MigrationState {
    pub(super) ledger: Arc<Ledger>,
    pub(super) pace: Pace,
    pub(super) account: CarriedAccount,
}

/// What a core can be asked.
pub(super) enum CoreMessage<L> {
    /// Visit this task from now on.
    Take { id: TaskId, handle: TaskHandle<L>, state: MigrationState },
    /// Give the task to this core, and say whether that was done.
    Move { id: TaskId, to: usize, answer: SyncSender<bool> },
    /// Return the task to its owner.
    GiveBack { id: TaskId, answer: SyncSender<()> },
    /// Return all tasks of this owner to it.
    Evict { owner: u16, answer: SyncSender<()> },
    /// Do this with what the core has for its tasks.
    Do { what: Box<dyn FnOnce(&mut L) + Send>, answer: SyncSender<()> },
    /// Visit no task, or visit them again.
    Rest { rest: bool, answer: SyncSender<()> },
    /// End the thread.
    Stop,
}

/// A core's box.
pub(super) struct Mailbox<L> {
    messages: Mutex<VecDeque<CoreMessage<L>>>,
    raised: AtomicBool,
    event: OwnedFd,
}

impl<L> Mailbox<L> {
    pub(super) fn new() -> std::io::Result<Mailbox<L>> {
        Ok(Mailbox {
            messages: Mutex::new(VecDeque::new()),
            raised: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Puts a message in and wakes the core if it sleeps.
    pub(super) fn post(&self, message: CoreMessage<L>) {
        crate::lock(&self.messages).push_back(message);
        // The write may wake a core that takes our processor before we come back: it has to find the flag.
        self.raised.swap(true, Ordering::AcqRel);
        // Fails only when the counter is full: then the core is awake.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        // Last: see above. An exchange, so that the core's own raise does not stand between ours and the core
        // that lowers it.
        self.raised.swap(true, Ordering::AcqRel);
    }

    /// Whether there may be messages.
    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// The next message. The flag is lowered first: a message posted meanwhile raises it again. While
    /// messages are left the flag stands, and a core that asks does not go to sleep.
    pub(super) fn open(&self) -> Option<CoreMessage<L>> {
        if self.raised.swap(false, Ordering::AcqRel) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
        let mut messages = crate::lock(&self.messages);
        let message = messages.pop_front();
        if !messages.is_empty() {
            self.raised.swap(true, Ordering::AcqRel);
        }
        message
    }

    /// Readable when there are messages.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
