//! A ring of descriptors of 16 bytes, in either direction: where it lies, where the device is in it, and whether it still is served.

use std::sync::Arc;

use crate::device::csb::{Block, RingSide};
use crate::fault::Fault;
use crate::mem::{GuestMap, Words};
use crate::port::Port;

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
    #[inline]
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
