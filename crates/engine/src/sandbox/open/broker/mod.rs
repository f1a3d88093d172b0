//! The way to a broker: what can be asked of it, as records, and the worker's end of the connection.
//!
//! A broker is a process that keeps the privileges which the daemon gives up. It answers a fixed table of
//! requests ([`Request`]), each a record with up to two descriptors, each answered by one record with up to
//! one descriptor before the next is read.

mod answer;
mod request;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

pub use answer::{answer, await_answer, receive, request, Answer, Refusal};
pub(crate) use request::{is_interface, MAX_NAME};
pub use request::{AddressIn, Entries, Named, NoRequest, Request, Shadow, Socket, TapIn};

use super::passing::{hear, limit};
use answer::understood;
use request::ANSWER;

/// Starts another broker, for one that is gone.
pub type Start = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

/// The worker's end.
pub struct Broker {
    connection: Mutex<BrokerConnection>,
    asked: AtomicU64,
    refused: AtomicU64,
}

struct BrokerConnection {
    /// `None`: the broker is gone.
    socket: Option<OwnedFd>,
    last: u64,
    /// `None`: there can be no other.
    start: Option<Start>,
}

static BROKER: OnceLock<Broker> = OnceLock::new();
/// The broker's user.
static MAKER: OnceLock<u32> = OnceLock::new();

/// The owner of what is made by name: the user who started the daemon, which may run as another user by now.
pub fn maker() -> u32 {
    MAKER.get().copied().unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// Says once that from now on a broker does what takes privileges: `start` makes one. Nothing is opened
/// directly any more.
///
/// # Errors
/// It cannot be started.
pub fn set_broker(start: Start) -> io::Result<()> {
    let socket = prepare(start()?)?;
    let _ = MAKER.set(rustix::process::geteuid().as_raw());
    let _ = BROKER.set(Broker::of(socket, Some(start)));
    Ok(())
}

/// The broker, if there is one.
pub fn broker() -> Option<&'static Broker> {
    BROKER.get()
}

/// Has the broker do what is asked, or where there is none, this process, by `here`: the descriptor that this
/// gives.
pub(crate) fn obtain(
    asked: &Request,
    fds: &[BorrowedFd],
    here: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    broker().map_or_else(here, |broker| Ok(broker.fd(asked, fds)?))
}

/// Has the broker do what is asked, or where there is none, this process, by `here`.
pub(crate) fn have_done(
    asked: &Request,
    fds: &[BorrowedFd],
    here: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    broker().map_or_else(here, |broker| Ok(broker.ask(asked, fds).map(drop)?))
}

fn prepare(socket: OwnedFd) -> io::Result<OwnedFd> {
    limit(&socket, ANSWER)?;
    Ok(socket)
}

impl Broker {
    /// The broker at the other end of `socket`; there will be no other.
    pub fn at(socket: OwnedFd) -> Broker {
        Broker::of(socket, None)
    }

    fn of(socket: OwnedFd, start: Option<Start>) -> Broker {
        let connection = Mutex::new(BrokerConnection { socket: Some(socket), last: 0, start });
        Broker { connection, asked: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// How many requests there were, and how many of them were not carried out.
    pub fn counts(&self) -> (u64, u64) {
        (self.asked.load(Relaxed), self.refused.load(Relaxed))
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
        let mut connection = crate::lock(&self.connection);
        if let Some(result) = connection.exchange(request, fds) {
            return result;
        }
        connection.socket = None;
        let gone = |why: String| {
            let what =
                format!("the daemon's broker is gone{why}; ports go on, restart the daemon to change them");
            Refusal::from(io::Error::other(what))
        };
        let start = connection.start.as_ref().ok_or_else(|| gone(String::new()))?;
        let again =
            start().and_then(prepare).map_err(|e| gone(format!(" and cannot be started again: {e}")))?;
        tracing::warn!("the broker had ended; another one was started");
        connection.socket = Some(again);
        connection.exchange(request, fds).unwrap_or_else(|| {
            connection.socket = None;
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

impl BrokerConnection {
    /// One request and its answer. `None`: there is no broker, or none that can be understood.
    fn exchange(&mut self, request: &Request, fds: &[BorrowedFd]) -> Option<Result<Answer, Refusal>> {
        self.last += 1;
        let socket = self.socket.as_ref()?;
        // It is there, and may have time later.
        let late = |e: io::Error| match e.kind() {
            io::ErrorKind::InvalidInput => Some(Err(e.into())),
            io::ErrorKind::WouldBlock => {
                Some(Err(io::Error::other("the broker does not answer in time").into()))
            }
            _ => None,
        };
        if let Err(e) = answer::request(socket, self.last, request, fds) {
            return late(e);
        }
        loop {
            match hear(socket, 1) {
                // Too late for its request.
                Ok(record) if (1..self.last).contains(&record.number) => {}
                Ok(record) => return understood(record, self.last),
                Err(e) => return late(e),
            }
        }
    }
}
