//! Disks: the media that block devices read and write.
//!
//! Theory of operation. A [`Disk`] is one medium with what is counted of it; several queues of a device share
//! it. A request that a device has checked is a [`Job`]: pieces of guest memory and a place on the disk.
//! Media in memory ([`Medium::Ram`], [`Medium::Null`]) carry a job out at once, some bytes at a time while
//! the visit has time, so that no other task waits for a long job. The kernel reads and writes a file
//! (`file`): a job is started, and ends some time later. A file whose bytes are memory is handled like a
//! medium in memory.

mod file;
mod job;
mod open;
pub mod opener;
mod stats;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(fuzzing)]
pub use file::ENDS;
pub use file::{FileMedium, Gate};
pub use job::{Job, Op, Range};
pub use opener::look;
pub(crate) use opener::{open_early, OpenedFiles};
pub use stats::{Ended, Latency, QueueStats, RequestError, Sums};

use crate::mem::{Deadline, JournalSlot, Mapping, Piece};

/// Most queues of a disk.
pub const MAX_QUEUES: usize = 16;

/// The clock is read behind each such stretch of memory of ours that is cleared. Its pages may not be there
/// yet: these are 16 small ones, or a part of one huge page.
const CLEARED_A_LOOK: u64 = 64 << 10;

/// What a disk consists of.
pub enum Medium {
    /// Memory of ours, which is gone with the process.
    Ram(Mapping),
    /// A file or block device, which the kernel reads and writes.
    File(FileMedium),
    /// Nothing: it reads as zeros, and forgets what is written.
    Null,
}

impl Medium {
    /// What it is, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Medium::Ram(_) => "ram",
            Medium::File(file) if file.is_device => "device",
            Medium::File(_) => "file",
            Medium::Null => "null",
        }
    }

    /// How a file is read and written, in a word.
    pub fn access(&self) -> Option<&'static str> {
        let Medium::File(file) = self else { return None };
        Some(file.access())
    }
}

/// A disk, as all queues of a device share it.
pub struct Disk {
    /// What it consists of.
    pub medium: Medium,
    /// How the operator named that, for `show`.
    pub name: String,
    /// Bytes of a logical block, a power of two from 512 on.
    pub block_size: u32,
    /// Nothing may be written.
    pub read_only: bool,
    /// Bytes.
    capacity: AtomicU64,
    /// What is written must last before it is acknowledged.
    write_through: AtomicBool,
    queues: [QueueStats; MAX_QUEUES],
}

impl Disk {
    /// A disk of `capacity` bytes.
    pub fn new(medium: Medium, name: String, capacity: u64, block_size: u32, read_only: bool) -> Disk {
        Disk {
            medium,
            name,
            block_size,
            read_only,
            capacity: AtomicU64::new(capacity),
            write_through: AtomicBool::new(false),
            queues: Default::default(),
        }
    }

    /// A disk in memory.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn ram(capacity: u64, block_size: u32, read_only: bool) -> io::Result<Disk> {
        let bytes = usize::try_from(capacity).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let name = format!("ram:{capacity}");
        Ok(Disk::new(Medium::Ram(Mapping::anonymous(bytes)?), name, capacity, block_size, read_only))
    }

    /// A file or block device.
    ///
    /// # Errors
    /// It cannot be opened, or be a disk.
    pub fn file(path: &Path, block_size: u32, read_only: bool) -> io::Result<Disk> {
        let (medium, capacity) = FileMedium::open(path, block_size, read_only)?;
        let name = path.display().to_string();
        Ok(Disk::new(Medium::File(medium), name, capacity, block_size, read_only))
    }

    /// A disk that forgets.
    pub fn null(capacity: u64, block_size: u32, read_only: bool) -> Disk {
        Disk::new(Medium::Null, format!("null:{capacity}"), capacity, block_size, read_only)
    }

    /// Bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Has its file keep in word `at` of `slot`, which is in its port's `journal`, what the next process has
    /// to know, and the journal be locked while requests are under way.
    ///
    /// # Errors
    /// Those of a process that has ended are, or there are no locks.
    pub fn keep(&self, journal: std::fs::File, slot: JournalSlot, at: usize) -> io::Result<()> {
        match &self.medium {
            Medium::File(file) => file.keep(journal, slot, at),
            Medium::Ram(_) | Medium::Null => Ok(()),
        }
    }

    /// Looks how long its file is, which may have grown. Whether it had.
    ///
    /// # Errors
    /// It has no file, or that cannot be the disk's any more.
    pub fn grow(&self) -> Result<bool, String> {
        let Medium::File(file) = &self.medium else {
            return Err("it has no file: its size is what its option `file` says".to_owned());
        };
        let len = file.length(self.block_size).map_err(|e| format!("cannot use \"{}\": {e}", self.name))?;
        let before = self.capacity.fetch_max(len, Ordering::Relaxed);
        if len < before {
            return Err(format!("\"{}\" has {len} bytes, and the disk {before}: disks only grow", self.name));
        }
        Ok(len > before)
    }

    /// Whether ranges can be given back.
    pub fn discards(&self) -> bool {
        matches!(&self.medium, Medium::File(file) if !file.is_device)
    }

    /// Whether what is written must last before it is acknowledged.
    pub fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    /// Changes that, from the next request on.
    pub fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// What is counted of queue `index`, which is below [`MAX_QUEUES`].
    pub fn queue(&self, index: usize) -> &QueueStats {
        &self.queues[index % MAX_QUEUES]
    }

    /// Whether `step` carries `job` on; the kernel does if not.
    #[inline]
    pub fn steps(&self, job: &Job) -> bool {
        match &self.medium {
            Medium::Ram(_) | Medium::Null => true,
            Medium::File(file) => {
                matches!(job.op, Op::Read | Op::Write) && !job.is_for_kernel && file.is_resident()
            }
        }
    }

    /// Carries out up to `most` bytes of `job`, in memory. Returns how many; fewer than `most` only where
    /// nothing is left of it, what is left is not for us to do, or time is up, which is looked at behind each
    /// page of the guest, and each 64 KiB that are cleared.
    pub fn step(&self, job: &mut Job, most: u64, deadline: Deadline) -> u64 {
        let mut done = 0;
        while done < most {
            let part = match job.op {
                Op::Read | Op::Write => self.copy(job, most - done),
                Op::WriteZeroes => self.clear(job, most - done),
                // Nothing here outlives us, or has room to give back.
                Op::Flush | Op::Discard => 0,
            };
            if part == 0 {
                if !job.is_for_kernel {
                    job.finish();
                }
                break;
            }
            done += part;
            // After the last part of a job, the clock is read before the next job.
            if !job.is_done() && deadline.is_over() {
                break;
            }
        }
        done
    }

    /// Copies the next piece of a read or write as far as one page goes, or `most` bytes of it.
    fn copy(&self, job: &mut Job, most: u64) -> u64 {
        let Some(piece) = job.next_piece(most).map(|piece| piece.first_page()) else { return 0 };
        match (&self.medium, job.op) {
            (Medium::File(file), op) => {
                job.is_for_kernel = !file.copy(op, job.at, &piece);
                if job.is_for_kernel {
                    return 0;
                }
            }
            (Medium::Null, Op::Read) => zero(&piece),
            (Medium::Null, _) => {}
            (Medium::Ram(store), op) => {
                // The job was checked against the capacity, which is that of the store.
                let Ok(len) = u32::try_from(piece.len()) else { return 0 };
                let Some(here) = store.piece(job.at, len) else { return 0 };
                let _ = if op == Op::Read { piece.write_from(&here) } else { here.write_from(&piece) };
            }
        }
        job.advance(piece.len() as u64);
        piece.len() as u64
    }

    /// Clears the next range, or `most` bytes of it: in memory of ours as far as one look at the clock goes.
    fn clear(&self, job: &mut Job, most: u64) -> u64 {
        let Some(range) = job.next_range(most) else { return 0 };
        let done = match &self.medium {
            Medium::Ram(store) => {
                let part = range.len.min(CLEARED_A_LOOK - range.at % CLEARED_A_LOOK);
                let here = u32::try_from(part).ok().and_then(|part| store.piece(range.at, part));
                let Some(here) = here else { return 0 };
                zero(&here);
                part
            }
            _ => range.len,
        };
        job.advance(done);
        done
    }

    /// What is counted of all queues together.
    pub fn sums(&self) -> Sums {
        Sums::of(&self.queues)
    }
}

/// Fills a piece with zeros.
fn zero(piece: &Piece) {
    static ZEROS: [u8; 65_536] = [0; 65_536];
    let mut rest = *piece;
    while !rest.is_empty() {
        let n = rest.write(&ZEROS);
        rest.advance(n);
    }
}

#[cfg(test)]
mod tests;
