//! The graph that moves packets: I/O cores and switches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::acl::AclSpec;
use super::grouping::GroupSpec;
use super::members::{kept, Feed, GroupView, Groups};
use super::neighbours::{mac_text, Neighbours};
use super::routes::{AgentAt, RouterSpec};
use super::spec::{Joint, PortSpec, Spec, SwitchSpec};
use super::values::{Control, Mac, MacMove};
use crate::device::e1000::usual_mac;
use crate::graph::{self, Attach, Step, Topology};
use crate::host::vxlan;
use crate::policy::acl::Acl;
use crate::policy::{MacGuard, Policy, PortVlans, SourceGuard};
use crate::port::{Port, PortId};
use crate::router::{Member, Router};
use crate::switch::{Kind, Switch, SwitchOptions, HOLD};

/// A port of the graph, and how it is specified.
pub type Placed<'g> = (&'g PortSpec, &'g Arc<Port>);

/// What a switch knows of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Addresses behind it, and those that it claims.
    pub macs: u32,
    /// That it and another port are joined outside, or use one address.
    pub report: Option<String>,
}

crate::util::form::view! {
    /// An address that a switch remembers.
    Address {
        /// The switch.
        switch: String,
        /// Six pairs of hexadecimal digits.
        mac: String,
        /// Its VLAN, if it is in one.
        vlan?: u16,
        /// The port at which it was last seen.
        port: String,
        /// Seconds since then.
        age_s: u64,
        /// How it got there: learned, pinned by the port's `mac`, or static by its `fdb`.
        state: String = ["learned", "pinned", "static", "evpn"],
        /// Another port that claims the address and gets its frames, too.
        claimed_by?: String,
        /// The claiming port, while the address is held.
        held_against?: String,
    }
}

/// I/O cores with the switches that they run.
pub struct CoreGraph {
    /// The cores.
    pub cores: Arc<graph::Graph>,
    now: Mutex<Now>,
    groups: Mutex<Groups>,
}

/// What is published.
#[derive(Default)]
struct Now {
    switches: Switches,
    routers: Routers,
    ports: Vec<(Arc<Port>, Attach)>,
    /// Policies of ports for which anything is configured.
    policies: BTreeMap<PortId, Arc<Policy>>,
    acls: Acls,
    neighbours: Neighbours,
}

impl CoreGraph {
    /// The graph of these cores.
    pub fn new(cores: Arc<graph::Graph>) -> CoreGraph {
        CoreGraph { cores, now: Mutex::default(), groups: Mutex::default() }
    }

    /// The numbers of the ports that the cores have been told of, by name.
    #[cfg(test)]
    pub(super) fn ports(&self) -> BTreeMap<String, u16> {
        crate::lock(&self.now).ports.iter().map(|(port, _)| (port.name.clone(), port.id.0)).collect()
    }

    /// The switch of this name.
    #[cfg(test)]
    pub(super) fn switch(&self, name: &str) -> Arc<Switch> {
        Arc::clone(&crate::lock(&self.now).switches[name].1)
    }
}

impl Now {
    /// The switch for `spec`: the one that runs if it can be that, else one with another table that has what
    /// the former knew.
    fn switch(&self, spec: &SwitchSpec) -> Arc<Switch> {
        let options = options(spec);
        match self.switches.get(&spec.name) {
            Some((old, switch)) if old.table_size == spec.table_size => {
                switch.set(options);
                Arc::clone(switch)
            }
            Some((_, switch)) => Arc::new(switch.with_new_table(options)),
            None => Arc::new(Switch::new(&spec.name, options)),
        }
    }

    /// The VLANs of the port with number `id`.
    fn vlans(&self, id: PortId) -> Option<&PortVlans> {
        self.policies.get(&id)?.vlans.as_ref()
    }

    /// The name of the port with number `id`.
    fn name(&self, id: PortId) -> String {
        let port = self.ports.iter().find(|(port, _)| port.id == id);
        port.map_or_else(String::new, |(port, _)| port.name.clone())
    }

    /// What the cores are told of it.
    fn topology(&self) -> Topology {
        Topology::with_policies(&self.ports, |id| self.policies.get(&id).cloned())
    }

    /// The ports on switches, each with its switch.
    fn learned(&self) -> impl Iterator<Item = (&Arc<Port>, &Arc<Switch>)> {
        self.ports.iter().filter_map(|(port, attach)| Some((port, attach.switch()?)))
    }

    /// Ports of whose stations control planes tell.
    fn told(&self) -> Vec<PortId> {
        self.ports.iter().filter(|(port, _)| port.is_told()).map(|(port, _)| port.id).collect()
    }

    /// Puts the entries that stay into the MAC tables, and lets go of those that need not stay any more.
    fn pin(&self, seconds: u32) {
        let told = self.told();
        for (name, (_, switch)) in &self.switches {
            let here = || {
                let policy = |(port, other): (_, &Arc<Switch>)| {
                    let port: &Arc<Port> = port;
                    Arc::ptr_eq(other, switch).then_some((port, &**self.policies.get(&port.id)?))
                };
                self.learned().filter_map(policy)
            };
            switch.table.unpin(seconds, |entry| {
                told.contains(&entry.port)
                    || here().any(|(port, policy)| {
                        let carries = carries(policy.vlans.as_ref(), entry.vlan);
                        port.id == entry.port
                            && match entry.kind {
                                Kind::Learned => true,
                                // In VLANs beside its own it was learned to be the port's.
                                Kind::Pinned => policy.guard.pinned() == Some(entry.mac) && carries,
                                Kind::Static => {
                                    entry.vlan == own_vlan(policy)
                                        && policy.guard.fixed.binary_search(&entry.mac).is_ok()
                                }
                            }
                    })
            });
            for (port, policy) in here() {
                let (guard, vlan) = (&policy.guard, own_vlan(policy));
                if vlan == 0 && policy.vlans.is_some() {
                    continue;
                }
                let own = guard.pinned().filter(|_| port.link()).map(|mac| (mac, Kind::Pinned));
                let fixed = guard.fixed.iter().map(|mac| (*mac, Kind::Static));
                for (mac, kind) in own.into_iter().filter(|(mac, _)| !guard.fixed.contains(mac)).chain(fixed)
                {
                    if !switch.pin(mac | u64::from(vlan) << 48, port.id, kind, seconds) {
                        tracing::warn!(
                            switch = %name, port = %port.name,
                            "the MAC table has no room to keep {}: a larger table-size has", mac_text(mac)
                        );
                    }
                }
            }
        }
    }
}

/// Whether a port with these VLANs carries this one; 0: frames that are in none.
fn carries(vlans: Option<&PortVlans>, vlan: u16) -> bool {
    vlans.map_or(vlan == 0, |vlans| vlans.carries(vlan))
}

/// The VLAN in which a port's own and fixed addresses are; 0: none.
fn own_vlan(policy: &Policy) -> u16 {
    policy.vlans.as_ref().map_or(0, |vlans| vlans.own)
}

fn options(spec: &SwitchSpec) -> SwitchOptions {
    let default = SwitchOptions::default();
    SwitchOptions {
        table_size: spec.table_size.map_or(default.table_size, |n| n.get() as usize),
        ageing: spec.ageing.map_or(default.ageing, |n| n.get()),
        control_frames: spec.control_frames == Some(Control::Pass),
        moves: spec.mac_move == Some(MacMove::Learn),
    }
}

/// The router's station address at port `spec`; that of the group's interface `front` behind which it stands,
/// if it has none.
pub(super) fn station(router: &str, spec: &PortSpec, front: Option<&PortSpec>) -> Mac {
    let own = spec.router_mac.or_else(|| front?.mac);
    own.unwrap_or_else(|| Mac(usual_mac(&format!("{router}/{}", spec.name)).0))
}

/// The routers that there are.
type Routers = BTreeMap<String, Arc<Router>>;

/// What `spec`, the specification of `port`, is to a router.
fn member((spec, port): &Placed<'_>, router: &str, ports: &[Placed<'_>]) -> Option<Member> {
    if spec.router_name() != Some(router) {
        return None;
    }
    let front = spec.front(ports.iter().map(|(other, _)| *other));
    let addresses = spec.addresses(front).to_vec();
    let beside = |(other, _): &&Placed<'_>| other.joint() == Joint::Control(&spec.name);
    let control = ports.iter().find(beside).map(|(_, port)| port.id);
    let rpf = spec.rpf.unwrap_or_default();
    Some(Member { port: Arc::clone(port), mac: station(router, spec, front).0, addresses, control, rpf })
}

/// Has `router` be what `spec` says, with those of `ports` that are on it.
fn configure(router: &Router, spec: &RouterSpec, ports: &[Placed<'_>], seconds: u32) {
    let members: Vec<Member> = ports.iter().filter_map(|placed| member(placed, &spec.name, ports)).collect();
    let number = |name: &str| {
        let named = |(other, _): &&(&PortSpec, &Arc<Port>)| other.name == name;
        ports.iter().find(named).map(|(_, port)| port.id)
    };
    let routes: Vec<_> = spec.routes.iter().map(|route| route.route(number)).collect();
    router.configure(&members, &routes, seconds);
}

/// The members that need the routes of `router`, which is what `spec` says.
fn feeds(spec: &RouterSpec, router: Option<&Arc<Router>>, ports: &[Placed<'_>]) -> Vec<Feed> {
    let mine = ports.iter().filter(|(port, _)| port.router_name() == Some(&spec.name));
    let groups: BTreeSet<&String> = mine.filter_map(|(port, _)| port.group.as_ref()).collect();
    let agents = spec.agents.iter().flat_map(|agents| &agents.0);
    let feed = |(agent, group): (&AgentAt, &&String)| {
        Some(Feed { group: (*group).clone(), member: agent.member.clone(), router: Arc::clone(router?) })
    };
    agents.flat_map(|agent| groups.iter().map(move |group| (agent, group))).filter_map(feed).collect()
}

/// The switches that there are, each as it was specified.
type Switches = BTreeMap<String, (SwitchSpec, Arc<Switch>)>;

/// The access lists that there are, each as it was specified.
type Acls = BTreeMap<String, (AclSpec, Arc<Acl>)>;

/// The list that `spec` says: the one that there is, with its counts, if it is that.
fn compiled(spec: &AclSpec, known: &Acls) -> (AclSpec, Arc<Acl>) {
    match known.get(&spec.name) {
        Some((old, acl)) if old == spec => (spec.clone(), Arc::clone(acl)),
        _ => (spec.clone(), spec.compile()),
    }
}

/// What port `spec` may do on its switch. A router's address there is the router's.
fn policy(spec: &PortSpec, ports: &[Placed<'_>], acls: &Acls) -> Option<Arc<Policy>> {
    let number = |name: &str| ports.iter().find(|(other, _)| other.name == name).map(|(_, port)| port.id);
    let list = |name: &str| acls.get(name).map(|(_, acl)| Arc::clone(acl));
    let mut policy = spec.policy(number, list);
    if let (Some(_), Joint::Router(router)) = (spec.gateway_on(), spec.joint()) {
        policy.guard =
            SourceGuard::new(MacGuard::Claim, station(router, spec, None).number(), &[], &[], false);
    }
    policy.compile()
}

/// What `spec`, the specification of `port`, attaches it to beside a group.
fn attach((spec, port): Placed<'_>, ports: &[Placed<'_>], switches: &Switches, routers: &Routers) -> Attach {
    match spec.joint() {
        Joint::Switch(name) => {
            switches.get(name).map_or(Attach::Nothing, |(_, switch)| Attach::Switch(Arc::clone(switch)))
        }
        Joint::Router(_) | Joint::Group(_) => {
            let router = spec.router_name().and_then(|name| routers.get(name));
            let on = spec.gateway_on().map(|name| switches.get(name));
            match (router, on) {
                (Some(router), None) => Attach::Router(Arc::clone(router)),
                (Some(router), Some(Some((_, switch)))) => {
                    Attach::Gateway(Arc::clone(router), Box::new(Attach::Switch(Arc::clone(switch))))
                }
                _ => Attach::Nothing,
            }
        }
        // A pipe's frames never come here.
        Joint::Nothing | Joint::Pipe(_) => Attach::Nothing,
        // What the namespace sends goes out of the port, and nothing comes back by this way but what the
        // router sends there.
        Joint::Control(of) => {
            let port = |(other, _): &&Placed<'_>| other.name == of;
            ports.iter().find(port).map_or(Attach::Nothing, |(_, port)| Attach::Wire(port.id))
        }
        wire @ Joint::Wire(_) => {
            let other = |(end, other): &&Placed<'_>| end.joint() == wire && other.id != port.id;
            ports.iter().find(other).map_or(Attach::Nothing, |(_, end)| Attach::Wire(end.id))
        }
    }
}

impl CoreGraph {
    /// Makes the tables of `router` if there are none, before it is published.
    ///
    /// # Errors
    /// The host has no room for them.
    pub fn prepare_router(&self, router: &RouterSpec) -> Result<(), String> {
        let mut now = crate::lock(&self.now);
        if !now.routers.contains_key(&router.name) {
            let made = Router::new(&router.name).map_err(|e| format!("no memory for its tables: {e}"))?;
            now.routers.insert(router.name.clone(), Arc::new(made));
        }
        Ok(())
    }

    /// Makes group `spec` if there is none, before it is published. Its file is opened under no lock.
    pub(super) fn prepare_group(&self, spec: &GroupSpec) {
        if !crate::lock(&self.groups).has(&spec.name) {
            let kept = kept(&spec.name);
            crate::lock(&self.groups).make(spec, self.cores.status().len(), kept);
        }
    }

    /// Ends all groups, before their members' ports do.
    pub(super) fn end_groups(&self) {
        crate::lock(&self.groups).end();
    }

    /// What the cores are told.
    pub fn topology(&self) -> Topology {
        crate::lock(&self.now).topology()
    }

    /// What would become of `frame` if it came in by port `from`.
    pub(super) fn explain(&self, from: PortId, frame: &[u8]) -> Vec<Step> {
        self.topology().explain(from, frame)
    }

    /// The name of the port with number `id`.
    pub(super) fn port_name(&self, id: PortId) -> String {
        crate::lock(&self.now).name(id)
    }

    /// What `ask` finds at the switch of this name, at the second of its clock.
    pub fn table<T>(&self, name: &str, ask: impl FnOnce(&Switch, u32) -> T) -> Option<T> {
        // A table that takes another one's place is filled under the lock, too.
        let now = crate::lock(&self.now);
        Some(ask(&now.switches.get(name)?.1, self.cores.seconds()))
    }

    /// The router of this name, and the second of its clock.
    pub fn router(&self, name: &str) -> Option<(Arc<Router>, u32)> {
        Some((Arc::clone(crate::lock(&self.now).routers.get(name)?), self.cores.seconds()))
    }

    /// Looks at the members of all groups; see [`Groups::tend`].
    pub(super) fn tend_groups(&self, now: Instant) -> Option<Duration> {
        // A core has only got what was made before groups ended.
        let send = |probes| self.cores.post(|local| local.probe(probes));
        crate::lock(&self.groups).tend(now, send)
    }

    /// The groups, for people.
    pub(super) fn groups(&self) -> Vec<GroupView> {
        crate::lock(&self.groups).view()
    }

    /// Makes all cores use the graph of the switches, routers, groups and access lists of `spec` and of these
    /// ports, in which each port is joined as its specification says. When this returns, no core uses the
    /// former one any more, and no switch remembers addresses of ports that are gone.
    pub fn publish(&self, spec: &Spec, ports: &[Placed<'_>]) {
        let Spec { switches, routers: specs, groups, acls, .. } = spec;
        let mut now = crate::lock(&self.now);
        let seconds = self.cores.seconds();
        let known = std::mem::take(&mut now.routers);
        let mut routers = Routers::new();
        for spec in specs {
            let Some(router) = known.get(&spec.name) else { continue };
            // Before its ports give it frames.
            configure(router, spec, ports, seconds);
            routers.insert(spec.name.clone(), Arc::clone(router));
        }
        let known = std::mem::take(&mut now.acls);
        let acls: Acls = acls.iter().map(|spec| (spec.name.clone(), compiled(spec, &known))).collect();
        let policies: BTreeMap<_, _> =
            ports.iter().filter_map(|(spec, port)| Some((port.id, policy(spec, ports, &acls)?))).collect();
        let switches: Switches =
            switches.iter().map(|spec| (spec.name.clone(), (spec.clone(), now.switch(spec)))).collect();
        let mut live = crate::lock(&self.groups);
        let feeds: Vec<Feed> =
            specs.iter().flat_map(|spec| feeds(spec, routers.get(&spec.name), ports)).collect();
        live.follow(groups, ports, &feeds, self.cores.status().len());
        let attach = |at: &Placed<'_>| live.attach(at.0, ports, attach(*at, ports, &switches, &routers));
        let ports: Vec<_> = ports.iter().map(|at| (Arc::clone(at.1), attach(at))).collect();
        drop(live);
        let neighbours = std::mem::take(&mut now.neighbours);
        let next = Now { switches, routers, ports, policies, acls, neighbours };
        self.cores.publish(&Arc::new(next.topology()));
        // A budget may be another one now.
        self.cores.pack();
        let before = std::mem::replace(&mut *now, next);
        // No core has a router any more that is not among them.
        drop(known);
        // No core learns by the old topology any more: what it taught about ports that left can go.
        for (port, switch) in before.learned() {
            let stays = now.learned().any(|(other, on)| other.id == port.id && Arc::ptr_eq(on, switch));
            let (then, is) = (before.vlans(port.id), now.vlans(port.id));
            if !stays {
                switch.forget(port.id, false, seconds);
            } else if then != is {
                switch.forget_vlans(port.id, |vlan| carries(is, vlan), seconds);
            }
        }
        now.pin(seconds);
    }

    /// The access lists, by name.
    pub(super) fn acls(&self) -> Vec<(String, Arc<Acl>)> {
        let now = crate::lock(&self.now);
        now.acls.iter().map(|(name, (_, acl))| (name.clone(), Arc::clone(acl))).collect()
    }

    /// The addresses that the switches remember.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let now = crate::lock(&self.now);
        let (seconds, told) = (self.cores.seconds(), now.told());
        let mut addresses = Vec::new();
        for (name, (_, switch)) in &now.switches {
            for entry in switch.table.entries() {
                let held = entry.held.filter(|(_, since)| seconds.saturating_sub(*since) < HOLD);
                let state = match entry.kind {
                    _ if told.contains(&entry.port) => "evpn",
                    Kind::Learned => "learned",
                    Kind::Pinned => "pinned",
                    Kind::Static => "static",
                };
                addresses.push(Address {
                    switch: name.clone(),
                    mac: mac_text(entry.mac),
                    vlan: Some(entry.vlan).filter(|vlan| *vlan != 0),
                    port: now.name(entry.port),
                    age_s: u64::from(seconds.saturating_sub(entry.seen)),
                    state: state.to_owned(),
                    claimed_by: entry.claimant.map(|port| now.name(port)),
                    held_against: held.map(|(port, _)| now.name(port)),
                });
            }
        }
        addresses.sort_by(|a, b| (&a.switch, a.vlan, &a.mac).cmp(&(&b.switch, b.vlan, &b.mac)));
        addresses
    }

    /// What the switch of port `id` knows of it.
    pub(super) fn standing(&self, id: PortId) -> Standing {
        let now = crate::lock(&self.now);
        let switch = now.learned().find(|(port, _)| port.id == id);
        Standing {
            macs: switch.map_or(0, |(_, switch)| switch.table.count(id)),
            report: now.neighbours.report(id, self.cores.seconds()),
        }
    }

    /// Forgets addresses that have aged or whose port has lost its link. To be called every second.
    pub(super) fn tick(&self) {
        let mut now = crate::lock(&self.now);
        let seconds = self.cores.seconds();
        vxlan::age(seconds);
        let told = now.told();
        let mut switches = std::mem::take(&mut now.switches);
        let mut changed = false;
        for (name, (spec, switch)) in &mut switches {
            if switch.age(seconds, |port| told.contains(&port)) {
                tracing::warn!(
                    switch = %name,
                    "single buckets of the MAC table overflow, as under an attack: it has another hash key now"
                );
                let new = Arc::new(switch.with_new_table(options(spec)));
                let old = std::mem::replace(switch, new);
                now.ports.iter_mut().for_each(|(_, attach)| attach.move_to(&old, switch));
                changed = true;
            }
        }
        now.switches = switches;
        if changed {
            self.cores.publish(&Arc::new(now.topology()));
        }
        for (port, switch) in now.learned() {
            if !port.link() && switch.table.count(port.id) > 0 {
                switch.forget(port.id, true, seconds);
            }
        }
        now.pin(seconds);
        let routers: Vec<_> = now.routers.values().cloned().collect();
        let mut neighbours = std::mem::take(&mut now.neighbours);
        for (name, (_, switch)) in &now.switches {
            switch.table.disputes(seconds, |dispute| {
                if let Some(report) = neighbours.note(&dispute, seconds, |id| now.name(id)) {
                    tracing::warn!(event = "fault", switch = %name, "{report}");
                }
            });
        }
        now.neighbours = neighbours;
        drop(now);
        // It may have a hundred thousand next hops to end: no request waits for that.
        routers.iter().for_each(|router| router.tidy(seconds));
    }
}
