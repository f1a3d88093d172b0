//! What an I/O core serves of a device: its transmit ring, and the clock of its interrupts.
//!
//! The queue is polled as long as the driver has the device on, even while the transmitter is off: it also watches the
//! interrupts' deadline. A doorbell always traps, and wakes the core if it sleeps; so the queue asks for no naps. A driver
//! with a status block is not asked for doorbells while frames have come of late: then the queue has the core nap, so that a
//! steady sender never leaves its guest.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::nic::NicState;
use super::tx::TxRing;
use crate::frame::Batch;
use crate::port::{IngressQueue, Tally};

/// How long after the last frame in either direction a driver with a status block is not asked for doorbells, and the naps then.
const BUSY: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(50);

/// A guest's transmit ring and interrupts.
pub(super) struct Transmitter {
    nic: Arc<NicState>,
    ring: TxRing,
    worked: bool,
    last_work: Instant,
    /// The driver was not asked for doorbells when the core went to sleep.
    unasked: bool,
}

impl Transmitter {
    pub(super) fn new(nic: Arc<NicState>, ring: TxRing) -> Transmitter {
        Transmitter { nic, ring, worked: false, last_work: Instant::now(), unasked: false }
    }

    /// The ring, to be set up or ended.
    pub(super) fn ring(&mut self) -> &mut TxRing {
        &mut self.ring
    }
}

impl IngressQueue for Transmitter {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        // A batch without frames is not released.
        self.ring.give_back(tally);
        self.tend(tally);
        self.worked |= self.ring.fetch(batch, tally);
    }

    fn has_frames(&mut self) -> bool {
        self.ring.has_work()
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.nic.irq.poll() + self.nic.irq.noted();
    }

    fn release(&mut self, tally: &mut Tally) {
        self.ring.give_back(tally);
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.nic.irq.alarm.set_sleeping(on);
        self.unasked = false;
        if !on {
            self.ring.ask_for_kicks(false);
            return false;
        }
        if self.ring.has_block() {
            if std::mem::take(&mut self.worked) | self.nic.received.swap(false, Ordering::Relaxed) {
                self.last_work = Instant::now();
            }
            self.unasked = self.last_work.elapsed() < BUSY;
            self.ring.ask_for_kicks(!self.unasked);
        }
        self.ring.has_work()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.nic.irq.alarm.wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let nap = self.unasked.then_some(NAP);
        [nap, self.nic.irq.alarm.due_in()].into_iter().flatten().min()
    }
}
