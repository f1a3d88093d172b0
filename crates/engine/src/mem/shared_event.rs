//! An eventfd of a VMM, as an I/O core and the bell thread of its port share it: one of the two signals it.

mod cost;
mod target;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io_uring::IoUring;

pub(super) use self::cost::{SignalCost, SLOW};
pub(super) use self::target::Target;

/// There is no eventfd.
pub(super) const NOBODY: u8 = 0;
/// The thread that raises signals it.
pub(super) const CORE: u8 = 1;
/// The bell thread does.
pub(super) const BELL: u8 = 2;

/// An eventfd, and which thread signals it.
pub(super) struct SharedEvent {
    pub(super) signaller: AtomicU8,
    /// The bell is asked for a signal that it has not begun.
    pub(super) asked: AtomicBool,
    pub(super) slot: Mutex<EventSlot>,
}

pub(super) struct EventSlot {
    pub(super) target: Option<Arc<Target>>,
    /// The ring of an eventfd that was taken away.
    pub(super) spare: Option<IoUring>,
    pub(super) cost: SignalCost,
}

impl SharedEvent {
    /// What belongs to it.
    pub(super) fn lock(&self) -> MutexGuard<'_, EventSlot> {
        // A panic while it was held has lost at most one measurement.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The eventfd, for the bell thread.
    pub(super) fn target(&self) -> Option<Arc<Target>> {
        self.lock().target.clone()
    }

    pub(super) fn is_at_bell(&self) -> bool {
        self.signaller.load(Ordering::Acquire) == BELL
    }

    /// The bell thread's signal has taken so long: once it has behaved for long enough, I/O cores signal it again.
    pub(super) fn rung(&self, took: Duration, now: Instant) {
        let mut slot = self.lock();
        let here = slot.target.as_ref().is_some_and(|target| target.never_waits());
        if self.is_at_bell() && here && slot.cost.rung(took, now) {
            self.signaller.store(CORE, Ordering::Release);
        }
    }
}
