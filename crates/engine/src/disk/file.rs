//! Files and block devices: what they can do, and how a job becomes what the kernel carries out.
//!
//! Theory of operation. Each queue has a ring of its own ([`Transfers`]). A job is one request to the kernel after the other:
//! what was short is continued, what was interrupted is asked for again, a range that the file system cannot give back is
//! written. `begin` asks for the next one, `over` says what its end means.
//!
//! Durability. FLUSH is fdatasync(2), asked for when the flush comes: it covers what was written and acknowledged before, and
//! that is all it has to cover (virtio 1.2 §5.2.6.2). What the guest wants to last at once is written with `RWF_DSYNC`. Once a
//! flush has failed nobody can say what is lost, and the kernel says so once only: every later one fails, too, until the
//! operator has had the disk opened anew.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::Errno;

use super::job::{Job, Op};
use super::nature::Nature;
use super::stats::Trouble;
use crate::mem::{Alignment, Begun, GuestMap, Transfers};

/// Most bytes of a range in one request to the kernel: none keeps a worker for long.
const MOST_OF_RANGE: u64 = 1 << 28;

/// How a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Past the page cache, aligned like this.
    Direct(Alignment),
    /// Its bytes are memory (tmpfs): whoever submits a request copies them, and waits for no device.
    Memory,
    /// Through the page cache.
    PageCache,
}

impl Access {
    /// Most bytes of one request to the kernel. What lies in memory is copied by whoever submits it, and that is an I/O core.
    fn most(self) -> usize {
        match self {
            Access::Memory => 64 << 10,
            Access::Direct(_) | Access::PageCache => 512 << 10,
        }
    }
}

/// A file or block device.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    is_device: bool,
    access: Access,
    /// Whether ranges can be given back, and cleared; until the file system says no.
    punches: AtomicBool,
    clears: AtomicBool,
    /// A flush has failed.
    lost: AtomicBool,
}

impl FileMedium {
    /// The open `file`, which is of this `nature`, as a disk with blocks of so many bytes, and its length. Its server is asked
    /// nothing.
    ///
    /// # Errors
    /// Its length is no multiple of the block.
    fn new(file: File, nature: &Nature, block_size: u32) -> io::Result<(FileMedium, u64)> {
        let len = whole(nature.len, block_size)?;
        let is_device = nature.is_device;
        let access = access(&file, nature, block_size);
        let (punches, clears) = (AtomicBool::new(true), AtomicBool::new(true));
        Ok((FileMedium { file, is_device, access, punches, clears, lost: AtomicBool::new(false) }, len))
    }

    /// Opens what is at `path`.
    ///
    /// # Errors
    /// As `open`, and as above.
    pub fn open(path: &Path, block_size: u32, read_only: bool) -> io::Result<(FileMedium, u64)> {
        let (file, nature) = super::early::take(path, read_only)?;
        FileMedium::new(file, &nature, block_size)
    }

    /// Its length now, as a disk with blocks of so many bytes.
    ///
    /// # Errors
    /// As above.
    pub fn length(&self, block_size: u32) -> io::Result<u64> {
        whole(super::nature::length(&self.file)?, block_size)
    }

    /// Whether it is a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// How it is read and written, in a word.
    pub fn access(&self) -> &'static str {
        match self.access {
            Access::Direct(_) => "direct",
            Access::Memory => "memory",
            Access::PageCache => "page-cache",
        }
    }

    fn alignment(&self) -> Option<Alignment> {
        match self.access {
            Access::Direct(align) => Some(align),
            Access::Memory | Access::PageCache => None,
        }
    }

    /// A queue's way to it, for at most `depth` requests at a time with memory of `map`.
    ///
    /// # Errors
    /// The system has no io_uring for us.
    pub fn way(&self, depth: u16, map: Arc<GuestMap>) -> io::Result<Transfers> {
        Transfers::new(&self.file, depth, self.alignment(), self.access.most(), map)
    }

    /// Asks for the next request of `job`, which has `slot`. `lasting`: what it changes lasts when it is over.
    pub fn begin(
        &self,
        way: &mut Transfers,
        slot: usize,
        job: &mut Job,
        lasting: bool,
    ) -> Result<Begun, Trouble> {
        match job.op {
            Op::Read | Op::Write => {
                if let Some(align) = self.alignment() {
                    if (job.at() | job.left()) & (align.file - 1) != 0 {
                        return Err(Trouble::Unaligned);
                    }
                }
                Ok(way.transfer(slot, job.op == Op::Write, job.at(), job.pieces(), lasting))
            }
            Op::Flush if self.lost.load(Ordering::Acquire) => Err(Trouble::FlushLost),
            // Memory lasts as long as it lasts.
            Op::Flush if self.access == Access::Memory => Ok(Begun::Over),
            Op::Flush => Ok(way.flush(slot)),
            Op::Discard if !self.punches.load(Ordering::Relaxed) => Err(Trouble::Unsupported),
            Op::Discard => {
                let Some(range) = job.next_range(MOST_OF_RANGE) else { return Ok(Begun::Over) };
                Ok(way.fallocate(slot, PUNCH, range.at, range.len))
            }
            Op::WriteZeroes => {
                let Some(range) = job.next_range(MOST_OF_RANGE) else { return Ok(Begun::Over) };
                job.clearing = self.clearing(range.unmap, lasting);
                match job.clearing {
                    Some(mode) => Ok(way.fallocate(slot, mode, range.at, range.len)),
                    None => Ok(way.zeros(slot, range.at, range.len, lasting)),
                }
            }
        }
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
    pub fn over(&self, job: &mut Job, result: i32) -> Option<Result<(), Trouble>> {
        let Ok(done) = u64::try_from(result) else {
            let error = Errno::from_raw_os_error(result.checked_neg().unwrap_or(libc::EIO));
            return self.failed(job, error).map(Err);
        };
        match job.op {
            Op::Read if done == 0 => return Some(Err(Trouble::CutShort)),
            Op::Write if done == 0 => return Some(Err(Trouble::Failed)),
            Op::Read | Op::Write => job.advance(done),
            Op::Flush => {}
            // fallocate says 0 for all of it, a write how much it was.
            Op::Discard | Op::WriteZeroes => {
                let all = job.next_range(MOST_OF_RANGE).map_or(0, |range| range.len);
                job.advance(if done == 0 { all } else { done });
            }
        }
        job.is_done().then_some(Ok(()))
    }

    /// What an error means. `None`: it is tried again, or in another way.
    fn failed(&self, job: &Job, error: Errno) -> Option<Trouble> {
        match (job.op, error) {
            (_, Errno::INTR | Errno::AGAIN) => None,
            (Op::Flush, _) => {
                self.lost.store(true, Ordering::Release);
                Some(trouble(error))
            }
            (Op::Discard, Errno::OPNOTSUPP) => {
                self.punches.store(false, Ordering::Relaxed);
                Some(Trouble::Unsupported)
            }
            (Op::WriteZeroes, Errno::OPNOTSUPP | Errno::INVAL) => {
                // Another request may have found out meanwhile.
                match job.clearing {
                    Some(PUNCH) => self.punches.store(false, Ordering::Relaxed),
                    Some(_) => self.clears.store(false, Ordering::Relaxed),
                    None => return Some(trouble(error)),
                }
                None
            }
            _ => Some(trouble(error)),
        }
    }
}

/// `len`, if a disk with blocks of so many bytes can have that length.
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
fn trouble(error: Errno) -> Trouble {
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Trouble::NoRoom,
        Errno::FAULT => Trouble::NoMemory,
        _ => Trouble::Failed,
    }
}

/// How `file` is read and written with requests of whole blocks, and has the kernel do so.
fn access(file: &File, nature: &Nature, block_size: u32) -> Access {
    match direct(file, nature, block_size) {
        Some(align) => Access::Direct(align),
        None if in_memory(file, nature) => Access::Memory,
        None => Access::PageCache,
    }
}

/// Adds flags to the open file. Whether it has them now.
fn add_flags(file: &File, more: OFlags) -> bool {
    fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags | more)).is_ok()
}

/// Has `file` read and written past the page cache, if the kernel says how, and requests of whole blocks can be so.
fn direct(file: &File, nature: &Nature, block_size: u32) -> Option<Alignment> {
    let (memory, place) = nature.direct?;
    if place > block_size || memory > 4096 || !add_flags(file, OFlags::DIRECT) {
        return None;
    }
    // Its lengths, too: the part of a piece that stands at a block's end has to be whole sectors.
    Some(Alignment { memory: memory.max(1) as usize, file: place.into() })
}

/// Has `file` read and written by whoever submits the request, if it lies in tmpfs.
///
/// io_uring hands a request to a worker if it does not know that the file can do without waiting. It takes `O_NONBLOCK` for a
/// promise of that; a write has to be `O_DIRECT` beside it, which tmpfs takes (Linux 6.6) and which changes nothing there. The
/// promise is as good as for any memory that an I/O core touches: a page that was swapped out has it wait.
fn in_memory(file: &File, nature: &Nature) -> bool {
    /// TMPFS_MAGIC (`linux/magic.h`).
    const TMPFS: u64 = 0x0102_1994;
    nature.file_system == TMPFS && add_flags(file, OFlags::DIRECT | OFlags::NONBLOCK)
}
