//! vhost-user: the conversation with a VMM that runs a virtio device's other half.
//!
//! Theory of operation. Each device has a thread of its own that meets a peer ([`super::socket`]), talks with it
//! ([`conversation`]) and, when the peer is gone, waits for the next one, for ever. It never touches a
//! frame; it sets rings up ([`backend`]) and hands them to the device. It blocks on nothing but its own
//! poll and the I/O core that gives a ring back, so it can always be stopped.
//!
//! Reconnection. A VMM that finds its back end gone replays the whole set-up to the next one. Where its
//! rings stand is taken from guest memory (split) or from our journal (packed, [`journal`]), not from
//! what the VMM remembers.
//!
//! Faults. What breaks the protocol or a ring ends the conversation and is named once in the log and,
//! until the next fault, in `show`. The peer may come back after a second, so that a broken guest cannot
//! make us spin.
//!
//! Limits: no IOMMU (ACCESS_PLATFORM), no postcopy, no in-band notifications, no requests to the front
//! end, and a disabled ring is left alone where the specification would have its frames discarded: they
//! go out when it is enabled again.

mod backend;
mod conversation;
mod handlers;
mod journal;
mod log;
mod messages;
mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags, PollFd, PollFlags};

pub use super::socket::{check_path, Endpoint, SocketError, MAX_PATH};

use self::backend::Backend;
use self::conversation::{lock, Conversation, End};
use self::journal::Slots;
use super::connection::Connection;
use super::socket::{call, Door, Listener};
use super::supervise;
use super::wait::{await_close, has_left, wait, wait_for, CLOSING, LONGEST_WHY};
use crate::device::VirtioDevice;
use crate::door::Closing;
use crate::fault::{shown, Fault};
use crate::open::spare::Seldom;
use crate::open::{journal, journal_at};
use crate::port::{Attachment, AttachmentStatus, Peer, Port};

/// First and longest pause between two attempts at something that fails. The longest is also what a peer
/// has to wait that broke a rule.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// That no VMM can be accepted.
static SAID: Seldom = Seldom::new();

/// What an operator can choose of the conversation.
#[derive(Debug)]
pub struct VhostUserConfig {
    /// Where the VMM is met.
    pub endpoint: Endpoint,
    /// Where packed rings keep their positions, so that the guest goes on after this process was killed. Best on a
    /// tmpfs. Without it positions survive the connection but not the process.
    pub journal: Option<JournalAt>,
}

/// Where a journal is.
#[derive(Debug)]
pub enum JournalAt {
    /// In the daemon's folder of journals, under the name of the port; none if there is no such folder.
    Ours,
    /// The operator's file; one that is there has to be ours alone.
    Path(PathBuf),
}

/// Why a device cannot be put on a socket.
#[derive(Debug, thiserror::Error)]
pub enum VhostUserError {
    /// Its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its journal.
    #[error("cannot use the journal \"{}\": {source}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something that every conversation needs.
    #[error("cannot start the conversation: {0}")]
    System(#[from] io::Error),
}

struct Control {
    stop: bool,
    link: bool,
}

struct Shared {
    control: Mutex<Control>,
    /// Readable when `control` has changed.
    wake: OwnedFd,
    status: Mutex<AttachmentStatus>,
}

impl Shared {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_status(&self, status: AttachmentStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    fn call(&self) {
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn heard(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}

/// A virtio device on a vhost-user socket.
pub struct VhostUser {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl VhostUser {
    /// Puts `device` on the socket and talks to whoever is at the other end, until this is dropped.
    ///
    /// # Errors
    /// The socket or the journal cannot be used.
    pub fn start<D: VirtioDevice + 'static>(
        config: VhostUserConfig,
        device: D,
    ) -> Result<VhostUser, VhostUserError> {
        // First: whoever has the door may use the journal.
        let door = Door::new(config.endpoint)?;
        let positions = match config.journal {
            None => Slots::anonymous(device.rings())?,
            Some(at) => open_journal(at, &device.port().name, device.rings())?,
        };
        let shared = Arc::new(Shared {
            control: Mutex::new(Control { stop: false, link: true }),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
            status: Mutex::new(idle(Peer::Waiting, door.describe())),
        });
        let mut host = Host {
            port: Arc::clone(device.port()),
            shared: Arc::clone(&shared),
            backend: Arc::new(Mutex::new(Backend::new(device, positions))),
            door,
            last_fault: None,
            pause: PAUSES.0,
            closing: None,
        };
        // The kernel shows 15 bytes of it.
        let name = format!("vu-{}", host.port.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            crate::confine::enter(crate::confine::Kinds::VHOST_USER);
            host.port.talk.is_held_here();
            host.guarded();
        })?;
        Ok(VhostUser { shared, thread: Some(thread) })
    }
}

/// The journal of the port `name`, with room for `rings` rings.
fn open_journal(at: JournalAt, name: &str, rings: usize) -> Result<Slots, VhostUserError> {
    let opened = match at {
        JournalAt::Path(path) => journal_at(&path).map(Some).map_err(|e| (path, e)),
        JournalAt::Ours => journal(name),
    };
    let fail = |(path, source)| VhostUserError::Journal { path, source };
    let Some(journal) = opened.map_err(fail)? else { return Ok(Slots::anonymous(rings)?) };
    Slots::open(&journal.file, rings).map_err(|source| {
        let path = journal.path.clone();
        journal.undo();
        VhostUserError::Journal { path, source }
    })
}

impl Attachment for VhostUser {
    fn status(&self) -> AttachmentStatus {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Down: hangs up and is not to be reached, which is what VMMs show their guest as a lost carrier.
    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.shared.control().link = up;
        self.shared.call();
        Ok(())
    }

    /// Only the device's configuration tells: hanging up would leave nobody there for the other end to
    /// follow, and neither would ever come up.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.shared.control().stop = true;
        self.shared.call();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// The thread's own.
struct Host<D: VirtioDevice> {
    port: Arc<Port>,
    shared: Arc<Shared>,
    backend: Arc<Mutex<Backend<D>>>,
    door: Door,
    last_fault: Option<String>,
    pause: Duration,
    /// Where a file of the last VMM is still being closed.
    closing: Option<Closing>,
}

impl<D: VirtioDevice> Host<D> {
    /// [`Host::run`], again after each failure.
    fn guarded(&mut self) {
        let (port, shared) = (Arc::clone(&self.port), Arc::clone(&self.shared));
        let stops = || shared.control().stop;
        let clean = |host: &mut Self| {
            let fault = Fault::Internal;
            host.last_fault = Some(fault.to_string());
            host.shared.set_status(idle(Peer::Faulted, host.detail()));
            lock(&host.backend).disconnect(true);
        };
        supervise::run(self, &port, &shared.wake, stops, clean, Host::run);
    }

    fn run(&mut self) {
        let mut link = true;
        loop {
            self.shared.heard();
            let control = {
                let control = self.shared.control();
                (control.stop, control.link)
            };
            if control.0 {
                return;
            }
            if link != control.1 {
                link = control.1;
                tracing::info!(port = %self.port.name, "link set {}", if link { "up" } else { "down" });
            }
            if !link {
                self.door.close();
                self.shared.set_status(idle(Peer::Waiting, "link set down".to_owned()));
                wait_for(&self.shared.wake, None);
                continue;
            }
            if let Err(e) = self.door.open() {
                self.shared.set_status(idle(Peer::Waiting, e.to_string()));
                wait_for(&self.shared.wake, Some(PAUSES.1));
                continue;
            }
            let peer = if self.last_fault.is_some() { Peer::Faulted } else { Peer::Waiting };
            self.shared.set_status(idle(peer, self.detail()));
            if let Some(closing) = &self.closing {
                let detail = || format!("{}; {CLOSING}", self.detail());
                let told = || self.shared.set_status(idle(Peer::Faulted, detail()));
                if await_close(closing, &self.shared.wake, told) {
                    self.closing.take().into_iter().for_each(Closing::done);
                }
                continue;
            }
            if let Some(stream) = self.meet() {
                self.talk(stream);
            }
        }
    }

    fn detail(&self) -> String {
        match &self.last_fault {
            Some(fault) => format!("{}; last fault: {fault}", self.door.describe()),
            None => self.door.describe(),
        }
    }

    /// Waits for a peer. `None`: the owner calls.
    fn meet(&mut self) -> Option<Connection> {
        let mut pause = PAUSES.0;
        loop {
            let mut again = None;
            match &mut self.door {
                Door::Once { stream } => {
                    if let Some(stream) = stream.take() {
                        return Some(stream);
                    }
                }
                Door::Call { path } => match call(path) {
                    Ok(stream) => return Some(stream),
                    Err(e) => {
                        tracing::debug!(port = %self.port.name, "no VMM at {}: {e}", path.display());
                        again = Some(pause);
                    }
                },
                door => match door.listener().map(Listener::accept) {
                    // The owner is listened to before the next one.
                    Some(Ok(Some(stream))) if has_left(&stream) => self.port.talk.left_at_once(),
                    Some(Ok(Some(stream))) => return Some(stream),
                    Some(Err(e)) => {
                        if SAID.is_due() {
                            tracing::warn!(port = %self.port.name, "cannot accept a VMM: {e}");
                        }
                        again = Some(PAUSES.1);
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
            let door = self.door.listener().filter(|_| again.is_none());
            fds.extend(door.map(|door| PollFd::new(door, PollFlags::IN)));
            if wait(&mut fds, again).is_err() || !fds[0].revents().is_empty() {
                return None;
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn talk(&mut self, stream: Connection) {
        let port = Arc::clone(&self.port);
        tracing::info!(port = %port.name, "a VMM has connected");
        port.talk.connected();
        port.fault.clear();
        let mut conversation = match Conversation::new(stream, Arc::clone(&self.backend)) {
            Ok(conversation) => conversation,
            Err(e) => {
                tracing::warn!(port = %port.name, "the connection cannot be used: {e}");
                self.pause();
                return;
            }
        };
        let (detail, mut refusals, mut ran) = (self.detail(), 0, false);
        let mut knocked = || {
            let refused = self.door.listener().is_some_and(Listener::refuse);
            refusals += u32::from(refused);
            port.talk.refused(refused.into());
            if refused && refusals == 1 {
                tracing::warn!(port = %port.name, "a second VMM has called and was refused: one at a time");
            }
            refused
        };
        let mut changed = |backend: &Backend<D>| {
            let status = backend.status(detail.clone());
            ran |= status.peer == Peer::Running;
            self.shared.set_status(status);
        };
        changed(&lock(&self.backend));
        let door = self.door.listener().map(AsFd::as_fd);
        let end = conversation.run(self.shared.wake.as_fd(), door, &mut knocked, &mut changed);
        // First nobody touches the guest's memory any more, then the VMM learns that we are gone.
        lock(&self.backend).disconnect(matches!(end, End::Fault(..)));
        let closing = conversation.closing();
        drop(conversation);
        self.closing = closing;
        match end {
            End::Called => {}
            End::Closed => {
                tracing::info!(port = %port.name, "the VMM has left");
                if ran {
                    self.pause = PAUSES.0;
                } else {
                    port.talk.left_at_once();
                    // Who comes and goes without a purpose shall not keep us busy.
                    self.shared.set_status(idle(Peer::Waiting, self.detail()));
                    self.pause();
                }
            }
            End::Silent => {
                port.talk.said_nothing();
                tracing::warn!(port = %port.name, "a client connected and was disconnected: it said nothing in time");
                self.last_fault = Some("no_message: the client said nothing in time".to_owned());
            }
            End::Fault(fault, why) => {
                let why = shown(&why, LONGEST_WHY);
                port.fault.set(fault);
                tracing::warn!(port = %port.name, fault = %fault.name(), "the port was stopped: {why}");
                let name = fault.name();
                self.last_fault = Some(if why.starts_with(&name) { why } else { format!("{name}: {why}") });
                self.shared.set_status(idle(Peer::Faulted, self.detail()));
                wait_for(&self.shared.wake, Some(fault.penalty().max(PAUSES.1)));
            }
        }
    }

    /// Waits a little, and longer the next time; less if the owner calls.
    fn pause(&mut self) {
        wait_for(&self.shared.wake, Some(self.pause));
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

fn idle(peer: Peer, detail: String) -> AttachmentStatus {
    AttachmentStatus { peer, detail, hint: None, features: Vec::new(), queues: Vec::new() }
}
