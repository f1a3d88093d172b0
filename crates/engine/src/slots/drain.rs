//! A ring on which the client sends: slots in, frames out.
//!
//! As VALE collects them: a packet is one slot or several joined by `NS_MOREFRAG`, never split between
//! batches; one that the client has not finished when it gave its slots up ends where they end. Each slot is
//! read once. A packet with a slot that is not the client's, or that points out of the region
//! (`NS_INDIRECT`), is dropped whole.

use sidecore_abi::netmap::{SlotWord, MAX_FRAGS, NS_INDIRECT, NS_MOREFRAG};

use crate::packet::{Batch, Offload, Offloads, HEAD, MAX_FRAME, MIN_FRAME};
use crate::port::{DropReason, Tally};
use crate::ring::{ClientTx, Hands};
use crate::util::slice::upto_mut;

/// How many slots ahead buffers are fetched into the cache: the client's core has them.
const AHEAD: u32 = 12;

/// What stands before each frame.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Bytes of a virtio-net header: 0, 10 or 12.
    pub bytes: u32,
    /// What the sender may ask for in it.
    pub offloads: Offloads,
}

/// Takes frames from a ring on which the client sends.
pub struct Drain<H> {
    /// The ring.
    pub ring: ClientTx<H>,
    /// Slots before this one were taken by the last `fetch`.
    taken: u32,
}

impl<H: Hands> Drain<H> {
    /// Those of `ring`.
    pub fn new(ring: ClientTx<H>) -> Drain<H> {
        let taken = ring.first();
        Drain { ring, taken }
    }

    /// Describes a packet of one slot, behind `header` bytes that say nothing.
    #[inline]
    fn single(&self, word: SlotWord, header: u32, batch: &mut Batch) -> Result<(), DropReason> {
        let mut piece = self.ring.buffer(word).ok_or(DropReason::BadBuffer)?;
        let len = u32::from(word.len()).checked_sub(header).filter(|len| *len >= MIN_FRAME);
        let len = len.ok_or(DropReason::TooShort)?;
        piece.advance(header as usize);
        let Some((frame, pieces)) = batch.next_frame() else { return Err(DropReason::TooManyPieces) };
        frame.len = len;
        frame.offload = Offload::NONE;
        // What follows a shorter frame in its buffer is read, but never passed on.
        piece.read(&mut frame.head);
        frame.pieces = 0;
        if len as usize > HEAD {
            piece.advance(HEAD);
            #[expect(clippy::cast_possible_truncation, reason = "at most BATCH_PIECES")]
            {
                frame.piece = pieces.len() as u32;
            }
            if !pieces.push(piece.first(len as usize - HEAD)) {
                return Err(DropReason::TooManyPieces);
            }
            frame.pieces = 1;
        }
        batch.commit();
        Ok(())
    }

    /// Whether the header in the buffer that `word` names says nothing: most frames ask for nothing. If it
    /// asks for something, the caller reads it again, and goes by what it says then.
    #[inline]
    fn is_mute(&self, word: SlotWord) -> bool {
        let flags = self.ring.buffer(word).and_then(|piece| piece.read_array::<2>());
        flags == Some([0; 2])
    }

    /// Describes a packet that starts with slot `at`, of which at most `left` are given up. Returns the slots
    /// that it takes, its bytes, and why it is dropped, if it is.
    #[inline(never)]
    fn chain(
        &self,
        at: u32,
        left: u32,
        header: Header,
        batch: &mut Batch,
    ) -> (u32, u32, Result<(), DropReason>) {
        let mut result = Ok(());
        let start = batch.pieces.len();
        let mut bytes = 0u32;
        let mut slots = 0;
        let mut slot = at;
        loop {
            let word = self.ring.access.slot(slot);
            slots += 1;
            slot = self.ring.access.after(slot);
            let more = word.flags() & NS_MOREFRAG != 0 && slots < left;
            if result.is_ok() {
                bytes = bytes.saturating_add(u32::from(word.len()));
                result = self.add(word, slots, batch);
            }
            if !more {
                break;
            }
        }
        let frame_bytes = bytes.saturating_sub(header.bytes);
        if result.is_ok() {
            result = self.describe(batch, start, bytes, header);
        }
        if result.is_err() {
            batch.pieces.truncate(start);
        }
        (slots, frame_bytes, result)
    }

    fn add(&self, word: SlotWord, slots: u32, batch: &mut Batch) -> Result<(), DropReason> {
        if slots as usize > MAX_FRAGS {
            return Err(DropReason::TooManyPieces);
        }
        if word.flags() & NS_INDIRECT != 0 {
            return Err(DropReason::BadBuffer);
        }
        let piece = self.ring.buffer(word).ok_or(DropReason::BadBuffer)?;
        if batch.pieces.push(piece.first(usize::from(word.len()))) {
            Ok(())
        } else {
            Err(DropReason::TooManyPieces)
        }
    }

    /// Makes a frame of the pieces from `start` on, which hold `bytes` bytes, `header` of them a header.
    fn describe(
        &self,
        batch: &mut Batch,
        start: usize,
        bytes: u32,
        header: Header,
    ) -> Result<(), DropReason> {
        let len =
            bytes.checked_sub(header.bytes).filter(|len| *len >= MIN_FRAME).ok_or(DropReason::TooShort)?;
        if len > MAX_FRAME {
            return Err(DropReason::TooLong);
        }
        let Some((frame, pieces)) = batch.next_frame() else { return Err(DropReason::TooManyPieces) };
        let count = pieces.len() - start;
        let list = pieces.range_mut(start, count);
        let mut first = [0; 12];
        let mut at = crate::mem::gather(list, 0, upto_mut(&mut first, header.bytes as usize));
        frame.len = len;
        let head_len = frame.head_len();
        at = crate::mem::gather(list, at, upto_mut(&mut frame.head, head_len));
        #[expect(clippy::cast_possible_truncation, reason = "at most BATCH_PIECES")]
        {
            frame.piece = (start + at) as u32;
            frame.pieces = (count - at) as u16;
        }
        frame.offload = Offload::NONE;
        if first[..2] != [0, 0] {
            frame.offload = Offload::parse(&first, frame.head(), len as usize, header.offloads)
                .map_err(|_| DropReason::BadOffload)?;
        }
        batch.commit_odd();
        Ok(())
    }

    /// Describes waiting frames in `batch`, as many as fit.
    #[inline]
    pub fn fetch(&mut self, header: Header, batch: &mut Batch, tally: &mut Tally) {
        let mut left = self.ring.look();
        if left == 0 {
            return;
        }
        let mut at = self.ring.first();
        for by in 1..AHEAD.min(left) {
            self.ring.prefetch(at, by);
        }
        while left > 0 && batch.room() > 0 && batch.pieces.room() >= MAX_FRAGS {
            if left > AHEAD {
                self.ring.prefetch(at, AHEAD);
            }
            let word = self.ring.access.slot(at);
            let plain = word.flags() & (NS_MOREFRAG | NS_INDIRECT) == 0;
            let (slots, bytes, result) = if plain && header.bytes == 0 {
                (1, u32::from(word.len()), self.single(word, 0, batch))
            } else if plain && self.is_mute(word) {
                let bytes = u32::from(word.len()).saturating_sub(header.bytes);
                (1, bytes, self.single(word, header.bytes, batch))
            } else {
                self.chain(at, left, header, batch)
            };
            tally.frames += 1;
            tally.bytes += u64::from(bytes);
            if let Err(reason) = result {
                tally.drops.add(reason, 1);
                batch.skip();
            }
            left -= slots;
            for _ in 0..slots {
                at = self.ring.access.after(at);
            }
        }
        self.taken = at;
    }

    /// Gives back what was taken. True if the client waits for that and is to be woken.
    pub fn release(&mut self) -> bool {
        self.ring.give_back(self.taken)
    }
}
