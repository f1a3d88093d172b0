//! What a port delivers to: a device's receive rings.
//!
//! One ring takes everything until the driver turns on receive side scaling; then `rss` chooses for each
//! frame, and each ring gets its frames together and interrupts for itself. Whether one of them has room is
//! nothing to the other.

use std::sync::Arc;

use super::regs::QUEUES;
use super::rss::Rss;
use super::rx::RxRing;
use super::shared::NicState;
use crate::device::nic::RxRings;
use crate::mem::GuestMap;
use crate::packet::{Batch, MAX_BATCH};
use crate::port::{EgressQueue, Outcome, Room};

/// A guest's receive rings.
pub struct Receiver {
    nic: Arc<NicState>,
    rings: [RxRing; QUEUES],
    rss: Rss,
    /// The frames of a batch for each ring, and what their descriptors say of the choice.
    picks: [Vec<u16>; QUEUES],
    marks: [Vec<u64>; QUEUES],
}

impl Receiver {
    pub(super) fn new(nic: Arc<NicState>, rings: [RxRing; QUEUES]) -> Receiver {
        let picks = [(); QUEUES].map(|()| Vec::with_capacity(MAX_BATCH));
        let marks = [(); QUEUES].map(|()| Vec::with_capacity(MAX_BATCH));
        Receiver { nic, rings, rss: Rss::new(), picks, marks }
    }

    #[inline(never)]
    fn spread(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        let regs = &self.nic.regs;
        self.rss.refresh(regs);
        for &pick in picks {
            let (ring, mark) = self.rss.choose(regs, batch.frame(pick));
            self.picks[ring].push(pick);
            self.marks[ring].push(mark);
        }
        for (ring, (picks, marks)) in self.rings.iter_mut().zip(self.picks.iter_mut().zip(&mut self.marks)) {
            if !picks.is_empty() {
                ring.send(batch, picks, |index| marks.get(index).copied().unwrap_or(0), outcome);
                picks.clear();
                marks.clear();
            }
        }
    }
}

impl RxRings for Receiver {
    fn set_map(&mut self, map: &Arc<GuestMap>) {
        self.rings.iter_mut().for_each(|ring| ring.set_map(map));
    }

    fn rest(&mut self) {
        self.rings.iter_mut().for_each(RxRing::rest);
    }

    fn reset(&mut self) {
        self.rings.iter_mut().for_each(RxRing::reset);
    }

    fn recover(&mut self) {
        self.rings.iter_mut().for_each(RxRing::recover);
    }
}

impl EgressQueue for Receiver {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if Rss::is_on(&self.nic.regs) {
            return self.spread(batch, picks, outcome);
        }
        self.rings[0].send(batch, picks, |_| 0, outcome);
    }

    fn is_full(&mut self) -> bool {
        let [first, second] = &mut self.rings;
        first.is_full() && (!Rss::is_on(&self.nic.regs) || second.is_full())
    }

    fn room(&mut self) -> Option<Room> {
        let used = if Rss::is_on(&self.nic.regs) { QUEUES } else { 1 };
        self.rings.iter_mut().take(used).filter_map(RxRing::room).min_by_key(|room| room.free)
    }
}
