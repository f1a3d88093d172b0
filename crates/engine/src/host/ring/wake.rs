//! The way to wake a client: a pipe.
//!
//! Not an eventfd: its two ends are one open file, so a client could make it blocking, fill its counter, and
//! with that stop the I/O core that writes to it. A pipe's ends are two, and ours stays as we made it. A full
//! pipe is readable already, so a write that fails loses nothing. When the client's process ends, writes
//! fail too; when ours does, the client's end says so.
//!
//! A write does not wait, but it walks the list of waiters at the other end, and the client makes that as long as it
//! likes. So it is timed as interrupts of VMMs are (`mem::Signal`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{pipe_with, PipeFlags};

use crate::mem::{Overrun, Signal};

/// Our end.
pub(super) struct Wake(Signal);

impl Wake {
    /// A pipe: our end, of the port that has this overrun, and the client's.
    pub(super) fn new(overrun: &Overrun) -> io::Result<(Wake, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let signal = Signal::new(overrun);
        signal.set_pipe(write);
        Ok((Wake(signal), read))
    }

    /// Wakes no client.
    pub(super) fn nobody() -> Wake {
        Wake(Signal::default())
    }

    /// Wakes the client.
    pub(super) fn wake(&self) {
        self.0.raise();
    }
}
