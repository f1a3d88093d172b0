//! Frames that come out of the tunnel.
//!
//! Invariant of the `unsafe` here: a segment's bytes are read only until [`VxlanIngress::release`], which
//! gives it back when no batch of the queue is under way.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::gro::join;
use super::socket::{Segment, Underlay};
use super::vteps::Vteps;
use crate::host::describe::{describe, Facts};
use crate::mem::Pieces;
use crate::packet::{Batch, Offloads, HEAD, MAX_BATCH, MAX_PIECES};
use crate::port::{DropReason, IngressQueue, Tally};
use crate::util::slice::{behind, upto};

/// Most frames that are taken at a time: segments of a few streams may become few frames.
const AHEAD: usize = 4 * MAX_BATCH;

/// Frames that come out of the tunnel.
pub(super) struct VxlanIngress {
    underlay: Arc<Underlay>,
    vteps: Arc<Vteps>,
    vni: u32,
    /// Frames that were taken and wait for the next batch.
    waiting: VecDeque<Segment>,
    /// Those of this batch.
    taken: Vec<Segment>,
    /// Their stations, and the endpoints behind which those are.
    seen: Vec<(u64, u16)>,
}

impl VxlanIngress {
    pub(super) fn new(underlay: Arc<Underlay>, vteps: Arc<Vteps>, vni: u32) -> VxlanIngress {
        VxlanIngress {
            underlay,
            vteps,
            vni,
            waiting: VecDeque::with_capacity(AHEAD),
            taken: Vec::with_capacity(AHEAD),
            seen: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Describes the first of the frames that wait, with those behind it that are of one stream.
    fn describe(&mut self, batch: &mut Batch) -> Result<(), DropReason> {
        let slots = &self.underlay.slots;
        // SAFETY: the slot is not written until the segment is given back.
        let bytes = |segment: &Segment| unsafe { slots.bytes(segment.at, segment.len) };
        let joined = join(self.waiting.iter().take(batch.pieces.room().min(MAX_PIECES)).map(bytes));
        let (count, from) = (joined.as_ref().map_or(1, |joined| joined.count), self.taken.len());
        self.taken.extend(self.waiting.drain(..count));
        let Some((first, others)) = behind(&self.taken, from).split_first() else { return Ok(()) };
        let piece = |from: usize, len| slots.piece(first.at + from, len);
        let Some(joined) = joined else { return describe(batch, bytes(first), &Facts::default(), piece) };
        for (place, pair) in joined.patches {
            // SAFETY: the same, and no slice of it is left.
            unsafe { slots.write(first.at + place, pair) };
        }
        let head = upto(bytes(first), HEAD);
        let offload =
            joined.offload.check(head, joined.len, Offloads::ALL).map_err(|_| DropReason::BadOffload)?;
        let rest = |segment: &Segment, from: usize| {
            slots.piece(segment.at + from, u32::try_from(segment.len - from).unwrap_or(0))
        };
        let pieces = |to: &mut Pieces| {
            (first.len <= HEAD || to.push(rest(first, HEAD)))
                && others.iter().all(|segment| to.push(rest(segment, joined.payload)))
        };
        batch.push_with(head, joined.len, offload, pieces).then_some(()).ok_or(DropReason::TooManyPieces)
    }
}

impl IngressQueue for VxlanIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        if self.waiting.is_empty() {
            self.underlay.take(self.vni, AHEAD, &mut self.waiting, tally);
        }
        self.seen.clear();
        while batch.room() > 0 {
            let Some(Segment { vtep, .. }) = self.waiting.front().copied() else { break };
            let described = self.describe(batch);
            tally.frames += 1;
            match described {
                Err(reason) => {
                    tally.drops.add(reason, 1);
                    batch.skip();
                }
                Ok(()) => {
                    let Some(frame) = batch.frames().last() else { continue };
                    let src = self.vteps.key(frame, frame.src());
                    tally.bytes += u64::from(frame.len);
                    if self.seen.last() != Some(&(src, vtep)) {
                        self.seen.push((src, vtep));
                    }
                }
            }
        }
        self.vteps.learn(&self.seen);
    }

    fn release(&mut self, _: &mut Tally) {
        self.underlay.give_back(self.taken.drain(..));
    }

    /// The socket is readable while datagrams wait, asked or not. Frames in this port's lane were taken out
    /// of it by another.
    fn want_kicks(&mut self, on: bool) -> bool {
        on && (!self.waiting.is_empty() || self.underlay.waits(self.vni))
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.underlay.fd.as_fd())
    }

    fn poll_is_costly(&self) -> bool {
        true
    }
}

impl Drop for VxlanIngress {
    fn drop(&mut self) {
        self.underlay.give_back(self.waiting.drain(..).chain(self.taken.drain(..)));
    }
}
