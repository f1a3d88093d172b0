//! The guest's receive ring: frames in, chains filled.
//!
//! Each frame gets the network header and its bytes: the head from private memory, the rest copied from
//! the sender's buffers. With MRG_RXBUF a frame may fill several chains (virtio 1.2 §5.1.6.4); without,
//! one chain must hold it. Nothing is visible to the guest until the whole batch is published.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use sidecore_abi::virtio::{features, NET_HDR_LEN};

use super::ingress::{header_len, HEADER_LEN};
use super::moderated::Moderated;
use crate::mem::{Piece, PieceWriter, Pieces};
use crate::packet::{Batch, Frame, BATCH_PIECES, HEAD, MAX_BATCH, MAX_FRAME};
use crate::port::{DropReason, EgressQueue, Outcome, Port, Room};
use crate::util::fault::Fault;
use crate::util::slice::{behind, upto};
use crate::virtq::{Access, Position, Queue};

/// The network header of a frame without offloads in one buffer: `num_buffers` is 1 (virtio 1.2 §5.1.6.4).
const PLAIN: [u8; NET_HDR_LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// Bytes of each buffer that `take` prefetches (`prefetch_chain`).
const ASKED_BY_TAKE: u32 = 128;
/// Frames longer than that are not prefetched: they would push each other out of the first cache.
const LONG: u32 = 2048;

/// The lines that publish the batch are prefetched this many frames before its end: copying those takes about
/// as long as a line from a processor far away. Much earlier, a driver that polls would have the index back.
const LAST: usize = 16;

/// A guest's receive ring.
pub struct EgressRing {
    port: Arc<Port>,
    queue: Queue,
    header_len: u32,
    mergeable: bool,
    /// Buffers of the taken chains. Writing moves their beginnings.
    pieces: Pieces,
    /// `pieces` as they were taken, for the dirty log. Only while pages are logged.
    whole: Option<Pieces>,
    /// Bytes written into each taken chain, up to `filled`.
    lens: Box<[u32]>,
    /// Taken chains that are filled and not yet published.
    filled: usize,
    /// Chains that were taken, and how many the ring was asked for.
    taken: usize,
    asked: usize,
    /// Size of the chain used last: how many chains a long frame will take is guessed from it.
    usual: u32,
    stopped: bool,
    moderated: Option<Box<Moderated>>,
}

impl EgressRing {
    /// The ring `queue` of `port`, with the features that were negotiated.
    pub fn new(port: Arc<Port>, queue: Queue, feature_bits: u64) -> EgressRing {
        let whole = queue.logs().then(|| Pieces::new(BATCH_PIECES));
        EgressRing {
            port,
            queue,
            whole,
            header_len: header_len(feature_bits),
            mergeable: feature_bits & features::NET_MRG_RXBUF != 0,
            pieces: Pieces::new(BATCH_PIECES),
            lens: vec![0; MAX_BATCH].into(),
            filled: 0,
            taken: 0,
            asked: 0,
            usual: 1526,
            stopped: false,
            moderated: None,
        }
    }

    /// This ring, with interrupts that come some time apart.
    pub(super) fn moderated(mut self, moderated: Option<Box<Moderated>>) -> EgressRing {
        self.moderated = moderated;
        self
    }

    /// It stops: nothing that the driver has to be told stays behind. Where the ring stands.
    pub fn close(mut self) -> Position {
        if let Some(mut moderated) = self.moderated.take() {
            moderated.end(&self.queue);
        }
        self.queue.position()
    }

    fn stop(&mut self, fault: Fault) {
        self.stopped = true;
        self.port.fault.set_unless(self.queue.is_truncated(), fault);
    }

    /// How many chains a frame will probably take.
    #[inline]
    fn guess(&self, frame: &Frame) -> usize {
        if self.mergeable && frame.len > self.usual {
            (frame.len / self.usual.max(64)) as usize + 1
        } else {
            1
        }
    }

    /// Publishes the filled chains and takes as many as `picks` may need, but at least `least`. Fewer are
    /// taken (`taken < asked`) only if the ring has no more, or they take too long to follow.
    fn refill(&mut self, batch: &Batch, picks: &[u16], least: usize, outcome: &mut Outcome) {
        self.publish(outcome);
        let mut want = 0;
        for &pick in picks {
            want += self.guess(batch.frame(pick));
            if want >= MAX_BATCH {
                break;
            }
        }
        self.asked = want.max(least).min(MAX_BATCH);
        self.pieces.clear();
        match self.queue.take(Access::Write, self.asked, &mut self.pieces) {
            Ok(n) => self.taken = n,
            Err(fault) => {
                self.taken = 0;
                self.stop(fault);
            }
        }
        if let Some(whole) = &mut self.whole {
            whole.clear();
            for piece in self.pieces.range(0, self.pieces.len()) {
                // Both lists have the same room.
                let _ = whole.push(*piece);
            }
        }
    }

    /// Gives the filled chains back to the driver with one store, and interrupts it if it asked for that.
    fn publish(&mut self, outcome: &mut Outcome) {
        if self.filled == 0 {
            return;
        }
        if let Some(whole) = &self.whole {
            for (chain, len) in self.queue.taken().iter().zip(upto(&self.lens, self.filled)) {
                let pieces = whole.range(chain.start as usize, usize::from(chain.count));
                self.queue.log_written(pieces, *len);
            }
        }
        let lens = &self.lens;
        outcome.occasions += 1;
        let length = |i: usize| lens.get(i).copied().unwrap_or(0);
        let interrupted = match &mut self.moderated {
            None => self.queue.complete(self.filled, length),
            Some(moderated) => {
                let before = self.queue.complete_quietly(self.filled, false, length);
                moderated.tell(&self.queue, before)
            }
        };
        outcome.interrupts += u64::from(interrupted);
        self.filled = 0;
        self.taken = 0;
        if self.queue.is_truncated() {
            self.stop(Fault::MemoryTruncated);
        }
    }

    /// Prefetches the lines of the next frame, and for writing those of the next chain, so that they come
    /// while this one is copied. `take` has prefetched the first two of either; in a long frame the processor
    /// itself soon sees where things go.
    #[inline]
    fn bring_next(&self, batch: &Batch, frame: &Frame) {
        if frame.len <= ASKED_BY_TAKE || frame.len > LONG {
            return;
        }
        if let Some(chain) = self.queue.taken().get(self.filled + 1) {
            if let Some(to) = self.pieces.range(chain.start as usize, 1).first() {
                to.first((frame.len + self.header_len) as usize).prefetch_own_from(ASKED_BY_TAKE as usize);
            }
        }
        for piece in batch.body(frame) {
            piece.prefetch_from(HEAD);
        }
    }

    /// Copies one frame into the next chain if both are as nearly all are: no offloads, one piece that
    /// takes all. False: it is something else, and nothing has been done.
    #[inline]
    fn fill_plain(&mut self, frame: &Frame, body: &[Piece]) -> bool {
        let Some(chain) = self.queue.taken().get(self.filled) else { return false };
        let Some(to) = self.pieces.get_mut(chain.start as usize) else { return false };
        let need = frame.len + HEADER_LEN;
        // A chain may have no piece at all (buffers of no length): then this place is the next chain's.
        if chain.count == 0 || self.header_len != HEADER_LEN || !frame.offload.is_none() {
            return false;
        }
        if to.len() < need as usize || !to.write_array(&PLAIN) {
            return false;
        }
        to.advance(NET_HDR_LEN);
        to.write(frame.head());
        if !body.is_empty() {
            to.advance(HEAD);
            for piece in body {
                let n = to.write_from(piece);
                to.advance(n);
            }
        }
        self.usual = chain.len;
        self.note(need);
        true
    }

    /// The next chain is filled with `bytes`.
    #[inline]
    fn note(&mut self, bytes: u32) {
        if let Some(len) = self.lens.get_mut(self.filled) {
            *len = bytes;
        }
        self.filled += 1;
    }

    /// Copies any frame into the next chains.
    #[inline(never)]
    fn fill(&mut self, frame: &Frame, body: &[Piece]) -> Result<(), Shortage> {
        let Some(chain) = self.queue.taken().get(self.filled) else { return Err(Shortage::Chains) };
        let need = frame.len + self.header_len;
        if chain.len < need {
            return self.fill_several(frame, body, need);
        }
        self.usual = chain.len;
        let list = self.pieces.range_mut(chain.start as usize, usize::from(chain.count));
        let mut to = PieceWriter(list);
        to.write(upto(&frame.offload.to_bytes(1), self.header_len as usize));
        to.write(frame.head());
        for piece in body {
            to.copy(*piece);
        }
        self.note(need);
        Ok(())
    }

    /// A frame that is longer than the next chain.
    #[cold]
    fn fill_several(&mut self, frame: &Frame, body: &[Piece], need: u32) -> Result<(), Shortage> {
        if !self.mergeable {
            return Err(Shortage::TooSmall);
        }
        let chains = behind(upto(self.queue.taken(), self.taken), self.filled);
        let mut room = 0u32;
        let mut count = 0usize;
        while room < need {
            let Some(chain) = chains.get(count) else { return Err(Shortage::Chains) };
            if (chain.len as usize) < NET_HDR_LEN {
                return Err(Shortage::TooSmall);
            }
            if let Some(len) = self.lens.get_mut(self.filled + count) {
                *len = chain.len.min(need - room);
            }
            room = room.saturating_add(chain.len);
            count += 1;
        }
        // The pieces of successive chains stand in a row, so one cursor runs through them all.
        let Some(first) = chains.first().copied() else { return Err(Shortage::Chains) };
        let pieces: usize = upto(chains, count).iter().map(|chain| usize::from(chain.count)).sum();
        let list = self.pieces.range_mut(first.start as usize, pieces);
        let mut to = PieceWriter(list);
        let buffers = u16::try_from(count).unwrap_or(u16::MAX);
        to.write(upto(&frame.offload.to_bytes(buffers), self.header_len as usize));
        to.write(frame.head());
        for piece in body {
            to.copy(*piece);
        }
        self.usual = first.len;
        self.filled += count;
        Ok(())
    }
}

/// Why a frame was not filled in.
enum Shortage {
    /// The chains that were taken are used up; the ring may hold more.
    Chains,
    /// The receiver's buffer cannot hold the frame.
    TooSmall,
}

impl EgressQueue for EgressRing {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        let mut done = 0;
        if !self.stopped {
            self.refill(batch, picks, 1, outcome);
        }
        let last = picks.len().saturating_sub(LAST);
        while let Some(&pick) = picks.get(done) {
            if done == last {
                self.queue.will_complete();
            }
            if outcome.is_late(done) {
                outcome.dropped_all(behind(picks, done), DropReason::ReceiverBusy);
                break;
            }
            if self.stopped || self.taken == 0 {
                let reason = if self.stopped { DropReason::RingBroken } else { DropReason::RingFull };
                outcome.dropped_all(behind(picks, done), reason);
                break;
            }
            let frame = batch.frame(pick);
            if let Some(&next) = picks.get(done + 1) {
                self.bring_next(batch, batch.frame(next));
            }
            if self.fill_plain(frame, batch.body(frame)) {
                outcome.delivered(frame.len);
                done += 1;
                continue;
            }
            match self.fill(frame, batch.body(frame)) {
                Ok(()) => outcome.delivered(frame.len),
                Err(Shortage::TooSmall) => outcome.dropped(pick, DropReason::BufferTooSmall),
                Err(Shortage::Chains) if self.filled > 0 => {
                    self.refill(batch, behind(picks, done), 1, outcome);
                    continue;
                }
                // From here on nothing has been filled since the ring was asked.
                Err(Shortage::Chains) if self.taken < self.asked && !self.queue.was_cut() => {
                    outcome.dropped(pick, DropReason::RingFull)
                }
                Err(Shortage::Chains) if self.asked == MAX_BATCH => {
                    outcome.dropped(pick, DropReason::BufferTooSmall);
                }
                Err(Shortage::Chains) => {
                    let least = 2 * self.asked;
                    self.refill(batch, behind(picks, done), least, outcome);
                    continue;
                }
            }
            done += 1;
        }
        self.publish(outcome);
    }

    fn is_full(&mut self) -> bool {
        !self.stopped && self.queue.is_empty()
    }

    fn tend(&mut self) -> bool {
        self.moderated.as_mut().is_some_and(|moderated| moderated.tend(&self.queue))
    }

    fn room(&mut self) -> Option<Room> {
        let (free, size) = self.queue.room();
        (!self.stopped).then_some(Room { free: free.into(), size: size.into() })
    }
}

const _: () = assert!(MAX_FRAME as usize + NET_HDR_LEN <= MAX_BATCH * 1024);
