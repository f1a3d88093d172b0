//! What a router shows of itself.

use std::net::IpAddr;

use super::net::Net;
use crate::packet::Mac;

crate::util::form::view! {
    /// A port of a router.
    InterfaceView {
        /// Its name.
        port: String,
        /// The router's station address there: six pairs of hexadecimal digits.
        mac: Mac,
        /// The router's addresses there.
        addresses: Vec<Net>,
        /// Its link-local address.
        link_local: IpAddr,
        /// Bytes of the largest packet.
        mtu: u32,
        /// Whether frames can be delivered.
        link: bool,
        /// How sources are checked: `loose` or `strict`; absent if they are not.
        rpf?: String,
    }

    /// Frames of one class for the router itself.
    ClassView {
        /// `bgp`, `bfd`, `bfd-multihop`, `ospf`, `neighbours`, `fragments` or `other`.
        class: String,
        /// Frames that were passed to the namespace.
        passed: u64,
        /// Frames beyond its limit, which were dropped.
        refused: u64,
    }

    /// A route.
    RouteView {
        /// The destination.
        prefix: Net,
        /// The origin of the route.
        origin: String = ["own", "connected", "static"],
        /// The action; `none`: the route is not in force.
        action: String = ["answer", "neighbours", "via", "blackhole", "unreachable", "prohibit", "broadcast", "none"],
        /// The port whose neighbours it leads to.
        port?: String,
        /// The number of its group; 0: none.
        group: u32,
        /// Its next hops.
        hops*: Vec<HopView>,
        /// Why it is not in force.
        idle?: String,
    }

    /// A next hop.
    HopView {
        /// Its address.
        gateway: IpAddr,
        /// Its port.
        port: String,
        /// Whether frames can be delivered there.
        link: bool,
        /// Its share of flows beside those of others; absent: 1.
        weight?: u16,
        /// Its station address, while that is known.
        mac?: Mac,
        /// `stale`: the router asks again if it is used; `unknown`: the router is asking; `silent`: it does
        /// not answer.
        state: String = ["reachable", "stale", "unknown", "silent"],
        /// Frames that were sent to it; not counted for neighbours.
        frames: u64,
        /// Bytes of those frames.
        bytes: u64,
    }

    /// A neighbour.
    NeighbourView {
        /// The router.
        router: String,
        /// Its port.
        port: String,
        /// Its address.
        address: IpAddr,
        /// Its station address, while that is known.
        mac?: Mac,
        /// `stale`: the router asks again if it is used; `unknown`: the router is asking; `silent`: it does
        /// not answer.
        state: String = ["reachable", "stale", "unknown", "silent"],
        /// Seconds since its last answer.
        age_s?: u32,
        /// Whether routes lead through it.
        gateway: bool,
    }

    /// What a router does with a packet.
    Explained {
        /// Version of the JSON.
        #[serde(default)]
        version: u32,
        /// The router.
        router: String,
        /// The packet's destination.
        to: IpAddr,
        /// The port that it comes from, if the request names one.
        from?: String,
        /// The action; `answer`: the packet is for the router itself.
        action: String = ["forward", "answer", "drop"],
        /// Why it is dropped: the drop reason.
        why?: String,
        /// The route with the longest prefix.
        route?: Net,
        /// The origin of that route.
        origin?: String,
        /// The group that it leads to.
        group?: u32,
        /// The next hops; of several the flow chooses one.
        hops*: Vec<HopView>,
        /// The source station of what is sent on.
        source_mac?: Mac,
        /// The largest packet that passes.
        mtu?: u32,
        /// Other routes for it, with why they are not taken.
        shorter*: Vec<Shorter>,
    }

    /// A route that is not taken.
    Shorter {
        /// Its prefix.
        prefix: Net,
        /// Why not.
        why: String,
    }
}
