//! An eventfd that another process gave us and shares with us, signalled without ever waiting, and for a bounded share
//! of an I/O core's time.
//!
//! Theory of operation. `write(2)` on an eventfd whose counter is full waits, unless `O_NONBLOCK` is set. That flag
//! belongs to the open file, which a VMM shares. So the VMM can clear the flag that we set, and with a full counter it
//! would stop the I/O core that interrupts it. No call writes an eventfd and ignores the flag (`RWF_NOWAIT` is not
//! supported there). But when the kernel itself signals an eventfd, it adds as much as fits and does not wait. io_uring
//! does that for a registered eventfd with each completion. So every interrupt has its own ring, and a signal is a
//! `NOP` request on it. That costs 0.3 µs instead of 0.2.
//!
//! A ring could do much more than that: open files, make sockets, past every filter of system calls. So each ring is
//! restricted before it works (`rings`): it accepts `NOP`, and its eventfd may be exchanged. Before Linux 5.10 there
//! are no restrictions, and no ring is made. The ring is made with the eventfd: no I/O core makes one.
//!
//! A signal that does not wait may still be slow. It walks the list of waiters of the eventfd, some 0.4 µs each: if a
//! VMM hangs ten thousand epoll sets on it, a signal takes 5 ms. So signals are timed, at unforeseeable moments, and
//! the time of slow ones is a debt that decreases slowly. If an eventfd gets into debt, its port's bell thread
//! ([`Bell`](super::Bell)) signals it from then on, until it has behaved for long enough.
//!
//! Where io_uring is switched off (`kernel.io_uring_disabled`, many containers), the bell threads signal all eventfds,
//! and the log says so once: an I/O core never writes a foreign eventfd.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use io_uring::IoUring;

use super::bell::Bell;
use super::rings::for_signals;
use super::shared_event::{EventSlot, SharedEvent, SignalCost, Target, BELL, CORE, NOBODY, SLOW};

/// Signals an eventfd of a VMM.
pub struct Signal {
    inner: Arc<SharedEvent>,
    bell: Bell,
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let target = self.inner.lock().target.as_ref().map(|target| target.fd().as_raw_fd());
        f.debug_struct("Signal").field("fd", &target).field("at_bell", &self.is_at_bell()).finish()
    }
}

impl Default for Signal {
    fn default() -> Signal {
        Signal::new(&Bell::default())
    }
}

impl Signal {
    /// One without an eventfd, whose port has this bell.
    pub fn new(bell: &Bell) -> Signal {
        let cost = if bell.is_suspect() { SignalCost::suspect() } else { SignalCost::default() };
        let inner = Arc::new(SharedEvent {
            signaller: AtomicU8::new(NOBODY),
            asked: AtomicBool::new(false),
            slot: Mutex::new(EventSlot { cost, target: None, spare: None }),
        });
        Signal { inner, bell: bell.clone() }
    }

    /// Signals go to `fd` from now on, which has to be an eventfd; none: they go nowhere. Called by the control plane,
    /// since it makes a ring.
    pub fn set(&self, fd: Option<OwnedFd>) {
        self.set_with(fd, Target::new);
    }

    /// Signals are bytes that are written to `fd` from now on: the end of a pipe that is ours alone and does not block. A full
    /// one says enough.
    pub fn set_pipe(&self, fd: OwnedFd) {
        self.set_with(Some(fd), |fd, _| Target::of_pipe(fd));
    }

    fn set_with(&self, fd: Option<OwnedFd>, make: impl FnOnce(OwnedFd, &mut Option<IoUring>) -> Target) {
        let mut slot = self.inner.lock();
        self.inner.signaller.store(NOBODY, Ordering::Release);
        if let Some(old) = slot.target.take() {
            old.gone.store(true, Ordering::Release);
            match Arc::try_unwrap(old) {
                Ok(old) => slot.spare = old.into_ring(),
                // The bell thread is at it. It may have to be woken out of a write.
                Err(_) => self.bell.free(),
            }
        }
        let Some(fd) = fd else { return };
        let target = make(fd, &mut slot.spare);
        slot.cost.renew();
        let here = target.never_waits() && !slot.cost.is_at_bell();
        slot.target = Some(Arc::new(target));
        self.bell.enter(&self.inner);
        if !here {
            self.bell.start();
        }
        self.inner.signaller.store(if here { CORE } else { BELL }, Ordering::Release);
    }

    /// Whether the system gives us such rings.
    ///
    /// # Errors
    /// Why not.
    pub fn probe() -> std::io::Result<()> {
        for_signals().map(drop)
    }

    /// Whether signals go anywhere.
    pub fn is_set(&self) -> bool {
        self.inner.signaller.load(Ordering::Acquire) != NOBODY
    }

    /// Whether the bell thread sends them.
    pub fn is_at_bell(&self) -> bool {
        self.inner.signaller.load(Ordering::Acquire) == BELL
    }

    /// Adds one to the counter, or has the bell thread do it; true if there is one. If it is full nothing is added:
    /// its reader is more than informed.
    #[inline]
    pub fn raise(&self) -> bool {
        match self.inner.signaller.load(Ordering::Acquire) {
            NOBODY => return false,
            CORE => {
                let mut slot = self.inner.lock();
                // It may have gone, or moved, while this thread waited for the lock.
                if self.inner.signaller.load(Ordering::Relaxed) == CORE {
                    return self.signal(&mut slot);
                }
            }
            _ => {}
        }
        self.ask()
    }

    fn signal(&self, slot: &mut EventSlot) -> bool {
        let Some(target) = &slot.target else { return false };
        let raised = if slot.cost.is_due() {
            let before = Instant::now();
            let raised = target.raise();
            let after = Instant::now();
            if after - before > SLOW {
                self.bell.count_slow();
            }
            if slot.cost.took(after - before, after) {
                self.inner.signaller.store(BELL, Ordering::Release);
                self.bell.moved();
            }
            raised
        } else {
            target.raise()
        };
        // The kernel had no memory for the request: the bell thread may wait for some.
        raised || self.ask()
    }

    /// Asks the bell for a signal. Several wishes before it begins are one.
    fn ask(&self) -> bool {
        if !self.inner.asked.swap(true, Ordering::AcqRel) {
            self.bell.wake();
        }
        true
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.set(None);
    }
}

#[cfg(test)]
mod tests;
