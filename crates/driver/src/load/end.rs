//! One virtio port of the load by itself, for a path whose other end is something else.

use sidecore_abi::virtio::NET_HDR_LEN;

use super::port::{Counts, Port};
use super::{LoadConfig, BURST};
use crate::error::Result;
use crate::frontend::Frontend;

/// Numbers in tags count modulo this plus one.
pub const TAG_MASK: u64 = 0xffff;

/// A port that sends or receives bursts of tagged frames.
pub struct End {
    port: Port,
    len: u32,
}

impl End {
    /// Connects, as port `number` (0 or 1) of a path with frames as `config` has them.
    ///
    /// # Errors
    /// The negotiation fails.
    pub fn new(frontend: Frontend, config: &LoadConfig, number: u8) -> Result<End> {
        let len = u32::try_from(NET_HDR_LEN + config.frame).unwrap_or(u32::MAX);
        Ok(End { port: Port::new(frontend, config, number)?, len })
    }

    /// Sends a burst of frames with new tags, or as many of `most` as find room; how many.
    ///
    /// # Errors
    /// The other side is gone.
    #[inline]
    pub fn send(&mut self, most: u16) -> Result<u16> {
        let frames = self.port.make_room(BURST.min(most))?.min(BURST).min(most);
        if frames > 0 {
            self.port.send(frames, true, TAG_MASK, 0)?;
        }
        Ok(frames)
    }

    /// Takes what has come, and offers its buffers again; how many frames.
    ///
    /// # Errors
    /// The other side is gone, or says what cannot be.
    #[inline]
    pub fn receive(&mut self) -> Result<u16> {
        let frames = self.port.receive(4 * BURST, self.len, TAG_MASK, |_| {})?;
        self.port.refill(BURST)?;
        Ok(frames)
    }

    /// Frames that are missing, by their tags, and those that should not have come: out of order, or changed.
    pub fn lost_and_wrong(&self) -> (u64, u64) {
        let Counts { lost, reordered, corrupt, .. } = self.port.counts;
        (lost, reordered + corrupt)
    }
}
