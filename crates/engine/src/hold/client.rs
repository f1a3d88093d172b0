//! The daemon's side: a holder of its own for a new connection, or the one that an earlier daemon left.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::SocketType;

use crate::open::broker::{broker, Refusal, Request};
use crate::open::socket::{self, SocketError, SocketSpec};

use super::program::{program, raise};
use super::record::{hear, is_ours, say, DONE, DROP, HERE, LIST, PUT, SECRET};
use super::secret;

/// How long a holder may take over an answer. It has nothing else to do, but the machine may.
const ANSWER: Duration = Duration::from_secs(10);
/// The pause before a holder is called again; a full queue gives no notice when it has room.
const AGAIN: Duration = Duration::from_millis(10);

/// Why nothing is held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The daemon has not said which program is a holder.
    #[error("no program for it was named")]
    NoProgram,
    /// Its socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another user's process.
    #[error("the process that listens at \"{}\" belongs to another user", .0.display())]
    Stranger(PathBuf),
    /// The system, or the holder, refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What was said.
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> HoldError {
    move |e| HoldError::System { what, source: e.into() }
}

/// What a holder had: descriptors by their keys.
pub type Found = BTreeMap<u64, OwnedFd>;

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
    pub fn start(path: &Path) -> Result<Holder, HoldError> {
        if let Some(broker) = broker() {
            let path = std::path::absolute(path).map_err(system("find the holder's folder"))?;
            let socket = broker.fd(&Request::Hold { path }, &[]);
            return socket.map(|socket| Holder { socket }).map_err(|r| system("start a holder")(r.error));
        }
        let mut child = spawn(path)?;
        // A thread has to reap it: its end may come with this process's, or long after.
        let reap = std::thread::Builder::new().name("holder".to_owned()).spawn(move || child.wait());
        reap.map_err(system("start a thread"))?;
        Holder::connect(path)
    }

    /// The holder that another daemon left at `path`, and what it has; `None`: there is none.
    ///
    /// Takes [`ANSWER`] twice at most.
    ///
    /// # Errors
    /// There is one, but it cannot be used.
    pub(super) fn find_now(path: &Path) -> Result<Option<(Holder, Found)>, HoldError> {
        let holder = match Holder::connect(path) {
            Ok(holder) => holder,
            Err(HoldError::System { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None)
            }
            Err(e) => return Err(e),
        };
        let mut found = Found::new();
        say(&holder.socket, LIST, 0, None).map_err(system("ask the holder"))?;
        let begun = Instant::now();
        loop {
            if begun.elapsed() > ANSWER {
                return Err(system("take what the holder has")(Errno::TIMEDOUT));
            }
            let record = hear(&holder.socket).map_err(system("hear the holder"))?;
            match (record.what, record.fd) {
                (HERE, Some(fd)) => drop(found.insert(record.key, fd)),
                (DONE, _) => return Ok(Some((holder, found))),
                // Out of descriptors, or another protocol.
                _ => return Err(system("take what the holder has")(Errno::PROTO)),
            }
        }
    }

    /// The holder that is there already, and nothing of what it has.
    pub(crate) fn connect(path: &Path) -> Result<Holder, HoldError> {
        let Some(broker) = broker() else { return connect(path).map(|socket| Holder { socket }) };
        let path = std::path::absolute(path).map_err(system("find the holder's folder"))?;
        let request = Request::Find { path };
        // The broker does not wait: this process hears the holder's answer.
        let find = || {
            let answer =
                broker.ask(&request, &[]).map_err(|refusal| system("call the holder")(refusal.error))?;
            let socket = answer.fd.ok_or_else(|| system("call the holder")(io::ErrorKind::InvalidData))?;
            listens(socket, answer.number != 0)
        };
        patiently(find).map(|socket| Holder { socket })
    }

    /// Has `fd` kept under `key`, instead of what was there.
    ///
    /// # Errors
    /// The holder is gone or full.
    pub fn put(&self, key: u64, fd: BorrowedFd) -> Result<(), HoldError> {
        self.ask(PUT, key, Some(fd))
    }

    /// Has what is under `key`, if anything, kept no longer.
    ///
    /// # Errors
    /// The holder is gone.
    pub fn forget(&self, key: u64) -> Result<(), HoldError> {
        self.ask(DROP, key, None)
    }

    /// Whether the holder ends within [`ANSWER`]: it hangs up then, also on callers that it has not heard yet.
    fn ends(&self) -> bool {
        let time = Timespec { tv_sec: i64::try_from(ANSWER.as_secs()).unwrap_or(0), tv_nsec: 0 };
        let ends = || poll(&mut [PollFd::new(&self.socket, PollFlags::empty())], Some(&time));
        rustix::io::retry_on_intr(ends).is_ok_and(|ready| ready > 0)
    }

    fn ask(&self, what: u64, key: u64, fd: Option<BorrowedFd>) -> Result<(), HoldError> {
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
pub(crate) fn spawn(path: &Path) -> Result<Child, HoldError> {
    let program = program().ok_or(HoldError::NoProgram)?;
    // The holder stands in another folder.
    let path = &std::path::absolute(path).map_err(system("find the holder's folder"))?;
    let listener = listen_at(path)?;
    secret::make(path).map_err(system("make the holder's secret"))?;
    let mut command = Command::new(program);
    // For the list of processes: what it is, and for which socket.
    command.arg0("sidecore").arg("hold").arg(path).env_clear().current_dir("/");
    command.stdin(Stdio::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(system("start a holder"))?;
    raise(&child);
    Ok(child)
}

/// A connection to the holder at `path`, which is our own user's and listens to us.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, HoldError> {
    patiently(|| introduce(path))
}

fn patiently(call: impl Fn() -> Result<OwnedFd, HoldError>) -> Result<OwnedFd, HoldError> {
    let begun = Instant::now();
    loop {
        match call() {
            // Strangers of our own user fill its queue, or took our place in it.
            Err(HoldError::System { source, .. }) if is_crowded(&source) && begun.elapsed() < ANSWER => {
                std::thread::sleep(AGAIN);
            }
            result => return result,
        }
    }
}

/// Whether a holder that lives may say so to a daemon that it would listen to.
fn is_crowded(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    error.raw_os_error() == Some(Errno::AGAIN.raw_os_error())
        || matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Calls the holder at `path`, says its secret, and hears that it listens.
fn introduce(path: &Path) -> Result<OwnedFd, HoldError> {
    let (socket, told) = call_with_secret(path)?;
    listens(socket, told)
}

/// Calls the holder at `path`, and says its secret; whether it has one, and will answer.
pub(crate) fn call_with_secret(path: &Path) -> Result<(OwnedFd, bool), HoldError> {
    let socket = call(path)?;
    // A holder without one is of a version that asks for none.
    let secret = secret::read(path).map_err(system("read the holder's secret"))?;
    if let Some(secret) = secret {
        say(&socket, SECRET, secret, None).map_err(system("tell the holder"))?;
    }
    Ok((socket, secret.is_some()))
}

/// Waits until the holder at the other end listens, if it was `told` its secret.
fn listens(socket: OwnedFd, told: bool) -> Result<OwnedFd, HoldError> {
    if told && hear(&socket).map_err(system("hear the holder"))?.what != DONE {
        return Err(system("have the holder listen")(Errno::ACCESS));
    }
    Ok(socket)
}

/// A connection to the holder at `path`, which is our own user's.
fn call(path: &Path) -> Result<OwnedFd, HoldError> {
    let connected = || -> io::Result<Option<OwnedFd>> {
        let Some(socket) = socket::call_own(path, SocketType::SEQPACKET)? else { return Ok(None) };
        // It was called without waiting, and is waited for from now on.
        rustix::io::ioctl_fionbio(&socket, false)?;
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(ANSWER))?;
        }
        Ok(Some(socket))
    };
    let socket = connected().map_err(system("call the holder"))?;
    socket.filter(|socket| is_ours(socket)).ok_or_else(|| HoldError::Stranger(path.to_owned()))
}

/// The error as a broker tells it.
pub(crate) fn refusal(error: HoldError) -> Refusal {
    match error {
        HoldError::System { source, .. } => source.into(),
        e => io::Error::other(e.to_string()).into(),
    }
}

/// A listening socket for a holder. What a dead one left at `path` goes; one that lives is an error, unless it is on its way
/// out: the one of the client before.
pub(super) fn listen_at(path: &Path) -> Result<OwnedFd, HoldError> {
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
            Err(error) => return Err(error.into()),
        };
        match call(path).map(|socket| Holder { socket }) {
            Ok(holder) if !holder.ends() => return Err(error.into()),
            // It has just ended, and taken its file along, or not.
            Err(HoldError::System { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            Err(e) => return Err(e),
            Ok(_) => {}
        }
    }
}
