//! What this process has from its parent.
//!
//! Invariant of the `unsafe` here: no descriptor that code in this process owns is closed. [`close_others`] is called
//! before anything was opened, and keeps what was named.

use std::io;
use std::os::fd::RawFd;

/// Closes every descriptor above standard error but those in `keep`: they were not meant for us. The first thing that a
/// process does, while it has opened nothing.
///
/// # Errors
/// The system has no close_range(2) (Linux before 5.9).
pub fn close_others(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|&fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().map(Some).chain([None]) {
        let last = fd.map_or(u32::MAX, |fd| fd.saturating_sub(1));
        if first <= last {
            // SAFETY: by the invariant no code of this process owns these; numbers that are not open are passed over.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = fd.map_or(first, |fd| first.max(fd + 1));
    }
    Ok(())
}
