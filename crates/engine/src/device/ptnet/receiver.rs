//! What a port delivers to: a ring on which the guest receives.
//!
//! The guest's head is looked at when there are frames for it, so it never has to tell that it has released some: kicks of
//! these rings are declined for good.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use super::bells::Way;
use super::shared::Shared;
use crate::fault::Fault;
use crate::frame::Batch;
use crate::mem::GuestMap;
use crate::observe::PortCounters;
use crate::port::{DropReason, EgressQueue, Outcome, Room};
use crate::ring::{Block, ClientRx, Hands, Region};
use crate::slots::pipe::{End, Far, Receiving};
use crate::slots::Fill;

/// What fills its slots.
enum Slots {
    /// Frames.
    Frames(Fill<Block>),
    /// The other end of a pipe.
    Pipe(Receiving),
}

/// A ring on which a guest receives.
pub(super) struct Receiver {
    shared: Arc<Shared>,
    number: usize,
    slots: Slots,
    map: Arc<GuestMap>,
    /// A fault was found, and nothing is looked at until its guest begins again.
    stopped: bool,
}

impl Receiver {
    /// Ring `number` of `region`, as it is at first; of a pipe's end, as the pipe is.
    pub(super) fn new(
        shared: Arc<Shared>,
        region: &Arc<Region>,
        pipe: Option<&End>,
        number: usize,
    ) -> Receiver {
        let index = u32::try_from(number).unwrap_or(u32::MAX);
        let slots = match pipe.and_then(|end| end.receiving(number)) {
            Some(receiving) => Slots::Pipe(receiving),
            None => Slots::Frames(Fill::new(ClientRx::with(region, index, Block::NONE))),
        };
        Receiver { shared, number, slots, map: Arc::default(), stopped: false }
    }

    /// The guest's indices stand at `block` from now on, or nowhere. It is filled in if the guest begins.
    pub(super) fn set_block(&mut self, block: Option<Block>, map: &Arc<GuestMap>, begins: bool) {
        self.map = Arc::clone(map);
        self.stopped &= !begins;
        match &mut self.slots {
            Slots::Pipe(receiving) => receiving.set_block(block, begins),
            Slots::Frames(slots) => {
                let place = slots.ring().place();
                let block = slots.ring().set_hands(block.unwrap_or(Block::NONE));
                if begins {
                    block.begin(place);
                }
                block.withdraw();
            }
        }
    }

    /// It is about to be lent: a pipe may use it.
    pub(super) fn show(&mut self) {
        if let Slots::Pipe(receiving) = &mut self.slots {
            receiving.show(Arc::new(Told { shared: Arc::clone(&self.shared), number: self.number }));
        }
    }

    /// Takes note of what the guest has released; of one that was found to lie, nothing.
    pub(super) fn look(&mut self) {
        if let (Slots::Frames(slots), false) = (&mut self.slots, self.stopped) {
            slots.room();
        }
    }

    /// Where the ring is. A pipe knows that itself.
    pub(super) fn place(&mut self) -> [u32; 3] {
        match &mut self.slots {
            Slots::Frames(slots) => slots.ring().place(),
            Slots::Pipe(_) => [0; 3],
        }
    }

    /// It is where another process left it; false: it cannot be there.
    pub(super) fn set_place(&mut self, hwcur: u32, hwtail: u32) -> bool {
        match &mut self.slots {
            Slots::Frames(slots) => slots.ring().set_place(hwcur, hwtail),
            Slots::Pipe(_) => true,
        }
    }

    /// It goes on from where its block says that it is, or its pipe.
    pub(super) fn recover(&mut self) -> bool {
        match &mut self.slots {
            Slots::Frames(slots) => {
                let [hwcur, hwtail] = slots.ring().hands().indices();
                slots.ring().set_place(hwcur, hwtail)
            }
            Slots::Pipe(_) => true,
        }
    }

    /// Shows whether the link is up.
    pub(super) fn set_link(&mut self, up: bool) {
        match &mut self.slots {
            Slots::Frames(slots) => slots.ring().hands().set_link(up),
            Slots::Pipe(receiving) => receiving.set_link(up),
        }
    }

    fn is_off(&self) -> bool {
        self.stopped || self.shared.is_down()
    }

    #[inline]
    fn judge(&mut self) {
        // Of a pipe's its other end finds out.
        let is_lost = matches!(&self.slots, Slots::Frames(slots) if slots.is_lost());
        self.stopped |= !self.shared.goes_on(is_lost, &self.map);
    }
}

impl EgressQueue for Receiver {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if self.is_off() {
            return outcome.dropped_all(picks, DropReason::LinkDown);
        }
        let Slots::Frames(slots) = &mut self.slots else {
            // Nothing is joined to a pipe's end.
            return outcome.dropped_all(picks, DropReason::LinkDown);
        };
        if slots.send(batch, picks, self.shared.header().bytes, outcome) {
            outcome.interrupts += self.shared.bells.raise(self.number, Way::Receives);
        }
        self.shared.note_received(self.number);
        self.judge();
    }

    fn is_full(&mut self) -> bool {
        let off = self.is_off();
        let full = match &mut self.slots {
            Slots::Frames(slots) => !off && slots.room().free == 0,
            Slots::Pipe(_) => false,
        };
        self.judge();
        full
    }

    fn room(&mut self) -> Option<Room> {
        if self.is_off() {
            return None;
        }
        let Slots::Frames(slots) = &mut self.slots else { return None };
        let room = slots.room();
        self.judge();
        Some(room)
    }

    /// A pipe uses it no more.
    fn unplugged(&mut self) {
        if let Slots::Pipe(receiving) = &mut self.slots {
            receiving.hide();
        }
    }
}

/// The guest, as the other end of its pipe tells it of frames.
struct Told {
    shared: Arc<Shared>,
    number: usize,
}

impl Far for Told {
    fn owner(&self) -> u16 {
        self.shared.port.id.0
    }

    fn counters(&self) -> &PortCounters {
        &self.shared.port.counters
    }

    fn raise(&self) -> u64 {
        self.shared.bells.raise(self.number, Way::Receives)
    }

    fn note(&self) {
        self.shared.note_received(self.number);
    }

    fn fail(&self, fault: Fault) {
        self.shared.port.fault.set(fault);
    }
}
