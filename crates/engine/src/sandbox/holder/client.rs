//! The daemon's side: a holder of its own for a new connection, or the one that an earlier daemon left.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketType;

use crate::sandbox::open::broker::{broker, Request};
use crate::sandbox::open::early::{Early, Fetched};
use crate::sandbox::open::passing;
use crate::sandbox::open::socket::{self, SocketError, SocketSpec};
use crate::wait::wait;

use super::program::{make_secret, read_secret, start};
use super::server::{hear, is_ours, say, DONE, DROP, HERE, LIST, PUT, SECRET};

/// How long a holder may take over an answer. It has nothing else to do, but the machine may.
const ANSWER: Duration = Duration::from_secs(10);
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

/// What a holder had: descriptors by their keys.
pub type Found = BTreeMap<u64, OwnedFd>;

type FoundHolder = io::Result<Option<(Holder, Found)>>;

/// Holders that were looked for, for as long as this lives.
pub(crate) type SoughtHolders = Fetched<PathBuf, FoundHolder>;

static EARLY: Early<PathBuf, FoundHolder> = Early::new();

/// A holder, as the daemon sees it. When it is dropped the holder keeps what it has.
#[derive(Debug)]
pub struct Holder {
    socket: OwnedFd,
}

impl Holder {
    /// Starts a holder that can be found at `path`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn start(path: &Path) -> io::Result<Holder> {
        if let Some(broker) = broker() {
            let path = std::path::absolute(path).map_err(system("find the holder's folder"))?;
            return Ok(Holder { socket: broker.fd(&Request::Hold { path }, &[])? });
        }
        let mut child = spawn(path)?;
        // A thread has to reap it: its end may come with this process's, or long after.
        let reap = std::thread::Builder::new().name("holder".to_owned()).spawn(move || child.wait());
        reap.map_err(system("start a thread"))?;
        Holder::connect(path)
    }

    /// Looks for the holders at `paths`, for all of them at the same time: ports that are started find them then.
    pub(crate) fn seek(paths: Vec<PathBuf>) -> SoughtHolders {
        EARLY.fetch("seek", paths.len(), paths, |path| Holder::find_now(path))
    }

    /// The holder that another daemon left at `path` and what it has, if there is one: as it was found before, once, or now.
    ///
    /// # Errors
    /// There is one, but it cannot be used.
    pub fn find(path: &Path) -> FoundHolder {
        EARLY.take(&path.to_owned()).unwrap_or_else(|| Holder::find_now(path))
    }

    /// Takes [`ANSWER`] twice at most.
    fn find_now(path: &Path) -> FoundHolder {
        let holder = match Holder::connect(path) {
            Ok(holder) => holder,
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut found = Found::new();
        say(&holder.socket, LIST, 0, None).map_err(system("ask the holder"))?;
        let begun = Instant::now();
        loop {
            if begun.elapsed() > ANSWER {
                return Err(system("take what the holder has")(Errno::TIMEDOUT));
            }
            let mut record = hear(&holder.socket).map_err(system("hear the holder"))?;
            match (record.what, record.fds.pop()) {
                (HERE, Some(fd)) => drop(found.insert(record.number, fd)),
                (DONE, _) => return Ok(Some((holder, found))),
                // Out of descriptors, or another protocol.
                _ => return Err(system("take what the holder has")(Errno::PROTO)),
            }
        }
    }

    /// The holder that is there already, and nothing of what it has.
    pub(crate) fn connect(path: &Path) -> io::Result<Holder> {
        let Some(broker) = broker() else { return connect(path).map(|socket| Holder { socket }) };
        let path = std::path::absolute(path).map_err(system("find the holder's folder"))?;
        let request = Request::Find { path };
        // The broker does not wait: this process hears the holder's answer.
        let find = || listens(broker.fd(&request, &[])?);
        patiently(find).map(|socket| Holder { socket })
    }

    /// Has `fd` kept under `key`, instead of what was there.
    ///
    /// # Errors
    /// The holder is gone or full.
    pub fn put(&self, key: u64, fd: BorrowedFd) -> io::Result<()> {
        self.ask(PUT, key, Some(fd))
    }

    /// Has what is under `key`, if anything, kept no longer.
    ///
    /// # Errors
    /// The holder is gone.
    pub fn forget(&self, key: u64) -> io::Result<()> {
        self.ask(DROP, key, None)
    }

    /// Whether the holder ends within [`ANSWER`]: it hangs up then, also on callers that it has not heard yet.
    fn ends(&self) -> bool {
        wait(&mut [PollFd::new(&self.socket, PollFlags::empty())], Some(ANSWER)).unwrap_or(false)
    }

    fn ask(&self, what: u64, key: u64, fd: Option<BorrowedFd>) -> io::Result<()> {
        say(&self.socket, what, key, fd).map_err(system("tell the holder"))?;
        let answer = hear(&self.socket).map_err(system("hear the holder"))?;
        if answer.what != DONE {
            return Err(system("put more into the holder")(Errno::NOSPC));
        }
        Ok(())
    }
}

impl AsFd for Holder {
    /// Readable when the holder is gone: it never speaks unasked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Starts a holder that can be found at `path`.
pub(crate) fn spawn(path: &Path) -> io::Result<Child> {
    // The holder stands in another folder.
    let path = &std::path::absolute(path).map_err(system("find the holder's folder"))?;
    let listener = listen_at(path)?;
    make_secret(path).map_err(system("make the holder's secret"))?;
    // For the list of processes: what it is, and for which socket. It leads a session (`serve`).
    start(&["hold".as_ref(), path.as_os_str()], listener, false).map_err(system("start a holder"))
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

/// A listening socket for a holder. What a dead one left at `path` goes; one that lives is an error, unless it is on its way
/// out: the one of the client before.
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
        match call(path).map(|socket| Holder { socket }) {
            Ok(holder) if !holder.ends() => return Err(io::Error::other(error.to_string())),
            // It has just ended, and taken its file along, or not.
            Err(e) if !is_absent(&e) => return Err(e),
            _ => {}
        }
    }
}
