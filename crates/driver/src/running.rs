//! A ring with its two eventfds: what a driver needs while the device runs.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::session::Session;

/// A ring that runs.
#[derive(Debug)]
pub struct Running {
    /// The ring.
    pub queue: Queue,
    /// Virtio queue number.
    pub number: u16,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Running {
    /// Queue `number` of a session, over zeroed parts.
    pub fn new(session: &Session, number: u16) -> Result<Self> {
        let vring = session.vring(number)?;
        let clone = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("duplicating an eventfd", e));
        Ok(Self {
            queue: session.queue(number)?,
            number,
            kick: clone(&vring.kick)?,
            call: clone(&vring.call)?,
        })
    }

    /// Makes everything prepared visible. True: the device wanted a kick and got one.
    pub fn publish(&mut self) -> Result<bool> {
        let wanted = self.queue.publish();
        if wanted {
            self.kick()?;
        }
        Ok(wanted)
    }

    /// Kicks, whatever the device wishes.
    pub fn kick(&self) -> Result<()> {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).map(drop).map_err(|e| Error::io("kicking", e))
    }

    /// Has the device interrupted since the last call?
    pub fn interrupted(&self) -> bool {
        rustix::io::read(&self.call, &mut [0; 8]).is_ok()
    }
}

/// Sleeps until one of the rings interrupts, `other` has something to read or is closed, or the time is over.
/// The rings must have been asked for interrupts.
pub fn sleep<'a>(
    rings: impl IntoIterator<Item = &'a Running>,
    other: Option<&dyn AsFd>,
    timeout: Duration,
) -> Result<()> {
    let limit = Timespec::try_from(timeout).map_err(|_| Error::Config("timeout out of range".into()))?;
    let fds = rings.into_iter().map(|ring| ring.call.as_fd()).chain(other.map(AsFd::as_fd));
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("waiting for an interrupt", error)),
    }
}
