//! A file or block device is opened as a disk, and locked.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::nature::Nature;
use crate::mem::lock_file;
use crate::open::disk_file;

/// How long a lock without a holder is waited for: the kernel ends the requests of a ring, and lets go of its file,
/// some time after its process is gone.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

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

/// Other processes that have `file` open, as far as we may see. Only names are compared: to look at a stranger's file
/// may mean to wait for its server.
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
        found.push(format!("process {pid} ({})", crate::fault::shown(comm.trim_end(), 16)));
        if found.len() == NAMED {
            break;
        }
    }
    found
}
