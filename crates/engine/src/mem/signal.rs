//! An eventfd that somebody else gave us and shares with us, signalled without ever waiting for anybody.
//!
//! Theory of operation. `write(2)` on an eventfd whose counter is full waits, unless `O_NONBLOCK` is set. That
//! flag belongs to the open file, which a VMM shares: whatever we set it can undo, and with a full counter it
//! would stop the I/O core that interrupts it. There is no call that writes an eventfd and ignores the flag
//! (`RWF_NOWAIT` is not supported there). But the kernel signals eventfds for its own purposes, and then adds
//! what fits and waits for nobody. io_uring does that for a registered eventfd with each completion. So every
//! interrupt has a ring of its own, and a signal is a request on it to do nothing. That costs 0.3 µs instead
//! of 0.2.
//!
//! A ring could do much more than nothing: open files, make sockets, past every filter of system calls. So each ring is
//! restricted before it works (`IORING_REGISTER_RESTRICTIONS`): it takes `NOP`, and its eventfd may be exchanged; the
//! kernel refuses the rest for as long as the ring lives. Before Linux 5.10 there are no restrictions, and no ring is
//! made.
//!
//! Where io_uring is switched off (`kernel.io_uring_disabled`, many containers), we write as ever, and say so
//! in the log once.
//!
//! Invariant that the `unsafe` here keeps: no request refers to memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;

use io_uring::register::Restriction;
use io_uring::{opcode, IoUring};

/// Operations of io_uring_register(2), from `linux/io_uring.h`.
const REGISTER_EVENTFD: u8 = 4;
const UNREGISTER_EVENTFD: u8 = 5;

/// A place for somebody's eventfd.
#[derive(Default)]
pub struct Signal {
    /// Made for the first eventfd, kept for those that follow.
    ring: Option<IoUring>,
    fd: Option<OwnedFd>,
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signal").field("fd", &self.fd).field("never_waits", &self.never_waits()).finish()
    }
}

impl Signal {
    /// Signals go to `fd` from now on, which has to be an eventfd; none: they go nowhere.
    pub fn set(&mut self, fd: Option<OwnedFd>) {
        if let (Some(ring), Some(_)) = (&self.ring, &self.fd) {
            if ring.submitter().unregister_eventfd().is_err() {
                self.ring = None;
            }
        }
        self.fd = fd;
        if let Some(fd) = &self.fd {
            if let Err(e) = join(&mut self.ring, fd) {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    tracing::warn!("no io_uring ({e}): a VMM that means harm can stall its I/O core");
                });
                self.ring = None;
            }
        }
    }

    /// Whether signals go anywhere.
    pub fn is_set(&self) -> bool {
        self.fd.is_some()
    }

    /// Whether no signal ever waits; if not, the system has no io_uring for us.
    pub fn never_waits(&self) -> bool {
        self.ring.is_some()
    }

    /// Adds one to the counter; true if there is one. If it is full nothing is added: whoever reads it is more
    /// than informed.
    pub fn raise(&mut self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let raised = self.ring.as_mut().is_some_and(|ring| {
            let nothing = opcode::Nop::new().build();
            // SAFETY: this request refers to no memory.
            let room = unsafe { ring.submission().push(&nothing) }.is_ok();
            let taken = ring.submit().is_ok_and(|taken| taken > 0);
            ring.completion().for_each(drop);
            room && taken
        });
        if !raised {
            // No ring, or the kernel had no memory for the request. EAGAIN: the counter is full.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
        true
    }
}

/// Lets the completions of `ring`, which is made if there is none, signal `fd`.
fn join(ring: &mut Option<IoUring>, fd: &OwnedFd) -> io::Result<()> {
    if ring.is_none() {
        *ring = Some(restricted()?);
    }
    match ring {
        Some(ring) => ring.submitter().register_eventfd(fd.as_raw_fd()),
        None => Ok(()),
    }
}

/// A ring that can do nothing, which is all that is asked of it.
fn restricted() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(1)?;
    let mut allowed = [
        Restriction::sqe_op(opcode::Nop::CODE),
        Restriction::register_op(REGISTER_EVENTFD),
        Restriction::register_op(UNREGISTER_EVENTFD),
    ];
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{eventfd, EventfdFlags};
    use rustix::fs::{fcntl_setfl, OFlags};

    use super::*;

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn every_signal_arrives() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let other = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut signal = Signal::default();
        assert!(!signal.raise() && !signal.is_set());
        for n in 1..1000 {
            let fd = if n % 7 == 0 { &other } else { &fd };
            signal.set(Some(fd.try_clone().unwrap()));
            for _ in 0..n % 3 + 1 {
                assert!(signal.raise());
            }
            assert_eq!(count(fd), n % 3 + 1);
        }
        signal.set(None);
        assert!(!signal.raise());
        assert!(
            rustix::io::read(&fd, &mut [0; 8]).is_err() && rustix::io::read(&other, &mut [0; 8]).is_err()
        );
    }

    /// Whoever could write to our memory could post anything: the kernel takes nothing but what we post.
    #[test]
    fn a_ring_does_nothing_but_signal() {
        let mut signal = Signal::default();
        signal.set(Some(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        let Some(ring) = &mut signal.ring else {
            eprintln!("skipped: there is no io_uring here");
            return;
        };
        let path = c"/dev/null";
        let requests = [
            opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), path.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::Close::new(io_uring::types::Fd(0)).build(),
        ];
        for request in requests {
            // SAFETY: `path` outlives the ring's use of it; the kernel takes none of these requests.
            unsafe { ring.submission().push(&request) }.unwrap();
            ring.submit().unwrap();
            let results: Vec<i32> = ring.completion().map(|done| done.result()).collect();
            assert_eq!(results, [-libc::EACCES]);
        }
        assert!(ring.submitter().register_files(&[0]).is_err());
        assert!(ring.submitter().register_restrictions(&mut [Restriction::sqe_op(18)]).is_err());
        assert!(signal.raise());
        assert_eq!(count(signal.fd.as_ref().unwrap()), 4);
    }

    /// What a VMM can do: make it blocking again, and fill it.
    #[test]
    fn a_full_counter_that_blocks_holds_nobody_up() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut signal = Signal::default();
        signal.set(Some(fd.try_clone().unwrap()));
        if !signal.never_waits() {
            eprintln!("skipped: there is no io_uring here");
            return;
        }
        fcntl_setfl(&fd, OFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, end) = channel();
        // On a thread of its own: one that waits would wait for ever.
        std::thread::spawn(move || {
            assert!((0..10).all(|_| signal.raise()));
            done.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(20)).expect("it waits for the reader");
        // The reader still learns of it.
        assert!(count(&fd) >= u64::MAX - 1);
    }
}
