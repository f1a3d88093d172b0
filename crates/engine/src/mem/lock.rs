//! Locks of whole files that belong to the open file, not to the process (`F_OFD_SETLK`, fcntl(2)): the holder of the
//! descriptor has the lock, and it goes with the last one. Requests that the kernel still carries out hold the file
//! open, too, so the lock of a process that was killed goes when the last of them is over.
//!
//! Invariant of the `unsafe` here: the kernel reads one `flock` that lives on the stack.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks all of `file`: for ourselves, or against writers. Never waits.
///
/// # Errors
/// Another process has a lock that keeps this one out (`WouldBlock`), or the system has none.
pub fn lock_file(file: &File, alone: bool) -> io::Result<()> {
    let kind = if alone { libc::F_WRLCK } else { libc::F_RDLCK };
    #[expect(clippy::cast_possible_truncation, reason = "constants of the system's interface")]
    let lock =
        libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the kernel reads `lock`, which outlives the call; the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
            e => Err(e),
        },
    }
}
