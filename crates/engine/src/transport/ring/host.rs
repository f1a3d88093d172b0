//! Host rings: a second port in a ring port's memory.
//!
//! A netmap program may ask for its interface's *host rings*, which lead to the host's own stack. Here they
//! are a port of their own, `ring:NAME^` beside `ring:NAME`, with counters and a place on a wire or a switch
//! as any other; joined to a TAP port by a wire they are what netmap's are. It has no socket: its rings lie
//! in the memory that the client of `NAME` gets, and are served while that client is attached. Frames in them
//! have no virtio-net header.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use super::super::Unable;
use super::common::{ring_queues, Rings};
use crate::graph::{Pairs, Scheduler};
use crate::host::ring::{RingEgress, RingIngress, RingPair, RingPortSettings};
use crate::port::{Attachment, AttachmentStatus, Peer, Port};
use crate::ring::Geometry;

/// What ends the place of a host port's rings.
pub const HOST: char = '^';

/// Host rings that wait for the client of the ring port at this path.
static HOSTS: Mutex<BTreeMap<PathBuf, Weak<HostRings>>> = Mutex::new(BTreeMap::new());

/// The host rings of the ring port at `path`, if it has some.
pub(super) fn of(path: &Path) -> Option<Arc<HostRings>> {
    crate::lock(&HOSTS).get(path)?.upgrade()
}

/// Host rings, as the ring port's thread sees them.
pub(super) struct HostRings {
    port: Arc<Port>,
    scheduler: Arc<dyn Scheduler>,
    pub(super) settings: Arc<RingPortSettings>,
    pub(super) rings: usize,
    state: Mutex<HostRingsState>,
}

#[derive(Default)]
struct HostRingsState {
    /// The port is going away.
    closed: bool,
    lent: Pairs<RingIngress, RingEgress>,
    rings: Rings,
    slots: u32,
    clients: u64,
}

impl HostRings {
    /// A client has come: its host rings go live.
    pub(super) fn serve(&self, pairs: Vec<RingPair>, slots: u32) {
        let mut state = crate::lock(&self.state);
        if state.closed {
            return;
        }
        state.rings = pairs.iter().map(RingPair::stats).collect();
        state.slots = slots;
        state.clients += 1;
        for pair in pairs {
            state.lent.receive(&self.port, pair.egress);
            state.lent.send(&self.port, &self.scheduler, pair.ingress);
        }
    }

    /// The client, or the port, is going: no core uses the rings when this returns.
    pub(super) fn take_back(&self) {
        let mut state = crate::lock(&self.state);
        state.lent.take_back();
        state.rings.clear();
    }
}

/// A running port of host rings.
pub struct HostRingsPort {
    path: PathBuf,
    rings: Arc<HostRings>,
}

impl HostRingsPort {
    /// Has clients of the ring port at `path` have `rings` host rings of each direction, which become `port`.
    ///
    /// # Errors
    /// An impossible number, or that port has host rings already.
    pub fn start(
        path: &Path,
        rings: usize,
        port: Arc<Port>,
        scheduler: Arc<dyn Scheduler>,
    ) -> Result<HostRingsPort, Unable> {
        // With the one ring pair that the other port has at least.
        Geometry { host_rings: rings, ..Geometry::default() }.layout()?;
        Geometry { rings, ..Geometry::default() }.layout()?;
        let (settings, state) = (Arc::default(), Mutex::default());
        let rings = Arc::new(HostRings { port, scheduler, settings, rings, state });
        let mut hosts = crate::lock(&HOSTS);
        if hosts.get(path).is_some_and(|other| other.strong_count() > 0) {
            return Err(format!("the ring port at {} has host rings already", path.display()).into());
        }
        hosts.insert(path.to_owned(), Arc::downgrade(&rings));
        Ok(HostRingsPort { path: path.to_owned(), rings })
    }
}

impl Attachment for HostRingsPort {
    fn status(&self) -> AttachmentStatus {
        let state = crate::lock(&self.rings.state);
        AttachmentStatus {
            peer: if state.rings.is_empty() { Peer::Waiting } else { Peer::Running },
            detail: format!(
                "host rings of the port at {}; clients so far: {}",
                self.path.display(),
                state.clients
            ),
            queues: ring_queues(&state.rings, (state.slots, state.slots)),
            ..AttachmentStatus::default()
        }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.rings.settings.set_down(!up);
        Ok(())
    }

    /// Rings have no carrier that a program could see.
    fn follow(&mut self, _: bool) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for HostRingsPort {
    fn drop(&mut self) {
        crate::lock(&HOSTS).remove(&self.path);
        crate::lock(&self.rings.state).closed = true;
        self.rings.take_back();
    }
}
