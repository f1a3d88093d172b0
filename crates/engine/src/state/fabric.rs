//! The graph of ports, switches and wires as the I/O cores are told of it, and the cores as the control
//! plane sees them. Tests put a fabric without threads in their place.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::spec::SwitchSpec;
use crate::core::CoreStatus;
use crate::port::{Port, Scheduler};

/// Who is joined to what.
#[derive(Clone, Default)]
pub struct Graph {
    /// All switches.
    pub switches: Vec<SwitchSpec>,
    /// All ports, in the order of their names.
    pub ports: Vec<Joined>,
}

/// One port in the graph.
#[derive(Clone)]
pub struct Joined {
    /// The port.
    pub port: Arc<Port>,
    /// What it is joined to.
    pub joint: Joint,
    /// Source addresses that it may use.
    pub mac_limit: Option<u32>,
}

/// What a port is joined to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joint {
    /// The switch of this name.
    Switch(String),
    /// One end of the wire of this name.
    Wire(String),
}

/// The I/O cores.
pub trait Fabric: Send + Sync {
    /// Where attachments hand their ingress queues in.
    fn scheduler(&self) -> Arc<dyn Scheduler>;

    /// Loads what `switch` needs and may lack, before a graph with it is published.
    ///
    /// # Errors
    /// Why it cannot be that switch.
    fn prepare(&self, switch: &SwitchSpec) -> Result<(), String> {
        let _ = switch;
        Ok(())
    }

    /// Makes all cores use `graph`. When this returns, none uses the former one any more, and no switch
    /// remembers addresses of ports that are gone.
    fn publish(&self, graph: &Graph);

    /// Has the cores serve no queue, or serve them again. When this returns no batch is under way. While many ports
    /// start or stop, no frame shall come for one that is not there yet, or not any more.
    fn rest(&self, rest: bool);

    /// The addresses that the switches remember.
    fn addresses(&self) -> Vec<Address>;

    /// What each core did so far.
    fn cores(&self) -> Vec<CoreStatus>;

    /// Forgets addresses that have aged or whose port has lost its link. To be called every second.
    fn tick(&self);
}

/// An address that a switch remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The switch.
    pub switch: String,
    /// The address, as six pairs of hexadecimal digits.
    pub mac: String,
    /// The port behind which it was last seen.
    pub port: String,
    /// Seconds since it was last seen.
    pub age_s: u64,
}
