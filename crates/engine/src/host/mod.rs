//! Ports of the host: its interfaces, and native programs.
//!
//! Descriptors that this process has from its parent.
//!
//! Invariant of the `unsafe` here: no descriptor that code in this process owns is closed. [`close_others`]
//! is called before anything was opened, and keeps what was named. Of a descriptor that the operator named
//! only duplicates are owned: it stays open, so that a port can be started with it again.

mod describe;
pub(crate) mod interface;
mod mapping;
pub mod netlink;
pub mod netns;
mod nic;
pub mod packet;
pub mod ring;
pub mod shadow;
pub mod tap;
pub mod vxlan;
mod watcher;
pub mod xdp;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Closes every descriptor above standard error but those in `keep`: they were not meant for us. The first
/// thing that a process does, while it has opened nothing.
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
            // SAFETY: by the invariant no code of this process owns these; numbers that are not open are
            // passed over.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = fd.map_or(first, |fd| first.max(fd + 1));
    }
    Ok(())
}

/// A duplicate of descriptor `number` of this process.
///
/// # Errors
/// There is no such descriptor, or no room for another.
pub fn passed(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call touches no memory; a number that is not open is answered with EBADF.
    let duplicate = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if duplicate < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_duplicate_or_a_reason() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_ne!(passed(file.as_raw_fd()).unwrap().as_raw_fd(), file.as_raw_fd());
        assert_eq!(passed(1_000_000).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
