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

    /// Forgets those that are not there any more, and takes switches that no port needs out of `spec`.
    pub fn tidy(&mut self, spec: &mut Spec) {
        self.ports.retain(|name| spec.ports.iter().any(|port| port.name == *name));
        let joined = |name: &str| spec.ports.iter().any(|port| port.switch.as_deref() == Some(name));
        let unused: Vec<String> = self.switches.iter().filter(|name| !joined(name)).cloned().collect();
        spec.switches.retain(|switch| !unused.contains(&switch.name));
        self.switches.retain(|name| !unused.contains(name));
    }

    /// Adds the switch `name` to `spec`, as one that goes with its last port, if it is not there.
    pub fn add_switch(&mut self, spec: &mut Spec, name: &str) {
        let there = name == DEFAULT_SWITCH || spec.switches.iter().any(|switch| switch.name == name);
        if !there {
            spec.switches.push(SwitchSpec::new(name));
            self.switches.insert(name.to_owned());
        }
    }

    /// Port `name` is one.
    pub fn add_port(&mut self, name: &str) {
        self.ports.insert(name.to_owned());
    }

    /// How many ports are, and whether `name` is one.
    pub fn count(&self, name: &str) -> (usize, bool) {
        (self.ports.len(), self.ports.contains(name))
    }
}
