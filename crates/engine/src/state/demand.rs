//! Requests for ports that come and go on demand: see `visitors`.

use super::carry::How;
use super::engine::{Engine, Error};
use super::options::Scope;
use super::plan::Change;
use super::spec::PortSpec;

impl Engine {
    /// Adds a port, and the switch that it names if that is not there; `visits`: until [`Engine::end_visit`].
    pub fn add_on_demand(&self, port: &PortSpec, visits: bool) -> Result<Vec<Change>, Error> {
        self.change_with(How::Whole, |spec, visitors| {
            if spec.ports.iter().any(|other| other.name == port.name) {
                return Err(Error::Exists { what: "port", name: port.name.clone() });
            }
            if let Some(switch) = &port.switch {
                visitors.add_switch(spec, switch);
            }
            if visits {
                visitors.add_port(&port.name);
            }
            spec.ports.push(port.clone());
            Ok(())
        })
    }

    /// Joins port `name` to `switch`, which is made if it is not there, or with `None` to nothing: to a wire of its
    /// own name, as its only end.
    pub fn rejoin(&self, name: &str, switch: Option<&str>) -> Result<Vec<Change>, Error> {
        self.change_with(How::Whole, |spec, visitors| {
            if let Some(switch) = switch {
                visitors.add_switch(spec, switch);
            }
            if let Some(port) = spec.ports.iter_mut().find(|port| port.name == name) {
                port.switch = switch.map(str::to_owned);
                port.wire = switch.is_none().then(|| name.to_owned());
                if switch.is_none() {
                    *port = port.without(&[Scope::Learning]);
                }
            }
            visitors.tidy(spec);
            Ok(())
        })
    }

    /// Removes a port, if it is there, and its switch if that was made on demand and nobody else needs it.
    pub fn end_visit(&self, name: &str) -> Result<Vec<Change>, Error> {
        self.change_with(How::Whole, |spec, visitors| {
            spec.ports.retain(|port| port.name != name);
            visitors.tidy(spec);
            Ok(())
        })
    }

    /// How many ports were made on demand, and whether `name` is one.
    pub fn visitors(&self, name: &str) -> (usize, bool) {
        self.lock().visitors.count(name)
    }
}
