//! How often and how long the frames of a port's ingress queues had to wait for their receiver's buffers.
//!
//! The I/O core that serves a queue writes its count, when a wait is over; any thread reads it. A queue that goes to
//! another core keeps its count, and so does its successor after a restart of the guest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::egress::MAX_QUEUES;
use crate::count;

/// A wait that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long it was.
    pub time: Duration,
    /// Whether it was patience that ended it, and not a buffer.
    pub given_up: bool,
}

/// The waits of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitCount {
    /// Times that its frames waited.
    pub count: u64,
    /// Microseconds of all of them together.
    pub total_us: u64,
    /// Those that ended because the receiver was taken for dead.
    pub given_up: u64,
}

#[derive(Default)]
struct Cell {
    count: AtomicU64,
    ns: AtomicU64,
    given_up: AtomicU64,
}

/// The waits of all ingress queues of a port.
#[derive(Default)]
pub struct Waits([Cell; MAX_QUEUES]);

impl Waits {
    /// Counts one of ingress queue `index`. Its I/O core is the only one that does.
    pub fn add(&self, index: usize, wait: Wait) {
        let Some(cell) = self.0.get(index) else { return };
        count(&cell.count, 1);
        count(&cell.ns, u64::try_from(wait.time.as_nanos()).unwrap_or(0));
        count(&cell.given_up, u64::from(wait.given_up));
    }

    /// What was counted for ingress queue `index`.
    pub fn of(&self, index: usize) -> WaitCount {
        let Some(cell) = self.0.get(index) else { return WaitCount::default() };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WaitCount {
            count: load(&cell.count),
            total_us: load(&cell.ns) / 1_000,
            given_up: load(&cell.given_up),
        }
    }
}
