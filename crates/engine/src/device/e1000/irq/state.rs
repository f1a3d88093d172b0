//! What interrupts consist of between two events: the registers, and what waits for what. All of it is behind one lock.

use super::{QUEUES, VECTORS};
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
/// The driver has been told of a queue's sent frames and has not enabled such reports since; whether it ever does, and
/// until when it is not told again.
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

/// Everything behind the lock.
pub(super) struct IrqState {
    pub(super) registers: IrqRegisters,
    /// Causes that are set and have not been sent as a message.
    pub(super) unsent: u32,
    /// Receive causes that wait for the driver to write `IMS`, and until when at most, of each queue.
    pub(super) held: u32,
    pub(super) held_until: [u64; QUEUES],
    /// The pin's level.
    pub(super) level: bool,
    pub(super) gates: [InterruptGate; VECTORS],
    pub(super) receive: Delayed,
    /// Of each queue; by the pin all go with the first one's.
    pub(super) transmit: [Delayed; QUEUES],
    /// What the driver has enabled since the last reset, whether or not it is now.
    pub(super) wanted: u32,
    /// What is known of reports of sent frames, of each queue.
    pub(super) reports: [Report; QUEUES],
    /// A receive interrupt was sent since the driver enabled its cause, of each queue; the pin's is the first one's.
    pub(super) rang: [bool; QUEUES],
    /// Since when the guest has been serving it.
    pub(super) serving: [Option<u64>; QUEUES],
}

impl IrqState {
    /// As after reset.
    pub(super) fn new() -> IrqState {
        IrqState {
            registers: IrqRegisters::default(),
            unsent: 0,
            held: 0,
            held_until: [NEVER; QUEUES],
            level: false,
            gates: [InterruptGate::default(); VECTORS],
            receive: Delayed::NONE,
            transmit: [Delayed::NONE; QUEUES],
            wanted: 0,
            reports: [Report::default(); QUEUES],
            rang: [false; QUEUES],
            serving: [None; QUEUES],
        }
    }

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
