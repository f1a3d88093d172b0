//! A guest's transmit ring: descriptors in, frames out.
//!
//! Theory of operation. A poll walks the descriptors that are the device's, packet by packet: buffers are
//! gathered until one ends the packet, of which the part's codec then makes a frame. A packet whose end has
//! not been written yet is left for later; one of absurdly many descriptors or bytes, or one that has no end
//! in the whole ring, is skipped to its end and dropped. When the batch has been delivered, its descriptors
//! go back to the driver. `transmitter` says when a ring is polled.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use super::ring::RingBase;
use super::ring::{Nic, SharedPart};
use crate::device::packet::{add_buffer, add_plain};
use crate::mem::{GuestMap, Piece};
use crate::packet::{Batch, Frame, MAX_FRAME};
use crate::port::{DropReason, Tally};
use crate::util::fault::Fault;

/// Descriptors looked at in one poll, and of one packet.
const MAX_DESCRIPTORS: u32 = 1024;
const MAX_CHAIN: u32 = 256;

/// A place in a ring, which is `count` descriptors behind its head.
#[derive(Clone, Copy, Default)]
pub struct Cursor {
    pub(in crate::device) place: u32,
    pub(in crate::device) count: u32,
}

/// What stands in a ring at some place.
pub enum Look {
    /// A descriptor that is the device's: the word that says what it is.
    Descriptor(u64),
    /// Nothing, or nothing that the driver has given up yet.
    Nothing,
    /// The head again: all descriptors are the device's.
    Around,
}

/// A packet: its buffers, and the words of its descriptors.
#[derive(Clone, Copy)]
pub struct Wishes {
    /// The first of its pieces.
    pub(in crate::device) start: usize,
    /// Its bytes.
    pub(in crate::device) len: u32,
    /// The word of the first descriptor.
    pub(in crate::device) first: u64,
    /// The words of all descriptors, or-ed.
    pub(in crate::device) commands: u64,
    /// The word of the last descriptor.
    pub(in crate::device) last: u64,
}

/// What came of making a frame of a packet: why it is dropped, if it is.
pub type Made = Result<(), DropReason>;

/// What became of an attempt to take a packet.
enum Attempt {
    /// The frame is in the batch.
    Packet,
    /// It was dropped, for this reason.
    Dropped(DropReason),
    /// Descriptors that are no frame.
    Nothing,
    /// The batch has no room.
    Later,
    /// The driver has not written its end yet.
    Unfinished,
}

/// How a part's ring is found and its descriptors read. A descriptor is a word that says what it is, and the
/// address of a buffer.
pub trait TxCodec: Send {
    type SharedPart: SharedPart;
    /// What its ring has beside.
    type Own;
    /// Descriptors whose lines are asked for before they are needed.
    const AHEAD: u32;

    fn ring(&self) -> &RingBase<Self::Own>;
    fn ring_mut(&mut self) -> &mut RingBase<Self::Own>;

    /// A batch begins. False: there is nothing for it.
    fn begin(&mut self, nic: &Nic<Self::SharedPart>) -> Result<bool, Fault>;
    fn look_ahead(&mut self, at: Cursor, hint: &mut usize);
    fn look(&mut self, at: Cursor) -> Result<Look, Fault>;
    fn buffer(&self, place: u32) -> u64;
    /// The place behind `at`, where `word` stands.
    fn next(&mut self, at: Cursor, word: u64) -> Cursor;
    /// Whether there is something to do now. `unfinished`: a packet of `count` descriptors has no end yet,
    /// and `place` is where its next one was not there.
    fn waits(&mut self, nic: &Nic<Self::SharedPart>, unfinished: Option<Cursor>) -> Result<bool, Fault>;

    /// Bytes of a whole packet that asks for nothing but to be sent, as nearly all do.
    fn plain(&self, word: u64) -> Option<u32>;
    /// Bytes of the buffer, and whether the packet ends with it. `None`: it has no data, and says something
    /// of packets behind it.
    fn data(&mut self, word: u64, buffer: u64) -> Option<(u32, bool)>;
    /// Whether the first descriptor of a packet may have a header behind the first 64 bytes changed.
    fn changes_header(word: u64) -> bool;
    /// What the driver will find in a descriptor that is done, if it wants to know.
    fn mark(word: u64) -> Option<u64>;
    /// Adds the frame that `wishes` describe to `batch`. If they may change the header, its first piece is
    /// empty: a place for a changed part.
    fn make(&mut self, nic: &Nic<Self::SharedPart>, batch: &mut Batch, wishes: &Wishes) -> Made;
    fn count(&mut self, nic: &Nic<Self::SharedPart>, frame: &Frame);
    /// `frames` were counted for the batch.
    fn counted(&mut self, nic: &Nic<Self::SharedPart>, frames: u32);

    /// Marks descriptors as done: places and what `mark` gave; the head moves to `to`. `skipping`: in the
    /// middle of a packet.
    fn give_back(&mut self, nic: &Nic<Self::SharedPart>, marks: &[(u32, u64)], to: Cursor, skipping: bool);
    /// Raises interrupts for `frames` that were sent; how many were. `half`: half of the ring is to be
    /// reported.
    fn report(&mut self, nic: &Nic<Self::SharedPart>, frames: u32, half: bool) -> u64;

    /// The transmitter is turned off.
    fn rest(&mut self, _: &Nic<Self::SharedPart>) {}
    /// The device is at the beginning of its ring.
    fn restart(&mut self, nic: &Nic<Self::SharedPart>);
    /// Descriptors and buffers lie in another memory.
    fn remap(&mut self, map: &Arc<GuestMap>);
    /// Goes on where a former owner has ended. True: in the middle of a packet that is dropped.
    fn recover(&mut self, nic: &Nic<Self::SharedPart>) -> bool;
}

/// A guest's transmit ring.
pub(in crate::device) struct TxRing<C: TxCodec> {
    nic: Arc<Nic<C::SharedPart>>,
    pub(super) codec: C,
    /// Which of the device's it is.
    queue: usize,
    enabled: bool,
    hint: usize,
    /// Descriptors to be marked done: places and words.
    marks: Vec<(u32, u64)>,
    /// Behind the descriptors that were taken and not given back.
    at: Cursor,
    /// Frames among them.
    frames: u32,
    /// Descriptors given back since half a ring of them was reported, or the driver has looked.
    unreported: u32,
    taken_back: u64,
    /// In the middle of a packet that is dropped.
    skipping: bool,
    /// The packet without an end: its descriptors, and the place at which the next one was not there yet.
    unfinished: Option<Cursor>,
}

impl<C: TxCodec> TxRing<C> {
    pub(super) fn new(nic: Arc<Nic<C::SharedPart>>, queue: usize, codec: C) -> TxRing<C> {
        TxRing {
            nic,
            codec,
            queue,
            enabled: false,
            hint: 0,
            marks: Vec::with_capacity(MAX_DESCRIPTORS as usize),
            at: Cursor::default(),
            frames: 0,
            unreported: 0,
            taken_back: 0,
            skipping: false,
            unfinished: None,
        }
    }

    /// Turns the transmitter on or off.
    pub(super) fn enable(&mut self, on: bool) {
        self.give_back(&mut Tally::default());
        if self.enabled && !on {
            self.codec.rest(&self.nic);
        }
        self.enabled = on;
    }

    /// The device is at the beginning of its ring.
    pub(super) fn restart(&mut self) {
        // What was taken is not given back: it is another ring now, or the same one that the driver has set
        // up anew.
        self.marks.clear();
        (self.at, self.frames, self.unreported) = (Cursor::default(), 0, 0);
        (self.skipping, self.unfinished) = (false, None);
        self.codec.restart(&self.nic);
    }

    /// The device was reset.
    pub(super) fn reset(&mut self) {
        self.enabled = false;
        self.codec.ring_mut().stopped = false;
        self.restart();
    }

    /// From now on descriptors and buffers lie in `map`.
    pub(super) fn set_map(&mut self, map: &Arc<GuestMap>) {
        // Into the old memory, which is there until this returns.
        self.give_back(&mut Tally::default());
        self.codec.remap(map);
        self.hint = 0;
    }

    /// Goes on where a former owner has ended, in memory that is known by now.
    pub(super) fn recover(&mut self) {
        self.skipping = self.codec.recover(&self.nic);
    }

    /// What the codec found, unless that is a fault, which ends the ring.
    fn checked<T>(&mut self, found: Result<T, Fault>) -> Option<T> {
        self.codec.ring_mut().checked(&self.nic.port, found)
    }

    /// Whether the driver may have work for it at any time.
    pub(super) fn is_running(&self) -> bool {
        self.enabled && !self.codec.ring().stopped
    }

    /// Whether there is something to do now.
    pub(super) fn has_work(&mut self) -> bool {
        // Places that have been taken count from the head as it is: it is not looked at before they are given
        // back.
        if self.at.count > 0 || !self.is_running() {
            return self.at.count > 0;
        }
        let found = self.codec.waits(&self.nic, self.unfinished);
        self.checked(found).unwrap_or(false)
    }

    /// Takes the packet whose descriptor is `word` if it is as nearly all are: one descriptor that asks for
    /// nothing but to be sent. False: it is something else, and nothing has been done.
    #[inline]
    fn plain(&mut self, batch: &mut Batch, word: u64) -> bool {
        let Some(len) = self.codec.plain(word).filter(|_| !self.skipping) else { return false };
        let buffer = self.codec.buffer(self.at.place);
        let Some(piece) = self.codec.ring().map.translate(buffer, len, &mut self.hint) else { return false };
        let added = add_plain(batch, piece, len);
        if added {
            self.note(self.at.place, word);
            self.at = self.codec.next(self.at, word);
        }
        added
    }

    /// The descriptor at `place` was taken.
    #[inline]
    fn note(&mut self, place: u32, word: u64) {
        if let Some(mark) = C::mark(word) {
            self.marks.push((place, mark));
        }
    }

    /// Takes the packet that begins at `self.at`, whatever it is, or leaves it there.
    #[inline(never)]
    fn packet(&mut self, batch: &mut Batch) -> Result<Attempt, Fault> {
        let (marks, first, start) = (self.marks.len(), batch.pieces.len(), self.at);
        let attempt = self.gather(batch, first, start);
        if !matches!(attempt, Ok(Attempt::Packet)) {
            batch.pieces.truncate(first);
        }
        if self.at.count == start.count {
            self.marks.truncate(marks);
        }
        attempt
    }

    /// Gathers the buffers from `start` on into pieces until one ends the packet, and makes a frame of them.
    fn gather(&mut self, batch: &mut Batch, first: usize, start: Cursor) -> Result<Attempt, Fault> {
        let (mut at, mut len, mut room, mut wishes) = (start, 0, true, None::<Wishes>);
        while room {
            let word = match self.codec.look(at)? {
                Look::Descriptor(word) => word,
                Look::Nothing => {
                    self.unfinished = Some(Cursor { place: at.place, count: at.count - start.count });
                    return Ok(Attempt::Unfinished);
                }
                // Behind other packets their descriptors come first, which go back before it is looked at
                // again.
                Look::Around if start.count > 0 => return Ok(Attempt::Later),
                // Nothing ends it.
                Look::Around => return Ok(self.skip(at, true, DropReason::TooManyPieces)),
            };
            let (place, buffer) = (at.place, self.codec.buffer(at.place));
            at = self.codec.next(at, word);
            self.note(place, word);
            let data = self.codec.data(word, buffer);
            if data.is_none() && wishes.is_none() {
                self.at = at;
                return Ok(Attempt::Nothing);
            }
            let (bytes, ends) = data.unwrap_or((0, false));
            len += bytes;
            if self.skipping || len > MAX_FRAME || at.count - start.count > MAX_CHAIN {
                let reason = if len > MAX_FRAME { DropReason::TooLong } else { DropReason::TooManyPieces };
                return Ok(self.skip(at, !ends, reason));
            }
            if data.is_none() {
                continue;
            }
            if wishes.is_none() {
                room &= !C::changes_header(word) || batch.pieces.push(Piece::EMPTY);
            }
            let new = Wishes { start: first, len: 0, first: word, commands: 0, last: 0 };
            let wishes = wishes.get_or_insert(new);
            wishes.commands |= word;
            let (map, hint) = (&self.codec.ring().map, &mut self.hint);
            room &= add_buffer(&mut batch.pieces, map, (buffer, bytes), hint)?;
            if room && ends {
                let count = batch.pieces.len() - first;
                if !batch.deadline().find_frame(batch.pieces.range(first, count)) {
                    return Ok(Attempt::Later);
                }
                (wishes.last, wishes.len) = (word, len);
                self.at = at;
                let made = self.codec.make(&self.nic, batch, wishes);
                return Ok(made.map_or_else(Attempt::Dropped, |()| Attempt::Packet));
            }
        }
        if batch.is_empty() {
            // It would not fit at any other time either.
            self.skipping = true;
            return Ok(Attempt::Dropped(DropReason::TooManyPieces));
        }
        Ok(Attempt::Later)
    }

    /// Passes over a packet up to `at`; `goes_on`: its end is behind that.
    fn skip(&mut self, at: Cursor, goes_on: bool, reason: DropReason) -> Attempt {
        self.at = at;
        let already = std::mem::replace(&mut self.skipping, goes_on);
        if already {
            Attempt::Nothing
        } else {
            Attempt::Dropped(reason)
        }
    }

    /// Adds waiting frames to `batch` as far as there is room. The descriptors are given back by `give_back`.
    /// False: there was nothing.
    pub(super) fn take(&mut self, batch: &mut Batch, tally: &mut Tally) -> bool {
        let any = self.is_running() && {
            let found = self.codec.begin(&self.nic);
            self.checked(found).unwrap_or(false)
        };
        if any && batch.room() == 0 {
            // What is known of a packet without an end stays known.
            return false;
        }
        self.unfinished = None;
        if !any {
            return false;
        }
        self.at = Cursor { place: self.codec.ring().head, count: 0 };
        let mut asked = 0;
        while batch.room() > 0 && self.at.count < MAX_DESCRIPTORS - MAX_CHAIN {
            let attempt = match self.codec.look(self.at) {
                Ok(Look::Descriptor(word)) => {
                    if self.at.count >= asked {
                        self.codec.look_ahead(self.at, &mut self.hint);
                        asked = self.at.count + C::AHEAD;
                    }
                    if self.plain(batch, word) {
                        self.count(batch, tally);
                        continue;
                    }
                    self.packet(batch)
                }
                Ok(Look::Nothing | Look::Around) => break,
                Err(fault) => Err(fault),
            };
            match self.checked(attempt) {
                Some(Attempt::Packet) => self.count(batch, tally),
                Some(Attempt::Dropped(reason)) => {
                    tally.frames += 1;
                    tally.drops.add(reason, 1);
                    batch.skip();
                }
                Some(Attempt::Nothing) => {}
                Some(Attempt::Later | Attempt::Unfinished) | None => break,
            }
        }
        self.codec.counted(&self.nic, self.frames);
        // Descriptors that read as zeros never end a packet. What was taken is asked about when it is given
        // back.
        if self.at.count == 0 {
            self.codec.ring_mut().check_memory(&self.nic.port);
        }
        self.at.count > 0
    }

    /// Counts the last frame of `batch`.
    #[inline]
    fn count(&mut self, batch: &Batch, tally: &mut Tally) {
        let Some(frame) = batch.frames().last() else { return };
        tally.frames += 1;
        tally.bytes += u64::from(frame.len);
        self.frames += 1;
        self.codec.count(&self.nic, frame);
    }

    /// Marks what was taken as done, whether or not the ring is still set up, moves the head and interrupts.
    pub(super) fn give_back(&mut self, tally: &mut Tally) {
        let to = std::mem::take(&mut self.at);
        if to.count == 0 {
            return;
        }
        let (from, frames) = (self.codec.ring().head, std::mem::take(&mut self.frames));
        self.codec.give_back(&self.nic, &self.marks, to, self.skipping);
        self.marks.clear();
        let taken_back = self.nic.irq.taken_back(self.queue);
        if std::mem::replace(&mut self.taken_back, taken_back) != taken_back {
            self.unreported = 0;
        }
        self.unreported = self.unreported.saturating_add(to.count);
        let ring = self.codec.ring_mut();
        ring.check_memory(&self.nic.port);
        let size = ring.size;
        if ring.block.wants_interrupt(from, size) {
            let half = self.unreported >= size / 2;
            if half {
                self.unreported = 0;
            }
            tally.occasions += 1;
            tally.interrupts += self.codec.report(&self.nic, frames, half);
        }
    }
}
