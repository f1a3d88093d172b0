//! Events: eventfds by which a device interrupts, or is told of the end of an interrupt.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};

use crate::error::{Error, Result};

/// An eventfd.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// A new one.
    pub fn new() -> Result<Event> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(Event).map_err(|e| Error::io("eventfd", e))
    }

    /// How often it was written since the last look, without waiting.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.0, &mut count).map_or(0, |_| u64::from_le_bytes(count))
    }

    /// How often it was written since the last look; waits for the first time, `limit` at most. 0: not at
    /// all.
    pub fn wait(&self, limit: Duration) -> Result<u64> {
        let time = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(self.take()),
            Err(e) => Err(Error::io("waiting for an interrupt", e)),
        }
    }

    /// Whether it was written since it was last read; changes nothing.
    pub fn is_set(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Writes it.
    pub fn signal(&self) -> Result<()> {
        rustix::io::write(&self.0, &1u64.to_le_bytes()).map(drop).map_err(|e| Error::io("eventfd", e))
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
