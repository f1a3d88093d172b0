//! What stands before frames.

use crate::wire::Offloads;

/// What stands before each frame.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Bytes of a virtio-net header: 0, 10 or 12.
    pub bytes: u32,
    /// What the sender may ask for in it.
    pub offloads: Offloads,
}
