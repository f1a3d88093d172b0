//! How the transmit ring reads: `LS` ends a packet, of which `packet` then makes a frame, and all its
//! descriptors go back to the driver. The walk is every card's (`device::nic`).
//!
//! A doorbell always traps, and only wakes a core that sleeps: descriptors are looked at, whether or not it
//! was rung, as by a part that has not come to rest yet.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::journal::RingJournal;
use super::packet::{changes_header, is_plain, make};
use super::regs;
use super::regs::desc::{LS, OWN, TX_LEN};
use super::ring::{Ring, RingWalk};
use super::state::{NicState, RealtekPart};
use crate::count;
use crate::device::csb::RingSide;
use crate::device::nic::{Cursor, Look, Made, TxCodec, Wishes};
use crate::device::packet::{headers, MIN_PADDED};
use crate::mem::{Arena, GuestMap};
use crate::packet::{Batch, Frame};
use crate::util::fault::Fault;

/// A guest's transmit ring.
pub struct TxRing {
    ring: Ring,
    headers: Arena,
}

impl TxRing {
    pub(super) fn new(map: &Arc<GuestMap>, csb: bool, journal: RingJournal) -> TxRing {
        TxRing { ring: Ring::new(map, journal, RingSide::Transmit, csb), headers: headers() }
    }
}

impl TxCodec for TxRing {
    type SharedPart = RealtekPart;
    type Own = RingWalk;
    const AHEAD: u32 = 32;

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn begin(&mut self, nic: &NicState) -> Result<bool, Fault> {
        self.ring.look_at_block(|| nic.block())?;
        Ok(true)
    }

    fn look_ahead(&mut self, at: Cursor, _: &mut usize) {
        self.ring.prefetch(at.place + Self::AHEAD, Self::AHEAD);
    }

    #[inline]
    fn look(&mut self, at: Cursor) -> Result<Look, Fault> {
        let word = self.ring.look(at.place)?;
        Ok(match word & OWN {
            0 => Look::Nothing,
            _ if at.count > 0 && at.place == self.ring.head => Look::Around,
            _ => Look::Descriptor(word),
        })
    }

    fn buffer(&self, place: u32) -> u64 {
        self.ring.buffer(place)
    }

    fn next(&mut self, at: Cursor, word: u64) -> Cursor {
        Cursor { place: self.ring.next(at.place, word), count: at.count + 1 }
    }

    fn waits(&mut self, _: &NicState, unfinished: Option<Cursor>) -> Result<bool, Fault> {
        Ok(self.ring.look(unfinished.map_or(self.ring.head, |at| at.place))? & OWN != 0)
    }

    fn plain(&self, word: u64) -> Option<u32> {
        let len = (word & TX_LEN) as u32;
        (word & LS != 0 && len >= MIN_PADDED && is_plain(word)).then_some(len)
    }

    fn data(&mut self, word: u64, _: u64) -> Option<(u32, bool)> {
        Some(((word & TX_LEN) as u32, word & LS != 0))
    }

    fn changes_header(word: u64) -> bool {
        changes_header(word)
    }

    fn mark(word: u64) -> Option<u64> {
        Some(word & !OWN)
    }

    fn make(&mut self, _: &NicState, batch: &mut Batch, wishes: &Wishes) -> Made {
        make(batch, &mut self.headers, wishes)
    }

    fn count(&mut self, _: &NicState, _: &Frame) {}

    fn counted(&mut self, nic: &NicState, frames: u32) {
        count(&nic.stats.sent, frames.into());
    }

    fn give_back(&mut self, nic: &NicState, marks: &[(u32, u64)], to: Cursor, _: bool) {
        self.ring.give_back(marks, to.place);
        nic.sizes[0].store(self.ring.size, Ordering::Relaxed);
    }

    fn report(&mut self, nic: &NicState, frames: u32, half: bool) -> u64 {
        // A driver with a status block says what it wants itself.
        nic.irq.sent(frames, half || self.ring.block.on)
    }

    fn restart(&mut self, nic: &NicState) {
        self.ring.restart(nic.regs.pair(regs::TNPDS));
    }

    fn remap(&mut self, map: &Arc<GuestMap>) {
        self.ring.remap(map);
    }

    fn recover(&mut self, nic: &NicState) -> bool {
        self.ring.recover(nic.regs.pair(regs::TNPDS));
        false
    }
}
