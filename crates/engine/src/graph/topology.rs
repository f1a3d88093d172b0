//! Which ports are attached to what: an immutable snapshot. Every change makes a new one, which each core picks up
//! between two batches.

use std::sync::Arc;

use crate::policy::Policy;
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
    /// A router, whose interface on this switch it is: the graph hands frames from one to the other.
    Gateway(Arc<Router>, Arc<Switch>),
    /// Another port: everything that comes in goes out there.
    Wire(PortId),
}

impl Attach {
    /// Attaches it to `new` instead, if it is attached to `old`.
    pub fn move_to(&mut self, old: &Arc<Switch>, new: &Arc<Switch>) {
        if let Attach::Switch(switch) | Attach::Gateway(_, switch) = self {
            if Arc::ptr_eq(switch, old) {
                *switch = Arc::clone(new);
            }
        }
    }

    /// Whether frames for it go on in the graph.
    #[inline]
    pub(super) fn is_gateway(&self) -> bool {
        matches!(self, Attach::Gateway(..))
    }
}

/// A port with what it is attached to.
pub(super) struct Member {
    pub(super) port: Arc<Port>,
    pub(super) attach: Attach,
    /// All ports on its switch, if it is on one.
    pub(super) everybody: Arc<[PortId]>,
    pub(super) policy: Option<Arc<Policy>>,
}

/// All ports and what they are attached to.
#[derive(Default)]
pub struct Topology {
    pub(super) ports: Ports,
    members: Vec<Option<Member>>,
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
        for (port, attach) in ports {
            let everybody = match attach {
                Attach::Switch(switch) | Attach::Gateway(_, switch) => on(switch, ports),
                Attach::Nothing | Attach::Wire(_) | Attach::Router(_) => Arc::default(),
            };
            let place = usize::from(port.id.0);
            if members.len() <= place {
                members.resize_with(place + 1, || None);
            }
            members[place] = Some(Member {
                port: Arc::clone(port),
                attach: attach.clone(),
                everybody,
                policy: policy(port.id),
            });
        }
        Topology { ports: ports.iter().map(|(port, _)| Arc::clone(port)).collect(), members }
    }

    /// Its routers, each once.
    pub(super) fn routers(&self) -> Vec<Arc<Router>> {
        let mut routers: Vec<Arc<Router>> = Vec::new();
        for member in self.members.iter().flatten() {
            if let Attach::Router(router) | Attach::Gateway(router, _) = &member.attach {
                if !routers.iter().any(|other| Arc::ptr_eq(other, router)) {
                    routers.push(Arc::clone(router));
                }
            }
        }
        routers
    }

    #[inline]
    pub(super) fn get(&self, id: PortId) -> Option<&Member> {
        self.members.get(usize::from(id.0))?.as_ref()
    }
}

fn on(switch: &Arc<Switch>, ports: &[(Arc<Port>, Attach)]) -> Arc<[PortId]> {
    let here = |attach: &Attach| match attach {
        Attach::Switch(other) | Attach::Gateway(_, other) => Arc::ptr_eq(switch, other),
        Attach::Nothing | Attach::Router(_) | Attach::Wire(_) => false,
    };
    ports.iter().filter(|(_, attach)| here(attach)).map(|(port, _)| port.id).collect()
}
