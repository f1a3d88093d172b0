//! What interrupts consist of between two events: the registers, and what waits for what. All of it is behind
//! one lock.
//!
//! *Reports of sent frames.* They are news to the driver alone, which wants its buffers back, and it can wait
//! for them as long as its ring has room. So while our floor holds, they wait until the guest stops sending,
//! for a millisecond at most, or until half of the ring is to be given back: then at once, so that the ring
//! is never full while the interrupt is on its way. A driver that enables the report again has just looked:
//! waiting begins anew.

use std::sync::atomic::Ordering;

use super::{Irq, DELAY_UNIT, QUEUES, VECTORS};
use crate::device::moderation::{Delayed, InterruptGate, NEVER};

/// The registers.
#[derive(Default)]
pub(super) struct IrqRegisters {
    pub(super) icr: u32,
    pub(super) ims: u32,
    pub(super) iam: u32,
    pub(super) eiac: u32,
    pub(super) ivar: u32,
    pub(super) ext: u32,
    pub(super) itr: u32,
    pub(super) eitr: [u32; VECTORS],
}

/// Longest time for which the driver is not told again, in nanoseconds.
const LONGEST_WAIT: u64 = 1_000_000;
/// The driver has been told of a queue's sent frames and has not enabled such reports since; whether it ever
/// does, and until when it is not told again.
#[derive(Clone, Copy, Default)]
pub(super) struct Report {
    pub(super) told: bool,
    pub(super) answers: bool,
    pub(super) after: u64,
}

impl Report {
    /// The driver is told now.
    pub(super) fn tell(&mut self, now: u64) {
        // Held, too, where the driver is known to write `IMS` afterwards: not every version does.
        if self.answers {
            self.after = now + LONGEST_WAIT;
        }
        self.told = true;
    }
}

/// Everything behind the lock; as after reset, where it is the default.
#[derive(Default)]
pub struct IrqState {
    pub(super) registers: IrqRegisters,
    /// Causes that are set and have not been sent as a message.
    pub(super) unsent: u32,
    /// Receive causes that wait for the driver to write `IMS`, and until when at most, of each queue.
    pub(super) held: u32,
    pub(super) held_until: [u64; QUEUES],
    pub(super) gates: [InterruptGate; VECTORS],
    pub(super) receive: Delayed,
    /// Delays of each queue's interrupts; by the pin all go with the first one's.
    pub(super) transmit: [Delayed; QUEUES],
    /// What the driver has enabled since the last reset, whether or not it is now.
    pub(super) wanted: u32,
    /// What is known of reports of sent frames, of each queue.
    pub(super) reports: [Report; QUEUES],
    /// A receive interrupt was sent since the driver enabled its cause, of each queue; the pin's is the first
    /// one's.
    pub(super) rang: [bool; QUEUES],
    /// Since when the guest has been serving it.
    pub(super) serving: [Option<u64>; QUEUES],
}

impl IrqState {
    /// When the first delay ends.
    pub(super) fn due(&self) -> u64 {
        let [first, second] = &self.transmit;
        self.receive.due().min(first.due()).min(second.due())
    }

    /// Whether a cause waits for its delay to end.
    pub(super) fn delays(&self) -> bool {
        self.due() != NEVER
    }

    /// Sets causes.
    pub(super) fn set(&mut self, causes: u32) {
        self.registers.icr |= causes;
        self.unsent |= causes;
    }
}

/// How long a report waits while the operator's floor holds, in `DELAY_UNIT`: for silence, and at most.
const PATIENCE: (u32, u32) = (250, 1_000);

impl Irq {
    /// How long reports of sent frames wait, whatever the driver says: until the guest is silent, and at
    /// most. The unit is that of TIDV and TADV. Nothing if the operator leaves it to the driver.
    pub(in super::super) fn patience(&self) -> Option<(u32, u32)> {
        (self.floor != 0).then_some(PATIENCE)
    }

    /// The driver enables reports of sent frames, as it does when it has just taken back all that was done:
    /// what has been done in between is not worth an interrupt of its own, unless nothing more comes.
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
