//! The I/O cores.
//!
//! A [`Cores`] is the set of them: threads, each pinned to a processor if one was named. It gives every
//! ingress queue to the core that serves the fewest, hands queues back, and installs topologies. What a
//! core does all day is in `round`; how a batch is delivered in `deliver`; how it is told anything in
//! `mailbox`.

mod boundary;
mod deliver;
mod gate;
mod mailbox;
mod pause;
mod poller;
mod round;
mod share;
mod status;
mod topology;
mod watch;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use status::CoreStatus;
pub use topology::{Attach, Topology};

use self::mailbox::{Letter, Mailbox};
use self::status::Meter;
use self::watch::{Beat, Watch};
use crate::port::{IngressQueue, Port, QueueKey, Scheduler};

use sidecore_abi::counters::MAX_CORES;

/// What can be chosen about the I/O cores.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Processors to pin the cores to, one core each. Empty: one core, not pinned.
    pub cpus: Vec<usize>,
    /// How long a core polls without finding anything before it sleeps.
    pub spin: Duration,
    /// How long a queue on a wire waits for a receiver that gives no buffers, before its frames are dropped.
    pub patience: Duration,
}

impl Default for CoreOptions {
    fn default() -> Self {
        CoreOptions { cpus: Vec::new(), spin: Duration::from_micros(50), patience: pause::PATIENCE }
    }
}

struct Handle {
    mailbox: Arc<Mailbox>,
    meter: Arc<Meter>,
    cpu: Option<usize>,
    thread: Option<JoinHandle<()>>,
}

/// The I/O cores of an engine. Dropping it ends their threads.
pub struct Cores {
    handles: Vec<Handle>,
    placed: Mutex<HashMap<QueueKey, usize>>,
    next_key: AtomicU64,
    epoch: Instant,
    watch: Option<Watch>,
}

impl Cores {
    /// Starts the threads.
    ///
    /// # Errors
    /// More than `MAX_CORES` cores, or a processor that this process may not use.
    pub fn start(options: &CoreOptions) -> io::Result<Arc<Cores>> {
        if options.cpus.len() > MAX_CORES {
            return Err(io::Error::other(format!("at most {MAX_CORES} I/O cores")));
        }
        // Here, so that it may use the processors that the control plane may.
        crate::mem::founder();
        let epoch = Instant::now();
        let places: Vec<Option<usize>> = match &options.cpus[..] {
            [] => vec![None],
            cpus => cpus.iter().copied().map(Some).collect(),
        };
        let mut cores = Cores {
            handles: Vec::new(),
            placed: Mutex::default(),
            next_key: AtomicU64::new(1),
            epoch,
            watch: None,
        };
        let mut watched = Vec::new();
        for (number, cpu) in places.into_iter().enumerate() {
            let mailbox = Arc::new(Mailbox::new()?);
            let meter = Arc::new(Meter::default());
            let beat = Arc::<Beat>::default();
            let core = round::Core::new(
                number,
                Arc::clone(&mailbox),
                Arc::clone(&meter),
                Arc::clone(&beat),
                options,
                epoch,
            )?;
            let (started, pinned) = sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("io-core-{number}")).spawn(move || {
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                // Who dropped the receiver does not want to know.
                let _ = started.send(cpu.map_or(Ok(()), crate::place::pin).map(|()| thread));
                // Naps of some 50 µs are meant: not to be lengthened by as much again (prctl(2), timer slack).
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                crate::confine::enter(crate::confine::Kinds::IO_CORE);
                // A core that panicked leaves queues in an unknown state: better no daemon than half a one.
                // Guests of vhost-user ports connect again, and VMMs of e1000s are held: whoever supervises the daemon starts
                // it again, and they go on.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| core.run())).is_err() {
                    tracing::error!("I/O core {number} has failed (the lines above say where): the daemon is aborted, for its supervisor to start it again");
                    std::process::abort();
                }
            })?;
            cores.handles.push(Handle { mailbox, meter, cpu, thread: Some(thread) });
            watched.push((beat, pinned.recv().map_err(io::Error::other)??));
        }
        cores.watch = Some(Watch::start(watched)?);
        Ok(Arc::new(cores))
    }

    fn placed(&self) -> MutexGuard<'_, HashMap<QueueKey, usize>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs `topology`. When this returns, no core uses an older one.
    pub fn publish(&self, topology: &Arc<Topology>) {
        self.tell_all(|answer| Letter::Topology { topology: Arc::clone(topology), answer });
    }

    /// Has the cores serve no queue, or serve them again. They take queues and topologies meanwhile, and hand queues
    /// back. When this returns no batch is under way.
    pub fn rest(&self, rest: bool) {
        self.tell_all(|answer| Letter::Rest { rest, answer });
    }

    fn tell_all(&self, letter: impl Fn(SyncSender<()>) -> Letter) {
        let (answer, answers) = sync_channel(self.handles.len());
        for handle in &self.handles {
            handle.mailbox.post(letter(answer.clone()));
        }
        drop(answer);
        // Ends when each core has answered and dropped its sender.
        while answers.recv().is_ok() {}
    }

    /// The clock of MAC tables: seconds since the start, from 1 on.
    pub fn seconds(&self) -> u32 {
        round::seconds(self.epoch)
    }

    /// How the cores are doing.
    pub fn status(&self) -> Vec<CoreStatus> {
        let placed = self.placed();
        let queues = |number: usize| placed.values().filter(|core| **core == number).count();
        let each = self.handles.iter().enumerate();
        each.map(|(number, handle)| handle.meter.status(number, handle.cpu, queues(number))).collect()
    }
}

impl Scheduler for Cores {
    fn serve(&self, port: &Arc<Port>, index: usize, queue: Box<dyn IngressQueue>) -> QueueKey {
        let key = QueueKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        // And it will have to be taken back.
        port.talk.changed(2);
        if let Some(watch) = &self.watch {
            watch.add(port);
        }
        let mut placed = self.placed();
        let load = |number: &usize| placed.values().filter(|core| *core == number).count();
        let number = (0..self.handles.len()).min_by_key(load).unwrap_or(0);
        placed.insert(key, number);
        self.handles[number].mailbox.post(Letter::Serve { key, port: Arc::clone(port), index, queue });
        key
    }

    fn take_back(&self, key: QueueKey) -> Option<Box<dyn IngressQueue>> {
        let number = self.placed().remove(&key)?;
        let (answer, answers) = sync_channel(1);
        self.handles[number].mailbox.post(Letter::TakeBack { key, answer });
        answers.recv().ok().flatten()
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.mailbox.post(Letter::Stop);
        }
        for thread in self.handles.iter_mut().filter_map(|handle| handle.thread.take()) {
            // Its panic has ended the process already.
            let _ = thread.join();
        }
    }
}
