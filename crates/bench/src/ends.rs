//! The ends of a path through a switch: one that sends as fast as it can, one that takes what comes.
//!
//! Ring ports and vhost-user ports are driven as the load of `bench pvp` drives them: a new sequence number in every frame,
//! every received one read. Of a host interface the far side is ours as well: what is to come out of it a packet socket puts
//! in (of a TAP on the interface itself, of the others on the other end of a veth pair), and what goes into it the host's
//! stack drops, since no socket there is its destination; the interface counts it.

use std::path::{Path, PathBuf};

use sidecore_driver::load::{frame, End, LoadConfig, TAG, TAG_MASK};
use sidecore_driver::{Frontend, Listener};

use super::net::Net;
use super::ours::START;
use sidecore_pktgen::end::host::{self, HostLane};
use sidecore_pktgen::end::ring::{self, RingLane};
use sidecore_pktgen::end::{Lane, Opened, Sink, Source};

/// Frames sent at once.
const BURST: usize = 64;

type Result<T> = std::result::Result<T, String>;

/// A kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// A ring port.
    Ring,
    /// virtio-net over vhost-user.
    VhostUser,
    /// TAP.
    Tap,
    /// AF_XDP on a veth pair.
    Xdp,
    /// AF_PACKET on a veth pair.
    Packet,
    /// A veth pair without a port of ours: a bridge's.
    #[value(skip)]
    Veth,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ring => "ring",
            Kind::VhostUser => "vhost-user",
            Kind::Tap => "tap",
            Kind::Xdp => "xdp",
            Kind::Packet => "packet",
            Kind::Veth => "veth",
        }
    }

    /// Whether the far side is the kernel's.
    pub fn is_host(self) -> bool {
        !matches!(self, Kind::Ring | Kind::VhostUser)
    }

    /// Whether there has to be a veth pair.
    fn is_pair(self) -> bool {
        matches!(self, Kind::Xdp | Kind::Packet | Kind::Veth)
    }
}

/// Where port `number` (0 or 1) of a path is.
#[derive(Debug)]
pub struct PathEnd {
    /// What it is.
    pub kind: Kind,
    number: u8,
    /// Of a socket, its path.
    pub path: PathBuf,
    /// Where the port's side of an interface is.
    near: String,
    /// Where the other is.
    far: String,
}

impl PathEnd {
    /// Makes what has to be there before any switch starts, in the namespace `net` and the directory `dir`.
    pub fn make(kind: Kind, number: u8, net: &Net, dir: &Path) -> Result<PathEnd> {
        let near = format!("near{number}");
        let far = if kind.is_pair() { format!("far{number}") } else { near.clone() };
        let end = PathEnd { kind, number, path: dir.join(format!("s{number}")), near, far };
        if kind.is_pair() {
            let PathEnd { near, far, .. } = &end;
            net.ip(&format!("link add {near} type veth peer name {far}"))?;
            net.ip(&format!("link set {near} up"))?;
            net.ip(&format!("link set {far} up"))?;
        }
        Ok(end)
    }

    /// The port, as `sidecore run --port` takes it.
    pub fn spec(&self) -> String {
        match self.kind {
            Kind::Ring | Kind::VhostUser => format!("{}:{}", self.kind.name(), self.path.display()),
            _ => format!("{}:{}", self.kind.name(), self.near),
        }
    }

    /// The port's side of the interface.
    pub fn near(&self) -> &str {
        &self.near
    }

    /// The same end, if it is a TAP called as Open vSwitch calls its ports.
    pub fn of_ovs(self) -> PathEnd {
        let name = ["a", "b"][usize::from(self.number)];
        PathEnd { near: name.to_owned(), far: name.to_owned(), ..self }
    }

    /// Connects to the port, or to the one that connects to `listener`, for frames of `bytes` bytes. On a thread in
    /// the namespace.
    pub fn connect(&self, listener: Option<&Listener>, bytes: usize) -> Result<Side> {
        Ok(match self.kind {
            Kind::Ring => {
                let Opened { mut lanes, keep, .. } =
                    ring::open(&self.path.to_string_lossy(), 1, None, bytes)?;
                let lane = lanes.pop().ok_or("the ring port has no ring")?;
                Side::Ring { lane: Box::new(lane), tags: Tags::new(self.number, bytes), _keep: keep }
            }
            Kind::VhostUser => {
                let frontend = match listener {
                    Some(listener) => listener.accept(START),
                    None => Frontend::connect(&self.path, START),
                };
                let config = LoadConfig { frame: bytes, ..LoadConfig::default() };
                let end = frontend.and_then(|frontend| End::new(frontend, &config, self.number));
                Side::Virtio { end: Box::new(end.map_err(|e| e.to_string())?), received: 0 }
            }
            _ => {
                let Opened { mut lanes, keep, .. } = host::open(host::Kind::Packet, &self.far, 1, bytes)?;
                let lane = lanes.pop().ok_or("the packet socket has no queue")?;
                let tags = Tags::new(self.number, bytes);
                Side::Host { lane: Box::new(lane), tags, far: self.far.clone(), _keep: keep }
            }
        })
    }

    /// Takes away what [`PathEnd::make`] made.
    pub fn clean(&self, net: &Net) {
        if self.kind.is_pair() {
            // It may be gone with its switch.
            let _ = net.ip(&format!("link del {}", self.near));
        }
    }
}

/// One end, connected.
pub enum Side {
    /// A ring port's program.
    Ring {
        /// Its rings.
        lane: Box<RingLane>,
        /// What it sends and has seen.
        tags: Tags,
        /// Stays while the lane does.
        _keep: Box<dyn Send>,
    },
    /// A guest's driver.
    Virtio {
        /// Its queues.
        end: Box<End>,
        /// Frames that have come.
        received: u64,
    },
    /// The far side of a host interface.
    Host {
        /// To send.
        lane: Box<HostLane>,
        /// What it sends.
        tags: Tags,
        /// Its interface.
        far: String,
        /// Stays while the lane does.
        _keep: Box<dyn Send>,
    },
}

impl Side {
    /// Sends a burst, or what of at most `most` frames finds room; how many.
    #[inline]
    pub fn send(&mut self, most: usize) -> Result<usize> {
        let most = most.min(BURST);
        match self {
            Side::Ring { lane, tags, .. } => {
                let room = lane.room()?.min(most);
                Ok(lane.send(room, tags)?.frames)
            }
            Side::Virtio { end, .. } => {
                let most = u16::try_from(most).unwrap_or(u16::MAX);
                end.send(most).map(usize::from).map_err(|e| e.to_string())
            }
            Side::Host { lane, tags, .. } => {
                let room = lane.room()?.min(most);
                Ok(lane.send(room, tags)?.frames)
            }
        }
    }

    /// Takes what has come. The host's stack does so by itself.
    #[inline]
    pub fn receive(&mut self) -> Result<()> {
        match self {
            Side::Ring { lane, tags, .. } => {
                lane.receive(usize::MAX, tags)?;
            }
            Side::Virtio { end, received } => {
                *received += u64::from(end.receive().map_err(|e| e.to_string())?);
            }
            Side::Host { .. } => {}
        }
        Ok(())
    }

    /// Frames that have arrived so far.
    pub fn received(&self) -> Result<u64> {
        match self {
            Side::Ring { tags, .. } => Ok(tags.received),
            Side::Virtio { received, .. } => Ok(*received),
            Side::Host { far, .. } => interface_received(far),
        }
    }

    /// Frames that are missing, and frames that should not have come; unknown for a host interface.
    pub fn lost_and_wrong(&self) -> (u64, u64) {
        match self {
            Side::Ring { tags, .. } => (tags.lost, tags.wrong),
            Side::Virtio { end, .. } => end.lost_and_wrong(),
            Side::Host { .. } => (0, 0),
        }
    }
}

/// Tagged frames as the load has them: only the first cache line of a sent frame is written, and of a received one read.
pub struct Tags {
    line: Vec<u8>,
    bytes: usize,
    sent: u64,
    /// First bytes of the frames that belong here.
    start: [u8; 8],
    next: u64,
    received: u64,
    lost: u64,
    wrong: u64,
}

impl Tags {
    fn new(number: u8, bytes: usize) -> Tags {
        let mut line = frame(number, bytes);
        line.truncate(64);
        let mut start = [0; 8];
        start.copy_from_slice(&frame(1 - number, bytes)[..8]);
        Tags { line, bytes, sent: 0, start, next: 0, received: 0, lost: 0, wrong: 0 }
    }
}

impl Source for Tags {
    fn fixed(&self) -> Option<usize> {
        None
    }

    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        self.line[TAG..TAG + 8].copy_from_slice(&(self.sent & TAG_MASK).to_le_bytes());
        self.sent += 1;
        buffer[..self.line.len()].copy_from_slice(&self.line);
        self.bytes
    }
}

impl Sink for Tags {
    const READS: bool = true;

    #[inline]
    fn frame(&mut self, bytes: &[u8]) {
        self.received += 1;
        let tag = bytes.get(TAG..TAG + 8).and_then(|tag| tag.try_into().ok()).map(u64::from_le_bytes);
        let Some(tag) = tag.filter(|_| bytes.len() == self.bytes && bytes[..8] == self.start) else {
            self.wrong += 1;
            return;
        };
        let ahead = tag.wrapping_sub(self.next) & TAG_MASK;
        if ahead > TAG_MASK / 2 {
            self.wrong += 1;
            return;
        }
        self.lost += ahead;
        self.next = self.next.wrapping_add(ahead + 1);
    }
}

/// Frames that an interface has received.
fn interface_received(interface: &str) -> Result<u64> {
    // Of the thread's network namespace, as `/sys` is not.
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").map_err(|e| e.to_string())?;
    let line = devices.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:")));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.ok_or_else(|| format!("no counters of interface {interface}"))
}
