//! What a port delivers to: a ring on which the guest receives.
//!
//! The guest's head is looked at when there are frames for it, so it never has to tell that it has released some: kicks of
//! these rings are declined for good.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use super::bells::Way;
use super::shared::Shared;
use crate::frame::Batch;
use crate::mem::GuestMap;
use crate::port::{DropReason, EgressQueue, Outcome, Room};
use crate::ring::{Block, ClientRx, Hands, Region};
use crate::slots::Fill;

/// A ring on which a guest receives.
pub(super) struct Receiver {
    shared: Arc<Shared>,
    number: usize,
    slots: Fill<Block>,
    map: Arc<GuestMap>,
    /// A fault was found, and nothing is looked at until its guest begins again.
    stopped: bool,
}

impl Receiver {
    /// Ring `number` of `region`, as it is at first.
    pub(super) fn new(shared: Arc<Shared>, region: &Arc<Region>, number: usize) -> Receiver {
        let index = u32::try_from(number).unwrap_or(u32::MAX);
        let slots = Fill::new(ClientRx::with(region, index, Block::NONE));
        Receiver { shared, number, slots, map: Arc::default(), stopped: false }
    }

    /// The guest's indices stand at `block` from now on. It is filled in if the guest begins.
    pub(super) fn set_block(&mut self, block: Block, map: &Arc<GuestMap>, begins: bool) {
        self.map = Arc::clone(map);
        let place = self.slots.ring().place();
        let block = self.slots.ring().set_hands(block);
        if begins {
            block.begin(place);
            self.stopped = false;
        }
        block.withdraw();
    }

    /// Takes note of what the guest has released; of one that was found to lie, nothing.
    pub(super) fn look(&mut self) {
        if !self.stopped {
            self.slots.room();
        }
    }

    /// Where the ring is.
    pub(super) fn place(&mut self) -> [u32; 3] {
        self.slots.ring().place()
    }

    /// It is where another process left it; false: it cannot be there.
    pub(super) fn set_place(&mut self, hwcur: u32, hwtail: u32) -> bool {
        self.slots.ring().set_place(hwcur, hwtail)
    }

    /// It goes on from where its block says that it is.
    pub(super) fn recover(&mut self) -> bool {
        let [hwcur, hwtail] = self.slots.ring().hands().indices();
        self.set_place(hwcur, hwtail)
    }

    /// Shows whether the link is up.
    pub(super) fn set_link(&mut self, up: bool) {
        self.slots.ring().hands().set_link(up);
    }

    fn is_off(&self) -> bool {
        self.stopped || self.shared.is_down()
    }

    #[inline]
    fn judge(&mut self) {
        self.stopped |= !self.shared.goes_on(self.slots.is_lost(), &self.map);
    }
}

impl EgressQueue for Receiver {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if self.is_off() {
            return outcome.dropped_all(picks, DropReason::LinkDown);
        }
        if self.slots.send(batch, picks, self.shared.header().bytes, outcome) {
            outcome.interrupts += self.shared.bells.raise(self.number, Way::Receives);
        }
        self.shared.note_received(self.number);
        self.judge();
    }

    fn is_full(&mut self) -> bool {
        let full = !self.is_off() && self.slots.room().free == 0;
        self.judge();
        full
    }

    fn room(&mut self) -> Option<Room> {
        if self.is_off() {
            return None;
        }
        let room = self.slots.room();
        self.judge();
        Some(room)
    }
}
