//! Carrying a change out, all or nothing.
//!
//! What can fail is starting ports and moving carriers, so these come before anything is given up, in
//! an order in which as much as possible keeps running:
//!
//! 1. new ports get numbers and join the graph, so that no frame of theirs finds it closed;
//! 2. new ports start, but for those whose location (socket, interface) an outgoing port still holds;
//! 3. ports that hold such locations, and ports that restart, stop; their successors start;
//! 4. MTU, carrier and service change where only they differ;
//! 5. the new graph is published, which no core can refuse; what is outgoing stops; its numbers are free.
//!
//! If a step up to 4 fails, everything done is undone backwards: the old graph is published again, and ports
//! that had to stop in step 3 are started as they were. Only there can undoing fail as well (the host may
//! refuse now what it gave before); such a port stays, stopped, and says why. So does a port that cannot be
//! started when the daemon begins ([`How::EachAlone`]): what stands at its socket's name, or is missing of
//! its interface, is no reason for the others not to run. Stopped ports are tried again each second.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::check::same_place;
use super::diagnosis::MemoryWatch;
use super::flow::Flow;
use super::kinds::find;
use super::live::{EngineState, Live, Means};
use super::plan::{Change, Verb};
use super::retire::{self, Ending, PATIENCE};
use super::spec::{Entry, Joint, PortSpec, Spec};
use crate::host::netns;
use crate::port::{Attachment, Fault, Port, DEFAULT_MTU};

/// What made a change impossible, and whether all is as it was.
#[derive(Debug, thiserror::Error)]
pub struct Undone {
    /// The port at which it failed.
    pub port: String,
    /// Why.
    pub cause: String,
    /// Ports that could not be started again.
    pub lost: Vec<String>,
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: {}; ", self.port, self.cause)?;
        match self.lost.as_slice() {
            [] => f.write_str("nothing was changed"),
            lost => {
                write!(f, "everything else is as it was, but for: {}", lost.join("; "))
            }
        }
    }
}

/// How to take one step back.
enum Back {
    /// Forget the new port.
    Forget(String),
    /// Stop the port as it is now and start it as it was; `None` if it was stopped.
    Restart(String, PortSpec),
    /// MTU, carrier and service as they were.
    Retune(PortSpec),
}

/// How a change is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Not at all: what it would be is asked for.
    Not,
    /// As a whole, or not at all.
    Whole,
    /// A new port that cannot be started stays, stopped.
    EachAlone,
}

/// A change under way.
pub(super) struct Transaction<'c> {
    means: &'c Means,
    state: &'c mut EngineState,
    wanted: &'c Spec,
    how: How,
    back: Vec<Back>,
    /// What ends when the change is done; the thread that carries it out waits for it without the engine's
    /// lock.
    endings: &'c mut Vec<Ending>,
}

type Failure = (String, String);

impl<'c> Transaction<'c> {
    pub fn new(
        means: &'c Means,
        state: &'c mut EngineState,
        wanted: &'c Spec,
        how: How,
        endings: &'c mut Vec<Ending>,
    ) -> Transaction<'c> {
        Transaction { means, state, wanted, how, back: Vec::new(), endings }
    }

    pub fn run(mut self, changes: &[Change]) -> Result<(), Undone> {
        let done = match self.steps(changes) {
            Ok(()) => {
                self.commit();
                Ok(())
            }
            Err((port, cause)) => Err(Undone { port, cause, lost: self.undo() }),
        };
        self.state.follow();
        done
    }

    fn steps(&mut self, changes: &[Change]) -> Result<(), Failure> {
        let names = |verb: Verb| {
            let of_verb = changes.iter().filter(move |c| c.what == "port" && c.verb == verb);
            of_verb.map(|c| c.name.as_str()).collect::<BTreeSet<_>>()
        };
        let wanted = self.wanted;
        let specs = |verb: Verb| {
            let names = names(verb);
            wanted.ports.iter().filter(|port| names.contains(&*port.name)).collect::<Vec<_>>()
        };
        let (added, restarted) = (specs(Verb::Added), specs(Verb::Restarted));
        self.state.tenants.follow(&with_new(&self.state.spec.tenants, &self.wanted.tenants), true);
        for spec in &added {
            self.enter(spec)?;
        }
        self.join_early(&added);

        let outgoing: BTreeSet<&str> = &names(Verb::Removed) | &names(Verb::Restarted);
        let held: Vec<PortSpec> =
            outgoing.iter().filter_map(|name| Some(self.state.ports.get(*name)?.spec.clone())).collect();
        let kinds = self.means.kinds;
        let holder = |spec: &PortSpec| held.iter().find(|held| same_place(held, spec, kinds));
        let (blocked, early): (Vec<&PortSpec>, Vec<_>) =
            added.iter().partition(|spec| holder(spec).is_some());
        for spec in early {
            match (self.start(spec), self.how) {
                (Err((name, cause)), How::EachAlone) => {
                    tracing::error!(event = "fault", port = %name, "it does not start, and is tried again each second: {cause}");
                    self.set_stopped(&name, cause);
                }
                (started, _) => started?,
            }
        }
        let late: Vec<&PortSpec> = restarted.iter().copied().chain(blocked).collect();
        let mut stopping = names(Verb::Restarted);
        stopping.extend(late.iter().filter_map(|spec| holder(spec)).map(|held| held.name.as_str()));
        for name in stopping {
            self.stop(name)?;
        }
        for spec in late {
            self.start(spec)?;
        }
        for spec in specs(Verb::Changed) {
            self.retune(spec)?;
        }
        Ok(())
    }

    /// Gives a new port its number, counters and place among the live ones.
    fn enter(&mut self, spec: &PortSpec) -> Result<(), Failure> {
        let fail = |cause: String| (spec.name.clone(), cause);
        let id = self.state.ids.take().ok_or_else(|| {
            fail(format!("all {} port numbers are in use", sidecore_abi::counters::MAX_PORTS))
        })?;
        let counters = self.means.counters.open_slot(id, &spec.name);
        let port = match Port::new(id, &spec.name, counters.clone(), mtu(spec)) {
            Ok(port) => Arc::new(match self.state.tenants.of(spec) {
                Some(tenant) => port.paid_by(tenant),
                None => port,
            }),
            Err(e) => {
                self.means.counters.close_slot(&counters);
                self.state.ids.give_back(id);
                return Err(fail(format!("cannot make an eventfd: {e}")));
            }
        };
        port.watch_link(Arc::clone(&self.means.links));
        // A wire's other end has to be seen first.
        port.set_carrier(spec.line().is_none() && spec.control_of.is_none());
        let live = Live {
            spec: spec.clone(),
            port,
            attachment: None,
            space: None,
            stopped: None,
            link: false,
            flow: Flow::default(),
            memory: MemoryWatch::default(),
        };
        self.state.ports.insert(spec.name.clone(), live);
        self.back.push(Back::Forget(spec.name.clone()));
        Ok(())
    }

    /// Publishes the old graph with the new ports, but for those whose wire is still taken.
    fn join_early(&self, added: &[&PortSpec]) {
        let (old, new) = (&self.state.spec, self.wanted);
        let all = Spec {
            switches: with_new(&old.switches, &new.switches),
            routers: with_new(&old.routers, &new.routers),
            groups: with_new(&old.groups, &new.groups),
            acls: with_new(&old.acls, &new.acls),
            ..Spec::default()
        };
        let mut ports = self.state.placed();
        for spec in added {
            let Some(live) = self.state.ports.get(&spec.name) else { continue };
            let ends = ports.iter().filter(|(other, _)| other.joint() == spec.joint()).count();
            if !matches!(spec.joint(), Joint::Wire(_)) || ends < 2 {
                ports.push((spec, &live.port));
            }
        }
        self.means.graph.publish(&all, &ports);
    }

    /// Starts what stands behind the live port of that name, as `spec` says.
    fn start(&mut self, spec: &PortSpec) -> Result<(), Failure> {
        let fail = |cause: String| (spec.name.clone(), cause);
        let Some(live) = self.state.ports.get_mut(&spec.name) else {
            return Err(fail("is not among the live ports".to_owned()));
        };
        live.space = space(spec);
        live.attachment = Some(self.means.attach(spec, &live.port).map_err(fail)?);
        live.spec = spec.clone();
        live.stopped = None;
        Ok(())
    }

    fn set_stopped(&mut self, name: &str, cause: String) {
        if let Some(live) = self.state.ports.get_mut(name) {
            live.stopped = Some(cause);
        }
    }

    /// Stops a port whose location is needed; it can be started again.
    fn stop(&mut self, name: &str) -> Result<(), Failure> {
        let Some(live) = self.state.ports.get_mut(name) else { return Ok(()) };
        self.back.push(Back::Restart(name.to_owned(), live.spec.clone()));
        let place = |spec: &PortSpec| (spec.kind.clone(), spec.location.clone());
        let next = self.wanted.ports.iter().find(|spec| spec.name == name);
        if next.is_some_and(|next| place(next) == place(&live.spec)) {
            // As between two daemons: a VMM cannot connect to a card a second time.
            live.attachment.iter_mut().for_each(|attachment| attachment.leave());
        }
        live.detach()?;
        live.port.fault.clear();
        Ok(())
    }

    fn retune(&mut self, spec: &PortSpec) -> Result<(), Failure> {
        let Some(live) = self.state.ports.get_mut(&spec.name) else { return Ok(()) };
        let (old, tuned) = live.retune(spec.clone());
        self.back.push(Back::Retune(old));
        tuned.map_err(|cause| (spec.name.clone(), cause))
    }

    fn commit(&mut self) {
        let Transaction { means, state, wanted, endings, .. } = self;
        state.spec = wanted.clone();
        state.tenants.follow(&wanted.tenants, false);
        let stay = |name: &String| wanted.ports.iter().any(|port| port.name == *name);
        let gone: Vec<String> = state.ports.keys().filter(|name| !stay(name)).cloned().collect();
        // First out of the graph, then stopped: no core finds a port whose queues are going away.
        means.publish(state);
        for name in gone {
            endings.extend(means.retire(state, &name, true));
        }
    }

    /// Takes all steps back and returns the ports that did not come up again.
    fn undo(&mut self) -> Vec<String> {
        let mut lost = Vec::new();
        let mut forgotten = Vec::new();
        for back in std::mem::take(&mut self.back).into_iter().rev() {
            match back {
                Back::Forget(name) => {
                    if let Some(Err((_, cause))) = self.state.ports.get_mut(&name).map(Live::detach) {
                        lost.push(format!("port {name}: {cause}"));
                    }
                    forgotten.push(name);
                }
                Back::Restart(name, spec) => {
                    // What took its place goes first.
                    for live in self.state.ports.values_mut() {
                        if live.spec.name == name || same_place(&live.spec, &spec, self.means.kinds) {
                            // One that does not end is in the way of the next start, which says so.
                            let _ = live.detach();
                        }
                    }
                    if let Err((_, cause)) = self.start(&spec) {
                        lost.push(format!("port {name}: {cause}"));
                        if let Some(live) = self.state.ports.get_mut(&name) {
                            live.spec = spec;
                        }
                        self.set_stopped(&name, cause);
                    }
                }
                Back::Retune(spec) => {
                    let name = spec.name.clone();
                    let tuned = self.state.ports.get_mut(&name).map(|live| live.retune(spec).1);
                    if let Some(Err(cause)) = tuned {
                        lost.push(format!("port {name}: {cause}"));
                    }
                }
            }
        }
        self.means.publish(self.state);
        self.state.tenants.follow(&self.state.spec.tenants, false);
        for name in forgotten {
            self.endings.extend(self.means.retire(self.state, &name, false));
        }
        lost
    }
}

impl Live {
    /// Ends what stands behind the port, for another to take its place.
    fn detach(&mut self) -> Result<(), Failure> {
        let Some(attachment) = self.attachment.take() else { return Ok(()) };
        let name = &self.spec.name;
        if retire::end(name, Some(attachment)).wait(Instant::now() + PATIENCE) {
            return Ok(());
        }
        Err((
            name.clone(),
            format!("its threads have not ended within {PATIENCE:?}; try again, or end its VMM"),
        ))
    }

    /// Brings carrier, MTU and service to what `spec` says, those that change; what the specification was,
    /// and whether all of it could be.
    fn retune(&mut self, spec: PortSpec) -> (PortSpec, Result<(), String>) {
        let old = std::mem::replace(&mut self.spec, spec);
        let (links, sizes) = (old.link_wanted() != self.spec.link_wanted(), old.mtu != self.spec.mtu);
        (old, self.tune(links, sizes))
    }

    fn tune(&mut self, links: bool, sizes: bool) -> Result<(), String> {
        grant(&self.spec, &self.port);
        if sizes {
            self.port.set_mtu(mtu(&self.spec));
        }
        let Some(attachment) = &mut self.attachment else { return Ok(()) };
        if sizes {
            attachment.set_mtu(mtu(&self.spec))?;
        }
        if links {
            show_link(&mut **attachment, &self.spec, &self.port)?;
        }
        Ok(())
    }
}

impl Means {
    /// Starts the ports that could not be started, those that can be now, and those whose interface has gone
    /// and may come back. A cause is logged when it is another than before.
    pub fn try_again(&self, state: &mut EngineState) {
        let mut came = false;
        let is_gone = |live: &&mut Live| {
            let other = live.attachment.is_some() && live.space != space(&live.spec);
            other || live.port.fault.get() == Some(Fault::InterfaceGone)
        };
        for live in state.ports.values_mut().filter(is_gone) {
            // What stands behind it has stopped itself; one that does not end is looked at again in a second.
            if live.attachment.is_none() || live.detach().is_ok() {
                live.stopped = Some(Fault::InterfaceGone.to_string());
                live.port.fault.clear();
            }
        }
        for (name, live) in state.ports.iter_mut().filter(|(_, live)| live.stopped.is_some()) {
            live.space = space(&live.spec);
            match self.attach(&live.spec, &live.port) {
                Ok(attachment) => {
                    (live.attachment, live.stopped, came) = (Some(attachment), None, true);
                    tracing::info!(event = "fault", port = %name, "it has started");
                }
                Err(cause) => {
                    if live.stopped.as_ref() != Some(&cause) {
                        tracing::error!(event = "fault", port = %name, "it does not start: {cause}");
                    }
                    live.stopped = Some(cause);
                }
            }
        }
        if came {
            state.follow();
        }
    }

    fn attach(&self, spec: &PortSpec, port: &Arc<Port>) -> Result<Box<dyn Attachment>, String> {
        let kind = find(self.kinds, &spec.kind)?;
        port.renew();
        port.set_silent(!spec.link_wanted());
        port.set_mtu(mtu(spec));
        grant(spec, port);
        let mut attachment = (kind.start)(spec, port, self.graph.cores.clone())?;
        if !(spec.link_wanted() && port.carrier()) {
            show_link(&mut *attachment, spec, port)?;
        }
        Ok(attachment)
    }
}

/// What tells the network namespace of a port from another that was made in its place.
fn space(spec: &PortSpec) -> Option<(u64, u64)> {
    spec.netns.as_deref().and_then(|name| netns::identity(&netns::path(name)))
}

/// Grants a port its queue, and one that pays for itself what its specification says; of others the tenant's
/// does.
fn grant(spec: &PortSpec, port: &Port) {
    port.set_queue(spec.queue.map(|frames| frames.get()));
    if spec.tenant.is_none() {
        port.tenant.set(spec.service());
    }
}

/// Gives a device the carrier that the operator wants and its wire has.
fn show_link(device: &mut dyn Attachment, spec: &PortSpec, port: &Port) -> Result<(), String> {
    // Where the device does not comply, or is stuck, the cores see to it.
    port.set_silent(!spec.link_wanted());
    device.set_link(spec.link_wanted())?;
    if spec.link_wanted() && !port.carrier() {
        device.follow(false)?;
    }
    Ok(())
}

/// `old`, and what only `wanted` has.
fn with_new<E: Entry>(old: &[E], wanted: &[E]) -> Vec<E> {
    let is_new = |entry: &&E| old.iter().all(|other| other.name() != entry.name());
    old.iter().chain(wanted.iter().filter(is_new)).cloned().collect()
}

fn mtu(spec: &PortSpec) -> u32 {
    spec.mtu.map_or(DEFAULT_MTU, |mtu| mtu.get())
}
