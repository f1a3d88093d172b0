//! A ring of requests as a task of an I/O core: take, check, carry out, give back.
//!
//! Theory of operation. A request is taken from the ring for good and gets a *slot*, which it has until it is given back: its
//! job, the place of its status, when it was taken. Checked requests *wait* in the order in which they came; there are never
//! more than [`AHEAD`] of them, so what a visit leaves undone is bounded. From there a disk in memory carries them out, part by
//! part as the budget allows; the kernel gets them all at once, and tells later which are over. Whatever is over by the end of
//! a visit becomes visible to the guest with one store.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::virtio::blk::status;

use super::request::{self, status_of, Limits, Verdict};
use crate::core::{Budget, End, Owner, Task, Visit};
use crate::disk::{Disk, Ended, Job, Medium, Op, Trouble};
use crate::fault::Fault;
use crate::mem::{ticks, ticks_in, Begun, Piece, Pieces, Transfers, BATCH_PIECES};
use crate::port::Port;
use crate::virtq::{Position, Queue, Request, Token};

/// Requests that are taken ahead of what is done with them.
const AHEAD: usize = 16;

/// A request that was taken.
struct Slot {
    token: Token,
    job: Job,
    status: Piece,
    /// What it counts as.
    kind: usize,
    /// Bytes of data.
    len: u64,
    /// Bytes from the first writable one on that the device writes if it goes well, and if it does not (§2.7.8.2): the status
    /// byte counts where nothing unwritten stands before it.
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
    slots: Vec<Slot>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
    pieces: Pieces,
    picked: Vec<Request>,
    /// Ticks of a nanosecond, in 2⁻³².
    rate: u64,
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
        let second = u128::from(ticks_in(Duration::from_secs(1)));
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
            pieces: Pieces::new(BATCH_PIECES),
            picked: Vec::with_capacity(AHEAD),
            rate: u64::try_from((second << 32) / 1_000_000_000).unwrap_or(u64::MAX),
            stopped: false,
        }
    }

    /// Ends what was taken, however long the disk takes for it, and says where the ring stands then. Not for I/O cores.
    pub fn close(mut self) -> Position {
        const ALL: Budget = Budget { items: usize::MAX, bytes: u64::MAX, ns: u64::MAX };
        let mut turn = Turn::default();
        loop {
            self.reap(&mut turn);
            self.work(ALL, ticks(), u64::MAX, &mut turn);
            turn.bytes = 0;
            match &mut self.way {
                Some(way) if way.under_way() > 0 => way.wait(),
                _ => break,
            }
        }
        // None is left, unless the kernel takes nothing any more.
        while let Some(at) = self.waiting.pop_front() {
            self.finish(at, Err(Trouble::Failed), &mut turn);
        }
        self.publish(&turn);
        self.queue.position()
    }

    fn stop(&mut self, fault: Fault) {
        self.stopped = true;
        // A ring that reads as zeros finds all kinds of faults: this is their cause.
        let lost = self.queue.is_truncated();
        self.port.fault.set(if lost { Fault::MemoryTruncated } else { fault });
    }

    /// Takes up to `want` requests, and has those wait that are sound. Returns how many there were.
    fn take(&mut self, want: usize, turn: &mut Turn) -> usize {
        self.pieces.clear();
        self.picked.clear();
        // Those before a bad one were taken.
        let fault = self.queue.pick(want, &mut self.pieces, &mut self.picked).err();
        let now = ticks();
        self.limits.capacity = self.disk.capacity();
        for place in 0..self.picked.len() {
            if let Some(picked) = self.picked.get(place).copied() {
                self.accept(picked, now, turn);
            }
        }
        turn.items += self.picked.len();
        if let Some(fault) = fault {
            self.stop(fault);
        }
        self.picked.len()
    }

    /// Checks one request.
    fn accept(&mut self, picked: Request, now: u64, turn: &mut Turn) {
        let Request { token, start, readable, writable, write_len, .. } = picked;
        let (readable, writable) = (usize::from(readable), usize::from(writable));
        let list = self.pieces.range_mut(start as usize, readable + writable);
        let (readable, writable) = list.split_at_mut(readable.min(list.len()));
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            let (job, whole) = (Job::default(), Vec::new());
            self.slots.push(Slot {
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
            Verdict::Bad(trouble) => self.finish(at, Err(trouble), turn),
        }
    }

    /// Has what waits carried out. Why it stopped, if it did not come to the end of it.
    fn work(&mut self, budget: Budget, begun: u64, time: u64, turn: &mut Turn) -> Option<End> {
        match self.way {
            Some(_) => self.ask(budget, begun, time, turn),
            None => self.carry_out(budget, begun, time, turn),
        }
    }

    /// Gives the kernel what waits, and learns what it has done, some of it at once: memory is copied by whoever submits.
    fn ask(&mut self, budget: Budget, begun: u64, time: u64, turn: &mut Turn) -> Option<End> {
        let lasting = self.disk.is_write_through();
        let disk = Arc::clone(&self.disk);
        let (mut end, mut submitted) = (None, turn.bytes);
        while let Some(&at) = self.waiting.front() {
            if turn.bytes >= budget.bytes {
                end = Some(End::Budget);
                break;
            }
            let (Medium::File(file), Some(way)) = (&disk.medium, &mut self.way) else { break };
            if turn.bytes - submitted >= way.most() {
                way.submit();
                submitted = turn.bytes;
            }
            if ticks().wrapping_sub(begun) > time {
                end = Some(End::Time);
                break;
            }
            let job = &mut self.slots[at].job;
            match file.begin(way, at, job, lasting) {
                Ok(Begun::Yes) => turn.bytes += job.left().min(way.most()),
                Ok(Begun::NotNow) => {
                    end = Some(End::Waits);
                    break;
                }
                Ok(Begun::Over) => self.finish(at, Ok(()), turn),
                Err(trouble) => self.finish(at, Err(trouble), turn),
            }
            self.waiting.pop_front();
        }
        if let Some(way) = &mut self.way {
            way.submit();
        }
        self.reap(turn);
        end
    }

    /// Learns what the kernel has done.
    fn reap(&mut self, turn: &mut Turn) {
        let disk = Arc::clone(&self.disk);
        let Medium::File(file) = &disk.medium else { return };
        while let Some((at, result)) = self.way.as_mut().and_then(Transfers::next_over) {
            match file.over(&mut self.slots[at].job, result) {
                Some(result) => self.finish(at, result, turn),
                None => self.waiting.push_front(at),
            }
        }
    }

    /// Requests that may be taken: the kernel has so many at most.
    fn room(&self) -> usize {
        let taken = self.slots.len() - self.free.len();
        match self.way.as_ref() {
            Some(way) => way.depth().saturating_sub(taken),
            None => AHEAD.saturating_sub(taken),
        }
    }

    /// Whether something could be done now.
    fn is_ready(&mut self) -> bool {
        let stuck = self.way.as_ref().is_some_and(|way| way.under_way() > 0);
        self.way.as_mut().is_some_and(Transfers::has_news)
            || !self.waiting.is_empty() && !stuck
            || self.room() > 0 && !self.queue.is_empty()
    }

    /// Carries out what waits, in memory.
    fn carry_out(&mut self, budget: Budget, begun: u64, time: u64, turn: &mut Turn) -> Option<End> {
        while let Some(&at) = self.waiting.front() {
            if turn.bytes >= budget.bytes {
                return Some(End::Budget);
            }
            if ticks().wrapping_sub(begun) > time {
                return Some(End::Time);
            }
            let job = &mut self.slots[at].job;
            turn.bytes += self.disk.step(job, budget.bytes - turn.bytes);
            if job.is_done() {
                self.waiting.pop_front();
                self.finish(at, Ok(()), turn);
            }
        }
        None
    }

    /// Gives the request in slot `at` back: visible with the next `publish`.
    fn finish(&mut self, at: usize, result: Result<(), Trouble>, turn: &mut Turn) {
        let slot = &mut self.slots[at];
        slot.status.write(&[result.map_or_else(status_of, |()| status::OK)]);
        self.queue.log_written(&slot.whole, u32::MAX);
        let written = slot.writes[usize::from(result.is_err())];
        self.queue.finish(slot.token, written);
        turn.finished += 1;
        let stats = self.disk.queue(self.index);
        match result {
            Ok(()) => {
                let passed = u128::from(ticks().wrapping_sub(slot.begun)) << 32;
                let ns = u64::try_from(passed / u128::from(self.rate.max(1))).unwrap_or(u64::MAX);
                stats.ended(Ended { kind: slot.kind, bytes: slot.len, ns });
            }
            Err(trouble) => stats.failed(trouble),
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
            self.port.told.ingress(self.index, 1, interrupted.into());
        }
        stats.set_in_flight(self.slots.len() - self.free.len());
    }

    fn serve(&mut self, budget: Budget) -> Visit {
        if self.stopped {
            return Visit::default();
        }
        let (mut turn, begun) = (Turn::default(), ticks());
        let time = u64::try_from((u128::from(budget.ns) * u128::from(self.rate)) >> 32).unwrap_or(u64::MAX);
        self.reap(&mut turn);
        let end = loop {
            if let Some(end) = self.work(budget, begun, time, &mut turn) {
                break end;
            }
            let want = budget.items.saturating_sub(turn.items).min(AHEAD);
            if want == 0 {
                break End::Budget;
            }
            let want = want.min(self.room());
            if want == 0 {
                break End::Waits;
            }
            if self.stopped || self.take(want, &mut turn) == 0 {
                break End::Drained;
            }
        };
        self.publish(&turn);
        if self.queue.is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
        // A part of a long request is work, too.
        let moved = turn.finished.max(u64::from(turn.bytes > 0));
        Visit { moved, items: turn.items, bytes: turn.bytes, cost: turn.items, elsewhere_ns: 0, end }
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
        !self.stopped && self.is_ready()
    }

    fn visit(&mut self, _: &mut L, budget: Budget) -> Visit {
        self.serve(budget)
    }

    fn arm(&mut self) -> bool {
        // The kick comes first: what is made available behind it is seen.
        !self.stopped && (self.queue.want_kicks(true) && self.room() > 0 || self.is_ready())
    }

    fn disarm(&mut self) {
        if !self.stopped {
            self.queue.want_kicks(false);
        }
    }

    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>)) {
        if !self.stopped {
            self.kick.iter().for_each(|kick| each(kick.as_fd()));
            self.way.iter().filter_map(Transfers::event).for_each(each);
        }
    }

    fn next_look(&self) -> Option<Duration> {
        None
    }

    fn woken(&mut self, _: &mut L) {
        self.disk.queue(self.index).kicked();
    }

    fn settle(&mut self, _: &mut L) {}
}
