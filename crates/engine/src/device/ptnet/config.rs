//! What can be chosen about a device.

use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::ring::MAX_RINGS;

use crate::ring::Geometry;
use crate::slots::pipe::End;
use crate::wire::Mac;

/// Most pairs of rings: a region has one more, which netmap calls the host's, and to which nothing comes.
pub const MAX_PAIRS: usize = MAX_RINGS - 1;
/// Frames may begin with a virtio-net header.
pub const VNET_HDR: &str = "vnet-hdr";
/// Smallest gap between two interrupts, if the operator does not say otherwise.
const GAP: Duration = Duration::from_micros(8);

/// What can be chosen about a device.
#[derive(Clone, Debug)]
pub struct PtnetConfig {
    /// The station's address.
    pub mac: Mac,
    /// Pairs of rings, 1 to [`MAX_PAIRS`].
    pub pairs: usize,
    /// Slots of each ring.
    pub slots: u32,
    /// Bytes of a buffer.
    pub buf_size: u32,
    /// [`VNET_HDR`].
    pub header: bool,
    /// Smallest gap between two interrupts of one ring.
    pub moderation: Duration,
    /// The end of a pipe that it is, instead of a port of a switch. Its frames have no header: nothing on the way could
    /// carry out the offloads that they ask for.
    pub pipe: Option<Arc<End>>,
}

impl PtnetConfig {
    /// One pair of rings of the usual size, everything on.
    pub fn new(mac: Mac) -> PtnetConfig {
        let Geometry { rings, slots, buf_size, .. } = Geometry::default();
        PtnetConfig { mac, pairs: rings, slots, buf_size, header: true, moderation: GAP, pipe: None }
    }

    /// The memory that such a device has. Its host rings lead nowhere, but netmap in a guest writes to those that an interface
    /// mentions, so they have to be there.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            rings: self.pairs,
            slots: self.slots,
            buf_size: self.buf_size,
            pipes: 0,
            host_rings: 1,
            ..Geometry::default()
        }
    }
}
