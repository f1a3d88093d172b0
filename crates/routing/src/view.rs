//! What is shown of routers and their control planes.

use std::net::IpAddr;
use std::path::PathBuf;

use sidecore_engine::state::routers::{ClassView, InterfaceView};
use sidecore_engine::util::form::view;

view! {
    /// Answer to `show routers`.
    Routers {
        /// Version of the JSON.
        version: u32,
        /// All routers in the order of their names.
        routers: Vec<RouterView>,
    }

    /// One router.
    RouterView {
        /// Its name.
        name: String,
        /// Its ports.
        interfaces: Vec<InterfaceView>,
        /// Bytes of its forwarding tables that lookups may read.
        table_bytes: u64,
        /// Its control plane, if it has one.
        control?: ControlView,
    }

    /// The control plane of a router.
    #[derive(Default)]
    ControlView {
        /// The network namespace, as it is configured.
        namespace: String,
        /// Why it does not work, if it does not.
        trouble?: String,
        /// Whether zebra is connected.
        connected: bool,
        /// Seconds since it connected or went away.
        since_s?: u32,
        /// Seconds since its last message.
        last_message_s?: u32,
        /// Addresses of the namespace's loopback and dummy interfaces, which are the router's own.
        addresses: Vec<IpAddr>,
        /// Routes that it has sent.
        routes: u64,
        /// Routes among these that it has not sent again since it connected or went away.
        stale: u64,
        /// Seconds until these are removed.
        sweep_in_s?: u32,
        /// Next hops and groups that it has sent.
        objects: u64,
        /// Next hops of all different next hops and groups that routes lead to.
        hops: u64,
        /// Next hops and groups for which there was no room: packets whose route leads there are dropped as
        /// `no_route`.
        short: u64,
        /// Digest of all routes by prefix, interface, gateway and weight: tables with the same meaning have
        /// the same digest.
        digest: String,
        /// Messages that it has sent.
        messages: u64,
        /// Malformed frames and messages.
        malformed: u64,
        /// Routes, next hops and groups for which there was no room.
        refused: u64,
        /// Connections so far.
        connections: u64,
        /// Comparisons with the kernel's table.
        comparisons: u64,
        /// Routes that zebra had deleted without a message.
        corrected: u64,
        /// How often its connection was closed so that it sends all routes again, because the kernel had
        /// routes that it had not sent.
        replays: u64,
        /// Neighbours that the namespace's kernel has reported.
        neighbours: u64,
        /// Frames for the router itself, by class.
        classes: Vec<ClassView>,
        /// The agents of other members of its group, which have its routes in kernels of their own.
        agents*: Vec<AgentView>,
    }

    /// An agent.
    #[derive(Default)]
    AgentView {
        /// Its member of the group.
        member: String,
        /// The socket by which the daemon reaches it.
        socket: PathBuf,
        /// `unreachable`: its socket; `silent`: it says nothing; `behind`: it has yet to confirm what it was
        /// sent; `differs`: its kernel has other routes; `consistent`: its kernel has the routes.
        state: String,
        /// Routes that its kernel has.
        routes: u64,
        /// Routes that its kernel refused.
        failed: u64,
        /// Digest of the routes that its kernel has.
        digest: String,
        /// Milliseconds for which it has been behind.
        behind_ms?: u64,
        /// How often it was sent all routes.
        tables: u64,
        /// Malformed messages of its.
        malformed: u64,
        /// Why it is unreachable.
        trouble?: String,
    }
}
