//! Queues of a ring port: a native program's rings, as a switch sees them.
//!
//! What the program sends is ingress ([`RingIngress`]), what it receives is egress ([`RingEgress`]). How a
//! program comes by its rings is `transport::ring`'s affair; what stands in their memory `ring`'s.

mod monitor;
mod pipe;
mod queues;
mod tap;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use monitor::{Monitor, Sees, SentOnly};
pub use pipe::{PipeEgress, PipeIngress, PipePair};
pub use queues::{RingEgress, RingIngress, RingPortSettings};
pub use tap::{Lookers, RingTap};

use crate::mem::Overrun;
use crate::ring::{ClientRx, ClientTx, Region, ReleaseGate, RingStats};

/// Both directions of one pair of rings, and what its client needs for them.
pub struct RingPair {
    /// Into the switch.
    pub ingress: RingIngress,
    /// Out of the switch.
    pub egress: RingEgress,
    /// The pipe that tells the client of slots it may send with, to be taken and passed on.
    pub wake_tx: Option<OwnedFd>,
    /// The pipe that tells the client of slots it received.
    pub wake_rx: Option<OwnedFd>,
}

impl RingPair {
    /// The queues of ring pair `index` of `region`, of a port that has this account. Once for each pair of a
    /// region.
    ///
    /// # Errors
    /// What the system says of making descriptors.
    pub fn new(
        region: &Arc<Region>,
        index: u32,
        settings: &Arc<RingPortSettings>,
        overrun: &Overrun,
    ) -> io::Result<RingPair> {
        let (tx, wake_tx) = queues::wake_pipe(overrun)?;
        let (rx, wake_rx) = queues::wake_pipe(overrun)?;
        let ingress = RingIngress::new(ClientTx::new(region, index), Arc::clone(settings), tx)?;
        let egress = RingEgress::new(ClientRx::new(region, index), Arc::clone(settings), rx);
        Ok(RingPair { ingress, egress, wake_tx: Some(wake_tx), wake_rx: Some(wake_rx) })
    }

    /// What went wrong on the two so far: ingress, egress.
    pub fn stats(&self) -> (Arc<RingStats>, Arc<RingStats>) {
        (Arc::clone(&self.ingress.slots.ring.access.stats), Arc::clone(&self.egress.slots.ring.access.stats))
    }

    /// What keeps slots for monitors of what the client has released.
    pub fn gate(&self) -> Arc<ReleaseGate> {
        Arc::clone(&self.egress.slots.ring.gate)
    }

    /// The eventfd by which the client kicks.
    pub fn kick(&self) -> BorrowedFd<'_> {
        self.ingress.kick()
    }
}
