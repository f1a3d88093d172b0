//! Which core has which task.
//!
//! Theory of operation. A message about a task goes to the core that the registry names, and is posted while
//! the registry is locked. A core that hands a task over posts it to the other one, and changes the registry,
//! under the same lock. So the messages about a task reach each core in the order in which the registry
//! changed: a task that is to be given back either is still where the message goes, or the message is passed
//! on behind the task itself. Nothing waits for a move, and nothing is lost in one.

use std::collections::HashMap;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::ledger::{Heat, Ledger, TaskStatus};
use super::mailbox::{CoreMessage, Mailbox, MigrationState, TaskId};
use super::task::{Owner, TaskHandle};
use super::tenant::Tenant;

/// A task that some core has.
struct Whereabouts {
    core: usize,
    index: usize,
    owner: Arc<dyn Owner>,
    ledger: Arc<Ledger>,
}

/// All tasks of some cores.
pub(super) struct Registry<L> {
    mailboxes: OnceLock<Vec<Arc<Mailbox<L>>>>,
    entries: Mutex<HashMap<TaskId, Whereabouts>>,
}

impl<L> Default for Registry<L> {
    fn default() -> Registry<L> {
        Registry { mailboxes: OnceLock::new(), entries: Mutex::default() }
    }
}

/// What a balancer knows of a task.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) id: TaskId,
    pub(super) core: usize,
    /// Which tenant pays for it: the same number for all tasks of one.
    pub(super) tenant: usize,
    /// Millionths of a core that its tenant's budget guarantees.
    pub(super) reserved: u64,
    pub(super) busy_ns: u64,
    /// The NUMA node of its owner's memory.
    pub(super) home: Option<usize>,
}

impl<L: 'static> Registry<L> {
    /// Says where messages to the cores go; once, before there is any task.
    pub(super) fn connect(&self, mailboxes: Vec<Arc<Mailbox<L>>>) {
        let _ = self.mailboxes.set(mailboxes);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<TaskId, Whereabouts>> {
        crate::lock(&self.entries)
    }

    fn mailbox(&self, core: usize) -> Option<&Mailbox<L>> {
        self.mailboxes.get()?.get(core).map(|mailbox| &**mailbox)
    }

    /// Gives a new task to the core that `choose` picks by what all have.
    pub(super) fn add(&self, id: TaskId, handle: TaskHandle<L>, choose: impl FnOnce(&[Load]) -> usize) {
        let mut entries = self.entries();
        let core = choose(&loads(&entries));
        let state = MigrationState::default();
        let ledger = Arc::clone(&state.ledger);
        let Some(mailbox) = self.mailbox(core) else { return handle.return_to_owner() };
        entries.insert(id, Whereabouts { core, index: handle.index(), owner: handle.owner(), ledger });
        mailbox.post(CoreMessage::Take { id, handle, state });
    }

    /// Has the core that has the task return it to its owner, and answer then.
    pub(super) fn recall(&self, id: TaskId, answer: SyncSender<()>) {
        let entries = self.entries();
        // None: its owner has it, or its core is gone, and dropping the sender says so.
        let Some(mailbox) = entries.get(&id).and_then(|entry| self.mailbox(entry.core)) else { return };
        mailbox.post(CoreMessage::GiveBack { id, answer });
    }

    /// Has the core that has the task give it to core `to`, and say whether it did. Whose task it is, and its
    /// number there.
    pub(super) fn send(
        &self,
        id: TaskId,
        to: usize,
        answer: SyncSender<bool>,
    ) -> Option<(Arc<dyn Owner>, usize)> {
        let entries = self.entries();
        let entry = entries.get(&id).filter(|entry| entry.core != to)?;
        self.mailbox(to)?;
        self.mailbox(entry.core)?.post(CoreMessage::Move { id, to, answer });
        Some((Arc::clone(&entry.owner), entry.index))
    }

    /// A core gives core `to` a task.
    pub(super) fn hand_over(&self, id: TaskId, to: usize, handle: TaskHandle<L>, state: MigrationState) {
        let mut entries = self.entries();
        match (entries.get_mut(&id), self.mailbox(to)) {
            (Some(entry), Some(mailbox)) => {
                entry.core = to;
                mailbox.post(CoreMessage::Take { id, handle, state });
            }
            _ => {
                entries.remove(&id);
                handle.return_to_owner();
            }
        }
    }

    /// The task is with its owner.
    pub(super) fn forget(&self, id: TaskId) {
        self.entries().remove(&id);
    }

    /// The loads of all tasks.
    pub(super) fn loads(&self) -> Vec<Load> {
        loads(&self.entries())
    }

    /// How all tasks are doing, in the order of their numbers.
    pub(super) fn status(&self) -> Vec<TaskStatus> {
        // Quantiles are computed without the lock: cores take it.
        let known = |(id, entry): (&TaskId, &Whereabouts)| {
            let throttled = entry.owner.tenant().is_throttled(entry.core);
            (id.0, entry.owner.number(), entry.index, entry.core, throttled, Arc::clone(&entry.ledger))
        };
        let mut all: Vec<_> = self.entries().iter().map(known).collect();
        all.sort_by_key(|(id, ..)| *id);
        all.into_iter()
            .map(|(id, owner, index, core, throttled, ledger)| {
                let mut status = ledger.status(id, owner, index, core);
                if throttled && status.heat == Heat::Polled {
                    status.heat = Heat::Throttled;
                }
                status
            })
            .collect()
    }

    /// Tasks of core `core`.
    pub(super) fn count(&self, core: usize) -> usize {
        self.entries().values().filter(|entry| entry.core == core).count()
    }
}

/// A number that no other tenant has while this one is there.
pub(super) fn number_of(tenant: &Arc<Tenant>) -> usize {
    Arc::as_ptr(tenant).addr()
}

fn loads(entries: &HashMap<TaskId, Whereabouts>) -> Vec<Load> {
    let load = |(id, entry): (&TaskId, &Whereabouts)| Load {
        id: *id,
        core: entry.core,
        tenant: number_of(entry.owner.tenant()),
        reserved: entry.owner.tenant().service().budget.map_or(0, |budget| budget.share()),
        busy_ns: entry.ledger.busy_ns(),
        home: entry.owner.node(),
    };
    entries.iter().map(load).collect()
}
