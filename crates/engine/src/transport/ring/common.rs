//! What a ring port's thread and its owner have in common, and what `show` tells of its rings.
//!
//! What a ring port is to be, and where its socket is.
//!
//! A client that is an end of a pipe between ports: it has the pipe's memory, and its queues move slots.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use sidecore_abi::ring::{End, Info};

use super::group::Member;
use crate::graph::{Pairs, Scheduler};
use crate::host::ring::{Monitor, PipeEgress, PipeIngress, PipePair, RingPortSettings};
use crate::port::{Port, QueueStatus};
use crate::ring::{Geometry, Region, RingStats};
use crate::sandbox::open::make_folder;
use crate::slots::pipe::End as PipeEnd;

/// One ring port's.
pub(super) struct Common {
    pub(super) port: Arc<Port>,
    pub(super) scheduler: Arc<dyn Scheduler>,
    pub(super) config: RingPortConfig,
    /// The port's part of a shared memory.
    pub(super) member: Option<Member>,
    /// Its end of a pipe between ports.
    pub(super) end: Option<Arc<PipeEnd>>,
    pub(super) info: Info,
    pub(super) settings: Arc<RingPortSettings>,
    pub(super) state: Mutex<RingPortState>,
}

/// How it is doing.
#[derive(Default)]
pub(super) struct RingPortState {
    /// The attached client's.
    pub(super) rings: Rings,
    pub(super) attaches: u64,
    /// Ends of pipes that are open.
    pub(super) ends: usize,
    pub(super) monitors: Vec<Arc<Monitor>>,
}

/// What went wrong on the pairs of rings that a client has: ingress, egress.
pub(super) type Rings = Vec<(Arc<RingStats>, Arc<RingStats>)>;

/// A client's rings for `show`, with the slots of those that it sends on, and of the others.
pub(super) fn ring_queues(rings: &Rings, (tx_slots, rx_slots): (u32, u32)) -> Vec<QueueStatus> {
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
pub(super) fn monitor_queue((index, monitor): (usize, &Arc<Monitor>), size: u32) -> QueueStatus {
    let sees = monitor.sees;
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

/// Extra buffers that a client may have where the operator says nothing of them: 8 MiB of the usual size.
pub const EXTRA_LIMIT: u32 = 4096;

/// A ring port to be.
#[derive(Clone, Debug, Default)]
pub struct RingPortConfig {
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

impl RingPortConfig {
    /// One pair of rings at `path`, everything else by default.
    pub fn new(path: &Path) -> RingPortConfig {
        RingPortConfig { path: path.to_owned(), extra_limit: EXTRA_LIMIT, ..RingPortConfig::default() }
    }
}

/// Where the sockets of ring ports with plain names are.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Says once where the sockets of ring ports with plain names are: the directory `ring` beside the daemon's
/// control socket, where clients look, too. Makes it if it is not there. The daemon may be kept from it
/// afterwards, because its user cannot enter the folder of the control socket; then the broker makes the
/// sockets. Later calls change nothing.
///
/// # Errors
/// It cannot be made.
pub fn set_directory(control_socket: &Path) -> Result<(), String> {
    let beside = control_socket.parent().unwrap_or(Path::new("."));
    let directory = DIRECTORY.get_or_init(|| beside.join("ring"));
    make_folder(directory, 0o755).map_err(|e| format!("cannot make {}: {e}", directory.display()))
}

/// The socket of ring port `name`: a name with a slash is a path, others are files in the directory.
///
/// # Errors
/// It is not set where the directory is.
pub fn socket_path(name: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let directory = DIRECTORY.get().ok_or("ring ports need a path here: there is no control socket")?;
    Ok(directory.join(name))
}

/// The path of netmap's device: beside the sockets of ring ports.
///
/// # Errors
/// As [`socket_path`].
pub fn device_path() -> Result<PathBuf, String> {
    socket_path(sidecore_abi::vale::SOCKET)
}

/// The client's queues, in the hands of cores and port.
pub(super) struct Piped {
    common: Arc<Common>,
    end: Arc<PipeEnd>,
    lent: Pairs<PipeIngress, PipeEgress>,
}

impl Piped {
    /// A client comes: its queues are live when this returns. What it is to be told, and the descriptors that
    /// it gets: the memory, kicks, what wakes it for sending, and for receiving.
    ///
    /// # Errors
    /// There is no memory, or there are no descriptors.
    pub(super) fn attach(
        common: &Arc<Common>,
        end: &Arc<PipeEnd>,
    ) -> io::Result<(Piped, Info, Vec<OwnedFd>)> {
        let region = end.enter()?;
        // From here on the end is left again whatever happens.
        let mut piped = Piped { common: Arc::clone(common), end: Arc::clone(end), lent: Pairs::default() };
        common.port.fault.clear();
        end.restart();
        let info = *region.info();
        (0..info.tx_rings).for_each(|ring| end.set_position(ring));
        let pairs: Vec<PipePair> = (0..info.tx_rings as usize)
            .map(|ring| PipePair::new(end, ring, &common.port, &common.settings))
            .collect::<io::Result<_>>()?;
        let mut fds = copies(&region, pairs.iter().map(PipePair::kick))?;
        {
            let mut state = crate::lock(&common.state);
            state.rings = pairs.iter().map(PipePair::stats).collect();
            state.attaches += 1;
        }
        let mut wakes = Vec::new();
        for PipePair { ingress, mut egress, wake_tx, wake_rx } in pairs {
            fds.push(wake_tx);
            wakes.push(wake_rx);
            egress.show();
            piped.lent.receive(&common.port, egress);
            piped.lent.send(&common.port, &common.scheduler, ingress);
        }
        fds.append(&mut wakes);
        Ok((piped, Info { mem_id: end.mem_id(), ..info }, fds))
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.lent.take_back();
        self.end.leave();
        crate::lock(&self.common.state).rings.clear();
    }
}

/// Copies of the file of `region` and of `others`, for a client.
pub(super) fn copies<'f>(
    region: &'f Region,
    others: impl Iterator<Item = BorrowedFd<'f>>,
) -> io::Result<Vec<OwnedFd>> {
    std::iter::once(region.file()).chain(others).map(|fd| fd.try_clone_to_owned()).collect()
}
