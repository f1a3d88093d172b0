//! Routers and their routes, as the operator asks for them.

use std::net::IpAddr;
use std::path::PathBuf;

use super::values::{texts, Gateways, List, Number};
use crate::port::PortId;
use crate::router::{Net, Static, Target};
use crate::util::form::Form;

crate::util::form::view! {
    /// One router.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    RouterSpec {
        /// Its name: 1 to 63 letters, digits, `.`, `_` and `-`.
        name: String,
        /// Its routes beside those to its ports' networks.
        routes*: Vec<RouteSpec>,
        /// The network namespace of its control plane: a name (ip-netns(8)) or a path [default: none].
        control?: String,
        /// Seconds for which routes of the control plane stay that it does not say any more, when it has gone
        /// or come back [default: 120].
        grace?: Number<1, 86400>,
        /// The agents of other members of its group, which have the control plane's routes in force in their
        /// guests: `MEMBER:PATH` each, as a list or joined by `+` [default: none].
        agents?: List<AgentAt>,
    }
}

/// An agent: of which member of a group, and the socket by which it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAt {
    /// The member.
    pub member: String,
    /// The socket: the VMM's end of a virtio-serial port.
    pub socket: PathBuf,
}

texts! {
    AgentAt = Form::Text("MEMBER:PATH", "b:/run/b.agent"), {
        read: |text| {
            let (member, path) = text.split_once(':')?;
            let it = AgentAt { member: member.to_owned(), socket: PathBuf::from(path) };
            (!member.is_empty() && it.socket.is_absolute()).then_some(it)
        },
        allowed: "MEMBER:/PATH, such as b:/run/b.agent",
        write: |it, f| write!(f, "{}:{}", it.member, it.socket.display()),
    }
}

impl RouterSpec {
    /// A router without routes.
    pub fn new(name: &str) -> RouterSpec {
        RouterSpec { name: name.to_owned(), ..RouterSpec::default() }
    }
}

crate::util::form::view! {
    /// One route: `via` gateways, or to neighbours at a `port`, or nowhere.
    #[serde(deny_unknown_fields)]
    RouteSpec {
        /// The destination.
        prefix: Net,
        /// The gateways, as a list or joined by `+`; of several the flow chooses one.
        via?: Gateways,
        /// The port behind which the gateways are, or the neighbours.
        port?: String,
        /// Drop silently.
        blackhole*: bool,
        /// Drop, and tell the sender that the destination is unreachable.
        unreachable*: bool,
        /// Drop, and tell the sender that this is prohibited.
        prohibit*: bool,
    }
}

/// Most gateways of a route.
const GATEWAYS: usize = 64;

impl RouteSpec {
    /// The route as a router takes it; `number` says which port has a name.
    pub fn route(&self, number: impl Fn(&str) -> Option<PortId>) -> Static {
        // A port that is not there is on no router.
        let port = || self.port.as_deref().map(|name| number(name).unwrap_or(PortId(u16::MAX)));
        let target = match (&self.via, port()) {
            _ if self.blackhole => Target::Blackhole,
            _ if self.unreachable => Target::Unreachable,
            _ if self.prohibit => Target::Prohibit,
            (Some(via), port) => Target::Via(via.0.clone(), port),
            (None, Some(port)) => Target::Port(port),
            (None, None) => Target::Unreachable,
        };
        Static { prefix: self.prefix, target }
    }

    /// What is wrong with it by itself, if anything is.
    pub fn complaint(&self) -> Option<String> {
        let nowhere = [self.blackhole, self.unreachable, self.prohibit].iter().filter(|it| **it).count();
        let somewhere = self.via.is_some() || self.port.is_some();
        if nowhere + usize::from(somewhere) != 1 {
            return Some(
                "allowed: one of via (with port), port, blackhole, unreachable, prohibit".to_owned(),
            );
        }
        if self.prefix.network() != self.prefix {
            let network = self.prefix.network();
            return Some(format!("{} has bits behind its length; allowed: {network}", self.prefix));
        }
        let via = self.via.as_ref().map_or(&[][..], |via| &via.0);
        let family = |it: &&IpAddr| it.is_ipv4() == self.prefix.address.is_ipv4();
        if let Some(other) = via.iter().find(|gateway| !family(gateway)) {
            return Some(format!("gateway {other} is of the other family"));
        }
        let near = |it: &IpAddr| matches!(it, IpAddr::V6(it) if it.is_unicast_link_local());
        if via.iter().any(near) && self.port.is_none() {
            return Some("a link-local gateway is on each port's network; allowed: with port".to_owned());
        }
        (via.len() > GATEWAYS).then(|| format!("{} gateways; allowed: at most {GATEWAYS}", via.len()))
    }
}
