//! The door's side: looks where it is told to, and has nothing to lose.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{getrlimit, Resource};

use super::hang_up::{HOLD, MOST};
use super::record::{
    hear, say, ANY, CLOSE, CLOSED, CUT, FAILED, GIVEN, KEEP, LOOK, SOCKETS, STRANGER, TOO_MANY,
};
use super::see::{see, WantedFds, Why};

/// The number of the descriptor that is closed last: above those of all that come with one message, or the last there may be. The
/// kernel closes the descriptors of a process that ends in the order of their numbers.
const LAST: u64 = 512;

/// Serves the daemon at the other end of `socket` until it is gone, or a second after the first connection that is to end.
///
/// # Errors
/// `InvalidInput`: `socket` is none of a daemon's. Else what the system says of it.
pub fn serve(socket: &OwnedFd) -> io::Result<()> {
    let ours =
        socket_domain(socket) == Ok(AddressFamily::UNIX) && socket_type(socket) == Ok(SocketType::SEQPACKET);
    if !ours {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A process that waits for our end (`Closing`) is told behind the close of the last file, even if we are killed.
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let last = fcntl_dupfd_cloexec(socket, i32::try_from(LAST.min(most.saturating_sub(1))).unwrap_or(0))?;
    // Without filters it looks as well.
    let _ = crate::confine::alone(crate::confine::Kinds::DOOR);
    // Never closed: the end of this process does that, without waiting for what lingers.
    let mut kept = ManuallyDrop::new(Vec::new());
    attend(socket, &mut kept)?;
    drop(last);
    Ok(())
}

/// Does what the daemon says until it hangs up. What it is to keep is added to `kept`; with that, it returns before long.
pub(super) fn attend(socket: &OwnedFd, kept: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut until = None;
    loop {
        if kept.len() >= MOST || !speaks(socket, until)? {
            return Ok(());
        }
        // A daemon that was killed resets the connection.
        let Ok(Some(record)) = hear(socket) else { return Ok(()) };
        if record.what == KEEP {
            until.get_or_insert_with(|| Instant::now() + HOLD);
            kept.extend(record.fds);
            continue;
        }
        if record.what == CLOSE {
            // Said twice.
            continue;
        }
        let Some(connection) = record.fds.into_iter().next().filter(|_| record.what == LOOK) else {
            return Ok(());
        };
        let most = usize::try_from(record.number >> 32).unwrap_or(0);
        let [any, sockets] = [ANY, SOCKETS].map(|flag| record.number & flag != 0);
        let seen = see(connection.as_fd(), WantedFds { most, any, sockets });
        // Before anything that could wait: its other end is to learn when the daemon hangs up.
        drop(connection);
        let seen = match seen {
            Ok(seen) => seen,
            Err(e) => {
                say(socket, FAILED, 0, &e.to_string(), &[])?;
                continue;
            }
        };
        let answered = match &seen.verdict {
            Ok(()) => {
                let fds: Vec<_> = seen.good.iter().map(AsFd::as_fd).collect();
                say(socket, GIVEN, fds.len() as u64, "", &fds).or_else(|e| {
                    let why = format!("descriptors cannot be passed on: {e}");
                    say(socket, FAILED, 0, &why, &[])
                })
            }
            Err(Why::Stranger(name)) => say(socket, STRANGER, 0, name, &[]),
            Err(Why::TooMany { came, .. }) => say(socket, TOO_MANY, *came, "", &[]),
            Err(Why::Cut) => say(socket, CUT, 0, "", &[]),
            Err(Why::NoDoor(why)) => say(socket, FAILED, 0, why, &[]),
        };
        if !seen.strangers.is_empty() {
            // The daemon drops the message first: the process that drops a file last may have to wait (a socket with
            // SO_LINGER). It says so, or is gone.
            let said = hear(socket);
            // This may take for ever.
            drop(seen);
            match said {
                Ok(Some(_)) => say(socket, CLOSED, 0, "", &[])?,
                _ => return Ok(()),
            }
            continue;
        }
        answered?;
    }
}

/// Waits for the daemon's next word, or its end; false if there is none by `until`.
fn speaks(socket: &OwnedFd, until: Option<Instant>) -> io::Result<bool> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()))? > 0)
}
