//! What a ring needs to run.

use std::sync::Arc;

use sidecore_abi::virtio::{features, packed, split, MAX_QUEUE_SIZE};

use super::journal::PackedJournal;
use super::position::Position;
use super::region::{BadRegion, Region};
use crate::mem::{GuestMap, Piece, Signal};

/// Learns which guest pages the device writes: vhost's dirty log.
pub trait WriteLog: Send + Sync {
    /// `len` bytes at guest address `gpa` were written. Called after the data and before the completion
    /// is visible.
    fn wrote(&self, gpa: u64, len: u32);

    /// Has the memory found in which `size` bytes from guest address `gpa` on would be logged, before an I/O
    /// core needs it.
    fn find(&self, gpa: u64, size: u64) {
        let _ = (gpa, size);
    }
}

/// Everything that a ring needs to run.
pub struct RingConfig {
    /// Entries; split: a power of two.
    pub size: u16,
    /// Descriptor table (split) or descriptor ring (packed).
    pub desc: Piece,
    /// Available ring (split) or driver event suppression (packed).
    pub driver: Piece,
    /// Used ring (split) or device event suppression (packed).
    pub device: Piece,
    /// Guest address of the used ring for the dirty log, if it is to be logged (VHOST_VRING_F_LOG).
    pub used_log: Option<u64>,
    /// The memory that descriptors point into. The three pieces above come from it, too.
    pub map: Arc<GuestMap>,
    /// Negotiated features.
    pub features: u64,
    /// Where to start.
    pub position: Position,
    /// The guest's interrupt.
    pub notifier: Arc<Signal>,
    /// Present while pages are logged (migration).
    pub log: Option<Arc<dyn WriteLog>>,
    /// Present if a packed ring of frames must survive us.
    pub journal: Option<PackedJournal>,
    /// Present if a ring of requests must survive us. What it says goes before `position`.
    pub region: Option<Region>,
}

/// Why a ring cannot run as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingConfigError {
    /// Zero, too large, or (split) no power of two.
    #[error("queue size {0} is not allowed: 1 to 32768, a power of two for the split ring")]
    BadSize(u16),
    /// A part of the ring is not inside guest memory, or misaligned.
    #[error("the ring's {0} is not inside one memory region or is misaligned")]
    BadAddress(&'static str),
    /// The system has no io_uring for the device's requests.
    #[error("the kernel gives the ring no io_uring for its disk")]
    NoIoUring,
    /// A packed position for a split ring, or the reverse, or one beyond the ring.
    #[error("the ring's start position does not fit its size or format")]
    BadPosition,
    /// What the in-flight region says cannot be so.
    #[error("the in-flight region is not about this ring: {0}")]
    BadRegion(#[from] BadRegion),
}

impl RingConfig {
    /// Sizes in bytes of the three parts for a queue of `size` entries.
    pub fn part_sizes(size: u16, feature_bits: u64) -> [usize; 3] {
        if feature_bits & features::RING_PACKED != 0 {
            [16 * usize::from(size), packed::EVENT_SIZE, packed::EVENT_SIZE]
        } else {
            [split::desc_size(size), split::avail_size(size), split::used_size(size)]
        }
    }

    /// Checks everything that makes the ring's own accesses infallible: sizes, alignment, position.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), RingConfigError> {
        let is_packed = self.features & features::RING_PACKED != 0;
        if self.size == 0 || self.size > MAX_QUEUE_SIZE || (!is_packed && !self.size.is_power_of_two()) {
            return Err(RingConfigError::BadSize(self.size));
        }
        // Alignment: virtio 1.2 §2.7 (16, 2, 4) and §2.8.10.1 (16, 4, 4).
        let aligns = if is_packed { [16, 4, 4] } else { [16, 2, 4] };
        let names = if is_packed {
            ["descriptor ring", "driver event", "device event"]
        } else {
            ["descriptor table", "available ring", "used ring"]
        };
        let parts = [&self.desc, &self.driver, &self.device];
        let sizes = Self::part_sizes(self.size, self.features);
        for (((part, size), align), name) in parts.into_iter().zip(sizes).zip(aligns).zip(names) {
            if part.len() < size || part.as_ptr() as usize % align != 0 {
                return Err(RingConfigError::BadAddress(name));
            }
        }
        match self.position {
            Position::Split(_) if !is_packed => Ok(()),
            Position::Packed { avail, used }
                if is_packed && avail & 0x7fff < self.size && used & 0x7fff < self.size =>
            {
                Ok(())
            }
            _ => Err(RingConfigError::BadPosition),
        }
    }
}
