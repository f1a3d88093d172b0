//! What an I/O core serves of a device: its transmit rings, and the clock of its interrupts.
//!
//! Both rings are one queue to the core, so that a card whose second ring is not set up costs nothing more than a look
//! at its length. The rings are asked in turns: a full one does not keep the other from sending.
//!
//! The queue is polled as long as the driver has the device on, even while the transmitter is off: it also
//! watches the interrupts' deadline.
//!
//! A tail in a mapped page cannot wake a core that sleeps: the queue asks for naps. A frame that a quiet guest
//! sends waits for one nap at most: 50 µs for some milliseconds after the last frame in either direction,
//! 200 µs for two seconds, 1 ms from then on. A tail that is written by a trap wakes the core; a driver with a status
//! block is not asked for that while naps are the shortest, so that a steady sender never leaves its guest.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::nic::NicState;
use super::regs::{QUEUES, TX_RINGS};
use super::tx::TxRing;
use crate::mem::{ticks, ticks_in, Deadline};
use crate::packet::{Batch, ALL};
use crate::port::{DropReason, IngressQueue, Outcome, Reached, Tally};

/// How long after the last frame naps are how long.
const NAPS: [(Duration, Duration); 2] = [
    (Duration::from_millis(5), Duration::from_micros(50)),
    (Duration::from_secs(2), Duration::from_micros(200)),
];
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// Frames that come back do so for so long.
const LIMIT: Duration = Duration::from_millis(1);
/// The port's egress queue that receives them: frames of others go to the first one, which is not there then.
pub(super) const LOOP: usize = 1;

/// A guest's transmit rings.
pub(super) struct Transmitter {
    nic: Arc<NicState>,
    rings: [TxRing; QUEUES],
    /// The ring that is asked first.
    turn: usize,
    worked: bool,
    last_work: Instant,
    /// A driver with a status block was not asked for kicks when the core went to sleep.
    unasked: bool,
}

impl Transmitter {
    pub(super) fn new(nic: Arc<NicState>, rings: [TxRing; QUEUES]) -> Transmitter {
        Transmitter { nic, rings, turn: 0, worked: false, last_work: Instant::now(), unasked: false }
    }

    /// All of the rings, to be set up or ended.
    pub(super) fn rings(&mut self) -> &mut [TxRing; QUEUES] {
        &mut self.rings
    }

    /// Gives back what was taken, whether or not the ring is still set up.
    #[inline]
    fn give_back(&mut self, tally: &mut Tally) {
        let [first, second] = &mut self.rings;
        first.give_back(tally);
        second.give_back(tally);
    }

    /// The frames come back instead of leaving (`RCTL.LBM`, 8254x SDM §13.4.22; IEEE 802.3 §22.2.4.1.2): checksums and
    /// segments are not made, which no driver's self-test asks for. Those are no traffic of the port: only frames that are
    /// dropped here have come in.
    #[cold]
    fn loop_back(&self, batch: &mut Batch, tally: &mut Tally) {
        let (mut outcome, deadline) = (Outcome::new(), Deadline::new(ticks(), ticks_in(LIMIT), 0));
        let mut reached = self.nic.port.reach(LOOP);
        for &pick in &ALL[..batch.len()] {
            match &mut reached {
                Reached::Slot(slot) if !deadline.is_over() => match &mut **slot {
                    Some(queue) => queue.send(batch, &[pick], &mut outcome),
                    None => outcome.dropped(pick, DropReason::LinkDown),
                },
                _ => outcome.dropped(pick, DropReason::ReceiverBusy),
            }
        }
        batch.consume();
        tally.frames -= outcome.frames;
        tally.bytes -= outcome.bytes;
        tally.interrupts += outcome.interrupts;
        tally.occasions += outcome.occasions;
        tally.drops.merge(&outcome.drops);
    }
}

impl IngressQueue for Transmitter {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        tally.interrupts += self.nic.irq.poll() + self.nic.irq.alarm.noted();
        let worked = if self.nic.has_second(&TX_RINGS) {
            self.turn ^= 1;
            let [first, second] = &mut self.rings;
            let (first, second) = if self.turn == 0 { (first, second) } else { (second, first) };
            first.fetch(batch, tally) | second.fetch(batch, tally)
        } else {
            self.rings[0].fetch(batch, tally)
        };
        self.worked |= worked;
        if worked && self.nic.looped.load(Ordering::Relaxed) {
            self.loop_back(batch, tally);
        }
        if tally.frames == 0 {
            // Descriptors without frames, and frames that came back: nothing is released behind this.
            self.give_back(tally);
        }
    }

    fn has_frames(&mut self) -> bool {
        self.rings[0].has_work() || self.nic.has_second(&TX_RINGS) && self.rings[1].has_work()
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.nic.irq.poll() + self.nic.irq.alarm.noted();
    }

    fn release(&mut self, tally: &mut Tally) {
        self.give_back(tally);
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.nic.irq.alarm.set_sleeping(on);
        if !on {
            self.rings[0].block().ask_for_kicks(false);
            return false;
        }
        if std::mem::take(&mut self.worked) | self.nic.received.swap(false, Ordering::Relaxed) {
            self.last_work = Instant::now();
        }
        // A store to a mapped tail wakes no core: such a kick would cost the guest something and be of no use.
        let ask = !self.nic.exitless && self.last_work.elapsed() >= NAPS[0].0;
        self.rings[0].block().ask_for_kicks(ask);
        self.unasked = !ask && self.rings[0].block().is_on();
        let waiting = self.rings[0].has_work();
        waiting || self.nic.has_second(&TX_RINGS) && self.rings[1].has_work()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.nic.irq.alarm.wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let second = self.nic.has_second(&TX_RINGS);
        let running = self.rings[0].is_running() || second && self.rings[1].is_running();
        let nap = running.then(|| {
            // Where pages are not mapped, no doorbell is a store.
            if TX_RINGS.iter().any(|at| self.nic.is_trapping(*at)) && !self.unasked {
                return LONGEST_NAP;
            }
            let silence = self.last_work.elapsed();
            NAPS.iter().find(|(until, _)| silence < *until).map_or(LONGEST_NAP, |(_, nap)| *nap)
        });
        [nap, self.nic.irq.alarm.due_in()].into_iter().flatten().min()
    }
}
