//! vfio-user: the conversation with a VMM that plugs one of our PCI devices into its guest.
//!
//! Theory of operation. Each device ([`PciDevice`]) has a socket of its own with one client at a time
//! (`super::server`). Messages are read by a [`conversation`] and looked up in a table ([`commands`]); they
//! are answered by a [`session`], which lives as long as the client and owns everything that the client gave:
//! memory ([`dma`]), eventfds, the agreed limits. Dropping it gives all of it back, whatever ended the
//! conversation. A client that stalls stalls only this thread.
//!
//! Faults. A message behind which the start of the next one is unknown, or one that comes before VERSION,
//! ends the conversation. Every other mistake is answered with an errno, as the protocol wants it, and
//! changes nothing. A fault that a queue finds stops the device, not the conversation: VMMs cannot connect
//! again, but a guest can reset its device.
//!
//! A daemon that ends. With a holder (`crate::sandbox::holder`) the conversation outlives us: see [`keep`].
//!
//! Limits: no DMA by messages (memory without `share=on` cannot be reached), no migration, no dirty log, no
//! region descriptors: a polled page needs none.

mod commands;
mod conversation;
mod dma;
mod handlers;
mod irqs;
mod keep;
mod messages;
mod regions;
mod session;
mod stand_in;
mod version;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use self::stand_in::{StandIn, Still};
pub use super::server::socket::{Endpoint, SocketError};

use sidecore_abi::vfio_user::Header;

use self::commands::handle;
use self::conversation::Conversation;
use self::messages::Answer;
use self::session::{lock_briefly, Session, SharedDevice, BRIEFLY};
use super::server::connection::Connection;
use super::server::single::{Protocol, Server};
use super::server::socket::PeerSource;
use super::Unable;
use crate::device::pci::PciDevice;
use crate::mem::Terms;
use crate::port::{Attachment, AttachmentStatus, Fault, Lack, Peer, Port};
use crate::sandbox::holder::{Holder, Store};

/// A PCI device on a vfio-user socket.
pub struct VfioUser {
    server: Server,
    device: SharedDevice,
}

impl VfioUser {
    /// Puts `device`, which stands behind `port`, on the socket and serves one VMM after the other until this
    /// is dropped; each has a holder at the path of `hold`, if one is given, which is told what it is of. If
    /// an earlier daemon has left one there, the device goes on with its VMM when this returns.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn start(
        endpoint: Endpoint,
        port: Arc<Port>,
        device: Box<dyn PciDevice>,
        hold: Option<(PathBuf, String)>,
    ) -> Result<VfioUser, Unable> {
        if let Endpoint::Connect { path } = &endpoint {
            return Err(format!(
                "a vfio-user device listens; no VMM can be called at \"{}\"",
                path.display()
            )
            .into());
        }
        let source = PeerSource::new(endpoint)?;
        let device: SharedDevice = Arc::new(Mutex::new(device));
        // Not before the socket is ours: then no other daemon serves it.
        let found = hold.as_ref().and_then(|(path, _)| Session::find(&port.name, &device, &port.terms, path));
        let (session, stream) = found.unzip();
        let spoken = Spoken { port, device: Arc::clone(&device), hold, session, stream };
        Ok(VfioUser { server: Server::start(source, spoken)?, device })
    }

    /// The device, for code in this process that stands in for a guest.
    pub fn device(&self) -> Arc<Mutex<Box<dyn PciDevice>>> {
        Arc::clone(&self.device)
    }
}

impl Attachment for VfioUser {
    fn status(&self) -> AttachmentStatus {
        let status = self.server.status();
        let Some(device) = lock_briefly(&self.device) else {
            let hint = Some("the device is busy with a command of its VMM; ask again".to_owned());
            return AttachmentStatus { hint, ..status };
        };
        let (mut queues, features, mut peer) = (device.queues(), device.features(), status.peer);
        drop(device);
        let running = queues.iter().any(|queue| queue.state == "running");
        if running && peer == Peer::Connected {
            peer = Peer::Running;
        }
        if !running && peer == Peer::Waiting {
            // There is no driver that could have turned them off.
            queues.iter_mut().for_each(|queue| "no VMM is connected".clone_into(&mut queue.state));
        }
        let off = peer == Peer::Connected && !running;
        let lack = status.lack.or(off.then_some(Lack::Driver));
        AttachmentStatus { peer, features, queues, lack, ..status }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        let busy =
            || format!("the device has been busy with a command of its VMM for {BRIEFLY:?}; try again");
        lock_briefly(&self.device).ok_or_else(busy)?.set_link(up);
        Ok(())
    }

    fn leave(&mut self) {
        self.server.leave();
    }
}

/// A conversation without a socket, for fuzzers and property tests.
pub struct Bare(Session, Answer);

impl Bare {
    /// One with `device`.
    pub fn new(device: Box<dyn PciDevice>) -> Bare {
        Bare(Session::new("bare", &Arc::new(Mutex::new(device)), &Terms::default()), Answer::default())
    }

    /// Handles a command: whether an answer is due, the answer, whether a descriptor goes along, and whether
    /// the conversation goes on.
    pub fn hear(&mut self, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> (bool, &[u8], bool, bool) {
        let (due, result) = handle(&mut self.0, header, payload, fds, &mut self.1);
        self.0.commit(Header::SIZE + payload.len(), due.then_some(&self.1));
        self.0.done();
        (due, self.1.bytes(), self.1.fd.is_some(), result.is_ok())
    }

    /// Has what the next process needs kept from now on, in the store that is returned.
    ///
    /// # Errors
    /// Why it is not.
    pub fn keep(&mut self) -> Result<Store, String> {
        let store = Store::default();
        let (stream, _) = UnixStream::pair().map_err(|e| e.to_string())?;
        self.0.keep_with(Holder::Here(store.clone()), &stream).map(|()| store)
    }

    /// Another process goes on by what is in `store`, with a new `device`: as the next daemon, or as the
    /// holder, at which it stands `still`.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub fn go_on(mut self, store: &Store, device: Box<dyn PciDevice>, still: bool) -> Result<Bare, String> {
        self.0.hand_over();
        drop(self);
        let (holder, mut found) = Holder::here(store).map_err(|e| e.to_string())?;
        let device = Arc::new(Mutex::new(device));
        let (session, _) = Session::adopt("bare", &device, &Terms::default(), (holder, &mut found), still)?;
        Ok(Bare(session, Answer::default()))
    }
}

/// vfio-user, as its socket's server speaks it.
struct Spoken {
    port: Arc<Port>,
    device: SharedDevice,
    /// Where holders are found, and the port as JSON.
    hold: Option<(PathBuf, String)>,
    /// The VMM of an earlier daemon.
    session: Option<Session>,
    stream: Option<UnixStream>,
}

impl Protocol for Spoken {
    type Exchange = Conversation;
    const THREAD: &'static str = "vfu";
    const BRIEFLY: Duration = Duration::from_secs(1);
    const SILENCE: (&'static str, &'static str) = ("no_version", "sent no VERSION");
    const LIMITS_ALL: bool = true;
    const FORGETS: bool = true;

    fn port(&self) -> &Arc<Port> {
        &self.port
    }

    fn left(&mut self) -> Option<UnixStream> {
        self.stream.take()
    }

    fn begin(&mut self, stream: Connection) -> io::Result<Conversation> {
        if let Some(session) = self.session.take() {
            return Conversation::resume(stream, session, &self.port, &self.device);
        }
        crate::lock(&self.device).attached()?;
        let mut session = Session::new(&self.port.name, &self.device, &self.port.terms);
        session.hold.clone_from(&self.hold);
        Conversation::new(stream, session, &self.port, &self.device)
    }

    fn failed(&mut self) {
        crate::lock(&self.device).faulted(Fault::Internal);
    }
}

/// A device of two PCI functions, each on a socket of its own (vfio-user knows no other way): a NIC, and the
/// one that has its memory.
pub struct Functions {
    /// The NIC, for which this stands.
    pub nic: VfioUser,
    /// The one with the memory.
    pub memory: VfioUser,
}

impl Attachment for Functions {
    fn status(&self) -> AttachmentStatus {
        let (status, memory) = (self.nic.status(), self.memory.status());
        let alone = status.peer != Peer::Waiting && memory.peer == Peer::Waiting;
        let hint = alone.then(|| {
            format!("no VMM has the memory device ({}): it is a second -device of the same VM", memory.detail)
        });
        AttachmentStatus { hint: status.hint.or(hint).or(memory.hint), ..status }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.nic.set_link(up)
    }

    fn leave(&mut self) {
        self.nic.leave();
        self.memory.leave();
    }
}
