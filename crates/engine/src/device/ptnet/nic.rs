//! What the I/O cores and the conversation of a device share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use super::messages::Messages;
use crate::mem::GuestMap;
use crate::packet::Offloads;
use crate::port::Port;
use crate::slots::Header;
use crate::util::fault::Fault;

/// What every guest that has a header is given; what it may be given beside, and ask for.
const GIVEN: Offloads = Offloads::from_bits(
    Offloads::CSUM.bits() | Offloads::TSO4.bits() | Offloads::TSO6.bits() | Offloads::ECN.bits(),
);
const USO: Offloads = Offloads::from_bits(Offloads::USO4.bits() | Offloads::USO6.bits());
const ASKED: Offloads = Offloads::from_bits(GIVEN.bits() | USO.bits() | Offloads::UFO.bits());

/// What the I/O cores and the conversation share.
pub(super) struct NicState {
    pub(super) port: Arc<Port>,
    pub(super) messages: Messages,
    /// Bytes of header before each frame.
    header: AtomicU32,
    /// The operator has put the link down, which a guest cannot be told: frames are dropped in both
    /// directions.
    down: AtomicBool,
    /// Frames were delivered by this pair since its sending ring was last looked at.
    received: Box<[AtomicBool]>,
    /// Kicks: writes that left the guest.
    pub(super) kicks: AtomicU64,
}

impl NicState {
    pub(super) fn new(port: Arc<Port>, messages: Messages, pairs: usize) -> NicState {
        NicState {
            port,
            messages,
            header: AtomicU32::new(0),
            down: AtomicBool::new(false),
            received: (0..pairs).map(|_| AtomicBool::new(false)).collect(),
            kicks: AtomicU64::new(0),
        }
    }

    /// What stands before each frame.
    #[inline]
    pub(super) fn header(&self) -> Header {
        let bytes = self.header.load(Ordering::Relaxed);
        Header { bytes, offloads: ASKED }
    }

    /// Frames have a header of `bytes` bytes from the next batch on. `uso`: the guest takes UDP that is to be
    /// cut.
    pub(super) fn set_header(&self, bytes: u32, uso: bool) {
        self.header.store(bytes, Ordering::Relaxed);
        self.port.set_accepts(match (bytes, uso) {
            (0, _) => Offloads::NONE,
            (_, false) => GIVEN,
            (_, true) => GIVEN | USO,
        });
    }

    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    pub(super) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Notes that pair `number` has received, and takes that note.
    #[inline]
    pub(super) fn note_received(&self, number: usize) {
        self.received[number].store(true, Ordering::Relaxed);
    }

    pub(super) fn take_received(&self, number: usize) -> bool {
        self.received[number].swap(false, Ordering::Relaxed)
    }

    /// Whether a ring goes on: its guest's head makes sense, and the memory with its block is there. If not,
    /// the port's fault says why.
    #[inline]
    pub(super) fn goes_on(&self, is_lost: bool, map: &GuestMap) -> bool {
        if is_lost {
            self.port.fault.set(Fault::BadHead);
        } else if map.is_truncated() {
            self.port.fault.set(Fault::MemoryTruncated);
        } else {
            return true;
        }
        false
    }
}
