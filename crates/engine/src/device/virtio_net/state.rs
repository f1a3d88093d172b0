//! The control side of the network device: which rings exist, the scheduler that serves them, what was
//! negotiated.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::virtio::features as bit;

use super::egress::EgressRing;
use super::features;
use super::ingress::IngressRing;
use super::moderated::{Looks, Moderated, Watched};
use crate::core::Lease;
use crate::device::{NetworkControl, VirtioDevice};
use crate::graph::Scheduler;
use crate::packet::Batch;
use crate::port::{IngressQueue, Port, Tally, MAX_QUEUES};
use crate::virtq::{Position, Queue, RingConfig, RingConfigError};

/// What an operator can choose of a virtio-net device.
#[derive(Clone, Debug, Default)]
pub struct NetConfig {
    /// Queue pairs that the guest may use, 1 to [`MAX_QUEUES`].
    pub queue_pairs: usize,
    /// Names of features not to offer.
    pub features_off: Vec<String>,
    /// The guest's MAC address, if it is ours to say. Most VMMs insist on saying it themselves.
    pub mac: Option<[u8; 6]>,
    /// Smallest gap between two interrupts of a ring, on the average; zero: none is held back.
    pub moderation: Duration,
}

/// A virtio-net device behind a port.
pub struct VirtioNet {
    port: Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
    offered: u64,
    acked: u64,
    mac: Option<[u8; 6]>,
    ingress: Vec<Option<Lease<IngressRing>>>,
    egress: Vec<Option<Lease<EgressRing>>>,
    moderation: Duration,
    /// When the late interrupts of each pair's transmit ring and receive ring are due; empty if none is late.
    watched: Vec<[Arc<Watched>; 2]>,
}

/// Longest wait for an I/O core to pass an announcement on.
const ANNOUNCE_WAIT: Duration = Duration::from_secs(1);
/// The smallest MTU of virtio 1.2 §5.1.4.1 and the largest that an Ethernet port here carries.
const MTUS: std::ops::RangeInclusive<u64> = 68..=65_535;

impl VirtioNet {
    /// A device behind `port`, whose ingress queues `scheduler` serves.
    ///
    /// # Errors
    /// What of the configuration is not possible.
    pub fn new(
        config: &NetConfig,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<VirtioNet, String> {
        if !(1..=MAX_QUEUES).contains(&config.queue_pairs) {
            let pairs = config.queue_pairs;
            return Err(format!(
                "queues: {pairs} queue pairs are not possible; allowed are 1 to {MAX_QUEUES}"
            ));
        }
        if config.mac.is_some_and(|mac| mac[0] & 1 == 1 || mac == [0; 6]) {
            return Err("mac: a guest's address must be neither zero nor a group address".to_owned());
        }
        let mut offered = features::offered(&config.features_off)?;
        if config.mac.is_none() {
            // They live in the configuration space, which we fill only if we have an address to put there.
            offered &= !(bit::NET_MAC | bit::NET_SPEED_DUPLEX);
        }
        if config.queue_pairs == 1 {
            offered &= !bit::NET_MQ;
        }
        let moderated = if config.moderation.is_zero() { 0 } else { config.queue_pairs };
        let watched = (0..moderated).map(|_| Ok([Watched::new()?, Watched::new()?]));
        let watched = watched.collect::<io::Result<_>>().map_err(|e| format!("moderation: {e}"))?;
        Ok(VirtioNet {
            port,
            scheduler,
            offered,
            acked: 0,
            mac: config.mac,
            ingress: (0..config.queue_pairs).map(|_| None).collect(),
            egress: (0..config.queue_pairs).map(|_| None).collect(),
            moderation: config.moderation,
            watched,
        })
    }
}

impl VirtioDevice for VirtioNet {
    fn port(&self) -> &Arc<Port> {
        &self.port
    }

    fn features(&self) -> u64 {
        self.offered
    }

    fn feature_names(&self, word: u64) -> Vec<String> {
        features::names(word)
    }

    fn rings(&self) -> usize {
        2 * self.ingress.len()
    }

    // Virtio 1.2 §5.1.2: receiveq1, transmitq1, receiveq2, …; the driver's receive queue is our egress.
    fn ring_role(&self, index: usize) -> (usize, &'static str) {
        (index / 2, if index % 2 == 0 { "egress" } else { "ingress" })
    }

    fn set_features(&mut self, word: u64) {
        self.acked = word;
        self.port.set_accepts(features::guest_offloads(word));
    }

    fn start_ring(
        &mut self,
        index: usize,
        config: RingConfig,
        kick: Option<OwnedFd>,
    ) -> Result<(), RingConfigError> {
        debug_assert!(index < self.rings());
        let features = config.features;
        self.port.note_memory(&config.desc);
        let queue = Queue::new(config)?;
        let pair = index / 2;
        let moderated = |egress, watched| Moderated::new(&self.port, egress, pair, self.moderation, watched);
        if index % 2 == 0 {
            let moderated = self.watched.get(pair).map(|[_, receive]| moderated(true, receive));
            let ring = EgressRing::new(Arc::clone(&self.port), queue, features).moderated(moderated);
            self.egress[pair] = Some(self.port.lend(pair, ring));
        } else {
            let looks = self.watched.get(pair);
            let looks = looks.map(|[own, receive]| Looks::new(moderated(false, own), Arc::clone(receive)));
            let ring = IngressRing::new(Arc::clone(&self.port), queue, kick, features).moderated(looks);
            self.ingress[pair] = Some(self.scheduler.serve(&self.port, pair, ring));
        }
        Ok(())
    }

    fn stop_ring(&mut self, index: usize) -> Option<Position> {
        let pair = index / 2;
        Some(if index % 2 == 0 {
            self.egress.get_mut(pair)?.take()?.take_back()?.close()
        } else {
            self.ingress.get_mut(pair)?.take()?.take_back()?.close()
        })
    }

    /// `struct virtio_net_config`, virtio 1.2 §5.1.4.
    fn config_space(&self) -> Option<Vec<u8>> {
        /// `status`: the link is up.
        const LINK_UP: u16 = 1;
        /// Mb/s. What a software port can do depends on the host; drivers want a number for bonding.
        const SPEED: u32 = 10_000;
        const DUPLEX_FULL: u8 = 1;
        let mac = self.mac?;
        let pairs = u16::try_from(self.ingress.len()).unwrap_or(1);
        let mtu = u16::try_from(self.port.mtu()).unwrap_or(u16::MAX);
        let mut space = mac.to_vec();
        space.extend(if self.port.carrier() { LINK_UP } else { 0 }.to_le_bytes());
        space.extend(pairs.to_le_bytes());
        space.extend(mtu.to_le_bytes());
        space.extend(SPEED.to_le_bytes());
        space.push(DUPLEX_FULL);
        Some(space)
    }

    fn network(&mut self) -> Option<&mut dyn NetworkControl> {
        Some(self)
    }
}

impl NetworkControl for VirtioNet {
    fn set_mtu(&mut self, mtu: u64) -> Result<(), String> {
        match u32::try_from(mtu) {
            Ok(bytes) if MTUS.contains(&mtu) => self.port.ask_mtu(bytes),
            _ => Err(format!(
                "an MTU of {mtu} is not possible; allowed are {} to {}",
                MTUS.start(),
                MTUS.end()
            )),
        }
    }

    fn announce(&mut self, mac: [u8; 6]) -> Result<(), String> {
        if mac[0] & 1 == 1 || mac == [0; 6] {
            return Err("the address to announce is zero or a group address".to_owned());
        }
        let (sent, done) = sync_channel(1);
        let frame = Some(rarp(mac));
        let lease = self.scheduler.serve(&self.port, 0, Announcement { frame, sent });
        let result = done.recv_timeout(ANNOUNCE_WAIT);
        drop(lease);
        result.map_err(|_| format!("no I/O core took the announcement within {ANNOUNCE_WAIT:?}"))
    }
}

impl Drop for VirtioNet {
    fn drop(&mut self) {
        for index in 0..self.rings() {
            self.stop_ring(index);
        }
    }
}

/// A reverse ARP request of `mac` about itself (RFC 903), padded to the shortest Ethernet frame: no station
/// answers it, but every switch on its way learns where `mac` is.
fn rarp(mac: [u8; 6]) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[0..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // EtherType RARP; Ethernet, IPv4, their address lengths; operation 3, "request reverse".
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

/// An ingress queue with one frame in its life.
struct Announcement {
    frame: Option<[u8; 60]>,
    sent: SyncSender<()>,
}

impl IngressQueue for Announcement {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        if let Some(frame) = self.frame.take() {
            batch.push_short(&frame);
            tally.frames += 1;
            tally.bytes += frame.len() as u64;
        }
    }

    fn release(&mut self, _: &mut Tally) {
        if self.frame.is_none() {
            // Fails if it was sent before, or no thread waits any more.
            let _ = self.sent.try_send(());
        }
    }

    fn want_kicks(&mut self, _: bool) -> bool {
        self.frame.is_some()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
