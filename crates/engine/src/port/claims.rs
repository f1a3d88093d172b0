//! How often a port used an address that lives at another one.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Counts of a port. Several cores may count; none does in frames that a port may send all the time.
#[derive(Debug, Default)]
pub struct Claims {
    heeded: AtomicU64,
    pinned: AtomicU64,
    held: AtomicU64,
}

/// The counts, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimCount {
    /// Addresses that lived at another port and were seen at this one.
    pub mac_moved: u64,
    /// Those that were not learned because they are pinned to the other port.
    pub mac_claimed: u64,
    /// Those that were not learned because the address went to and fro too often.
    pub mac_flap: u64,
}

impl Claims {
    /// It uses an address that lives elsewhere; from now on both ports get its frames.
    #[cold]
    pub fn heeded(&self) {
        self.heeded.fetch_add(1, Ordering::Relaxed);
    }

    /// It uses an address that is pinned elsewhere.
    #[cold]
    pub fn pinned(&self) {
        self.pinned.fetch_add(1, Ordering::Relaxed);
    }

    /// It uses an address that stays elsewhere for a while.
    #[cold]
    pub fn held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts.
    pub fn count(&self) -> ClaimCount {
        ClaimCount {
            mac_moved: self.heeded.load(Ordering::Relaxed),
            mac_claimed: self.pinned.load(Ordering::Relaxed),
            mac_flap: self.held.load(Ordering::Relaxed),
        }
    }
}
