//! Requests for ports that come and go on demand: see `on_demand`.

use super::engine::{Engine, Error};
use super::options::Scope;
use super::plan::Change;
use super::spec::PortSpec;
use super::transaction::How;

impl Engine {
    /// Adds a port, and the switch that it names if that is not there; `temporary`: until [`Engine::end_on_demand`].
    pub fn add_on_demand(&self, port: &PortSpec, temporary: bool) -> Result<Vec<Change>, Error> {
        self.change_with(How::Whole, |spec, on_demand| {
            if spec.ports.iter().any(|other| other.name == port.name) {
                return Err(Error::Exists { what: "port", name: port.name.clone() });
            }
            if let Some(switch) = &port.switch {
                on_demand.add_switch(spec, switch);
            }
            if temporary {
                on_demand.add_port(&port.name);
            }
            spec.ports.push(port.clone());
            Ok(())
        })
    }

    /// Joins port `name` to `switch`, which is made if it is not there, or with `None` to nothing: to a wire of its
    /// own name, as its only end.
    pub fn rejoin(&self, name: &str, switch: Option<&str>) -> Result<Vec<Change>, Error> {
        self.change_with(How::Whole, |spec, on_demand| {
            if let Some(switch) = switch {
                on_demand.add_switch(spec, switch);
            }
            if let Some(port) = spec.ports.iter_mut().find(|port| port.name == name) {
                port.switch = switch.map(str::to_owned);
                port.wire = switch.is_none().then(|| name.to_owned());
                if switch.is_none() {
                    *port = port.without(&[Scope::Learning]);
                }
            }
            on_demand.tidy(spec);
            Ok(())
        })
    }

    /// Removes a port, if it is there, and its switch if that was made on demand and no other port needs it.
    pub fn end_on_demand(&self, name: &str) -> Result<Vec<Change>, Error> {
        self.change_with(How::Whole, |spec, on_demand| {
            spec.ports.retain(|port| port.name != name);
            on_demand.tidy(spec);
            Ok(())
        })
    }

    /// How many ports were made on demand, and whether `name` is one.
    pub fn on_demand(&self, name: &str) -> (usize, bool) {
        self.lock().on_demand.count(name)
    }
}
