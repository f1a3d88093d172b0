//! An eventfd that another process gave us and shares with us, signalled without ever waiting.
//!
//! Theory of operation. `write(2)` on an eventfd whose counter is full waits, unless `O_NONBLOCK` is set.
//! That flag belongs to the open file, which a VMM shares. So the VMM can clear the flag that we set, and
//! with a full counter it would stop the I/O core that interrupts it. No call writes an eventfd and ignores
//! the flag (`RWF_NOWAIT` is not supported there). But when the kernel itself signals an eventfd, it adds as
//! much as fits and does not wait. io_uring does that for a registered eventfd with each completion. So every
//! interrupt has its own ring, and a signal is a `NOP` request on it. That costs 0.3 µs instead of 0.2.
//!
//! A ring could do much more than that: open files, make sockets, past every filter of system calls. So each
//! ring is restricted before it works (`rings`): it accepts `NOP`, and its eventfd may be exchanged. Before
//! Linux 5.10 there are no restrictions, and no ring is made. The ring is made with the eventfd: no I/O core
//! makes one.
//!
//! Where io_uring is switched off (`kernel.io_uring_disabled`, many containers), a signal is a read of no
//! bytes from an empty file by the kernel's older asynchronous I/O (io_submit(2)), which signals an eventfd
//! when it is done (`IOCB_FLAG_RESFD`). That costs some 1.5 µs.
//!
//! A VMM without eventfds (User-mode Linux) gives the end of a stream socket of this host instead, where the
//! operator allows it. A `send` to it with MSG_DONTWAIT heeds no flag of the file, and takes no lock that
//! readers hold while they sleep. Older kernels (6.1 is one) have it wait for the collection of sockets in
//! flight, where processes have sent thousands of those: another reason to allow it only to a VMM that needs
//! it.
//!
//! A signal that does not wait may still be slow. It walks the list of waiters of the eventfd, some 0.4 µs
//! each: if a VMM hangs ten thousand epoll sets on it, a signal takes 5 ms. So each signal is timed, and what
//! it takes too long is the port's [`Overrun`]. What the thread spent on signals is known apart
//! ([`signalled`]): a core that knows what frames cost has to leave it out, as there is one signal however
//! many frames there were.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use io_uring::IoUring;

use super::overrun::{Act, Overrun};
use super::rings::for_signals;
use super::target::{Raised, Target};
use super::ticks::{ticks, time_of};

/// Tries of a signal for which the kernel has no memory.
const TRIES: usize = 1000;

thread_local! {
    /// Ticks that this thread spent on signals since it was asked.
    static SIGNALLED: Cell<u64> = const { Cell::new(0) };
}

/// What the calling thread spent on signals since it asked last.
#[inline]
pub fn signalled() -> Duration {
    match SIGNALLED.take() {
        0 => Duration::ZERO,
        spent => time_of(spent),
    }
}

/// Signals an eventfd or a socket of a VMM, or a pipe of ours.
#[derive(Debug, Default)]
pub struct Signal {
    set: AtomicBool,
    slot: Mutex<Slot>,
    overrun: Overrun,
}

#[derive(Default)]
struct Slot {
    target: Option<Target>,
    /// The ring of an eventfd that was taken away.
    spare: Option<IoUring>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slot").field(&self.target.as_ref().map(|target| &target.fd)).finish()
    }
}

impl Signal {
    /// One without an eventfd. What its signals take too long is entered in `overrun`.
    pub fn new(overrun: &Overrun) -> Signal {
        Signal { overrun: overrun.clone(), ..Signal::default() }
    }

    /// Signals go to `fd` from now on, which has to be an eventfd; none: they go nowhere. Called by the
    /// control plane, since it makes a ring.
    pub fn set(&self, fd: Option<OwnedFd>) {
        self.set_with(fd, Target::new);
    }

    /// Signals are bytes that are written to `fd` from now on: the end of a pipe that is ours alone and does
    /// not block. A full one says enough.
    pub fn set_pipe(&self, fd: OwnedFd) {
        self.set_with(Some(fd), |fd, _| Target::of_pipe(fd));
    }

    /// Signals are 8 bytes, as an eventfd gives them, that are sent to `fd` from now on: the end of a
    /// connected stream socket of this host. A full one says enough, and one that was shut turns them off.
    pub fn set_socket(&self, fd: OwnedFd) {
        self.set_with(Some(fd), |fd, _| Target::of_socket(fd));
    }

    /// The socket that signals went to, if it was one; from now on they go nowhere. Whoever takes it has to
    /// close it, which may wait.
    pub fn take_socket(&self) -> Option<OwnedFd> {
        let mut slot = crate::lock(&self.slot);
        let target = slot.target.take_if(|target| target.is_socket())?;
        self.set.store(false, Ordering::Release);
        Some(target.fd)
    }

    fn set_with(&self, fd: Option<OwnedFd>, make: impl FnOnce(OwnedFd, &mut Option<IoUring>) -> Target) {
        let mut slot = crate::lock(&self.slot);
        if let Some(old) = slot.target.take() {
            slot.spare = old.into_ring();
        }
        slot.target = fd.map(|fd| make(fd, &mut slot.spare));
        self.set.store(slot.target.is_some(), Ordering::Release);
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
        self.set.load(Ordering::Acquire)
    }

    /// Adds one to the counter; true if there is one. If it is full nothing is added: its reader is more than
    /// informed.
    #[inline]
    pub fn raise(&self) -> bool {
        if !self.is_set() {
            return false;
        }
        let slot = crate::lock(&self.slot);
        // It may have gone while this thread waited for the lock.
        let Some(target) = &slot.target else { return false };
        // The kernel has no memory for the request only where it is about to end processes to get some.
        let begun = ticks();
        let raised = (0..TRIES).map(|_| target.raise()).find(|raised| !matches!(raised, Raised::NoMemory));
        if matches!(raised, Some(Raised::Gone)) {
            self.set.store(false, Ordering::Release);
        }
        SIGNALLED.set(SIGNALLED.get() + ticks().wrapping_sub(begun));
        self.overrun.took(Act::Work, begun);
        true
    }
}

#[cfg(test)]
mod tests;
