//! What a port may do to its neighbours on a switch: a verdict with a reason, before the graph.
//!
//! A port's [`Policy`] is part of the topology's snapshot, so the hot path reads it without locks; a change of the
//! configuration makes another. A port for which nothing is configured has none, and pays for none: an honest guest may be
//! a VRRP router, a nested bridge or a load generator.
//!
//! What frames meet, in this order, so that each rule sees what the ones before it left: where they come in, the source
//! guard, the VLAN, access lists, the rate, the mirror; where they go out, the VLAN, isolation, access lists, the rate.
//! Floods are limited between the two, when it is known how many copies they make. Of these there are the guard, the number of
//! addresses and the storm limits.

mod guard;
mod storm;

use std::sync::Arc;

pub use guard::{MacGuard, SourceGuard};
pub use storm::{Storm, StormAllowance, StormLimits};

/// What is configured for one port.
#[derive(Debug, Default)]
pub struct Policy {
    /// Addresses that a switch may learn behind it; 0: any number.
    pub mac_limit: u32,
    /// Which source addresses it may use, and which are its own.
    pub guard: SourceGuard,
    /// How many copies its floods may make, if that is limited.
    pub storm: Option<Storm>,
}

impl Policy {
    /// `None` if it asks for nothing.
    #[must_use]
    pub fn compile(self) -> Option<Arc<Policy>> {
        let asks = self.mac_limit != 0 || self.guard.asks() || self.storm.is_some();
        asks.then(|| Arc::new(self))
    }
}
