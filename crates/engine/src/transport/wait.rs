//! Waiting for descriptors, with a limit.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Waits until one of `fds` is ready, or the time is over.
pub(in crate::transport) fn wait(fds: &mut [PollFd], time: Option<Duration>) -> rustix::io::Result<()> {
    let time = time.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    match poll(fds, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Waits for `time` or until `wake` is readable; true if it is.
pub(in crate::transport) fn wait_for(wake: impl AsFd, time: Option<Duration>) -> bool {
    let mut fds = [PollFd::new(&wake, PollFlags::IN)];
    wait(&mut fds, time).is_ok() && !fds[0].revents().is_empty()
}
