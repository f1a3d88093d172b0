//! The descriptor helper: a process that receives the descriptors which VMMs send, so that the daemon never
//! owns a descriptor whose file another process serves.
//!
//! Theory of operation. Closing a descriptor may wait for the server of its file (FUSE asks it at every
//! close, and no signal ends that wait), also when a process ends. So a descriptor of such a file must not
//! get into the daemon's table at all. But what a descriptor is can be found out only when it is in some
//! table. A peek at a socket (MSG_PEEK) without room for descriptors tells only that there are some. Reading
//! without room drops them, without closing them as a process does, and asks no server. The daemon reads VMMs
//! only in that way.
//!
//! Where a message has descriptors, the daemon sends the helper a duplicate of the connection ([`look`]). The
//! helper peeks at the same message with room for them and checks each: memory, an eventfd, and a connected
//! stream socket for a message that may give one. None of these checks asks the file's server. If all are
//! good, it passes them on. The message stays in the socket: a peek of no bytes duplicates the descriptors of
//! the next piece that has any, and changes nothing. So either process may be killed at any time, and the
//! peek repeated.
//!
//! A helper that has received another process's file says so, waits until the daemon has dropped the message
//! ([`dropped`]), closes the file, however long that takes, and ends. The next message starts another helper.
//! Until the file is closed, the port gets no further descriptors and no other VMM. So there is at most one
//! such process for each port.
//!
//! Helpers also end connections ([`hang_up`]). The process that closes the last reference to a connection
//! also closes the descriptors in its unread messages, and those of connections that wait at a listener. One
//! of them may be the last reference to a socket that lingers (SO_LINGER): its close waits for as long as its
//! sender has chosen. So the daemon first shuts the connection down, after which nothing is added to it. If
//! the connection holds anything, the helper gets a duplicate, so that the daemon's reference is not the last
//! one. The helper never closes the connection; it *ends*, and the sockets of a process that ends do not
//! linger. It ends a second after the first connection, or with the 128th (`server`), so clients that do
//! nothing else cost one process a second. A connection that is on its way to a helper when that helper ends
//! is closed by that end, too. If no helper can be started, connections are closed here, however long that
//! takes.
//!
//! With `memory-file=any` the helper passes files on unchecked: the operator trusts that VMM.
//!
//! The protocol has records (`open::passing`): a request with a connection, and an answer with descriptors or
//! a text. Without [`start`] (tests, fuzzers) the process does the helper's work itself.

mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::io::ioctl_fionread;
use rustix::net::{shutdown, Shutdown};

pub use server::{serve, WantedFds, Why};

use crate::sandbox::open::broker::{broker, Request};
use crate::sandbox::open::passing::{hear, limit, say, MAX_FDS};
use server::{see, GIVEN, KEEP, LOOK, NONE};

/// How long a helper may take over an answer. It waits for no other process before it gives one.
const ANSWER: Duration = Duration::from_secs(30);
/// Helpers that are asked for one look. More than one is needed only if helpers end meanwhile.
const TRIES: usize = 3;

/// That no descriptor passes.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub why: Why,
    /// The helper in which they are still to be closed, once they are [`dropped`] here: readable when they
    /// are.
    pub closing: Option<OwnedFd>,
}

impl From<Why> for Refused {
    fn from(why: Why) -> Refused {
        Refused { why, closing: None }
    }
}

/// The message with the descriptors that are closed at the other end of `closing` has been dropped here: the
/// helper may close them, as the last that has them.
pub fn dropped(closing: impl AsFd) {
    // It may have ended already, or have been told.
    let _ = shutdown(closing, Shutdown::Write);
}

/// What the helpers of this process have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Messages with descriptors.
    pub looks: u64,
    /// Those of which no descriptor was passed on.
    pub refused: u64,
    /// Helpers that were started.
    pub started: u64,
    /// Connections that ended with a helper, because they held what was never read.
    pub kept: u64,
}

static LOOKS: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static STARTED: AtomicU64 = AtomicU64::new(0);
static KEPT: AtomicU64 = AtomicU64::new(0);

/// What the helpers of this process have done.
pub fn count() -> Count {
    let [looks, refused, started, kept] =
        [&LOOKS, &REFUSED, &STARTED, &KEPT].map(|counter| counter.load(Ordering::Relaxed));
    Count { looks, refused, started, kept }
}

/// The way to the helper that is there, if one is.
type Line = Option<OwnedFd>;

static LINE: OnceLock<Mutex<Line>> = OnceLock::new();

/// From now on a helper receives descriptors, and this process none.
///
/// # Errors
/// It cannot be started.
pub fn start() -> io::Result<()> {
    let first = another()?;
    let _ = LINE.set(Mutex::new(Some(first)));
    Ok(())
}

/// The way to another one.
fn another() -> io::Result<OwnedFd> {
    let broker =
        broker().ok_or_else(|| io::Error::other("there is no broker to start a descriptor helper"))?;
    let socket = broker.fd(&Request::DescriptorHelper, &[])?;
    limit(&socket, ANSWER)?;
    STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(socket)
}

/// Has a helper do `work`: the one that is there, or another one if that has ended.
fn with<T>(line: &mut Line, work: impl Fn(&OwnedFd) -> Option<T>) -> io::Result<T> {
    for _ in 0..TRIES {
        let helper = line.take().map_or_else(another, Ok)?;
        if let Some(done) = work(line.insert(helper)) {
            return Ok(done);
        }
        *line = None;
    }
    Err(io::Error::other("each descriptor helper ends before it has answered"))
}

/// Looks at the descriptors of the next piece of `connection` that has any, from where looks begin
/// (SO_PEEK_OFF) on; they stay where they are. All of them pass, or none.
///
/// # Errors
/// None passes.
pub fn look(connection: BorrowedFd, wanted: WantedFds) -> Result<Vec<OwnedFd>, Refused> {
    LOOKS.fetch_add(1, Ordering::Relaxed);
    let result = match LINE.get() {
        Some(line) => {
            let mut line = crate::lock(line);
            match with(&mut line, |helper| exchange(helper, connection, wanted)) {
                Ok(Err(why @ Why::Stranger(_))) => Err(Refused { why, closing: line.take() }),
                Ok(answer) => answer.map_err(Refused::from),
                Err(e) => Err(Why::NoHelper(e.to_string()).into()),
            }
        }
        None => see(connection, wanted).verdict.map_err(Refused::from),
    };
    if result.is_err() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// One request and its answer. `None`: there is no helper, or none that can be understood.
fn exchange(
    helper: &OwnedFd,
    connection: BorrowedFd,
    wanted: WantedFds,
) -> Option<Result<Vec<OwnedFd>, Why>> {
    say(helper, LOOK, 0, &serde_json::to_vec(&wanted).ok()?, &[connection]).ok()?;
    let record = hear(helper, MAX_FDS).ok()?;
    match record.what {
        GIVEN if record.cut || record.fds.len() as u64 != record.number => Some(Err(Why::Cut)),
        GIVEN => Some(Ok(record.fds)),
        NONE => serde_json::from_slice(&record.text).ok().map(Err),
        _ => None,
    }
}

/// Shuts `connection`; the close that follows does not wait.
pub fn hang_up(connection: impl AsFd) {
    // The other end may have shut it; nothing is added then, either.
    let _ = shutdown(&connection, Shutdown::Both);
    if !matches!(ioctl_fionread(&connection), Ok(0)) {
        keep(connection);
    }
}

/// The close of `socket` that follows will not be the last.
pub fn keep(socket: impl AsFd) {
    let Some(line) = LINE.get() else { return };
    KEPT.fetch_add(1, Ordering::Relaxed);
    let mut line = crate::lock(line);
    // Without a helper the close may wait.
    let _ = with(&mut line, |helper| say(helper, KEEP, 0, &[], &[socket.as_fd()]).ok());
}
