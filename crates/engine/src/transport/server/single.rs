//! A socket with one client at a time: its thread meets a client, talks with it and, when it is gone, waits
//! for the next one, for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::connection::{await_close, Connection, CLOSING};
use super::conversation::{self, ConversationEnd, Exchange};
use super::socket::{call, Listener, PeerSource};
use super::{supervise, OwnerLine, Running};
use crate::port::{AttachmentStatus, Lack, Peer, Port};
use crate::util::bucket::{nanos, nanos_at, Bucket};
use crate::util::fault::{shown, Fault};
use crate::util::{has_left, wait, wait_for};

/// Most characters that are shown of what was wrong with a message.
const LONGEST_WHY: usize = 400;

/// First and longest pause between two attempts at something that fails. The longest is also what a client
/// has to wait that broke a rule, and the time in which one client may come for nothing: it costs a set-up,
/// and where connections are kept a process.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Clients that may come for nothing at once. One that had come for something has them all forgiven.
const AT_ONCE: u64 = 2;

/// What is spoken at a socket.
pub(in crate::transport) trait Protocol: Send + 'static {
    /// A conversation with one client.
    type Exchange: Exchange;
    /// How the thread is called in front of its port's name.
    const THREAD: &'static str;
    /// A conversation that was shorter was for nothing.
    const BRIEFLY: Duration;
    /// The name of the fault of a client that does not begin to speak, and what is said of it.
    const SILENCE: (&'static str, &'static str);
    /// Whether peers that we call have to send something in time, too.
    const LIMITS_ALL: bool;
    /// Whether the next client makes the last fault be forgotten.
    const FORGETS: bool;

    /// The port.
    fn port(&self) -> &Arc<Port>;

    /// The client that an earlier daemon has left; its conversation is begun next.
    fn left(&mut self) -> Option<UnixStream> {
        None
    }

    /// Begins the exchange with the client on `stream`.
    fn begin(&mut self, stream: Connection) -> io::Result<Self::Exchange>;

    /// A conversation has failed, by a bug: what it held is given back.
    fn failed(&mut self);
}

/// The owner's side.
pub(in crate::transport) struct Server {
    status: Arc<Mutex<AttachmentStatus>>,
    running: Running,
}

impl Server {
    /// Serves one client after the other of `source`, until this is dropped.
    pub(in crate::transport) fn start<P: Protocol>(source: PeerSource, protocol: P) -> io::Result<Server> {
        let line = OwnerLine::new()?;
        let status = Arc::new(Mutex::new(idle(Peer::Waiting, source.describe())));
        let port = Arc::clone(protocol.port());
        let name = format!("{}-{}", P::THREAD, port.name);
        let mut host = Host {
            port,
            line: Arc::clone(&line),
            status: Arc::clone(&status),
            protocol,
            source,
            last_fault: None,
            closing: None,
            idlers: Bucket::new(),
        };
        let running = Running::start(&line, name, move || {
            host.port.messages.is_held_here();
            host.guarded();
        })?;
        Ok(Server { status, running })
    }

    /// How the conversation is doing.
    pub(in crate::transport) fn status(&self) -> AttachmentStatus {
        crate::lock(&self.status).clone()
    }

    /// What it waits for.
    pub(in crate::transport) fn lack(&self) -> Option<Lack> {
        crate::lock(&self.status).lack
    }

    /// Down: hangs up, and is not to be reached.
    pub(in crate::transport) fn set_link(&self, up: bool) {
        self.running.line.call(|wishes| wishes.link = up);
    }

    /// The end will leave the client to the next daemon.
    pub(in crate::transport) fn leave(&self) {
        self.running.line.wish(|wishes| wishes.leave = true);
    }
}

/// The thread's own.
struct Host<P> {
    port: Arc<Port>,
    line: Arc<OwnerLine>,
    status: Arc<Mutex<AttachmentStatus>>,
    protocol: P,
    source: PeerSource,
    last_fault: Option<String>,
    /// Where a file of the last client is still being closed.
    closing: Option<OwnedFd>,
    /// Clients that came for nothing.
    idlers: Bucket,
}

impl<P: Protocol> Host<P> {
    /// [`Host::run`], again after each failure.
    fn guarded(&mut self) {
        let (port, line) = (Arc::clone(&self.port), Arc::clone(&self.line));
        let clean = |host: &mut Self| {
            host.last_fault = Some(Fault::Internal.to_string());
            host.set(Peer::Faulted);
            host.protocol.failed();
        };
        supervise(self, &port, &line, clean, Host::run);
    }

    fn run(&mut self) {
        if let Some(stream) = self.protocol.left() {
            self.converse(stream.into(), true);
        }
        let mut link = true;
        loop {
            let wishes = self.line.heard();
            if wishes.stop {
                return;
            }
            if link != wishes.link {
                link = wishes.link;
                tracing::info!(port = %self.port.name, "link set {}", if link { "up" } else { "down" });
            }
            if !link {
                self.source.close();
                self.show(idle(Peer::Waiting, "link set down".to_owned()));
                wait_for(&*self.line, None);
                continue;
            }
            if let Err(e) = self.source.open() {
                self.show(idle(Peer::Waiting, e.to_string()));
                wait_for(&*self.line, Some(PAUSES.1));
                continue;
            }
            self.set(if self.last_fault.is_some() { Peer::Faulted } else { Peer::Waiting });
            if let Some(closing) = &self.closing {
                let told = || self.show(idle(Peer::Faulted, format!("{}; {CLOSING}", self.detail())));
                if await_close(closing, &*self.line, told) {
                    self.closing = None;
                }
                continue;
            }
            if let Some(stream) = self.meet() {
                self.converse(stream, false);
            }
        }
    }

    fn show(&self, status: AttachmentStatus) {
        *crate::lock(&self.status) = status;
    }

    fn set(&self, peer: Peer) {
        self.show(idle(peer, self.detail()));
    }

    fn detail(&self) -> String {
        match &self.last_fault {
            Some(fault) => format!("{}; last fault: {fault}", self.source.describe()),
            None => self.source.describe(),
        }
    }

    /// Waits for a client. `None`: the owner calls.
    fn meet(&mut self) -> Option<Connection> {
        let mut pause = PAUSES.0;
        loop {
            let mut again = None;
            match &mut self.source {
                PeerSource::Once { stream } => {
                    if let Some(stream) = stream.take() {
                        return Some(stream);
                    }
                }
                PeerSource::Call { path } => match call(path) {
                    Ok(stream) => return Some(stream),
                    Err(e) => {
                        tracing::debug!(port = %self.port.name, "no VMM at {}: {e}", path.display());
                        again = Some(pause);
                    }
                },
                source => match source.listener().map(Listener::accept) {
                    // One that did not want to wait until it was let in came for nothing, and nothing was
                    // done for it. The owner is listened to before the next one.
                    Some(Ok(Some(stream))) if has_left(&stream) => {
                        self.port.messages.note(|counts| counts.brief += 1)
                    }
                    Some(Ok(Some(stream))) => return Some(stream),
                    Some(Err(e)) => {
                        tracing::warn!(port = %self.port.name, "cannot accept a VMM: {e}");
                        again = Some(PAUSES.1);
                    }
                    Some(Ok(None)) => {
                        let turned_away = self.source.listener().map_or(0, Listener::turned_away);
                        self.port.messages.note(|counts| counts.refused += turned_away);
                    }
                    None => {}
                },
            }
            let mut fds = vec![PollFd::new(&*self.line, PollFlags::IN)];
            // A listener that cannot accept stays readable: then only time helps.
            let newcomers = self.source.listener().filter(|_| again.is_none());
            fds.extend(newcomers.map(|listener| PollFd::new(listener, PollFlags::IN)));
            if wait(&mut fds, again).is_err() || !fds[0].revents().is_empty() {
                return None;
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Talks with a client until there is an end. `left`: by an earlier daemon.
    fn converse(&mut self, stream: Connection, left: bool) {
        let port = Arc::clone(&self.port);
        if !left {
            tracing::info!(event = "peer", port = %port.name, "a VMM has connected");
            port.messages.note(|counts| counts.connections += 1);
        }
        port.messages.meets(&stream);
        port.overrun.meets();
        port.fault.clear();
        if P::FORGETS {
            self.last_fault = None;
        }
        let (begun, detail) = (Instant::now(), self.detail());
        let (end, asked) = match self.protocol.begin(stream) {
            Ok(mut exchange) => {
                let listener = self.source.listener();
                let show = |exchange: &mut P::Exchange| {
                    if let Some(status) = exchange.status(&detail) {
                        self.show(status);
                    }
                };
                let limits = P::LIMITS_ALL || listener.is_some();
                let end = conversation::run(&mut exchange, &port, &self.line, listener, limits, show);
                let asked = exchange.has_asked() && begun.elapsed() >= P::BRIEFLY;
                self.closing = exchange.end(matches!(end, ConversationEnd::Fault(..)));
                (end, asked)
            }
            Err(e) => {
                tracing::warn!(event = "fault", port = %port.name, "the connection cannot be used: {e}");
                (ConversationEnd::Closed, false)
            }
        };
        port.messages.parts();
        port.memory_is_gone();
        match end {
            ConversationEnd::Called => {}
            ConversationEnd::Left => {
                tracing::info!(event = "peer", port = %port.name, "the VMM is left to the next daemon")
            }
            ConversationEnd::Closed => {
                tracing::info!(event = "peer", port = %port.name, "the VMM has left");
                if asked {
                    // A good one: what an earlier one did is in the log.
                    self.last_fault = None;
                }
                // One that an earlier daemon has left was a guest's.
                if asked || left {
                    self.idlers.forgive();
                } else {
                    port.messages.note(|counts| counts.brief += 1);
                    self.show(idle(Peer::Waiting, self.detail()));
                    let (one, at_once) = (nanos(PAUSES.1), nanos(PAUSES.1) * AT_ONCE);
                    let ahead = self.idlers.add(one, at_once + one, nanos_at(Instant::now()));
                    wait_for(&*self.line, Some(Duration::from_nanos(ahead.saturating_sub(at_once))));
                }
            }
            ConversationEnd::Silent => {
                let (name, what) = P::SILENCE;
                port.messages.note(|counts| counts.silent += 1);
                tracing::warn!(event = "fault", port = %port.name, "a client connected and was disconnected: it {what} in time");
                self.last_fault = Some(format!("{name}: the client {what} in time"));
            }
            ConversationEnd::Fault(fault, why) => {
                let (name, why) = (fault.name(), shown(&why, LONGEST_WHY));
                port.fault.set(fault);
                tracing::warn!(event = "fault", port = %port.name, fault = %name, "the conversation was ended: {why}");
                self.last_fault = Some(if why.starts_with(&name) { why } else { format!("{name}: {why}") });
                self.set(Peer::Faulted);
                wait_for(&*self.line, Some(fault.penalty().max(PAUSES.1)));
            }
        }
    }
}

/// The status of a port without a client.
fn idle(peer: Peer, detail: String) -> AttachmentStatus {
    let lack = (peer == Peer::Waiting).then_some(Lack::Vmm);
    AttachmentStatus { peer, detail, lack, ..AttachmentStatus::default() }
}
