//! The guest's transmit ring: descriptors in, frames out.
//!
//! Theory of operation. A poll walks the descriptors that are the device's, packet by packet: buffers are gathered until `LS` ends
//! one, of which `packet` then makes a frame. A packet whose end is not the device's yet is left for later; one of absurdly many
//! descriptors or bytes, or one that has no end in the whole ring, is skipped to its end and dropped. When the batch
//! has been delivered, all its descriptors go back to the driver. `transmitter` says when the ring is polled.
//!
//! A doorbell only wakes: descriptors are looked at, whether or not it was rung, as by a part that has not come to rest yet.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::journal::RingJournal;
use super::nic::NicState;
use super::packet::{changes_header, is_plain, make};
use super::regs::desc::{LS, OWN, TX_LEN};
use super::ring::{Ring, MAX};
use super::stats;
use crate::device::csb::RingSide;
use crate::device::packet::{headers, MIN_PADDED};
use crate::fault::Fault;
use crate::frame::Batch;
use crate::mem::{Arena, GuestMap, Piece, Pieces};
use crate::port::{DropReason, Tally};
use crate::slice::upto_mut;
use crate::wire::Offload;

/// Longest frame: the largest IP packet with its Ethernet header and two VLAN tags.
const MAX_FRAME: u32 = 65_535 + 14 + 8;
/// Descriptors of one packet.
const MAX_CHAIN: u32 = 256;
/// Descriptors whose lines are asked for before they are needed.
const AHEAD: u32 = 32;

/// What became of an attempt to take a packet.
enum Attempt {
    /// The frame is in the batch, or was dropped for the reason given.
    Packet(Result<(), DropReason>),
    /// Descriptors that are no frame.
    Nothing,
    /// The batch has no room.
    Later,
    /// The driver has not given its end yet.
    Unfinished,
}

/// A guest's transmit ring.
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
}

impl TxRing {
    pub(super) fn new(nic: Arc<NicState>, map: Arc<GuestMap>, journal: RingJournal) -> TxRing {
        TxRing {
            ring: Ring::new(map, journal, nic.csb.then_some(RingSide::Transmit)),
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
    pub(super) fn is_running(&self) -> bool {
        self.enabled && !self.stopped
    }

    /// Whether there is something to do now. The end of a packet comes unasked, as every frame does.
    pub(super) fn has_work(&mut self) -> bool {
        if !self.marks.is_empty() {
            return true;
        }
        let place = self.waits_for.unwrap_or(self.ring.head);
        self.is_running() && self.look(place).is_some_and(|word| word & OWN != 0)
    }

    /// Asks for doorbells, or no longer, where a status block lets us.
    pub(super) fn ask_for_kicks(&mut self, on: bool) {
        self.ring.ask_for_kicks(on);
    }

    /// Whether a status block lets us choose.
    pub(super) fn has_block(&self) -> bool {
        self.ring.has_wishes()
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
        let Some(mut piece) = self.ring.map().translate(buffer, len, &mut self.hint) else { return false };
        let Some((frame, pieces)) = batch.next_frame() else { return false };
        frame.len = len;
        frame.offload = Offload::NONE;
        let n = frame.head_len();
        piece.read(upto_mut(&mut frame.head, n));
        (frame.piece, frame.pieces) = (0, 0);
        if piece.advance(n) < len as usize {
            #[expect(clippy::cast_possible_truncation, reason = "at most BATCH_PIECES")]
            {
                (frame.piece, frame.pieces) = (pieces.len() as u32, 1);
            }
            if !pieces.push(piece) {
                return false;
            }
        }
        batch.commit_plain();
        true
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
                return Ok(if already { Attempt::Nothing } else { Attempt::Packet(Err(reason)) });
            }
            if count == 1 {
                head = word;
                room &= !changes_header(word) || batch.pieces.push(Piece::EMPTY);
            }
            let buffer = self.ring.buffer(place);
            room &= match self.gather(&mut batch.pieces, buffer, (word & TX_LEN) as u32) {
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
                if made.is_err() {
                    batch.pieces.truncate(first);
                }
                return Ok(Attempt::Packet(made));
            }
        }
        self.drop_marks(batch, marks, first);
        if !room && batch.is_empty() {
            // It would not fit at any other time either.
            self.skipping = true;
            return Ok(Attempt::Packet(Err(DropReason::TooManyPieces)));
        }
        Ok(Attempt::Later)
    }

    fn drop_marks(&mut self, batch: &mut Batch, marks: usize, pieces: usize) {
        self.marks.truncate(marks);
        batch.pieces.truncate(pieces);
    }

    /// Adds a buffer to the pieces; false if they are full.
    #[inline]
    fn gather(&mut self, pieces: &mut Pieces, addr: u64, len: u32) -> Result<bool, Fault> {
        if len == 0 {
            return Ok(true);
        }
        let map = self.ring.map();
        if let Some(piece) = map.translate(addr, len, &mut self.hint) {
            return Ok(pieces.push(piece));
        }
        for piece in map.parts(addr, len) {
            if !pieces.push(piece.ok_or(Fault::AddressOutOfRange)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives back what was taken, and interrupts.
    pub(super) fn give_back(&mut self, tally: &mut Tally) {
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
        if self.ring.wants_interrupt(from) {
            // A driver with a status block says what it wants itself.
            let at_once = half || self.ring.has_wishes();
            tally.occasions += 1;
            tally.interrupts += self.nic.irq.sent(frames, at_once);
        }
    }

    /// Adds waiting frames to `batch` as far as there is room. The descriptors are given back by `give_back`. False:
    /// there was nothing.
    pub(super) fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) -> bool {
        if !self.is_running() {
            return false;
        }
        if let Err(fault) = self.ring.look_at_block(self.nic.block()) {
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
                Ok(Attempt::Packet(Ok(()))) => self.count(batch, tally),
                Ok(Attempt::Packet(Err(reason))) => {
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
