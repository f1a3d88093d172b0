//! A ring on which a native program receives.

use std::sync::Arc;

use super::settings::{RingPortSettings, Wake};
use crate::frame::Batch;
use crate::port::{DropReason, EgressQueue, Outcome, Room};
use crate::ring::{ClientRx, ReleaseGate, RingStats, Tickets};
use crate::slots::Fill;

/// A ring on which the client receives.
pub struct RingEgress {
    slots: Fill<Tickets>,
    settings: Arc<RingPortSettings>,
    wake: Wake,
}

impl RingEgress {
    /// The queue of `ring`, which wakes the client by `wake`.
    pub(super) fn new(ring: ClientRx, settings: Arc<RingPortSettings>, wake: Wake) -> RingEgress {
        RingEgress { slots: Fill::new(ring), settings, wake }
    }

    /// Slots that are filled from now on have these flags, too.
    pub(super) fn mark(&mut self, flags: u16) {
        self.slots.mark(flags);
    }

    /// What went wrong so far.
    pub(super) fn stats(&self) -> &Arc<RingStats> {
        self.slots.stats()
    }

    /// What keeps released slots for monitors of what the client has released.
    pub(super) fn gate(&self) -> &Arc<ReleaseGate> {
        self.slots.gate()
    }
}

impl EgressQueue for RingEgress {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if self.settings.is_down() {
            return outcome.dropped_all(picks, DropReason::LinkDown);
        }
        if self.slots.send(batch, picks, self.settings.header(), outcome) {
            self.wake.wake();
            outcome.interrupts += 1;
        }
    }

    fn is_full(&mut self) -> bool {
        !self.settings.is_down() && self.slots.room().free == 0
    }

    fn room(&mut self) -> Option<Room> {
        (!self.settings.is_down()).then(|| self.slots.room())
    }
}
