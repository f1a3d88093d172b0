//! The ends of a path through a switch: one that sends as fast as it can, one that takes what comes.
//!
//! Each frame has a new sequence number in its first cache line, and that line of every received one is read.
//! Of a host interface the far side is ours as well: what is to come out of it a packet socket puts in (of a
//! TAP on the interface itself, of the others on the other end of a veth pair), and what goes into it the
//! host's stack drops, since no socket there is its destination; the interface counts it.

use std::path::{Path, PathBuf};

use sidecore_driver::load::{frame, TAG, TAG_MASK};
use sidecore_driver::Listener;

use super::lane::{End, Flow};
use super::net::{received, veth};
use crate::prelude::*;
use sidecore_pktgen::end::{host, Lane, Sink, Source};

/// Entries of a virtio port's rings.
const ENTRIES: u16 = 1024;

named! {
    /// A kind of port.
    #[derive(PartialOrd, Ord, clap::ValueEnum)]
    pub enum Kind {
        /// A ring port.
        Ring = "ring",
        /// virtio-net over vhost-user.
        VhostUser = "vhost-user",
        /// TAP.
        Tap = "tap",
        /// AF_XDP on a veth pair.
        Xdp = "xdp",
        /// AF_PACKET on a veth pair.
        Packet = "packet",
        /// A veth pair without a port of ours: a bridge's.
        #[value(skip)]
        Veth = "veth",
    }
}

impl Kind {
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
    /// The path of a socket.
    pub path: PathBuf,
    /// Where the port's side of an interface is.
    near: String,
    /// Where the other is.
    far: String,
}

impl PathEnd {
    /// Makes what has to be there before any switch starts, in this thread's namespace.
    pub fn make(&self) -> Result<()> {
        if self.kind.is_pair() {
            veth(&self.near, &self.far)
        } else {
            Ok(())
        }
    }

    /// In the directory `dir`, or by names that are the same in each namespace.
    pub fn there(kind: Kind, number: u8, dir: &Path) -> PathEnd {
        let near = format!("near{number}");
        let far = if kind.is_pair() { format!("far{number}") } else { near.clone() };
        PathEnd { kind, number, path: dir.join(format!("s{number}")), near, far }
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

    /// This end; a TAP is called as Open vSwitch calls its ports.
    pub fn of_ovs(self) -> PathEnd {
        let name = ["a", "b"][usize::from(self.number)];
        PathEnd { near: name.to_owned(), far: name.to_owned(), ..self }
    }

    /// Connects to the port, or to the one that connects to `listener`, for frames of `bytes` bytes. On a
    /// thread in the namespace.
    pub fn connect(&self, listener: Option<&Listener>, bytes: usize) -> Result<Side> {
        let far = self.kind.is_host().then(|| self.far.clone());
        Ok(Side {
            end: self.open(listener, bytes, Page::Small)?,
            tags: Tags::new(self.number, bytes),
            flow: Flow::default(),
            far,
        })
    }

    /// A virtio port's driver, or what connects to `listener`.
    pub fn frontend(&self, listener: Option<&Listener>) -> Result<Frontend> {
        let frontend = match listener {
            Some(listener) => listener.accept(START),
            None => Frontend::connect(&self.path, START),
        };
        frontend.map_err(text)
    }

    /// The end itself, without numbered frames.
    pub fn open(&self, listener: Option<&Listener>, bytes: usize, page: Page) -> Result<End> {
        match self.kind {
            Kind::Ring => End::ring(&self.path.to_string_lossy(), bytes),
            Kind::VhostUser => End::virtio(self.frontend(listener)?, ENTRIES, bytes, page),
            _ => End::host(host::Kind::Packet, &self.far, bytes),
        }
    }
}

/// One end, connected.
pub struct Side {
    end: End,
    tags: Tags,
    flow: Flow,
    /// The interface of a host's far side.
    far: Option<String>,
}

impl Side {
    /// End `number` of a path at a vhost-user socket, with rings of so many entries.
    pub fn virtio(path: &Path, number: u8, (entries, bytes): (u16, usize)) -> Result<Side> {
        let frontend = Frontend::connect(path, START).map_err(text)?;
        let end = End::virtio(frontend, entries, bytes, Page::Small)?;
        Ok(Side { end, tags: Tags::new(number, bytes), flow: Flow::default(), far: None })
    }

    /// Sends one frame, if there is room.
    pub fn send(&mut self) -> Result<()> {
        if self.end.room()? > 0 {
            self.flow.sent += self.end.send(1, &mut self.tags)?.frames as u64;
        }
        Ok(())
    }

    /// Sends for as long as `time`, with fewer than `window` frames under way: as [`Flow::run`].
    #[inline]
    pub fn run(&mut self, window: u64, time: Duration, came: impl FnMut() -> Result<u64>) -> Result<f64> {
        self.flow.run(&mut self.end, &mut self.tags, window, time, came)
    }

    /// Frames that it has sent.
    pub fn sent(&self) -> u64 {
        self.flow.sent
    }

    /// Takes what has come. The host's stack does so by itself.
    #[inline]
    pub fn receive(&mut self) -> Result<()> {
        match self.far {
            Some(_) => Ok(()),
            None => self.end.receive(usize::MAX, &mut self.tags).map(drop),
        }
    }

    /// Frames that have arrived so far.
    pub fn received(&self) -> Result<u64> {
        match &self.far {
            Some(far) => received(far),
            None => Ok(self.tags.received),
        }
    }

    /// Frames that have arrived or are missing: they are not under way any more.
    pub fn gone(&self) -> u64 {
        self.tags.received + self.tags.lost
    }

    /// Frames that are missing, and frames that should not have come; none are known of a host interface.
    pub fn lost_and_wrong(&self) -> (u64, u64) {
        (self.tags.lost, self.tags.wrong)
    }
}

/// Tagged frames as the load has them: only the first cache line of a sent frame is written, and of a
/// received one read.
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
