//! Which ports are attached to what: an immutable snapshot. Every change makes a new one, which each core
//! picks up between two batches.

use std::sync::Arc;

use super::group::{Group, Own};
use crate::policy::{Policy, PortVlans};
use crate::port::{Port, PortId, Ports};
use crate::router::Router;
use crate::switch::Switch;

/// What a port is attached to.
#[derive(Clone)]
pub enum Attach {
    /// Nothing: its frames have no destination.
    Nothing,
    /// A learning switch.
    Switch(Arc<Switch>),
    /// A router, whose interface it is.
    Router(Arc<Router>),
    /// A router, whose interface it is on a switch or behind a group's interface: the graph hands frames from
    /// one to the other.
    Gateway(Arc<Router>, Box<Attach>),
    /// Another port: everything that comes in goes out there.
    Wire(PortId),
    /// Nothing of its own: it is an interface of a group.
    Interface(Arc<Interface>),
    /// The group's interface of this port, as the member of this number.
    Behind(PortId, u8),
}

/// An interface of a group.
#[derive(Clone)]
pub struct Interface {
    /// The group.
    pub group: Arc<Group>,
    /// The port of each member behind it, with the member's number.
    pub ports: Vec<(u8, PortId)>,
    /// Its addresses, as far as the operator says.
    pub own: Own,
    /// What it is attached to: a switch, a wire, a router or nothing.
    pub beyond: Attach,
}

impl Interface {
    /// The members behind it of whose port `is` is true, a bit each.
    #[inline]
    pub(super) fn members(&self, is: impl Fn(PortId) -> bool) -> u64 {
        let its = self.ports.iter().filter(|(_, port)| is(*port));
        its.fold(0, |bits, (number, _)| bits | 1u64.checked_shl((*number).into()).unwrap_or(0))
    }
}

impl Attach {
    /// Attaches it to `new` instead, if it is attached to `old`.
    pub fn move_to(&mut self, old: &Arc<Switch>, new: &Arc<Switch>) {
        match self {
            Attach::Switch(switch) if Arc::ptr_eq(switch, old) => *switch = Arc::clone(new),
            Attach::Gateway(_, beyond) => beyond.move_to(old, new),
            Attach::Interface(interface) => Arc::make_mut(interface).beyond.move_to(old, new),
            _ => {}
        }
    }

    /// The switch that it is on.
    pub fn switch(&self) -> Option<&Arc<Switch>> {
        match self {
            Attach::Switch(switch) => Some(switch),
            Attach::Gateway(_, beyond) => beyond.switch(),
            Attach::Interface(interface) => interface.beyond.switch(),
            Attach::Nothing | Attach::Router(_) | Attach::Wire(_) | Attach::Behind(..) => None,
        }
    }

    /// The router whose interface it is.
    fn router(&self) -> Option<&Arc<Router>> {
        match self {
            Attach::Router(router) | Attach::Gateway(router, _) => Some(router),
            Attach::Interface(interface) => interface.beyond.router(),
            Attach::Nothing | Attach::Switch(_) | Attach::Wire(_) | Attach::Behind(..) => None,
        }
    }

    /// Whether frames for it go on in the graph.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self, Attach::Gateway(..) | Attach::Interface(..))
    }
}

/// A port with what it is attached to.
pub(super) struct Member {
    pub(super) port: Arc<Port>,
    pub(super) attach: Attach,
    /// The ports on its switch, if it is on one, that its frames can come to: they carry a VLAN of its, and
    /// are not isolated from it.
    pub(super) everybody: Arc<[PortId]>,
    pub(super) policy: Option<Arc<Policy>>,
    /// Its policy says something of frames that go out by it.
    pub(super) at_egress: bool,
}

impl Member {
    /// Whether it carries VLAN `number`; 0: that of ports without VLANs.
    pub(super) fn carries(&self, number: u16) -> bool {
        vlans(self.policy.as_deref()).map_or(number == 0, |vlans| vlans.carries(number))
    }
}

fn vlans(policy: Option<&Policy>) -> Option<&PortVlans> {
    policy?.vlans.as_ref()
}

/// A port that sends, in the topology in which its frames go on.
#[derive(Clone, Copy)]
pub(super) struct Source<'t> {
    pub(super) topology: &'t Topology,
    pub(super) port: &'t Port,
}

impl<'t> Source<'t> {
    /// Frames that `port` sends, in this topology.
    pub(super) fn at(self, port: &'t Port) -> Source<'t> {
        Source { port, ..self }
    }
}

/// All ports and what they are attached to.
#[derive(Default)]
pub struct Topology {
    pub(super) ports: Ports,
    members: Vec<Option<Member>>,
    /// Whether a rule of some port, or a group, asks for what may lie behind the first bytes of a frame.
    pub(super) looks_inside: bool,
}

impl Topology {
    /// The snapshot for these ports. A wire to a port that is not among them counts as nothing.
    pub fn new(ports: &[(Arc<Port>, Attach)]) -> Topology {
        Topology::with_policies(ports, |_| None)
    }

    /// The snapshot for these ports, each with its policy.
    pub fn with_policies(
        ports: &[(Arc<Port>, Attach)],
        policy: impl Fn(PortId) -> Option<Arc<Policy>>,
    ) -> Topology {
        let mut members: Vec<Option<Member>> = Vec::new();
        let policies: Vec<_> = ports.iter().map(|(port, _)| policy(port.id)).collect();
        let on = |switch: &Arc<Switch>, mine: Option<&Policy>| {
            let here = |attach: &Attach| attach.switch().is_some_and(|other| Arc::ptr_eq(switch, other));
            let meets = |theirs: Option<&Policy>| {
                let apart = mine.zip(theirs).is_some_and(|(a, b)| a.isolated && b.isolated);
                !apart && PortVlans::meet(vlans(mine), vlans(theirs))
            };
            let its = ports.iter().zip(&policies);
            its.filter(|((_, attach), theirs)| here(attach) && meets(theirs.as_deref()))
                .map(|((port, _), _)| port.id)
                .collect()
        };
        for ((port, attach), policy) in ports.iter().zip(&policies) {
            let everybody = attach.switch().map_or_else(Arc::default, |switch| on(switch, policy.as_deref()));
            let place = usize::from(port.id.0);
            if members.len() <= place {
                members.resize_with(place + 1, || None);
            }
            members[place] = Some(Member {
                port: Arc::clone(port),
                attach: attach.clone(),
                everybody,
                at_egress: policy.as_ref().is_some_and(|policy| policy.is_at_egress()),
                policy: policy.clone(),
            });
        }
        let looks = |(policy, (_, attach)): (&Option<Arc<Policy>>, &(_, Attach))| {
            matches!(attach, Attach::Interface(_))
                || policy.as_ref().is_some_and(|policy| policy.looks_inside())
        };
        Topology {
            ports: ports.iter().map(|(port, _)| Arc::clone(port)).collect(),
            looks_inside: policies.iter().zip(ports).any(looks),
            members,
        }
    }

    /// Its routers, each once.
    pub(super) fn routers(&self) -> Vec<Arc<Router>> {
        let mut routers: Vec<Arc<Router>> = Vec::new();
        for router in self.members.iter().flatten().filter_map(|member| member.attach.router()) {
            if !routers.iter().any(|other| Arc::ptr_eq(other, router)) {
                routers.push(Arc::clone(router));
            }
        }
        routers
    }

    /// The port `id` and the group's interface that it is.
    pub(super) fn interface(&self, id: PortId) -> Option<(&Member, &Interface)> {
        let member = self.get(id)?;
        let Attach::Interface(interface) = &member.attach else { return None };
        Some((member, interface))
    }

    pub(super) fn get(&self, id: PortId) -> Option<&Member> {
        self.members.get(usize::from(id.0))?.as_ref()
    }
}
