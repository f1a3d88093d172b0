//! How many addresses live behind a port, and how many may.

use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses learned behind a port, and how many it may have.
#[derive(Debug, Default)]
pub struct MacCount {
    limit: AtomicU32,
    count: AtomicU32,
}

impl MacCount {
    /// Sets the limit; 0: none.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Addresses learned now.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// The limit; 0: none.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether no further address may be learned.
    pub fn is_full(&self) -> bool {
        let limit = self.limit();
        limit != 0 && self.count() >= limit
    }

    /// Counts a learned address.
    pub fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a forgotten address.
    pub fn sub(&self) {
        // Never below zero, whatever order two cores count in.
        let _ = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}
