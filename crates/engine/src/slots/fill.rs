//! A ring on which the client receives: frames in, slots filled.
//!
//! As VALE delivers: a frame takes one slot, or several joined by `NS_MOREFRAG`, each with the number of them
//! in its flags; one that does not fit into the free slots is dropped, and the sender never waits. Nothing is
//! visible to the client before the batch is published.
//!
//! The client's cache lines are prefetched for writing (PREFETCHW). When a batch is published, the slots and
//! first lines for as many frames as it had are prefetched, so that they come while the next batch is
//! fetched. While a long frame is copied, all lines of the next frame's buffer are.

use sidecore_abi::netmap::{MAX_FRAGS, NS_MOREFRAG, NS_RFRAGS_SHIFT};

use crate::mem::{Piece, PieceWriter};
use crate::packet::{Batch, Frame};
use crate::port::{DropReason, Outcome, Room};
use crate::ring::{ClientRx, Hands};
use crate::util::slice::{behind, upto, upto_mut};

/// Flags of a frame in one slot.
const SINGLE: u16 = 1 << NS_RFRAGS_SHIFT;

/// Most slots that are asked for ahead of a batch.
const AHEAD: u32 = 128;
/// A frame longer than this has lines that were not prefetched.
const SHORT: u32 = 128;

/// Puts frames into a ring on which the client receives.
pub struct Fill<H> {
    /// The ring.
    pub ring: ClientRx<H>,
    /// Free slots, as far as is known.
    room: u32,
    /// Slots that are filled from now on have these flags, too: for a monitor.
    pub mark: u16,
}

impl<H: Hands> Fill<H> {
    /// Those of `ring`.
    pub fn new(ring: ClientRx<H>) -> Fill<H> {
        Fill { ring, room: 0, mark: 0 }
    }

    /// Fills slots with one frame.
    #[inline]
    fn put(&mut self, frame: &Frame, body: &[Piece], header: u32) -> Result<(), DropReason> {
        if frame.len + header > self.ring.access.buf_size().min(0xffff) {
            return self.put_long(frame, body, header);
        }
        let (index, mut to) = loop {
            self.need(1)?;
            if let Some(buffer) = self.ring.buffer(0) {
                break buffer;
            }
            self.skip();
        };
        if header != 0 {
            to.write(upto(&frame.offload.to_bytes(1), header as usize));
            to.advance(header as usize);
        }
        to.write(frame.head());
        if !body.is_empty() {
            to.advance(frame.head_len());
            for piece in body {
                to.write_from(piece);
                to.advance(piece.len());
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "just compared")]
        self.ring.fill(index, (frame.len + header) as u16, SINGLE | self.mark);
        self.room -= 1;
        Ok(())
    }

    /// Makes sure of `slots` free slots; the client may have released some since the last look.
    #[inline]
    fn need(&mut self, slots: u32) -> Result<(), DropReason> {
        if self.room < slots {
            self.room = self.ring.look();
            if self.room < slots {
                return Err(DropReason::RingFull);
            }
        }
        Ok(())
    }

    #[cold]
    fn skip(&mut self) {
        self.ring.skip();
        self.room -= 1;
    }

    /// A frame that is longer than a buffer.
    #[inline(never)]
    fn put_long(&mut self, frame: &Frame, body: &[Piece], header: u32) -> Result<(), DropReason> {
        let size = self.ring.access.buf_size().min(0xffff);
        let total = frame.len + header;
        let slots = total.div_ceil(size);
        if slots as usize > MAX_FRAGS {
            return Err(DropReason::BufferTooSmall);
        }
        let (mut indices, mut bufs) = ([0; MAX_FRAGS], [Piece::EMPTY; MAX_FRAGS]);
        let (indices, bufs) = (upto_mut(&mut indices, slots as usize), upto_mut(&mut bufs, slots as usize));
        loop {
            self.need(slots)?;
            let bad = (0..slots).zip(indices.iter_mut().zip(bufs.iter_mut())).find_map(|(by, place)| {
                let Some((index, buffer)) = self.ring.buffer(by) else { return Some(by) };
                (*place.0, *place.1) = (index, buffer.first(size as usize));
                None
            });
            let Some(by) = bad else { break };
            // A frame takes slots in a row, so those before the bad one go by empty, too.
            for _ in 0..by {
                self.ring.pass();
                self.room -= 1;
            }
            self.skip();
        }
        let mut to = PieceWriter(bufs);
        to.write(upto(&frame.offload.to_bytes(1), header as usize));
        to.write(frame.head());
        for piece in body {
            to.copy(*piece);
        }
        let mut left = total;
        for (i, index) in (1..).zip(indices.iter()) {
            let len = left.min(size);
            left -= len;
            let more = if i < slots { NS_MOREFRAG } else { 0 };
            #[expect(clippy::cast_possible_truncation, reason = "at most 64 slots of at most 65535 bytes")]
            self.ring.fill(*index, len as u16, (slots as u16) << NS_RFRAGS_SHIFT | more | self.mark);
        }
        self.room -= slots;
        Ok(())
    }

    /// Delivers the frames `picks` of `batch` behind headers of `header` bytes, as `EgressQueue::send` does.
    /// True if the client waits for them and is to be woken.
    #[inline]
    pub fn send(&mut self, batch: &Batch, picks: &[u16], header: u32, outcome: &mut Outcome) -> bool {
        self.room = self.ring.look();
        for (done, &pick) in picks.iter().enumerate() {
            if outcome.is_late(done) {
                outcome.dropped_all(behind(picks, done), DropReason::ReceiverBusy);
                break;
            }
            let frame = batch.frame(pick);
            if frame.len > SHORT && self.room > 1 {
                // That one is as long as this one, most likely.
                self.ring.prefetch_behind(frame.len);
            }
            match self.put(frame, batch.body(frame), header) {
                Ok(()) => outcome.delivered(frame.len),
                // The client was asked once more for this one; it is not asked for each of the others.
                Err(DropReason::RingFull) if self.room == 0 => {
                    outcome.dropped_all(behind(picks, done), DropReason::RingFull);
                    break;
                }
                Err(reason) => outcome.dropped(pick, reason),
            }
        }
        outcome.occasions += u64::from(outcome.frames > 0);
        let due = self.ring.publish();
        // Only what is free: of the other slots the client is about to read the buffers.
        let next = u32::try_from(picks.len()).unwrap_or(AHEAD);
        self.ring.prefetch(next.min(AHEAD).min(self.room));
        due
    }

    /// The client's free slots.
    pub fn room(&mut self) -> Room {
        // One slot is always free: head and tail that are equal mean an empty ring.
        Room { free: self.ring.look(), size: self.ring.access.slots() - 1 }
    }
}
