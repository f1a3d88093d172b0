//! Ports and switches that programs had made on demand. They run like others, but they are not part of the
//! configuration: what is saved does not name them, and applying a file leaves them alone.

use std::collections::BTreeSet;

use super::engine::{Engine, Error};
use super::plan::Change;
use super::spec::{PortSpec, Spec, SwitchSpec, DEFAULT_SWITCH};

/// Their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Visitors {
    ports: BTreeSet<String>,
    switches: BTreeSet<String>,
}

impl Visitors {
    /// `spec` without visitors.
    pub(super) fn without(&self, mut spec: Spec) -> Spec {
        spec.ports.retain(|port| !self.ports.contains(&port.name));
        let joined = |name: &str| spec.ports.iter().any(|port| port.switch.as_deref() == Some(name));
        spec.switches.retain(|switch| !self.switches.contains(&switch.name) || joined(&switch.name));
        spec
    }

    /// `wanted`, and the visitors of `running` that are not in its way.
    pub(super) fn with(&self, mut wanted: Spec, running: &Spec) -> Spec {
        for port in running.ports.iter().filter(|port| self.ports.contains(&port.name)) {
            let in_the_way = |other: &PortSpec| {
                other.name == port.name || (&other.kind, &other.place) == (&port.kind, &port.place)
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

    /// Forgets those that are not there any more, and takes switches that nobody needs out of `spec`.
    fn tidy(&mut self, spec: &mut Spec) {
        self.ports.retain(|name| spec.ports.iter().any(|port| port.name == *name));
        let joined = |name: &str| spec.ports.iter().any(|port| port.switch.as_deref() == Some(name));
        let unused: Vec<String> = self.switches.iter().filter(|name| !joined(name)).cloned().collect();
        spec.switches.retain(|switch| !unused.contains(&switch.name));
        self.switches.retain(|name| !unused.contains(name));
    }
}

/// Adds the switch `name` to `spec`, as one that goes with its last port, if it is not there.
fn add_switch(spec: &mut Spec, visitors: &mut Visitors, name: &str) {
    let there = name == DEFAULT_SWITCH || spec.switches.iter().any(|switch| switch.name == name);
    if !there {
        spec.switches.push(SwitchSpec::new(name));
        visitors.switches.insert(name.to_owned());
    }
}

impl Engine {
    /// Adds a port, and the switch that it names if that is not there; `visits`: until [`Engine::end_visit`].
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn add_on_demand(&self, port: &PortSpec, visits: bool) -> Result<Vec<Change>, Error> {
        self.change_visitors(|mut spec, visitors| {
            if spec.ports.iter().any(|other| other.name == port.name) {
                return Err(Error::Exists { what: "port", name: port.name.clone() });
            }
            if let Some(switch) = &port.switch {
                add_switch(&mut spec, visitors, switch);
            }
            if visits {
                visitors.ports.insert(port.name.clone());
            }
            spec.ports.push(port.clone());
            Ok(spec)
        })
    }

    /// Joins port `name` to `switch`, which is made if it is not there, or with `None` to nothing: to a wire of its
    /// own name, as its only end.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn rejoin(&self, name: &str, switch: Option<&str>) -> Result<Vec<Change>, Error> {
        self.change_visitors(|mut spec, visitors| {
            if let Some(switch) = switch {
                add_switch(&mut spec, visitors, switch);
            }
            if let Some(port) = spec.ports.iter_mut().find(|port| port.name == name) {
                port.switch = switch.map(str::to_owned);
                port.wire = if switch.is_none() { Some(name.to_owned()) } else { None };
                if switch.is_none() {
                    *port = port.without_rules();
                }
            }
            visitors.tidy(&mut spec);
            Ok(spec)
        })
    }

    /// Removes a port, if it is there, and its switch if that was made on demand and nobody else needs it.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn end_visit(&self, name: &str) -> Result<Vec<Change>, Error> {
        self.change_visitors(|mut spec, visitors| {
            spec.ports.retain(|port| port.name != name);
            visitors.tidy(&mut spec);
            Ok(spec)
        })
    }

    /// How many ports were made on demand, and whether `name` is one.
    pub fn visitors(&self, name: &str) -> (usize, bool) {
        let inner = self.lock();
        (inner.visitors.ports.len(), inner.visitors.ports.contains(name))
    }
}
