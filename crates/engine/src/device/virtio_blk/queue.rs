//! A ring of requests as a task of an I/O core: take, check, carry out, give back.
//!
//! Theory of operation. A request is taken from the ring for good and gets a *slot*, which it has until it is
//! given back: its job, the place of its status, when it was taken. Checked requests *wait* in the order in
//! which they came; there are never more than [`AHEAD`] of them, so what a visit leaves undone is bounded.
//! From there a disk in memory carries them out, part by part as the budget allows; the kernel gets them all
//! at once, and tells later which are over. Those that need a worker of the kernel's, or the end of a flush,
//! leave that line for one at their [`Gate`], and the others pass. Whatever is over by the end of a visit
//! becomes visible to the guest with one store.
//!
//! A visit is bounded in time, too, where pages of the guest may have to be found or cleared ([`Deadline`]):
//! before a request is read, before the kernel gets a part of one (it copies or pins the pages within that
//! system call), and before what was read is brought back from a buffer of ours. What takes too long is gone
//! on with in the next visit.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_abi::virtio::blk::status;

use super::request::{self, status_of, Limits, Verdict};
use crate::core::{Budget, Owner, Task, Visit, VisitEnd};
use crate::disk::{Disk, Ended, Gate, Job, Medium, Op, RequestError};
use crate::mem::{ticks, ticks_in, Act, Begun, Deadline, Piece, Pieces, Transfers, BATCH_PIECES};
use crate::port::Port;
use crate::util::fault::Fault;
use crate::virtq::{Position, Queue, Request, Token};

/// Requests that are taken ahead of what is done with them.
const AHEAD: usize = 16;
/// A look at the pages of one request has so long, however little is left of a visit: some 400 at most, which
/// take a tenth of it where they are there.
const LOOK: Duration = Duration::from_micros(100);

/// How long at least and at most a flush that waits for one of another queue sleeps before it looks whether
/// that is over.
const FLUSH_LOOK: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];
/// How long a ring that is taken back waits for the flush of another one.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

/// A request that was taken.
struct TakenRequest {
    token: Token,
    job: Job,
    status: Piece,
    /// What it counts as.
    kind: usize,
    /// Bytes of data.
    len: u64,
    /// Bytes from the first writable one on that the device writes if it goes well, and if it does not
    /// (§2.7.8.2): the status byte counts where nothing unwritten stands before it.
    writes: [u32; 2],
    /// When it was taken.
    begun: u64,
    /// What the device may write, for the dirty log; only while pages are logged.
    whole: Vec<Piece>,
}

/// What a visit has done so far.
#[derive(Default)]
struct Turn {
    items: usize,
    bytes: u64,
    finished: u64,
    /// What the clock said when it was read last.
    now: u64,
    /// A request was read, or pages were found: that is work, too.
    went_on: bool,
    /// Ticks of the host's own work on the file.
    hosts: u64,
}

impl Turn {
    /// Has the kernel begin what `way` has for it.
    fn submit(&mut self, way: &mut Transfers) {
        let begun = ticks();
        way.submit();
        self.hosts += ticks().wrapping_sub(begun);
    }
}

/// A ring of requests.
pub struct BlkQueue {
    port: Arc<Port>,
    disk: Arc<Disk>,
    index: usize,
    queue: Queue,
    /// The queue's way to a file.
    way: Option<Transfers>,
    kick: Option<OwnedFd>,
    limits: Limits,
    slots: Vec<TakenRequest>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
    /// Those that wait at a gate each, in the order of [`Gate::ALL`].
    gates: [VecDeque<usize>; Gate::ALL.len()],
    /// The kernel had no room for the next one.
    full: bool,
    /// A flush of ours is under way.
    flushes: bool,
    /// What was taken from the ring last, and how many of those have been read.
    pieces: Pieces,
    picked: Vec<Request>,
    read: usize,
    /// Ticks of a nanosecond, and nanoseconds of a tick, in 2⁻³²: the division is done once.
    rate: u64,
    ns: u64,
    /// [`LOOK`], in ticks.
    look: u64,
    stopped: bool,
}

impl BlkQueue {
    /// Ring `index` of a device of `port`, with requests checked against `limits`.
    pub fn new(
        port: Arc<Port>,
        disk: Arc<Disk>,
        index: usize,
        (queue, way): (Queue, Option<Transfers>),
        kick: Option<OwnedFd>,
        limits: Limits,
    ) -> BlkQueue {
        let second = u128::from(ticks_in(Duration::from_secs(1))).max(1);
        BlkQueue {
            port,
            disk,
            index,
            queue,
            way,
            kick,
            limits,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::with_capacity(AHEAD),
            gates: Default::default(),
            full: false,
            flushes: false,
            pieces: Pieces::new(BATCH_PIECES),
            picked: Vec::with_capacity(AHEAD),
            read: 0,
            rate: u64::try_from((second << 32) / 1_000_000_000).unwrap_or(u64::MAX),
            ns: u64::try_from((1_000_000_000 << 32) / second).unwrap_or(u64::MAX),
            look: ticks_in(LOOK),
            stopped: false,
        }
    }

    /// Ends what was taken, however long the disk takes for it, and says where the ring stands then. Not for
    /// I/O cores.
    pub fn close(mut self) -> Position {
        const ALL: Budget = Budget { items: usize::MAX, bytes: u64::MAX, ns: u64::MAX };
        let (mut turn, limit) = (Turn::default(), Instant::now() + FLUSH_PATIENCE);
        loop {
            turn.bytes = 0;
            self.reap(Deadline::NEVER, &mut turn);
            self.read(Deadline::NEVER, &mut turn);
            self.work(ALL, Deadline::NEVER, &mut turn);
            let waits = self.waits_for_another();
            match &mut self.way {
                Some(way) if way.under_way() > 0 => way.wait(),
                // Parts that were over at once; the next ones wait.
                _ if turn.bytes > 0 && !self.waiting.is_empty() => {}
                // A flush waits for another queue's, which that queue's core ends, unless the port has been
                // evicted from there.
                _ if waits && Instant::now() < limit => std::thread::sleep(FLUSH_LOOK[0]),
                _ => break,
            }
        }
        // None is left, unless the kernel takes nothing any more.
        let lines = self.gates.iter_mut().chain([&mut self.waiting]);
        for at in lines.flat_map(std::mem::take).collect::<Vec<_>>() {
            self.finish(at, Err(RequestError::Failed), &mut turn);
        }
        self.publish(&turn);
        self.queue.position()
    }

    fn stop(&mut self, fault: Fault) {
        self.stopped = true;
        self.port.fault.set_unless(self.queue.is_truncated(), fault);
    }

    /// Takes up to `want` requests from the ring, to be read. Returns how many there were.
    fn take(&mut self, want: usize, turn: &mut Turn) -> usize {
        self.pieces.clear();
        self.picked.clear();
        self.read = 0;
        // Those before a bad one were taken.
        if let Err(fault) = self.queue.pick(want, &mut self.pieces, &mut self.picked) {
            self.stop(fault);
        }
        turn.items += self.picked.len();
        self.picked.len()
    }

    /// Requests that were taken and not read.
    fn unread(&self) -> usize {
        self.picked.len() - self.read
    }

    /// Reads what was taken, and has those wait that are sound; false if time is up. One is read at least, or
    /// pages of one were found.
    fn read(&mut self, deadline: Deadline, turn: &mut Turn) -> bool {
        self.limits.capacity = self.disk.capacity();
        let mut now = ticks();
        while let Some(picked) = self.picked.get(self.read).copied() {
            turn.went_on = true;
            if !self.accept(picked, now, deadline, turn) {
                return false;
            }
            self.read += 1;
            now = ticks();
            if deadline.is_over_at(now) {
                return false;
            }
        }
        true
    }

    /// Checks one request; false if it takes too long to have its pages found.
    fn accept(&mut self, picked: Request, now: u64, deadline: Deadline, turn: &mut Turn) -> bool {
        let Request { token, start, readable, writable, write_len, .. } = picked;
        let (readable, writable) = (usize::from(readable), usize::from(writable));
        let list = self.pieces.range_mut(start as usize, readable + writable);
        let (readable, writable) = list.split_at_mut(readable.min(list.len()));
        if !request::find(readable, writable, deadline) {
            return false;
        }
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            let (job, whole) = (Job::default(), Vec::new());
            self.slots.push(TakenRequest {
                token,
                job,
                status: Piece::EMPTY,
                kind: 0,
                len: 0,
                writes: [0; 2],
                begun: 0,
                whole,
            });
        }
        let slot = &mut self.slots[at];
        let alone = u32::from(write_len == 1);
        (slot.token, slot.begun, slot.writes) = (token, now, [alone; 2]);
        slot.whole.clear();
        if self.queue.logs() {
            slot.whole.extend_from_slice(writable);
        }
        let (status, verdict) = request::read(readable, writable, &self.limits, &mut slot.job);
        slot.status = status.unwrap_or(Piece::EMPTY);
        slot.len = slot.job.left();
        match verdict {
            Verdict::Job => {
                slot.kind = match slot.job.op {
                    Op::Read => {
                        slot.writes[0] = write_len;
                        0
                    }
                    Op::Write => 1,
                    Op::Flush => 2,
                    Op::Discard => 3,
                    Op::WriteZeroes => 4,
                };
                self.waiting.push_back(at);
            }
            Verdict::Done(written) => {
                (slot.kind, slot.len, slot.writes[0]) = (5, 0, written + 1);
                self.finish(at, Ok(()), turn);
            }
            Verdict::Bad(error) => self.finish(at, Err(error), turn),
        }
        true
    }

    /// The gate that lets its first request begin, if there is one.
    fn open_gate(&self) -> Option<usize> {
        let (Medium::File(file), Some(way)) = (&self.disk.medium, &self.way) else { return None };
        let admits = |(gate, line): (&Gate, &VecDeque<usize>)| {
            line.front().is_some_and(|at| file.admits(*gate, &self.slots[*at].job, way))
        };
        Gate::ALL.iter().zip(&self.gates).position(admits)
    }

    /// The next request that can begin, and the gate at which it waits, if it does. Those before it that
    /// cannot go to theirs.
    fn next(&mut self) -> Option<(usize, Option<usize>)> {
        loop {
            if let Some(gate) = self.open_gate() {
                return Some((*self.gates[gate].front()?, Some(gate)));
            }
            let at = *self.waiting.front()?;
            let job = &mut self.slots[at].job;
            let gate = match &self.disk.medium {
                Medium::File(file) if !self.disk.steps(job) => file.gate(job),
                _ => None,
            };
            let Some(gate) = gate else { return Some((at, None)) };
            self.waiting.pop_front();
            self.gates[gate as usize].push_back(at);
        }
    }

    /// Has what waits carried out, one part of it at least: in memory, or by the kernel, which may do it at
    /// once. Why it stopped, if it did not come to the end of it, or to the end of its time with that.
    fn work(&mut self, budget: Budget, deadline: Deadline, turn: &mut Turn) -> Option<VisitEnd> {
        let lasting = self.disk.is_write_through();
        self.full = false;
        let disk = Arc::clone(&self.disk);
        let (mut end, mut submitted, mut time) = (None, turn.bytes, deadline);
        while let Some((at, gate)) = self.next() {
            if turn.bytes >= budget.bytes {
                end = Some(VisitEnd::Budget);
                break;
            }
            let job = &mut self.slots[at].job;
            if disk.steps(job) {
                turn.bytes += disk.step(job, budget.bytes - turn.bytes, deadline);
                if job.is_done() {
                    self.waiting.pop_front();
                    self.finish(at, Ok(()), turn);
                } else {
                    turn.now = ticks();
                }
                if deadline.is_over_at(turn.now) {
                    end = Some(VisitEnd::Time);
                    break;
                }
                continue;
            }
            let (Medium::File(file), Some(way)) = (&disk.medium, &mut self.way) else { break };
            if turn.bytes - submitted >= way.most() || way.pushed() >= file.most_at_once() {
                turn.submit(way);
                submitted = turn.bytes;
            }
            // The first is begun in any case, if a look at its pages is enough.
            let in_time = match job.pieces() {
                [] => !time.is_strict() || !time.is_over(),
                pieces => time.find(pieces, job.left().min(way.most())),
            };
            if !in_time {
                turn.went_on = true;
                end = Some(VisitEnd::Time);
                break;
            }
            time = deadline.strict();
            match file.begin(way, at, job, lasting) {
                Ok(Begun::Yes) => {
                    self.flushes |= job.op == Op::Flush;
                    turn.bytes += job.left().min(way.most());
                }
                // Another queue's flush was first.
                Ok(Begun::NotNow) if gate.is_some() && self.open_gate() != gate => continue,
                Ok(Begun::NotNow) => {
                    self.full = true;
                    end = Some(VisitEnd::Waits);
                    break;
                }
                Ok(Begun::Over) => self.finish(at, Ok(()), turn),
                Err(error) => self.finish(at, Err(error), turn),
            }
            gate.map_or(&mut self.waiting, |gate| &mut self.gates[gate]).pop_front();
        }
        if let Some(way) = &mut self.way {
            turn.submit(way);
        }
        self.reap(deadline, turn);
        end
    }

    /// Learns what the kernel has done, of one request at least.
    fn reap(&mut self, deadline: Deadline, turn: &mut Turn) {
        let disk = Arc::clone(&self.disk);
        let Medium::File(file) = &disk.medium else { return };
        while let Some((at, result)) = self.way.as_mut().and_then(|way| way.next_over(deadline)) {
            let job = &mut self.slots[at].job;
            // There is one at a time.
            self.flushes &= job.op != Op::Flush;
            match file.over(job, result) {
                Some(result) => self.finish(at, result, turn),
                None => {
                    match job.op {
                        Op::Read | Op::Write => self.waiting.push_front(at),
                        // Others have their turns between its pieces.
                        Op::Flush | Op::Discard | Op::WriteZeroes => self.waiting.push_back(at),
                    }
                    turn.now = ticks();
                }
            }
            if deadline.is_over_at(turn.now) {
                break;
            }
        }
    }

    /// Requests that may be taken while none is unread: the kernel has no more than that.
    fn room(&self) -> usize {
        let taken = self.slots.len() - self.free.len();
        match self.way.as_ref() {
            Some(way) => way.depth().saturating_sub(taken),
            None => AHEAD.saturating_sub(taken),
        }
    }

    /// A flush waits for another queue's.
    fn waits_for_another(&self) -> bool {
        !self.gates[Gate::Flushes as usize].is_empty() && !self.flushes && !self.stopped
    }

    /// Nothing can begin before something is over.
    fn is_stuck(&self) -> bool {
        self.full && self.way.as_ref().is_some_and(|way| way.under_way() > 0)
    }

    /// Whether something could be done now.
    fn is_ready(&mut self) -> bool {
        if self.way.as_mut().is_some_and(|way| way.has_news()) {
            return true;
        }
        !self.stopped
            && !self.is_stuck()
            && (!self.waiting.is_empty()
                || self.unread() > 0
                || self.open_gate().is_some()
                || self.room() > 0 && !self.queue.is_empty())
    }

    /// Nanoseconds from when the request in slot `at` was taken until `now`.
    fn age(&self, at: usize, now: u64) -> u64 {
        let passed = u128::from(now.wrapping_sub(self.slots[at].begun)) * u128::from(self.ns);
        u64::try_from(passed >> 32).unwrap_or(u64::MAX)
    }

    /// Gives the request in slot `at` back: visible with the next `publish`.
    fn finish(&mut self, at: usize, result: Result<(), RequestError>, turn: &mut Turn) {
        let slot = &self.slots[at];
        slot.status.write(&[result.map_or_else(status_of, |()| status::OK)]);
        self.queue.log_written(&slot.whole, u32::MAX);
        let written = slot.writes[usize::from(result.is_err())];
        self.queue.finish(slot.token, written);
        (turn.finished, turn.now) = (turn.finished + 1, ticks());
        let stats = self.disk.queue(self.index);
        match result {
            Ok(()) => {
                stats.ended(Ended { kind: slot.kind, bytes: slot.len, ns: self.age(at, turn.now) });
            }
            Err(error) => stats.failed(error),
        }
        self.free.push(at);
    }

    /// Shows the guest what is over.
    fn publish(&mut self, turn: &Turn) {
        let stats = self.disk.queue(self.index);
        if turn.finished > 0 {
            let interrupted = self.queue.publish();
            if interrupted {
                stats.interrupted();
            }
            self.port.interrupts.ingress(self.index, 1, interrupted.into());
        }
        stats.set_in_flight(self.slots.len() - self.free.len() + self.unread());
    }

    fn serve(&mut self, budget: Budget) -> Visit {
        let (mut turn, begun) = (Turn::default(), ticks());
        let time = u64::try_from((u128::from(budget.ns) * u128::from(self.rate)) >> 32).unwrap_or(u64::MAX);
        let deadline = Deadline::new(begun, time, self.look);
        // After a stop, too: flushes of other queues may wait for one of this ring.
        self.reap(deadline, &mut turn);
        if self.stopped {
            self.way.iter_mut().for_each(|way| way.submit());
            return Visit::default();
        }
        let end = loop {
            if let Some(end) = self.work(budget, deadline, &mut turn) {
                break end;
            }
            if self.unread() == 0 {
                let want = budget.items.saturating_sub(turn.items).min(AHEAD);
                if want == 0 {
                    break VisitEnd::Budget;
                }
                let want = want.min(self.room());
                if want == 0 {
                    break VisitEnd::Waits;
                }
                if self.stopped || self.take(want, &mut turn) == 0 {
                    break VisitEnd::Drained;
                }
            }
            if !self.read(deadline, &mut turn) {
                break VisitEnd::Time;
            }
        };
        self.publish(&turn);
        if self.queue.is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
        // All of it but the host's own work on the file may have waited for the guest's pages.
        self.port.overrun.took(Act::Touch, begun.wrapping_add(turn.hosts));
        // A part of a long request is work, too.
        let moved = turn.finished.max(u64::from(turn.bytes > 0 || turn.went_on));
        Visit { moved, items: turn.items, bytes: turn.bytes, cost: turn.items, others_ns: 0, end }
    }
}

impl<L> Task<L> for BlkQueue {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.port) as Arc<dyn Owner>
    }

    fn index(&self) -> usize {
        self.index
    }

    fn has_work(&mut self) -> bool {
        self.is_ready()
    }

    fn visit(&mut self, _: &mut L, budget: Budget) -> Visit {
        self.serve(budget)
    }

    fn arm(&mut self) -> bool {
        // The kick comes first: what is made available behind it is seen. While nothing can be taken, what is
        // over wakes us.
        let takes = !self.stopped && !self.is_stuck() && self.room() > 0;
        takes && self.queue.want_kicks(true) || self.is_ready()
    }

    fn disarm(&mut self) {
        if !self.stopped {
            self.queue.want_kicks(false);
        }
    }

    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>)) {
        if !self.stopped {
            self.kick.iter().for_each(|kick| each(kick.as_fd()));
        }
        // After a stop, too, until all is over.
        let way = self.way.iter().filter(|way| !self.stopped || way.under_way() > 0);
        way.map(|way| way.event()).for_each(each);
    }

    fn next_look(&self) -> Option<Duration> {
        let first = *self.gates[Gate::Flushes as usize].front().filter(|_| self.waits_for_another())?;
        // It has waited for a while, and waits for a part of that more.
        Some(Duration::from_nanos(self.age(first, ticks()) / 4).clamp(FLUSH_LOOK[0], FLUSH_LOOK[1]))
    }

    fn woken(&mut self, _: &mut L) {
        self.disk.queue(self.index).kicked();
    }

    fn settle(&mut self, _: &mut L) {}
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
