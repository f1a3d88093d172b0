//! A router's ports, the routes that it is given, and what routes lead to.

use std::net::IpAddr;
use std::sync::Arc;

use super::net::Net;
use super::said::Way;
use crate::port::{Port, PortId};

/// A port of a router.
#[derive(Clone)]
pub struct Member {
    /// The port.
    pub port: Arc<Port>,
    /// The router's station address there.
    pub mac: [u8; 6],
    /// The router's addresses there, each with its network.
    pub addresses: Vec<Net>,
    /// The port that stands for it before the control plane: what is for the router itself goes on there.
    pub control: Option<PortId>,
    /// Which sources it takes packets from.
    pub rpf: Rpf,
}

/// Which sources a port of a router takes packets from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rpf {
    /// All.
    #[default]
    Off,
    /// Those that some route leads to.
    Loose,
    /// Those that a route leads to by this port.
    Strict,
}

impl Rpf {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Rpf::Off => "off",
            Rpf::Loose => "loose",
            Rpf::Strict => "strict",
        }
    }
}

/// A route that the operator gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Static {
    /// Where to.
    pub prefix: Net,
    /// By which way.
    pub target: Target,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Through one of these gateways, by flow; at this port, if it is not that whose network a gateway is on.
    Via(Vec<IpAddr>, Option<PortId>),
    /// To neighbours at this port.
    Port(PortId),
    /// Nowhere, silently.
    Blackhole,
    /// Nowhere: the destination is unreachable.
    Unreachable,
    /// Nowhere: it is prohibited.
    Prohibit,
}

/// Who wants a route. Of two for one prefix the first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The router's own address, or a broadcast on its network.
    Own,
    /// A port's network.
    Connected,
    /// The operator.
    Static,
    /// The control plane.
    Fed,
}

/// What a group is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Local,
    Broadcast,
    OnLink(PortId),
    /// Gateways behind ports, with weights, as [`super::merged`] has them.
    Via(Vec<((PortId, u128), u16)>),
    Blackhole,
    Unreachable,
    Prohibit,
    /// What the control plane says; where that is follows from its objects and its links.
    Fed(Way),
}

/// A route in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub origin: Origin,
    pub key: Arc<Key>,
}
