//! vfio-user: the conversation with a VMM that plugs one of our PCI devices into its guest.
//!
//! Theory of operation. Each device ([`PciDevice`]) has a thread of its own that listens at a path, talks to
//! one client at a time ([`conversation`]) and, when the client is gone, waits for the next one, for ever. The
//! protocol is a table ([`messages`]); its commands are answered by a [`session`], which lives as long as the
//! client and owns everything that the client gave: memory ([`dma`]), eventfds, the agreed limits. Dropping it
//! gives all of it back, whatever ended the conversation. A client that stalls stalls only this thread.
//!
//! Faults. A message after which nobody can tell where the next one begins, or one that comes before VERSION,
//! ends the conversation, is named once in the log and, until the next client, in `show`; the next client has
//! to wait for [`PENALTY`]. Every other mistake is answered with an errno, as the protocol wants it, and
//! changes nothing. A fault that a queue finds stops the device, not the conversation: VMMs cannot connect
//! again, but a guest can reset its device.
//!
//! A daemon that ends. With a holder (`crate::hold`) the conversation outlives us: see [`keep`].
//!
//! Limits: no DMA by messages (memory without `share=on` cannot be reached), no migration, no dirty log, no
//! region descriptors: a polled page needs none.

mod conversation;
mod dma;
mod fuzz;
mod irqs;
mod keep;
mod messages;
mod regions;
mod session;
mod version;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags, PollFd, PollFlags};

pub use self::fuzz::{fuzz_conversation, Talk};
pub use super::socket::{Endpoint, SocketError};

use self::conversation::{Conversation, End, Others};
use self::session::{lock, lock_briefly, Session, SharedDevice, BRIEFLY};
use super::backoff::Backoff;
use super::connection::Connection;
use super::socket::{Door, Listener};
use super::supervise;
use super::wait::{await_close, has_left, wait, wait_for, CLOSING, LONGEST_WHY};
use crate::device::pci::PciDevice;
use crate::door::Closing;
use crate::fault::shown;
use crate::open::spare::Seldom;
use crate::port::{Attachment, AttachmentStatus, Fault, Peer, Port};

/// How long the next client has to wait after one that broke a rule.
const PENALTY: Duration = Duration::from_secs(1);

/// That no VMM can be accepted.
static SAID: Seldom = Seldom::new();

/// Why a device cannot be put on a socket.
#[derive(Debug, thiserror::Error)]
pub enum VfioUserError {
    /// Its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// VMMs call, they do not listen.
    #[error("a vfio-user device listens; no VMM can be called at \"{0}\"")]
    CannotCall(String),
    /// Something that every conversation needs.
    #[error("cannot start the conversation: {0}")]
    System(#[from] io::Error),
}

#[derive(Clone)]
struct State {
    stop: bool,
    /// And leave the VMM to the next daemon.
    leave: bool,
    peer: Peer,
    /// What happens, for people.
    detail: String,
    /// What they can do about it.
    hint: Option<&'static str>,
}

struct Shared {
    state: Mutex<State>,
    /// Readable when the thread shall stop.
    wake: OwnedFd,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, peer: Peer, detail: String) {
        let mut state = self.state();
        (state.peer, state.detail, state.hint) = (peer, detail, None);
    }
}

/// A PCI device on a vfio-user socket.
pub struct VfioUser {
    shared: Arc<Shared>,
    device: SharedDevice,
    thread: Option<JoinHandle<()>>,
}

impl VfioUser {
    /// Puts `device`, which stands behind `port`, on the socket and serves one VMM after the other until this
    /// is dropped.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn start(
        endpoint: Endpoint,
        port: Arc<Port>,
        device: Box<dyn PciDevice>,
    ) -> Result<VfioUser, VfioUserError> {
        VfioUser::start_held(endpoint, port, device, None)
    }

    /// The same, with a holder at the path `hold` for each VMM. If an earlier daemon has left one there, the device
    /// goes on with its VMM when this returns.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn start_held(
        endpoint: Endpoint,
        port: Arc<Port>,
        device: Box<dyn PciDevice>,
        hold: Option<PathBuf>,
    ) -> Result<VfioUser, VfioUserError> {
        if let Endpoint::Connect { path } = &endpoint {
            return Err(VfioUserError::CannotCall(path.display().to_string()));
        }
        let door = Door::new(endpoint)?;
        let device: SharedDevice = Arc::new(Mutex::new(device));
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                stop: false,
                leave: false,
                peer: Peer::Waiting,
                detail: door.describe(),
                hint: None,
            }),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
        });
        // The kernel shows 15 bytes of it.
        let name = format!("vfu-{}", port.name);
        // Not before the door is ours: then no other daemon is.
        let found = hold.as_ref().and_then(|path| Session::find(&port.name, &device, &port.terms, path));
        let mut host = Host {
            port,
            shared: Arc::clone(&shared),
            device: Arc::clone(&device),
            door,
            hold,
            found,
            last_fault: None,
            closing: None,
            backoff: Backoff::new(),
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            crate::confine::enter(crate::confine::Kinds::VFIO_USER);
            host.port.talk.is_held_here();
            host.guarded();
        })?;
        Ok(VfioUser { shared, device, thread: Some(thread) })
    }
}

impl VfioUser {
    /// The device, for somebody in this process who stands in for a guest.
    pub fn device(&self) -> Arc<Mutex<Box<dyn PciDevice>>> {
        Arc::clone(&self.device)
    }
}

impl Attachment for VfioUser {
    fn status(&self) -> AttachmentStatus {
        let State { mut peer, detail, hint, .. } = self.shared.state().clone();
        let Some(device) = lock_briefly(&self.device) else {
            let hint = Some("the device is busy with a command of its VMM; ask again".to_owned());
            return AttachmentStatus { peer, detail, hint, features: Vec::new(), queues: Vec::new() };
        };
        let (mut queues, features) = (device.queues(), device.features());
        drop(device);
        let running = queues.iter().any(|queue| queue.state == "running");
        if running && peer == Peer::Connected {
            peer = Peer::Running;
        }
        if !running && peer == Peer::Waiting {
            // There is no driver that could have turned them off.
            queues.iter_mut().for_each(|queue| "no VMM is connected".clone_into(&mut queue.state));
        }
        AttachmentStatus { peer, detail, hint: hint.map(str::to_owned), features, queues }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        let busy =
            || format!("the device has been busy with a command of its VMM for {BRIEFLY:?}; try again");
        lock_briefly(&self.device).ok_or_else(busy)?.set_link(up);
        Ok(())
    }

    fn leave(&mut self) {
        self.shared.state().leave = true;
    }
}

impl Drop for VfioUser {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// The thread's own.
struct Host {
    port: Arc<Port>,
    shared: Arc<Shared>,
    device: SharedDevice,
    door: Door,
    /// Where holders are found.
    hold: Option<PathBuf>,
    /// The VMM of an earlier daemon.
    found: Option<(Session, UnixStream)>,
    last_fault: Option<String>,
    /// Where a file of the last VMM is still being closed.
    closing: Option<Closing>,
    backoff: Backoff,
}

impl Host {
    /// [`Host::run`], again after each failure.
    fn guarded(&mut self) {
        let (port, shared) = (Arc::clone(&self.port), Arc::clone(&self.shared));
        let stops = || shared.state().stop;
        let clean = |host: &mut Host| {
            let fault = Fault::Internal;
            host.last_fault = Some(fault.to_string());
            host.shared.set(Peer::Faulted, host.detail());
            lock(&host.device).faulted(fault);
        };
        supervise::run(self, &port, &shared.wake, stops, clean, Host::run);
    }

    fn run(&mut self) {
        if let Some((session, stream)) = self.found.take() {
            self.talk(stream.into(), Some(session));
        }
        while !self.shared.state().stop {
            let peer = if self.last_fault.is_some() { Peer::Faulted } else { Peer::Waiting };
            self.shared.set(peer, self.detail());
            if let Some(closing) = &self.closing {
                let told = || self.shared.set(Peer::Faulted, format!("{}; {CLOSING}", self.detail()));
                if await_close(closing, &self.shared.wake, told) {
                    self.closing.take().into_iter().for_each(Closing::done);
                }
                continue;
            }
            if let Some(stream) = self.meet() {
                self.talk(stream, None);
            }
        }
    }

    fn detail(&self) -> String {
        match &self.last_fault {
            Some(fault) => format!("{}; last fault: {fault}", self.door.describe()),
            None => self.door.describe(),
        }
    }

    /// Waits for a client. `None`: the owner calls.
    fn meet(&mut self) -> Option<Connection> {
        loop {
            let mut pause = None;
            match &mut self.door {
                Door::Once { stream } => {
                    if let Some(stream) = stream.take() {
                        return Some(stream);
                    }
                }
                door => match door.listener().map(Listener::accept) {
                    // One that did not want to wait until it was let in came for nothing, and nothing was done for it. The
                    // owner is listened to before the next one.
                    Some(Ok(Some(stream))) if has_left(&stream) => self.port.talk.left_at_once(),
                    Some(Ok(Some(stream))) => return Some(stream),
                    Some(Err(e)) => {
                        if SAID.is_due() {
                            tracing::warn!(port = %self.port.name, "cannot accept a VMM: {e}");
                        }
                        pause = Some(PENALTY);
                    }
                    Some(Ok(None)) => {
                        let turned_away = self.door.listener().map_or(0, Listener::turned_away);
                        self.port.talk.refused(turned_away);
                    }
                    None => {}
                },
            }
            let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
            // A listener that cannot accept stays readable: then only time helps.
            let door = self.door.listener().filter(|_| pause.is_none());
            fds.extend(door.map(|door| PollFd::new(door, PollFlags::IN)));
            if wait(&mut fds, pause).is_err() || !fds[0].revents().is_empty() {
                return None;
            }
        }
    }

    fn talk(&mut self, stream: Connection, found: Option<Session>) {
        let name = &self.port.name;
        if found.is_none() {
            tracing::info!(port = %name, "a VMM has connected");
            self.port.talk.connected();
        }
        let (begun, adopted) = (Instant::now(), found.is_some());
        let mut asked = adopted;
        self.port.fault.clear();
        self.last_fault = None;
        let detail = self.door.describe();
        let mut refusals = 0;
        let mut knocked = || {
            let refused = self.door.listener().is_some_and(Listener::refuse);
            refusals += u32::from(refused);
            self.port.talk.refused(refused.into());
            if refused && refusals == 1 {
                tracing::warn!(port = %name, "a second VMM has called and was refused: give each VMM a port of its own");
            }
            refused
        };
        let mut last = None;
        let mut changed = |session: &Session| {
            asked |= session.has_asked();
            // After every message: only what is news costs anything.
            let news = (self.port.fault.get(), session.is_agreed(), session.refused(), session.hint());
            if last == Some(news) {
                return;
            }
            last = Some(news);
            let (fault, agreed, refused, hint) = news;
            let peer = match fault {
                Some(_) => Peer::Faulted,
                None if agreed => Peer::Connected,
                None => Peer::Waiting,
            };
            let mut detail = detail.clone();
            if let Some(fault) = fault {
                detail = format!("{detail}; stopped until the guest resets it: {fault}");
            }
            if refused > 0 {
                detail = format!("{detail}; commands refused: {refused}");
            }
            self.shared.set(peer, detail);
            self.shared.state().hint = hint;
        };
        let conversation = match found {
            Some(session) => Conversation::resume(stream, session, &self.port, &self.device),
            None => {
                let mut session = Session::new(name, &self.device, &self.port.terms);
                if let Some(path) = &self.hold {
                    session.hold_at(path.clone());
                }
                Conversation::new(stream, session, &self.port, &self.device)
            }
        };
        let leaving = || self.shared.state().leave;
        let (end, closing) = match conversation {
            Ok(conversation) => conversation.run(Others {
                wake: self.shared.wake.as_fd(),
                door: self.door.listener().map(AsFd::as_fd),
                knocked: &mut knocked,
                leaving: &leaving,
                changed: &mut changed,
            }),
            Err(e) => {
                tracing::warn!(port = %name, "the connection cannot be used: {e}");
                (End::Closed, None)
            }
        };
        self.closing = closing;
        match end {
            End::Closed => {
                tracing::info!(port = %name, "the VMM has left");
                // One that an earlier daemon has left was a guest's.
                let pause = if adopted { None } else { self.backoff.after(begun.elapsed(), asked) };
                if let Some(pause) = pause {
                    self.port.talk.left_at_once();
                    self.shared.set(Peer::Waiting, self.detail());
                    wait_for(&self.shared.wake, Some(pause));
                }
            }
            End::Silent => {
                self.port.talk.said_nothing();
                tracing::warn!(port = %name, "a client connected and was disconnected: it sent no VERSION in time");
                self.last_fault = Some("no_version: the client sent no VERSION in time".to_owned());
            }
            End::Called => {}
            End::Left => tracing::info!(port = %name, "the VMM is left to the next daemon"),
            End::Stopped(fault) => {
                self.last_fault = Some(fault.to_string());
                self.shared.set(Peer::Faulted, self.detail());
                wait_for(&self.shared.wake, Some(fault.penalty()));
            }
            End::Fault(why) => {
                let (fault, why) = (Fault::BadMessage, shown(&why, LONGEST_WHY));
                self.port.fault.set(fault);
                tracing::warn!(port = %name, fault = %fault.name(), "the conversation was ended: {why}");
                self.last_fault = Some(format!("{}: {why}", fault.name()));
                self.shared.set(Peer::Faulted, self.detail());
                wait_for(&self.shared.wake, Some(PENALTY));
            }
        }
    }
}
