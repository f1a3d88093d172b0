//! A file or block device is opened as a disk, and locked.
//!
//! What the server of a file has to be asked about it ([`Nature`]) may wait for ever (FUSE, NFS), so the
//! process that opens the file asks all of that before it hands the file on (`opener`); the daemon learns the
//! answers.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{fstatfs, statx, AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::mem::lock_file;
use crate::sandbox::open::disk_file;

/// How long a lock without a holder is waited for: the kernel ends the requests of a ring, and lets go of its
/// file, some time after its process is gone.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nature {
    /// Bytes.
    pub(super) len: u64,
    /// Whether it is a block device.
    pub(super) is_device: bool,
    /// Its file system's number (`linux/magic.h`); 0: unknown.
    pub(super) file_system: u64,
    /// The alignments, in memory and in the file, of what is read and written past the page cache, if it can
    /// be.
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

/// Opens what is at `path` as a disk, to read, or to write, too, and waits for its server.
///
/// # Errors
/// It is no regular file and no block device, another process has it, or what the system says.
pub(super) fn open_here(path: &Path, read_only: bool) -> io::Result<(File, Nature)> {
    let file = patiently(|| locked(path, read_only))?;
    let nature = Nature::of(&file)?;
    Ok((file, nature))
}

/// Locks `file`, which rings may still have whose process has ended.
///
/// # Errors
/// They have it (`WouldBlock`), or there are no locks.
pub(super) fn lock_alone(file: &File) -> io::Result<()> {
    patiently(|| lock_file(file, true)).map_err(|e| match e.kind() {
        kind @ io::ErrorKind::WouldBlock => {
            io::Error::new(kind, "requests of a process that has ended are still under way")
        }
        _ => e,
    })
}

/// Tries to lock something until no ring of a process that has ended has it.
fn patiently<T>(mut lock: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match lock() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            locked => return locked,
        }
    }
}

/// Looks whether what is at `path` could be opened as a disk by the process that has its lock.
///
/// # Errors
/// As above, but for the lock.
pub(super) fn look_here(path: &Path, read_only: bool) -> io::Result<()> {
    Nature::of(&disk_file(path, read_only)?).map(drop)
}

/// Opens and locks it, if no process has it: `WouldBlock` where no process is seen that has it.
fn locked(path: &Path, read_only: bool) -> io::Result<File> {
    let file = disk_file(path, read_only)?;
    match lock_file(&file, !read_only) {
        Ok(()) => Ok(file),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            let what = if read_only { "writes to it" } else { "has it" };
            let found = holders(&file);
            let (kind, who) = match found.as_slice() {
                [] => (io::ErrorKind::WouldBlock, "one that this user may not look at".to_owned()),
                found => (io::ErrorKind::Other, found.join(", ")),
            };
            Err(io::Error::new(kind, format!("another process {what}: {who}")))
        }
        Err(e) => Err(io::Error::new(e.kind(), format!("it cannot be locked: {e}"))),
    }
}

/// Most processes that are named.
const NAMED: usize = 4;

/// Other processes that have `file` open, as far as we may see. Only names are compared: to look at a
/// stranger's file may mean to wait for its server.
fn holders(file: &File) -> Vec<String> {
    let Ok(ours) = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else {
        return Vec::new();
    };
    let same = |path: &Path| std::fs::read_link(path).is_ok_and(|its| its == ours);
    let list = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for process in list(Path::new("/proc")) {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() || !list(&process.path().join("fd")).any(|fd| same(&fd.path())) {
            continue;
        }
        let comm = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        found.push(format!("process {pid} ({})", crate::util::fault::shown(comm.trim_end(), 16)));
        if found.len() == NAMED {
            break;
        }
    }
    found
}
