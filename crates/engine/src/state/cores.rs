//! The fabric that moves packets: I/O cores and switches.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fabric::{Address, Fabric, Graph, Joined, Joint};
use super::spec::SwitchSpec;
use super::values::LookupName;
use crate::core::{Attach, CoreStatus, Cores, Topology};
use crate::open::read_program;
use crate::port::{MacCount, Port, PortId, Scheduler};
use crate::switch::program::Program;
use crate::switch::{Lookup, Switch, SwitchOptions};

/// I/O cores with the switches that they run.
pub struct CoreFabric {
    cores: Arc<Cores>,
    now: Mutex<Now>,
}

/// What is published.
#[derive(Default)]
struct Now {
    /// The last program that was loaded from each file, for a switch to come.
    programs: BTreeMap<String, Arc<Program>>,
    switches: BTreeMap<String, (SwitchSpec, Arc<Switch>)>,
    ports: Vec<(Arc<Port>, Attach)>,
}

impl CoreFabric {
    /// The fabric of these cores.
    pub fn new(cores: Arc<Cores>) -> CoreFabric {
        CoreFabric { cores, now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // What is behind the lock is replaced whole, so a panic leaves nothing half done.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// The switch for `spec`: the one that runs if it can be that, else a new one that knows nobody.
    fn switch(&self, spec: &SwitchSpec) -> Arc<Switch> {
        let options = options(spec);
        match self.switches.get(&spec.name) {
            Some((old, switch)) if (old.table_size, &old.lookup) == (spec.table_size, &spec.lookup) => {
                switch.set_ageing(options.ageing);
                Arc::clone(switch)
            }
            _ => Arc::new(Switch::with_lookup(&spec.name, options, self.lookup(spec))),
        }
    }

    /// The lookup function that `spec` names. Its program is there: `prepare` came before.
    fn lookup(&self, spec: &SwitchSpec) -> Lookup {
        match &spec.lookup {
            None | Some(LookupName::Learning) => Lookup::Learning,
            Some(LookupName::PortHash) => Lookup::PortHash,
            Some(LookupName::Program(path)) => self
                .programs
                .get(path)
                .map_or(Lookup::Learning, |program| Lookup::Program(Arc::clone(program))),
        }
    }

    /// The counts of the port with number `id`.
    fn macs(&self, id: PortId) -> Option<&MacCount> {
        self.ports.iter().find(|(port, _)| port.id == id).map(|(port, _)| &port.macs)
    }
}

fn options(spec: &SwitchSpec) -> SwitchOptions {
    let default = SwitchOptions::default();
    SwitchOptions {
        table_size: spec.table_size.map_or(default.table_size, |n| n.get() as usize),
        ageing: spec.ageing.map_or(default.ageing, |n| n.get()),
    }
}

/// What `joined` is attached to in `graph`.
fn attach(graph: &Graph, joined: &Joined, switches: &BTreeMap<String, (SwitchSpec, Arc<Switch>)>) -> Attach {
    match &joined.joint {
        Joint::Switch(name) => {
            switches.get(name).map_or(Attach::Nothing, |(_, switch)| Attach::Switch(Arc::clone(switch)))
        }
        joint @ Joint::Wire(_) => {
            let other = |end: &&Joined| end.joint == *joint && end.port.id != joined.port.id;
            graph.ports.iter().find(other).map_or(Attach::Nothing, |end| Attach::Wire(end.port.id))
        }
    }
}

/// Forgets what `switch` has learned behind `port`.
fn forget(switch: &Switch, port: &Port) {
    for _ in 0..switch.table.sweep(|entry| entry.port == port.id) {
        port.macs.sub();
    }
}

impl Fabric for CoreFabric {
    fn scheduler(&self) -> Arc<dyn Scheduler> {
        Arc::clone(&self.cores) as Arc<dyn Scheduler>
    }

    /// A file is read when a switch is given it, and not again while the switch has it.
    fn prepare(&self, switch: &SwitchSpec) -> Result<(), String> {
        let Some(LookupName::Program(path)) = &switch.lookup else { return Ok(()) };
        let mut now = self.now();
        if now.switches.get(&switch.name).is_some_and(|(old, _)| old.lookup == switch.lookup) {
            return Ok(());
        }
        let text = read_program(Path::new(path)).map_err(|e| format!("cannot read {path}: {e}"))?;
        let program = Program::assemble(&text).map_err(|e| format!("{path}: {e}"))?;
        now.programs.insert(path.clone(), Arc::new(program));
        Ok(())
    }

    fn publish(&self, graph: &Graph) {
        let mut now = self.now();
        let switches: BTreeMap<_, _> =
            graph.switches.iter().map(|spec| (spec.name.clone(), (spec.clone(), now.switch(spec)))).collect();
        let ports: Vec<_> =
            graph.ports.iter().map(|j| (Arc::clone(&j.port), attach(graph, j, &switches))).collect();
        for joined in &graph.ports {
            joined.port.macs.set_limit(joined.mac_limit.unwrap_or(0));
        }
        self.cores.publish(&Arc::new(Topology::new(&ports)));
        let programs = std::mem::take(&mut now.programs);
        let before = std::mem::replace(&mut *now, Now { switches, ports, programs });
        // No core learns by the old topology any more: what it taught about ports that left can go.
        for (port, attach) in &before.ports {
            let stays = |switch: &Arc<Switch>| {
                let here = |(other, attach): &(Arc<Port>, Attach)| {
                    other.id == port.id && matches!(attach, Attach::Switch(s) if Arc::ptr_eq(s, switch))
                };
                now.ports.iter().any(here)
            };
            match attach {
                Attach::Switch(switch) if !stays(switch) => forget(switch, port),
                _ => {}
            }
        }
    }

    fn rest(&self, rest: bool) {
        self.cores.rest(rest);
    }

    fn addresses(&self) -> Vec<Address> {
        let now = self.now();
        let seconds = self.cores.seconds();
        let mut addresses = Vec::new();
        for (name, (_, switch)) in &now.switches {
            for entry in switch.table.entries() {
                let port = now.ports.iter().find(|(port, _)| port.id == entry.port);
                addresses.push(Address {
                    switch: name.clone(),
                    mac: mac_text(entry.mac),
                    port: port.map_or_else(String::new, |(port, _)| port.name.clone()),
                    age_s: u64::from(seconds.saturating_sub(entry.seen)),
                });
            }
        }
        addresses.sort_by(|a, b| (&a.switch, &a.mac).cmp(&(&b.switch, &b.mac)));
        addresses
    }

    fn cores(&self) -> Vec<CoreStatus> {
        self.cores.status()
    }

    fn tick(&self) {
        let now = self.now();
        let seconds = self.cores.seconds();
        for (_, switch) in now.switches.values() {
            switch.age(seconds, |id| now.macs(id));
        }
        for (port, attach) in &now.ports {
            match attach {
                Attach::Switch(switch) if !port.link() && port.macs.count() > 0 => forget(switch, port),
                _ => {}
            }
        }
    }
}

/// `mac` (first byte lowest) as six pairs of hexadecimal digits.
fn mac_text(mac: u64) -> String {
    let bytes = mac.to_le_bytes();
    bytes[..6].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_byte_comes_first() {
        assert_eq!(super::mac_text(0x0605_0403_0201), "01:02:03:04:05:06");
    }
}
