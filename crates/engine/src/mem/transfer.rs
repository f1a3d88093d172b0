//! Reads and writes of one file straight from and to foreign memory, by io_uring.
//!
//! Each user has a ring of its own (`rings`), which is restricted before it works: it takes reads, writes,
//! `FSYNC` and `FALLOCATE`, all of them of files that were registered, and nothing else can be registered:
//! the one that it is for, and for a disk that is only read its port's journal, whose lock lasts as long as
//! the ring has requests. So an attacker that can write to our memory can do with it what may be done with
//! those files, and no more.
//!
//! What waits for others is done by threads of the kernel, *workers*, which all rings that one thread submits
//! share. So there are many of them, and no ring has more than [`AT_WORKERS`] requests there that are known
//! to need one. They belong to the thread that submits, an I/O core mostly, and may run wherever the process
//! may: on the I/O core's processor, too. So each I/O core says once, as one of its first acts, where they
//! run and how many there are at most ([`keep_workers_away`]).
//!
//! No request interrupts a thread that submits another one later (`COOP_TASKRUN` is left out): a ring may be
//! handed from thread to thread with requests under way, and those end on the thread that submitted them,
//! whatever that does meanwhile.
//!
//! Invariant that the `unsafe` here keeps: memory that a request refers to stays what it is until the request
//! is over. Lists of pieces and bounce buffers lie in the slot that the request has, which is not touched
//! before; the pieces lie in the guest map that is held here. A [`Transfers`] that is dropped with requests
//! under way is not freed but *parked*, with its map, and freed when one that comes after it finds all of
//! them over. A set of processors is plain bits, all zero is the empty one, and only bits inside it are set.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{opcode, IoUring};

use super::deadline::Deadline;
use super::map::GuestMap;
use super::mapping::Mapping;
use super::piece::Piece;
use super::rings::for_file;

/// Bytes of a bounce buffer, and how many there are.
const BOUNCE: u32 = 64 * 1024;
const BOUNCES: usize = 16;

/// Most workers of a thread: of those that read and write files, and of all others. A request that waits for
/// a file system or its server occupies one, so there are enough for many disks that do not answer: a ring
/// asks for a few.
const MOST_WORKERS: u32 = 512;

/// Has the workers of the calling thread, from now on, run on the processors that no I/O core has, if there
/// are any, and be bounded in number. Nothing where the system has no io_uring for us: then there are none.
pub fn keep_workers_away() {
    // The setting is the thread's, and outlives this ring (io_uring_register(2), IORING_REGISTER_IOWQ_AFF).
    let Ok(ring) = IoUring::new(1) else { return };
    // SAFETY: all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let others = crate::util::place::others();
    for cpu in others.iter().filter(|cpu| **cpu < 8 * size_of::<libc::cpu_set_t>()) {
        // SAFETY: the bit is inside the set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    if !others.is_empty() {
        // Before Linux 5.14 they go where they like.
        let _ = ring.submitter().register_iowq_aff(&set);
    }
    let _ = ring.submitter().register_iowq_max_workers(&mut [MOST_WORKERS, MOST_WORKERS]);
}

/// How memory and places have to be aligned for transfers past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// What addresses are a multiple of: a power of two.
    pub memory: usize,
    /// What places in the file, and the length of each piece, are a multiple of: a power of two.
    pub file: u64,
}

/// How many bytes the kernel has at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most bytes of one read or write.
    pub one: usize,
    /// Most bytes of all that are under way, unless it is one.
    pub all: usize,
}

/// What becomes of a request to begin something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is under way once it was submitted.
    Yes,
    /// There is no room now: when something is over it can be asked for again.
    NotNow,
    /// There is nothing to do: it is over.
    Over,
}

/// How something is read or written.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// What is written lasts when it is over.
    pub lasting: bool,
    /// A worker of the kernel's does it, since it may wait for others; else the thread that submits it begins
    /// it.
    pub by_worker: bool,
}

/// Zeros to write, aligned as any file wants them.
#[repr(align(4096))]
struct Zeros([u8; 1 << 16]);
static ZEROS: Zeros = Zeros([0; 1 << 16]);
/// Most requests of a ring that are certain to occupy a worker of the kernel's: those of all rings that one
/// I/O core submits share its workers, and one whose file does not answer must leave some.
const AT_WORKERS: usize = 4;

#[derive(Default)]
struct TransferSlot {
    busy: bool,
    /// A worker of the kernel's has it.
    at_worker: bool,
    iovecs: Vec<Iovec>,
    /// Bytes of it.
    len: usize,
    /// The bounce buffer that it has, and where what was read into that goes.
    bounce: Option<usize>,
    back: Vec<Piece>,
}

/// A stretch of memory as the kernel wants it.
#[repr(transparent)]
struct Iovec(libc::iovec);

// SAFETY: an address and a length; the memory behind it is held by the holder of the list.
unsafe impl Send for Iovec {}

impl Iovec {
    fn of(piece: &Piece) -> Iovec {
        Iovec(libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() })
    }
}

/// The ring, and what is under way on it.
pub struct RequestRing {
    ring: IoUring,
    slots: Vec<TransferSlot>,
    under_way: usize,
    /// How many of them workers of the kernel's have.
    at_workers: usize,
    /// Pushed and not submitted.
    pushed: usize,
    /// Its slot and result, if what was read for a request is still to be brought from its bounce buffer to
    /// where it goes.
    landing: Option<(usize, i32)>,
    align: Option<Alignment>,
    bounds: Bounds,
    /// Bytes of all that are under way.
    bytes: usize,
    bounces: Option<Mapping>,
    free: Vec<usize>,
    /// What pieces lie in.
    _map: Arc<GuestMap>,
}

/// A file's ring.
pub struct Transfers(ManuallyDrop<Box<RequestRing>>);

/// Those whose requests were not over when they were dropped.
static PARKED: Mutex<Vec<RequestRing>> = Mutex::new(Vec::new());

impl Transfers {
    /// A ring for at most `depth` requests at a time to a file, within these `bounds`, with memory of `map`.
    /// `align`: it goes past the page cache, which wants things aligned. `held`: this file is open as long as
    /// requests are under way, too.
    ///
    /// # Errors
    /// The system has no such ring for us.
    pub fn new(
        (file, held): (&File, Option<&File>),
        depth: u16,
        align: Option<Alignment>,
        bounds: Bounds,
        map: Arc<GuestMap>,
    ) -> io::Result<Transfers> {
        sweep();
        let ring = for_file(file, held, depth.max(1).into())?;
        let bounces = align.map(|_| Mapping::anonymous(BOUNCES * BOUNCE as usize)).transpose()?;
        let slots = (0..depth.max(1)).map(|_| TransferSlot::default()).collect();
        let free = (0..BOUNCES).collect();
        let requests = RequestRing {
            ring,
            slots,
            under_way: 0,
            at_workers: 0,
            pushed: 0,
            landing: None,
            align,
            bounds,
            bytes: 0,
            bounces,
            free,
            _map: map,
        };
        Ok(Transfers(ManuallyDrop::new(Box::new(requests))))
    }
}

impl Deref for Transfers {
    type Target = RequestRing;

    fn deref(&self) -> &RequestRing {
        &self.0
    }
}

impl DerefMut for Transfers {
    fn deref_mut(&mut self) -> &mut RequestRing {
        &mut self.0
    }
}

impl RequestRing {
    /// Most bytes of one request.
    pub fn most(&self) -> u64 {
        self.bounds.one as u64
    }

    /// Begins to make all data last that were written.
    pub fn flush(&mut self, slot: usize) -> Begun {
        let flush = opcode::Fsync::new(Fixed(0)).flags(FsyncFlags::DATASYNC).build();
        self.begin(slot, &flush, true)
    }

    /// Begins fallocate(2) of a stretch of the file.
    pub fn fallocate(&mut self, slot: usize, mode: i32, at: u64, len: u64) -> Begun {
        let allocate = opcode::Fallocate::new(Fixed(0), len).offset(at).mode(mode).build();
        self.begin(slot, &allocate, true)
    }

    /// Whether a request is over, or was begun and not given to the kernel.
    pub fn has_news(&mut self) -> bool {
        self.pushed > 0 || self.landing.is_some() || !self.ring.completion().is_empty()
    }

    /// Requests that were begun and not given to the kernel.
    pub fn pushed(&self) -> usize {
        self.pushed
    }

    /// Requests that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Most requests at a time.
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Whether a worker is free: one is kept for reads.
    pub fn has_worker(&self, to_read: bool) -> bool {
        self.at_workers + usize::from(!to_read) < AT_WORKERS
    }

    /// Waits until one is over, if any is under way and none is known to be. Not for I/O cores.
    pub fn wait(&mut self) {
        if self.under_way > 0 && self.landing.is_none() && self.ring.submit_and_wait(1).is_ok() {
            self.pushed = self.ring.submission().len();
        }
    }

    /// Readable when a request is over.
    pub fn event(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring is open as long as we are borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Has `slot`, whose lists are as `entry` says, wait to be submitted. `at_worker`: a worker of the
    /// kernel's carries it out.
    fn begin(&mut self, slot: usize, entry: &Entry, at_worker: bool) -> Begun {
        let Some(place) = self.slots.get_mut(slot).filter(|place| !place.busy) else { return Begun::NotNow };
        if at_worker && self.at_workers >= AT_WORKERS {
            return Begun::NotNow;
        }
        let flags = if at_worker { Flags::FIXED_FILE | Flags::ASYNC } else { Flags::FIXED_FILE };
        let entry = entry.clone().flags(flags).user_data(slot as u64);
        // SAFETY: what it refers to lies in the slot, which is busy from now on until the request is over,
        // and in memory that the map holds, and both outlive the request, whatever becomes of us (`Drop`).
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Begun::NotNow;
        }
        (place.busy, place.at_worker) = (true, at_worker);
        self.at_workers += usize::from(at_worker);
        self.bytes += place.len;
        self.under_way += 1;
        self.pushed += 1;
        Begun::Yes
    }

    /// Begins to read into `pieces`, or to write what is in them, as far as one request goes, at byte `at` of
    /// the file.
    pub fn transfer(&mut self, slot: usize, write: bool, at: u64, pieces: &[Piece], how: How) -> Begun {
        if how.by_worker && self.at_workers >= AT_WORKERS {
            return Begun::NotNow;
        }
        let Some(place) = self.slots.get_mut(slot).filter(|place| !place.busy) else { return Begun::NotNow };
        place.iovecs.clear();
        let odd = |piece: &Piece, align: Alignment| {
            piece.as_ptr() as usize & (align.memory - 1) != 0 || piece.len() as u64 & (align.file - 1) != 0
        };
        match self.align {
            Some(align) if pieces.iter().any(|piece| odd(piece, align)) => {
                let Some(number) = self.free.pop() else { return Begun::NotNow };
                let Some(bounce) = bounce(self.bounces.as_ref(), number) else { return Begun::NotNow };
                let mut room = bounce.len();
                place.back.clear();
                for piece in pieces {
                    let part = piece.first(room);
                    room -= part.len();
                    place.back.push(part);
                }
                let len = bounce.len() - room;
                if write {
                    let mut to = bounce;
                    for piece in &place.back {
                        let n = to.write_from(piece);
                        to.advance(n);
                    }
                    place.back.clear();
                }
                place.bounce = Some(number);
                place.iovecs.push(Iovec::of(&bounce.first(len)));
            }
            _ => {
                let mut room = self.bounds.one;
                for piece in pieces {
                    let part = piece.first(room);
                    room -= part.len();
                    if !part.is_empty() {
                        place.iovecs.push(Iovec::of(&part));
                    }
                }
            }
        }
        let begun = match self.fits(slot) {
            true => self.vector(slot, write, at, how),
            false => Begun::NotNow,
        };
        if let (Begun::NotNow, Some(place)) = (begun, self.slots.get_mut(slot)) {
            place.len = 0;
            self.free.extend(place.bounce.take());
        }
        begun
    }

    /// Whether the kernel may have the stretches in this slot beside what it has. Notes how many bytes they
    /// are.
    fn fits(&mut self, slot: usize) -> bool {
        let Some(place) = self.slots.get_mut(slot) else { return false };
        place.len = place.iovecs.iter().map(|Iovec(stretch)| stretch.iov_len).sum();
        self.bytes == 0 || self.bytes.saturating_add(place.len) <= self.bounds.all
    }

    /// Begins to write up to `len` zeros at byte `at`, as far as one request goes.
    pub fn zeros(&mut self, slot: usize, at: u64, len: u64, how: How) -> Begun {
        let Some(place) = self.slots.get_mut(slot).filter(|place| !place.busy) else { return Begun::NotNow };
        place.iovecs.clear();
        let mut left = len.min(self.bounds.one as u64);
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.0.len());
            let iov_base = ZEROS.0.as_ptr().cast_mut().cast();
            place.iovecs.push(Iovec(libc::iovec { iov_base, iov_len: part }));
            left -= part as u64;
        }
        self.vector(slot, true, at, how)
    }

    fn vector(&mut self, slot: usize, write: bool, at: u64, how: How) -> Begun {
        let Some(place) = self.slots.get(slot) else { return Begun::NotNow };
        let flags = if how.lasting { libc::RWF_DSYNC } else { 0 };
        // A single piece needs no list, which the kernel would have to copy.
        let entry = match place.iovecs[..] {
            [Iovec(libc::iovec { iov_base, iov_len })] => {
                let (start, len) = (iov_base.cast(), u32::try_from(iov_len).unwrap_or(0));
                match write {
                    true => opcode::Write::new(Fixed(0), start, len).offset(at).rw_flags(flags).build(),
                    false => opcode::Read::new(Fixed(0), start, len).offset(at).build(),
                }
            }
            ref list => {
                let (start, count) = (list.as_ptr().cast(), u32::try_from(list.len()).unwrap_or(0));
                match write {
                    true => opcode::Writev::new(Fixed(0), start, count).offset(at).rw_flags(flags).build(),
                    false => opcode::Readv::new(Fixed(0), start, count).offset(at).build(),
                }
            }
        };
        self.begin(slot, &entry, how.by_worker)
    }

    /// Gives the kernel all that was begun, if anything was.
    pub fn submit(&mut self) {
        if self.pushed > 0 {
            // What the kernel has no memory for now stays in the ring, and is submitted with what comes next.
            let _ = self.ring.submit();
            self.pushed = self.ring.submission().len();
        }
    }

    /// The next request that is over: its slot, and what the kernel says, a number of bytes or an error below
    /// zero. None, too, where it takes too long to have pages found that what was read goes to.
    pub fn next_over(&mut self, deadline: Deadline) -> Option<(usize, i32)> {
        let (slot, result) = match self.landing.take() {
            Some(landing) => landing,
            None => {
                let over = self.ring.completion().next()?;
                (usize::try_from(over.user_data()).ok()?, over.result())
            }
        };
        let place = self.slots.get_mut(slot)?;
        let read = usize::try_from(result).unwrap_or(0);
        if place.bounce.is_some() && !deadline.find(&place.back, read as u64) {
            self.landing = Some((slot, result));
            return None;
        }
        place.busy = false;
        self.bytes -= std::mem::take(&mut place.len);
        self.under_way -= 1;
        self.at_workers -= usize::from(place.at_worker);
        if let Some(number) = place.bounce.take() {
            self.free.push(number);
            if let Some(from) = bounce(self.bounces.as_ref(), number) {
                let mut from = from.first(read);
                for piece in place.back.drain(..) {
                    let n = piece.write_from(&from);
                    from.advance(n);
                }
            }
        }
        Some((slot, result))
    }
}

/// A bounce buffer.
fn bounce(store: Option<&Mapping>, number: usize) -> Option<Piece> {
    store?.piece(number as u64 * u64::from(BOUNCE), BOUNCE)
}

/// Frees parked rings whose requests are over.
fn sweep() {
    let mut parked = crate::lock(&PARKED);
    parked.retain_mut(|requests| {
        requests.submit();
        while requests.next_over(Deadline::NEVER).is_some() {}
        requests.under_way > 0
    });
}

impl Drop for Transfers {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        let requests = unsafe { ManuallyDrop::take(&mut self.0) };
        if requests.under_way > 0 {
            crate::lock(&PARKED).push(*requests);
        }
    }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
