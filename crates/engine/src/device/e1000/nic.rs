//! What the I/O cores and the conversation of a device share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use super::config::Model;
use super::irq::Irq;
use super::regs::{self, QUEUES};
use super::ring::Ring;
use super::state::Registers;
use super::stats::Stats;
use crate::port::Port;

/// What the I/O cores and the conversation share.
pub(super) struct NicState {
    pub(super) model: Model,
    /// The guest may map the tails.
    pub(super) exitless: bool,
    /// There is a status block.
    pub(super) csb: bool,
    pub(super) port: Arc<Port>,
    pub(super) regs: Registers,
    pub(super) irq: Irq,
    pub(super) stats: Stats,
    /// Tails beyond the end of their ring.
    pub(super) bad_tails: AtomicU64,
    /// Frames were delivered to the guest since the transmit queue last looked.
    pub(super) received: AtomicBool,
    /// What the guest sends comes back to it, and nothing else does.
    pub(super) looped: AtomicBool,
    pub(super) traps: Traps,
}

/// Accesses that trapped.
#[derive(Default)]
pub(super) struct Traps {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    /// Tails written by a trap, and the last such tail plus one, of each ring.
    pub(super) tails: [AtomicU64; RINGS.len()],
    pub(super) last: [AtomicU32; RINGS.len()],
}

impl NicState {
    /// Whether the tail of the ring at `at` came by a trap the last time.
    pub(super) fn is_trapping(&self, at: u32) -> bool {
        let last = self.traps.last[ring_number(at)].load(Ordering::Relaxed);
        last != 0 && last == (self.regs.get(at + regs::ring::TAIL) & 0xffff) + 1
    }

    /// Whether the driver has set up the second of `rings`: one word to look at.
    #[inline]
    pub(super) fn has_second(&self, rings: &[u32; QUEUES]) -> bool {
        self.model == Model::E1000e && Ring::length(&self.regs, rings[1]) != 0
    }
}

/// All rings: where their registers begin.
pub(super) const RINGS: [u32; 4] = [regs::TX_RING, regs::RX_RING, regs::TX_RING_1, regs::RX_RING_1];

/// The place of a ring in `RINGS`.
pub(super) fn ring_number(at: u32) -> usize {
    RINGS.iter().position(|ring| *ring == at).unwrap_or(0)
}
