//! The eventfd itself, with the way to signal it; or our end of a pipe, or the end of a VMM's socket.
//!
//! Invariant that the `unsafe` here keeps: no request refers to memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use io_uring::{opcode, IoUring};
use rustix::io::Errno;
use rustix::net::{send, SendFlags};

use super::reads::Reads;
use super::rings::for_signals;

/// How it is signalled.
enum SignalBy {
    /// By a completion on this ring.
    Ring(Box<Mutex<IoUring>>),
    /// By the end of a read: the system has no ring for us.
    Read(&'static Reads),
    /// By a write that does not wait: it is a pipe's end, and ours alone.
    Pipe,
    /// By a send that does not wait: it is the end of a stream socket of this host, whoever has it as well.
    Socket,
}

/// What became of a signal.
pub(super) enum Raised {
    Done,
    /// The kernel had no memory for the request.
    NoMemory,
    /// The other end of the socket was shut, for good.
    Gone,
}

/// An eventfd that signals go to, or the end of a pipe or a socket.
pub(super) struct Target {
    /// The descriptor, with no way to signal it.
    pub(super) fd: OwnedFd,
    by: SignalBy,
}

impl Target {
    /// `fd` with the ring that is `spare`, or one of its own.
    pub(super) fn new(fd: OwnedFd, spare: &mut Option<IoUring>) -> Target {
        let by = match spare.take().map_or_else(for_signals, Ok).and_then(|ring| join(ring, &fd)) {
            Ok(ring) => SignalBy::Ring(Box::new(Mutex::new(ring))),
            Err(e) => SignalBy::Read(Reads::get(&e)),
        };
        Target { fd, by }
    }

    /// The end `fd` of a pipe, which does not block.
    pub(super) fn of_pipe(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Pipe }
    }

    /// The end `fd` of a connected stream socket of this host.
    pub(super) fn of_socket(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Socket }
    }

    /// Whether it is such an end.
    pub(super) fn is_socket(&self) -> bool {
        matches!(self.by, SignalBy::Socket)
    }

    /// `fd` as where the system has no rings.
    #[cfg(test)]
    pub(super) fn without_ring(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Read(Reads::get(&io::Error::other("a test"))) }
    }

    /// Its ring, for the next one.
    pub(super) fn into_ring(self) -> Option<IoUring> {
        let SignalBy::Ring(ring) = self.by else { return None };
        let ring = ring.into_inner().unwrap_or_else(PoisonError::into_inner);
        ring.submitter().unregister_eventfd().is_ok().then_some(ring)
    }

    /// Signals it.
    pub(super) fn raise(&self) -> Raised {
        let taken = match &self.by {
            SignalBy::Ring(ring) => {
                let mut ring = crate::lock(ring);
                let nothing = opcode::Nop::new().build();
                // SAFETY: this request refers to no memory.
                let room = unsafe { ring.submission().push(&nothing) }.is_ok();
                let taken = ring.submit().is_ok_and(|taken| taken > 0);
                ring.completion().for_each(drop);
                room && taken
            }
            SignalBy::Read(reads) => reads.signal(&self.fd),
            SignalBy::Pipe => {
                // What is full, or has no reader any more, needs none.
                let _ = rustix::io::write(&self.fd, &[1]);
                true
            }
            SignalBy::Socket => {
                let one = 1u64.to_ne_bytes();
                match send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    // A full one says enough.
                    Ok(_) | Err(Errno::AGAIN) => true,
                    Err(Errno::NOMEM | Errno::NOBUFS) => false,
                    Err(_) => return Raised::Gone,
                }
            }
        };
        if taken {
            Raised::Done
        } else {
            Raised::NoMemory
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
            panic!("this test needs io_uring (kernel.io_uring_disabled=0)")
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
        assert!(matches!(target.raise(), Raised::Done));
        let mut count = [0; 8];
        rustix::io::read(target.fd, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 4);
    }
}
