//! The daemon's side: a holder of its own for a new connection, or the one that an earlier daemon left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketType;

use crate::sandbox::descriptors::{dropped, look, Refused, WantedFds};
use crate::sandbox::open::broker::{broker, Request};
use crate::sandbox::open::early::{Early, Fetched};
use crate::sandbox::open::passing;
use crate::sandbox::open::socket::{self, SocketError, SocketSpec};
use crate::util::wait;

use super::program::{make_secret, read_secret, start};
use super::server::{hear, is_ours, say, Found, Store, DONE, DROP, HERE, LIST, MAX_KEYS, PUT, SECRET};

/// How long a holder may take over an answer. It has nothing else to do, but the machine may.
const ANSWER: Duration = Duration::from_secs(10);
/// The least time that a holder gets to say what it keeps, whatever time others have taken.
const LEAST_ANSWER: Duration = Duration::from_secs(1);
/// What holders have taken beyond that, each to say what it keeps: they share one [`ANSWER`].
static TAKEN: Mutex<Duration> = Mutex::new(Duration::ZERO);
/// The pause before a holder is called again; a full queue gives no notice when it has room.
const AGAIN: Duration = Duration::from_millis(10);

/// An error, with what was tried.
fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> io::Error {
    move |e| {
        let source: io::Error = e.into();
        io::Error::new(source.kind(), format!("cannot {what}: {source}"))
    }
}

/// Whether there is no holder.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// A holder that listens, if there is one.
type CalledHolder = io::Result<Option<OwnedFd>>;

/// Holders that were called, for as long as this lives.
pub(crate) type SoughtHolders = Fetched<PathBuf, CalledHolder>;

static EARLY: Early<PathBuf, CalledHolder> = Early::new();

/// A holder, as the daemon that it serves sees it, or its own process that stands in for one. When this is
/// dropped the holder keeps what it has.
#[derive(Debug)]
pub enum Holder {
    /// Another process.
    There(OwnedFd),
    /// This process.
    Here(Store),
}

impl Holder {
    /// Starts a holder that can be found at `path`. `of`: the port whose VMM it keeps, as JSON, so that its
    /// process can make the port's card.
    ///
    /// # Errors
    /// Why there is none.
    pub fn start(path: &Path, of: &str) -> io::Result<Holder> {
        if let Some(broker) = broker() {
            let path = std::path::absolute(path).map_err(system("find the holder's folder"))?;
            let hold = Request::Hold { path, of: of.to_owned() };
            return Ok(Holder::There(broker.fd(&hold, &[])?));
        }
        let mut child = spawn(path, of)?;
        // A thread has to reap it: its end may come with this process's, or long after.
        let reap = std::thread::Builder::new().name("holder".to_owned()).spawn(move || child.wait());
        reap.map_err(system("start a thread"))?;
        Holder::connect(path)
    }

    /// Calls `all` holders at the same time, each of which takes [`ANSWER`] twice at most: ports that are
    /// started find them then. A holder goes on answering its VMM until [`find`](Holder::find) asks what it
    /// keeps.
    pub(crate) fn seek(all: Vec<PathBuf>) -> SoughtHolders {
        EARLY.fetch("seek", all.len(), all, |path| called(path))
    }

    /// The holder that another daemon left at `path` and what it has, if there is one. It has heard its VMM
    /// meanwhile, so what it passes is met as what a VMM passes (`sandbox::descriptors`); `any`: files of any
    /// kind.
    ///
    /// # Errors
    /// There is one, but it cannot be used.
    pub fn find(path: &Path, any: bool) -> io::Result<Option<(Holder, Found)>> {
        let socket = EARLY.take(&path.to_owned()).unwrap_or_else(|| called(path))?;
        let Some(socket) = socket else { return Ok(None) };
        let (begun, most) = (Instant::now(), ANSWER.saturating_sub(*crate::lock(&TAKEN)).max(LEAST_ANSWER));
        let found = Holder::list(socket, any, begun + most);
        *crate::lock(&TAKEN) += begun.elapsed().saturating_sub(LEAST_ANSWER);
        found.map(Some)
    }

    /// The holder at the other end of `socket`, and what it says by `end` that it keeps.
    fn list(socket: OwnedFd, any: bool, end: Instant) -> io::Result<(Holder, Found)> {
        let mut found = Found::new();
        say(&socket, LIST, 0, None).map_err(system("ask the holder"))?;
        // What it keeps, and the word that it was all.
        for _ in 0..=MAX_KEYS {
            let left = end.saturating_duration_since(Instant::now());
            let mut heard = [PollFd::new(&socket, PollFlags::IN)];
            if !wait(&mut heard, Some(left)).map_err(system("hear the holder"))? {
                return Err(system("take what the holder has")(Errno::TIMEDOUT));
            }
            let looked = look(socket.as_fd(), WantedFds { most: 1, any, sockets: true });
            // Taken without its descriptors.
            let record = passing::hear(&socket, 0).map_err(system("hear the holder"))?;
            let mut fds = looked.map_err(|Refused { why, closing }| {
                closing.iter().for_each(dropped);
                io::Error::other(format!("the holder passes what no VMM may give: {why}"))
            })?;
            match (record.what, fds.pop()) {
                (HERE, Some(fd)) => drop(found.insert(record.number, fd)),
                (DONE, _) => return Ok((Holder::There(socket), found)),
                // Out of descriptors, or another protocol.
                _ => return Err(system("take what the holder has")(Errno::PROTO)),
            }
        }
        Err(system("take more than a holder may have")(Errno::PROTO))
    }

    /// Another hold of this conversation with the holder.
    pub(crate) fn try_clone(&self) -> io::Result<Holder> {
        match self {
            Holder::There(socket) => Ok(Holder::There(socket.try_clone()?)),
            Holder::Here(store) => Ok(Holder::Here(store.clone())),
        }
    }

    /// Has the holder drop `all` keys, and so end. A thread tells it: a holder in its VMM's hands may take
    /// [`ANSWER`] over each, for which no start waits.
    pub(crate) fn dismiss(self, all: Vec<u64>) {
        let dismiss = move || all.iter().try_for_each(|key| self.forget(*key));
        // Without a thread, or an answer, the holder stays until its VMM ends.
        let _ = std::thread::Builder::new().name("dismiss".to_owned()).spawn(dismiss);
    }

    /// The holder that is there already, and nothing of what it has.
    pub(crate) fn connect(path: &Path) -> io::Result<Holder> {
        call_one(path).map(Holder::There)
    }

    /// This process's own, which has this `store`, and what it has.
    ///
    /// # Errors
    /// It is out of descriptors.
    pub(crate) fn here(store: &Store) -> io::Result<(Holder, Found)> {
        Ok((Holder::Here(store.clone()), store.found()?))
    }

    /// Has `fd` kept under `key`, instead of what was there.
    ///
    /// # Errors
    /// The holder is gone or full.
    pub fn put(&self, key: u64, fd: BorrowedFd) -> io::Result<()> {
        match self {
            Holder::There(socket) => ask(socket, PUT, key, Some(fd)),
            Holder::Here(store) if store.put(key, fd.try_clone_to_owned()?) => Ok(()),
            Holder::Here(_) => Err(system("put more into the holder")(Errno::NOSPC)),
        }
    }

    /// Has what is under `key`, if anything, kept no longer.
    ///
    /// # Errors
    /// The holder is gone.
    pub fn forget(&self, key: u64) -> io::Result<()> {
        match self {
            Holder::There(socket) => ask(socket, DROP, key, None),
            Holder::Here(store) => {
                store.forget(key);
                Ok(())
            }
        }
    }

    /// Readable when the holder is gone: it never speaks unasked.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Holder::There(socket) => Some(socket.as_fd()),
            Holder::Here(_) => None,
        }
    }
}

fn ask(socket: &OwnedFd, what: u64, key: u64, fd: Option<BorrowedFd>) -> io::Result<()> {
    say(socket, what, key, fd).map_err(system("tell the holder"))?;
    let answer = hear(socket).map_err(system("hear the holder"))?;
    if answer.what != DONE {
        return Err(system("put more into the holder")(Errno::NOSPC));
    }
    Ok(())
}

/// A connection to the holder at `path`, if there is one.
fn called(path: &Path) -> CalledHolder {
    match call_one(path) {
        Ok(socket) => Ok(Some(socket)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A connection to the holder at `path`, by the broker if there is one.
fn call_one(path: &Path) -> io::Result<OwnedFd> {
    let Some(broker) = broker() else { return connect(path) };
    let path = std::path::absolute(path).map_err(system("find the holder's folder"))?;
    let request = Request::Find { path };
    // The broker does not wait: this process hears the holder's answer.
    patiently(|| listens(broker.fd(&request, &[])?))
}

/// As [`Holder::start`].
pub(crate) fn spawn(path: &Path, of: &str) -> io::Result<Child> {
    // The holder stands in another folder.
    let path = &std::path::absolute(path).map_err(system("find the holder's folder"))?;
    let listener = listen_at(path)?;
    make_secret(path).map_err(system("make the holder's secret"))?;
    // For the list of processes: what it is, and for which socket. It leads a session (`serve`).
    start(&["hold".as_ref(), path.as_os_str(), of.as_ref()], listener, false)
        .map_err(system("start a holder"))
}

/// A connection to the holder at `path`, which is our own user's and listens to us.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    patiently(|| listens(call_with_secret(path)?))
}

fn patiently(call: impl Fn() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let begun = Instant::now();
    loop {
        match call() {
            // Strangers of our own user fill its queue, or took our place in it.
            Err(e) if is_crowded(&e) && begun.elapsed() < ANSWER => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Whether a holder that lives may say so to a daemon that it would listen to.
fn is_crowded(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof, WouldBlock};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof | WouldBlock)
}

/// Calls the holder at `path`, and says its secret; it will answer.
pub(crate) fn call_with_secret(path: &Path) -> io::Result<OwnedFd> {
    let socket = call(path)?;
    let secret = read_secret(path).map_err(system("read the holder's secret"))?;
    say(&socket, SECRET, secret, None).map_err(system("tell the holder"))?;
    Ok(socket)
}

/// Waits until the holder at the other end, which was told its secret, listens.
fn listens(socket: OwnedFd) -> io::Result<OwnedFd> {
    if hear(&socket).map_err(system("hear the holder"))?.what != DONE {
        return Err(system("have the holder listen")(Errno::ACCESS));
    }
    Ok(socket)
}

/// A connection to the holder at `path`, which is our own user's.
fn call(path: &Path) -> io::Result<OwnedFd> {
    let connected = || -> io::Result<Option<OwnedFd>> {
        let Some(socket) = socket::call_own(path, SocketType::SEQPACKET)? else { return Ok(None) };
        // It was called without waiting, and is waited for from now on.
        rustix::io::ioctl_fionbio(&socket, false)?;
        passing::limit(&socket, ANSWER)?;
        Ok(Some(socket))
    };
    let socket = connected().map_err(system("call the holder"))?;
    socket.filter(|socket| is_ours(socket)).ok_or_else(|| {
        let why = format!("the process that listens at \"{}\" belongs to another user", path.display());
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    })
}

/// A listening socket for a holder. What a dead one left at `path` goes; one that lives is an error, unless
/// it is on its way out: the one of the client before.
pub(super) fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    // No other user can be at the other end: both sides check its user.
    let kind = SocketType::SEQPACKET;
    let wanted =
        SocketSpec { path: path.to_owned(), kind, mode: Some(0o600), owner: (None, None), backlog: 4 };
    loop {
        let error = match socket::listen_here(&wanted) {
            Ok((listener, _)) => {
                rustix::io::ioctl_fionbio(&listener, false).map_err(system("make the holder's socket"))?;
                return Ok(listener);
            }
            Err(error @ SocketError::InUse(_)) => error,
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        // It hangs up at its end, also on callers that it has not heard yet.
        let ends = |socket: OwnedFd| wait(&mut [PollFd::new(&socket, PollFlags::empty())], Some(ANSWER));
        match call(path).map(|socket| ends(socket).unwrap_or(false)) {
            Ok(false) => return Err(io::Error::other(error.to_string())),
            // It has just ended, and taken its file along, or not.
            Err(e) if !is_absent(&e) => return Err(e),
            _ => {}
        }
    }
}
