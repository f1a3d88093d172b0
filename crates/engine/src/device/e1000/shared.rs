//! What the I/O cores and the conversation of a device share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::config::Model;
use super::irq::IrqState;
use super::regs::{self, QUEUES};
use super::ring::Ring;
use super::state::Registers;
use super::stats::Stats;
use crate::device::nic::{Nic, SharedPart, LONGEST_NAP};

/// What the I/O cores and the conversation share.
pub(super) type NicState = Nic<IntelPart>;

/// What an Intel part has beside what all cards share.
pub struct IntelPart {
    pub(super) model: Model,
    /// The guest may map the tails.
    pub(super) exitless: bool,
    /// There is a status block.
    pub(super) csb: bool,
    pub(super) regs: Registers,
    pub(super) stats: Stats,
    /// Tails beyond the end of their ring.
    pub(super) bad_tails: AtomicU64,
    /// Tails written by a trap, and the last such tail plus one, of each ring.
    pub(super) tails: [AtomicU64; RINGS.len()],
    pub(super) last: [AtomicU32; RINGS.len()],
}

impl IntelPart {
    /// Whether the tail of the ring at `at` came by a trap the last time.
    pub(super) fn tail_trapped(&self, at: u32) -> bool {
        let last = self.last[ring_number(at)].load(Ordering::Relaxed);
        last != 0 && last == (self.regs.get(at + regs::ring::TAIL) & 0xffff) + 1
    }

    /// How many of `rings` the driver has set up, the first among them in any case: one word to look at.
    pub(super) fn used(&self, rings: &[u32; QUEUES]) -> usize {
        1 + usize::from(self.model == Model::E1000e && Ring::length(&self.regs, rings[1]) != 0)
    }
}

impl SharedPart for IntelPart {
    type Causes = IrqState;
    const NAP_IF_TRAPPING: Option<Duration> = Some(LONGEST_NAP);

    fn transmit_rings(&self) -> usize {
        self.used(&regs::TX_RINGS)
    }

    fn always_traps(&self) -> bool {
        !self.exitless
    }

    fn is_trapping(&self) -> bool {
        regs::TX_RINGS.iter().any(|at| self.tail_trapped(*at))
    }
}

/// All rings: where their registers begin.
pub(super) const RINGS: [u32; 4] = [regs::TX_RING, regs::RX_RING, regs::TX_RING_1, regs::RX_RING_1];

/// The place of a ring in `RINGS`.
pub(super) fn ring_number(at: u32) -> usize {
    RINGS.iter().position(|ring| *ring == at).unwrap_or(0)
}
