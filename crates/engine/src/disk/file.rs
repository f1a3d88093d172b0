//! Files and block devices: what they can do, and how a job becomes what the kernel carries out.
//!
//! Theory of operation. Each queue has a ring of its own ([`Transfers`]). A job is one request to the kernel
//! after the other: a short request is continued, an interrupted one is repeated, and a range that the file
//! system cannot give back is written. `begin` makes the next request, `over` decides what its result means.
//!
//! A file in tmpfs is memory: reads and writes of pages that it has need no request, and the calling thread
//! carries them out (`Resident`). The kernel does the rest of its work, including everything that goes wrong
//! there.
//!
//! Durability. FLUSH is fdatasync(2), requested after the flush came: it covers the writes that were
//! acknowledged before, and need cover no others (virtio 1.2 §5.2.6.2). After a failed flush it is unknown
//! which writes are lost, and the kernel reports the failure only once for each open file, to whichever
//! request asks first. So a file has one flush at a time, for all queues; one that began after another had
//! come is that other one, too. Every flush after a failed one fails, until the operator has had the disk
//! made anew; the port's journal keeps that for the next process.
//!
//! Writes that the guest wants durable at once have `RWF_DSYNC` where they go past the page cache and fail
//! each for itself. Elsewhere such a write is a write and then a flush.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::Errno;

use super::job::{Job, Op, Range};
use super::open::{length, Nature};
use super::opener::opened;
use super::stats::RequestError;
use crate::mem::{Alignment, Begun, Bounds, GuestMap, How, JournalSlot, Piece, Resident, Transfers};

/// Most bytes of a range in one request to the kernel: none keeps a worker for long. It is smaller in memory,
/// where a writer waits for the whole range.
const MOST_OF_RANGE: u64 = 1 << 28;
const MOST_IN_MEMORY: u64 = 1 << 22;

/// How a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Past the page cache, aligned like this.
    Direct(Alignment),
    /// Its bytes are memory (tmpfs): the thread that submits a request copies them, and waits for no device.
    Memory,
    /// Through the page cache.
    PageCache,
    /// By workers of the kernel: what a request waits for is unknown (FUSE, network file systems).
    Workers,
}

impl Access {
    /// How many bytes the kernel has at a time. The I/O core that submits a request copies what lies in
    /// memory, and what the page cache has. If a request waits for a page of the cache, that core copies all
    /// of it when the page has come, in the middle of something else.
    fn bounds(self) -> Bounds {
        match self {
            Access::Memory => Bounds { one: 64 << 10, all: usize::MAX },
            Access::PageCache => Bounds { one: 512 << 10, all: 4 << 20 },
            Access::Direct(_) | Access::Workers => Bounds { one: 512 << 10, all: usize::MAX },
        }
    }
}

/// How the next request to the kernel is taken to have ended: with an error, which is below zero, or after
/// this number of bytes. 0: as it did.
#[cfg(fuzzing)]
pub static ENDS: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// What requests wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// For the end of a flush, which may be another queue's, and for a worker.
    Flushes,
    /// For a worker, of which one is kept for them.
    Reads,
    /// For a worker.
    Changes,
}

impl Gate {
    /// All of them.
    pub const ALL: [Gate; 3] = [Gate::Flushes, Gate::Reads, Gate::Changes];
}

/// A file or block device.
pub struct FileMedium {
    file: File,
    /// Whether it is a block device.
    pub is_device: bool,
    access: Access,
    /// Its bytes, where it is memory.
    resident: Option<Resident>,
    /// Whether ranges can be given back, and cleared; until the file system says no.
    punches: AtomicBool,
    clears: AtomicBool,
    /// A flush has failed. The word of the port's journal that says so to the next process.
    lost: AtomicBool,
    kept: OnceLock<(JournalSlot, usize)>,
    /// What else is locked for this process until its rings are over with all requests.
    held: OnceLock<File>,
    /// Flushes that were begun and those that have ended, together: odd while one is under way.
    flushes: AtomicU64,
    /// Ranges that are being given back or cleared.
    ranges: AtomicUsize,
}

impl FileMedium {
    /// The open `file`, which is of this `nature`, as a disk with blocks of `block_size` bytes, and its
    /// length. Its server is asked nothing.
    ///
    /// # Errors
    /// Its length is no multiple of the block.
    fn new(file: File, nature: &Nature, block_size: u32) -> io::Result<(FileMedium, u64)> {
        let len = whole(nature.len, block_size)?;
        let is_device = nature.is_device;
        let access = access(&file, nature, block_size);
        let writable = fcntl_getfl(&file)?.contains(OFlags::RDWR);
        let map = || {
            Resident::new(&file, len, writable).inspect_err(|e| {
                tracing::warn!("a disk's file cannot be mapped, so the kernel copies its bytes: {e}")
            })
        };
        let resident = (access == Access::Memory).then(map).and_then(Result::ok);
        let medium = FileMedium {
            file,
            is_device,
            access,
            resident,
            punches: true.into(),
            clears: true.into(),
            lost: false.into(),
            kept: OnceLock::new(),
            held: OnceLock::new(),
            flushes: 0.into(),
            ranges: 0.into(),
        };
        Ok((medium, len))
    }

    /// Has `journal`, which is its port's alone, and whose word `at` is in `slot`, outlive this process: that
    /// word says that a flush has failed. Where the lock of the disk's file does not keep a successor out
    /// that reads, too, the journal's does until what the dead process read is over: else the kernel might
    /// write into a buffer that the guest has used again.
    ///
    /// # Errors
    /// The rings of a process that has ended still read, or there are no locks.
    pub(super) fn keep(&self, journal: File, slot: JournalSlot, at: usize) -> io::Result<()> {
        if !fcntl_getfl(&self.file)?.contains(OFlags::RDWR) {
            super::open::lock_alone(&journal)?;
            let _ = self.held.set(journal);
        }
        self.lost.fetch_or(slot.get(at) != 0, Ordering::AcqRel);
        let _ = self.kept.set((slot, at));
        Ok(())
    }

    /// An open file.
    #[cfg(test)]
    pub(crate) fn of(file: File, block_size: u32) -> io::Result<(FileMedium, u64)> {
        let nature = Nature::of(&file)?;
        FileMedium::new(file, &nature, block_size)
    }

    /// An open file of `len` bytes, as if it had a server.
    #[cfg(test)]
    pub(crate) fn served(file: File, len: u64) -> io::Result<(FileMedium, u64)> {
        FileMedium::new(file, &Nature { len, is_device: false, file_system: 0, direct: None }, 512)
    }

    /// Writes to its server until that has no room left.
    #[cfg(test)]
    pub(crate) fn stuff(&self) {
        use std::io::Write;
        let _ = set_flags(&self.file, OFlags::NONBLOCK, OFlags::empty());
        while (&self.file).write(&[0; 4096]).is_ok() {}
        let _ = set_flags(&self.file, OFlags::empty(), OFlags::NONBLOCK);
    }

    /// Opens what is at `path`.
    ///
    /// # Errors
    /// As `open`, and as above.
    pub fn open(path: &Path, block_size: u32, read_only: bool) -> io::Result<(FileMedium, u64)> {
        let (file, nature) = opened(path, read_only)?;
        FileMedium::new(file, &nature, block_size)
    }

    /// Its length now, as a disk with blocks of `block_size` bytes.
    ///
    /// # Errors
    /// As above.
    pub fn length(&self, block_size: u32) -> io::Result<u64> {
        whole(length(&self.file)?, block_size)
    }

    /// How it is read and written, in a word.
    pub fn access(&self) -> &'static str {
        match self.access {
            Access::Direct(_) => "direct",
            Access::Memory => "memory",
            Access::PageCache => "page-cache",
            Access::Workers => "workers",
        }
    }

    /// Whether the asking thread may copy its bytes.
    pub(super) fn is_resident(&self) -> bool {
        self.resident.is_some()
    }

    /// Copies the bytes from `at` on to `piece`, or those of `piece` there. False: that is for the kernel to
    /// do.
    pub(super) fn copy(&self, op: Op, at: u64, piece: &Piece) -> bool {
        self.resident.as_ref().is_some_and(|resident| match op {
            Op::Read => resident.read(at, piece),
            _ => resident.write(at, piece),
        })
    }

    fn alignment(&self) -> Option<Alignment> {
        match self.access {
            Access::Direct(align) => Some(align),
            _ => None,
        }
    }

    /// Most requests to the kernel to be submitted at once. What lies in memory is copied meanwhile, and a
    /// page of the file that has to be made first may be a huge one, where its file system has those.
    pub fn most_at_once(&self) -> usize {
        match self.access {
            Access::Memory => 8,
            _ => usize::MAX,
        }
    }

    /// A queue's way to it, for at most `depth` requests at a time with memory of `map`.
    ///
    /// # Errors
    /// The system has no io_uring for us.
    pub fn way(&self, depth: u16, map: Arc<GuestMap>) -> io::Result<Transfers> {
        let files = (&self.file, self.held.get());
        Transfers::new(files, depth, self.alignment(), self.access.bounds(), map)
    }

    /// What `job` has to wait for before it can begin, together with its like and beside all others, if it
    /// has to.
    pub fn gate(&self, job: &mut Job) -> Option<Gate> {
        match job.op {
            Op::Read | Op::Write if !self.how(job.op == Op::Write, false).by_worker => None,
            Op::Read => Some(Gate::Reads),
            Op::Flush if self.access == Access::Memory => None,
            Op::Flush => {
                // The next one that begins is the first that covers it.
                if job.covered_at == 0 {
                    job.covered_at = ((self.flushes.load(Ordering::Acquire) + 1) & !1) + 2;
                }
                Some(Gate::Flushes)
            }
            Op::Write | Op::Discard | Op::WriteZeroes => Some(Gate::Changes),
        }
    }

    /// Whether `job`, which is the first at `gate`, can begin.
    pub fn admits(&self, gate: Gate, job: &Job, way: &Transfers) -> bool {
        let flushes = self.flushes.load(Ordering::Acquire);
        match gate {
            Gate::Reads => way.has_worker(true),
            Gate::Changes => way.has_worker(false),
            Gate::Flushes => {
                flushes >= job.covered_at || flushes % 2 == 0 && way.has_worker(false) || self.has_lost()
            }
        }
    }

    fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Asks for the next request of `job`, which has `slot`. `lasting`: what it changes lasts when it is
    /// over.
    pub fn begin(
        &self,
        way: &mut Transfers,
        slot: usize,
        job: &mut Job,
        lasting: bool,
    ) -> Result<Begun, RequestError> {
        // What the page cache loses is told to one request alone.
        job.is_flushed = lasting && matches!(self.access, Access::PageCache | Access::Workers);
        let lasting = lasting && !job.is_flushed;
        match job.op {
            Op::Read | Op::Write => {
                if let Some(align) = self.alignment() {
                    if (job.at | job.left()) & (align.file - 1) != 0 {
                        return Err(RequestError::Unaligned);
                    }
                }
                let write = job.op == Op::Write;
                Ok(way.transfer(slot, write, job.at, job.pieces(), self.how(write, lasting)))
            }
            Op::Flush if self.has_lost() => Err(RequestError::FlushLost),
            // Memory lasts as long as it lasts.
            Op::Flush if self.access == Access::Memory => Ok(Begun::Over),
            Op::Flush => Ok(self.flush(way, slot, job)),
            Op::Discard if !self.punches.load(Ordering::Relaxed) => Err(RequestError::Unsupported),
            Op::Discard => {
                let Some(range) = job.next_range(self.most_of_range()) else { return Ok(Begun::Over) };
                Ok(self.allocate(way, slot, PUNCH, range))
            }
            Op::WriteZeroes => {
                let Some(range) = job.next_range(self.most_of_range()) else { return Ok(Begun::Over) };
                job.clearing = self.clearing(range.unmap, lasting);
                match job.clearing {
                    Some(mode) => Ok(self.allocate(way, slot, mode, range)),
                    None => Ok(way.zeros(slot, range.at, range.len, self.how(true, lasting))),
                }
            }
        }
    }

    /// Begins a flush, if none is under way, and none did meanwhile what this one shall do.
    fn flush(&self, way: &mut Transfers, slot: usize, job: &mut Job) -> Begun {
        self.gate(job);
        let flushes = self.flushes.load(Ordering::Acquire);
        if flushes >= job.covered_at {
            return Begun::Over;
        }
        let next = flushes | 1;
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if next == flushes || self.flushes.compare_exchange(flushes, next, order.0, order.1).is_err() {
            return Begun::NotNow;
        }
        let begun = way.flush(slot);
        if begun == Begun::NotNow {
            // It was none: whoever counted it waits for one more.
            self.flushes.store(flushes, Ordering::Release);
        }
        begun
    }

    /// How a read or write is carried out. A write to memory waits while a range is being cleared, because
    /// its file is locked meanwhile: an I/O core must not wait, so a worker writes.
    fn how(&self, write: bool, lasting: bool) -> How {
        let waits = write && self.access == Access::Memory && self.ranges.load(Ordering::Relaxed) > 0;
        How { lasting, by_worker: waits || self.access == Access::Workers }
    }

    fn most_of_range(&self) -> u64 {
        if self.access == Access::Memory {
            MOST_IN_MEMORY
        } else {
            MOST_OF_RANGE
        }
    }

    /// Begins to give a range back, or to clear it.
    fn allocate(&self, way: &mut Transfers, slot: usize, mode: i32, range: Range) -> Begun {
        if let (Some(resident), PUNCH) = (&self.resident, mode) {
            resident.forget(range.at, range.len);
        }
        let begun = way.fallocate(slot, mode, range.at, range.len);
        self.ranges.fetch_add(usize::from(begun == Begun::Yes), Ordering::Relaxed);
        begun
    }

    /// How a range is cleared without writing to it, if it can be. fallocate(2) does not last before a flush.
    fn clearing(&self, unmap: bool, lasting: bool) -> Option<i32> {
        let can = |flag: &AtomicBool| !lasting && flag.load(Ordering::Relaxed);
        match unmap {
            true if can(&self.punches) => Some(PUNCH),
            _ if can(&self.clears) => Some(CLEAR),
            _ => None,
        }
    }

    /// A request of `job` is over with `result`. `None`: it goes on with the next one.
    pub fn over(&self, job: &mut Job, result: i32) -> Option<Result<(), RequestError>> {
        #[cfg(fuzzing)]
        let result = match ENDS.swap(0, Ordering::Relaxed) {
            0 => result,
            error @ ..0 => error,
            most => result.min(most),
        };
        let was_flush = job.op == Op::Flush;
        let over = self.means(job, result);
        if was_flush {
            // Only now may the next one begin, which learns of what this one lost.
            self.flushes.fetch_add(1, Ordering::AcqRel);
        }
        over
    }

    fn means(&self, job: &mut Job, result: i32) -> Option<Result<(), RequestError>> {
        if job.op == Op::Discard || job.op == Op::WriteZeroes && job.clearing.is_some() {
            self.ranges.fetch_sub(1, Ordering::Relaxed);
        }
        let Ok(done) = u64::try_from(result) else {
            let error = Errno::from_raw_os_error(result.checked_neg().unwrap_or(libc::EIO));
            return self.failed(job, error).map(Err);
        };
        match job.op {
            Op::Read if done == 0 => return Some(Err(RequestError::CutShort)),
            Op::Write if done == 0 => return Some(Err(RequestError::Failed)),
            Op::Read | Op::Write => job.advance(done),
            Op::Flush if self.has_lost() => return Some(Err(RequestError::FlushLost)),
            Op::Flush => {}
            // fallocate says 0 for all of it, a write how much it was.
            Op::Discard | Op::WriteZeroes => {
                let all = job.next_range(self.most_of_range()).map_or(0, |range| range.len);
                job.advance(if done == 0 { all } else { done });
            }
        }
        if job.is_done() && job.is_flushed && matches!(job.op, Op::Write | Op::WriteZeroes) {
            job.op = Op::Flush;
            return None;
        }
        job.is_done().then_some(Ok(()))
    }

    /// What an error means. `None`: it is tried again, or in another way.
    fn failed(&self, job: &Job, error: Errno) -> Option<RequestError> {
        match (job.op, error) {
            (_, Errno::INTR | Errno::AGAIN) => None,
            (Op::Flush, _) => {
                self.kept.get().inspect(|(slot, at)| slot.set(*at, 1));
                self.lost.store(true, Ordering::Release);
                Some(request_error(error))
            }
            (Op::Discard, Errno::OPNOTSUPP) => {
                self.punches.store(false, Ordering::Relaxed);
                Some(RequestError::Unsupported)
            }
            (Op::WriteZeroes, Errno::OPNOTSUPP | Errno::INVAL) => {
                // Another request may have found out meanwhile.
                match job.clearing {
                    Some(PUNCH) => self.punches.store(false, Ordering::Relaxed),
                    Some(_) => self.clears.store(false, Ordering::Relaxed),
                    None => return Some(request_error(error)),
                }
                None
            }
            _ => Some(request_error(error)),
        }
    }
}

/// `len`, if a disk with blocks of `block_size` bytes can have that length.
fn whole(len: u64, block_size: u32) -> io::Result<u64> {
    if len == 0 || len % u64::from(block_size) != 0 {
        let why =
            format!("it has {len} bytes; a disk has a multiple of its block of {block_size}, and not none");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(len)
}

/// FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE, each with FALLOC_FL_KEEP_SIZE (`linux/falloc.h`).
const PUNCH: i32 = 0x02 | 0x01;
const CLEAR: i32 = 0x10 | 0x01;

/// What an error of the kernel is called.
fn request_error(error: Errno) -> RequestError {
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => RequestError::NoRoom,
        Errno::FAULT => RequestError::NoMemory,
        _ => RequestError::Failed,
    }
}

/// How `file` is read and written with requests of whole blocks, and has the kernel do so.
fn access(file: &File, nature: &Nature, block_size: u32) -> Access {
    // A device's node lies in such a file system, too.
    let in_memory = !nature.is_device && nature.file_system == TMPFS;
    if in_memory && set_flags(file, OFlags::DIRECT | OFlags::NONBLOCK, OFlags::empty()) {
        return Access::Memory;
    }
    // It was opened so that opening waits for no peer. io_uring takes the flag for the file's promise that
    // nothing waits.
    let local = nature.is_device || LOCAL.contains(&nature.file_system);
    if !set_flags(file, OFlags::empty(), OFlags::NONBLOCK) || !local {
        return Access::Workers;
    }
    direct(file, nature, block_size).map_or(Access::PageCache, Access::Direct)
}

/// TMPFS_MAGIC (`linux/magic.h`). The thread that submits a request reads and writes its files: io_uring
/// hands a request to a worker if it does not know that the file can do without waiting, takes `O_NONBLOCK`
/// for a promise of that, and wants a write to be `O_DIRECT` beside it, which tmpfs takes (Linux 6.6) and
/// which changes nothing there. The promise is as good as for any memory that an I/O core touches: a page
/// that was swapped out has it wait.
const TMPFS: u64 = 0x0102_1994;
/// Ext4, XFS, Btrfs, F2FS (`linux/magic.h`): what would wait for a device is told so, and left to a worker.
/// Of others that is not known, and what has a server (FUSE, NFS, 9P) waits for it where it is asked.
const LOCAL: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Gives the open file flags, and takes others. Whether it has them so now.
fn set_flags(file: &File, more: OFlags, less: OFlags) -> bool {
    fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, (flags | more) - less)).is_ok()
}

/// Has `file` read and written past the page cache, if the kernel says how, and requests of whole blocks can
/// be so.
fn direct(file: &File, nature: &Nature, block_size: u32) -> Option<Alignment> {
    let (memory, place) = nature.direct?;
    if place > block_size || memory > 4096 || !set_flags(file, OFlags::DIRECT, OFlags::empty()) {
        return None;
    }
    // Its lengths, too: the part of a piece that stands at a block's end has to be whole sectors.
    Some(Alignment { memory: memory.max(1) as usize, file: place.into() })
}
