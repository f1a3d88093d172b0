//! The eventfd itself, with the ring that signals it; or our end of a pipe.
//!
//! Invariant that the `unsafe` here keeps: no request refers to memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use io_uring::{opcode, IoUring};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use crate::mem::rings::for_signals;

/// How it is signalled.
#[expect(clippy::large_enum_variant, reason = "each stands behind a pointer already")]
enum SignalBy {
    /// By a completion on this ring.
    Ring(Mutex<IoUring>),
    /// By a write that may wait: the system has no ring for us.
    Write,
    /// By a write that does not wait: it is a pipe's end, and ours alone.
    Pipe,
}

/// An eventfd that signals go to, or the end of a pipe.
pub(in crate::mem) struct Target {
    fd: OwnedFd,
    by: SignalBy,
    /// It was taken away: no thread may wait for it.
    pub(in crate::mem) gone: AtomicBool,
}

impl Target {
    /// `fd` with the ring that is `spare`, or one of its own.
    pub(in crate::mem) fn new(fd: OwnedFd, spare: &mut Option<IoUring>) -> Target {
        let by = match spare.take().map_or_else(for_signals, Ok).and_then(|ring| join(ring, &fd)) {
            Ok(ring) => SignalBy::Ring(Mutex::new(ring)),
            Err(e) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    tracing::warn!("no io_uring ({e}): each port's interrupts come from a thread of its own, some 10 µs later");
                });
                SignalBy::Write
            }
        };
        Target { fd, by, gone: AtomicBool::new(false) }
    }

    /// The end `fd` of a pipe, which does not block.
    pub(in crate::mem) fn of_pipe(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Pipe, gone: AtomicBool::new(false) }
    }

    /// `fd` as where the system has no rings.
    #[cfg(test)]
    pub(in crate::mem) fn without_ring(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Write, gone: AtomicBool::new(false) }
    }

    pub(in crate::mem) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether signals never wait.
    pub(in crate::mem) fn never_waits(&self) -> bool {
        !matches!(self.by, SignalBy::Write)
    }

    /// Its ring, for the next one.
    pub(in crate::mem) fn into_ring(self) -> Option<IoUring> {
        let SignalBy::Ring(ring) = self.by else { return None };
        let ring = ring.into_inner().unwrap_or_else(PoisonError::into_inner);
        ring.submitter().unregister_eventfd().is_ok().then_some(ring)
    }

    /// Signals it; false if the kernel had no memory for the request, or there is no ring.
    pub(in crate::mem) fn raise(&self) -> bool {
        let ring = match &self.by {
            SignalBy::Ring(ring) => ring,
            SignalBy::Write => return false,
            SignalBy::Pipe => {
                // What is full, or has no reader any more, needs none.
                let _ = rustix::io::write(&self.fd, &[1]);
                return true;
            }
        };
        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing = opcode::Nop::new().build();
        // SAFETY: this request refers to no memory.
        let room = unsafe { ring.submission().push(&nothing) }.is_ok();
        let taken = ring.submit().is_ok_and(|taken| taken > 0);
        ring.completion().for_each(drop);
        room && taken
    }

    /// Signals it with a write, which waits if the VMM has made the counter full and the eventfd blocking in the last
    /// microsecond: for the bell thread alone, which a signal to it wakes again.
    pub(in crate::mem) fn write(&self) {
        while !self.gone.load(Ordering::Acquire) {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let writable = poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(&at_once));
            if writable == Ok(0) {
                // Full: its reader is more than informed.
                return;
            }
            if let Ok(flags) = fcntl_getfl(&self.fd) {
                let _ = fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK);
            }
            if rustix::io::write(&self.fd, &1u64.to_ne_bytes()) != Err(rustix::io::Errno::INTR) {
                return;
            }
        }
    }
}

/// Has the completions of `ring` signal `fd`.
fn join(ring: IoUring, fd: &OwnedFd) -> io::Result<IoUring> {
    ring.submitter().register_eventfd(fd.as_raw_fd())?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::register::Restriction;
    use rustix::event::{eventfd, EventfdFlags};

    /// An attacker that can write to our memory can post anything: the kernel takes nothing but what we post.
    #[test]
    fn a_ring_does_nothing_but_signal() {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let target = Target::new(event, &mut None);
        let SignalBy::Ring(ring) = &target.by else {
            panic!("this test needs a kernel that grants io_uring")
        };
        let path = c"/dev/null";
        let requests = [
            opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), path.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::Close::new(io_uring::types::Fd(0)).build(),
        ];
        let mut ring = ring.lock().unwrap();
        for request in requests {
            // SAFETY: `path` outlives the ring's use of it; the kernel takes none of these requests.
            unsafe { ring.submission().push(&request) }.unwrap();
            ring.submit().unwrap();
            let results: Vec<i32> = ring.completion().map(|done| done.result()).collect();
            assert_eq!(results, [-libc::EACCES]);
        }
        assert!(ring.submitter().register_files(&[0]).is_err());
        assert!(ring.submitter().register_restrictions(&mut [Restriction::sqe_op(18)]).is_err());
        drop(ring);
        assert!(target.raise());
        let mut count = [0; 8];
        rustix::io::read(target.fd(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 4);
    }
}
