//! Reads of nothing, whose ends signal eventfds: the way where the system has no io_uring for us
//! (io_submit(2)).
//!
//! Invariant that the `unsafe` here keeps: no request refers to memory; the kernel is given whole structures.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{memfd_create, MemfdFlags};

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

/// Reads of nothing, whose ends signal eventfds: one queue for the process, since each request names its
/// eventfd.
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
                tracing::debug!("no io_uring ({why}): interrupts come by io_submit, a microsecond later");
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
        let nothing = File::from(memfd_create(c"nothing", MemfdFlags::CLOEXEC)?);
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, PENDING, &raw mut context) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Reads { nothing, context })
    }

    /// Reads nothing, and has `fd` signalled behind that.
    pub(super) fn signal(&self, fd: &OwnedFd) -> bool {
        let number = |fd: i32| u32::try_from(fd).unwrap_or(u32::MAX);
        let (file, eventfd) = (number(self.nothing.as_raw_fd()), number(fd.as_raw_fd()));
        let mut request = Request { opcode: PREAD, file, flags: RESFD, eventfd, ..Request::default() };
        let mut list = [&raw mut request];
        // SAFETY: one whole request, which refers to no memory; the kernel is done with it when the call
        // returns.
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
