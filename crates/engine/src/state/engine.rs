//! The engine: what is configured and what runs, and the one way from one to the other.
//!
//! Every request, from a single `set` to a whole file, becomes a wanted [`Spec`]; [`Engine::apply`]
//! takes the difference to what runs and carries it out as a whole or not at all (see `transaction`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::check::check;
use super::control::{with_control, without_control};
use super::cores::CoreGraph;
use super::follow::Follower;
use super::kinds::{find as find_kind, Kind};
use super::live::{EngineState, Means};
use super::members::journal_of;
use super::on_demand::OnDemand;
use super::plan::{between, fixed_options, Change, Verb};
use super::retire;
use super::routes::RouterSpec;
use super::spec::{DaemonSpec, Entry, PortSpec, Spec};
use super::text::BadSpec;
use super::transaction::{How, Transaction, Undone};
use super::values::{names, Toggle};
use crate::disk::{self, OpenedFiles};
use crate::observe::CounterFile;
use crate::port::Port;
use crate::sandbox::holder::{Holder, SoughtHolders};
use crate::sandbox::open::{forget_journal, sweep_journals};

/// Why a request was not carried out. Nothing has changed, except where the text says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense.
    #[error("{0}")]
    Bad(#[from] BadSpec),
    /// It names something that does not exist.
    #[error("there is no {what} {name:?}; there are: {}", names(.there))]
    Unknown {
        /// `port`, `switch` or `router`.
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
    #[error("{what} {name:?} cannot go: {why}")]
    InUse {
        /// `switch` or `router`.
        what: &'static str,
        /// The name.
        name: String,
        /// What holds it.
        why: String,
    },
    /// It cannot change while the daemon runs.
    #[error("[daemon] {} cannot change while the daemon runs; restart it with the new value", .0.join(", "))]
    Fixed(Vec<String>),
    /// It cannot be done as things are.
    #[error("{0}")]
    Cannot(String),
    /// The host or the peer refused.
    #[error(transparent)]
    Failed(#[from] Undone),
}

/// What a request changed.
pub type Changes = Result<Vec<Change>, Error>;

/// The control plane of one daemon.
pub struct Engine {
    pub(super) means: Means,
    pub(super) daemon: DaemonSpec,
    pub(super) state: Arc<Mutex<EngineState>>,
    follower: Follower,
    changed: Changed,
}

/// Is called after each change of the configuration, with no lock held.
pub type Changed = Box<dyn Fn(&Engine) + Send + Sync>;

impl Engine {
    /// An engine with the default switch and no ports. `daemon` is what was chosen at the start; `changed`
    /// has what follows the configuration outside the engine, such as routing daemons, follow it.
    pub fn new(
        kinds: &'static [Kind],
        graph: Arc<CoreGraph>,
        counters: CounterFile,
        daemon: DaemonSpec,
        changed: Changed,
    ) -> Engine {
        let state = EngineState::new();
        graph.publish(&state.spec, &[]);
        let state = Arc::new(Mutex::new(state));
        let follower = Follower::start(&state);
        let means = Means { kinds, graph, counters, links: follower.events() };
        Engine { means, daemon, state, follower, changed }
    }

    /// The configuration in force, with what was chosen at the start and without what was made on demand.
    pub fn spec(&self) -> Spec {
        let state = crate::lock(&self.state);
        Spec { daemon: self.daemon.clone(), ..state.on_demand.without(without_control(state.spec.clone())) }
    }

    /// All ports and switches, also those made on demand.
    pub fn everything(&self) -> Spec {
        crate::lock(&self.state).spec.clone()
    }

    /// Makes `wanted` the configuration, all of it or none; says what that changes, or would change if
    /// `dry_run`.
    pub fn apply(&self, wanted: &Spec, dry_run: bool) -> Changes {
        let _sought = self.seek(wanted.ports.iter().filter(|_| !dry_run))?;
        let how = if dry_run { How::Not } else { How::Whole };
        self.change_with(how, |running, on_demand| {
            *running = on_demand.with(wanted.clone(), running);
            Ok(())
        })
    }

    /// Makes `wanted` the configuration of a daemon that has just started. A port that cannot be started
    /// keeps no other from running: it is `stopped`, says why, and is [tried again](Engine::try_again).
    pub fn begin(&self, wanted: &Spec) -> Changes {
        let _sought = self.seek(&wanted.ports)?;
        self.change_with(How::EachAlone, |running, _| {
            *running = wanted.clone();
            Ok(())
        })
    }

    /// Starts ports that could not be started, if they can be now.
    pub fn try_again(&self) {
        let stopped = |state: &EngineState| -> Vec<PortSpec> {
            state.ports.values().filter(|live| live.stopped.is_some()).map(|live| live.spec.clone()).collect()
        };
        let stopped = stopped(&crate::lock(&self.state));
        // What is not found now is missed again below.
        let _sought = self.seek(&stopped);
        let was = stopped.len();
        self.means.try_again(&mut crate::lock(&self.state));
        if was > 0 {
            (self.changed)(self);
        }
    }

    /// Adds ports, switches, routers, tenants or groups: all of them or none.
    pub fn add<E: Entry>(&self, entries: &[E]) -> Changes {
        let _sought = self.seek(entries.iter().filter_map(Entry::as_port))?;
        self.change(|spec| {
            for entry in entries {
                if E::list(spec).iter().any(|other| other.name() == entry.name()) {
                    return Err(Error::Exists { what: E::WHAT, name: entry.name().to_owned() });
                }
                E::list(spec).push(entry.clone());
            }
            Ok(())
        })
    }

    /// Makes the port or switch of that name be `entry`, whether it exists or not.
    pub fn put<E: Entry>(&self, entry: &E) -> Changes {
        let _sought = self.seek(entry.as_port())?;
        self.change(|spec| {
            E::list(spec).retain(|other| other.name() != entry.name());
            E::list(spec).push(entry.clone());
            Ok(())
        })
    }

    /// Changes a port or a switch: `edit` gets what is configured.
    pub fn set<E: Entry>(&self, name: &str, edit: impl Fn(&E) -> Result<E, BadSpec>) -> Changes {
        // What is wrong with it is told below.
        let after = find::<E>(&mut self.everything(), name).ok().and_then(|entry| edit(entry).ok());
        let _sought = self.seek(after.as_ref().and_then(E::as_port))?;
        self.change(|spec| {
            let entry = find::<E>(spec, name)?;
            *entry = edit(entry)?;
            if entry.name() != name {
                let what = E::WHAT;
                let why =
                    format!("{what} {name}: key `name`: a {what} keeps its name; delete it and add another");
                return Err(BadSpec(vec![why]).into());
            }
            Ok(())
        })
    }

    /// Removes ports, or what no port needs of the rest: all of them or none.
    pub fn del<E: Entry>(&self, names: &[impl AsRef<str>]) -> Changes {
        self.change(|spec| {
            for name in names.iter().map(AsRef::as_ref) {
                find::<E>(spec, name)?;
                if let Some(why) = E::held(spec, name) {
                    return Err(Error::InUse { what: E::WHAT, name: name.to_owned(), why });
                }
                E::list(spec).retain(|entry| entry.name() != name);
            }
            Ok(())
        })
    }

    /// Stops what stands behind port `name` and starts it again, as it is configured.
    pub fn restart(&self, name: &str) -> Changes {
        if let Ok(spec) = find::<PortSpec>(&mut self.everything(), name) {
            look_at_files(file_of(spec).map(|(path, read_only)| (name.to_owned(), path, read_only)))?;
        }
        let mut state = crate::lock(&self.state);
        let mut wanted = state.spec.clone();
        find::<PortSpec>(&mut wanted, name)?;
        let what = PortSpec::WHAT.to_owned();
        let changes =
            vec![Change { verb: Verb::Restarted, what, name: name.to_owned(), details: Vec::new() }];
        let mut endings = Vec::new();
        Transaction::new(&self.means, &mut state, &wanted, How::Whole, &mut endings).run(&changes)?;
        Ok(changes)
    }

    /// Changes what runs for a program: `edit` first, then `ports` are added. A switch that a port names is
    /// made if it is not there, and goes with its last port. `lease`: the ports run like others, but are no
    /// part of the configuration.
    pub fn change_on_demand(&self, lease: bool, ports: &[PortSpec], edit: impl FnOnce(&mut Spec)) -> Changes {
        self.change_with(How::Whole, |spec, on_demand| {
            edit(spec);
            for port in ports {
                if spec.ports.iter().any(|other| other.name == port.name) {
                    return Err(Error::Exists { what: PortSpec::WHAT, name: port.name.clone() });
                }
                spec.ports.push(port.clone());
            }
            on_demand.settle(spec, ports.iter().filter(|_| lease).map(|port| port.name.clone()));
            Ok(())
        })
    }

    fn change(&self, edit: impl FnOnce(&mut Spec) -> Result<(), Error>) -> Changes {
        self.change_with(How::Whole, |spec, _| edit(spec))
    }

    /// Looks for what an earlier daemon has left of `ports`, and opens the files of disks, as far as nothing
    /// that runs has them: that may take seconds, and while ports are started others can ask nothing. An
    /// error: a disk that runs would be stopped for one of them, and does not get its file again.
    fn seek<'p>(
        &self,
        ports: impl IntoIterator<Item = &'p PortSpec>,
    ) -> Result<(SoughtHolders, OpenedFiles), Error> {
        let holder = |spec: &PortSpec| {
            find_kind(self.means.kinds, &spec.kind).ok().and_then(|kind| (kind.holder)(spec))
        };
        let (mut holders, mut files) = (BTreeSet::new(), BTreeMap::new());
        let (mut specs, mut again) = (BTreeMap::new(), Vec::new());
        for spec in ports {
            holders.extend(holder(spec));
            files.extend(file_of(spec));
            specs.insert(spec.name.as_str(), spec);
        }
        if !(holders.is_empty() && files.is_empty()) {
            for live in crate::lock(&self.state).ports.values().filter(|live| live.attachment.is_some()) {
                if let Some(taken) = holder(&live.spec) {
                    holders.remove(&taken);
                }
                let Some((taken, _)) = file_of(&live.spec) else { continue };
                let read_only = files.remove(&taken);
                let wanted =
                    specs.get(live.spec.name.as_str()).filter(|spec| !spec.same_attachment(&live.spec));
                if let (Some(spec), Some(read_only)) = (wanted, read_only) {
                    again.push((spec.name.clone(), taken, read_only));
                }
            }
        }
        look_at_files(again)?;
        Ok((Holder::seek(holders.into_iter().collect()), disk::open_early(files.into_iter().collect())))
    }

    /// Makes what the routers need.
    fn prepare(&self, wanted: &Spec) -> Result<(), Error> {
        let make = |router: &RouterSpec| {
            let prepared = self.means.graph.prepare_router(router);
            prepared.map_err(|why| format!("router {}: {why}", router.name)).err()
        };
        let complaints: Vec<_> = wanted.routers.iter().filter_map(make).collect();
        match complaints.is_empty() {
            true => Ok(()),
            false => Err(BadSpec(complaints).into()),
        }
    }

    /// Makes what `edit` makes of the configuration, and of what is there on demand, the configuration; or
    /// says what would change.
    fn change_with(
        &self,
        how: How,
        edit: impl FnOnce(&mut Spec, &mut OnDemand) -> Result<(), Error>,
    ) -> Changes {
        let mut state = crate::lock(&self.state);
        self.means.reap(&mut state);
        let (mut wanted, mut on_demand) = (without_control(state.spec.clone()), state.on_demand.clone());
        edit(&mut wanted, &mut on_demand)?;
        wanted.forget_members(&state.spec);
        let mut wanted = with_control(wanted);
        // Budgets are checked against the cores that there are.
        wanted.daemon = wanted.daemon.or(self.daemon.clone());
        let findings = check(&wanted, self.means.kinds);
        if !findings.is_empty() {
            return Err(BadSpec::new(&findings, |_| String::new()).into());
        }
        let moved = keep_tenants(&state.spec.ports, &wanted.ports);
        if !moved.is_empty() {
            return Err(BadSpec(moved).into());
        }
        let fixed = fixed_options(&self.daemon, &wanted.daemon);
        if !fixed.is_empty() {
            return Err(Error::Fixed(fixed));
        }
        let wanted = Spec { daemon: DaemonSpec::default(), ..wanted }.settled();
        let changes = between(&state.spec, &wanted);
        self.prepare(&wanted)?;
        if how != How::Not && !changes.is_empty() {
            wanted.groups.iter().for_each(|group| self.means.graph.prepare_group(group));
            let before: Vec<String> = state.spec.groups.iter().map(|group| group.name.clone()).collect();
            let mut endings = Vec::new();
            let done = Transaction::new(&self.means, &mut state, &wanted, how, &mut endings).run(&changes);
            if done.is_ok() {
                state.on_demand = on_demand;
            }
            // Others may ask and change meanwhile.
            drop(state);
            if !wanted.groups.is_empty() {
                self.follower.tend_groups(&self.means.graph);
            }
            let late = retire::wait_for(&endings);
            let stuck = crate::lock(&self.state).leaving.named(&late);
            stuck.iter().for_each(|port| self.means.graph.cores.evict(port));
            self.means.reap(&mut crate::lock(&self.state));
            (self.changed)(self);
            done?;
            let gone = before.iter().filter(|name| wanted.groups.iter().all(|group| group.name != **name));
            gone.for_each(|name| forget_journal(&journal_of(name)));
        }
        Ok(changes)
    }

    /// Removes what ports that are not configured any more have left: for the start of a daemon.
    pub fn sweep(&self) {
        let state = crate::lock(&self.state);
        let groups: Vec<String> = state.spec.groups.iter().map(|group| journal_of(&group.name)).collect();
        sweep_journals(&state.ports.keys().chain(&groups).map(String::as_str).collect());
    }

    /// The graph, for status reports.
    pub fn graph(&self) -> &Arc<CoreGraph> {
        &self.means.graph
    }

    /// The port `name`, for captures.
    pub fn port(&self, name: &str) -> Result<Arc<Port>, Error> {
        let state = crate::lock(&self.state);
        let there = || state.ports.keys().cloned().collect();
        let unknown = || Error::Unknown { what: "port", name: name.to_owned(), there: there() };
        state.ports.get(name).map(|live| Arc::clone(&live.port)).ok_or_else(unknown)
    }
}

impl Engine {
    /// Stops all ports: their sockets are gone when this returns, but for what the next daemon goes on with
    /// ([`Attachment::leave`]). Their counters stay in the file, to be read when the daemon is gone. Returns
    /// the names of ports that have not ended within [`retire::PATIENCE`]: the process should end without
    /// them.
    pub fn shut_down(&self) -> Vec<String> {
        let mut state = crate::lock(&self.state);
        // Members are not gone because their ports end: the next daemon finds their buckets with them. No
        // probe is on its way when the cores rest.
        self.means.graph.end_groups();
        self.means.graph.cores.rest(true);
        let mut endings = Vec::new();
        for (name, live) in &mut state.ports {
            if let Some(mut attachment) = live.attachment.take() {
                attachment.leave();
                endings.push(retire::end(name, Some(attachment)));
            }
            live.port.capture.close();
        }
        state.ports.clear();
        self.means.graph.publish(&Spec::default(), &[]);
        drop(state);
        retire::wait_for(&endings)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A complaint for each port that would get another tenant while it is there.
fn keep_tenants(running: &[PortSpec], wanted: &[PortSpec]) -> Vec<String> {
    let moves =
        |port: &&PortSpec| running.iter().any(|other| other.name == port.name && other.tenant != port.tenant);
    let why = |port: &PortSpec| {
        format!("port {}: key `tenant`: a port keeps its tenant; delete it and add it again", port.name)
    };
    wanted.iter().filter(moves).map(why).collect()
}

/// The file of a disk, and whether it is only to be read.
fn file_of(spec: &PortSpec) -> Option<(PathBuf, bool)> {
    Some((spec.file.as_ref()?.path()?.to_owned(), spec.readonly == Some(Toggle::On)))
}

/// Whether ports that run get their files again when they are stopped: the server of one may have fallen
/// silent, or it is gone. Under no lock.
fn look_at_files(files: impl IntoIterator<Item = (String, PathBuf, bool)>) -> Result<(), Error> {
    for (name, path, read_only) in files {
        disk::look(&path, read_only).map_err(|why| {
            let path = path.display();
            Error::Cannot(format!(
                "port {name} goes on as it is: its file \"{path}\" cannot be opened anew: {why}"
            ))
        })?;
    }
    Ok(())
}

/// The entry `name` of `spec`.
fn find<'s, E: Entry>(spec: &'s mut Spec, name: &str) -> Result<&'s mut E, Error> {
    let list = E::list(spec);
    match list.iter().position(|entry| entry.name() == name) {
        Some(at) => Ok(&mut list[at]),
        None => {
            let there = list.iter().map(|entry| entry.name().to_owned()).collect();
            Err(Error::Unknown { what: E::WHAT, name: name.to_owned(), there })
        }
    }
}
