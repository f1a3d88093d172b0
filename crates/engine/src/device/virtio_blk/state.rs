//! The control side of the block device: which rings exist, the scheduler that serves them, what was
//! negotiated.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sidecore_abi::virtio::blk::{config as at, ID_LEN};
use sidecore_abi::virtio::features as bit;

use super::features;
use super::queue::BlkQueue;
use super::request::Limits;
use crate::core::Lease;
use crate::device::VirtioDevice;
use crate::disk::{Disk, Medium, MAX_QUEUES};
use crate::graph::Scheduler;
use crate::port::Port;
use crate::virtq::{Position, Queue, RingConfig, RingConfigError};

/// What an operator can choose of a virtio-blk device.
#[derive(Clone, Debug)]
pub struct BlkConfig {
    /// Queues that the guest may use, 1 to [`MAX_QUEUES`].
    pub queues: usize,
    /// What is written may wait for a flush, unless the guest has it otherwise.
    pub writeback: bool,
    /// The disk's name for the guest: its first 20 bytes.
    pub serial: String,
    /// Names of features not to offer.
    pub features_off: Vec<String>,
}

/// Most requests of a queue that the kernel has at a time.
const DEPTH: u16 = 256;

/// A virtio-blk device behind a port.
pub struct VirtioBlk {
    port: Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
    disk: Arc<Disk>,
    offered: u64,
    acked: u64,
    /// What stands in the configuration space: the driver's choice, which outlives it and its VMM, as each
    /// driver reads it anew.
    writeback: bool,
    id: [u8; ID_LEN],
    queues: Vec<Option<Lease<BlkQueue>>>,
}

impl VirtioBlk {
    /// A device behind `port` for `disk`, whose queues `scheduler` serves.
    ///
    /// # Errors
    /// What of the configuration is not possible.
    pub fn new(
        config: &BlkConfig,
        disk: Arc<Disk>,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<VirtioBlk, String> {
        if !(1..=MAX_QUEUES).contains(&config.queues) {
            return Err(format!(
                "queues: {} queues are not possible; allowed are 1 to {MAX_QUEUES}",
                config.queues
            ));
        }
        let offered = features::offered(&disk, config.queues, config.writeback, &config.features_off)?;
        // Until a driver is there that flushes.
        disk.set_write_through(true);
        let mut id = [0; ID_LEN];
        id.iter_mut().zip(config.serial.bytes()).for_each(|(to, byte)| *to = byte);
        let queues = (0..config.queues).map(|_| None).collect();
        Ok(VirtioBlk { port, scheduler, disk, offered, acked: 0, writeback: true, id, queues })
    }
}

impl VirtioBlk {
    /// §5.2.5: a driver without FLUSH takes what is acknowledged for lasting, whatever the configuration
    /// space says.
    fn settle_cache(&self) {
        self.disk.set_write_through(self.acked & bit::BLK_FLUSH == 0 || !self.writeback);
    }
}

impl VirtioDevice for VirtioBlk {
    fn port(&self) -> &Arc<Port> {
        &self.port
    }

    fn features(&self) -> u64 {
        self.offered
    }

    fn feature_names(&self, word: u64) -> Vec<String> {
        features::OFFERED.names(word)
    }

    fn rings(&self) -> usize {
        self.queues.len()
    }

    fn ring_role(&self, index: usize) -> (usize, &'static str) {
        (index, "requests")
    }

    fn set_features(&mut self, word: u64) {
        self.acked = word;
        self.settle_cache();
    }

    fn completes_in_order(&self) -> bool {
        false
    }

    fn start_ring(
        &mut self,
        index: usize,
        config: RingConfig,
        kick: Option<OwnedFd>,
    ) -> Result<(), RingConfigError> {
        let features = config.features;
        let way = match &self.disk.medium {
            Medium::File(file) => {
                let way = file.way(config.size.min(DEPTH), Arc::clone(&config.map));
                let name = &self.port.name;
                Some(way.map_err(|e| {
                    tracing::warn!(port = %name, "no io_uring for the disk: {e}");
                    RingConfigError::NoIoUring
                })?)
            }
            Medium::Ram(_) | Medium::Null => None,
        };
        self.port.note_memory(&config.desc);
        let queue = Queue::requests(config)?;
        let limits =
            Limits { capacity: self.disk.capacity(), read_only: self.disk.read_only, features, id: self.id };
        let (port, disk) = (Arc::clone(&self.port), Arc::clone(&self.disk));
        let task = BlkQueue::new(port, disk, index, (queue, way), kick, limits);
        if let Some(place) = self.queues.get_mut(index) {
            *place = Some(self.scheduler.place(&self.port, task));
        }
        Ok(())
    }

    fn stop_ring(&mut self, index: usize) -> Option<Position> {
        Some(self.queues.get_mut(index)?.take()?.take_back()?.close())
    }

    fn config_space(&self) -> Option<Vec<u8>> {
        Some(features::space(&self.disk, self.offered, self.queues.len(), self.writeback))
    }

    /// Only `writeback` can be written (§5.2.5), and only by a driver that took CONFIG_WCE.
    fn write_config(&mut self, offset: usize, bytes: &[u8]) {
        if let (at::WRITEBACK, [on], true) = (offset, bytes, self.acked & bit::BLK_CONFIG_WCE != 0) {
            self.writeback = *on != 0;
            self.settle_cache();
        }
    }

    fn disk(&self) -> Option<&Arc<Disk>> {
        Some(&self.disk)
    }
}

impl Drop for VirtioBlk {
    fn drop(&mut self) {
        for index in 0..self.rings() {
            self.stop_ring(index);
        }
    }
}
