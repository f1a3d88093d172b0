//! The I/O cores.
//!
//! A [`Cores`] is the set of them: threads, each pinned to a processor if one was named. It gives every task to the core that
//! has the fewest, and hands tasks back. What a task is says `task`, who has it while `lease` knows where it belongs; what a
//! core does all day is in `run`; how it is told anything in `mailbox`. Nothing here knows of frames, ports or devices.

#[cfg(test)]
pub(crate) mod by_hand;
mod lease;
mod mailbox;
mod meter;
mod poller;
mod run;
mod share;
mod slow;
mod task;
mod watch;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use lease::{Home, Lease, Lent, Recall};
pub use meter::CoreStatus;
pub(crate) use share::TURN;
pub use slow::{Slow, SlowCount, SLOW_VISIT};
pub use task::{Budget, Owner, Seat, Task, Visit};
pub use watch::Beat;

use self::mailbox::{Letter, Mailbox, TaskId};
use self::meter::Meter;
use self::watch::Watch;

use sidecore_abi::counters::MAX_CORES;

struct Handle<L> {
    mailbox: Arc<Mailbox<L>>,
    meter: Arc<Meter>,
    cpu: Option<usize>,
    thread: Option<JoinHandle<()>>,
}

/// The I/O cores of an engine, each with an `L` for its tasks. Dropping it ends their threads.
pub struct Cores<L: 'static> {
    handles: Handles<L>,
    placed: Mutex<HashMap<TaskId, usize>>,
    next_id: AtomicU64,
    watch: Watch,
}

impl<L: Send + 'static> Cores<L> {
    /// Starts a thread for each of `cpus`, pinned to it; one that is not pinned if there are none. A core polls for `spin`
    /// without finding anything before it sleeps. `local` makes what a core has for its tasks: of its number, and of the word
    /// in which they say what they are at. `begin` is what each thread does first.
    ///
    /// # Errors
    /// More than `MAX_CORES` cores, or a processor that this process may not use.
    pub fn start(
        cpus: &[usize],
        spin: Duration,
        local: impl Fn(usize, &Arc<Beat>) -> L,
        begin: fn(),
    ) -> io::Result<Arc<Cores<L>>> {
        if cpus.len() > MAX_CORES {
            return Err(io::Error::other(format!("at most {MAX_CORES} I/O cores")));
        }
        // Here, so that it may use the processors that the control plane may.
        crate::mem::founder();
        let cpus: Vec<Option<usize>> = match cpus {
            [] => vec![None],
            cpus => cpus.iter().copied().map(Some).collect(),
        };
        let mut handles = Handles(Vec::new());
        let mut watched = Vec::new();
        for (number, cpu) in cpus.into_iter().enumerate() {
            let mailbox = Arc::new(Mailbox::new()?);
            let meter = Arc::new(Meter::default());
            let beat = Arc::<Beat>::default();
            let local = local(number, &beat);
            let core =
                run::Core::new(Arc::clone(&mailbox), Arc::clone(&meter), Arc::clone(&beat), spin, local)?;
            let (started, pinned) = sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("io-core-{number}")).spawn(move || {
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                // Who dropped the receiver does not want to know.
                let _ = started.send(cpu.map_or(Ok(()), crate::place::pin).map(|()| thread));
                // Naps of some 50 µs are meant: not to be lengthened by as much again (prctl(2), timer slack).
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                begin();
                // A core that panicked leaves tasks in an unknown state: better no daemon than half a one.
                // Guests of vhost-user ports connect again, and VMMs of e1000s are held: whoever supervises the daemon starts
                // it again, and they go on.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| core.run())).is_err() {
                    tracing::error!("I/O core {number} has failed (the lines above say where): the daemon is aborted, for its supervisor to start it again");
                    std::process::abort();
                }
            })?;
            handles.0.push(Handle { mailbox, meter, cpu, thread: Some(thread) });
            watched.push((beat, pinned.recv().map_err(io::Error::other)??));
        }
        let watch = Watch::start(watched)?;
        let placed = Mutex::default();
        Ok(Arc::new(Cores { handles, placed, next_id: AtomicU64::new(1), watch }))
    }

    fn placed(&self) -> MutexGuard<'_, HashMap<TaskId, usize>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `task` to a core, which visits it from its next round on.
    pub fn place<T: Task<L> + 'static>(self: &Arc<Self>, task: T) -> Lease<T> {
        let (lent, home) = Lent::new(task);
        home.lease(self.seat(Box::new(lent)))
    }

    /// The same for a task that knows its home. The core sends it there when it is recalled.
    pub fn seat(self: &Arc<Self>, seat: Box<dyn Seat<L>>) -> Recall {
        self.watch.add(&seat.owner());
        let id = TaskId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut placed = self.placed();
        let load = |number: &usize| placed.values().filter(|core| *core == number).count();
        let number = (0..self.handles.0.len()).min_by_key(load).unwrap_or(0);
        placed.insert(id, number);
        self.handles.0[number].mailbox.post(Letter::Take { id, seat });
        let cores = Arc::clone(self);
        Box::new(move || cores.recall(id))
    }

    fn recall(&self, id: TaskId) {
        let Some(number) = self.placed().remove(&id) else { return };
        let (answer, answers) = sync_channel(1);
        self.handles.0[number].mailbox.post(Letter::GiveBack { id, answer });
        // An error: the core is gone, and the task with it.
        let _ = answers.recv();
    }

    /// Sends home all tasks of the owner of this number, though nobody recalls them: whoever should is stuck. Their leases stay
    /// good, and find them at home. When this returns no core has any of them.
    pub fn evict(&self, owner: u16) {
        self.tell_all(|answer| Letter::Evict { owner, answer });
    }

    /// Has each core do `what` with what it has for its tasks, between two visits. When this returns, all have.
    pub fn each(&self, what: impl Fn(&mut L) + Send + Sync + 'static) {
        let what = Arc::new(what);
        self.tell_all(|answer| {
            let what = Arc::clone(&what);
            Letter::Do { what: Box::new(move |local| what(local)), answer }
        });
    }

    /// Has the cores visit no task, or visit them again. They take and hand back tasks meanwhile. When this returns nothing is
    /// under way.
    pub fn rest(&self, rest: bool) {
        self.tell_all(|answer| Letter::Rest { rest, answer });
    }

    fn tell_all(&self, letter: impl Fn(SyncSender<()>) -> Letter<L>) {
        let (answer, answers) = sync_channel(self.handles.0.len());
        for handle in &self.handles.0 {
            handle.mailbox.post(letter(answer.clone()));
        }
        drop(answer);
        // Ends when each core has answered and dropped its sender.
        while answers.recv().is_ok() {}
    }

    /// How the cores are doing.
    pub fn status(&self) -> Vec<CoreStatus> {
        let placed = self.placed();
        let tasks = |number: usize| placed.values().filter(|core| **core == number).count();
        let each = self.handles.0.iter().enumerate();
        each.map(|(number, handle)| handle.meter.status(number, handle.cpu, tasks(number))).collect()
    }
}

/// Threads that end when this is dropped.
struct Handles<L>(Vec<Handle<L>>);

impl<L> Drop for Handles<L> {
    fn drop(&mut self) {
        for handle in &self.0 {
            handle.mailbox.post(Letter::Stop);
        }
        for thread in self.0.iter_mut().filter_map(|handle| handle.thread.take()) {
            // Its panic has ended the process already.
            let _ = thread.join();
        }
    }
}
