//! The door: a process that receives the descriptors which VMMs send, so that the daemon never owns one whose file
//! somebody else serves.
//!
//! Theory of operation. Closing a descriptor may wait for the server of its file (FUSE asks it at every close, and no
//! signal ends that wait), also when a process ends. So a descriptor of such a file must not get into the daemon's table
//! at all, and nobody can tell what a descriptor is before it is in some table. A look at a socket (MSG_PEEK) without room
//! for descriptors only tells that there are some; reading without room drops them without closing them as a process
//! does, and asks no server. The daemon reads VMMs that way alone. Where descriptors are, it asks the door ([`look`]),
//! which it sends a duplicate of the connection. The door looks at the same place with room for them, vets each
//! ([`is_memory`], [`is_eventfd`]: neither asks the file's server), and passes them on if all are good. Nothing is taken from the
//! socket: a look of no bytes hands out duplicates of the descriptors of the next piece that has any, and changes nothing.
//! So either may be killed at any instant, and the look be repeated.
//!
//! A door that has met a stranger's file says so, waits until the daemon has dropped the message, and closes it, however long that
//! takes ([`Closing`]). Mostly it takes no time, and that door goes on; looks meanwhile start another one. A port whose file is still being closed is served no further descriptor before, and no other VMM:
//! there is one such process for each port at most.
//!
//! Doors also end connections in which unread descriptors may be ([`hang_up()`]).
//!
//! With `memory-file=any` files are passed on as they are: the operator trusts that VMM.
//!
//! The protocol is one of records (SOCK_SEQPACKET): a request with a connection, and an answer with descriptors or a text.
//! Without [`start`] (tests, fuzzers) the process looks by itself.

mod hang_up;
mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{socketpair, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{getrlimit, prlimit, Pid, Resource, Rlimit};

use crate::mem::{is_eventfd, is_memory, link_name};
use crate::open::broker::{broker, Request};
use crate::open::passing::{self, MAX_FDS};

pub use hang_up::{hang_up, keep};
pub use server::serve;

/// Longest text of an answer.
const MAX_TEXT: usize = 512;
/// The first word of each record: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_6472 << 32;
const LOOK: u64 = PROTOCOL | 1;
const GIVEN: u64 = PROTOCOL | 2;
const STRANGER: u64 = PROTOCOL | 3;
const TOO_MANY: u64 = PROTOCOL | 4;
const CUT: u64 = PROTOCOL | 5;
const FAILED: u64 = PROTOCOL | 6;
const CLOSE: u64 = PROTOCOL | 7;
const KEEP: u64 = PROTOCOL | 8;
const CLOSED: u64 = PROTOCOL | 9;
/// Words in front of a record's text.
const WORDS: usize = 2;
const RECORD: usize = 8 * WORDS + MAX_TEXT;
/// The second word of a request: any file may pass; how many may, above.
const ANY: u64 = 1;
/// How long a door may take over an answer. It waits for nobody before it gives one.
const ANSWER: Duration = Duration::from_secs(30);
/// Doors that are asked for one look. Only who kills them makes it more than one.
const TRIES: usize = 3;

/// Which descriptors may pass.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// How many.
    pub most: usize,
    /// Of any file: the operator trusts whoever sends them.
    pub any: bool,
}

/// Why no descriptor passes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// One is neither memory nor an eventfd; what the kernel calls it.
    #[error("{0} is neither memory nor an eventfd")]
    Stranger(String),
    /// More than may pass came.
    #[error("{came} descriptors came along; {most} at most can be taken")]
    TooMany {
        /// So many came.
        came: u64,
        /// So many may.
        most: usize,
    },
    /// Some were lost.
    #[error("descriptors are missing: there was no room for all of them (RLIMIT_NOFILE)")]
    Cut,
    /// There is nobody to look at them.
    #[error("nobody can look at the descriptors: {0}")]
    NoDoor(String),
}

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
static STARTED: AtomicU64 = AtomicU64::new(0);

/// What the doors of this process have done.
pub fn count() -> Count {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (looks, refused, started) = (of(&LOOKS), of(&REFUSED), of(&STARTED));
    Count { on: LINE.get().is_some(), looks, refused, started, kept: hang_up::kept() }
}

/// The door that is there, if one is. One look at a time.
static LINE: OnceLock<Mutex<Option<OwnedFd>>> = OnceLock::new();

/// From now on a door receives descriptors, and this process none.
///
/// # Errors
/// It cannot be started.
pub fn start() -> io::Result<()> {
    let first = another()?;
    let _ = LINE.set(Mutex::new(Some(first)));
    Ok(())
}

fn another() -> io::Result<OwnedFd> {
    let socket = match broker() {
        Some(broker) => broker.fd(&Request::Door, &[]).map_err(|refusal| refusal.error)?,
        None => return Err(io::Error::other("there is no broker to start one")),
    };
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(ANSWER))?;
    }
    STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(socket)
}

/// Starts a door; the way to it.
pub(crate) fn spawn() -> io::Result<(OwnedFd, Child)> {
    let program = crate::hold::program().ok_or_else(|| io::Error::other("no program for it was named"))?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(program);
    command.arg0("sidecore").arg("door").env_clear().current_dir("/");
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // What is typed at a terminal is for the daemon.
    command.process_group(0);
    let child = command.spawn()?;
    // The kernel holds descriptors that are under way, of all processes of its user, against this limit of a sender's.
    let raise = |to: Option<u64>| {
        let limit = Rlimit { current: to, maximum: to };
        prlimit(Some(Pid::from_child(&child)), Resource::Nofile, limit).is_ok()
    };
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if !most.is_some_and(|most| raise(Some(most))) {
        raise(getrlimit(Resource::Nofile).maximum);
    }
    Ok((ours, child))
}

/// Looks at the descriptors of the next piece of `connection` that has any, from where looks begin (SO_PEEK_OFF) on; they stay
/// where they are. All of them pass, or none.
///
/// # Errors
/// None passes.
pub fn look(connection: BorrowedFd, wanted: Wanted) -> Result<Vec<OwnedFd>, Refused> {
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
    wanted: Wanted,
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

/// One request and its answer. `None`: there is nobody who can be understood.
fn exchange(door: &OwnedFd, connection: BorrowedFd, wanted: Wanted) -> Option<Result<Vec<OwnedFd>, Why>> {
    let flags = ((wanted.most as u64) << 32) | if wanted.any { ANY } else { 0 };
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

/// What a look has found.
struct Seen {
    good: Vec<OwnedFd>,
    /// Closing them may wait for others.
    strangers: Vec<OwnedFd>,
    verdict: Result<(), Why>,
}

/// Looks, in this process.
fn see(connection: BorrowedFd, wanted: Wanted) -> io::Result<Seen> {
    let got = passing::receive(connection, &mut [], MAX_FDS, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    let came = got.fds.len();
    let passes = |fd: &OwnedFd| wanted.any || is_memory(fd) || is_eventfd(fd);
    let (good, strangers): (Vec<_>, Vec<_>) = got.fds.into_iter().partition(passes);
    let verdict = match strangers.first() {
        Some(first) => Err(Why::Stranger(link_name(first.as_fd()))),
        None if got.cut => Err(Why::Cut),
        None if came > wanted.most => Err(Why::TooMany { came: came as u64, most: wanted.most }),
        None => Ok(()),
    };
    Ok(Seen { good, strangers, verdict })
}

/// [`look`], in this process.
fn look_here(connection: BorrowedFd, wanted: Wanted) -> Result<Vec<OwnedFd>, Refused> {
    let seen = see(connection, wanted).map_err(|e| Why::NoDoor(e.to_string()))?;
    Ok(seen.verdict.map(|()| seen.good)?)
}

/// A record, as it came.
struct Record {
    what: u64,
    number: u64,
    text: String,
    fds: Vec<OwnedFd>,
    /// There was no room for all descriptors.
    cut: bool,
}

fn say(socket: &OwnedFd, what: u64, number: u64, text: &str, fds: &[BorrowedFd]) -> io::Result<()> {
    let mut bytes = [what.to_ne_bytes(), number.to_ne_bytes()].concat();
    bytes.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_TEXT)]);
    passing::send(socket, &bytes, fds, SendFlags::empty())?;
    Ok(())
}

/// The next record. `None`: the other end is gone, or makes no sense.
fn hear(socket: &OwnedFd) -> io::Result<Option<Record>> {
    let mut bytes = [0; RECORD];
    let got = passing::receive(socket, &mut bytes, MAX_FDS, RecvFlags::empty())?;
    let Some((words, text)) = bytes.get(..got.bytes).and_then(|all| all.split_at_checked(8 * WORDS)) else {
        return Ok(None);
    };
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&words[8 * at..8 * at + 8]);
        u64::from_ne_bytes(word)
    };
    let text = String::from_utf8_lossy(text).into_owned();
    Ok(Some(Record { what: word(0), number: word(1), text, fds: got.fds, cut: got.cut }))
}
