//! Who is attached to whom: an immutable snapshot. Every change makes a new one, which each core picks up
//! between two batches.

use std::sync::Arc;

use crate::policy::Rules;
use crate::port::{Port, PortId};
use crate::switch::Switch;

/// What a port is attached to.
#[derive(Clone)]
pub enum Attach {
    /// Nothing: its frames have no destination.
    Nothing,
    /// A learning switch.
    Switch(Arc<Switch>),
    /// Another port: everything that comes in goes out there.
    Wire(PortId),
}

/// A port with what it is attached to.
pub(super) struct Member {
    pub(super) port: Arc<Port>,
    pub(super) attach: Attach,
    /// All ports on its switch, if it is on one.
    pub(super) everybody: Arc<[PortId]>,
    pub(super) rules: Rules,
}

/// All ports and what they are attached to.
#[derive(Default)]
pub struct Topology {
    members: Vec<Option<Member>>,
}

impl Topology {
    /// The snapshot for these ports. A wire to a port that is not among them counts as nothing.
    pub fn new(ports: &[(Arc<Port>, Attach)]) -> Topology {
        Topology::with_rules(ports, |_| Rules::default())
    }

    /// The same, with rules for the ports.
    pub fn with_rules(ports: &[(Arc<Port>, Attach)], rules: impl Fn(PortId) -> Rules) -> Topology {
        let mut members: Vec<Option<Member>> = Vec::new();
        for (port, attach) in ports {
            let everybody = match attach {
                Attach::Switch(switch) => on(switch, ports),
                Attach::Nothing | Attach::Wire(_) => Arc::default(),
            };
            let place = usize::from(port.id.0);
            if members.len() <= place {
                members.resize_with(place + 1, || None);
            }
            members[place] = Some(Member {
                port: Arc::clone(port),
                attach: attach.clone(),
                everybody,
                rules: rules(port.id),
            });
        }
        Topology { members }
    }

    #[inline]
    pub(super) fn get(&self, id: PortId) -> Option<&Member> {
        self.members.get(usize::from(id.0))?.as_ref()
    }
}

fn on(switch: &Arc<Switch>, ports: &[(Arc<Port>, Attach)]) -> Arc<[PortId]> {
    let here = |attach: &Attach| matches!(attach, Attach::Switch(other) if Arc::ptr_eq(switch, other));
    ports.iter().filter(|(_, attach)| here(attach)).map(|(port, _)| port.id).collect()
}
