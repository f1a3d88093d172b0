//! What an I/O core serves of a card: its transmit rings, and the clock of its interrupts.
//!
//! All rings are one queue to the core, so that a card whose second ring is not set up costs nothing more
//! than a look at its length. The rings are asked in turns: a full one does not keep the other from sending.
//!
//! The queue is polled as long as the driver has the device on, even while the transmitter is off: it also
//! watches the interrupts' deadline.
//!
//! A tail in a mapped page cannot wake a core that sleeps: the queue asks for naps. A frame that a quiet
//! guest sends waits for one nap at most: 50 µs for some milliseconds after the last frame in either
//! direction, 200 µs for two seconds, 1 ms from then on. A doorbell that traps wakes the core; a driver with
//! a status block is not asked for that while naps are the shortest, so that a steady sender never leaves its
//! guest.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ring::{Nic, SharedPart};
use super::tx::{TxCodec, TxRing};
use crate::mem::{ticks, ticks_in, Deadline, GuestMap};
use crate::packet::{Batch, ALL};
use crate::port::{DropReason, IngressQueue, Outcome, Reached, Tally};

/// Until how long after the last frame a nap has which length.
const NAPS: [(Duration, Duration); 2] = [
    (Duration::from_millis(5), Duration::from_micros(50)),
    (Duration::from_secs(2), Duration::from_micros(200)),
];
pub(in crate::device) const LONGEST_NAP: Duration = Duration::from_millis(1);
/// The time that a batch of frames has to come back (`loop_back`).
const LIMIT: Duration = Duration::from_millis(1);
/// The port's egress queue that receives them: frames of others go to the first one, which is not there then.
pub(in crate::device) const LOOP: usize = 1;

/// A guest's transmit rings.
pub(in crate::device) struct Transmitter<C: TxCodec> {
    nic: Arc<Nic<C::SharedPart>>,
    rings: Box<[TxRing<C>]>,
    /// The ring that is asked first.
    turn: usize,
    /// A ring had work since the core last went to sleep.
    worked: bool,
    /// When the core went to sleep after work, for the length of naps.
    last_work: Instant,
    /// A driver with a status block was not asked for kicks when the core went to sleep.
    unasked: bool,
}

impl<C: TxCodec> Transmitter<C> {
    pub(super) fn new(nic: &Arc<Nic<C::SharedPart>>, codecs: Vec<C>) -> Transmitter<C> {
        let ring = |(queue, codec)| TxRing::new(Arc::clone(nic), queue, codec);
        let rings = codecs.into_iter().enumerate().map(ring).collect();
        let nic = Arc::clone(nic);
        Transmitter { nic, rings, turn: 0, worked: false, last_work: Instant::now(), unasked: false }
    }

    /// All of the rings, to be set up or ended.
    pub(super) fn each(&mut self, change: impl FnMut(&mut TxRing<C>)) {
        self.rings.iter_mut().for_each(change);
    }

    /// The device is at the beginning of its rings.
    pub(in crate::device) fn restart(&mut self) {
        self.each(TxRing::restart);
    }

    pub(super) fn set_map(&mut self, map: &Arc<GuestMap>) {
        self.each(|ring| ring.set_map(map));
    }

    /// Those that the driver has set up.
    #[inline]
    fn used(&mut self) -> &mut [TxRing<C>] {
        let count = self.nic.transmit_rings();
        self.rings.get_mut(..count).unwrap_or_default()
    }

    /// Asks the driver for kicks, or declines them. Whether its status block is on.
    fn ask_for_kicks(&mut self, on: bool) -> bool {
        let Some(block) = self.rings.first_mut().map(|ring| &mut ring.codec.ring_mut().block) else {
            return false;
        };
        block.ask_for_kicks(on);
        block.on
    }

    /// The frames come back instead of leaving (`RCTL.LBM`, 8254x SDM §13.4.22; IEEE 802.3 §22.2.4.1.2):
    /// checksums and segments are not made, which no driver's self-test asks for. Frames that came back are
    /// no traffic of the port: only those that are dropped here are counted as coming in.
    #[cold]
    fn loop_back(&self, batch: &mut Batch, tally: &mut Tally) {
        let (mut outcome, deadline) = (Outcome::new(), Deadline::new(ticks(), ticks_in(LIMIT), 0));
        let mut reached = self.nic.port.reach(LOOP);
        for &pick in ALL.iter().take(batch.len()) {
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

impl<C: TxCodec> IngressQueue for Transmitter<C> {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        self.tend(tally);
        // There are two rings at most, which take turns to be first.
        self.turn ^= 1;
        let turn = self.turn;
        let mut worked = false;
        let used = self.used();
        let (second, first) = used.split_at_mut(turn.min(used.len().saturating_sub(1)));
        for ring in first.iter_mut().chain(second) {
            worked |= ring.take(batch, tally);
        }
        self.worked |= worked;
        if worked && self.nic.looped.load(Ordering::Relaxed) {
            self.loop_back(batch, tally);
        }
        if tally.frames == 0 {
            // Descriptors without frames, and frames that came back: nothing is released behind this.
            self.release(tally);
        }
    }

    fn has_frames(&mut self) -> bool {
        self.used().iter_mut().any(TxRing::has_work)
    }

    fn tend(&mut self, tally: &mut Tally) {
        tally.interrupts += self.nic.irq.poll() + self.nic.irq.alarm.noted();
    }

    fn release(&mut self, tally: &mut Tally) {
        self.each(|ring| ring.give_back(tally));
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.nic.irq.alarm.set_sleeping(on);
        if !on {
            self.ask_for_kicks(false);
            return false;
        }
        if std::mem::take(&mut self.worked) | self.nic.received.swap(false, Ordering::Relaxed) {
            self.last_work = Instant::now();
        }
        // A store to a mapped tail wakes no core: such a kick would cost the guest something and be of no
        // use.
        let ask = self.nic.always_traps() && self.last_work.elapsed() >= NAPS[0].0;
        self.unasked = self.ask_for_kicks(ask) && !ask;
        self.has_frames()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.nic.irq.alarm.wake_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let count = self.nic.transmit_rings();
        let running = self.rings.iter().take(count).any(TxRing::is_running);
        let nap = || {
            // Where pages are not mapped, no doorbell is a store.
            if self.nic.is_trapping() && !self.unasked {
                return C::SharedPart::NAP_IF_TRAPPING;
            }
            let silence = self.last_work.elapsed();
            NAPS.iter().find(|(until, _)| silence < *until).map_or(Some(LONGEST_NAP), |(_, nap)| Some(*nap))
        };
        let nap = if running { nap() } else { None };
        [nap, self.nic.irq.alarm.due_in()].into_iter().flatten().min()
    }
}
