//! Devices: what a guest sees on its bus. A device knows features and queues; the transport that
//! carries its conversation with the VMM knows messages and memory. [`VirtioDevice`] is all that a
//! virtio transport knows of a device.

mod csb;
pub mod e1000;
mod eeprom;
mod mii;
mod moderation;
mod nic;
mod packet;
pub mod pci;
pub mod ptnet;
pub mod rtl8169;
mod source;
pub mod virtio_blk;
pub mod virtio_net;
#[cfg(test)]
mod written_tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::core::Lease;
use crate::disk::Disk;
use crate::port::Port;
use crate::virtq::{Position, RingConfig, RingConfigError};

/// A virtio device as a transport drives it.
pub trait VirtioDevice: Send {
    /// The port that it stands behind.
    fn port(&self) -> &Arc<Port>;

    /// The features that it offers, transport features not among them.
    fn features(&self) -> u64;

    /// The names of those of `features` that it knows, for `show`.
    fn feature_names(&self, features: u64) -> Vec<String>;

    /// How many rings it has.
    fn rings(&self) -> usize;

    /// What ring `index` is, for `show`: its number within its direction, and the direction.
    fn ring_role(&self, index: usize) -> (usize, &'static str);

    /// The features that the driver took. Comes before the rings that were built with them start.
    fn set_features(&mut self, features: u64);

    /// Whether its rings are completed in the order in which they are taken ([`crate::virtq::Queue::new`]),
    /// or carry requests ([`crate::virtq::Queue::requests`]).
    fn completes_in_order(&self) -> bool {
        true
    }

    /// Starts ring `index`, which is stopped. `kick` becomes readable when the guest kicks.
    ///
    /// # Errors
    /// Why the ring cannot run.
    fn start_ring(
        &mut self,
        index: usize,
        config: RingConfig,
        kick: Option<OwnedFd>,
    ) -> Result<(), RingConfigError>;

    /// Stops ring `index`. When this returns no thread touches its memory any more. `None` if it was not
    /// running. What it still holds of requests is done again when the ring is started again.
    fn stop_ring(&mut self, index: usize) -> Option<Position>;

    /// The configuration space (virtio 1.2 §2.5), if it is the device and not the VMM that fills it.
    fn config_space(&self) -> Option<Vec<u8>> {
        None
    }

    /// The driver writes `bytes` into the configuration space, from byte `offset` on. What cannot be written
    /// stays as it is.
    fn write_config(&mut self, offset: usize, bytes: &[u8]) {
        let _ = (offset, bytes);
    }

    /// The disk of a block device.
    fn disk(&self) -> Option<&Arc<Disk>> {
        None
    }

    /// What only network devices can do.
    fn network(&mut self) -> Option<&mut dyn NetworkControl> {
        None
    }
}

/// Control that a VMM has over a network device beside features and rings.
pub trait NetworkControl {
    /// The guest was told this MTU, in bytes.
    ///
    /// # Errors
    /// The MTUs that are allowed.
    fn set_mtu(&mut self, mtu: u64) -> Result<(), String>;

    /// Tells the network that `mac` is here now (the guest cannot do it itself).
    ///
    /// # Errors
    /// Why it was not sent.
    fn announce(&mut self, mac: [u8; 6]) -> Result<(), String>;
}

/// The features that a kind of device can offer, each with its name: the one in `features_off` and in `show`.
struct FeatureTable {
    kind: &'static str,
    known: &'static [(&'static str, u64)],
}

impl FeatureTable {
    /// All of them but those named in `off`.
    ///
    /// # Errors
    /// A name that is not in the table.
    fn without(&self, off: &[String]) -> Result<u64, String> {
        let mut word = self.known.iter().fold(0, |word, (_, bit)| word | bit);
        for name in off {
            let (_, bit) = self.known.iter().find(|(known, _)| known == name).ok_or_else(|| {
                let known = self.names(u64::MAX).join(", ");
                format!("features_off: \"{name}\" is no feature of {}; allowed are {known}", self.kind)
            })?;
            word &= !bit;
        }
        Ok(word)
    }

    /// The names of those of `word` that are in the table.
    fn names(&self, word: u64) -> Vec<String> {
        self.known.iter().filter(|(_, bit)| word & bit != 0).map(|(name, _)| (*name).to_owned()).collect()
    }
}

/// A device's view of a queue that it lends to a core or to its port: at rest, or with those that serve it.
/// Neither is never seen: it did not come back.
enum Queue<Q> {
    Here(Q),
    Lent(Lease<Q>),
    Lost,
}

impl<Q> Queue<Q> {
    fn is_lent(&self) -> bool {
        matches!(self, Queue::Lent(_))
    }

    /// The queue, taken back from those that serve it.
    fn take_back(&mut self) -> Option<&mut Q> {
        if self.is_lent() {
            if let Queue::Lent(lease) = std::mem::replace(self, Queue::Lost) {
                *self = lease.take_back().map_or(Queue::Lost, Queue::Here);
            }
        }
        match self {
            Queue::Here(queue) => Some(queue),
            Queue::Lent(_) | Queue::Lost => None,
        }
    }

    /// Takes it back and changes it. True: it was lent.
    fn change(&mut self, change: impl FnOnce(&mut Q)) -> bool {
        let was_lent = self.is_lent();
        if let Some(queue) = self.take_back() {
            change(queue);
        }
        was_lent
    }

    /// Has it served, if it is at rest.
    fn lend(&mut self, serve: impl FnOnce(Q) -> Lease<Q>) {
        *self = match std::mem::replace(self, Queue::Lost) {
            Queue::Here(queue) => Queue::Lent(serve(queue)),
            other => other,
        };
    }
}
