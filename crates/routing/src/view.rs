//! What is shown of routers and their control planes.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sidecore_engine::state::routers::{ClassView, InterfaceView};

/// Answer to `show routers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routers {
    /// `status::VERSION` of the control socket.
    pub version: u32,
    /// All routers in the order of their names.
    pub routers: Vec<RouterView>,
}

/// One router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterView {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub interfaces: Vec<InterfaceView>,
    /// Bytes that I/O cores may touch of its forwarding tables.
    pub table_bytes: u64,
    /// Its control plane, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlView>,
}

/// The control plane of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlView {
    /// The network namespace, as it is configured.
    pub namespace: String,
    /// Why it does not work, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Whether zebra is connected.
    pub connected: bool,
    /// Seconds since it has been so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<u32>,
    /// Seconds since it said something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_message_s: Option<u32>,
    /// Addresses of the namespace's loopback and dummy interfaces: the router's own, at no port.
    pub addresses: Vec<IpAddr>,
    /// Routes that it has said.
    pub routes: u64,
    /// Routes among these that it has not said again since it connected, or since it went away.
    pub stale: u64,
    /// Seconds after which these are swept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_in_s: Option<u32>,
    /// Next hops and groups of them that it has said.
    pub objects: u64,
    /// Next hops of all its ways.
    pub hops: u64,
    /// Ways whose next hops had no room: what takes such a way is dropped as `no_route`.
    pub short: u64,
    /// A digest of all routes by prefix, interface and gateway: tables that mean the same have equal ones.
    pub digest: String,
    /// Messages that it has sent.
    pub messages: u64,
    /// Frames and messages that were not sound.
    pub malformed: u64,
    /// Routes, ways and objects for which there was no room.
    pub refused: u64,
    /// Connections so far.
    pub connections: u64,
    /// Comparisons with the kernel's table.
    pub comparisons: u64,
    /// Routes that zebra had removed without a word.
    pub corrected: u64,
    /// Times that it was asked to say everything again, since the kernel had routes of which it had said nothing.
    pub replays: u64,
    /// Neighbours that the namespace's kernel has told of.
    pub neighbours: u64,
    /// What went on to the namespace, by class.
    pub classes: Vec<ClassView>,
    /// The agents of other members of its group, which have its routes in kernels of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentView>,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its member of the group.
    pub member: String,
    /// The socket by which it is spoken to.
    pub socket: PathBuf,
    /// `unreachable`: the socket; `silent`: the agent; `behind`: it was told more than it has said that it has; `differs`: what it has
    /// is not what it was told; or `consistent`.
    pub state: String,
    /// Routes that its kernel has.
    pub routes: u64,
    /// Routes that its kernel has refused.
    pub failed: u64,
    /// The number of the table that its kernel has.
    pub digest: String,
    /// Milliseconds for which it has been behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_ms: Option<u64>,
    /// Times that it was told the whole table.
    pub tables: u64,
    /// Messages of its that were not sound.
    pub malformed: u64,
    /// Why it is unreachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}
