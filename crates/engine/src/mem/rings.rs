//! The one thread that makes rings of io_uring.
//!
//! Theory of operation. A ring can open files and make sockets past every filter of system calls, unless it is restricted before
//! it works; and a filter does not see whether it is, as the flags with which it is made stand in memory. So no thread that talks
//! with strangers may make one (`confine`): it asks the *maker*, which makes rings of two kinds only, restricted and enabled, and
//! does nothing else. What such a ring takes is fixed for as long as it lives.
//!
//! A process without a maker (tests, benchmarks) makes them itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Builder;

use io_uring::register::Restriction;
use io_uring::{opcode, IoUring};

/// Operations of io_uring_register(2), from `linux/io_uring.h`.
const REGISTER_EVENTFD: u8 = 4;
const UNREGISTER_EVENTFD: u8 = 5;
/// `IOSQE_FIXED_FILE` and `IOSQE_ASYNC` (io_uring_enter(2)).
const FIXED_FILE: u8 = 1;
const ASYNC: u8 = 1 << 4;

/// What a ring is for.
enum Purpose {
    /// It signals the eventfd that is registered with it.
    Signal,
    /// It reads and writes one file, with at most so many requests at a time, and holds another one if there are two. The
    /// asker holds them until it has its answer.
    File(Vec<RawFd>, u32),
}

struct Order {
    purpose: Purpose,
    answer: SyncSender<io::Result<IoUring>>,
}

static MAKER: OnceLock<Mutex<SyncSender<Order>>> = OnceLock::new();

/// Makes what takes the place of rings where the system grants none: later there may be no permission to.
pub fn prepare_signals() {
    if let Err(e) = make(&Purpose::Signal) {
        super::reads::Reads::get(&e);
    }
}

/// Starts the maker, whose first act is `begin`. Nothing if there is one.
///
/// # Errors
/// There is no thread for it.
pub fn start(begin: fn()) -> io::Result<()> {
    if MAKER.get().is_some() {
        return Ok(());
    }
    let (orders, inbox) = sync_channel(0);
    Builder::new().name("rings".to_owned()).spawn(move || {
        begin();
        run(&inbox);
    })?;
    // Another thread may have been first: then this one ends, as its orders do.
    let _ = MAKER.set(Mutex::new(orders));
    Ok(())
}

fn run(inbox: &Receiver<Order>) {
    while let Ok(Order { purpose, answer }) = inbox.recv() {
        // The asker may have gone.
        let _ = answer.send(make(&purpose));
    }
}

fn order(purpose: Purpose) -> io::Result<IoUring> {
    let Some(maker) = MAKER.get() else { return make(&purpose) };
    let (answer, answers) = sync_channel(1);
    let sent = maker.lock().unwrap_or_else(PoisonError::into_inner).send(Order { purpose, answer });
    sent.map_err(|_| io::Error::other("the thread that makes rings has ended"))?;
    answers.recv().map_err(io::Error::other)?
}

/// A ring that can do nothing but signal the eventfd that is registered with it.
pub(super) fn for_signals() -> io::Result<IoUring> {
    order(Purpose::Signal)
}

/// A ring for at most `depth` requests at a time to `file`: its file number 0. `held` is open, and locked, for as long as the ring
/// has requests, too, whatever becomes of the process.
pub(super) fn for_file(file: impl AsFd, held: Option<impl AsFd>, depth: u32) -> io::Result<IoUring> {
    let held = held.iter().map(|held| held.as_fd().as_raw_fd());
    order(Purpose::File(std::iter::once(file.as_fd().as_raw_fd()).chain(held).collect(), depth))
}

fn make(purpose: &Purpose) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_r_disabled();
    let ring = match purpose {
        Purpose::Signal => {
            let ring = builder.build(1)?;
            ring.submitter().register_restrictions(&mut [
                Restriction::sqe_op(opcode::Nop::CODE),
                Restriction::register_op(REGISTER_EVENTFD),
                Restriction::register_op(UNREGISTER_EVENTFD),
            ])?;
            ring
        }
        Purpose::File(files, depth) => {
            let ring = builder.setup_clamp().build(*depth)?;
            ring.submitter().register_files(files)?;
            ring.submitter().register_restrictions(&mut [
                Restriction::sqe_op(opcode::Read::CODE),
                Restriction::sqe_op(opcode::Write::CODE),
                Restriction::sqe_op(opcode::Readv::CODE),
                Restriction::sqe_op(opcode::Writev::CODE),
                Restriction::sqe_op(opcode::Fsync::CODE),
                Restriction::sqe_op(opcode::Fallocate::CODE),
                Restriction::sqe_flags_required(FIXED_FILE),
                Restriction::sqe_flags_allowed(ASYNC),
            ])?;
            ring
        }
    };
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}
