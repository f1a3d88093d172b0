//! Waiting for descriptors, with a limit.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::sandbox::descriptors;

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

/// Whether the other end of a connection is gone, whatever it has said before.
pub(in crate::transport) fn has_left(stream: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&stream, PollFlags::empty())];
    wait(&mut fds, Some(Duration::ZERO)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// What is said of a port whose VMM has left a file behind that is still being closed.
pub(in crate::transport) const CLOSING: &str =
    "a file that its VMM gave is still being closed, because its file server does not answer; the port accepts no VMM until then";

/// Waits until a file is closed; true if it is, false if `wake` is readable first. If it takes longer than a moment, `told`
/// is called once.
pub(in crate::transport) fn await_close(closing: &OwnedFd, wake: impl AsFd, told: impl FnOnce()) -> bool {
    const MOMENT: Duration = Duration::from_millis(100);
    descriptors::dropped(closing);
    let mut fds = [PollFd::new(&wake, PollFlags::IN), PollFd::new(closing, PollFlags::IN)];
    let mut closed = |time| {
        let waited = wait(&mut fds, time);
        (waited.is_err() || !fds[1].revents().is_empty(), !fds[0].revents().is_empty())
    };
    match closed(Some(MOMENT)) {
        (false, false) => told(),
        (closed, _) => return closed,
    }
    loop {
        match closed(None) {
            (false, false) => {}
            (closed, _) => return closed,
        }
    }
}
