//! What each I/O core has for its queues alone: nothing of it is shared or locked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deliver::Delivery;
use super::topology::Topology;
use crate::core::Beat;
use crate::frame::Batch;
use crate::mem::ticks_in;
use crate::router::Desk;
use crate::switch::Verdicts;

/// What an I/O core has for its queues.
pub struct Local {
    /// The core's number: that of its blocks of counters.
    pub(super) number: usize,
    pub(super) epoch: Instant,
    pub(super) topology: Arc<Topology>,
    pub(super) batch: Batch,
    pub(super) verdicts: Verdicts,
    pub(super) delivery: Delivery,
    pub(super) desk: Desk,
    pub(super) beat: Arc<Beat>,
    /// Ticks of a nanosecond, in 2⁻³².
    rate: u64,
}

impl Local {
    pub(super) fn new(number: usize, beat: &Arc<Beat>, epoch: Instant) -> Local {
        Local {
            number,
            epoch,
            topology: Arc::default(),
            batch: Batch::new(),
            verdicts: Verdicts::new(),
            delivery: Delivery::new(number, Arc::clone(beat), epoch),
            desk: Desk::new(),
            beat: Arc::clone(beat),
            rate: u64::try_from((u128::from(ticks_in(Duration::from_secs(1))) << 32) / 1_000_000_000)
                .unwrap_or(u64::MAX),
        }
    }

    /// How far the processor's counter goes in so many nanoseconds.
    #[inline]
    pub(super) fn ticks(&self, ns: u64) -> u64 {
        u64::try_from((u128::from(ns) * u128::from(self.rate)) >> 32).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
impl Local {
    /// For rounds by hand: however long they take, they do the same.
    pub(super) fn without_clock() -> Local {
        let mut local = Local::new(0, &Arc::default(), Instant::now());
        local.rate = u64::MAX;
        local.delivery.limit = u64::MAX;
        local.delivery.usual = u64::MAX;
        local
    }
}

/// The clock of the MAC table: seconds since the engine started, from 1 on.
pub(super) fn seconds(epoch: Instant) -> u32 {
    u32::try_from(epoch.elapsed().as_secs()).unwrap_or(u32::MAX - 1) + 1
}
