//! The eventfd itself, with the way to signal it; or our end of a pipe.
//!
//! Invariant that the `unsafe` here keeps: no request refers to memory; the kernel is given whole structures.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use io_uring::{opcode, IoUring};

use super::rings::for_signals;

/// How it is signalled.
#[expect(clippy::large_enum_variant, reason = "each stands behind a pointer already")]
enum SignalBy {
    /// By a completion on this ring.
    Ring(Mutex<IoUring>),
    /// By the end of a read: the system has no ring for us.
    Read(&'static Reads),
    /// By a write that does not wait: it is a pipe's end, and ours alone.
    Pipe,
}

/// An eventfd that signals go to, or the end of a pipe.
pub(super) struct Target {
    fd: OwnedFd,
    by: SignalBy,
}

impl Target {
    /// `fd` with the ring that is `spare`, or one of its own.
    pub(super) fn new(fd: OwnedFd, spare: &mut Option<IoUring>) -> Target {
        let by = match spare.take().map_or_else(for_signals, Ok).and_then(|ring| join(ring, &fd)) {
            Ok(ring) => SignalBy::Ring(Mutex::new(ring)),
            Err(e) => SignalBy::Read(Reads::get(&e)),
        };
        Target { fd, by }
    }

    /// The end `fd` of a pipe, which does not block.
    pub(super) fn of_pipe(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Pipe }
    }

    /// `fd` as where the system has no rings.
    #[cfg(test)]
    pub(super) fn without_ring(fd: OwnedFd) -> Target {
        Target { fd, by: SignalBy::Read(Reads::get(&io::Error::other("a test"))) }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Its ring, for the next one.
    pub(super) fn into_ring(self) -> Option<IoUring> {
        let SignalBy::Ring(ring) = self.by else { return None };
        let ring = ring.into_inner().unwrap_or_else(PoisonError::into_inner);
        ring.submitter().unregister_eventfd().is_ok().then_some(ring)
    }

    /// Signals it; false if the kernel had no memory for the request.
    pub(super) fn raise(&self) -> bool {
        let ring = match &self.by {
            SignalBy::Ring(ring) => ring,
            SignalBy::Read(reads) => return reads.signal(&self.fd),
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
}

/// Has the completions of `ring` signal `fd`.
fn join(ring: IoUring, fd: &OwnedFd) -> io::Result<IoUring> {
    ring.submitter().register_eventfd(fd.as_raw_fd())?;
    Ok(ring)
}

/// A request, from `linux/aio_abi.h` (little-endian).
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `IOCB_CMD_PREAD` and `IOCB_FLAG_RESFD`.
const PREAD: u16 = 0;
const RESFD: u32 = 1;
/// Completions that are not taken yet, at most: they are taken when there is no room for more.
const PENDING: i64 = 256;

/// Reads of nothing, whose ends signal eventfds: one queue for the process, since each request names its eventfd.
pub(super) struct Reads {
    nothing: File,
    context: libc::c_ulong,
}

impl Reads {
    /// The process's; why there is no ring is said once.
    pub(super) fn get(why: &io::Error) -> &'static Reads {
        static READS: OnceLock<Reads> = OnceLock::new();
        READS.get_or_init(|| match Reads::new() {
            Ok(reads) => {
                tracing::warn!("no io_uring ({why}): interrupts come by io_submit, a microsecond later");
                reads
            }
            Err(e) => {
                // Guests would wait for ever for interrupts that nothing sends.
                tracing::error!("neither io_uring ({why}) nor io_submit ({e}): no way to interrupt guests; allow one of them");
                std::process::abort();
            }
        })
    }

    fn new() -> io::Result<Reads> {
        let nothing = File::open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, PENDING, &raw mut context) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Reads { nothing, context })
    }

    /// Reads nothing, and has `fd` signalled behind that.
    fn signal(&self, fd: &OwnedFd) -> bool {
        let number = |fd: i32| u32::try_from(fd).unwrap_or(u32::MAX);
        let (file, eventfd) = (number(self.nothing.as_raw_fd()), number(fd.as_raw_fd()));
        let mut request = Request { opcode: PREAD, file, flags: RESFD, eventfd, ..Request::default() };
        let mut list = [&raw mut request];
        // SAFETY: one whole request, which refers to no memory; the kernel is done with it when the call returns.
        let mut submit =
            || unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1i64, list.as_mut_ptr()) == 1 };
        submit() || {
            self.take_ends();
            submit()
        }
    }

    /// Takes completions, which say nothing new.
    #[cold]
    fn take_ends(&self) {
        /// `struct io_event`: four words.
        type Event = [u64; 4];
        let mut events = [Event::default(); 256];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for as many events as are asked for.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0i64,
                PENDING,
                events.as_mut_ptr(),
                &raw const at_once,
            )
        };
    }
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
        assert!(target.raise());
        let mut count = [0; 8];
        rustix::io::read(target.fd(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 4);
    }
}
