//! What a port may do to its neighbours on a switch: a verdict with a reason, before the graph.
//!
//! The rules of a port are part of the topology's snapshot, so the hot path reads them without locks; a change of
//! the configuration makes new ones. The defaults drop nothing: an honest guest may be a VRRP router, a nested
//! bridge or a load generator.

mod guard;
mod storm;

use std::sync::Arc;

pub use guard::{MacGuard, SourceGuard};
pub use storm::{Storm, StormAllowance, StormLimits};

/// The rules of one port.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Addresses that a switch may learn behind it; 0: any number.
    pub mac_limit: u32,
    /// Which source addresses it may use, and which are its own.
    pub guard: SourceGuard,
    /// How many copies its floods may make, if that is limited.
    pub storm: Option<Arc<Storm>>,
}
