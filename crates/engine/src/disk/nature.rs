//! What a disk's file is, as far as its server has to be asked.
//!
//! Such a question may wait for ever (FUSE, NFS), so the process that opens the file asks all of them before it hands the file on
//! (`opener`); the daemon learns the answers.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{fstatfs, statx, AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nature {
    /// Bytes.
    pub(super) len: u64,
    /// Whether it is a block device.
    pub(super) is_device: bool,
    /// Its file system's number (`linux/magic.h`); 0: unknown.
    pub(super) file_system: u64,
    /// The alignments, in memory and in the file, of what is read and written past the page cache, if it can be.
    pub(super) direct: Option<(u32, u32)>,
}

impl Nature {
    /// That of `file`.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn of(file: &File) -> io::Result<Nature> {
        let is_device = file.metadata()?.file_type().is_block_device();
        let file_system = fstatfs(file).map_or(0, |stat| u64::try_from(stat.f_type).unwrap_or(0));
        Ok(Nature { len: length(file)?, is_device, file_system, direct: direct(file) })
    }
}

/// Bytes of `file`.
pub(super) fn length(mut file: &File) -> io::Result<u64> {
    // A block device has its length at its end only.
    file.seek(SeekFrom::End(0))
}

/// The alignments that reads and writes past the page cache need, if the kernel says that they can be.
fn direct(file: &File) -> Option<(u32, u32)> {
    /// STATX_DIOALIGN (`linux/stat.h`), Linux 6.1.
    const DIOALIGN: u32 = 0x2000;
    let wanted = StatxFlags::from_bits_retain(DIOALIGN);
    let stat = statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    let (memory, place) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    let known = stat.stx_mask & DIOALIGN != 0 && memory.is_power_of_two() && place.is_power_of_two();
    known.then_some((memory, place))
}
