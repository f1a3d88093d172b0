//! The set of I/O cores: their threads, and the ways to reach them.
//!
//! A message about a task goes through the registry, which knows the core that has it; one to all cores goes
//! to each mailbox. What waits for an answer here is a thread of the control plane, never a core.
//!
//! The thread that balances the cores takes no lock that an I/O core takes, and needs no answer of a core to
//! decide: a core that hangs in a guest's memory stops no balancing of the others.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidecore_abi::counters::MAX_CORES;

use super::balance::{pack, Action, Before, History};
use super::clock::CoreClock;
use super::lease::{Home, Lease, Recall};
use super::ledger::{CoreStatus, TaskStatus, TimeSpent};
use super::mailbox::{CoreMessage, Mailbox, TaskId};
use super::pace::Tuning;
use super::registry::{number_of, Load, Registry};
use super::run;
use super::task::{Task, TaskHandle};
use super::watch::{Heartbeat, PeriodicThread, Watchdog};
use crate::mem::{CoreTime, JoinedThread};

/// How often tasks are balanced while any core is at work, and while none is.
const DECIDE: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(1);

struct Handle<L> {
    mailbox: Arc<Mailbox<L>>,
    spent: Arc<TimeSpent>,
    heartbeat: Arc<Heartbeat>,
    /// It has been in one visit for a while, as far as the balancer knows.
    stands: AtomicBool,
    cpu: Option<usize>,
    /// The processor's NUMA node.
    node: Option<usize>,
    _thread: JoinedThread,
}

/// The I/O cores of an engine, each with an `L` for its tasks. Dropping it ends their threads.
pub struct Cores<L: 'static> {
    handles: Handles<L>,
    registry: Arc<Registry<L>>,
    /// Those from number 0 on that have tasks. The others sleep.
    active: AtomicUsize,
    /// Held while tasks move, so that all tasks of an owner are found.
    moving: Mutex<()>,
    next_id: AtomicU64,
    watch: Watchdog,
    balancer: Mutex<Option<PeriodicThread>>,
}

impl<L: Send + 'static> Cores<L> {
    /// Starts a thread for each of `cpus`, pinned to it; one that is not pinned if there are none. `local`
    /// makes what a core has for its tasks, of its number. `begin` is what each thread does first.
    ///
    /// # Errors
    /// More than `MAX_CORES` cores, or a processor that this process may not use.
    pub fn start(
        cpus: &[usize],
        tuning: &Tuning,
        local: impl Fn(usize) -> L,
        begin: fn(),
    ) -> io::Result<Arc<Cores<L>>> {
        if cpus.len() > MAX_CORES {
            return Err(io::Error::other(format!("at most {MAX_CORES} I/O cores")));
        }
        match cpus {
            [] => Cores::start_on(&[None], tuning, local, begin),
            cpus => {
                Cores::start_on(&cpus.iter().copied().map(Some).collect::<Vec<_>>(), tuning, local, begin)
            }
        }
    }

    /// `count` cores that are not pinned.
    #[cfg(test)]
    pub(super) fn unpinned(
        count: usize,
        tuning: &Tuning,
        local: impl Fn(usize) -> L,
    ) -> io::Result<Arc<Cores<L>>> {
        Cores::start_on(&vec![None; count], tuning, local, || ())
    }

    fn start_on(
        cpus: &[Option<usize>],
        tuning: &Tuning,
        local: impl Fn(usize) -> L,
        begin: fn(),
    ) -> io::Result<Arc<Cores<L>>> {
        let clock = CoreClock::new();
        let registry = Arc::<Registry<L>>::default();
        let mut handles = Handles(Vec::new());
        let mut watched = Vec::new();
        for (number, cpu) in cpus.iter().copied().enumerate() {
            let mailbox = Arc::new(Mailbox::new()?);
            let spent = Arc::new(TimeSpent::default());
            let heartbeat = Arc::<Heartbeat>::default();
            let parts = run::Parts {
                number,
                mailbox: Arc::clone(&mailbox),
                spent: Arc::clone(&spent),
                registry: Arc::clone(&registry),
                heartbeat: Arc::clone(&heartbeat),
                tuning: tuning.clone(),
                local: local(number),
            };
            let core = run::Core::new(parts, clock.clone())?;
            let (started, begun) = sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("io-core-{number}")).spawn(move || {
                let time = cpu.map_or(Ok(()), crate::util::place::pin).and_then(|()| CoreTime::of_this_thread());
                // The receiver is gone if another core could not be started.
                let _ = started.send(time);
                // Naps of some 50 µs are meant: not to be lengthened by as much again (prctl(2), timer
                // slack).
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                begin();
                // A core that panicked leaves tasks in an unknown state: better no daemon than half a one.
                // Guests of vhost-user ports connect again, and VMMs of e1000s are held: the daemon's
                // supervisor starts it again, and they go on.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| core.run())).is_err() {
                    tracing::error!("I/O core {number} has failed (the lines above say where): the daemon is aborted, for its supervisor to start it again");
                    std::process::abort();
                }
            })?;
            let node = cpu.and_then(crate::util::place::node_of);
            let (stands, thread) = (AtomicBool::new(false), thread.into());
            handles.0.push(Handle {
                mailbox,
                spent,
                heartbeat: Arc::clone(&heartbeat),
                stands,
                cpu,
                node,
                _thread: thread,
            });
            watched.push((heartbeat, begun.recv().map_err(io::Error::other)??));
        }
        registry.connect(handles.0.iter().map(|handle| Arc::clone(&handle.mailbox)).collect());
        let count = handles.0.len();
        let cores = Arc::new(Cores {
            handles,
            registry,
            active: AtomicUsize::new(tuning.least_cores.clamp(1, count)),
            moving: Mutex::new(()),
            next_id: AtomicU64::new(1),
            watch: Watchdog::start(watched)?,
            balancer: Mutex::new(None),
        });
        if count > 1 && tuning.balance {
            let least = tuning.least_cores.clamp(1, count);
            let (mut before, mut history) = (Before::default(), History::default());
            // It must not keep the cores: they end it.
            let balanced = Arc::downgrade(&cores);
            let look = move || Some(balanced.upgrade()?.balance(&mut before, &mut history, least));
            *crate::lock(&cores.balancer) = Some(PeriodicThread::start("core-balance", IDLE, look)?);
        }
        Ok(cores)
    }

    /// Gives `task` to a core, which visits it from its next round on.
    pub fn place<T: Task<L> + 'static>(self: &Arc<Self>, task: T) -> Lease<T> {
        let home = Home::default();
        let handle = home.lend(Box::new(task) as Box<dyn Task<L>>);
        home.lease(self.serve(handle))
    }

    /// Gives a task to a core that visits it until it is recalled; then the core returns it to its owner.
    pub fn serve(self: &Arc<Self>, handle: TaskHandle<L>) -> Recall {
        let owner = handle.owner();
        self.watch.add(&owner);
        let id = TaskId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let budget = owner.tenant().service().budget.is_some();
        let wish = Wish { tenant: number_of(owner.tenant()), budget, home: owner.node() };
        self.registry
            .add(id, handle, |loads| choose(loads, self.active(), &self.handles.candidates(), &wish));
        if budget {
            self.pack();
        }
        let cores = Arc::clone(self);
        Box::new(move || {
            let (answer, answers) = sync_channel(1);
            cores.registry.recall(id, answer);
            // An error: its owner has it, or the core is gone, and the task with it.
            let _ = answers.recv();
        })
    }

    /// Cores that have tasks: those from number 0 on.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Has `count` cores be active, one at least: tasks of the others move. Returns how many there are then.
    pub fn set_active(&self, count: usize) -> usize {
        let count = count.clamp(1, self.handles.0.len());
        let before = self.active.swap(count, Ordering::Relaxed);
        for number in count..before.max(count) {
            for load in self.registry.loads().iter().filter(|load| load.core == number) {
                let loads = self.registry.loads();
                let wish = Wish { tenant: load.tenant, budget: load.reserved > 0, home: load.home };
                self.move_task(load.id.0, choose(&loads, count, &self.handles.candidates(), &wish));
            }
        }
        self.pack();
        count
    }

    /// Has tasks move, and cores become active and rest, by what they wrote down since `before`; `least`
    /// always are active. How long until the next time.
    fn balance(&self, before: &mut Before, history: &mut History, least: usize) -> Duration {
        let cores = &self.handles.0;
        let times = cores.iter().map(|core| core.spent.times()).collect();
        let at_work: Vec<bool> = cores.iter().map(|core| core.heartbeat.is_at_work()).collect();
        let nodes: Vec<_> = cores.iter().map(|core| core.node).collect();
        let samples = before.samples(times, &at_work, &nodes, &self.registry.loads(), self.active());
        for (core, sample) in cores.iter().zip(&samples) {
            core.stands.store(sample.stands, Ordering::Relaxed);
        }
        match history.decide(&samples, cores.len(), least) {
            Some(Action::Add(tasks)) => {
                let count = self.set_active(self.active() + 1);
                let moved = tasks.iter().filter(|task| self.move_task(**task, count - 1)).count();
                tracing::info!(
                    event = "move",
                    cores = count,
                    tasks = moved,
                    "an I/O core was full: one more has tasks now"
                );
            }
            Some(Action::Remove) => {
                let count = self.set_active(self.active() - 1);
                tracing::info!(
                    event = "move",
                    cores = count,
                    "one I/O core less is enough: the last one rests"
                );
            }
            Some(Action::Move(task, to)) => {
                self.move_task(task, to);
            }
            None => {}
        }
        if samples.iter().all(|core| core.busy == 0 && !core.stands) {
            IDLE
        } else {
            DECIDE
        }
    }

    /// Has all tasks of each tenant with a budget be on one core, and the budgets of a core fit on it, as far
    /// as that is possible. Called when a budget changes.
    pub fn pack(&self) {
        for (task, to) in pack(&self.registry.loads(), self.active()) {
            self.move_task(task, to);
        }
    }

    /// Has core `to` serve the task of this number from now on. False: there is no such task, or core; or it
    /// is there already.
    pub fn move_task(&self, id: u64, to: usize) -> bool {
        let _moving = crate::lock(&self.moving);
        let (answer, answers) = sync_channel(1);
        let sent = self.registry.send(TaskId(id), to, answer);
        let moved = answers.recv().unwrap_or(false);
        if let Some((owner, queue)) = sent.filter(|_| moved) {
            let port = owner.name();
            tracing::debug!(event = "move", port, queue, core = to, "I/O core {to} serves queue {queue} now");
        }
        moved
    }

    /// Returns all tasks of the owner of this number to it, though they are not recalled: the thread that
    /// should recall them is stuck. Their leases stay good, and find them there. When this returns no core
    /// has any of them.
    pub fn evict(&self, owner: u16) {
        let _moving = crate::lock(&self.moving);
        self.tell_all(|answer| CoreMessage::Evict { owner, answer });
    }

    /// Has each core do `what` with what it has for its tasks, between two visits. When this returns, all
    /// have.
    pub fn each(&self, what: impl Fn(&mut L) + Send + Sync + 'static) {
        let what = Arc::new(what);
        self.tell_all(|answer| {
            let what = Arc::clone(&what);
            CoreMessage::Do { what: Box::new(move |local| what(local)), answer }
        });
    }

    /// Has the first core do `what` between two visits, when it gets to it: nobody waits for that.
    pub fn post(&self, what: impl FnOnce(&mut L) + Send + 'static) {
        let Some(first) = self.handles.0.first() else { return };
        let (answer, _) = sync_channel(1);
        first.mailbox.post(CoreMessage::Do { what: Box::new(what), answer });
    }

    /// Has the cores visit no task, or visit them again. They take and hand back tasks meanwhile. When this
    /// returns nothing is under way.
    pub fn rest(&self, rest: bool) {
        self.tell_all(|answer| CoreMessage::Rest { rest, answer });
    }

    /// Whether a core stands in a visit, as far as the balancer knows.
    #[cfg(test)]
    pub(super) fn stands(&self, core: usize) -> bool {
        self.handles.candidates()[core].stands
    }

    fn tell_all(&self, message: impl Fn(SyncSender<()>) -> CoreMessage<L>) {
        let (answer, answers) = sync_channel(self.handles.0.len());
        for handle in &self.handles.0 {
            handle.mailbox.post(message(answer.clone()));
        }
        drop(answer);
        // Ends when each core has answered and dropped its sender.
        while answers.recv().is_ok() {}
    }

    /// How the cores are doing.
    pub fn status(&self) -> Vec<CoreStatus> {
        let active = self.active();
        let each = self.handles.0.iter().enumerate();
        each.map(|(number, handle)| {
            handle.spent.status(number, handle.cpu, self.registry.count(number), number < active)
        })
        .collect()
    }

    /// How their tasks are doing.
    pub fn tasks(&self) -> Vec<TaskStatus> {
        self.registry.status()
    }
}

/// What a task needs of its core.
struct Wish {
    tenant: usize,
    /// That tenant has a budget, which is a part of one core.
    budget: bool,
    /// The node of its owner's memory.
    home: Option<usize>,
}

/// The core of those below `active` for a task: with its tenant's other tasks if that has a budget; else on
/// the node of its memory, if there is one, and where the fewest are; on one that stands only if all do.
fn choose(loads: &[Load], active: usize, cores: &[Candidate], wish: &Wish) -> usize {
    let Wish { tenant, budget, home } = *wish;
    if budget {
        if let Some(load) = loads.iter().find(|load| load.tenant == tenant && load.core < active) {
            return load.core;
        }
    }
    let candidate = |core: usize| cores.get(core).copied().unwrap_or_default();
    let far = |core: usize| matches!((candidate(core).node, home), (Some(node), Some(home)) if node != home);
    let reserved = |core: usize| {
        let mut tenants: Vec<_> =
            loads.iter().filter(|load| load.core == core && load.reserved > 0).collect();
        tenants.sort_by_key(|load| load.tenant);
        tenants.dedup_by_key(|load| load.tenant);
        tenants.iter().map(|load| load.reserved).sum::<u64>()
    };
    let count = |core: usize| loads.iter().filter(|load| load.core == core).count();
    let cost = |&core: &usize| {
        let reserved = if budget { reserved(core) } else { 0 };
        (candidate(core).stands, reserved, far(core), count(core))
    };
    (0..active).min_by_key(cost).unwrap_or(0)
}

/// A core that a task could have.
#[derive(Clone, Copy, Default)]
struct Candidate {
    node: Option<usize>,
    stands: bool,
}

/// Threads that end when this is dropped.
struct Handles<L>(Vec<Handle<L>>);

impl<L> Handles<L> {
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |handle: &Handle<L>| Candidate {
            node: handle.node,
            stands: handle.stands.load(Ordering::Relaxed),
        };
        self.0.iter().map(candidate).collect()
    }
}

impl<L> Drop for Handles<L> {
    fn drop(&mut self) {
        for handle in &self.0 {
            handle.mailbox.post(CoreMessage::Stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_given_to_a_core_on_its_memorys_node() {
        let load = |id: u64, core: usize| Load {
            id: TaskId(id),
            core,
            tenant: 1,
            reserved: 0,
            busy_ns: 0,
            home: None,
        };
        let mut nodes = [Some(0), Some(1), Some(0), None].map(|node| Candidate { node, stands: false });
        let wish = |home| Wish { tenant: 9, budget: false, home };
        let loads = [load(1, 0), load(2, 0), load(3, 2)];
        assert_eq!(choose(&loads, 3, &nodes, &wish(Some(0))), 2, "the emptier one of node 0");
        assert_eq!(choose(&loads, 3, &nodes, &wish(Some(1))), 1);
        assert_eq!(choose(&loads, 3, &nodes, &wish(None)), 1, "the emptiest");
        assert_eq!(choose(&loads, 3, &nodes, &wish(Some(7))), 1, "no core is there");
        assert_eq!(choose(&loads, 1, &nodes, &wish(Some(1))), 0, "those that rest are not asked");
        nodes[1].stands = true;
        assert_eq!(choose(&loads, 3, &nodes, &wish(Some(1))), 2, "far is better than not served");
        nodes.iter_mut().for_each(|core| core.stands = true);
        assert_eq!(choose(&loads, 3, &nodes, &wish(Some(1))), 1, "all stand");
    }
}
