//! The door: a process that receives the descriptors which VMMs send, so that the daemon never owns a descriptor whose file
//! another process serves.
//!
//! Theory of operation. Closing a descriptor may wait for the server of its file (FUSE asks it at every close, and no
//! signal ends that wait), also when a process ends. So a descriptor of such a file must not get into the daemon's table
//! at all. But what a descriptor is can be found out only when it is in some table. A peek at a socket (MSG_PEEK) without room
//! for descriptors tells only that there are some. Reading without room drops them, without closing them as a process
//! does, and asks no server. The daemon reads VMMs only in that way.
//!
//! Where a message has descriptors, the daemon sends the door a duplicate of the connection ([`look`]). The door peeks at the same message
//! with room for them and checks each: [`is_memory`], [`is_eventfd`], and a connected stream socket for the message that gives one. None of
//! these checks asks the file's server. If all are good, it passes them on. The message stays in the socket: a peek of no bytes
//! duplicates the descriptors of the next piece that has any, and changes nothing. So either process may be killed at any
//! time, and the peek repeated.
//!
//! A door that has received another process's file says so, waits until the daemon has dropped the message, and closes the file,
//! however long that takes ([`Closing`]). Usually it takes no time, and the door goes on; requests meanwhile start another door. While
//! a port's file is still being closed, the port gets no further descriptors and no other VMM. So there is at most one such
//! process for each port.
//!
//! Doors also end connections in which unread descriptors may be ([`hang_up()`]).
//!
//! With `memory-file=any` the door passes files on unchecked: the operator trusts that VMM.
//!
//! The protocol has records (SOCK_SEQPACKET): a request with a connection, and an answer with descriptors or a text.
//! Without [`start`] (tests, fuzzers) the process does the door's work itself.

mod hang_up;
mod line;
mod record;
mod see;
mod server;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use hang_up::{hang_up, keep};
pub(crate) use line::spawn;
pub use line::start;
pub use see::{WantedFds, Why};
pub use server::serve;

use line::{another, LINE, STARTED};
use record::{hear, say, ANY, CLOSE, CLOSED, CUT, FAILED, GIVEN, LOOK, SOCKETS, STRANGER, TOO_MANY};
use see::see;

/// Doors that are asked for one look. More than one is needed only if doors are killed.
const TRIES: usize = 3;

/// A door that closes what it was given. Readable when it has, or has ended.
#[derive(Debug)]
pub struct Closing(OwnedFd);

impl Closing {
    /// The message that they came with has been dropped here: the door may close them, as the last that has them.
    pub fn begin(&self) {
        // It may have ended already, or have been told.
        let _ = say(&self.0, CLOSE, 0, "", &[]);
    }

    /// It is readable: a door that is still there goes on, unless there is another one by now.
    pub fn done(self) {
        let goes_on = matches!(hear(&self.0), Ok(Some(record)) if record.what == CLOSED);
        if let Some(line) = LINE.get().filter(|_| goes_on) {
            line.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(self.0);
        }
    }
}

impl AsFd for Closing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// That no descriptor passes.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub why: Why,
    /// They are still being closed.
    pub closing: Option<Closing>,
}

impl From<Why> for Refused {
    fn from(why: Why) -> Refused {
        Refused { why, closing: None }
    }
}

/// What the doors of this process have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Whether a door receives descriptors, and not the process itself.
    pub on: bool,
    /// Messages with descriptors.
    pub looks: u64,
    /// Those of which no descriptor was passed on.
    pub refused: u64,
    /// Doors that were started.
    pub started: u64,
    /// Connections that ended with a door, because they held what was never read.
    pub kept: u64,
}

static LOOKS: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// What the doors of this process have done.
pub fn count() -> Count {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (looks, refused, started) = (of(&LOOKS), of(&REFUSED), of(&STARTED));
    Count { on: LINE.get().is_some(), looks, refused, started, kept: hang_up::kept() }
}

/// Looks at the descriptors of the next piece of `connection` that has any, from where looks begin (SO_PEEK_OFF) on; they stay
/// where they are. All of them pass, or none.
///
/// # Errors
/// None passes.
pub fn look(connection: BorrowedFd, wanted: WantedFds) -> Result<Vec<OwnedFd>, Refused> {
    LOOKS.fetch_add(1, Ordering::Relaxed);
    let result = match LINE.get() {
        Some(line) => ask(line, connection, wanted),
        None => look_here(connection, wanted),
    };
    if result.is_err() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    result
}

fn ask(
    line: &Mutex<Option<OwnedFd>>,
    connection: BorrowedFd,
    wanted: WantedFds,
) -> Result<Vec<OwnedFd>, Refused> {
    let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..TRIES {
        let door = match line.take() {
            Some(door) => door,
            None => another().map_err(|e| Why::NoDoor(format!("the door cannot be started: {e}")))?,
        };
        match exchange(&door, connection, wanted) {
            // It was killed, also if it had just answered: nothing has changed.
            None => {}
            Some(Err(why @ Why::Stranger(_))) => return Err(Refused { why, closing: Some(Closing(door)) }),
            Some(answer) => {
                *line = Some(door);
                return Ok(answer?);
            }
        }
    }
    Err(Why::NoDoor("each door ends before it has answered".to_owned()).into())
}

/// One request and its answer. `None`: there is no door, or none that can be understood.
fn exchange(door: &OwnedFd, connection: BorrowedFd, wanted: WantedFds) -> Option<Result<Vec<OwnedFd>, Why>> {
    let flag = |on: bool, flag: u64| if on { flag } else { 0 };
    let flags = ((wanted.most as u64) << 32) | flag(wanted.any, ANY) | flag(wanted.sockets, SOCKETS);
    say(door, LOOK, flags, "", &[connection]).ok()?;
    let record = hear(door).ok()??;
    Some(match record.what {
        GIVEN if record.cut || record.fds.len() as u64 != record.number => Err(Why::Cut),
        GIVEN => Ok(record.fds),
        STRANGER => Err(Why::Stranger(record.text)),
        TOO_MANY => Err(Why::TooMany { came: record.number, most: wanted.most }),
        CUT => Err(Why::Cut),
        FAILED => Err(Why::NoDoor(record.text)),
        _ => return None,
    })
}

/// [`look`], in this process.
fn look_here(connection: BorrowedFd, wanted: WantedFds) -> Result<Vec<OwnedFd>, Refused> {
    let seen = see(connection, wanted).map_err(|e| Why::NoDoor(e.to_string()))?;
    Ok(seen.verdict.map(|()| seen.good)?)
}
