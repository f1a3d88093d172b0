//! What all queues of a ring port have in common.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::port::Port;
use crate::wire::Offloads;

/// What a program that has a header before its frames may ask of us and is given: netmap's headers know these.
pub(super) const OFFLOADS: Offloads = Offloads::from_bits(
    Offloads::CSUM.bits()
        | Offloads::TSO4.bits()
        | Offloads::TSO6.bits()
        | Offloads::ECN.bits()
        | Offloads::UFO.bits(),
);

/// What all queues of a port have in common.
#[derive(Debug, Default)]
pub struct RingPortSettings {
    header: AtomicU32,
    down: AtomicBool,
}

impl RingPortSettings {
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12.
    #[inline]
    pub fn header(&self) -> u32 {
        self.header.load(Ordering::Relaxed)
    }

    /// Whether the operator has put the link down: frames are dropped in both directions.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Puts the link up or down, from the next batch on.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Frames of `port` have a header of `bytes` bytes from the next batch on; false if there is no such header.
    pub fn set_header(&self, bytes: u32, port: &Port) -> bool {
        if !matches!(bytes, 0 | 10 | 12) {
            return false;
        }
        self.header.store(bytes, Ordering::Relaxed);
        port.set_accepts(if bytes == 0 { Offloads::NONE } else { OFFLOADS });
        true
    }
}
