//! The descriptor helper's side: looks where it is told to, and has nothing to lose.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::RecvFlags;
use rustix::process::{getrlimit, Resource};
use serde::{Deserialize, Serialize};

use crate::mem::{is_eventfd, is_memory, is_stream, link_name};
use crate::sandbox::filters;
use crate::sandbox::open::passing::{self, hear, is_for_records, say, MAX_FDS};
use crate::util::wait;

/// The first word of each record: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_6472 << 32;
pub(super) const LOOK: u64 = PROTOCOL | 1;
pub(super) const KEEP: u64 = PROTOCOL | 2;
pub(super) const GIVEN: u64 = PROTOCOL | 3;
pub(super) const NONE: u64 = PROTOCOL | 4;

/// The number of the descriptor that is closed last: above those of all that come with one message, or the
/// last there may be. The kernel closes the descriptors of a process that ends in the order of their numbers.
const LAST: u64 = 512;
/// How long a helper keeps connections before it ends with them.
const HOLD: Duration = Duration::from_secs(1);
/// How many it keeps at most.
pub(super) const MOST: usize = 128;

/// Which descriptors may pass.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WantedFds {
    /// How many.
    pub most: usize,
    /// Files of any kind are taken: the operator trusts their sender.
    pub any: bool,
    /// Connected stream sockets of this host are taken: their owner may write, and hang up
    /// ([`hang_up`](super::hang_up)), without waiting.
    pub sockets: bool,
}

/// Why no descriptor passes.
#[derive(Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Why {
    /// One is neither memory nor an eventfd; what the kernel calls it.
    #[error("{0} is neither memory nor an eventfd")]
    Stranger(String),
    /// More than may pass came.
    #[error("{came} descriptors came along; {most} at most can be taken")]
    TooMany {
        /// How many came.
        came: usize,
        /// How many may pass.
        most: usize,
    },
    /// Some were lost.
    #[error("descriptors are missing: there was no room for all of them (RLIMIT_NOFILE)")]
    Cut,
    /// There is no helper to look at them.
    #[error("the descriptors cannot be checked: {0}")]
    NoHelper(String),
}

/// Serves the daemon at the other end of `socket` until it is gone, or a second after the first connection
/// that is to end.
///
/// # Errors
/// `InvalidInput`: `socket` is none of a daemon's. Else what the system says of it.
pub fn serve(socket: &OwnedFd) -> io::Result<()> {
    if !is_for_records(socket) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A process that waits for our end is told behind the close of the last file, even if we are killed.
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let last = fcntl_dupfd_cloexec(socket, i32::try_from(LAST.min(most.saturating_sub(1))).unwrap_or(0))?;
    // Without filters it looks as well.
    let _ = filters::alone(filters::Kinds::DESCRIPTOR_HELPER);
    // Never closed: the end of this process does that, without waiting for what lingers.
    let mut kept = ManuallyDrop::new(Vec::new());
    attend(socket, &mut kept)?;
    drop(last);
    Ok(())
}

/// Does what the daemon says until it hangs up, or there is a file that may be long in closing. What it is to
/// keep is added to `kept`; with that, it returns before long.
pub(super) fn attend(socket: &OwnedFd, kept: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut until = None;
    while kept.len() < MOST && speaks(socket, until)? {
        // A daemon that was killed resets the connection.
        let Ok(record) = hear(socket, MAX_FDS) else { return Ok(()) };
        if record.what == KEEP {
            until.get_or_insert_with(|| Instant::now() + HOLD);
            kept.extend(record.fds);
            continue;
        }
        let wanted = serde_json::from_slice(&record.text).ok().filter(|_| record.what == LOOK);
        let (Some(connection), Some(wanted)) = (record.fds.into_iter().next(), wanted) else { return Ok(()) };
        let seen = see(connection.as_fd(), wanted);
        // Before anything that could wait: its other end is to learn when the daemon hangs up.
        drop(connection);
        let refuse = |why: &Why| say(socket, NONE, 0, &serde_json::to_vec(why)?, &[]);
        let answered = match &seen.verdict {
            Ok(good) => {
                let fds: Vec<_> = good.iter().map(AsFd::as_fd).collect();
                say(socket, GIVEN, fds.len() as u64, &[], &fds)
                    .or_else(|e| refuse(&Why::NoHelper(format!("descriptors cannot be passed on: {e}"))))
            }
            Err(why) => refuse(why),
        };
        if matches!(seen.verdict, Err(Why::Stranger(_))) {
            // The daemon drops the message first: the process that drops a file last may have to wait (a
            // socket with SO_LINGER). It says so by its end of the line, or is gone.
            let _ = hear(socket, 0);
            // This may take for ever.
            drop(seen);
            return Ok(());
        }
        answered?;
    }
    Ok(())
}

/// Waits for the daemon's next word, or its end; false if there is none by `until`.
fn speaks(socket: &OwnedFd, until: Option<Instant>) -> io::Result<bool> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    Ok(wait(&mut [PollFd::new(socket, PollFlags::IN)], left)?)
}

/// What a look has found.
pub(super) struct Look {
    pub(super) verdict: Result<Vec<OwnedFd>, Why>,
    /// What does not pass. Closing it may wait for others.
    _rest: Vec<OwnedFd>,
}

/// Looks at the descriptors that wait at `connection`, in this process.
pub(super) fn see(connection: BorrowedFd, wanted: WantedFds) -> Look {
    let got = match passing::receive(connection, &mut [], MAX_FDS, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok(got) => got,
        Err(e) => return Look { verdict: Err(Why::NoHelper(e.to_string())), _rest: Vec::new() },
    };
    let (came, most) = (got.fds.len(), wanted.most);
    let passes =
        |fd: &OwnedFd| wanted.any || is_memory(fd) || is_eventfd(fd) || wanted.sockets && is_stream(fd);
    let why = match got.fds.iter().find(|fd| !passes(fd)) {
        Some(stranger) => Why::Stranger(link_name(stranger.as_fd())),
        None if got.fds_cut => Why::Cut,
        None if came > most => Why::TooMany { came, most },
        None => return Look { verdict: Ok(got.fds), _rest: Vec::new() },
    };
    Look { verdict: Err(why), _rest: got.fds }
}
