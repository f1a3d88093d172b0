//! The way to a broker: what can be asked of it, as records, and the worker's end of the connection.
//!
//! A broker is a process that keeps the privileges which the daemon gives up. It answers a fixed table of requests
//! ([`Request`]), each a record of one size with up to two descriptors, each answered by one record with up to one
//! descriptor before the next is read. Whoever sends records may be hostile, so [`Request::decode`] takes exactly what
//! [`Request::encode`] makes: no word without a meaning, no text without a rule.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{RecvFlags, SendFlags};

use super::passing;

/// Longest text of a record: a path.
pub const MAX_TEXT: usize = 4096;
/// Words of a record: what, number, bytes of text, and five with a meaning of their own.
const WORDS: usize = 8;
/// Bytes of a record.
pub const RECORD: usize = 8 * WORDS + MAX_TEXT;
/// Most descriptors that go along.
pub const MAX_FDS: usize = 2;
/// The first word: the protocol's number above, what is asked or answered below.
const PROTOCOL: u64 = 0x7363_6272 << 32;
const DONE: u64 = PROTOCOL | 0x100;
const FAILED: u64 = PROTOCOL | 0x101;
/// How long a broker may take over an answer: it may have to wait for a driver, or for a holder.
const ANSWER: Duration = Duration::from_secs(30);

/// What can be asked of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the arguments of what each stands for")]
pub enum Request {
    /// A listening socket, made where nothing is; it is remembered for `Remove`.
    Listen {
        path: PathBuf,
        seqpacket: bool,
        mode: Option<u32>,
        owner: (Option<u32>, Option<u32>),
        backlog: u32,
    },
    /// The file of a socket that was made goes.
    Remove { number: u64 },
    /// A connection to a VMM that listens.
    Call { path: PathBuf },
    /// A new holder; the connection to it.
    Hold { path: PathBuf },
    /// A connection to the holder that an earlier daemon left.
    Find { path: PathBuf },
    /// A queue of a TAP interface.
    Tap { name: String, create: bool, multi: bool },
    /// A packet socket for an interface, and bytes for its buffers.
    Packet { name: String, buffer: u32 },
    /// An AF_XDP socket for an interface, and bytes for its buffer.
    Xdp { name: String, buffer: u32 },
    /// A map of AF_XDP sockets.
    Sockets { queues: u32 },
    /// Puts a socket into a map; both go along.
    Enter { queue: u32 },
    /// Loads the one program for the map that goes along, and attaches it to an interface.
    Attach { name: String, native: bool },
    /// The MTU of an interface.
    Mtu { name: String, mtu: u32 },
    /// An interface is brought up.
    Up { name: String },
    /// The journal of a port.
    Journal { name: String },
    /// A journal where the operator wants it.
    JournalAt { path: PathBuf },
    /// The journal of a port goes.
    Forget { name: String },
    /// The name of the journal that comes behind another one's.
    Next { after: String },
    /// The configuration file, to read.
    Config,
    /// A lookup program, to read.
    Program { path: PathBuf },
    /// The file of users, or of groups, to read.
    Accounts { groups: bool },
    /// A new door; the connection to it.
    Door,
}

type Fields = (u64, [u64; 5], Vec<u8>);

fn optional(value: Option<u32>) -> u64 {
    value.map_or(0, |value| 1 << 32 | u64::from(value))
}

/// Why a record is no request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no request that is known")]
pub struct NoRequest;

/// Arguments of a record, taken in order; what is left over makes it none.
struct Arguments<'r>(std::slice::Iter<'r, u64>);

impl Arguments<'_> {
    fn word(&mut self) -> Result<u64, NoRequest> {
        self.0.next().copied().ok_or(NoRequest)
    }

    fn small(&mut self) -> Result<u32, NoRequest> {
        u32::try_from(self.word()?).map_err(|_| NoRequest)
    }

    fn optional(&mut self) -> Result<Option<u32>, NoRequest> {
        match self.word()? {
            0 => Ok(None),
            word if word >> 32 == 1 => Ok(u32::try_from(word & 0xffff_ffff).ok()),
            _ => Err(NoRequest),
        }
    }

    fn flag(&mut self) -> Result<bool, NoRequest> {
        match self.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NoRequest),
        }
    }
}

/// An absolute path.
fn path(text: &[u8]) -> Result<PathBuf, NoRequest> {
    let path = Path::new(std::ffi::OsStr::from_bytes(text));
    (path.is_absolute() && !text.contains(&0)).then(|| path.to_owned()).ok_or(NoRequest)
}

/// A name without a folder.
fn name(text: &[u8]) -> Result<String, NoRequest> {
    let text = std::str::from_utf8(text).map_err(|_| NoRequest)?;
    let good = text.len() < 256 && !text.starts_with('.') && text.chars().all(|c| c.is_ascii_graphic());
    (good && !text.contains('/')).then(|| text.to_owned()).ok_or(NoRequest)
}

impl Request {
    fn fields(&self) -> Fields {
        let path = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let flag = u64::from;
        match self {
            Request::Listen { path: at, seqpacket, mode, owner, backlog } => {
                let words = [
                    flag(*seqpacket),
                    optional(*mode),
                    optional(owner.0),
                    optional(owner.1),
                    u64::from(*backlog),
                ];
                (1, words, path(at))
            }
            Request::Remove { number } => (2, [*number, 0, 0, 0, 0], Vec::new()),
            Request::Call { path: at } => (3, [0; 5], path(at)),
            Request::Hold { path: at } => (4, [0; 5], path(at)),
            Request::Find { path: at } => (5, [0; 5], path(at)),
            Request::Tap { name, create, multi } => {
                (6, [flag(*create), flag(*multi), 0, 0, 0], name.clone().into_bytes())
            }
            Request::Packet { name, buffer } => {
                (7, [u64::from(*buffer), 0, 0, 0, 0], name.clone().into_bytes())
            }
            Request::Xdp { name, buffer } => (8, [u64::from(*buffer), 0, 0, 0, 0], name.clone().into_bytes()),
            Request::Sockets { queues } => (9, [u64::from(*queues), 0, 0, 0, 0], Vec::new()),
            Request::Enter { queue } => (10, [u64::from(*queue), 0, 0, 0, 0], Vec::new()),
            Request::Attach { name, native } => (11, [flag(*native), 0, 0, 0, 0], name.clone().into_bytes()),
            Request::Mtu { name, mtu } => (12, [u64::from(*mtu), 0, 0, 0, 0], name.clone().into_bytes()),
            Request::Up { name } => (13, [0; 5], name.clone().into_bytes()),
            Request::Journal { name } => (14, [0; 5], name.clone().into_bytes()),
            Request::JournalAt { path: at } => (15, [0; 5], path(at)),
            Request::Forget { name } => (16, [0; 5], name.clone().into_bytes()),
            Request::Next { after } => (17, [0; 5], after.clone().into_bytes()),
            Request::Config => (18, [0; 5], Vec::new()),
            Request::Program { path: at } => (19, [0; 5], path(at)),
            Request::Accounts { groups } => (20, [flag(*groups), 0, 0, 0, 0], Vec::new()),
            Request::Door => (21, [0; 5], Vec::new()),
        }
    }

    /// How many descriptors go along.
    pub fn fds(&self) -> usize {
        match self {
            Request::Enter { .. } => 2,
            Request::Attach { .. } => 1,
            _ => 0,
        }
    }

    /// Whether its text keeps to its rule.
    fn is_sound(&self) -> bool {
        match self {
            Request::Listen { path: at, .. }
            | Request::Call { path: at }
            | Request::Hold { path: at }
            | Request::Find { path: at }
            | Request::JournalAt { path: at }
            | Request::Program { path: at } => path(at.as_os_str().as_bytes()).is_ok(),
            Request::Tap { name: text, .. }
            | Request::Packet { name: text, .. }
            | Request::Xdp { name: text, .. }
            | Request::Attach { name: text, .. }
            | Request::Mtu { name: text, .. }
            | Request::Up { name: text }
            | Request::Journal { name: text }
            | Request::Forget { name: text }
            | Request::Next { after: text } => name(text.as_bytes()).is_ok(),
            _ => true,
        }
    }

    /// The record, with the number by which the answer is known.
    ///
    /// # Errors
    /// A path is longer than [`MAX_TEXT`], or a text is no path or name.
    pub fn encode(&self, number: u64) -> io::Result<[u8; RECORD]> {
        if !self.is_sound() {
            let why = "the broker knows no such path or name: none has a zero byte, a name has no '/' or space and begins with no '.'";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let (op, words, text) = self.fields();
        record(PROTOCOL | op, number, words, &text)
    }

    /// What the record `bytes` asks for, and its number.
    ///
    /// # Errors
    /// Nothing that is known.
    pub fn decode(bytes: &[u8]) -> Result<(Request, u64), NoRequest> {
        let (what, number, words, text) = parts(bytes).ok_or(NoRequest)?;
        let mut arguments = Arguments(words.iter());
        let a = &mut arguments;
        if what & !0xffff_ffff != PROTOCOL {
            return Err(NoRequest);
        }
        let request = match what & 0xffff_ffff {
            1 => Request::Listen {
                seqpacket: a.flag()?,
                mode: a.optional()?,
                owner: (a.optional()?, a.optional()?),
                backlog: a.small()?,
                path: path(text)?,
            },
            2 => Request::Remove { number: a.word()? },
            3 => Request::Call { path: path(text)? },
            4 => Request::Hold { path: path(text)? },
            5 => Request::Find { path: path(text)? },
            6 => Request::Tap { create: a.flag()?, multi: a.flag()?, name: name(text)? },
            7 => Request::Packet { buffer: a.small()?, name: name(text)? },
            8 => Request::Xdp { buffer: a.small()?, name: name(text)? },
            9 => Request::Sockets { queues: a.small()? },
            10 => Request::Enter { queue: a.small()? },
            11 => Request::Attach { native: a.flag()?, name: name(text)? },
            12 => Request::Mtu { mtu: a.small()?, name: name(text)? },
            13 => Request::Up { name: name(text)? },
            14 => Request::Journal { name: name(text)? },
            15 => Request::JournalAt { path: path(text)? },
            16 => Request::Forget { name: name(text)? },
            17 => Request::Next { after: name(text)? },
            18 => Request::Config,
            19 => Request::Program { path: path(text)? },
            20 => Request::Accounts { groups: a.flag()? },
            21 => Request::Door,
            _ => return Err(NoRequest),
        };
        // No second record means the same: nothing hides in words and bytes that nobody looks at.
        match request.encode(number) {
            Ok(again) if again == bytes => Ok((request, number)),
            _ => Err(NoRequest),
        }
    }
}

fn record(what: u64, number: u64, words: [u64; 5], text: &[u8]) -> io::Result<[u8; RECORD]> {
    let mut bytes = [0; RECORD];
    let room = bytes.get_mut(8 * WORDS..8 * WORDS + text.len());
    room.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"))?
        .copy_from_slice(text);
    let head = [what, number, text.len() as u64].into_iter().chain(words);
    for (place, word) in bytes.chunks_exact_mut(8).zip(head) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(bytes)
}

/// First word, number, arguments and text of a record.
fn parts(bytes: &[u8]) -> Option<(u64, u64, [u64; 5], &[u8])> {
    if bytes.len() != RECORD {
        return None;
    }
    let mut words = [0; WORDS];
    for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut raw = [0; 8];
        raw.copy_from_slice(place);
        *word = u64::from_ne_bytes(raw);
    }
    let [what, number, len, arguments @ ..] = words;
    let text = bytes[8 * WORDS..].get(..usize::try_from(len).ok()?)?;
    Some((what, number, arguments, text))
}

/// The number of a record that is no request, as far as it can be told.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    parts(bytes).map_or(0, |(_, number, ..)| number)
}

/// What an operator allows a broker whose daemon has given its privileges up: to be told to the broker itself, by whoever
/// may open its socket, beside those of ring ports and with the control socket's permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A socket of ours at this path, and its holder's beside it.
    Socket(PathBuf),
    /// Sockets of ours in this folder, and in none below it.
    Folder(PathBuf),
    /// Calls to whoever listens at this path.
    Call(PathBuf),
    /// A journal at this path.
    Journal(PathBuf),
    /// A lookup program at this path.
    Program(PathBuf),
    /// The interface of this name.
    Interface(String),
}

impl Named {
    /// Where the broker of the daemon with this control socket hears of it.
    pub fn place(control_socket: &Path) -> PathBuf {
        let folder = control_socket.parent().unwrap_or(Path::new("."));
        folder.join("ring").join(sidecore_abi::vale::OPERATORS)
    }

    /// What it is, as text.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Named::Socket(path) => (b's', path.as_os_str()),
            Named::Folder(path) => (b'f', path.as_os_str()),
            Named::Call(path) => (b'c', path.as_os_str()),
            Named::Journal(path) => (b'j', path.as_os_str()),
            Named::Program(path) => (b'p', path.as_os_str()),
            Named::Interface(name) => (b'i', name.as_ref()),
        };
        [&[kind], text.as_bytes()].concat()
    }

    /// What `bytes` say.
    ///
    /// # Errors
    /// Nothing that is known.
    pub fn decode(bytes: &[u8]) -> Result<Named, NoRequest> {
        let (kind, text) = bytes.split_first().filter(|(_, text)| text.len() <= MAX_TEXT).ok_or(NoRequest)?;
        match kind {
            b's' => Ok(Named::Socket(path(text)?)),
            b'f' => Ok(Named::Folder(path(text)?)),
            b'c' => Ok(Named::Call(path(text)?)),
            b'j' => Ok(Named::Journal(path(text)?)),
            b'p' => Ok(Named::Program(path(text)?)),
            b'i' => Ok(Named::Interface(name(text)?)),
            _ => Err(NoRequest),
        }
    }

    /// Tells the broker of the daemon with this control socket.
    ///
    /// # Errors
    /// Nobody is there, or this user is no operator.
    pub fn tell(&self, control_socket: &Path) -> io::Result<()> {
        let socket = std::os::unix::net::UnixDatagram::unbound()?;
        // A broker that is busy is waited for, not for ever.
        socket.set_write_timeout(Some(ANSWER))?;
        socket.send_to(&self.encode(), Named::place(control_socket)).map(drop)
    }
}

/// An answer of a broker.
#[derive(Debug, Default)]
pub struct Answer {
    /// A number, as the request has it.
    pub number: u64,
    /// A text, as the request has it.
    pub text: String,
    /// What was asked for.
    pub fd: Option<OwnedFd>,
}

impl Answer {
    /// With a descriptor.
    pub fn fd(fd: impl Into<OwnedFd>) -> Answer {
        Answer { fd: Some(fd.into()), ..Answer::default() }
    }
}

/// Why a broker did not do what it was asked for: what the system said, and where that matters, at which step.
#[derive(Debug)]
pub struct Refusal {
    /// What the system, or the code that was called, said.
    pub error: io::Error,
    /// At which step, as the request has it.
    pub step: u64,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal { error, step: 0 }
    }
}

/// Kinds of errors without a number of the system's.
const KINDS: [io::ErrorKind; 6] = [
    io::ErrorKind::Other,
    io::ErrorKind::NotFound,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::InvalidData,
    io::ErrorKind::UnexpectedEof,
];

/// Sends an answer to the request `number`.
///
/// # Errors
/// The other end is gone.
pub fn answer(socket: impl AsFd, number: u64, answer: Result<Answer, Refusal>) -> io::Result<()> {
    let (bytes, fd) = match answer {
        Ok(Answer { number: value, text, fd }) => {
            (record(DONE, number, [value, 0, 0, 0, 0], text.as_bytes())?, fd)
        }
        Err(Refusal { error, step }) => {
            let errno = error.raw_os_error().map_or(0, |errno| u64::from(errno.unsigned_abs()));
            let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0) as u64;
            let text = if errno == 0 { error.to_string() } else { String::new() };
            let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
            (record(FAILED, number, [errno, kind, step, 0, 0], text)?, None)
        }
    };
    let fds: Vec<BorrowedFd> = fd.iter().map(AsFd::as_fd).collect();
    passing::send(socket, &bytes, &fds, SendFlags::empty())?;
    Ok(())
}

/// The next record and its descriptors. Zero bytes: the other end is gone.
///
/// # Errors
/// What the system says.
pub fn receive(socket: impl AsFd, bytes: &mut [u8; RECORD]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let got = passing::receive(socket, bytes, MAX_FDS, RecvFlags::empty())?;
    // What was cut off, of either, is no record.
    Ok((if got.cut { 1 } else { got.bytes }, got.fds))
}

/// Starts another broker, for one that is gone.
pub type Start = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

/// The worker's end.
pub struct Broker {
    line: Mutex<Line>,
    asked: AtomicU64,
    refused: AtomicU64,
}

struct Line {
    /// `None`: the broker is gone.
    socket: Option<OwnedFd>,
    last: u64,
    /// `None`: there can be no other.
    start: Option<Start>,
}

static BROKER: OnceLock<Broker> = OnceLock::new();
/// The broker's user.
static MAKER: OnceLock<u32> = OnceLock::new();

/// The user to whom belongs what is made by name: whoever started the daemon, which may be somebody else by now.
pub fn maker() -> u32 {
    MAKER.get().copied().unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// Says once that from now on a broker does what takes privileges: `start` makes one. Nothing is opened directly any more.
///
/// # Errors
/// It cannot be started.
pub fn set_broker(start: Start) -> io::Result<()> {
    let line = Line { socket: Some(prepare(start()?)?), start: Some(start), last: 0 };
    let _ = MAKER.set(rustix::process::geteuid().as_raw());
    let _ = BROKER.set(Broker::of(line));
    Ok(())
}

/// The broker, if there is one.
pub fn broker() -> Option<&'static Broker> {
    BROKER.get()
}

fn prepare(socket: OwnedFd) -> io::Result<OwnedFd> {
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(ANSWER))?;
    }
    Ok(socket)
}

impl Broker {
    /// The broker at the other end of `socket`; there will be no other.
    pub fn at(socket: OwnedFd) -> Broker {
        Broker::of(Line { socket: Some(socket), last: 0, start: None })
    }

    fn of(line: Line) -> Broker {
        Broker { line: Mutex::new(line), asked: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// How many requests there were, and how many of them were not carried out.
    pub fn counts(&self) -> (u64, u64) {
        (self.asked.load(Relaxed), self.refused.load(Relaxed))
    }

    /// Whether it is there.
    pub fn is_there(&self) -> bool {
        use rustix::event::{poll, PollFd, PollFlags, Timespec};
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        line.socket
            .as_ref()
            .is_some_and(|socket| poll(&mut [PollFd::new(socket, PollFlags::empty())], Some(&now)) == Ok(0))
    }

    /// No other one can be started from now on: this process may not any more.
    pub fn is_the_last(&self) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).start = None;
    }

    /// Asks it.
    ///
    /// # Errors
    /// What it says, or that it is gone.
    pub fn ask(&self, request: &Request, fds: &[BorrowedFd]) -> Result<Answer, Refusal> {
        self.asked.fetch_add(1, Relaxed);
        let done = self.exchange(request, fds);
        self.refused.fetch_add(u64::from(done.is_err()), Relaxed);
        done
    }

    fn exchange(&self, request: &Request, fds: &[BorrowedFd]) -> Result<Answer, Refusal> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = line.exchange(request, fds) {
            return result;
        }
        line.socket = None;
        let gone = |why: String| {
            let what =
                format!("the daemon's broker is gone{why}; ports go on, restart the daemon to change them");
            Refusal::from(io::Error::other(what))
        };
        let start = line.start.as_ref().ok_or_else(|| gone(String::new()))?;
        let again =
            start().and_then(prepare).map_err(|e| gone(format!(" and cannot be started again: {e}")))?;
        tracing::warn!("the broker had ended; another one was started");
        line.socket = Some(again);
        line.exchange(request, fds).unwrap_or_else(|| {
            line.socket = None;
            Err(gone(" again".to_owned()))
        })
    }

    /// The descriptor that is asked for.
    ///
    /// # Errors
    /// As of [`ask`](Broker::ask).
    pub fn fd(&self, request: &Request, fds: &[BorrowedFd]) -> Result<OwnedFd, Refusal> {
        let answer = self.ask(request, fds)?;
        answer.fd.ok_or_else(|| io::Error::other("the broker gave no descriptor").into())
    }
}

impl Line {
    /// One request and its answer. `None`: there is nobody, or nobody who can be understood.
    fn exchange(&mut self, request: &Request, fds: &[BorrowedFd]) -> Option<Result<Answer, Refusal>> {
        self.last += 1;
        let bytes = match request.encode(self.last) {
            Ok(bytes) => bytes,
            Err(e) => return Some(Err(e.into())),
        };
        let socket = self.socket.as_ref()?;
        // It is there, and may have time later.
        let late = |e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock => {
                Some(Err(io::Error::other("the broker does not answer in time").into()))
            }
            _ => None,
        };
        if let Err(e) = passing::send(socket, &bytes, fds, SendFlags::empty()) {
            return late(e.into());
        }
        let mut bytes = [0; RECORD];
        let (len, mut fds) = loop {
            match receive(socket, &mut bytes) {
                // Too late for its request.
                Ok((len, _)) if (1..self.last).contains(&number(&bytes[..len])) => {}
                Ok(got) => break got,
                Err(e) => return late(e),
            }
        };
        let (what, number, words, text) = parts(&bytes[..len])?;
        if number != self.last {
            return None;
        }
        let text = String::from_utf8_lossy(text).into_owned();
        let [value, kind, step, ..] = words;
        match what {
            DONE => Some(Ok(Answer { number: value, text, fd: fds.pop() })),
            FAILED => {
                let error = match i32::try_from(value) {
                    Ok(errno) if errno > 0 => io::Error::from_raw_os_error(errno),
                    _ => {
                        let kind = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind));
                        io::Error::new(*kind.unwrap_or(&io::ErrorKind::Other), text)
                    }
                };
                Some(Err(Refusal { error, step }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Request> {
        let path = || PathBuf::from("/run/x/a.sock");
        let name = || "sc0".to_owned();
        vec![
            Request::Listen {
                path: path(),
                seqpacket: true,
                mode: Some(0),
                owner: (None, Some(u32::MAX)),
                backlog: 4,
            },
            Request::Remove { number: u64::MAX },
            Request::Call { path: path() },
            Request::Hold { path: path() },
            Request::Find { path: path() },
            Request::Tap { name: name(), create: true, multi: false },
            Request::Packet { name: name(), buffer: 8 << 20 },
            Request::Xdp { name: name(), buffer: 0 },
            Request::Sockets { queues: 16 },
            Request::Enter { queue: 3 },
            Request::Attach { name: name(), native: true },
            Request::Mtu { name: name(), mtu: 9000 },
            Request::Up { name: name() },
            Request::Journal { name: name() },
            Request::JournalAt { path: path() },
            Request::Forget { name: name() },
            Request::Next { after: String::new() },
            Request::Config,
            Request::Program { path: path() },
            Request::Accounts { groups: true },
            Request::Door,
        ]
    }

    #[test]
    fn records_are_what_they_were_made_of() {
        for (number, request) in (7..).zip(all()) {
            let bytes = request.encode(number).unwrap();
            assert_eq!(Request::decode(&bytes), Ok((request, number)));
        }
    }

    /// Every byte counts: a record that differs in one is another request, or none.
    #[test]
    fn nothing_hides_in_a_record() {
        for request in all() {
            let bytes = request.encode(1).unwrap();
            assert_eq!(Request::decode(&bytes[1..]), Err(NoRequest));
            for at in (0..RECORD).filter(|at| *at < 200 || at % 97 == 0) {
                for bit in 0..8 {
                    let mut other = bytes;
                    other[at] ^= 1 << bit;
                    if let Ok((decoded, number)) = Request::decode(&other) {
                        assert_eq!(decoded.encode(number).unwrap(), other);
                        assert!(decoded != request || number != 1, "{request:?} at {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn paths_and_names_keep_to_their_rules() {
        for bad in ["", "x", "../x", "/a\0b"] {
            assert!(path(bad.as_bytes()).is_err(), "{bad:?}");
            assert!(Request::Call { path: bad.into() }.encode(1).is_err(), "{bad:?}");
        }
        for bad in ["a/b", ".a", "..", "a b", "a\0", "ä", &"x".repeat(256)] {
            assert!(name(bad.as_bytes()).is_err(), "{bad:?}");
            assert!(Request::Up { name: bad.into() }.encode(1).is_err(), "{bad:?}");
        }
        let long = Request::Call { path: format!("/{}", "x".repeat(MAX_TEXT)).into() };
        assert_eq!(long.encode(1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
