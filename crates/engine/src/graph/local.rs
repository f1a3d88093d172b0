//! What each I/O core has for its queues alone: nothing of it is shared or locked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::effects::Live;
use super::group::Probes;
use super::topology::Topology;
use super::walk::Walk;
use crate::mem::ticks_in;
use crate::packet::Batch;
use crate::router::RouterContext;

/// What an I/O core has for its queues.
pub struct Local {
    /// The core's number: that of its blocks of counters.
    pub(super) number: usize,
    pub(super) topology: Arc<Topology>,
    pub(super) batch: Batch,
    pub(super) walk: Walk<Live>,
    /// Ticks of a nanosecond, in 2⁻³².
    rate: u64,
}

impl Local {
    pub(super) fn new(number: usize, epoch: Instant) -> Local {
        Local {
            number,
            topology: Arc::default(),
            batch: Batch::new(),
            walk: Walk::new(number, epoch),
            rate: u64::try_from((u128::from(ticks_in(Duration::from_secs(1))) << 32) / 1_000_000_000)
                .unwrap_or(u64::MAX),
        }
    }

    /// How far the processor's counter goes in a number of nanoseconds.
    pub(super) fn ticks(&self, ns: u64) -> u64 {
        u64::try_from((u128::from(ns) * u128::from(self.rate)) >> 32).unwrap_or(u64::MAX)
    }
}

impl Local {
    /// Gives `probes` to their members. Between two visits: the batch is free.
    pub fn probe(&mut self, probes: Probes) {
        self.walk.probe(&self.topology, probes, &mut self.batch);
    }

    /// A core's without a core, for tests and fuzzers that visit queues themselves: no fetch and no delivery
    /// is late, however long it takes, so the same frames do the same again.
    pub fn by_hand() -> Local {
        let mut local = Local::new(0, Instant::now());
        local.rate = u64::MAX;
        local.walk.delivery.limit = u64::MAX;
        local
    }

    /// Senders and receivers are dealt with apart for a while, or together again, as after a slow visit: for
    /// fuzzers.
    pub fn set_apart(&mut self, apart: bool) {
        self.walk.delivery.set_apart(apart);
    }

    /// Ports are connected in this way from now on: what a core does when a topology is published.
    pub fn connect(&mut self, topology: &Arc<Topology>) {
        self.learn(topology);
        self.walk.routers = topology.routers().iter().map(RouterContext::new).collect();
    }

    /// Batches go through `topology` from now on. Who calls this also replaces what the core has of the
    /// routers.
    pub(super) fn learn(&mut self, topology: &Arc<Topology>) {
        self.topology = Arc::clone(topology);
        if topology.looks_inside {
            self.walk.delivery.acl_cache.open();
        }
    }
}
