//! A ring that is watched from outside: what passes in a pipe, and what a client has released.
//!
//! Monitors look where frames pass an I/O core. Two things do not: frames in pipes, and the moment at which a
//! client releases a frame, which is when netmap's zero-copy monitors see it. For these an I/O core follows
//! the ring itself: it reads the slots that the client has given up, copies them to the monitors, and says
//! how far it is (`ring::ReleaseGate`, `ring::PipeGate`), so that no side fills a slot anew that has not been
//! read. A monitor that is too slow loses frames, as anywhere; what the client can be made to wait for is
//! this core, never a monitor.
//!
//! Nothing kicks it. The core looks after naps that grow with the silence.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queues::{RingIngress, RingPortSettings};
use crate::mem::Signal;
use crate::observe::capture::CaptureSlot;
use crate::packet::{Batch, MAX_BATCH};
use crate::port::{IngressQueue, Tally};
use crate::ring::{ClientTx, PipeGate, Region, ReleaseGate};

/// For how long after work the core naps shortly, and the naps then and later.
const BUSY: Duration = Duration::from_millis(20);
const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(2);

/// The monitors of a ring: those for which its frames are sent, and those for which they are received.
#[derive(Default)]
pub struct Lookers {
    /// They are sent.
    pub sent: CaptureSlot,
    /// They are received.
    pub received: CaptureSlot,
}

impl Lookers {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.sent.is_on() || self.received.is_on()
    }
}

/// What waits until the follower has read a slot.
enum Kept {
    Released(Arc<ReleaseGate>),
    Pipe(Option<PipeGate>, Box<Signal>),
}

/// A watched ring.
pub struct RingTap {
    ring: RingIngress,
    lookers: Arc<Lookers>,
    kept: Kept,
    last_work: Instant,
}

impl RingTap {
    /// Ring `number` of a pipe in `region`, which the end that sends on ring `sender`, which `wake` wakes,
    /// has to wait for; the numbers count over all rings.
    ///
    /// # Errors
    /// What the system says of making descriptors.
    pub fn of_pipe(
        region: &Arc<Region>,
        (number, sender): (u32, u32),
        wake: OwnedFd,
        lookers: Arc<Lookers>,
    ) -> io::Result<RingTap> {
        let gate = PipeGate::new(region, number, sender);
        let signal = Signal::default();
        signal.set(Some(wake));
        RingTap::new(
            ClientTx::follow(region, number),
            Arc::default(),
            lookers,
            Kept::Pipe(Some(gate), Box::new(signal)),
        )
    }

    /// What the client of `region` releases of receive ring `index`, whose slots `gate` keeps.
    ///
    /// # Errors
    /// What the system says of making descriptors.
    pub fn of_released(
        region: &Arc<Region>,
        index: u32,
        settings: &Arc<RingPortSettings>,
        gate: &Arc<ReleaseGate>,
        lookers: Arc<Lookers>,
    ) -> io::Result<RingTap> {
        let ring = ClientTx::follow(region, region.info().tx_rings + index);
        gate.keep_from(ring.first());
        gate.set(true);
        RingTap::new(ring, Arc::clone(settings), lookers, Kept::Released(Arc::clone(gate)))
    }

    fn new(
        ring: ClientTx,
        settings: Arc<RingPortSettings>,
        lookers: Arc<Lookers>,
        kept: Kept,
    ) -> io::Result<RingTap> {
        // The ring itself wakes no client.
        let ring = RingIngress::new(ring, settings, Signal::default())?;
        Ok(RingTap { ring, lookers, kept, last_work: Instant::now() })
    }
}

impl IngressQueue for RingTap {
    /// Shows a batch to the monitors. None of it goes to the switch: that has it already, or never will.
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        batch.set_limit(MAX_BATCH);
        let mut seen = Tally::default();
        self.ring.fetch(batch, &mut seen);
        if seen.frames == 0 {
            return;
        }
        self.last_work = Instant::now();
        self.lookers.sent.ingress(batch.all(), &[]);
        self.lookers.received.egress(batch.all(), &[]);
        batch.clear();
        self.ring.release(&mut seen);
        let at = self.ring.slots.ring.first();
        match &mut self.kept {
            Kept::Released(gate) => gate.keep_from(at),
            Kept::Pipe(gate, wake) => {
                if gate.as_mut().is_some_and(|gate| gate.keep_from(at)) {
                    wake.raise();
                    tally.interrupts += 1;
                }
            }
        }
    }

    fn release(&mut self, _: &mut Tally) {}

    fn want_kicks(&mut self, on: bool) -> bool {
        on && self.ring.slots.ring.look() > 0
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn longest_sleep(&self) -> Option<Duration> {
        Some(if self.last_work.elapsed() < BUSY { SHORT_NAP } else { LONG_NAP })
    }
}

impl Drop for RingTap {
    fn drop(&mut self) {
        match &mut self.kept {
            Kept::Released(gate) => gate.set(false),
            Kept::Pipe(gate, wake) => {
                *gate = None;
                wake.raise();
            }
        }
    }
}
