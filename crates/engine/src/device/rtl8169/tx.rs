//! The guest's transmit ring: descriptors in, frames out.
//!
//! Theory of operation. A poll walks the descriptors that are the device's, packet by packet: buffers are gathered until `LS` ends
//! one, of which `packet` then makes a frame. A packet whose end is not the device's yet is left for later; one of absurdly many
//! descriptors or bytes, or one that has no end in the whole ring, is skipped to its end and dropped. When the batch
//! has been delivered, all its descriptors go back to the driver.
//!
//! The queue is polled as long as the driver has the device on, even while the transmitter is off: it also watches the
//! interrupts' deadline. A doorbell always traps, and wakes the core if it sleeps; so the queue asks for no naps. A driver
//! with a status block is not asked for doorbells while frames have come of late: then the queue has the core nap, so that a
//! steady sender never leaves its guest.
//!
//! A doorbell only wakes: descriptors are looked at, whether or not it was rung, as by a part that has not come to rest yet.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::journal::RingJournal;
use super::packet::{changes_header, is_plain, make};
use super::regs::desc::{LS, OWN, TX_LEN};
use super::ring::{Ring, MAX};
use super::state::NicState;
use super::stats;
use crate::device::csb::RingSide;
use crate::device::packet::{add_buffer, add_plain, headers, Attempt, MIN_PADDED};
use crate::fault::Fault;
use crate::mem::{Arena, GuestMap, Piece};
use crate::packet::{Batch, MAX_FRAME};
use crate::port::{DropReason, IngressQueue, Tally};

/// Descriptors of one packet.
const MAX_CHAIN: u32 = 256;
/// Descriptors whose lines are asked for before they are needed.
const AHEAD: u32 = 32;

/// How long after the last frame in either direction a driver with a status block is not asked for doorbells, and the naps then.
const BUSY: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(50);

/// A guest's transmit ring, and the clock of its interrupts.
pub(super) struct TxRing {
    nic: Arc<NicState>,
    ring: Ring,
    enabled: bool,
    stopped: bool,
    hint: usize,
    headers: Arena,
    /// Descriptors that were taken and go back: places, and the words that will stand there; and the place behind them.
    marks: Vec<(u32, u64)>,
    at: u32,
    /// Frames among them.
    frames: u32,
    /// Descriptors given back since half a ring of them was reported, or the driver has looked.
    unreported: u32,
    taken_back: u64,
    /// In the middle of a packet that is dropped.
    skipping: bool,
    /// The driver's descriptor for which an unfinished packet waits.
    waits_for: Option<u32>,
    worked: bool,
    last_work: Instant,
    /// The driver was not asked for doorbells when the core went to sleep.
    unasked: bool,
}

impl TxRing {
    pub(super) fn new(nic: Arc<NicState>, map: Arc<GuestMap>, journal: RingJournal) -> TxRing {
        TxRing {
            ring: Ring::new(map, journal, (RingSide::Transmit, nic.csb)),
            nic,
            enabled: false,
            stopped: false,
            hint: 0,
            headers: headers(),
            marks: Vec::with_capacity(MAX as usize),
            at: 0,
            frames: 0,
            unreported: 0,
            taken_back: 0,
            skipping: false,
            waits_for: None,
            worked: false,
            last_work: Instant::now(),
            unasked: false,
        }
    }

    /// Turns the transmitter on or off.
    pub(super) fn enable(&mut self, on: bool) {
        // What was taken without a frame in it has not been given back yet.
        self.give_back(&mut Tally::default());
        self.enabled = on;
    }

    /// The ring begins at `base`, and the device at its beginning.
    pub(super) fn restart(&mut self, base: u64) {
        // These are not given back: it is another ring now, or the same one that the driver has set up anew.
        self.marks.clear();
        (self.frames, self.unreported, self.skipping, self.waits_for) = (0, 0, false, None);
        self.ring.restart(base);
    }

    /// The device was reset.
    pub(super) fn reset(&mut self) {
        (self.enabled, self.stopped) = (false, false);
        self.restart(0);
    }

    /// From now on descriptors and buffers lie in `map`.
    pub(super) fn set_map(&mut self, map: Arc<GuestMap>) {
        // Into the old memory, which is there until this returns.
        self.give_back(&mut Tally::default());
        self.ring.remap(map);
        self.hint = 0;
    }

    /// Goes on where a former owner of the ring at `base` has ended.
    pub(super) fn recover(&mut self, base: u64) {
        self.ring.recover(base);
    }

    fn stop(&mut self, fault: Fault) {
        self.stopped = true;
        // A ring that reads as zeros finds all kinds of faults: this is their cause.
        let lost = self.ring.map().is_truncated();
        self.nic.port.fault.set(if lost { Fault::MemoryTruncated } else { fault });
    }

    /// Whether the driver may have work for it at any time.
    fn is_running(&self) -> bool {
        self.enabled && !self.stopped
    }

    fn look(&mut self, place: u32) -> Option<u64> {
        match self.ring.look(place) {
            Ok(word) => Some(word),
            Err(fault) => {
                self.stop(fault);
                None
            }
        }
    }

    /// Takes the packet at `place`, whose descriptor is `word`, if it is as nearly all are: one descriptor that asks for nothing
    /// but to be sent. False: it is something else, and nothing has been done.
    #[inline]
    fn plain(&mut self, batch: &mut Batch, place: u32, word: u64) -> bool {
        let len = (word & TX_LEN) as u32;
        let usual = word & LS != 0 && len >= MIN_PADDED && is_plain(word);
        if !usual || self.skipping {
            return false;
        }
        let buffer = self.ring.buffer(place);
        let Some(piece) = self.ring.map().translate(buffer, len, &mut self.hint) else { return false };
        add_plain(batch, piece, len)
    }

    /// Takes the packet at `self.at`, whatever it is.
    #[inline(never)]
    fn packet(&mut self, batch: &mut Batch) -> Result<Attempt, Fault> {
        let (marks, first) = (self.marks.len(), batch.pieces.len());
        let (mut place, mut count, mut len, mut head) = (self.at, 0, 0, 0);
        let mut room = true;
        while room {
            // Once around, and every descriptor is the device's: nothing ends it. Behind other packets their descriptors come
            // first, which go back before it is looked at again.
            let around = count > 0 && place == self.ring.head;
            if around && marks > 0 {
                break;
            }
            let endless = around;
            let word = self.ring.look(place)?;
            if word & OWN == 0 {
                self.drop_marks(batch, marks, first);
                self.waits_for = Some(place);
                return Ok(Attempt::Unfinished);
            }
            if !endless {
                self.marks.push((place, word & !OWN));
                count += 1;
                len += (word & TX_LEN) as u32;
            }
            let next = if endless { place } else { self.ring.next(place, word) };
            if self.skipping || endless || len > MAX_FRAME || count > MAX_CHAIN {
                batch.pieces.truncate(first);
                self.at = next;
                let already = std::mem::replace(&mut self.skipping, endless || word & LS == 0);
                let reason = if len > MAX_FRAME { DropReason::TooLong } else { DropReason::TooManyPieces };
                return Ok(if already { Attempt::Nothing } else { Attempt::Dropped(reason) });
            }
            if count == 1 {
                head = word;
                room &= !changes_header(word) || batch.pieces.push(Piece::EMPTY);
            }
            let buffer = self.ring.buffer(place);
            room &= match add_buffer(
                &mut batch.pieces,
                self.ring.map(),
                (buffer, (word & TX_LEN) as u32),
                &mut self.hint,
            ) {
                Ok(fits) => fits,
                Err(fault) => {
                    // None of it was sent.
                    self.drop_marks(batch, marks, first);
                    return Err(fault);
                }
            };
            place = next;
            if room && word & LS != 0 {
                let pieces = batch.pieces.len() - first;
                if !batch.deadline().find_frame(batch.pieces.range(first, pieces)) {
                    break;
                }
                self.at = place;
                let made = make(batch, &mut self.headers, first, len, head);
                let Err(reason) = made else { return Ok(Attempt::Packet) };
                batch.pieces.truncate(first);
                return Ok(Attempt::Dropped(reason));
            }
        }
        self.drop_marks(batch, marks, first);
        if !room && batch.is_empty() {
            // It would not fit at any other time either.
            self.skipping = true;
            return Ok(Attempt::Dropped(DropReason::TooManyPieces));
        }
        Ok(Attempt::Later)
    }

    fn drop_marks(&mut self, batch: &mut Batch, marks: usize, pieces: usize) {
        self.marks.truncate(marks);
        batch.pieces.truncate(pieces);
    }

    /// Gives back what was taken, and interrupts.
    fn give_back(&mut self, tally: &mut Tally) {
        if self.marks.is_empty() {
            return;
        }
        let from = self.ring.head;
        self.ring.give_back(&self.marks, self.at);
        self.nic.sizes[0].store(self.ring.size, Ordering::Relaxed);
        let given = u32::try_from(self.marks.len()).unwrap_or(u32::MAX);
        self.marks.clear();
        let taken_back = self.nic.irq.taken_back();
        if std::mem::replace(&mut self.taken_back, taken_back) != taken_back {
            self.unreported = 0;
        }
        self.unreported = self.unreported.saturating_add(given);
        if self.ring.map().is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
        let half = self.unreported >= self.ring.size / 2;
        if half {
            self.unreported = 0;
        }
        let frames = std::mem::take(&mut self.frames);
        if self.ring.block.wants_interrupt(from, self.ring.size) {
            // A driver with a status block says what it wants itself.
            let at_once = half || self.ring.block.is_on();
            tally.occasions += 1;
            tally.interrupts += self.nic.irq.sent(frames, at_once);
        }
    }

    /// Adds waiting frames to `batch` as far as there is room. The descriptors are given back by `give_back`. False:
    /// there was nothing.
    fn take(&mut self, batch: &mut Batch, tally: &mut Tally) -> bool {
        if !self.is_running() {
            return false;
        }
        if let Err(fault) = self.ring.look_at_block(|| self.nic.block()) {
            self.stop(fault);
            return false;
        }
        self.waits_for = None;
        self.at = self.ring.head;
        let mut asked = 0;
        while batch.room() > 0 && self.marks.len() < (MAX - MAX_CHAIN) as usize {
            let Some(word) = self.look(self.at) else { break };
            let around = !self.marks.is_empty() && self.at == self.ring.head;
            if word & OWN == 0 || around {
                break;
            }
            if self.marks.len() >= asked {
                self.ring.prefetch(self.at + AHEAD, AHEAD);
                asked += AHEAD as usize;
            }
            if self.plain(batch, self.at, word) {
                self.marks.push((self.at, word & !OWN));
                self.at = self.ring.next(self.at, word);
                self.count(batch, tally);
                continue;
            }
            match self.packet(batch) {
                Ok(Attempt::Packet) => self.count(batch, tally),
                Ok(Attempt::Dropped(reason)) => {
                    tally.frames += 1;
                    tally.drops.add(reason, 1);
                    batch.skip();
                }
                Ok(Attempt::Nothing) => {}
                Ok(Attempt::Later | Attempt::Unfinished) => break,
                Err(fault) => {
                    self.stop(fault);
                    break;
                }
            }
        }
        stats::add(&self.nic.stats.sent, self.frames.into());
        // Descriptors that read as zeros are the driver's. What was taken is asked about when it is given back.
        if self.marks.is_empty() && self.ring.map().is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
        !self.marks.is_empty()
    }

    #[inline]
    fn count(&mut self, batch: &Batch, tally: &mut Tally) {
        let Some(frame) = batch.frames().last() else { return };
        tally.frames += 1;
        tally.bytes += u64::from(frame.len);
        self.frames += 1;
    }
}

impl IngressQueue for TxRing {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        // A batch without frames is not released.
        self.give_back(tally);
        self.tend(tally);
        self.worked |= self.take(batch, tally);
    }

    /// The end of a packet comes unasked, as every frame does.
    fn has_frames(&mut self) -> bool {
        if !self.marks.is_empty() {
            return true;
        }
        let place = self.waits_for.unwrap_or(self.ring.head);
        self.is_running() && self.look(place).is_some_and(|word| word & OWN != 0)
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.nic.irq.poll() + self.nic.irq.alarm.noted();
    }

    fn release(&mut self, tally: &mut Tally) {
        self.give_back(tally);
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.nic.irq.alarm.set_sleeping(on);
        self.unasked = false;
        if !on {
            self.ring.block.ask_for_kicks(false);
            return false;
        }
        if self.ring.block.is_on() {
            if std::mem::take(&mut self.worked) | self.nic.received.swap(false, Ordering::Relaxed) {
                self.last_work = Instant::now();
            }
            self.unasked = self.last_work.elapsed() < BUSY;
            self.ring.block.ask_for_kicks(!self.unasked);
        }
        self.has_frames()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.nic.irq.alarm.wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let nap = self.unasked.then_some(NAP);
        [nap, self.nic.irq.alarm.due_in()].into_iter().flatten().min()
    }
}
