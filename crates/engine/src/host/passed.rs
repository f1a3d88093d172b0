//! Descriptors that the daemon was started with.
//!
//! Invariant of the `unsafe` here: only duplicates are owned; the number that the operator named stays open, so that a
//! port can be started with it again.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

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
