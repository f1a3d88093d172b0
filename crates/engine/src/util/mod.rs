//! What every room may use and none owns: parts of slices, waiting, buckets of tokens, weighted draws,
//! processors of threads, faults, and the tables of what is configured and answered (`form`).

pub mod bucket;
pub mod fault;
pub mod form;
pub mod place;
pub mod shares;
pub mod slice;

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{retry_on_intr, Result};

/// Waits until one of `fds` is ready, or the time is over; false if none is.
pub(crate) fn wait(fds: &mut [PollFd], time: Option<Duration>) -> Result<bool> {
    // A time that cannot be written is none that ends.
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    Ok(retry_on_intr(|| poll(fds, time.as_ref()))? > 0)
}

/// Waits for `time` or until `wake` is readable; true if it is.
pub(crate) fn wait_for(wake: impl AsFd, time: Option<Duration>) -> bool {
    wait(&mut [PollFd::new(&wake, PollFlags::IN)], time).unwrap_or(false)
}

/// Whether the other end of a connection is gone, whatever it has said before.
pub(crate) fn has_left(stream: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&stream, PollFlags::empty())];
    wait(&mut fds, Some(Duration::ZERO)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}
