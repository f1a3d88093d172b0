//! What the I/O cores and the conversation of a device share.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

use super::irq::Irq;
use super::state::Registers;
use super::stats::Stats;
use crate::port::Port;

/// What the I/O cores and the conversation share.
pub(super) struct Shared {
    pub(super) port: Arc<Port>,
    pub(super) regs: Registers,
    pub(super) irq: Irq,
    pub(super) stats: Stats,
    /// Descriptors of the transmit and the receive ring, as far as they have been seen.
    pub(super) sizes: [AtomicU32; 2],
    pub(super) traps: Traps,
}

/// Accesses that trapped: all of them.
#[derive(Default)]
pub(super) struct Traps {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) doorbells: AtomicU64,
}
