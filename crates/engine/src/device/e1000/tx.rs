//! The guest's transmit ring: descriptors in, frames out.
//!
//! Theory of operation. A poll walks the descriptors between head and tail, packet by packet (8254x SDM
//! §3.3): context descriptors are remembered, legacy and data descriptors name buffers, EOP ends a packet,
//! of which `packet` then makes a frame. A packet whose EOP has not been written yet is left for later; one of
//! absurdly many descriptors or bytes is skipped to its EOP and dropped. When the batch has been delivered,
//! descriptors that asked for it (RS) are marked done, and the head moves. `transmitter` says when a ring is polled.

use std::sync::Arc;

use super::irq::Delay;
use super::journal::RingJournal;
use super::nic::NicState;
use super::packet::{Maker, Wishes};
use super::regs::{self, ring, tx, TX_RINGS};
use super::ring::Ring;
use super::stats::{self, Frames};
use crate::device::csb::Block;
use crate::device::packet::{add_buffer, add_plain, Attempt, MIN_PADDED};
use crate::fault::Fault;
use crate::mem::{GuestMap, Piece};
use crate::packet::{Batch, Gso, MAX_FRAME};
use crate::port::{DropReason, Tally};

/// Descriptors looked at in one poll.
const MAX_DESCRIPTORS: u32 = 1024;
/// Descriptors whose buffers are asked for before they are needed.
const AHEAD: u32 = 64;
/// Descriptors of one packet.
const MAX_CHAIN: u32 = 256;

/// A descriptor's second word when it is marked done.
fn done(word: u64) -> u64 {
    word & !tx::STATUS | tx::DD
}

/// A guest's transmit ring.
pub(super) struct TxRing {
    nic: Arc<NicState>,
    /// Which of the device's it is.
    queue: usize,
    ring: Ring,
    enabled: bool,
    stopped: bool,
    hint: usize,
    maker: Maker,
    /// Descriptors to be marked done: places and their second words.
    reports: Vec<(u32, u64)>,
    /// Descriptors given back since half a ring of them was reported, or the driver has looked.
    unreported: u32,
    taken_back: u64,
    /// Descriptors taken and not given back, and whether they were all that there were.
    taken: u32,
    idle: bool,
    /// In the middle of a packet that is too long.
    skipping: bool,
    /// Descriptors of a packet whose end has not been written yet.
    unfinished: u32,
}

impl TxRing {
    pub(super) fn new(nic: Arc<NicState>, queue: usize, map: Arc<GuestMap>, journal: RingJournal) -> TxRing {
        TxRing {
            ring: Ring::new(TX_RINGS[queue], map, nic.csb, journal),
            nic,
            queue,
            enabled: false,
            stopped: false,
            hint: 0,
            maker: Maker::new(),
            reports: Vec::with_capacity(MAX_DESCRIPTORS as usize),
            unreported: 0,
            taken_back: 0,
            taken: 0,
            idle: true,
            skipping: false,
            unfinished: 0,
        }
    }

    /// Turns the transmitter on or off.
    pub(super) fn enable(&mut self, on: bool) {
        if self.enabled && !on {
            // What was taken without a frame in it has not been given back yet.
            self.give_back(&mut Tally::default());
            self.ring.rest(&self.nic.regs);
        }
        self.enabled = on;
    }

    /// The device was reset.
    pub(super) fn reset(&mut self) {
        self.enabled = false;
        self.stopped = false;
        self.skipping = false;
        self.unfinished = 0;
        self.unreported = 0;
        self.taken = 0;
        self.reports.clear();
        self.maker.reset();
        self.ring.forget();
    }

    /// From now on descriptors and buffers lie in `map`.
    pub(super) fn set_map(&mut self, map: Arc<GuestMap>) {
        // Into the old memory, which is there until this returns.
        self.give_back(&mut Tally::default());
        self.ring.remap(map);
        self.hint = 0;
    }

    /// Goes on where a former owner has ended, in memory that is known by now (`journal` says how).
    pub(super) fn recover(&mut self) {
        if self.ring.adopt(&self.nic.regs).is_none() {
            return;
        }
        let intent = self.ring.journal.intent();
        let own = self.ring.journal.own(intent.is_some());
        self.skipping = self.maker.recall(own);
        if let Some(intent) = intent.filter(|intent| intent.head != self.ring.head) {
            let ahead = self.ring.look(&self.nic.regs).unwrap_or(0);
            // Less: the driver has filled some of them anew, so it has seen them.
            if ahead >= self.ring.distance(intent.head) {
                for (place, [word, _]) in (0..intent.count).map(|index| self.ring.journal.entry(index)) {
                    let at = 2 * place as usize + 1;
                    if self.ring.table.load(at) == word {
                        self.ring.table.publish(at, done(word));
                    }
                }
            }
            self.ring.head = intent.head;
            self.ring.commit(intent.head);
        }
        self.ring.journal.end(Some(own));
    }

    fn stop(&mut self, fault: Fault) {
        self.stopped = true;
        // A ring that reads as zeros finds all kinds of faults: this is their cause.
        let lost = self.ring.map().is_truncated();
        self.nic.port.fault.set(if lost { Fault::MemoryTruncated } else { fault });
    }

    /// Asks the cache for the buffers of the descriptors from `at` places behind the head on, and for the
    /// descriptors that come after those.
    fn look_ahead(&mut self, at: u32, avail: u32) {
        let end = avail.min(at + AHEAD);
        if at == 0 {
            self.ring.prefetch(0, end);
        }
        self.ring.prefetch(end, (avail - end).min(AHEAD));
        let map = Arc::as_ref(self.ring.map());
        for at in at..end {
            let address = self.ring.table.load(2 * self.ring.place(at) as usize);
            if let Some(piece) = map.translate(address, 1, &mut self.hint) {
                piece.prefetch(0);
            }
        }
    }

    /// Takes the packet `at` places behind the head if it is as nearly all are: one descriptor that asks for
    /// nothing but to be sent. False: it is something else, and nothing has been done.
    #[inline]
    fn plain(&mut self, batch: &mut Batch, at: u32, tagging: bool) -> bool {
        let place = self.ring.place(at);
        let word = self.ring.table.load(2 * place as usize + 1);
        let len = match word & (tx::DEXT | tx::DTYP_DATA) {
            tx::DEXT => return false,
            kind if kind & tx::DEXT == 0 => word & tx::LEGACY_LEN,
            _ => word & tx::LEN,
        };
        let tagged = tagging && word & tx::VLE != 0;
        let usual = (u64::from(MIN_PADDED)..=u64::from(MAX_FRAME)).contains(&len) && word & tx::EOP != 0;
        if !usual || tagged || Wishes::change_header(word) || self.skipping {
            return false;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_FRAME")]
        let len = len as u32;
        let buffer = self.ring.table.load(2 * place as usize);
        let Some(piece) = self.ring.map().translate(buffer, len, &mut self.hint) else { return false };
        let added = add_plain(batch, piece, len);
        if added && word & (tx::RS | tx::RPS) != 0 {
            self.reports.push((place, word));
        }
        added
    }

    /// Takes the packet that begins `at` places behind the head, whatever it is, and moves `at` behind it. There
    /// are `avail` descriptors.
    #[inline(never)]
    fn packet(&mut self, batch: &mut Batch, at: &mut u32, avail: u32) -> Result<Attempt, Fault> {
        let (reports, first) = (self.reports.len(), batch.pieces.len());
        let mut wishes = Wishes::default();
        let mut any = false;
        let mut len = 0;
        let mut ahead = *at;
        let mut room = true;
        while room && ahead < avail {
            let place = self.ring.place(ahead);
            let buffer = self.ring.table.load(2 * place as usize);
            let word = self.ring.table.load(2 * place as usize + 1);
            ahead += 1;
            if word & (tx::RS | tx::RPS) != 0 {
                self.reports.push((place, word));
            }
            let is_context = word & (tx::DEXT | tx::DTYP_DATA) == tx::DEXT;
            if is_context {
                self.maker.set_context(buffer, word);
                if !any {
                    *at = ahead;
                    return Ok(Attempt::Nothing);
                }
            }
            let mask = if word & tx::DEXT == 0 { tx::LEGACY_LEN } else { tx::LEN };
            #[expect(clippy::cast_possible_truncation, reason = "twenty bits at most")]
            let bytes = if is_context { 0 } else { (word & mask) as u32 };
            len += bytes;
            if self.skipping || len > MAX_FRAME || ahead - *at > MAX_CHAIN {
                batch.pieces.truncate(first);
                *at = ahead;
                // Where others have EOP, a context has another bit.
                let goes_on = is_context || word & tx::EOP == 0;
                let already = std::mem::replace(&mut self.skipping, goes_on);
                let reason = if len > MAX_FRAME { DropReason::TooLong } else { DropReason::TooManyPieces };
                return Ok(if already { Attempt::Nothing } else { Attempt::Dropped(reason) });
            }
            if is_context {
                continue;
            }
            if !any {
                (any, wishes.first) = (true, word);
                room &= !Wishes::change_header(word) || batch.pieces.push(Piece::EMPTY);
            }
            wishes.commands |= word;
            room &= match add_buffer(&mut batch.pieces, self.ring.map(), (buffer, bytes), &mut self.hint) {
                Ok(fits) => fits,
                Err(fault) => {
                    // None of it was sent.
                    self.reports.truncate(reports);
                    return Err(fault);
                }
            };
            if room && word & tx::EOP != 0 {
                let count = batch.pieces.len() - first;
                if !batch.deadline().find_frame(batch.pieces.range(first, count)) {
                    self.reports.truncate(reports);
                    batch.pieces.truncate(first);
                    return Ok(Attempt::Later);
                }
                wishes.last = word;
                *at = ahead;
                let made = self.maker.make(&self.nic.regs, batch, first, len, &wishes);
                let Err(reason) = made else { return Ok(Attempt::Packet) };
                batch.pieces.truncate(first);
                return Ok(Attempt::Dropped(reason));
            }
        }
        self.reports.truncate(reports);
        batch.pieces.truncate(first);
        if !room && batch.is_empty() {
            // It would not fit at any other time either.
            self.skipping = true;
            return Ok(Attempt::Dropped(DropReason::TooManyPieces));
        }
        Ok(if room { Attempt::Unfinished } else { Attempt::Later })
    }

    /// Marks what was taken as done, moves the head and interrupts.
    pub(super) fn give_back(&mut self, tally: &mut Tally) {
        if self.taken == 0 {
            return;
        }
        let regs = &self.nic.regs;
        let own = self.maker.remembers(self.skipping);
        self.ring.journal.begin_transmit(self.ring.place(self.taken), &self.reports, own);
        let mut commands = [0; 2];
        for (place, word) in self.reports.drain(..) {
            self.ring.table.publish(2 * place as usize + 1, done(word));
            commands[usize::from(word & tx::IDE != 0)] = 1;
        }
        let from = self.ring.head;
        self.ring.advance(regs, self.taken, self.idle);
        self.ring.journal.end(Some(own));
        let taken_back = self.nic.irq.taken_back(self.queue);
        if std::mem::replace(&mut self.taken_back, taken_back) != taken_back {
            self.unreported = 0;
        }
        self.unreported = self.unreported.saturating_add(self.taken);
        self.taken = 0;
        if self.ring.map().is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
        if !self.ring.block.wants_interrupt(from, self.ring.size) {
            return;
        }
        let done = if self.nic.irq.by_queue() { regs::TXQ0 << self.queue } else { regs::TXDW };
        let empty = if self.idle { regs::TXQE } else { 0 };
        // A driver with a status block says what it wants itself. Where accesses trap, an interrupt costs six of them,
        // and frames come further apart.
        let longer = if self.nic.is_trapping(TX_RINGS[self.queue]) { 4 } else { 1 };
        let patience = self.nic.irq.patience().filter(|_| !self.ring.block.is_on());
        let patience = patience.map(|(last, first)| (last * longer, first * longer));
        let half = self.unreported >= self.ring.size / 2;
        let (at_once, later, delay) = match patience {
            // Queue causes of MSI-X are not delayed by registers (82574 §7.4.4).
            None if self.nic.irq.by_queue() => ((commands[0] | commands[1]) * done, 0, Delay::None),
            None => (commands[0] * done, commands[1] * done, self.delay((0, 0))),
            Some(_) if half => ((commands[0] | commands[1]) * done, 0, Delay::None),
            Some(patience) => (0, (commands[0] | commands[1]) * done, self.delay(patience)),
        };
        if half {
            self.unreported = 0;
        }
        tally.occasions += 1;
        tally.interrupts += self.nic.irq.raise(at_once | empty, later, delay);
    }

    /// TIDV and TADV, or `least` if they are shorter. Both rings have the same (82574 §10.2.6).
    fn delay(&self, least: (u32, u32)) -> Delay {
        let register = |register| self.nic.regs.get(regs::TX_RING + register) & 0xffff;
        Delay::Transmit(register(ring::DELAY).max(least.0), register(ring::ABSOLUTE_DELAY).max(least.1))
    }

    /// Descriptors that can be taken; none while it is off.
    fn avail(&mut self) -> u32 {
        if !self.enabled || self.stopped {
            return 0;
        }
        match self.ring.poll(&self.nic.regs, &self.nic.bad_tails) {
            Ok(avail) => avail,
            Err(fault) => {
                self.stop(fault);
                0
            }
        }
    }

    /// Whether there is something to do now. The end of a packet comes unasked, as every frame does.
    pub(super) fn has_work(&mut self) -> bool {
        // Places that have been taken count from the head as it is: it is not looked at before they are given back.
        self.taken > 0 || ![0, self.unfinished].contains(&self.avail())
    }

    /// Whether the driver may have work for it at any time.
    pub(super) fn is_running(&self) -> bool {
        self.enabled && !self.stopped
    }

    /// What the driver says in its status block.
    pub(super) fn block(&mut self) -> &mut Block {
        &mut self.ring.block
    }

    /// Adds waiting frames to `batch` as far as there is room. The descriptors are given back by `give_back`. False:
    /// there was nothing.
    pub(super) fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) -> bool {
        let avail = self.avail();
        if avail > 0 && batch.room() == 0 {
            // What is known of a packet without an end stays known.
            return false;
        }
        self.unfinished = 0;
        if avail == 0 {
            return false;
        }
        let (mut at, mut asked) = (0, 0);
        let tagging = self.nic.regs.get(regs::CTRL) & regs::CTRL_VME != 0;
        let mut frames = Frames::default();
        while at < avail && at < MAX_DESCRIPTORS - MAX_CHAIN && batch.room() > 0 {
            if at >= asked {
                self.look_ahead(at, avail);
                asked = at + AHEAD;
            }
            if self.plain(batch, at, tagging) {
                at += 1;
                self.count(batch, tally, &mut frames);
                continue;
            }
            match self.packet(batch, &mut at, avail) {
                Ok(Attempt::Packet) => self.count(batch, tally, &mut frames),
                Ok(Attempt::Dropped(reason)) => {
                    tally.frames += 1;
                    tally.drops.add(reason, 1);
                    batch.skip();
                }
                Ok(Attempt::Nothing) => {}
                Ok(Attempt::Later) => break,
                Ok(Attempt::Unfinished) => {
                    self.unfinished = avail - at;
                    break;
                }
                Err(fault) => {
                    self.stop(fault);
                    break;
                }
            }
        }
        self.nic.stats.frames(stats::TX, &frames);
        self.taken = at;
        self.idle = at == avail;
        // Descriptors that read as zeros never end a packet. What was taken is asked about when it is given back.
        if at == 0 && self.ring.map().is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
        at > 0
    }

    #[inline]
    fn count(&self, batch: &Batch, tally: &mut Tally, frames: &mut Frames) {
        let Some(frame) = batch.frames().last() else { return };
        tally.frames += 1;
        tally.bytes += u64::from(frame.len);
        frames.count(frame);
        if frame.offload.gso != Gso::None {
            self.nic.stats.add(stats::SEGMENTED, 1);
            // The wire would have seen the segments (8254x SDM §13.7.47 and on count those).
            let rest = frame.len.saturating_sub(u32::from(frame.offload.hdr_len));
            let more = rest.div_ceil(u32::from(frame.offload.gso_size).max(1)).saturating_sub(1);
            self.nic.stats.add(stats::TX + stats::FRAMES, u64::from(more));
        }
    }
}
