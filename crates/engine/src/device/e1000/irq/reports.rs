//! Reports of sent frames: how long they wait.
//!
//! Theory of operation. They are news to the driver alone, which wants its buffers back, and it can wait for them as
//! long as its ring has room. So while our floor holds, they wait until the guest stops sending, for a millisecond at
//! most, or until half of the ring is to be given back: then at once, so that the ring is never full while the
//! interrupt is on its way. A driver that enables the report again has just looked: waiting begins anew.

use std::sync::atomic::Ordering;

use super::state::IrqState;
use super::{Irq, DELAY_UNIT};
use crate::device::moderation::Delayed;

/// How long a report waits while the operator's floor holds, in `DELAY_UNIT`: for silence, and at most.
const PATIENCE: (u32, u32) = (250, 1_000);

impl Irq {
    /// How long reports of sent frames wait, whatever the driver says: until the guest is silent, and at most. The
    /// unit is that of TIDV and TADV. Nothing if the operator leaves it to the driver.
    #[inline]
    pub(in super::super) fn patience(&self) -> Option<(u32, u32)> {
        (self.floor != 0).then_some(PATIENCE)
    }

    /// Changes when the driver has taken back what it sent by transmit queue `queue`.
    #[inline]
    pub(in super::super) fn taken_back(&self, queue: usize) -> u64 {
        self.taken_back[queue].load(Ordering::Relaxed)
    }

    /// The driver enables reports of sent frames, as it does when it has just taken back all that was done: what has
    /// been done in between is not worth an interrupt of its own, unless nothing more comes.
    pub(super) fn answer(&self, state: &mut IrqState, queue: usize, cause: u32, now: u64) {
        let report = &mut state.reports[queue];
        report.answers |= std::mem::take(&mut report.told);
        report.after = 0;
        self.taken_back[queue].fetch_add(1, Ordering::Relaxed);
        if state.registers.icr & cause != 0 {
            state.registers.icr &= !cause;
            state.unsent &= !cause;
            let after = |units: u32| now + u64::from(units) * DELAY_UNIT;
            state.transmit[queue] = Delayed { last: after(PATIENCE.0), first: after(PATIENCE.1) };
        }
    }
}
