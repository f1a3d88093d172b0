//! The one thread that makes rings of io_uring, and all helper threads.
//!
//! Theory of operation. A ring can open files and make sockets past every filter of system calls, unless it
//! is restricted before it works; and a filter does not see whether it is, as the flags with which it is made
//! stand in memory. So no thread that talks with strangers may make one (`sandbox/filters`): it asks the
//! *maker*, which makes rings of two kinds only, restricted and enabled. What such a ring takes is fixed for
//! as long as it lives. The maker also starts threads that look after something ([`start_helper`]): threads
//! that may make none ask it, too, and they have its rights.
//!
//! A process without a maker (tests, benchmarks) makes them itself.
//!
//! Invariant of the unsafe code: the allocator is told numbers, and no memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Mutex, OnceLock};
use std::thread::{Builder, JoinHandle};

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
    /// It reads and writes one file, with at most this number of requests at a time, and holds another one if
    /// there are two. The asker holds them until it has its answer.
    File(Vec<RawFd>, u32),
}

enum Order {
    Ring(Purpose, SyncSender<io::Result<IoUring>>),
    Thread(String, Box<dyn FnOnce() + Send>, SyncSender<io::Result<JoinHandle<()>>>),
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
    bound_arenas();
    let (orders, inbox) = sync_channel(0);
    Builder::new().name("rings".to_owned()).spawn(move || {
        begin();
        serve(&inbox);
    })?;
    // Another thread may have been first: then this one ends, as its orders do.
    let _ = MAKER.set(Mutex::new(orders));
    Ok(())
}

/// Has the allocator use eight arenas for each processor at most, as it would by itself. The ninth thread
/// that allocates would count the processors by opening a file, which threads with a filter may not do.
fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(8 * cpus).unwrap_or(libc::c_int::MAX);
        // SAFETY: it takes two numbers, and locks what it sets.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

fn serve(inbox: &Receiver<Order>) {
    for order in inbox {
        match order {
            // The asker may have gone.
            Order::Ring(purpose, answer) => drop(answer.send(make(&purpose))),
            Order::Thread(name, body, answer) => {
                // It has this thread's filter, and its calls count as this kind's.
                let kind = super::sigsys::kind();
                let body = move || {
                    super::sigsys::set_kind(kind);
                    body();
                };
                drop(answer.send(Builder::new().name(name).spawn(body)));
            }
        }
    }
}

fn ask<T>(
    maker: &Mutex<SyncSender<Order>>,
    order: impl FnOnce(SyncSender<io::Result<T>>) -> Order,
) -> io::Result<T> {
    let (answer, answers) = sync_channel(1);
    let sent = crate::lock(maker).send(order(answer));
    sent.map_err(|_| io::Error::other("the thread that makes rings and threads has ended"))?;
    answers.recv().map_err(io::Error::other)?
}

fn order(purpose: Purpose) -> io::Result<IoUring> {
    match MAKER.get() {
        Some(maker) => ask(maker, |answer| Order::Ring(purpose, answer)),
        None => make(&purpose),
    }
}

/// Runs `body` on a thread of its own, called `name`, which looks after something and talks with no peer.
///
/// # Errors
/// The system has no thread left.
pub fn start_helper(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    match MAKER.get() {
        Some(maker) => ask(maker, |answer| Order::Thread(name, Box::new(body), answer)),
        None => Builder::new().name(name).spawn(body),
    }
}

/// A ring that can do nothing but signal the eventfd that is registered with it.
pub(super) fn for_signals() -> io::Result<IoUring> {
    order(Purpose::Signal)
}

/// A ring for at most `depth` requests at a time to `file`: its file number 0. `held` is open, and locked,
/// for as long as the ring has requests, too, whatever becomes of the process.
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

/// A thread that is waited for when this is dropped.
pub struct JoinedThread(Option<JoinHandle<()>>);

impl From<JoinHandle<()>> for JoinedThread {
    fn from(thread: JoinHandle<()>) -> JoinedThread {
        JoinedThread(Some(thread))
    }
}

impl Drop for JoinedThread {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        // The last owner of what a thread looks after may be that thread itself.
        if thread.thread().id() != std::thread::current().id() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}
