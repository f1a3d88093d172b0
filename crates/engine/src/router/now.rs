//! When a batch is decided on, and whose it is.

use std::time::Instant;

use crate::port::PortId;

/// When a batch is decided on, and whose it is.
pub struct Now {
    /// Seconds since the engine started, from 1 on.
    pub seconds: u32,
    /// When that was.
    pub epoch: Instant,
    /// The core, for its counters.
    pub core: usize,
    /// The port that sent it, however many switches and routers it has passed since.
    pub sender: PortId,
}

impl Now {
    /// The same in microseconds.
    pub(super) fn micros(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
