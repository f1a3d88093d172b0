//! The graph of ports, switches and wires as the I/O cores are told of it, and the cores as the control
//! plane sees them. Tests put a fabric without threads in their place.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::routes::RouterSpec;
use super::spec::{PortSpec, SwitchSpec};
use crate::core::{CoreStatus, TaskStatus};
use crate::fabric::Scheduler;
use crate::port::{Port, PortId};
use crate::router::Router;

/// A port of the graph, and how it is specified.
pub type Placed<'g> = (&'g PortSpec, &'g Arc<Port>);

/// The I/O cores.
pub trait Fabric: Send + Sync {
    /// Where attachments hand their ingress queues in.
    fn scheduler(&self) -> Arc<dyn Scheduler>;

    /// Makes the tables of `router` if there are none, before it is published.
    ///
    /// # Errors
    /// The host has no room for them.
    fn prepare_router(&self, router: &RouterSpec) -> Result<(), String> {
        let _ = router;
        Ok(())
    }

    /// The router of this name, and the second of its clock.
    fn router(&self, name: &str) -> Option<(Arc<Router>, u32)> {
        let _ = name;
        None
    }

    /// Makes all cores use the graph of these switches, routers and ports, in which each port is joined as its specification says.
    /// When this returns, no core uses the former one any more, and no switch remembers addresses of ports that are gone.
    fn publish(&self, switches: &[SwitchSpec], routers: &[RouterSpec], ports: &[Placed<'_>]);

    /// Has the cores serve no queue, or serve them again. When this returns no batch is under way. While many ports
    /// start or stop, no frame shall come for one that is not there yet, or not any more.
    fn rest(&self, rest: bool);

    /// Takes all queues of `port`, which is in no graph any more, from the cores: what stands behind it is stuck.
    fn evict(&self, port: &Port) {
        let _ = port;
    }

    /// The addresses that the switches remember.
    fn addresses(&self) -> Vec<Address>;

    /// What the switch of port `id` knows of it.
    fn standing(&self, id: PortId) -> Standing {
        let _ = id;
        Standing::default()
    }

    /// What each core did so far.
    fn cores(&self) -> Vec<CoreStatus>;

    /// How the cores treat each queue.
    fn tasks(&self) -> Vec<TaskStatus> {
        Vec::new()
    }

    /// Has core `to` serve the queue that is the task of this number. False: there is no such task, or core; or it is there
    /// already.
    fn move_task(&self, id: u64, to: usize) -> bool {
        let _ = (id, to);
        false
    }

    /// Has so many cores be active.
    fn set_active(&self, count: usize) {
        let _ = count;
    }

    /// Forgets addresses that have aged or whose port has lost its link. To be called every second.
    fn tick(&self);
}

/// What a switch knows of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Addresses behind it, and those that it claims.
    pub macs: u32,
    /// That it and another port are joined outside, or use one address.
    pub trouble: Option<String>,
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
    /// Why it is there: `learned`, `pinned` (the port's own) or `static` (`fdb`).
    pub state: String,
    /// Another port where it was seen, which gets its frames, too, until it is clear where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<String>,
    /// Another port where it was seen too often, which is not heeded for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_against: Option<String>,
}

/// `mac` (first byte lowest) as six pairs of hexadecimal digits.
pub(super) fn mac_text(mac: u64) -> String {
    let bytes = mac.to_le_bytes();
    bytes[..6].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_byte_comes_first() {
        assert_eq!(super::mac_text(0x0605_0403_0201), "01:02:03:04:05:06");
    }
}
