//! What messages of rtnetlink say of routes and next hops, in the router's words (rtnetlink(7),
//! linux/rtnetlink.h, linux/nexthop.h).
//!
//! Left out: other tables than the main one, networks that no router passes packets to, and what is the
//! router's own anyhow (local and broadcast routes). What a next hop wants that this router cannot do
//! (labels, tunnels) makes it one that leads elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sidecore_engine::host::netlink::{attributes, bytes, kind, short, word, Malformed, Message};
use sidecore_engine::router::{merged, Change, FedHop, Net, Object, Way, MAX_HOPS};
use sidecore_engine::util::slice::behind;

/// Attributes of routes.
pub(crate) mod rta {
    pub const DST: u16 = 1;
    pub const OIF: u16 = 4;
    pub const GATEWAY: u16 = 5;
    pub const PRIORITY: u16 = 6;
    pub const MULTIPATH: u16 = 9;
    pub const TABLE: u16 = 15;
    pub const VIA: u16 = 18;
    pub const ENCAP: u16 = 22;
    pub const NH_ID: u16 = 30;
}

/// Attributes of next hops.
mod nha {
    pub const ID: u16 = 1;
    pub const GROUP: u16 = 2;
    pub const BLACKHOLE: u16 = 4;
    pub const OIF: u16 = 5;
    pub const GATEWAY: u16 = 6;
    pub const ENCAP: u16 = 8;
}

pub(crate) const UNICAST: u8 = 1;
/// Kinds of routes that lead nowhere.
const NOWHERE: [(u8, Way); 3] = [(6, Way::Blackhole), (7, Way::Unreachable), (8, Way::Prohibit)];
pub(crate) const MAIN: u8 = 254;
pub(crate) const IPV4: u8 = 2;
pub(crate) const IPV6: u8 = 10;
/// Bytes of the fixed parts.
const ROUTE: usize = 12;
const NEXT_HOP: usize = 8;
const PATH: usize = 8;

/// What a message says, if it is of routes or next hops that matter, and the number of its maker (RTPROT).
pub fn said(message: Message<'_>) -> Result<Option<(Change, u8)>, Malformed> {
    match message.kind {
        kind::NEWROUTE | kind::DELROUTE => route(message),
        kind::NEWNEXTHOP | kind::DELNEXTHOP => next_hop(message),
        _ => Ok(None),
    }
}

/// The kind of a route that leads nowhere by `way`.
pub(crate) fn nowhere(way: &Way) -> Option<u8> {
    NOWHERE.iter().find(|(_, other)| other == way).map(|(kind, _)| *kind)
}

/// An address of the family that its length says: the gateway of a route of one family may be of the other
/// (RFC 5549).
pub(crate) fn ip(value: &[u8]) -> Result<IpAddr, Malformed> {
    match value.len() {
        4 => Ok(IpAddr::V4(Ipv4Addr::from(bytes::<4>(value, 0)?))),
        16 => Ok(IpAddr::V6(Ipv6Addr::from(bytes::<16>(value, 0)?))),
        _ => Err(Malformed),
    }
}

/// An address of this family.
fn address(family: u16, value: &[u8]) -> Result<IpAddr, Malformed> {
    let is = |it: &IpAddr| family == u16::from(if it.is_ipv4() { IPV4 } else { IPV6 });
    ip(value).ok().filter(is).ok_or(Malformed)
}

/// RTA_VIA: a family, and an address of it.
fn via(value: &[u8]) -> Result<IpAddr, Malformed> {
    address(short(value, 0)?, behind(value, 2))
}

/// Whether a router passes packets to this network on.
fn is_routed(net: Net) -> bool {
    match net.address {
        IpAddr::V4(it) => !it.is_multicast() && !it.is_loopback(),
        IpAddr::V6(it) => {
            !it.is_multicast() && !it.is_unicast_link_local() && (net.len < 128 || !it.is_loopback())
        }
    }
}

fn route(message: Message<'_>) -> Result<Option<(Change, u8)>, Malformed> {
    let [family, len, _, _, table, protocol, _, what, ..] = bytes::<ROUTE>(message.body, 0)?;
    let mut net = match family {
        IPV4 if len <= 32 => Net { address: Ipv4Addr::UNSPECIFIED.into(), len },
        IPV6 if len <= 128 => Net { address: Ipv6Addr::UNSPECIFIED.into(), len },
        IPV4 | IPV6 => return Err(Malformed),
        _ => return Ok(None),
    };
    let (mut table, mut object, mut link, mut near) = (u32::from(table), None, None, None);
    let (mut paths, mut elsewhere) = (None, false);
    for attribute in attributes(behind(message.body, ROUTE)) {
        let (kind, value) = attribute?;
        match kind {
            rta::DST => net.address = address(family.into(), value)?,
            rta::OIF => link = Some(word(value, 0)?),
            rta::GATEWAY => near = Some(ip(value)?),
            rta::VIA => near = Some(via(value)?),
            rta::MULTIPATH => paths = Some(multipath(value)?),
            rta::TABLE => table = word(value, 0)?,
            rta::NH_ID => object = Some(word(value, 0)?),
            rta::ENCAP => elsewhere = true,
            _ => {}
        }
    }
    let net = net.network();
    if table != u32::from(MAIN) || !is_routed(net) {
        return Ok(None);
    }
    if message.kind == kind::DELROUTE {
        return Ok(Some((Change::Gone(net), protocol)));
    }
    let path = link.map(|link| (FedHop { link, gateway: near }, 1));
    let way = match (what, object) {
        (UNICAST, Some(id)) if id != 0 => Way::Object(id),
        (UNICAST, _) if elsewhere => Way::Hops(Vec::new()),
        (UNICAST, _) => Way::Hops(paths.unwrap_or_else(|| path.into_iter().collect())),
        _ => match NOWHERE.iter().find(|(kind, _)| *kind == what) {
            Some((_, way)) => way.clone(),
            None => return Ok(None),
        },
    };
    Ok(Some((Change::Route(net, way), protocol)))
}

/// RTA_MULTIPATH: next hops one behind the other, each with a length, its weight less one, a link and
/// attributes of its own.
fn multipath(mut rest: &[u8]) -> Result<Vec<(FedHop, u16)>, Malformed> {
    let mut hops = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(short(rest, 0)?);
        let one = rest.get(..len).filter(|_| len >= PATH).ok_or(Malformed)?;
        let (mut hop, mut elsewhere) = (FedHop { link: word(one, 4)?, gateway: None }, false);
        let [less] = bytes::<1>(one, 3)?;
        for attribute in attributes(behind(one, PATH)) {
            let (kind, value) = attribute?;
            match kind {
                rta::GATEWAY => hop.gateway = Some(ip(value)?),
                rta::VIA => hop.gateway = Some(via(value)?),
                rta::ENCAP => elsewhere = true,
                _ => {}
            }
        }
        if !elsewhere && hops.len() < MAX_HOPS {
            hops.push((hop, u16::from(less) + 1));
        }
        rest = behind(rest, len.next_multiple_of(4));
    }
    Ok(merged(hops))
}

fn next_hop(message: Message<'_>) -> Result<Option<(Change, u8)>, Malformed> {
    let [_, _, protocol, ..] = bytes::<NEXT_HOP>(message.body, 0)?;
    let (mut id, mut link, mut near, mut members) = (None, None, None, None);
    let (mut blackhole, mut elsewhere) = (false, false);
    for attribute in attributes(behind(message.body, NEXT_HOP)) {
        let (kind, value) = attribute?;
        match kind {
            nha::ID => id = Some(word(value, 0)?),
            // Each member: its number, and its weight less one, of which older kernels have the lower byte
            // alone; the other one is 0.
            nha::GROUP => {
                let member = |it| Ok((word(it, 0)?, u32::from(u16::from_le_bytes(bytes(it, 4)?)) + 1));
                let all = value.chunks_exact(8).take(MAX_HOPS).map(member);
                members = Some(merged(all.collect::<Result<Vec<_>, Malformed>>()?));
            }
            nha::BLACKHOLE => blackhole = true,
            nha::OIF => link = Some(word(value, 0)?),
            nha::GATEWAY => near = Some(ip(value)?),
            nha::ENCAP => elsewhere = true,
            _ => {}
        }
    }
    let id = id.filter(|id| *id != 0).ok_or(Malformed)?;
    if message.kind == kind::DELNEXTHOP {
        return Ok(Some((Change::ObjectGone(id), protocol)));
    }
    let object = match (members, link) {
        _ if blackhole => Object::Blackhole,
        _ if elsewhere => Object::Elsewhere,
        (Some(members), _) => Object::Group(members),
        (None, Some(link)) => Object::Hop(FedHop { link, gateway: near }),
        (None, None) => Object::Elsewhere,
    };
    Ok(Some((Change::Object(id, object), protocol)))
}

#[cfg(test)]
mod tests {
    use sidecore_engine::host::netlink::{messages, Builder};
    use sidecore_engine::router::{FedCounts, Router};

    use super::*;

    fn one(builder: Builder) -> Result<Option<(Change, u8)>, Malformed> {
        let all = builder.end();
        let message = messages(&all).next().unwrap().unwrap();
        said(message)
    }

    fn route4(kind: u16, len: u8, what: u8) -> Builder {
        Builder::new(kind, 0, 0, &[IPV4, len, 0, 0, 254, 186, 0, what, 0, 0, 0, 0])
    }

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    #[test]
    fn routes_are_read() {
        let plain = route4(kind::NEWROUTE, 16, UNICAST).with(rta::DST, &[10, 9, 0, 0]);
        let hop = FedHop { link: 7, gateway: Some([10, 0, 0, 2].into()) };
        let plain = plain.with(rta::OIF, &7u32.to_ne_bytes()).with(rta::GATEWAY, &[10, 0, 0, 2]);
        assert_eq!(one(plain), Ok(Some((Change::Route(net("10.9.0.0/16"), Way::Hops(vec![(hop, 1)])), 186))));
        // No destination: the default route. By number of an object.
        let object = route4(kind::NEWROUTE, 0, UNICAST).with(rta::NH_ID, &5u32.to_ne_bytes());
        assert_eq!(one(object), Ok(Some((Change::Route(net("0.0.0.0/0"), Way::Object(5)), 186))));
        let black = route4(kind::NEWROUTE, 8, 6).with(rta::DST, &[20, 0, 0, 0]);
        assert_eq!(one(black), Ok(Some((Change::Route(net("20.0.0.0/8"), Way::Blackhole), 186))));
        let gone = route4(kind::DELROUTE, 8, UNICAST).with(rta::DST, &[20, 0, 0, 0]);
        assert_eq!(one(gone), Ok(Some((Change::Gone(net("20.0.0.0/8")), 186))));
        // An IPv4 network behind an IPv6 gateway.
        let via = [&10u16.to_ne_bytes()[..], &[0xfe, 0x80], &[0; 13], &[9]].concat();
        let six = route4(kind::NEWROUTE, 8, UNICAST).with(rta::DST, &[20, 0, 0, 0]).with(rta::VIA, &via);
        let hop = FedHop { link: 3, gateway: Some("fe80::9".parse().unwrap()) };
        let six = six.with(rta::OIF, &3u32.to_ne_bytes());
        assert_eq!(one(six), Ok(Some((Change::Route(net("20.0.0.0/8"), Way::Hops(vec![(hop, 1)])), 186))));
    }

    #[test]
    fn several_paths_are_read() {
        let path = |less: u8, link: u32, gateway: [u8; 4]| {
            let link = link.to_ne_bytes();
            [&16u16.to_ne_bytes()[..], &[0, less], &link, &8u16.to_ne_bytes(), &5u16.to_ne_bytes(), &gateway]
                .concat()
        };
        let near = [10, 0, 0, 3];
        let paths = [path(0, 7, near), path(255, 4, [10, 0, 1, 2]), path(1, 7, near)].concat();
        let several = route4(kind::NEWROUTE, 0, UNICAST).with(rta::MULTIPATH, &paths);
        let hop = |link, gateway: [u8; 4]| FedHop { link, gateway: Some(gateway.into()) };
        // What is there twice has both weights.
        let hops = vec![(hop(4, [10, 0, 1, 2]), 256), (hop(7, near), 3)];
        assert_eq!(one(several), Ok(Some((Change::Route(net("0.0.0.0/0"), Way::Hops(hops)), 186))));
        let mut bad = paths;
        bad[0] = 7;
        assert_eq!(one(route4(kind::NEWROUTE, 0, UNICAST).with(rta::MULTIPATH, &bad)), Err(Malformed));
    }

    #[test]
    fn next_hops_and_their_groups_are_read() {
        let object =
            |kind| Builder::new(kind, 0, 0, &[IPV4, 0, 11, 0, 0, 0, 0, 0]).with(nha::ID, &9u32.to_ne_bytes());
        let hop =
            object(kind::NEWNEXTHOP).with(nha::OIF, &2u32.to_ne_bytes()).with(nha::GATEWAY, &[10, 0, 0, 2]);
        let expected = Object::Hop(FedHop { link: 2, gateway: Some([10, 0, 0, 2].into()) });
        assert_eq!(one(hop), Ok(Some((Change::Object(9, expected), 11))));
        let group = |weights: [[u8; 2]; 2]| {
            let members = [(4u32, weights[0]), (3, weights[1])];
            let members = members.map(|(id, [low, high])| [id.to_ne_bytes(), [low, high, 0, 0]].concat());
            one(object(kind::NEWNEXTHOP).with(nha::GROUP, &members.concat()))
        };
        let expected =
            |three, four| Ok(Some((Change::Object(9, Object::Group(vec![(3, three), (4, four)])), 11)));
        assert_eq!(group([[0, 0], [0, 0]]), expected(1, 1));
        assert_eq!(group([[254, 0], [2, 0]]), expected(3, 255));
        // Weights of 16 bits are made to fit.
        assert_eq!(group([[255, 255], [255, 63]]), expected(64, 256));
        assert_eq!(one(object(kind::DELNEXTHOP)), Ok(Some((Change::ObjectGone(9), 11))));
        assert_eq!(
            one(object(kind::NEWNEXTHOP).with(nha::BLACKHOLE, &[])),
            Ok(Some((Change::Object(9, Object::Blackhole), 11)))
        );
        assert_eq!(one(Builder::new(kind::NEWNEXTHOP, 0, 0, &[0; 8])), Err(Malformed), "without a number");
    }

    #[test]
    fn what_is_no_routers_business_is_left_out_and_what_is_not_sound_is_said() {
        let other = Builder::new(kind::NEWROUTE, 0, 0, &[IPV4, 8, 0, 0, 255, 2, 0, UNICAST, 0, 0, 0, 0]);
        assert_eq!(one(other.with(rta::DST, &[20, 0, 0, 0])), Ok(None), "another table");
        let group = route4(kind::NEWROUTE, 4, UNICAST).with(rta::DST, &[224, 0, 0, 0]);
        assert_eq!(one(group), Ok(None));
        assert_eq!(one(route4(kind::NEWROUTE, 33, UNICAST)), Err(Malformed));
        assert_eq!(one(route4(kind::NEWROUTE, 8, UNICAST).with(rta::DST, &[1, 2])), Err(Malformed));
        assert_eq!(one(Builder::new(kind::NEWROUTE, 0, 0, &[0; 4])), Err(Malformed));
    }

    proptest::proptest! {
        /// Whatever comes, in whatever pieces: it is taken the same way, and the router has what was said
        /// last of each prefix.
        #[test]
        fn any_stream_is_taken_or_refused_however_it_is_cut(
            flips in proptest::collection::vec((0usize..400, proptest::num::u8::ANY), 0..24),
            cut in 1usize..64,
        ) {
            use crate::fpm::{frame, Stream};
            let hop = Builder::new(kind::NEWNEXTHOP, 0, 0, &[IPV4, 0, 11, 0, 0, 0, 0, 0]).with(nha::ID, &9u32.to_ne_bytes());
            let hop = hop.with(nha::OIF, &2u32.to_ne_bytes()).with(nha::GATEWAY, &[10, 0, 0, 2]);
            let one = route4(kind::NEWROUTE, 16, UNICAST).with(rta::DST, &[20, 1, 0, 0]).with(rta::NH_ID, &9u32.to_ne_bytes());
            let two = route4(kind::NEWROUTE, 8, 6).with(rta::DST, &[30, 0, 0, 0]);
            let gone = route4(kind::DELROUTE, 8, UNICAST).with(rta::DST, &[30, 0, 0, 0]);
            let mut bytes: Vec<u8> = [hop, one, two, gone].into_iter().flat_map(|it| frame(&it.end())).collect();
            for (at, value) in flips {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            let take = |parts: Vec<&[u8]>| {
                let (mut stream, mut all) = (Stream::default(), Vec::new());
                let sound = parts.into_iter().all(|part| {
                    stream.take(part, |message| all.extend(message.and_then(said).ok().flatten().map(|(it, _)| it))).is_ok()
                });
                (sound, all)
            };
            let (sound, whole) = take(vec![&bytes[..]]);
            let (same, parts) = take(bytes.chunks(cut).collect());
            proptest::prop_assert!(sound == same && (!sound || whole == parts));
            ROUTER.with(|router| {
                router.feed(&parts, 1);
                for (at, change) in parts.iter().enumerate() {
                    let (net, there) = match change {
                        Change::Route(net, _) => (net, true),
                        Change::Gone(net) => (net, false),
                        _ => continue,
                    };
                    let later = parts[at + 1..].iter().any(|it| matches!(it, Change::Route(other, _) | Change::Gone(other) if other == net));
                    assert!(later || router.found(&[*net]).is_empty() == there, "{net}");
                }
                router.next_generation();
                assert_eq!(router.sweep(None, 1).1, None);
                router.tidy(1);
                assert_eq!(router.fed(), FedCounts::default());
            });
        }
    }

    thread_local! {
        static ROUTER: Router = Router::new("r").unwrap();
    }
}
