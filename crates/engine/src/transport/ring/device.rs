//! The socket that stands for `/dev/netmap` where that is not about a port that exists: `sidecore_abi::vale`.
//!
//! One thread reads requests and hands them, one at a time, to whoever knows ports and switches ([`Verbs`]). A
//! connection that ends, for whatever reason, is reported: what was made for it may go. Nothing that a client
//! leaves unsent, or does not read, makes the thread wait.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{recv, send, sockopt::socket_peercred, RecvFlags, SendFlags};
use sidecore_abi::vale::{Ask, Reply, ASK};

use super::{Listener, SocketError};
use crate::mem::take_no_descriptors;
use crate::open::spare::Seldom;

/// Connections at a time, and those of one user other than root and ourselves.
const CONNECTIONS: usize = 1024;
const CONNECTIONS_OF_A_USER: usize = 256;
/// Those of all such users together: the rest is for root and ourselves.
const CONNECTIONS_OF_OTHERS: usize = CONNECTIONS - CONNECTIONS_OF_A_USER;
/// How long a connection may take over its first request, or over the rest of one that has begun. Between requests it may
/// be silent for as long as it likes: it is the lease of what it had made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection was refused, or ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its user has as many as one may have.
    User,
    /// There are as many as there may be.
    Full,
    /// It owed a request longest when another one needed its place.
    Displaced,
    /// It sent no whole request in time.
    Late,
    /// There was no descriptor for it.
    Descriptors,
}

/// The connections to the socket, for `show`.
#[derive(Debug, Default)]
pub struct Clients {
    open: AtomicU64,
    refused: [AtomicU64; Why::ALL.len()],
}

impl Why {
    const ALL: [(Why, &'static str); 5] = [
        (Why::User, "user"),
        (Why::Full, "full"),
        (Why::Displaced, "displaced"),
        (Why::Late, "late"),
        (Why::Descriptors, "descriptors"),
    ];
}

impl Clients {
    fn count(&self, why: Why, count: u64) {
        if let Some(counter) = self.refused.get(why as usize) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// How many were refused or ended, by the name of the reason.
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        let names = Why::ALL.iter().map(|(_, name)| *name);
        names.zip(self.refused.iter().map(|counter| counter.load(Ordering::Relaxed))).collect()
    }
}

/// That a user has too many connections, and that none can be accepted.
static SAID: Seldom = Seldom::new();

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The connection, by a number that is never used again.
    pub connection: u64,
    /// User and group of the process that connected.
    pub ids: (u32, u32),
}

/// Who carries requests out.
pub trait Verbs: Send {
    /// Carries `ask` out.
    fn ask(&mut self, who: Asker, ask: &Ask) -> Reply;

    /// A connection has ended.
    fn gone(&mut self, connection: u64);
}

/// The running socket. Dropping it ends the thread; what was made stays.
pub struct Device {
    stop: Arc<OwnedFd>,
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Listens at `path`, with these permissions and this owner.
    ///
    /// # Errors
    /// What the system says of socket or thread.
    pub fn start(
        path: &Path,
        mode: u32,
        owner: (Option<u32>, Option<u32>),
        verbs: Box<dyn Verbs>,
    ) -> Result<Device, SocketError> {
        let system = |source| SocketError::System { what: "serve requests", path: path.to_owned(), source };
        let listener = Listener::bind(path, Some(mode), owner)?;
        take_no_descriptors(&listener);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| system(e.into()))?;
        let stop = Arc::new(stop);
        let clients = Arc::<Clients>::default();
        let server = Server {
            listener,
            stop: Arc::clone(&stop),
            verbs,
            connections: Vec::new(),
            next: 0,
            clients: Arc::clone(&clients),
        };
        let thread = std::thread::Builder::new().name("netmap".to_owned()).spawn(move || {
            crate::confine::enter(crate::confine::Kinds::NETMAP);
            server.run();
        });
        Ok(Device { stop, clients, thread: Some(thread.map_err(system)?) })
    }

    /// Its connections.
    pub fn clients(&self) -> Arc<Clients> {
        Arc::clone(&self.clients)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Cannot fail: nobody else writes to it.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    listener: Listener,
    stop: Arc<OwnedFd>,
    verbs: Box<dyn Verbs>,
    connections: Vec<Connection>,
    next: u64,
    clients: Arc<Clients>,
}

struct Connection {
    socket: super::super::connection::Connection,
    who: Asker,
    /// What has arrived of the next request.
    request: [u8; ASK],
    arrived: usize,
    /// Since when a request is owed.
    owes: Option<Instant>,
}

impl Server {
    fn run(mut self) {
        loop {
            let mut fds = vec![
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            ];
            fds.extend(self.connections.iter().map(|c| PollFd::new(&c.socket, PollFlags::IN)));
            let left = self.connections.iter().filter_map(|c| c.owes).min();
            let left = left.map(|since| timespec(PATIENCE.saturating_sub(since.elapsed())));
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!("the netmap socket: poll: {error}"),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                return;
            }
            // From the end, so that places stay right.
            for place in (0..self.connections.len()).rev().filter(|place| ready[2 + place]) {
                if !self.hear(place) {
                    self.part(place);
                }
            }
            let owes = |c: &Connection| c.owes.is_some_and(|since| since.elapsed() >= PATIENCE);
            while let Some(place) = self.connections.iter().position(owes) {
                self.clients.count(Why::Late, 1);
                self.part(place);
            }
            if ready[1] {
                self.admit();
            }
            self.clients.open.store(self.connections.len() as u64, Ordering::Relaxed);
        }
    }

    fn part(&mut self, place: usize) {
        let gone = self.connections.remove(place);
        self.verbs.gone(gone.who.connection);
    }

    /// Makes room for one more connection of user `uid`. Who owes a request longest goes first; an error says why nobody does.
    fn make_room(&mut self, uid: u32) -> Result<(), Why> {
        let privileged = uid == 0 || uid == crate::open::broker::maker();
        let of_user = |c: &&Connection| c.who.ids.0 == uid;
        let too_many_of_user =
            !privileged && self.connections.iter().filter(of_user).count() >= CONNECTIONS_OF_A_USER;
        let places = if privileged { CONNECTIONS } else { CONNECTIONS_OF_OTHERS };
        if !too_many_of_user && self.connections.len() < places {
            return Ok(());
        }
        let silent = |c: &Connection| c.owes.is_some() && (!too_many_of_user || c.who.ids.0 == uid);
        match self.connections.iter().position(silent) {
            Some(place) => {
                self.clients.count(Why::Displaced, 1);
                self.part(place);
                Ok(())
            }
            None if too_many_of_user => Err(Why::User),
            None => Err(Why::Full),
        }
    }

    fn admit(&mut self) {
        match self.listener.accept() {
            Ok(Some(socket)) => {
                let Ok(peer) = socket_peercred(&socket) else { return };
                let who = Asker { connection: self.next, ids: (peer.uid.as_raw(), peer.gid.as_raw()) };
                if let Err(why) = self.make_room(who.ids.0) {
                    self.clients.count(why, 1);
                    if SAID.is_due() {
                        tracing::warn!("the netmap socket refuses user {}: too many connections", who.ids.0);
                    }
                    return;
                }
                self.next += 1;
                let owes = Some(Instant::now());
                self.connections.push(Connection { socket, who, request: [0; ASK], arrived: 0, owes });
            }
            Ok(None) => self.clients.count(Why::Descriptors, self.listener.turned_away()),
            Err(error) => {
                // The client waits in the backlog.
                if SAID.is_due() {
                    tracing::warn!("the netmap socket cannot take a client in: {error}");
                }
                let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = poll(&mut [PollFd::new(&*self.stop, PollFlags::IN)], Some(&pause));
            }
        }
    }

    /// Reads what has arrived, and answers a whole request; false if the connection is to end.
    fn hear(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        let room = &mut connection.request[connection.arrived..];
        let n = match recv(&connection.socket, room, RecvFlags::DONTWAIT) {
            Ok((n, _)) if n > 0 => n,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Ok(_) | Err(_) => return false,
        };
        connection.arrived += n;
        if connection.arrived < ASK {
            connection.owes.get_or_insert_with(Instant::now);
            return true;
        }
        (connection.arrived, connection.owes) = (0, None);
        let reply = match Ask::from_bytes(&connection.request) {
            Some(ask) => self.verbs.ask(connection.who, &ask),
            None => Reply::refused(71, "the daemon does not speak this language or version"), // EPROTO
        };
        // A reply fits into a socket's buffer; who leaves so many unread that it does not is dropped.
        let bytes = reply.to_bytes();
        let sent = send(&connection.socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        sent.is_ok_and(|n| n == bytes.len()) && reply.errno != 71
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// The socket's path for tests and tools: beside the sockets of ring ports.
///
/// # Errors
/// As [`super::socket_path`].
pub fn device_path() -> io::Result<std::path::PathBuf> {
    super::socket_path(sidecore_abi::vale::SOCKET).map_err(io::Error::other)
}
