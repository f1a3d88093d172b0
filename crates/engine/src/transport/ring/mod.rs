//! How a native program attaches to a ring port.
//!
//! Theory of operation. Each port listens at a socket of its own, so whoever may open that file may use that
//! port and no other: a container is given one by a bind mount. A client asks (`sidecore_abi::ring::Ask`), each
//! message being of one fixed size; asked to attach, the port makes a new memory region and puts its queues
//! live, then answers with descriptors. The connection stays open for as long as the client is attached: when it
//! ends, for whatever reason, the queues are taken back and the region goes, so nothing of one client is left
//! for the next. One client is attached at a time; others may ask what the port is like, be the ends of its
//! pipes (`pipes`), which lie in the same region, which goes with the last of them, or have copies of what passes (monitors),
//! in memory of their own.
//!
//! A port may be an end of a pipe to another port instead (`slots::pipe`). Its client then gets the pipe's memory (`end`), and goes on where
//! the pipe is. Pipes of its own and monitors such a port has none.
//!
//! A thread for each port does all this. Nothing that a client sends or leaves unsent makes it wait: it reads
//! what has arrived, and answers fit into a socket's buffer or the client is dropped.

mod device;
mod end;
mod group;
mod host;
mod pipes;
mod server;
mod taps;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sidecore_abi::ring::{End, Info};

pub use device::{device_path, Asker, Clients, Device, Verbs};
pub use host::{HostPort, HOST};
pub use server::MONITORS;

use group::Member;

use super::server::many::serve;
use super::server::socket::{Listener, SocketError};
use super::server::{Line, Running};
use crate::confine::Kinds;
use crate::fabric::Scheduler;
use crate::host::ring::{Monitor, Traits};
use crate::mem::take_no_descriptors;
use crate::open::make_folder;
use crate::port::{Attachment, AttachmentStatus, Peer, Port, QueueStatus};
use crate::ring::{Geometry, GeometryError, RingStats};
use crate::slots::pipe::End as PipeEnd;

/// Extra buffers that a client may have where the operator says nothing of them: 8 MiB of the usual size.
pub const EXTRA_LIMIT: u32 = 4096;

/// A ring port to be.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// The socket at which clients attach; it is made.
    pub path: PathBuf,
    /// Its permissions; by default those that the umask leaves.
    pub mode: Option<u32>,
    /// Its user and group; by default ours.
    pub owner: (Option<u32>, Option<u32>),
    /// The rings that a client gets.
    pub geometry: Geometry,
    /// Most extra buffers that a client may have by asking for them.
    pub extra_limit: u32,
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12. A client may change it.
    pub header: u32,
    /// The memory that it shares with others of this name; by default it has one of its own.
    pub memory: Option<String>,
    /// The pipe to another port of which it is an end, instead of a port of a switch.
    pub pipe: Option<String>,
}

impl RingConfig {
    /// One pair of rings at `path`, everything else by default.
    pub fn new(path: &Path) -> RingConfig {
        RingConfig {
            path: path.to_owned(),
            mode: None,
            owner: (None, None),
            geometry: Geometry::default(),
            extra_limit: EXTRA_LIMIT,
            header: 0,
            memory: None,
            pipe: None,
        }
    }
}

/// Where the sockets of ring ports with plain names are.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Says once where the sockets of ring ports with plain names are: the directory `ring` beside the daemon's control
/// socket, where clients look, too. Later calls change nothing.
pub fn set_directory(control_socket: &Path) {
    let beside = control_socket.parent().unwrap_or(Path::new("."));
    let _ = DIRECTORY.set(beside.join("ring"));
}

/// The socket of ring port `name`: a name with a slash is a path, others are files in the directory, which is made
/// if it is not there.
///
/// # Errors
/// Nobody has said where the directory is, or it cannot be made.
pub fn socket_path(name: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let directory = DIRECTORY.get().ok_or("ring ports need a path here: there is no control socket")?;
    make_folder(directory, 0o755).map_err(|e| format!("cannot make {}: {e}", directory.display()))?;
    Ok(directory.join(name))
}

/// Why a ring port cannot be.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Its rings.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Its header.
    #[error("a header of {0} bytes is not possible; allowed: 0, 10, 12")]
    Header(u32),
    /// Its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its part of a shared memory.
    #[error("memory {0:?} is shared by ports of other rings: queues, slots, buf-size, extra-bufs and pipes have to be the same")]
    OtherRings(String),
    /// As above.
    #[error("memory {0:?} is shared by {n} ports already, and there may be no more", n = crate::ring::SharedMemory::MEMBERS)]
    NoPart(String),
    /// Its pipe.
    #[error("{0}")]
    Pipe(io::Error),
    /// Its host rings.
    #[error("the ring port at {} has host rings already", .0.display())]
    HasHost(PathBuf),
    /// The system refused.
    #[error("cannot start the port's thread: {0}")]
    System(#[from] io::Error),
}

/// A running ring port.
pub struct RingPort {
    inner: Arc<Inner>,
    _running: Running,
}

/// What the thread and the owner share.
struct Inner {
    port: Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
    config: RingConfig,
    /// The port's part of a shared memory.
    member: Option<Member>,
    /// Its end of a pipe between ports.
    end: Option<Arc<PipeEnd>>,
    info: Info,
    traits: Arc<Traits>,
    state: Mutex<State>,
}

/// How it is doing.
#[derive(Default)]
struct State {
    /// The attached client's.
    rings: Rings,
    attaches: u64,
    /// Ends of pipes that are open.
    ends: usize,
    monitors: Vec<Arc<Monitor>>,
}

/// What went wrong on the pairs of rings that a client has: ingress, egress.
type Rings = Vec<(Arc<RingStats>, Arc<RingStats>)>;

/// A client's rings for `show`, with the slots of those that it sends on, and of the others.
fn ring_queues(rings: &Rings, (tx_slots, rx_slots): (u32, u32)) -> Vec<QueueStatus> {
    let mut queues = Vec::new();
    for (index, (ingress, egress)) in rings.iter().enumerate() {
        for (direction, size, stats) in [("ingress", tx_slots, ingress), ("egress", rx_slots, egress)] {
            let state = stats.describe();
            queues.push(QueueStatus { index, direction, size, kind: "ring", state, interrupts: None });
        }
    }
    queues
}

/// A port's monitor for `show`.
fn monitor_queue((index, monitor): (usize, &Arc<Monitor>), size: u32) -> QueueStatus {
    let sees = monitor.sees();
    let seen = match (sees.sent, sees.received) {
        (true, true) => "sent and received frames",
        (true, false) => "sent frames",
        _ => "received frames",
    };
    let of = match sees.end {
        Some(End::Master) => " of a pipe's end {",
        Some(End::Slave) => " of a pipe's end }",
        None => "",
    };
    let when = if sees.released { ", once released" } else { "" };
    let state = match monitor.lost() {
        0 => format!("running, sees {seen}{of}{when}"),
        lost => format!("running, sees {seen}{of}{when}, {lost} lost"),
    };
    QueueStatus { index, direction: "monitor", size, kind: "ring", state, interrupts: None }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RingPort {
    /// Listens at the socket; clients that attach become `port`.
    ///
    /// # Errors
    /// An impossible configuration, or what the system says of socket or thread.
    pub fn start(
        config: RingConfig,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<RingPort, RingError> {
        let member = match &config.memory {
            Some(name) => Some(Member::join(name, &config.geometry)?),
            None => None,
        };
        let end = match &config.pipe {
            Some(name) => {
                Some(PipeEnd::join(name, &config.geometry.of_pipe(), true).map_err(RingError::Pipe)?)
            }
            None => None,
        };
        let info = match (&member, &end) {
            (_, Some(end)) => Info { mem_id: end.mem_id(), ..*end.region().info() },
            (Some(member), None) => member.info()?,
            (None, None) => config.geometry.layout()?,
        };
        let traits = Arc::new(Traits::default());
        if !traits.set_header(config.header, &port) {
            return Err(RingError::Header(config.header));
        }
        let listener = Listener::bind(&config.path, config.mode, config.owner)?;
        take_no_descriptors(&listener);
        let name = format!("ring-{}", port.name);
        let inner =
            Arc::new(Inner { port, scheduler, config, member, end, info, traits, state: Mutex::default() });
        let (line, mut server) = (Line::new()?, server::Server::new(Arc::clone(&inner)));
        let (owner, port) = (Arc::clone(&line), Arc::clone(&inner.port));
        let running = Running::start(&line, name, Kinds::RING, move || {
            port.talk.is_held_here();
            serve(&mut server, listener, &owner);
        })?;
        Ok(RingPort { inner, _running: running })
    }
}

impl Attachment for RingPort {
    fn status(&self) -> AttachmentStatus {
        let state = self.inner.state();
        let Info { tx_slots, rx_slots, .. } = self.inner.info;
        let mut queues = ring_queues(&state.rings, (tx_slots, rx_slots));
        let mut features = match self.inner.traits.header() {
            0 => Vec::new(),
            bytes => vec![format!("header-{bytes}")],
        };
        features.extend(self.inner.config.memory.as_ref().map(|name| format!("memory-{name}")));
        let pipes = match state.ends {
            0 => String::new(),
            ends => format!("; open ends of pipes: {ends}"),
        };
        let peer = match (queues.is_empty(), state.ends) {
            (false, _) => Peer::Running,
            (true, 1..) => Peer::Connected,
            (true, 0) => Peer::Waiting,
        };
        queues.extend(state.monitors.iter().enumerate().map(|monitor| monitor_queue(monitor, rx_slots)));
        AttachmentStatus {
            peer,
            detail: format!(
                "listens at {}; clients so far: {}{pipes}",
                self.inner.config.path.display(),
                state.attaches
            ),
            hint: None,
            lack: None,
            features,
            queues,
        }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.inner.traits.set_down(!up);
        Ok(())
    }

    /// Rings have no carrier that a program could see; what it sends meanwhile is dropped at the other end.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }
}
