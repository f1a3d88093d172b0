//! A ring of descriptors of 16 bytes, in either direction: where it lies, where the device is in it, and
//! whether it still is served.
//!
//! What the I/O cores and the conversation of a card share.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::time::Duration;

use crate::device::csb::{Block, RingSide};
use crate::device::moderation::{Causes, Irq};
use crate::mem::{GuestMap, Words};
use crate::port::Port;
use crate::util::fault::Fault;

/// A ring of any part, which has `own` beside.
pub struct RingBase<O> {
    /// The memory that descriptors and buffers lie in.
    pub(in crate::device) map: Arc<GuestMap>,
    /// The descriptors, as pairs of words.
    pub(in crate::device) table: Words,
    /// Number of them, as far as it is known.
    pub(in crate::device) size: u32,
    /// The first that has not been given back.
    pub(in crate::device) head: u32,
    /// The status block, if the device has one: what the driver says there of interrupts and kicks.
    pub(in crate::device) block: Block,
    /// A fault was found, and nothing is looked at until the device is reset.
    pub(in crate::device) stopped: bool,
    pub(in crate::device) own: O,
}

impl<O> RingBase<O> {
    /// Nothing is known of it. `csb`: the device has a status block.
    pub(in crate::device) fn with(map: &Arc<GuestMap>, side: RingSide, csb: bool, own: O) -> RingBase<O> {
        let (map, block) = (Arc::clone(map), Block::new(side, csb));
        RingBase { map, table: Words::EMPTY, size: 0, head: 0, block, stopped: false, own }
    }

    /// The ring of `port` ends.
    pub(in crate::device) fn stop(&mut self, port: &Port, fault: Fault) {
        self.stopped = true;
        port.fault.set_unless(self.map.is_truncated(), fault);
    }

    /// What was found in it; nothing, and the ring ends, where that was a fault.
    pub(in crate::device) fn checked<T>(&mut self, port: &Port, found: Result<T, Fault>) -> Option<T> {
        found.map_err(|fault| self.stop(port, fault)).ok()
    }

    /// The ring ends if its memory was cut short.
    #[inline]
    pub(in crate::device) fn check_memory(&mut self, port: &Port) {
        if self.map.is_truncated() {
            self.stop(port, Fault::MemoryTruncated);
        }
    }
}

/// A part's own of that: registers and statistics.
pub trait SharedPart: Send + Sync + 'static {
    /// Its interrupts.
    type Causes: Causes<Beside: Send + Sync> + Send;
    /// How long a core sleeps at most while doorbells trap, which wake it.
    const NAP_IF_TRAPPING: Option<Duration>;

    /// Transmit rings that the driver has set up.
    fn transmit_rings(&self) -> usize {
        1
    }
    /// Whether each doorbell leaves the guest.
    fn always_traps(&self) -> bool;
    /// Whether doorbells do so for now.
    fn is_trapping(&self) -> bool {
        self.always_traps()
    }
}

/// All of it.
pub struct Nic<S: SharedPart> {
    pub(in crate::device) port: Arc<Port>,
    pub(in crate::device) irq: Irq<S::Causes>,
    /// Frames were delivered to the guest since the transmit queue last looked.
    pub(in crate::device) received: AtomicBool,
    /// What the guest sends comes back to it, and nothing else does.
    pub(in crate::device) looped: AtomicBool,
    /// Accesses that trapped.
    pub(in crate::device) reads: AtomicU64,
    pub(in crate::device) writes: AtomicU64,
    own: S,
}

impl<S: SharedPart> Nic<S> {
    pub(in crate::device) fn new(port: Arc<Port>, irq: Irq<S::Causes>, own: S) -> Arc<Nic<S>> {
        let (received, looped) = (AtomicBool::new(false), AtomicBool::new(false));
        let (reads, writes) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Nic { port, irq, received, looped, reads, writes, own })
    }
}

impl<S: SharedPart> Deref for Nic<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.own
    }
}
