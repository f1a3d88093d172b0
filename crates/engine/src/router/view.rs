//! What a router shows of itself.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::net::Net;
use crate::packet::Mac;

/// A port of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceView {
    /// Its name.
    pub port: String,
    /// The router's station address there.
    pub mac: Mac,
    /// The router's addresses there.
    pub addresses: Vec<Net>,
    /// Its link-local address.
    pub link_local: IpAddr,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// Whether frames can be delivered.
    pub link: bool,
    /// How sources are checked: `loose` or `strict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpf: Option<String>,
}

/// Frames of one class for the router itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassView {
    /// `bgp`, `bfd`, `bfd-multihop`, `ospf`, `neighbours`, `fragments` or `other`.
    pub class: String,
    /// Frames that went on.
    pub passed: u64,
    /// Frames beyond its limit, which were dropped.
    pub refused: u64,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// Where to.
    pub prefix: Net,
    /// Who wants it: `own`, `connected`, `static`.
    pub origin: String,
    /// What is done: `answer`, `neighbours`, `via`, `blackhole`, `unreachable`, `prohibit`, `broadcast`; `none` if it is not in
    /// force.
    pub action: String,
    /// The port whose neighbours it leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The number of its group; 0: none.
    pub group: u32,
    /// Where it leads `via`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<HopView>,
    /// Why it is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopView {
    /// Its address.
    pub gateway: IpAddr,
    /// The port that it is behind.
    pub port: String,
    /// Whether frames can be delivered there.
    pub link: bool,
    /// Its share of flows beside those of others.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u16,
    /// Its station address, while that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// `reachable`, `stale` (asked for again while it is used), `unknown` (asked for), `silent` (it does not answer).
    pub state: String,
    /// Frames and bytes that it was given; for neighbours this is not counted.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
}

fn one() -> u16 {
    1
}

fn is_one(weight: &u16) -> bool {
    *weight == 1
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourView {
    /// The router.
    pub router: String,
    /// The port that it is behind.
    pub port: String,
    /// Its address.
    pub address: IpAddr,
    /// Its station address, while that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// As a [`HopView`]'s.
    pub state: String,
    /// Seconds since it was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u32>,
    /// Whether routes lead through it.
    pub gateway: bool,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// `status::VERSION` of the control socket.
    #[serde(default)]
    pub version: u32,
    /// The router.
    pub router: String,
    /// The packet's destination.
    pub to: IpAddr,
    /// The port that it comes from, if one was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// `forward`, `answer` (it is for the router) or `drop`.
    pub action: String,
    /// Why it is dropped: the name of the drop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The longest prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Net>,
    /// Who wants that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The group that it leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The next hops; of several the flow chooses one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<HopView>,
    /// The source station of what is sent on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mac: Option<Mac>,
    /// The largest packet that passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Other routes for it, with why they are not taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shorter: Vec<Shorter>,
}

/// A route that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shorter {
    /// Its prefix.
    pub prefix: Net,
    /// Why not.
    pub why: String,
}
