//! The way to wake a client: a pipe.
//!
//! Not an eventfd: its two ends are one open file, so a client could make it blocking, fill its counter, and
//! with that stop the I/O core that writes to it. A pipe's ends are two, and ours stays as we made it. A full
//! pipe is readable already, so a write that fails loses nothing. When the client's process ends, writes
//! fail too; when ours does, the client's end says so.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{pipe_with, PipeFlags};

/// Our end.
pub(super) struct Wake(OwnedFd);

impl Wake {
    /// A pipe: our end, and the client's.
    pub(super) fn new() -> io::Result<(Wake, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Wake(write), read))
    }

    /// Wakes the client.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &[1]);
    }
}
