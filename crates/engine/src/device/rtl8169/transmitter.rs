//! What an I/O core serves of a device: its transmit ring, and the clock of its interrupts.
//!
//! The queue is polled as long as the driver has the device on, even while the transmitter is off: it also watches the
//! interrupts' deadline. A doorbell always traps, and wakes the core if it sleeps; so the queue asks for no naps.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;
use super::tx::TxRing;
use crate::frame::Batch;
use crate::port::{IngressQueue, Tally};

/// A guest's transmit ring and interrupts.
pub(super) struct Transmitter {
    shared: Arc<Shared>,
    ring: TxRing,
}

impl Transmitter {
    pub(super) fn new(shared: Arc<Shared>, ring: TxRing) -> Transmitter {
        Transmitter { shared, ring }
    }

    /// The ring, to be set up or ended.
    pub(super) fn ring(&mut self) -> &mut TxRing {
        &mut self.ring
    }
}

impl IngressQueue for Transmitter {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        // Nobody releases a batch that had no frames.
        self.ring.give_back(tally);
        self.tend(tally);
        self.ring.fetch(batch, tally);
    }

    fn has_frames(&mut self) -> bool {
        self.ring.has_work()
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.shared.irq.poll() + self.shared.irq.noted();
    }

    fn release(&mut self, tally: &mut Tally) {
        self.ring.give_back(tally);
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.shared.irq.alarm.set_sleeping(on);
        on && self.ring.has_work()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.irq.alarm.wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        self.shared.irq.alarm.due_in()
    }
}
