//! A lock whose holder may stand still: while it has the lock it touches memory that another process can make
//! it wait for, as long as a VMM punches pages out.
//!
//! Theory of operation. I/O cores take such a lock for one batch. One that finds it taken tries again for
//! [`STUCK`], longer than a batch takes. If that is in vain the holder stands still, and from then on no core
//! waits at all, until one finds the lock free again. So each core loses that time once for each time that
//! another one stands still.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::ticks::{ticks, ticks_in};

/// A core that has a lock for longer stands still: a delivery ends after as long.
const STUCK: Duration = Duration::from_millis(1);
/// Tries between two looks at the clock.
const TRIES: usize = 64;

/// A value behind such a lock.
#[derive(Debug, Default)]
pub struct Patient<T> {
    value: Mutex<T>,
    /// A core has waited in vain for the holder, or for the one before.
    stuck: AtomicBool,
}

impl<T> Patient<T> {
    /// `value`, behind a lock.
    pub fn new(value: T) -> Patient<T> {
        Patient { value: Mutex::new(value), stuck: AtomicBool::new(false) }
    }

    /// The lock, however long that takes: for threads that are no I/O cores.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // A panic while it was held has ended that batch; the value itself is still whole.
        crate::lock(&self.value)
    }

    /// The lock, for an I/O core. `None`: another core stands still with it.
    pub fn reach(&self) -> Option<MutexGuard<'_, T>> {
        self.try_lock().or_else(|| self.wait())
    }

    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            // As above.
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if self.stuck.load(Ordering::Relaxed) {
            self.stuck.store(false, Ordering::Relaxed);
        }
        Some(value)
    }

    #[cold]
    fn wait(&self) -> Option<MutexGuard<'_, T>> {
        let (begun, patience) = (ticks(), ticks_in(STUCK));
        while !self.stuck.load(Ordering::Relaxed) {
            for _ in 0..TRIES {
                std::hint::spin_loop();
                if let Some(value) = self.try_lock() {
                    return Some(value);
                }
            }
            if ticks().wrapping_sub(begun) > patience {
                self.stuck.store(true, Ordering::Relaxed);
            }
            // The holder may be on this processor.
            std::thread::yield_now();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_holder_that_stands_still_and_all_for_one_that_does_not() {
        let lock = Patient::new(0u64);
        let still = lock.lock();
        assert!(lock.reach().is_none(), "after a while");
        let begun = ticks();
        assert!((0..1000).all(|_| lock.reach().is_none()), "at once");
        assert!(ticks().wrapping_sub(begun) < 100 * ticks_in(STUCK), "each of them waited");
        drop(still);
        assert!(lock.reach().is_some() && !lock.stuck.load(Ordering::Relaxed));
        // Cores that meet there all the time are not taken for such.
        let add =
            || (0..10_000).filter(|_| lock.reach().map(|mut value| *value += 1).is_some()).count() as u64;
        let added: u64 = std::thread::scope(|scope| {
            let cores: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
            cores.into_iter().map(|core| core.join().unwrap()).sum()
        });
        assert_eq!(*lock.lock(), added, "whoever had the lock counted");
        assert!(added > 0);
    }
}
