//! A queue of frames as a task: fetch, forward, give back.
//!
//! Theory of operation. A visit takes one batch. What was fetched is [`FetchedBatch`]: a value that gives the
//! sender its buffers back when it is done with, so that no way out of a visit can forget to. On a wire to a
//! receiver of several queues some frames may have to wait for buffers (`wire::WireGate`): then the batch is
//! *held*, with what was fetched, and the next visits deliver the rest before anything else is fetched.
//!
//! On a wire the receiver is asked for its room first, and only if the sender is seen to have frames: asking
//! takes the receiver's lock.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::local::Local;
use super::topology::Source;
use super::wire::{self, Pause, WireGate, NAP, PATIENCE};
use crate::core::{Budget, Home, Lease, Lent, Owner, Recall, Task, TaskHandle, Visit, VisitEnd};
use crate::mem::Act;
use crate::observe::account::Tally;
use crate::packet::Batch;
use crate::port::{EgressQueue, IngressQueue, Port};

// A turn's worth is a batch at most.
const _: () = assert!(crate::core::TURN == crate::packet::MAX_BATCH);

/// The server of queues: the I/O cores, or what stands in their place.
pub trait Scheduler: Send + Sync {
    /// Serves the queue of `handle` until it is recalled; then it returns to its owner.
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall;

    /// Serves a task that is no queue of frames, until it is recalled. A scheduler that only moves frames has
    /// no place for it.
    fn serve_task(self: Arc<Self>, task: TaskHandle<Local>) -> Recall {
        drop(task);
        Box::new(|| ())
    }

    /// How long frames on a wire wait for a receiver that gives no buffers.
    fn patience(&self) -> Duration {
        PATIENCE
    }
}

impl dyn Scheduler {
    /// Gives ingress queue `index` of `port` to an I/O core, which polls it from its next round on. Several
    /// rings that are served as one queue go by the number of the first.
    pub fn serve<Q>(self: &Arc<Self>, port: &Arc<Port>, index: usize, queue: Q) -> Lease<Q>
    where
        Q: IngressQueue + 'static,
    {
        // Two changes that a core notices: it gets the queue now, and gives it back when the lease ends.
        port.messages.changed(2);
        let home = Home::of(|task| Some(task.downcast::<NetTask<Q>>().ok()?.queue));
        let task = NetTask::new(port, index, queue, self.patience());
        let handle = home.lend(Box::new(task) as Box<dyn QueueTask>);
        home.lease(Arc::clone(self).serve_queue(handle))
    }

    /// Gives a task of `port` that is no queue of frames to an I/O core: requests to a disk, say.
    pub fn place<T>(self: &Arc<Self>, port: &Arc<Port>, task: T) -> Lease<T>
    where
        T: Task<Local> + 'static,
    {
        // As in `serve`: it is given and taken back.
        port.messages.changed(2);
        let home = Home::default();
        let handle = home.lend(Box::new(task) as Box<dyn Task<Local>>);
        home.lease(Arc::clone(self).serve_task(handle))
    }
}

/// A queue that is to be served, whatever its type.
pub type QueueHandle = Lent<dyn QueueTask>;

/// A queue of frames as a task.
pub trait QueueTask: Task<Local> {
    /// Whose it is.
    fn port(&self) -> &Arc<Port>;
    /// The queue, for a caller that serves it by hand.
    fn queue(&mut self) -> &mut dyn IngressQueue;
}

impl QueueHandle {
    /// The queue as a task of an I/O core.
    pub fn task(self) -> TaskHandle<Local> {
        self.map(|task| task as Box<dyn Task<Local>>)
    }

    /// Gives the queue back to its owner.
    pub fn return_to_owner(self) {
        self.task().return_to_owner();
    }
}

/// An ingress queue that an I/O core serves.
pub struct NetTask<Q> {
    queue: Q,
    port: Arc<Port>,
    /// Its number among the port's.
    index: usize,
    /// How long frames on a wire wait for a receiver that gives no buffers.
    patience: Duration,
    /// For a wire to a receiver with one queue: how many frames are fetched.
    pause: Pause,
    /// For a wire to a receiver with several queues: which fetched frames wait.
    gate: Option<Box<WireGate>>,
    /// A batch that is not delivered whole.
    held: Option<Box<HeldBatch>>,
    /// The memory of the batch that was held last, for the next one.
    spare: Option<Box<HeldBatch>>,
}

/// A batch of which some frames wait, and what its fetch counted. The queue gives nothing back, and is asked
/// for nothing, until they are delivered.
struct HeldBatch {
    batch: Batch,
    tally: Tally,
}

/// What a fetch took from `queue`. It is given back when this is done with, unless its frames are held.
struct FetchedBatch<'q, Q: IngressQueue> {
    queue: &'q mut Q,
    tally: Tally,
    held: bool,
}

impl<'q, Q: IngressQueue> FetchedBatch<'q, Q> {
    #[inline]
    fn fetch(queue: &'q mut Q, batch: &mut Batch) -> FetchedBatch<'q, Q> {
        let mut tally = Tally::default();
        queue.fetch(batch, &mut tally);
        FetchedBatch { queue, tally, held: false }
    }

    /// What was held before.
    fn again(queue: &'q mut Q, tally: Tally) -> FetchedBatch<'q, Q> {
        FetchedBatch { queue, tally, held: false }
    }

    /// Some of its frames wait: what to go on with, [`FetchedBatch::again`].
    fn hold(mut self) -> Tally {
        self.held = true;
        std::mem::take(&mut self.tally)
    }

    /// Gives it back; what was counted meanwhile.
    #[inline]
    fn give_back(mut self) -> Tally {
        self.release();
        self.held = true;
        std::mem::take(&mut self.tally)
    }

    #[inline]
    fn release(&mut self) {
        if self.tally.frames > 0 && !self.held {
            self.queue.release(&mut self.tally);
        }
    }
}

impl<Q: IngressQueue> Drop for FetchedBatch<'_, Q> {
    fn drop(&mut self) {
        self.release();
    }
}

/// Gives `fetched` back to the peer of `port`. Where both sides are dealt with apart (`deliver`), that time
/// is entered in the account of `port`.
#[inline]
fn give_back<Q: IngressQueue>(fetched: FetchedBatch<'_, Q>, port: &Port, local: &Local) -> Tally {
    match local.walk.delivery.apart {
        true => port.overrun.timed(Act::Touch, || fetched.give_back()),
        false => fetched.give_back(),
    }
}

/// Counts what was fetched from queue `index` of `port`.
#[inline]
fn count(port: &Port, index: usize, core: usize, tally: &Tally) {
    port.counters.block(core).add_tally(tally);
    port.interrupts.ingress(index, tally.occasions, tally.interrupts - tally.for_others);
}

impl<Q: IngressQueue> NetTask<Q> {
    fn new(port: &Arc<Port>, index: usize, queue: Q, patience: Duration) -> NetTask<Q> {
        let (port, pause) = (Arc::clone(port), Pause::new(patience));
        NetTask { queue, port, index, patience, pause, gate: None, held: None, spare: None }
    }

    /// Delivers what is held, as far as its receiver has room; all of it `in_any_case`. When nothing is left
    /// the batch is given back. Returns how many frames were moved.
    #[cold]
    fn deliver_held(&mut self, local: &mut Local, in_any_case: bool) -> u64 {
        let (Some(mut held), Some(gate)) = (self.held.take(), &mut self.gate) else { return 0 };
        let begun = local.walk.delivery.start(&self.port.overrun);
        if !in_any_case {
            self.queue.tend(&mut held.tally);
        }
        let before = gate.held();
        let source = Source { topology: &local.topology, port: &self.port };
        local.walk.again(source, &held.batch, gate, in_any_case);
        let left = gate.held();
        let fetched = FetchedBatch::again(&mut self.queue, std::mem::take(&mut held.tally));
        if left == 0 {
            let tally = give_back(fetched, &self.port, local);
            count(&self.port, self.index, local.number, &tally);
            held.batch.clear();
            self.spare = Some(held);
        } else {
            held.tally = fetched.hold();
            self.held = Some(held);
        }
        local.walk.delivery.end(begun);
        before.saturating_sub(left) as u64
    }

    /// How many frames the receiver at the other end of a wire has room for.
    #[inline]
    fn limit(&mut self, local: &mut Local) -> usize {
        match wire::receiver(Source { topology: &local.topology, port: &self.port }) {
            // No receiver is asked for room whose sender has nothing for it.
            Some(_) if !self.queue.has_frames() => 0,
            Some(port) if port.egress_queues() <= 1 => {
                self.pause.limit(local.walk.delivery.room(port, 0), Instant::now)
            }
            // The gate asks when the queues of the frames are known, and on a switch no sender waits.
            _ => self.pause.limit(None, Instant::now),
        }
    }

    /// Holds what `local.batch` has and its receiver has no room for.
    #[cold]
    fn hold(&mut self, local: &mut Local, tally: Tally) {
        let spare = self.spare.take();
        let mut held = spare.unwrap_or_else(|| Box::new(HeldBatch { batch: Batch::new(), tally }));
        held.tally = tally;
        std::mem::swap(&mut held.batch, &mut local.batch);
        self.held = Some(held);
    }

    fn is_waiting(&self) -> bool {
        self.held.is_some() || self.pause.is_on()
    }
}

/// Why a visit that was to take `limit` frames at most has taken no more into `batch`. An empty one that had
/// no room to take anything waits, too.
#[inline]
fn end_of(batch: &Batch, budget: &Budget, limit: usize, pause: &Pause) -> VisitEnd {
    if batch.is_late() {
        VisitEnd::Time
    } else if batch.is_spent() || batch.seen() >= budget.items {
        VisitEnd::Budget
    } else if pause.is_on() || limit < budget.items && batch.seen() >= limit && limit > 0 {
        VisitEnd::Waits
    } else {
        VisitEnd::Drained
    }
}

impl<Q: IngressQueue + 'static> Task<Local> for NetTask<Q> {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.port) as Arc<dyn Owner>
    }

    fn index(&self) -> usize {
        self.index
    }

    fn has_work(&mut self) -> bool {
        !self.is_waiting() && !self.queue.poll_is_costly() && self.queue.has_frames()
    }

    /// Moves one batch: `fetch` takes it from the sender's ring, `Walk::forward` decides and delivers,
    /// `give_back` returns the sender's buffers.
    fn visit(&mut self, local: &mut Local, budget: Budget) -> Visit {
        if self.held.is_some() {
            let moved = self.deliver_held(local, false);
            let end = if self.held.is_some() { VisitEnd::Waits } else { VisitEnd::Drained };
            return Visit { moved, end, others_ns: local.walk.delivery.others_ns, ..Visit::default() };
        }
        let begun = local.walk.delivery.start(&self.port.overrun);
        let receiver = wire::receiver(Source { topology: &local.topology, port: &self.port });
        let several = receiver.is_some_and(|port| port.egress_queues() > 1);
        let limit = self.limit(local);
        local.batch.clear();
        local.batch.set_bounds(budget.bytes, local.ticks(budget.ns));
        local.batch.set_limit(limit.min(budget.items));
        let fetched = FetchedBatch::fetch(&mut self.queue, &mut local.batch);
        if local.walk.delivery.apart && !local.batch.is_empty() {
            // A pipe, which fills no batch, times itself.
            local.batch.touch();
            self.port.overrun.took(Act::Touch, local.batch.begun());
        }
        if let Some((counters, outcome)) = fetched.queue.passed() {
            counters.block(local.number).add_outcome(&outcome);
        }
        if let Some(wait) = self.pause.over(&local.batch) {
            self.port.waits.add(self.index, wait);
        }
        let mut visit = Visit {
            moved: fetched.tally.frames,
            // Frames that the fetch dropped took time, too.
            items: local.batch.seen(),
            bytes: fetched.tally.bytes,
            end: end_of(&local.batch, &budget, limit, &self.pause),
            ..Visit::default()
        };
        if !local.batch.is_empty() {
            if several && self.gate.is_none() {
                self.gate = Some(Box::new(WireGate::new(&self.port, self.index, self.patience)));
            }
            let gate = self.gate.as_deref_mut().filter(|_| several);
            let source = Source { topology: &local.topology, port: &self.port };
            visit.cost = local.walk.forward(source, &mut local.batch, gate);
            visit.others_ns = local.walk.delivery.others_ns;
            self.pause.took(&local.batch);
            let left = self.gate.as_ref().map_or(0, |gate| gate.held());
            if left > 0 {
                visit.moved = visit.moved.saturating_sub(left as u64);
                visit.end = VisitEnd::Waits;
                let tally = fetched.hold();
                self.hold(local, tally);
                local.walk.delivery.end(begun);
                return visit;
            }
        }
        let tally = give_back(fetched, &self.port, local);
        if tally.frames > 0 || tally.interrupts > 0 {
            count(&self.port, self.index, local.number, &tally);
        }
        local.walk.delivery.end(begun);
        visit
    }

    fn arm(&mut self) -> bool {
        let frames = self.queue.want_kicks(true);
        // Frames that wait for their receiver bring no kick, and must not keep the core awake.
        frames && !self.is_waiting()
    }

    fn disarm(&mut self) {
        self.queue.want_kicks(false);
    }

    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>)) {
        self.queue.kick_fd().into_iter().chain(self.queue.wake_fd()).for_each(each);
    }

    fn next_look(&self) -> Option<Duration> {
        let own = self.queue.longest_sleep();
        if self.is_waiting() {
            return Some(own.map_or(NAP, |own| own.min(NAP)));
        }
        own
    }

    fn is_costly(&self) -> bool {
        self.queue.poll_is_costly()
    }

    fn woken(&mut self, local: &mut Local) {
        let tally = Tally { kicks: 1, ..Tally::default() };
        self.port.counters.block(local.number).add_tally(&tally);
    }

    fn settle(&mut self, local: &mut Local) {
        if self.held.is_some() {
            self.deliver_held(local, true);
        }
    }
}

impl<Q: IngressQueue + 'static> QueueTask for NetTask<Q> {
    fn port(&self) -> &Arc<Port> {
        &self.port
    }

    fn queue(&mut self) -> &mut dyn IngressQueue {
        &mut self.queue
    }
}

/// The egress queues that a port of the host has lent to its port, and the ingress queues that it has lent to
/// the I/O cores. Dropping it takes them back.
pub struct Pairs<I, E> {
    egress: Vec<Lease<E>>,
    ingress: Vec<Lease<I>>,
}

impl<I, E> Default for Pairs<I, E> {
    fn default() -> Self {
        Pairs { egress: Vec::new(), ingress: Vec::new() }
    }
}

impl<I: IngressQueue + 'static, E: EgressQueue + 'static> Pairs<I, E> {
    /// Lends the next egress queue to `port`.
    pub fn receive(&mut self, port: &Arc<Port>, queue: E) {
        self.egress.push(port.lend(self.egress.len(), queue));
    }

    /// Has the I/O cores serve the next ingress queue of `port`.
    pub fn send(&mut self, port: &Arc<Port>, scheduler: &Arc<dyn Scheduler>, queue: I) {
        self.ingress.push(scheduler.serve(port, self.ingress.len(), queue));
    }
}

impl<I, E> Pairs<I, E> {
    /// Takes all back, egress first, so that the link goes down before frames cease to come. No core uses any
    /// of them when this returns.
    pub fn take_back(&mut self) {
        self.end_receiving();
        self.ingress.clear();
    }

    /// Takes the egress queues back.
    pub fn end_receiving(&mut self) {
        // Queue 0 is the link: it goes last.
        while self.egress.pop().is_some() {}
    }
}

impl<I, E> Drop for Pairs<I, E> {
    fn drop(&mut self) {
        self.take_back();
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod turns_tests;
