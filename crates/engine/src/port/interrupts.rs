//! How often the peer was interrupted for each queue of a port, and how often it need not be.
//!
//! The present holder of a queue writes its count: the I/O core that serves an ingress queue, the holder of
//! an egress queue's lock. A queue that goes to another core keeps its count, and so does its successor after
//! a restart of the guest.
//!
//! How often a port used an address that lives at another one.
//!
//! How often and how long the frames of a port's ingress queues had to wait for their receiver's buffers.
//!
//! The I/O core that serves a queue writes its count, when a wait is over; any thread reads it. A queue that
//! goes to another core keeps its count, and so does its successor after a restart of the guest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::attachment::InterruptCount;
use super::egress::MAX_QUEUES;
use crate::count;

/// One queue's: a cache line, since other cores write those of others.
#[derive(Default)]
#[repr(align(64))]
struct Cell {
    occasions: AtomicU64,
    interrupts: AtomicU64,
    held_back: AtomicU64,
}

/// Those of all queues of a port.
#[derive(Default)]
pub struct QueueInterrupts {
    /// Counts of ingress queues, and of egress queues.
    cells: [[Cell; MAX_QUEUES]; 2],
}

impl Cell {
    #[inline]
    fn add(&self, occasions: u64, interrupts: u64) {
        count(&self.occasions, occasions);
        if interrupts > 0 {
            count(&self.interrupts, interrupts);
        }
    }
}

impl QueueInterrupts {
    /// Counts for ingress queue `index`, or a disk's: times that there was something to tell, and interrupts
    /// that told it.
    #[inline]
    pub fn ingress(&self, index: usize, occasions: u64, interrupts: u64) {
        self.cell(false, index).into_iter().for_each(|cell| cell.add(occasions, interrupts));
    }

    /// Counts for egress queue `index`, whose lock the caller has.
    #[inline]
    pub fn egress(&self, index: usize, occasions: u64, interrupts: u64) {
        self.cell(true, index).into_iter().for_each(|cell| cell.add(occasions, interrupts));
    }

    fn cell(&self, egress: bool, index: usize) -> Option<&Cell> {
        self.cells[usize::from(egress)].get(index)
    }

    /// An event of this queue has to wait for the next interrupt.
    pub fn held_back(&self, egress: bool, index: usize) {
        if let Some(cell) = self.cell(egress, index) {
            cell.held_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was counted for queue `index` of this direction; `device`: what its device says of interrupts
    /// that it moderates itself. `None`: there is nothing to tell.
    pub fn of(&self, egress: bool, index: usize, device: Option<InterruptCount>) -> Option<InterruptCount> {
        let cell = self.cell(egress, index)?;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let occasions = load(&cell.occasions);
        let raised = device.map_or_else(|| load(&cell.interrupts), |device| device.raised);
        let held_back = device.map_or_else(|| load(&cell.held_back), |device| device.held_back);
        let count = InterruptCount { raised, held_back, saved: occasions.saturating_sub(raised) };
        (device.is_some() || count != InterruptCount::default()).then_some(count)
    }
}

/// Counts of a port. Several cores may count; none does in frames that a port may send all the time.
#[derive(Debug, Default)]
pub struct Claims {
    heeded: AtomicU64,
    pinned: AtomicU64,
    held: AtomicU64,
}

crate::util::form::view! {
    /// The counts, at one moment.
    #[derive(Copy, Default)]
    ClaimCount {
        /// How often it claimed an address of another port. Both ports then get the address's frames until
        /// the claim ends.
        mac_moved: u64,
        /// How often it used an address that is pinned to another port, which is not learned.
        mac_claimed: u64,
        /// How often it used an address that was held after too many claims, which is not learned.
        mac_flap: u64,
    }
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

/// A wait that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long it was.
    pub time: Duration,
    /// Whether it was patience that ended it, and not a buffer.
    pub given_up: bool,
}

crate::util::form::view! {
    /// How the frames of an ingress queue waited for buffers of the receiver at the other end of a wire.
    #[derive(Copy, Default)]
    WaitCount {
        /// How often frames waited.
        count: u64,
        /// Microseconds of all waits together.
        total_us: u64,
        /// Waits that ended after 100 ms without a buffer.
        given_up: u64,
    }
}

#[derive(Default)]
struct WaitCell {
    count: AtomicU64,
    ns: AtomicU64,
    given_up: AtomicU64,
}

/// The waits of all ingress queues of a port.
#[derive(Default)]
pub struct Waits([WaitCell; MAX_QUEUES]);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_own() {
        let interrupts = QueueInterrupts::default();
        interrupts.ingress(1, 3, 1);
        interrupts.ingress(1, 1, 1);
        interrupts.egress(1, 1, 0);
        interrupts.ingress(MAX_QUEUES, 1, 1);
        let count = |raised, held_back, saved| Some(InterruptCount { raised, held_back, saved });
        assert_eq!(
            (interrupts.of(false, 1, None), interrupts.of(true, 1, None)),
            (count(2, 0, 2), count(0, 0, 1))
        );
        assert_eq!((interrupts.of(false, 0, None), interrupts.of(true, MAX_QUEUES, None)), (None, None));
        // A device that moderates knows better how many it sent.
        let device = InterruptCount { raised: 3, held_back: 1, saved: 0 };
        assert_eq!(
            (interrupts.of(false, 1, Some(device)), interrupts.of(false, 0, Some(device))),
            (count(3, 1, 1), count(3, 1, 0))
        );
    }
}
