//! What the I/O cores and the conversation of a device share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::Arc;

use super::irq::Irq;
use super::regs;
use super::state::Registers;
use super::stats::Stats;
use crate::port::Port;

/// What the I/O cores and the conversation share.
pub(super) struct NicState {
    /// There is a status block.
    pub(super) csb: bool,
    pub(super) port: Arc<Port>,
    pub(super) regs: Registers,
    pub(super) irq: Irq,
    pub(super) stats: Stats,
    /// Descriptors of the transmit and the receive ring, as far as they have been seen.
    pub(super) sizes: [AtomicU32; 2],
    /// Frames were delivered to the guest since the transmit queue last looked.
    pub(super) received: AtomicBool,
    pub(super) traps: Traps,
}

impl NicState {
    /// Where the status block is; zero if there is none.
    #[inline]
    pub(super) fn block(&self) -> u64 {
        match self.regs.get(regs::CSBAL) {
            0 => 0,
            _ => self.regs.pair(regs::CSBAL),
        }
    }
}

/// Accesses that trapped: all of them.
#[derive(Default)]
pub(super) struct Traps {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) doorbells: AtomicU64,
}
