//! Ports and switches that programs had made on demand. They run like others, but they are not part of the
//! configuration: what is saved does not name them, and applying a file leaves them alone.

use std::collections::BTreeSet;

use super::spec::{PortSpec, Spec, SwitchSpec, DEFAULT_SWITCH};

/// Their names.
#[derive(Clone, Debug, Default)]
pub(super) struct OnDemand {
    ports: BTreeSet<String>,
    switches: BTreeSet<String>,
}

impl OnDemand {
    /// `spec` without those.
    pub fn without(&self, mut spec: Spec) -> Spec {
        spec.ports.retain(|port| !self.ports.contains(&port.name));
        let joined = |name: &str| spec.ports.iter().any(|port| port.switch.as_deref() == Some(name));
        spec.switches.retain(|switch| !self.switches.contains(&switch.name) || joined(&switch.name));
        spec
    }

    /// `wanted`, and those of `running` that are not in its way.
    pub fn with(&self, mut wanted: Spec, running: &Spec) -> Spec {
        for port in running.ports.iter().filter(|port| self.ports.contains(&port.name)) {
            let in_the_way = |other: &PortSpec| {
                other.name == port.name || (&other.kind, &other.location) == (&port.kind, &port.location)
            };
            if !wanted.ports.iter().any(in_the_way) {
                wanted.ports.push(port.clone());
            }
        }
        for port in &wanted.ports {
            let Some(name) = port.switch.as_deref().filter(|name| *name != DEFAULT_SWITCH) else { continue };
            let visits = self.switches.contains(name);
            let there = wanted.switches.iter().any(|switch| switch.name == name);
            if let (true, false, Some(switch)) =
                (visits, there, running.switches.iter().find(|switch| switch.name == name))
            {
                wanted.switches.push(switch.clone());
            }
        }
        wanted
    }

    /// Takes in ports of these names and the switches that ports name and that are not there, which it adds
    /// to `spec`; forgets ports that have gone, and takes switches out of `spec` that no port needs any more.
    pub fn settle(&mut self, spec: &mut Spec, ports: impl Iterator<Item = String>) {
        self.ports.extend(ports);
        self.ports.retain(|name| spec.ports.iter().any(|port| port.name == *name));
        let wanted: BTreeSet<&String> = spec.ports.iter().filter_map(|port| port.switch.as_ref()).collect();
        spec.switches.retain(|switch| wanted.contains(&switch.name) || !self.switches.contains(&switch.name));
        self.switches.retain(|name| wanted.contains(name));
        for name in wanted.into_iter().filter(|name| *name != DEFAULT_SWITCH) {
            if !spec.switches.iter().any(|switch| switch.name == *name) {
                spec.switches.push(SwitchSpec::new(name));
                self.switches.insert(name.clone());
            }
        }
    }
}
