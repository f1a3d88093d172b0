//! Deliveries to a receiver that has been seen to take long (`port::Pace`).
//!
//! Theory of operation. The time of a delivery may be the sender's, whose pages are read, or the receiver's, whose pages are
//! written and whose descriptors are followed. So frames for a watched receiver are copied to private memory first, a few at
//! a time; what it takes to hand those over is the receiver's. When a batch has taken longer than it may, the receiver gets
//! nothing more until that is paid for, and its frames are dropped. That time is not the sender's.

use super::deliver::{of_bytes, Delivery, ALL};
use crate::frame::{Batch, HEAD};
use crate::mem::{time_of, Arena};
use crate::port::{usual, DropReason, Outcome, Port};

/// Frames that are copied at a time.
const SLOTS: usize = 16;
/// Bytes of the largest frame, with room to spare: 64 KiB and its headers.
const SLOT: usize = 66 * 1024;

/// Private copies of frames.
pub(super) struct Private {
    batch: Batch,
    arena: Arena,
    bytes: Vec<u8>,
    /// Those that are still to be handed over.
    picks: Vec<u16>,
}

impl Private {
    pub(super) fn new() -> Private {
        Private {
            batch: Batch::new(),
            arena: Arena::new(SLOTS, SLOT),
            bytes: Vec::with_capacity(SLOT),
            picks: Vec::with_capacity(SLOTS),
        }
    }

    /// Copies as many of `picks` of `batch` as there is room for; returns the others.
    fn fill<'p>(&mut self, batch: &Batch, picks: &'p [u16]) -> &'p [u16] {
        self.batch.clear();
        self.picks.clear();
        let (now, later) = picks.split_at(picks.len().min(SLOTS));
        for (slot, pick) in now.iter().enumerate() {
            let original = batch.frame(*pick);
            let Some((frame, pieces)) = self.batch.next_frame() else { break };
            (frame.head, frame.len, frame.offload) = (original.head, original.len, original.offload);
            (frame.piece, frame.pieces) = (u32::try_from(pieces.len()).unwrap_or(0), 0);
            let long = (original.len as usize).saturating_sub(HEAD).min(SLOT);
            if long > 0 {
                self.bytes.resize(long, 0);
                let mut done = 0;
                for piece in batch.body(original) {
                    done += piece.read(&mut self.bytes[done..]);
                }
                frame.pieces = u16::from(pieces.push(self.arena.put(slot, &self.bytes, 0)));
            }
            self.batch.commit();
        }
        self.picks.extend_from_slice(&ALL[..self.batch.len()]);
        later
    }
}

impl Delivery {
    /// Hands `picks` of `batch` to queue `queue` of `port`, which is watched.
    #[cold]
    pub(super) fn send_watched(&mut self, port: &Port, queue: usize, batch: &Batch, picks: &[u16]) {
        let Some(mut private) = self.private.take() else { return };
        let (mut rest, mut spent) = (picks, 0);
        let close = port.pace.is_closely_watched();
        let limit =
            if close { usual(picks.len()).saturating_add(of_bytes(batch)) } else { self.limit_of(batch) };
        while !rest.is_empty() {
            if port.pace.rests() {
                self.refuse(port, batch, rest);
                break;
            }
            rest = private.fill(batch, rest);
            while !private.picks.is_empty() {
                if port.pace.rests() {
                    self.refuse(port, &private.batch, &private.picks);
                    break;
                }
                let left = limit.saturating_sub(spent);
                let (outcome, took) = self.hand_over(port, queue, &private.batch, &private.picks, left, true);
                private.picks = outcome.left;
                spent += took;
                if spent > limit {
                    let time = time_of(spent);
                    port.slow.delivery(time);
                    self.foreign_ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    port.pace.was_slow(spent);
                    spent = 0;
                }
            }
        }
        self.private = Some(private);
    }

    /// Drops `picks` of `batch`: `port` gets nothing now.
    #[cold]
    pub(super) fn refuse(&self, port: &Port, batch: &Batch, picks: &[u16]) {
        let mut outcome = Outcome::new();
        outcome.trace = port.capture.is_on().then(Vec::new);
        outcome.dropped_all(picks, DropReason::SlowReceiver);
        port.counters.block(self.core).add_outcome(&outcome);
        if let Some(drops) = &outcome.trace {
            port.capture.egress(batch, picks, drops);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_copy_has_the_bytes_of_all_pieces() {
        let mut memory = Arena::new(1, 1000);
        let bytes: Vec<u8> = (0..1000).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut batch = Batch::new();
        for len in [60, 64, 65, 164, 1064] {
            let (frame, pieces) = batch.next_frame().unwrap();
            frame.head.fill(u8::try_from(len % 256).unwrap());
            let whole =
                memory.put(0, &bytes, 0).first(usize::try_from(len).unwrap_or(0).saturating_sub(HEAD));
            let (first, mut second) = (whole.first(whole.len() / 3), whole);
            second.advance(first.len());
            (frame.len, frame.piece, frame.pieces) = (len, u32::try_from(pieces.len()).unwrap(), 2);
            assert!(pieces.push(first) && pieces.push(second));
            batch.commit();
        }
        let mut private = Private::new();
        assert!(private.fill(&batch, &[4, 0, 1, 2, 3]).is_empty());
        assert_eq!(private.picks, [0, 1, 2, 3, 4]);
        for (frame, len) in private.batch.frames().iter().zip([1064, 60, 64, 65, 164]) {
            assert_eq!((frame.len, frame.head[0]), (len, u8::try_from(len % 256).unwrap()));
            let mut got = vec![0; (len as usize).saturating_sub(HEAD)];
            let body = private.batch.body(frame);
            assert_eq!(body.iter().map(crate::mem::Piece::len).sum::<usize>(), got.len());
            body.iter().for_each(|piece| assert_eq!(piece.read(&mut got), got.len()));
            assert_eq!(got, bytes[..got.len()]);
        }
        // More than there is room for are copied in turns.
        let many = vec![0u16; SLOTS + 3];
        assert_eq!((private.fill(&batch, &many).len(), private.picks.len()), (3, SLOTS));
    }
}
