//! Routes as messages of rtnetlink(7): for the agents of back-ends, and from these to their kernels. What
//! `say` reads.

use std::net::IpAddr;

use sidecore_engine::host::netlink::{kind, Builder};
use sidecore_engine::router::{FedHop, Net, Way};

use crate::say::{nowhere, rta, IPV4, IPV6, MAIN, UNICAST};

/// Who has made a route, and how much it counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Maker {
    /// RTPROT.
    pub protocol: u8,
    /// Its metric: among routes with one prefix the least counts.
    pub metric: u32,
}

/// The message that the route of `net` leads by `way`, or that there is none: then `way` counts for nothing.
/// No way of a next hop's number is known here: such a route is one without hops.
#[must_use]
pub fn route(net: Net, way: Option<&Way>, flags: u16, sequence: u32, maker: Maker) -> Vec<u8> {
    let (family, address) = match net.address {
        IpAddr::V4(it) => (IPV4, it.octets().to_vec()),
        IpAddr::V6(it) => (IPV6, it.octets().to_vec()),
    };
    let what = if way.is_some() { kind::NEWROUTE } else { kind::DELROUTE };
    let hops = match way {
        Some(Way::Hops(hops)) => &hops[..],
        _ => &[],
    };
    let kind = way.map_or(0, |way| nowhere(way).unwrap_or(UNICAST));
    let fixed = [family, net.len, 0, 0, MAIN, maker.protocol, 0, kind, 0, 0, 0, 0];
    let mut message = Builder::new(what, flags, sequence, &fixed).with(rta::DST, &address);
    if maker.metric != 0 {
        message = message.with(rta::PRIORITY, &maker.metric.to_ne_bytes());
    }
    match hops {
        [] => message,
        [(hop, _)] => {
            let message = message.with(rta::OIF, &hop.link.to_ne_bytes());
            gateway(family, hop)
                .into_iter()
                .fold(message, |message, (kind, value)| message.with(kind, &value))
        }
        several => {
            let paths: Vec<u8> =
                several.iter().flat_map(|(hop, weight)| path(family, hop, *weight)).collect();
            message.with(rta::MULTIPATH, &paths)
        }
    }
    .end()
}

/// The attribute of a hop's gateway: one of the other family comes with its family (RFC 5549).
fn gateway(family: u8, hop: &FedHop) -> Option<(u16, Vec<u8>)> {
    Some(match (family, hop.gateway?) {
        (IPV4, IpAddr::V4(it)) => (rta::GATEWAY, it.octets().to_vec()),
        (IPV6, IpAddr::V6(it)) => (rta::GATEWAY, it.octets().to_vec()),
        (_, IpAddr::V4(it)) => (rta::VIA, [&u16::from(IPV4).to_ne_bytes()[..], &it.octets()].concat()),
        (_, IpAddr::V6(it)) => (rta::VIA, [&u16::from(IPV6).to_ne_bytes()[..], &it.octets()].concat()),
    })
}

/// One of several hops: a length, its weight less one, a link and its gateway.
fn path(family: u8, hop: &FedHop, weight: u16) -> Vec<u8> {
    let attribute = gateway(family, hop).map_or_else(Vec::new, |(kind, value)| {
        let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        let mut all = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat();
        all.resize(all.len().next_multiple_of(4), 0);
        all
    });
    let len = u16::try_from(8 + attribute.len()).unwrap_or(u16::MAX);
    let less = u8::try_from(weight.saturating_sub(1)).unwrap_or(u8::MAX);
    [&len.to_ne_bytes()[..], &[0, less], &hop.link.to_ne_bytes(), &attribute].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sidecore_engine::host::netlink::messages;
    use sidecore_engine::router::{merged, Change};

    use super::*;
    use crate::say::said;

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0x0100_0000u32..0x7e00_0000).prop_map(|it| IpAddr::V4(it.into())),
            (1u128..1 << 100).prop_map(|it| IpAddr::V6((0x2001 << 112 | it).into())),
        ]
    }

    fn way() -> impl Strategy<Value = Way> {
        let hop = (1u32..9, prop::option::of(address())).prop_map(|(link, gateway)| FedHop { link, gateway });
        prop_oneof![
            Just(Way::Blackhole),
            Just(Way::Unreachable),
            Just(Way::Prohibit),
            prop::collection::vec((hop, 1u16..257), 0..20).prop_map(|hops| Way::Hops(merged(hops))),
        ]
    }

    proptest! {
        #[test]
        fn what_is_told_is_what_is_said(address in address(), len in 4u8..33, way in prop::option::of(way())) {
            let net = Net { address, len }.network();
            let maker = Maker { protocol: 83, metric: 20 };
            let all = route(net, way.as_ref(), 0, 7, maker);
            let message = messages(&all).next().unwrap().unwrap();
            let change = way.map_or(Change::Gone(net), |way| Change::Route(net, way));
            prop_assert_eq!(said(message), Ok(Some((change, 83))));
        }
    }
}
