//! The guest's receive ring: frames in, descriptors filled.
//!
//! Three formats (8254x SDM §3.2.3; 82574 §7.1.5, §7.1.6): legacy; extended (`RFCTL.EXTEN`), where the
//! write-back replaces the address; and packet split (`RCTL.DTYP`), with four buffers in a descriptor of
//! twice the size. In all of them the status word with DD is stored last and with release order, so a driver
//! that sees it sees the frame. A frame that is longer than a descriptor's buffers goes on in the next one;
//! descriptors are collected until it fits, and only then is anything written. A receiver that makes no
//! progress is not written to at all: once its ring is full, frames are dropped before their bytes are
//! touched.
//!
//! For speed: buffers are looked up [`AHEAD`] descriptors at a time, so that their lines are on their way
//! before the copy; descriptors are marked done together behind the copies, each of their lines once;
//! registers are read once a batch, and the head is written once.
//!
//! A descriptor without a buffer address is used up without data (8254x SDM §3.2.3): Linux's e1000e leaves
//! such a ring behind while it shuts down.

mod rules;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use self::rules::{admit, words, Rules};
use super::irq::Delay;
use super::journal::{RingJournal, MAX_ENTRIES};
use super::regs::{self, ring, rx, RX_RINGS};
use super::ring::Ring;
use super::shared::NicState;
use super::stats::{self, Frames};
use crate::device::packet::MIN_PADDED;
use crate::device::source::{tag, FrameBytes, Shortage};
use crate::mem::{prefetch_own, GuestMap, Piece};
use crate::packet::{Batch, Frame};
use crate::port::{DropReason, Outcome, Room};
use crate::util::slice::behind;

/// Most descriptors of one frame: 16 KiB in buffers of 256 bytes, and some without an address.
const MAX_DESCRIPTORS: usize = 96;
/// Descriptors that are looked at before their buffers are needed.
const AHEAD: u32 = 64;
/// Descriptors that are marked done together at most.
const FILLED: usize = 256;
/// Marks a place in `RxRing::filled` as the second half of a packet split descriptor.
const SECOND: u32 = 1 << 31;

/// A guest's receive ring.
pub(super) struct RxRing {
    nic: Arc<NicState>,
    /// Which of the device's it is.
    queue: usize,
    ring: Ring,
    hint: usize,
    /// The descriptors of the frame at hand: places and first addresses.
    found: Vec<(u32, u64)>,
    /// Buffers of the descriptors from `ahead_at` places behind the head on: asked for before they are
    /// needed. Empty where there is none, or none that can be reached.
    ahead: Vec<Piece>,
    ahead_at: u32,
    /// The receive interrupt that the guest is serving, and the descriptors that it got meanwhile.
    service: (u64, u32),
    /// Descriptors that are filled in and not yet marked so: places and words.
    filled: Vec<(u32, [u64; 2])>,
}

impl RxRing {
    pub(super) fn new(nic: Arc<NicState>, queue: usize, map: &Arc<GuestMap>, journal: RingJournal) -> RxRing {
        RxRing {
            ring: Ring::new(RX_RINGS[queue], map, nic.csb, journal),
            nic,
            queue,
            hint: 0,
            found: Vec::with_capacity(MAX_DESCRIPTORS),
            ahead: Vec::with_capacity(AHEAD as usize),
            ahead_at: 0,
            service: (0, 0),
            filled: Vec::with_capacity(MAX_ENTRIES),
        }
    }

    /// The receiver is turned off.
    pub(super) fn rest(&mut self) {
        self.ring.rest(&self.nic.regs);
    }

    /// The device was reset.
    pub(super) fn reset(&mut self) {
        self.ring.forget();
    }

    /// From now on descriptors and buffers lie in `map`.
    pub(super) fn set_map(&mut self, map: &Arc<GuestMap>) {
        self.ring.remap(map);
        self.hint = 0;
    }

    fn avail(&mut self) -> u32 {
        if self.ring.stopped {
            return 0;
        }
        let found = self.ring.poll(&self.nic.regs, &self.nic.bad_tails);
        self.ring.checked(&self.nic.port, found).unwrap_or(0)
    }

    /// Descriptors that the guest may get now: one ring while it serves an interrupt, if receiving has a
    /// share of its time.
    fn allowed(&mut self) -> u32 {
        let Some(service) = self.nic.irq.service(self.queue) else { return u32::MAX };
        if self.service.0 != service {
            self.service = (service, 0);
        }
        self.ring.size.saturating_sub(self.service.1)
    }

    /// Looks at descriptors from `used` places behind the head on and asks the cache for their buffers.
    fn look_ahead(&mut self, used: u32, avail: u32, size: u32) {
        self.ahead_at = used;
        self.ahead.clear();
        let end = avail.min(used + AHEAD);
        if used == 0 {
            self.ring.prefetch(0, end);
        }
        self.ring.prefetch(end, (avail - end).min(AHEAD));
        let map = Arc::as_ref(&self.ring.map);
        for at in used..end {
            let address = self.ring.table.load(2 * self.ring.place(at) as usize);
            let piece = if address == 0 { None } else { map.translate(address, size, &mut self.hint) };
            let piece = piece.unwrap_or(Piece::EMPTY);
            prefetch_own(piece.as_ptr());
            self.ahead.push(piece);
        }
    }

    /// Fills the next descriptor with a frame as nearly all are: nothing to take out or to pad, and it fits
    /// one buffer. False: it is something else, and nothing has been done.
    #[inline]
    fn fill_plain(
        &mut self,
        rules: &Rules,
        frame: &Frame,
        body: &[Piece],
        (used, avail): (u32, u32),
        mark: u64,
    ) -> bool {
        let need = frame.len + rules.fcs;
        if need > rules.layout.buffers[0] || rules.layout.step != 1 || frame.len < MIN_PADDED {
            return false;
        }
        if used.wrapping_sub(self.ahead_at) as usize >= self.ahead.len() {
            self.look_ahead(used, avail, rules.layout.buffers[0]);
        }
        let Some(mut to) = self.ahead.get((used - self.ahead_at) as usize).copied() else { return false };
        if to.is_empty() {
            return false;
        }
        to.write(frame.head());
        if !body.is_empty() {
            to.advance(frame.head_len());
            for piece in body {
                to.advance(to.write_from(piece));
            }
        }
        let status = rules.checksums(frame) | rx::EOP | rx::DD;
        let words = words(rules.layout.extended, u64::from(need), mark, (status, 0));
        self.filled.push((self.ring.place(used), words));
        true
    }

    /// Fills descriptors from `used` places behind the head on with any frame; returns how many places it
    /// took.
    #[inline(never)]
    fn fill(
        &mut self,
        rules: &Rules,
        source: &mut FrameBytes,
        (used, avail): (u32, u32),
        (status, special): (u64, u64),
        mark: u64,
    ) -> Result<u32, Shortage> {
        let layout = &rules.layout;
        let need = source.len() + rules.fcs;
        // Pass 1: the descriptors, until the frame fits.
        self.found.clear();
        let (mut room, mut at) = (0, used);
        while room < need {
            if at + layout.step > avail {
                return Err(Shortage::Ring);
            }
            if self.found.len() == MAX_DESCRIPTORS {
                return Err(Shortage::Frame);
            }
            let place = self.ring.place(at);
            let address = self.ring.table.load(2 * place as usize);
            self.found.push((place, address));
            if address != 0 {
                room += layout.capacity();
            }
            at += layout.step;
        }
        // Pass 2: data.
        let mut left = need;
        for index in 0..self.found.len() {
            let (place, address) = self.found[index];
            let mut lens = [0u64; 4];
            for (index, size) in layout.buffers.iter().enumerate().filter(|(_, size)| **size > 0) {
                let part = left.min(*size);
                let address = match index {
                    0 => address,
                    // The other three addresses of a packet split descriptor.
                    1 => self.ring.table.load(2 * place as usize + 1),
                    _ => self.ring.table.load(2 * self.second(place) + index - 2),
                };
                if address == 0 || part == 0 {
                    if layout.step == 1 || index == 0 {
                        break;
                    }
                    continue;
                }
                source.copy_to(&self.ring.map, (address, part), &mut self.hint)?;
                lens[index] = u64::from(part);
                left -= part;
            }
            let last = if left == 0 { rx::EOP } else { 0 };
            let words = words(layout.extended, lens[0], mark, (status | last | rx::DD, special));
            self.filled.push((place, words));
            if layout.step == 2 {
                let upper = lens[1] << 16 | lens[2] << 32 | lens[3] << 48;
                self.filled.push((place | SECOND, [upper, 0]));
            }
        }
        Ok(at - used)
    }

    /// The ring place behind `place`: the second half of a packet split descriptor.
    fn second(&self, place: u32) -> usize {
        ((place + 1) % self.ring.size.max(1)) as usize
    }

    /// Marks what was filled in, `used` places from the head on, as done: the first one last. The driver sees
    /// none of them before it, and then all of them.
    fn write_back(&mut self, extended: bool, used: u32) {
        let Some((first, _)) = self.filled.first() else { return };
        let at = 2 * *first as usize;
        let before = [self.ring.table.load(at), self.ring.table.load(at + 1)];
        let head = self.ring.place(used);
        self.ring.own.journal.begin_receive(head, extended, before, &self.filled);
        for (place, words) in self.filled.iter().rev() {
            self.mark(extended, *place, *words);
        }
        self.ring.commit(head);
        self.ring.own.journal.end(None);
        self.filled.clear();
    }

    #[inline]
    fn mark(&self, extended: bool, place: u32, [first, second]: [u64; 2]) {
        if place & SECOND != 0 {
            return self.ring.table.publish(2 * self.second(place & !SECOND), first);
        }
        let at = 2 * place as usize;
        if extended {
            self.ring.table.publish(at, first);
        }
        self.ring.table.publish(at + 1, second);
    }

    /// Goes on where a former owner has ended, in memory that is known by now (`journal` says how).
    pub(super) fn recover(&mut self) {
        if self.ring.adopt(&self.nic.regs).is_none() {
            return;
        }
        let intent = self.ring.own.journal.intent().filter(|intent| intent.head != self.ring.head);
        if let Some(intent) = intent {
            let ahead = self.ring.look(&self.nic.regs);
            let (first, [mark, _]) = self.ring.own.journal.entry(0);
            let now = [2 * first as usize, 2 * first as usize + 1].map(|at| self.ring.table.load(at));
            let before = self.ring.own.journal.before();
            // The first word of an extended descriptor is written before the second one.
            let untouched = now[1] == before[1] && (now[0] == before[0] || intent.extended && now[0] == mark);
            if untouched && ahead.is_some_and(|ahead| ahead >= self.ring.distance(intent.head)) {
                for index in (0..intent.count).rev() {
                    let (place, words) = self.ring.own.journal.entry(index);
                    self.mark(intent.extended, place, words);
                }
            }
            self.ring.head = intent.head;
            self.ring.commit(intent.head);
        }
        self.ring.own.journal.end(None);
    }

    /// Raises the causes that follow from a batch: descriptors run low, frames were missed, frames came.
    fn interrupt(&mut self, free_before: u32, free: u32, rctl: u32, missed: bool, outcome: &mut Outcome) {
        let regs = &self.nic.regs;
        // RCTL.RDMTS: a half, a quarter, an eighth of the ring (8254x SDM §13.4.22).
        let threshold = self.ring.size >> (1 + (rctl >> 8 & 3)).min(3);
        let few = if free_before > threshold && free <= threshold { regs::RXDMT0 } else { 0 };
        let overrun = if missed { regs::RXO } else { 0 };
        let received = match free_before != free {
            true if self.nic.irq.by_queue() => regs::RXQ0 << self.queue,
            true => regs::RXT0,
            false => 0,
        };
        if few | overrun | received == 0 {
            return;
        }
        // RDTR and RADV are both rings' (82574 §10.2.5).
        let delay = |register| regs.get(regs::RX_RING + register);
        let delay = Delay::Receive(delay(ring::DELAY), delay(ring::ABSOLUTE_DELAY));
        outcome.occasions += 1;
        outcome.interrupts += self.nic.irq.raise(few | overrun, received, delay);
    }
}

impl RxRing {
    /// Delivers the frames `picks` of `batch`, as `EgressQueue::send` says. `mark(i)` is what the extended
    /// descriptor of `picks[i]` says of the choice of this ring: zero where RSS did not choose.
    pub(super) fn send(
        &mut self,
        batch: &Batch,
        picks: &[u16],
        mark: impl Fn(usize) -> u64,
        outcome: &mut Outcome,
    ) {
        let nic = Arc::clone(&self.nic);
        let regs = &nic.regs;
        let rules = Rules::new(&nic);
        let (layout, rctl) = (&rules.layout, rules.rctl);
        let free = self.avail();
        let allowed = self.allowed();
        let mut avail = free.min(allowed);
        let (before, from) = (free, self.ring.head);
        let mut used = 0;
        let mut missed = 0u64;
        let mut frames = Frames::default();
        self.ahead.clear();
        for (index, &pick) in picks.iter().enumerate() {
            if outcome.is_late(index) {
                outcome.dropped_all(behind(picks, index), DropReason::ReceiverBusy);
                break;
            }
            let mark = mark(index);
            let frame = batch.frame(pick);
            if self.ring.stopped {
                outcome.dropped(pick, DropReason::RingBroken);
                continue;
            }
            let tci = tag(frame, rules.vet);
            if let Err(reason) = admit(regs, rctl, frame, tci) {
                nic.stats.add(stats::OVERSIZE, u64::from(reason == DropReason::BufferTooSmall));
                outcome.dropped(pick, reason);
                continue;
            }
            if used + layout.step > avail {
                // The guest may have refilled the ring meanwhile. One that has not is not asked for every
                // frame, and nothing of a frame is touched that it has no place for.
                if missed == 0 {
                    avail = self.ring.more(regs, avail).min(allowed);
                }
                if used + layout.step > avail {
                    missed += 1;
                    outcome.dropped(pick, DropReason::RingFull);
                    continue;
                }
            }
            let body = batch.body(frame);
            let stripped = tci.filter(|_| rules.strip);
            if stripped.is_none() && self.fill_plain(&rules, frame, body, (used, avail), mark) {
                used += 1;
                frames.count(frame);
                outcome.delivered(frame.len);
                continue;
            }
            let vlan = if stripped.is_some() { rx::VP } else { 0 };
            let facts = (rules.checksums(frame) | vlan, u64::from(stripped.unwrap_or(0)));
            let source = || FrameBytes::new(frame, body, stripped.is_some());
            let whole = self.filled.len();
            let mut result = self.fill(&rules, &mut source(), (used, avail), facts, mark);
            if matches!(result, Err(Shortage::Ring)) && missed == 0 {
                avail = self.ring.more(regs, avail).min(allowed);
                result = self.fill(&rules, &mut source(), (used, avail), facts, mark);
            }
            match result {
                Ok(places) => {
                    used += places;
                    frames.count(frame);
                    outcome.delivered(frame.len);
                }
                Err(Shortage::Ring) => {
                    missed += 1;
                    outcome.dropped(pick, DropReason::RingFull);
                }
                Err(Shortage::Frame) => outcome.dropped(pick, DropReason::BufferTooSmall),
                Err(Shortage::Fault(fault)) => {
                    self.filled.truncate(whole);
                    self.ring.stop(&nic.port, fault);
                    outcome.dropped(pick, DropReason::RingBroken);
                }
            }
            if self.filled.len() >= FILLED {
                self.write_back(layout.extended, used);
            }
        }
        self.write_back(layout.extended, used);
        nic.stats.frames(stats::RX, &frames);
        nic.stats.add(stats::MISSED, missed);
        self.service.1 = self.service.1.saturating_add(used);
        if missed > 0 && avail == allowed {
            nic.irq.overloaded(self.queue);
        }
        if used > 0 {
            nic.received.store(true, Ordering::Relaxed);
            self.ring.advance(regs, used, used == avail);
        }
        let most = before.max(avail);
        if self.ring.block.wants_interrupt(from, self.ring.size) {
            self.interrupt(most, most - used, rctl, missed > 0, outcome);
        }
        self.ring.check_memory(&nic.port);
    }

    /// As `EgressQueue::is_full` says.
    pub(super) fn is_full(&mut self) -> bool {
        let full = self.avail() == 0 && !self.ring.stopped;
        let enough = self.allowed() == 0;
        if enough {
            self.nic.irq.overloaded(self.queue);
        }
        full || enough
    }

    /// As `EgressQueue::room` says.
    pub(super) fn room(&mut self) -> Option<Room> {
        let allowed = self.allowed();
        if allowed == 0 {
            // A sender that asks would have sent more.
            self.nic.irq.overloaded(self.queue);
        }
        let free = self.avail().min(allowed);
        (!self.ring.stopped).then_some(Room { free, size: self.ring.size.saturating_sub(1) })
    }
}
