//! When interrupts are looked at again, and the core that is woken for it.
//!
//! Theory of operation. Nothing of a device has a timer. What waits is written down as one deadline, which
//! the I/O core that serves the guest's transmit queue compares with the clock whenever it polls, and which
//! bounds its nap. A deadline that comes nearer while that core sleeps wakes it, and so does whatever else it
//! may not have seen.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};

/// No deadline.
pub(in crate::device) const NEVER: u64 = u64::MAX;

/// Nanoseconds since the device came to be.
pub(in crate::device) enum Clock {
    System(Instant),
    /// Stands until a test turns it.
    #[cfg(test)]
    Manual(AtomicU64),
}

/// A clock, a deadline and a sleeper.
pub(in crate::device) struct Alarm {
    pub(in crate::device) clock: Clock,
    deadline: AtomicU64,
    /// The I/O core that watches the deadline is about to sleep.
    sleeping: AtomicBool,
    wake: OwnedFd,
    /// Interrupts that accesses of the driver, or the link, have brought, and that no I/O core has counted
    /// yet.
    uncounted: AtomicU64,
}

impl Alarm {
    pub(in crate::device) fn new() -> std::io::Result<Alarm> {
        Ok(Alarm {
            clock: Clock::System(Instant::now()),
            deadline: AtomicU64::new(NEVER),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            uncounted: AtomicU64::new(0),
        })
    }

    /// Interrupts that came without an I/O core: the next one to look counts them.
    pub(in crate::device) fn note(&self, interrupts: u64) {
        self.uncounted.fetch_add(interrupts, Ordering::Relaxed);
    }

    /// Takes what was noted.
    #[inline]
    pub(in crate::device) fn noted(&self) -> u64 {
        match self.uncounted.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.uncounted.swap(0, Ordering::Relaxed),
        }
    }

    /// Nanoseconds since the device came to be.
    pub(in crate::device) fn now(&self) -> u64 {
        match &self.clock {
            Clock::System(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(NEVER - 1),
            #[cfg(test)]
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Whether the deadline has come. Cheap when there is none.
    #[inline]
    pub(in crate::device) fn is_due(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Acquire);
        deadline != NEVER && self.now() >= deadline
    }

    /// How long until something becomes due.
    pub(in crate::device) fn due_in(&self) -> Option<Duration> {
        let deadline = self.deadline.load(Ordering::Acquire);
        (deadline != NEVER).then(|| Duration::from_nanos(deadline.saturating_sub(self.now())))
    }

    /// The deadline is `next` now.
    pub(in crate::device) fn set(&self, next: u64) {
        let earlier = next < self.deadline.swap(next, Ordering::AcqRel);
        if earlier {
            self.wake_sleeper();
        }
    }

    /// The deadline is `next` if it was none, or a later one.
    pub(in crate::device) fn lower(&self, next: u64) {
        if next < self.deadline.fetch_min(next, Ordering::AcqRel) {
            self.wake_sleeper();
        }
    }

    /// The watching core is about to sleep, or is awake. After `true`, a look at the deadline must follow.
    pub(in crate::device) fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping, Ordering::Relaxed);
        if sleeping {
            fence(Ordering::SeqCst);
        }
    }

    /// Wakes the core that serves the transmit queue if it sleeps: there is a deadline, or a tail, that it
    /// may not have seen.
    pub(in crate::device) fn wake_sleeper(&self) {
        // Either the core sees it before it sleeps, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            // Fails only when the counter is full, and then the core is awake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Readable when the core has been woken.
    pub(in crate::device) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
