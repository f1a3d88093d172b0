//! The MTU, checked at the port by which a frame comes in: there the drop has a name, where a later one
//! would be a riddle.

use std::sync::atomic::Ordering;

use super::Port;
use crate::packet::{Frame, Gso};

/// Bytes of an Ethernet header.
const HEADER: u32 = 14;

impl Port {
    /// Changes the MTU: the operator does, or the interface behind the port has another one.
    pub fn set_mtu(&self, mtu: u32) {
        self.most.store(mtu, Ordering::Relaxed);
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// The peer wants an MTU of its own, for as long as it is there.
    ///
    /// # Errors
    /// It is more than the operator allows.
    pub fn ask_mtu(&self, mtu: u32) -> Result<(), String> {
        let most = self.most.load(Ordering::Relaxed);
        if mtu > most {
            return Err(format!(
                "an MTU of {mtu} is more than the port's, {most}: `sidecore set {} mtu={mtu}` allows it",
                self.name
            ));
        }
        self.mtu.store(mtu, Ordering::Relaxed);
        Ok(())
    }

    /// The peer is gone, and so is what it wanted.
    pub fn forget_mtu(&self) {
        self.mtu.store(self.most.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether `frame` is longer than this port may send. Of a frame that is to be segmented the segments
    /// count, not the whole.
    #[inline]
    pub fn is_too_long(&self, frame: &Frame) -> bool {
        let limit = self.mtu() + HEADER;
        frame.len > limit && exceeds(frame, limit)
    }
}

/// The judgement on the few frames that are longer than an untagged one may be.
#[cold]
fn exceeds(frame: &Frame, limit: u32) -> bool {
    let limit = limit + vlan_bytes(frame);
    // The headers of a segment end somewhere behind `csum_start`; a sender of absurd transport headers gains
    // segments that are longer by those, and the receiver's own check.
    let longest = match frame.offload.gso {
        Gso::None => frame.len,
        _ => u32::from(frame.offload.gso_size) + u32::from(frame.offload.csum_start) + 8,
    };
    longest > limit
}

/// Bytes of the VLAN tags in front of the payload (802.1Q §9.3): 0, 4 or 8.
fn vlan_bytes(frame: &Frame) -> u32 {
    let tagged = |at: usize| matches!([frame.head[at], frame.head[at + 1]], [0x81, 0x00] | [0x88, 0xa8]);
    match (tagged(12), tagged(16)) {
        (true, true) => 8,
        (true, false) => 4,
        _ => 0,
    }
}
