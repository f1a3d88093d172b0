//! The thread that balances I/O cores: it reads what they wrote down, has `balance` decide, and carries that out.
//!
//! It takes no lock that an I/O core takes, and needs no answer of a core to decide: a core that hangs in a guest's memory stops no
//! balancing of the others.

use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::balance::{Action, History};
use super::registry::Load;
use super::sample::Before;
use crate::mem::start_helper;

/// How often it decides while any core is at work, and while none is.
const DECIDE: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(1);

/// Cores that can be balanced.
pub(super) trait Balanced: Send + Sync + 'static {
    /// How long each of them, active or not, was busy, and how long it has been there: nanoseconds.
    fn times(&self) -> Vec<(u64, u64)>;
    /// Which of them are in a visit.
    fn at_work(&self) -> Vec<bool>;
    /// Says which of the active ones stand still.
    fn set_standing(&self, which: &[bool]);
    /// The NUMA node of each.
    fn nodes(&self) -> Vec<Option<usize>>;
    /// The tasks that they have.
    fn loads(&self) -> Vec<Load>;
    /// How many are active: those from number 0 on.
    fn active(&self) -> usize;
    /// Has `count` be active; how many are then.
    fn set_active(&self, count: usize) -> usize;
    /// Has core `to` serve a task; whether it moved.
    fn move_task(&self, id: u64, to: usize) -> bool;
}

/// The thread. Dropping this ends it.
pub(super) struct Balancer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Balancer {
    /// Balances `cores`, of which `least` always are active.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(cores: &Arc<impl Balanced>, least: usize) -> std::io::Result<Balancer> {
        let (stop, stopped) = channel();
        // It must not keep the cores: they end it.
        let cores = Arc::downgrade(cores);
        let thread = start_helper("core-balance".to_owned(), move || run(&cores, least, &stopped))?;
        Ok(Balancer { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.stop = None;
        let Some(thread) = self.thread.take() else { return };
        // The last owner of the cores may be this thread itself.
        if thread.thread().id() != std::thread::current().id() {
            // Its panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

fn run(cores: &Weak<impl Balanced>, least: usize, stopped: &Receiver<()>) {
    let (mut before, mut history, mut pause) = (Before::default(), History::default(), IDLE);
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(cores) = cores.upgrade() else { return };
        let times = cores.times();
        let all = times.len();
        let samples = before.samples(times, &cores.at_work(), &cores.nodes(), &cores.loads(), cores.active());
        cores.set_standing(&samples.iter().map(|core| core.stands).collect::<Vec<_>>());
        pause = if samples.iter().all(|core| core.busy == 0 && !core.stands) { IDLE } else { DECIDE };
        let Some(action) = history.decide(&samples, all, least) else { continue };
        carry_out(&*cores, action);
    }
}

fn carry_out(cores: &impl Balanced, action: Action) {
    let active = cores.active();
    match action {
        Action::Add(tasks) => {
            let count = cores.set_active(active + 1);
            let moved = tasks.iter().filter(|task| cores.move_task(**task, count - 1)).count();
            tracing::info!(cores = count, tasks = moved, "an I/O core was full: one more has tasks now");
        }
        Action::Remove => {
            let count = cores.set_active(active - 1);
            tracing::info!(cores = count, "one I/O core less is enough: the last one rests");
        }
        Action::Move(task, to) => {
            let moved = cores.move_task(task, to);
            tracing::debug!(task, to, moved, "a task moved to another I/O core");
        }
    }
}
