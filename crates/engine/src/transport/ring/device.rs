//! The socket that stands for `/dev/netmap` where that is not about a port that exists: `sidecore_abi::vale`.
//!
//! One thread reads requests and hands them, one at a time, to another one, with the code that knows ports
//! and switches ([`Verbs`]): the thread that reads what strangers sent makes nothing (`sandbox/filters`). A
//! connection that ends, for whatever reason, is reported: what was made for it may go.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{send, sockopt::socket_peercred, SendFlags};
use sidecore_abi::vale::{Ask, Reply, ASK};

use super::super::server::connection::Connection;
use super::super::server::many::{part, serve, ClientConnection, Requests};
use super::super::server::socket::{Listener, SocketError};
use super::super::server::{OwnerLine, Running};
use crate::mem::take_no_descriptors;

/// Connections at a time, and those of one user other than root and ourselves.
const CONNECTIONS: usize = 1024;
const CONNECTIONS_OF_A_USER: usize = 256;
/// Those of all such users together: the rest is for root and ourselves.
const CONNECTIONS_OF_OTHERS: usize = CONNECTIONS - CONNECTIONS_OF_A_USER;
/// How long a connection may take over its first request, or over the rest of one that has begun. Between
/// requests it may be silent for as long as it likes: it is the lease of what it had made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection was refused, or ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its user has as many as one may have.
    User,
    /// There are as many as there may be.
    Full,
    /// It owed a request longest when another one needed its slot.
    Displaced,
    /// It sent no whole request in time.
    Late,
    /// There was no descriptor for it.
    Descriptors,
}

/// Their names, in that order.
const WHY: [&str; 5] = ["user", "full", "displaced", "late", "descriptors"];

/// The connections to the socket, for `show`.
#[derive(Debug, Default)]
pub struct Clients {
    open: AtomicU64,
    refused: [AtomicU64; WHY.len()],
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
        WHY.into_iter().zip(self.refused.iter().map(|counter| counter.load(Ordering::Relaxed))).collect()
    }
}

/// The client that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The connection, by a number that is never used again.
    pub connection: u64,
    /// User and group of the process that connected.
    pub ids: (u32, u32),
}

/// Carries requests out.
pub trait Verbs: Send {
    /// Carries `ask` out.
    fn ask(&mut self, who: Asker, ask: &Ask) -> Reply;

    /// A connection has ended.
    fn gone(&mut self, connection: u64);
}

/// The running socket. Dropping it ends the threads; what was made stays.
pub struct Device {
    clients: Arc<Clients>,
    running: Option<Running>,
    maker: Option<JoinHandle<()>>,
}

impl Drop for Device {
    fn drop(&mut self) {
        // The one that reads first: then there are no more orders for the other.
        self.running = None;
        // A panic there has been reported by the thread itself.
        let _ = self.maker.take().map(JoinHandle::join);
    }
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
        let system =
            |source| SocketError::System { what: "serve requests".into(), path: path.to_owned(), source };
        let listener = Listener::bind(path, Some(mode), owner)?;
        take_no_descriptors(&listener);
        let line = OwnerLine::new().map_err(system)?;
        let clients = Arc::<Clients>::default();
        let (maker, thread) = make(verbs).map_err(system)?;
        let mut server = Server { maker, connections: Vec::new(), next: 0, clients: Arc::clone(&clients) };
        let owner = Arc::clone(&line);
        let body = move || serve(&mut server, listener, &owner);
        let running = Running::start(&line, "netmap".to_owned(), body);
        Ok(Device { clients, running: Some(running.map_err(system)?), maker: Some(thread) })
    }

    /// Its connections.
    pub fn clients(&self) -> Arc<Clients> {
        Arc::clone(&self.clients)
    }
}

/// What the reading thread has the other one do.
enum Order {
    Ask(Asker, Ask, SyncSender<Reply>),
    Gone(u64),
}

/// Starts the thread that carries orders out; it ends when there can be no more.
fn make(mut verbs: Box<dyn Verbs>) -> io::Result<(SyncSender<Order>, JoinHandle<()>)> {
    let (orders, inbox) = sync_channel::<Order>(0);
    let thread = std::thread::Builder::new().name("makes-ports".to_owned()).spawn(move || {
        for order in inbox {
            match order {
                Order::Ask(who, ask, answer) => drop(answer.send(verbs.ask(who, &ask))),
                Order::Gone(connection) => verbs.gone(connection),
            }
        }
    })?;
    Ok((orders, thread))
}

struct Server {
    maker: SyncSender<Order>,
    connections: Vec<ClientConnection<Asker>>,
    next: u64,
    clients: Arc<Clients>,
}

impl Server {
    /// Makes room for one more connection of user `uid`. The connection that owes a request longest goes
    /// first; an error says why none does.
    fn make_room(&mut self, uid: u32) -> Result<(), Why> {
        let privileged = uid == 0 || uid == crate::sandbox::open::broker::maker();
        let of_user = |c: &&ClientConnection<Asker>| c.role.ids.0 == uid;
        let too_many_of_user =
            !privileged && self.connections.iter().filter(of_user).count() >= CONNECTIONS_OF_A_USER;
        let most = if privileged { CONNECTIONS } else { CONNECTIONS_OF_OTHERS };
        if !too_many_of_user && self.connections.len() < most {
            return Ok(());
        }
        let silent =
            |c: &ClientConnection<Asker>| c.owes.is_some() && (!too_many_of_user || c.role.ids.0 == uid);
        match self.connections.iter().position(silent) {
            Some(index) => {
                self.clients.count(Why::Displaced, 1);
                part(self, index);
                Ok(())
            }
            None if too_many_of_user => Err(Why::User),
            None => Err(Why::Full),
        }
    }

    fn count_open(&self) {
        self.clients.open.store(self.connections.len() as u64, Ordering::Relaxed);
    }
}

impl Requests for Server {
    type Role = Asker;
    const SIZE: usize = ASK;
    const PATIENCE: Option<Duration> = Some(PATIENCE);

    fn connections(&mut self) -> &mut Vec<ClientConnection<Asker>> {
        &mut self.connections
    }

    fn admit(&mut self, socket: Connection) {
        let Ok(peer) = socket_peercred(&socket) else { return };
        let who = Asker { connection: self.next, ids: (peer.uid.as_raw(), peer.gid.as_raw()) };
        if let Err(why) = self.make_room(who.ids.0) {
            self.clients.count(why, 1);
            tracing::warn!(user = who.ids.0, "the netmap socket refuses a client: too many connections");
            return;
        }
        self.next += 1;
        self.connections.push(ClientConnection::new(socket, who));
        self.count_open();
    }

    fn turned_away(&mut self, count: u64) {
        self.clients.count(Why::Descriptors, count);
    }

    fn answer(&mut self, index: usize, request: &[u8]) -> bool {
        let Some(connection) = self.connections.get(index) else { return false };
        let reply = match Ask::from_bytes(request) {
            Some(ask) => {
                let (answer, answers) = sync_channel(1);
                let order = Order::Ask(connection.role, ask, answer);
                let made = self.maker.send(order).ok().and_then(|()| answers.recv().ok());
                made.unwrap_or_else(|| Reply::refused(5, "the request has failed: a bug in sidecore"))
                // EIO
            }
            None => Reply::refused(71, "the daemon does not speak this language or version"), // EPROTO
        };
        // A reply fits into a socket's buffer; a client that leaves replies unread until one does not fit is
        // dropped.
        let bytes = reply.to_bytes();
        let sent = send(&connection.socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        sent.is_ok_and(|n| n == bytes.len()) && reply.errno != 71
    }

    fn late(&mut self) {
        self.clients.count(Why::Late, 1);
    }

    fn gone(&mut self, who: Asker) {
        // Without the other thread there is nothing to be told.
        let _ = self.maker.send(Order::Gone(who.connection));
        self.count_open();
    }

    fn name(&self) -> String {
        "the netmap socket".to_owned()
    }
}
