//! The engine: what is configured and what runs, and the one way from one to the other.
//!
//! Every request, from a single `set` to a whole file, becomes a wanted [`Spec`]; [`Engine::apply`]
//! takes the difference to what runs and carries it out as a whole or not at all (see `carry`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidecore_abi::counters::MAX_PORTS;

use super::carry::{Carrier, Undone};
use super::check::check;
use super::fabric::{Fabric, Graph, Joined, Joint};
use super::follow::Follower;
use super::kinds::Kind;
use super::plan::{between, fixed_options, Change};
use super::retire::{self, Leaving};
use super::spec::{DaemonSpec, PortSpec, Spec, SwitchSpec, DEFAULT_SWITCH};
use super::text::BadSpec;
use super::visitors::Visitors;
use crate::observe::{CounterFile, Totals};
use crate::open::sweep_journals;
use crate::port::{Attachment, Port, PortId};

/// Why a request was not carried out. Nothing has changed, except where the text says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense.
    #[error("{0}")]
    Bad(#[from] BadSpec),
    /// It names something that does not exist.
    #[error("there is no {what} {name:?}; there are: {}", list(.there))]
    Unknown {
        /// `port` or `switch`.
        what: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        there: Vec<String>,
    },
    /// It would make something that exists.
    #[error("there is a {what} {name:?} already; change it with `set`, or delete it first")]
    Exists {
        /// `port` or `switch`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// It is in use.
    #[error("switch {name:?} cannot go: {why}")]
    InUse {
        /// The switch.
        name: String,
        /// What holds it.
        why: String,
    },
    /// It cannot change while the daemon runs.
    #[error("[daemon] {} cannot change while the daemon runs; restart it with the new value", .0.join(", "))]
    Fixed(Vec<String>),
    /// The host or the peer refused.
    #[error(transparent)]
    Failed(#[from] Undone),
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

/// A port that runs, or that could not be started again after a failed change.
pub(super) struct Live {
    pub spec: PortSpec,
    pub port: Arc<Port>,
    pub attachment: Option<Box<dyn Attachment>>,
    pub stopped: Option<String>,
}

/// What is configured and what runs.
pub(super) struct Inner {
    pub spec: Spec,
    pub ports: BTreeMap<String, Live>,
    pub ids: Ids,
    /// The sums of ports that are gone: with them, the law of conservation holds over the daemon's life.
    pub retired: Totals,
    /// Ports that are deleted, while what stood behind them is still ending.
    pub leaving: Leaving,
    /// Which of all this was made on demand.
    pub visitors: Visitors,
}

/// Port numbers. A number rests for a while before it is used again, so that a reader of the counters
/// file who looks twice does not take one port for another.
#[derive(Default)]
pub(super) struct Ids {
    used: u16,
    free: VecDeque<u16>,
}

/// How many freed numbers rest.
const RESTING: usize = 16;

impl Ids {
    pub fn take(&mut self) -> Option<PortId> {
        let fresh = usize::from(self.used) < MAX_PORTS;
        if self.free.len() > RESTING || !fresh {
            return self.free.pop_front().map(PortId);
        }
        self.used += 1;
        Some(PortId(self.used - 1))
    }

    pub fn give_back(&mut self, id: PortId) {
        self.free.push_back(id.0);
    }
}

/// The control plane of one daemon.
pub struct Engine {
    pub(super) kinds: &'static [Kind],
    pub(super) fabric: Arc<dyn Fabric>,
    pub(super) counters: CounterFile,
    daemon: DaemonSpec,
    inner: Arc<Mutex<Inner>>,
    pub(super) follower: Follower,
}

impl Engine {
    /// An engine with the default switch and no ports. `daemon` is what was chosen at the start.
    pub fn new(
        kinds: &'static [Kind],
        fabric: Arc<dyn Fabric>,
        counters: CounterFile,
        daemon: DaemonSpec,
    ) -> Engine {
        let spec = Spec::default().settled();
        let inner = Inner {
            spec,
            ports: BTreeMap::new(),
            ids: Ids::default(),
            retired: Totals::default(),
            leaving: Leaving::default(),
            visitors: Visitors::default(),
        };
        fabric.publish(&graph(&inner.spec, &inner.ports));
        let inner = Arc::new(Mutex::new(inner));
        let follower = Follower::start(&inner);
        Engine { kinds, fabric, counters, daemon, inner, follower }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in the middle of a change leaves ports that run and a configuration that is the old or
        // the new one; both can be shown and changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration in force, with what was chosen at the start and without what was made on demand.
    pub fn spec(&self) -> Spec {
        let inner = self.lock();
        Spec { daemon: self.daemon.clone(), ..inner.visitors.without(inner.spec.clone()) }
    }

    /// All ports and switches, also those made on demand.
    pub fn everything(&self) -> Spec {
        self.lock().spec.clone()
    }

    /// Makes `wanted` the configuration, all of it or none; says what that changes, or would change if
    /// `dry_run`.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn apply(&self, wanted: &Spec, dry_run: bool) -> Result<Vec<Change>, Error> {
        self.change_with(dry_run, |running, visitors| Ok(visitors.with(wanted.clone(), &running)))
    }

    /// Adds a port.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn add_port(&self, port: &PortSpec) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            if spec.ports.iter().any(|other| other.name == port.name) {
                return Err(Error::Exists { what: "port", name: port.name.clone() });
            }
            spec.ports.push(port.clone());
            Ok(spec)
        })
    }

    /// Makes the port of that name be `port`, whether it exists or not.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn put_port(&self, port: &PortSpec) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            spec.ports.retain(|other| other.name != port.name);
            spec.ports.push(port.clone());
            Ok(spec)
        })
    }

    /// Changes a port: `edit` gets what is configured.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn set_port(
        &self,
        name: &str,
        edit: impl FnOnce(&PortSpec) -> Result<PortSpec, BadSpec>,
    ) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            let there = spec.ports.iter().map(|p| p.name.clone()).collect();
            let unknown = Error::Unknown { what: "port", name: name.to_owned(), there };
            let port = spec.ports.iter_mut().find(|p| p.name == name).ok_or(unknown)?;
            *port = edit(port)?;
            if port.name != name {
                let why =
                    format!("port {name}: key `name`: a port keeps its name; delete it and add another");
                return Err(BadSpec(vec![why]).into());
            }
            Ok(spec)
        })
    }

    /// Removes a port.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn del_port(&self, name: &str) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            let there: Vec<_> = spec.ports.iter().map(|p| p.name.clone()).collect();
            if !there.iter().any(|other| other == name) {
                return Err(Error::Unknown { what: "port", name: name.to_owned(), there });
            }
            spec.ports.retain(|p| p.name != name);
            Ok(spec)
        })
    }

    /// Makes the switch of that name be `switch`; if `new`, there must not be one.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn put_switch(&self, switch: &SwitchSpec, new: bool) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            if new && spec.switches.iter().any(|other| other.name == switch.name) {
                return Err(Error::Exists { what: "switch", name: switch.name.clone() });
            }
            spec.switches.retain(|other| other.name != switch.name);
            spec.switches.push(switch.clone());
            Ok(spec)
        })
    }

    /// Changes a switch: `edit` gets what is configured.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn set_switch(
        &self,
        name: &str,
        edit: impl FnOnce(&SwitchSpec) -> Result<SwitchSpec, BadSpec>,
    ) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            let there = spec.switches.iter().map(|s| s.name.clone()).collect();
            let unknown = Error::Unknown { what: "switch", name: name.to_owned(), there };
            let switch = spec.switches.iter_mut().find(|s| s.name == name).ok_or(unknown)?;
            *switch = edit(switch)?;
            if switch.name != name {
                let why =
                    format!("switch {name}: key `name`: a switch keeps its name; delete it and add another");
                return Err(BadSpec(vec![why]).into());
            }
            Ok(spec)
        })
    }

    /// Removes a switch that no port is joined to.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn del_switch(&self, name: &str) -> Result<Vec<Change>, Error> {
        self.change(false, |mut spec| {
            let there: Vec<_> = spec.switches.iter().map(|s| s.name.clone()).collect();
            if !there.iter().any(|other| other == name) {
                return Err(Error::Unknown { what: "switch", name: name.to_owned(), there });
            }
            let in_use = |why: String| Error::InUse { name: name.to_owned(), why };
            if name == DEFAULT_SWITCH {
                return Err(in_use("ports join it unless they say otherwise".to_owned()));
            }
            let joined = |p: &&PortSpec| p.switch.as_deref() == Some(name);
            if let Some(port) = spec.ports.iter().find(joined) {
                return Err(in_use(format!("port {} is joined to it", port.name)));
            }
            spec.switches.retain(|s| s.name != name);
            Ok(spec)
        })
    }

    fn change(
        &self,
        dry_run: bool,
        edit: impl FnOnce(Spec) -> Result<Spec, Error>,
    ) -> Result<Vec<Change>, Error> {
        self.change_with(dry_run, |spec, _| edit(spec))
    }

    /// As the others, for changes of what is made on demand.
    pub(super) fn change_visitors(
        &self,
        edit: impl FnOnce(Spec, &mut Visitors) -> Result<Spec, Error>,
    ) -> Result<Vec<Change>, Error> {
        self.change_with(false, edit)
    }

    /// Loads what the switches need.
    fn prepare(&self, wanted: &Spec) -> Result<(), Error> {
        let load = |switch: &SwitchSpec| {
            let prepared = self.fabric.prepare(switch);
            prepared.map_err(|why| format!("switch {}: key `lookup`: {why}", switch.name)).err()
        };
        let complaints: Vec<_> = wanted.switches.iter().filter_map(load).collect();
        match complaints.is_empty() {
            true => Ok(()),
            false => Err(BadSpec(complaints).into()),
        }
    }

    fn change_with(
        &self,
        dry_run: bool,
        edit: impl FnOnce(Spec, &mut Visitors) -> Result<Spec, Error>,
    ) -> Result<Vec<Change>, Error> {
        let mut inner = self.lock();
        self.reap(&mut inner);
        let mut visitors = inner.visitors.clone();
        let wanted = edit(inner.spec.clone(), &mut visitors)?;
        let findings = check(&wanted, self.kinds);
        if !findings.is_empty() {
            return Err(BadSpec::new(&findings, |_| String::new()).into());
        }
        let fixed = fixed_options(&self.daemon, &wanted.daemon);
        if !fixed.is_empty() {
            return Err(Error::Fixed(fixed));
        }
        let wanted = Spec { daemon: DaemonSpec::default(), ..wanted }.settled();
        let changes = between(&inner.spec, &wanted);
        self.prepare(&wanted)?;
        if !dry_run && !changes.is_empty() {
            let mut endings = Vec::new();
            let done = Carrier::new(self, &mut inner, &wanted, &mut endings).run(&changes);
            if done.is_ok() {
                inner.visitors = visitors;
            }
            // Others may ask and change meanwhile.
            drop(inner);
            retire::wait_for(&endings);
            self.reap(&mut self.lock());
            done?;
        }
        Ok(changes)
    }

    /// Removes what ports that are not configured any more have left: for the start of a daemon.
    pub fn sweep(&self) {
        let inner = self.lock();
        sweep_journals(&inner.ports.keys().map(String::as_str).collect());
    }

    /// The fabric, for those who show it.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// The port `name`, for captures.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn port(&self, name: &str) -> Result<Arc<Port>, Error> {
        let inner = self.lock();
        let there = || inner.ports.keys().cloned().collect();
        match inner.ports.get(name) {
            Some(live) => Ok(Arc::clone(&live.port)),
            None => Err(Error::Unknown { what: "port", name: name.to_owned(), there: there() }),
        }
    }
}

impl Engine {
    /// Stops all ports: their sockets are gone when this returns, but for what the next daemon goes on with
    /// ([`Attachment::leave`]). Their counters stay in the file, to be read when the daemon is gone. Returns the names of
    /// ports that have not ended within [`retire::PATIENCE`]: the process should end without them.
    pub fn shut_down(&self) -> Vec<String> {
        let mut inner = self.lock();
        self.fabric.rest(true);
        let mut endings = Vec::new();
        for (name, live) in &mut inner.ports {
            if let Some(mut attachment) = live.attachment.take() {
                attachment.leave();
                endings.push(retire::end(name, Some(attachment)));
            }
            live.port.capture.close();
        }
        inner.ports.clear();
        self.fabric.publish(&Graph::default());
        drop(inner);
        retire::wait_for(&endings)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The graph of those ports of `spec` that are live.
pub(super) fn graph(spec: &Spec, live: &BTreeMap<String, Live>) -> Graph {
    let joined = |port: &PortSpec| {
        let live = live.get(&port.name)?;
        Some(join(port, &live.port))
    };
    Graph { switches: spec.switches.clone(), ports: spec.ports.iter().filter_map(joined).collect() }
}

/// How `spec` joins `port` to the graph.
pub(super) fn join(spec: &PortSpec, port: &Arc<Port>) -> Joined {
    let joint = match (&spec.wire, &spec.switch) {
        (Some(wire), _) => Joint::Wire(wire.clone()),
        (None, switch) => Joint::Switch(switch.as_deref().unwrap_or(DEFAULT_SWITCH).to_owned()),
    };
    Joined { port: Arc::clone(port), joint, rules: spec.rules() }
}
