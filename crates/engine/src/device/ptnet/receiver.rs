//! What a port delivers to: a ring on which the guest receives.
//!
//! The guest's head is looked at when there are frames for it, so it never has to tell that it has released
//! some: kicks of these rings are declined for good.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use super::messages::RingUse;
use super::nic::NicState;
use crate::mem::GuestMap;
use crate::packet::Batch;
use crate::port::{DropReason, EgressQueue, Outcome, Port, Room};
use crate::ring::{Block, ClientRx, Hands, Region};
use crate::slots::pipe::{End, Far, Receiving};
use crate::slots::Fill;

/// What fills its slots.
enum Filling {
    /// Frames.
    Frames(Fill<Block>),
    /// The other end of a pipe.
    Pipe(Receiving),
}

/// A ring on which a guest receives.
pub(super) struct Receiver {
    nic: Arc<NicState>,
    number: usize,
    slots: Filling,
    map: Arc<GuestMap>,
    /// A fault was found, and nothing is looked at until its guest begins again.
    stopped: bool,
}

impl Receiver {
    /// Ring `number` of `region`, as it is at first; of a pipe's end, as the pipe is.
    pub(super) fn new(
        nic: Arc<NicState>,
        region: &Arc<Region>,
        pipe: Option<&End>,
        number: usize,
    ) -> Receiver {
        let index = u32::try_from(number).unwrap_or(u32::MAX);
        let slots = match pipe.and_then(|end| end.receiving(number)) {
            Some(receiving) => Filling::Pipe(receiving),
            None => Filling::Frames(Fill::new(ClientRx::with(region, index, Block::NONE))),
        };
        Receiver { nic, number, slots, map: Arc::default(), stopped: false }
    }

    /// The guest's indices stand at `block` from now on, or nowhere. It is filled in if the guest begins.
    pub(super) fn set_block(&mut self, block: Option<Block>, map: &Arc<GuestMap>, begins: bool) {
        self.map = Arc::clone(map);
        self.stopped &= !begins;
        match &mut self.slots {
            Filling::Pipe(receiving) => receiving.set_block(block, begins),
            Filling::Frames(slots) => {
                let position = slots.ring.position();
                let block = slots.ring.access.set_hands(block.unwrap_or(Block::NONE));
                if begins {
                    block.begin(position);
                }
                block.withdraw();
            }
        }
    }

    /// It is about to be lent: a pipe may use it.
    pub(super) fn show(&mut self) {
        if let Filling::Pipe(receiving) = &mut self.slots {
            receiving.show(Arc::new(GuestEnd { nic: Arc::clone(&self.nic), number: self.number }));
        }
    }

    /// Takes note of what the guest has released; of one that was found to lie, nothing.
    pub(super) fn look(&mut self) {
        if let (Filling::Frames(slots), false) = (&mut self.slots, self.stopped) {
            slots.room();
        }
    }

    /// Its ring, where it is no pipe's: a pipe knows itself where its rings are.
    pub(super) fn ring(&mut self) -> Option<&mut ClientRx<Block>> {
        match &mut self.slots {
            Filling::Frames(slots) => Some(&mut slots.ring),
            Filling::Pipe(_) => None,
        }
    }

    /// It goes on from where its block says that it is. False: it cannot be there.
    pub(super) fn recover(&mut self) -> bool {
        self.ring().is_none_or(|ring| {
            let [hwcur, hwtail] = ring.access.hands().indices();
            ring.set_position(hwcur, hwtail)
        })
    }

    /// Shows whether the link is up.
    pub(super) fn set_link(&mut self, up: bool) {
        match &mut self.slots {
            Filling::Frames(slots) => slots.ring.access.hands().set_link(up),
            Filling::Pipe(receiving) => receiving.set_link(up),
        }
    }

    fn is_off(&self) -> bool {
        self.stopped || self.nic.is_down()
    }

    #[inline]
    fn judge(&mut self) {
        // The other end of a pipe finds out.
        let is_lost = matches!(&self.slots, Filling::Frames(slots) if slots.ring.access.is_lost());
        self.stopped |= !self.nic.goes_on(is_lost, &self.map);
    }
}

impl EgressQueue for Receiver {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if self.is_off() {
            return outcome.dropped_all(picks, DropReason::LinkDown);
        }
        let Filling::Frames(slots) = &mut self.slots else {
            // Nothing is joined to a pipe's end.
            return outcome.dropped_all(picks, DropReason::LinkDown);
        };
        if slots.send(batch, picks, self.nic.header().bytes, outcome) {
            outcome.interrupts += self.nic.messages.raise(self.number, RingUse::Receives);
        }
        self.nic.note_received(self.number);
        self.judge();
    }

    fn is_full(&mut self) -> bool {
        let off = self.is_off();
        let full = match &mut self.slots {
            Filling::Frames(slots) => !off && slots.room().free == 0,
            Filling::Pipe(_) => false,
        };
        self.judge();
        full
    }

    fn room(&mut self) -> Option<Room> {
        if self.is_off() {
            return None;
        }
        let Filling::Frames(slots) = &mut self.slots else { return None };
        let room = slots.room();
        self.judge();
        Some(room)
    }

    /// A pipe uses it no more.
    fn unplugged(&mut self) {
        if let Filling::Pipe(receiving) = &mut self.slots {
            receiving.hide();
        }
    }
}

/// The guest, as the other end of its pipe tells it of frames.
struct GuestEnd {
    nic: Arc<NicState>,
    number: usize,
}

impl Far for GuestEnd {
    fn port(&self) -> &Port {
        &self.nic.port
    }

    fn raise(&self) -> u64 {
        self.nic.messages.raise(self.number, RingUse::Receives)
    }

    fn note(&self) {
        self.nic.note_received(self.number);
    }
}
