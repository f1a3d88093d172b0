//! Has a router be what it is told, and explains what it does.
//!
//! The order of a change: groups that are new get numbers and are published with the plan; then the tables
//! lead to them; then groups that nothing leads to are retired. At each moment every route that a core can
//! find has its group.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use sidecore_fib::epoch::Epochs;
use sidecore_fib::{v4, v6};

use super::fed::{Ways, LOOK};
use super::groups::Made;
use super::hops::{Hop, HopCounts, Hops};
use super::neighbours::{Known, Neighbours, Reach};
use super::net::{address, never, Net};
use super::plan::{Group, Interface, Limits, Plan, Published};
use super::rib::{Control, Retired, Wanted};
use super::route::{Key, Member, Origin, Route, Rpf, Static};
use super::said::Way;
use super::view::{ClassView, Explained, HopView, InterfaceView, NeighbourView, RouteView, Shorter};
use super::Router;
use crate::observe::account::{DropReason, PortId};
use crate::packet::Mac;

impl Router {
    /// A router without ports and routes.
    ///
    /// # Errors
    /// The kernel has no room for its tables.
    pub fn new(name: &str) -> std::io::Result<Router> {
        Ok(Router {
            name: name.to_owned(),
            plan: Published::default(),
            epochs: Epochs::new(),
            neighbours: Neighbours::new(),
            control: Mutex::new(Control::new()?),
            copies: Mutex::default(),
        })
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        crate::lock(&self.control)
    }

    pub(super) fn readers(&self) -> (v4::Reader, v6::Reader) {
        let control = self.control();
        (control.v4.reader(), control.v6.reader())
    }

    /// Has the router have these ports and these routes at second `now`.
    pub fn configure(&self, members: &[Member], statics: &[Static], now: u32) {
        let control = &mut *self.control();
        control.members = members.to_vec();
        control.statics = statics.to_vec();
        self.apply(control, now);
        self.neighbours.retain(|port| members.iter().any(|member| member.port.id == port));
    }

    /// Has the router have these addresses beside those of its ports: its control plane's, which it has at no
    /// port.
    pub fn set_loopbacks(&self, addresses: &BTreeSet<IpAddr>, now: u32) {
        let control = &mut *self.control();
        if control.loopbacks != *addresses {
            control.loopbacks.clone_from(addresses);
            self.apply(control, now);
        }
    }

    /// Has the tables and the plan follow the ports, addresses and routes that `control` has now.
    fn apply(&self, control: &mut Control, now: u32) {
        self.reclaim(control);
        let Wanted { mut routes, idle } = Wanted::of(&control.members, &control.statics, &control.loopbacks);
        control.idle = idle;
        // What was in the way of a route of the control plane, and is not any more, gives it its place.
        let mut gone = Vec::new();
        for (net, old) in &control.routes {
            if old.origin == Origin::Fed || routes.contains_key(net) {
                continue;
            }
            match control.fed.key(net) {
                Some(key) => {
                    routes.insert(*net, Route { origin: Origin::Fed, key: Arc::clone(key) });
                }
                None => gone.push(*net),
            }
        }
        let changed: Vec<Net> = routes
            .iter()
            .filter(|(net, it)| control.routes.get(net) != Some(it))
            .map(|(net, _)| *net)
            .collect();
        let keys: BTreeSet<Arc<Key>> =
            changed.iter().filter_map(|net| Some(Arc::clone(&routes.get(net)?.key))).collect();
        for key in keys {
            self.number(control, key, now);
        }
        let old = self.refresh(control, |_, _, _| true, now);
        self.publish(control, old);

        for net in gone {
            self.withdraw(control, net);
        }
        for net in changed {
            if let Some(route) = routes.remove(&net) {
                self.install(control, net, route);
            }
        }
        self.settle(control);
    }

    /// The one [`Key`] that means what `key` does, with a group and a number; the first route to it is still
    /// to come.
    pub(super) fn number(&self, control: &mut Control, key: Arc<Key>, now: u32) -> Arc<Key> {
        if let Some((known, _)) = control.numbers.get_key_value(&key) {
            return Arc::clone(known);
        }
        let number = control.groups.number();
        let made = self.group(control, &key, number, now);
        control.groups.set(number, made);
        control.numbers.insert(Arc::clone(&key), (number, 0));
        control.loose.push(Arc::clone(&key));
        key
    }

    /// Has the tables lead `net` where `route` does, whose key has a number.
    pub(super) fn install(&self, control: &mut Control, net: Net, route: Route) -> bool {
        let Some((number, uses)) = control.numbers.get_mut(&route.key) else { return false };
        *uses += 1;
        let number = *number;
        if let Err(why) = control.insert(net, number) {
            // A control plane may have many such routes; they are counted.
            if route.origin != Origin::Fed {
                tracing::error!(router = %self.name, "route {net} is not in force: {why}");
            }
            Self::less(control, &route.key);
            return false;
        }
        if let Some(old) = control.routes.insert(net, route) {
            Self::less(control, &old.key);
        }
        true
    }

    /// Has the tables have no route for `net`.
    pub(super) fn withdraw(&self, control: &mut Control, net: Net) {
        control.remove(net);
        if let Some(old) = control.routes.remove(&net) {
            Self::less(control, &old.key);
        }
    }

    /// The end of a change: what was noted holds, and groups that no route leads to are retired.
    pub(super) fn settle(&self, control: &mut Control) {
        if let Err(why) = control.v6.commit() {
            tracing::error!(router = %self.name, "changes of IPv6 routes are not in force: {why}");
        }
        for key in std::mem::take(&mut control.loose) {
            if control.numbers.get(&key).is_some_and(|(_, uses)| *uses == 0) {
                self.retire(control, &key);
            }
        }
    }

    /// The group of `key` for `number`, with its neighbours pinned. What has been counted of the one that has
    /// this number stays.
    fn group(&self, control: &Control, key: &Key, number: u32, now: u32) -> Made {
        // What a control plane said stays in memory, whether it leads to a port or not. The operator's is not
        // charged.
        let (key, own) = match key {
            Key::Fed(way) => (control.fed.ways.leads(way, &control.members), Some(way.hops())),
            key => (key.clone(), None),
        };
        let plain = |group| Made { group, hops: own.unwrap_or(0), short: false };
        let hops = match key {
            Key::Local => return plain(Group::Local),
            Key::Broadcast => return plain(Group::Broadcast),
            Key::OnLink(port) => return plain(Group::OnLink(port)),
            Key::Blackhole => return plain(Group::Blackhole),
            Key::Unreachable => return plain(Group::Unreachable),
            Key::Prohibit => return plain(Group::Prohibit),
            Key::Via(hops) if own.is_some() && hops.len() > control.groups.room(number) => {
                return Made { short: true, ..plain(Group::Via(Hops::default())) }
            }
            Key::Via(hops) => hops,
            // A way leads somewhere that is no way.
            Key::Fed(_) => return plain(Group::Nothing),
        };
        let before = match control.groups.get(number).map(|old| &**old) {
            Some(Group::Via(before)) => Some(before),
            _ => None,
        };
        let hop = |((port, gateway), weight): ((PortId, u128), u16)| {
            let target = control.members.iter().find(|member| member.port.id == port)?;
            let entry = self.neighbours.pin(port, gateway, now);
            let mut old = before.iter().flat_map(|before| &before.all);
            let same = old.find(|hop| (hop.port, hop.gateway) == (port, gateway));
            let counts = same.map_or_else(|| Arc::new(HopCounts::new()), |hop| Arc::clone(&hop.counts));
            Some(Hop { port, target: Arc::clone(&target.port), gateway, weight, entry, counts })
        };
        let hops: Box<[Hop]> = hops.into_iter().filter_map(hop).collect();
        let charge = own.map_or(0, |own| own.max(hops.len()));
        Made { hops: charge, ..plain(Group::Via(Hops::new(hops, before))) }
    }

    /// Makes the groups of those ways of the control plane anew of which `which` is true; returns those that
    /// they take the place of, to be retired when the plan with the new ones is published.
    pub(super) fn refresh(
        &self,
        control: &mut Control,
        which: impl Fn(&Ways, &Way, u32) -> bool,
        now: u32,
    ) -> Vec<Arc<Group>> {
        let fed = |(key, (number, _)): (&Arc<Key>, &(u32, usize))| match &**key {
            Key::Fed(way) if which(&control.fed.ways, way, *number) => Some((Arc::clone(key), *number)),
            _ => None,
        };
        let keys: Vec<(Arc<Key>, u32)> = control.numbers.iter().filter_map(fed).collect();
        let mut replaced = Vec::new();
        for (key, number) in keys {
            let new = self.group(control, &key, number, now);
            replaced.extend(control.groups.set(number, new));
        }
        replaced
    }

    /// Has cores find the groups that there are now. The pins of `replaced` go when no core can be on its way
    /// there.
    pub(super) fn publish(&self, control: &mut Control, replaced: Vec<Arc<Group>>) {
        let Control { members, limits, groups, loopbacks, .. } = control;
        let there = |port: &PortId| members.iter().any(|member| member.port.id == *port);
        limits.retain(|port, _| there(port));
        let interface = |member: &Member| {
            let limits = limits.entry(member.port.id).or_insert_with(|| Arc::new(Limits::new()));
            let mut made = Interface::new(&member.port, member.mac, &member.addresses, Arc::clone(limits));
            (made.control, made.rpf) = (member.control, member.rpf);
            Arc::new(made)
        };
        let interfaces = members.iter().map(interface).collect();
        let old = self.plan.replace(Arc::new(Plan::new(groups.list(), interfaces, loopbacks)));
        control.plans.push(old);
        // No core can find them any more: one that is only here stays so. The others are one for each core,
        // at most.
        control.plans.retain(|plan| Arc::strong_count(plan) > 1);
        if !replaced.is_empty() {
            let epoch = self.epochs.begin();
            control.retired.extend(replaced.into_iter().map(|group| (epoch, Retired::Group(group))));
        }
    }

    /// A route less leads to the group of `key`. It stays until the end of the change: another route may come
    /// to it.
    fn less(control: &mut Control, key: &Arc<Key>) {
        if let Some((_, uses)) = control.numbers.get_mut(key) {
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                control.loose.push(Arc::clone(key));
            }
        }
    }

    /// Its number is used again when no core is on its way there.
    fn retire(&self, control: &mut Control, key: &Key) {
        if let Some((number, _)) = control.numbers.remove(key) {
            control.retired.push_back((self.epochs.begin(), Retired::Number(number)));
        }
    }

    pub(super) fn reclaim(&self, control: &mut Control) {
        let reached = self.epochs.reached();
        while control.retired.front().is_some_and(|(epoch, _)| *epoch <= reached) {
            let Some((_, retired)) = control.retired.pop_front() else { return };
            let old = match retired {
                Retired::Group(group) => group,
                Retired::Number(number) => {
                    let Some(old) = control.groups.release(number) else { continue };
                    old
                }
            };
            if let Group::Via(hops) = &*old {
                hops.all.iter().filter_map(|hop| hop.entry).for_each(|entry| self.neighbours.unpin(entry));
            }
        }
    }
}

impl Router {
    /// Its routes, in the order of their prefixes; those that are not in force at the end.
    pub fn routes(&self, now: u32) -> Vec<RouteView> {
        let (mut routes, mut behind) = (Vec::new(), None);
        // Some at a time: whoever changes routes does not wait for all of them.
        while let Some(last) = self.some_routes(behind, now, &mut routes) {
            behind = Some(last);
        }
        let control = self.control();
        routes.extend(control.idle.iter().map(|(it, why)| RouteView {
            prefix: it.prefix.network(),
            origin: origin(Origin::Static).to_owned(),
            action: "none".to_owned(),
            port: None,
            group: 0,
            hops: Vec::new(),
            idle: Some(why.clone()),
        }));
        routes
    }

    /// Adds the next [`LOOK`] routes behind `behind`; the last of them, if there may be more.
    fn some_routes(&self, behind: Option<Net>, now: u32, routes: &mut Vec<RouteView>) -> Option<Net> {
        let control = self.control();
        let (_, plan) = self.plan.take();
        let route = |(net, route): (&Net, &Route)| {
            let number = control.numbers.get(&route.key).map_or(0, |(number, _)| *number);
            RouteView {
                prefix: *net,
                origin: origin(route.origin).to_owned(),
                action: action(&route.key).to_owned(),
                port: match &*route.key {
                    Key::OnLink(port) => port_name(&plan, *port),
                    _ => None,
                },
                group: number,
                hops: self.hops(&plan, number, now),
                idle: None,
            }
        };
        let (before, from) = (routes.len(), behind.map_or(Bound::Unbounded, Bound::Excluded));
        routes.extend(control.routes.range((from, Bound::Unbounded)).take(LOOK).map(route));
        routes.last().filter(|_| routes.len() - before == LOOK).map(|last| last.prefix)
    }

    fn hops(&self, plan: &Plan, group: u32, now: u32) -> Vec<HopView> {
        let Group::Via(hops) = plan.group(group) else { return Vec::new() };
        let hop = |hop: &Hop| {
            let (frames, bytes) = hop.counts.sums();
            let looked = match hop.entry {
                Some(entry) => Some(self.neighbours.reach(entry, now)),
                None => self.neighbours.look(hop.port, hop.gateway, now).map(|(_, reach)| reach),
            };
            let (mac, state) = reach(looked.unwrap_or(Reach::Unknown));
            HopView {
                gateway: address(hop.gateway),
                port: hop.target.name.clone(),
                link: hop.target.link(),
                weight: Some(hop.weight).filter(|weight| *weight != 1),
                mac,
                state: state.to_owned(),
                frames,
                bytes,
            }
        };
        hops.all.iter().map(hop).collect()
    }

    /// Its neighbours.
    pub fn neighbours(&self, now: u32) -> Vec<NeighbourView> {
        let (_, plan) = self.plan.take();
        let view = |known: Known| NeighbourView {
            router: self.name.clone(),
            port: port_name(&plan, known.port).unwrap_or_default(),
            address: known.address,
            mac: known.mac.map(mac),
            state: reach(known.reach).1.to_owned(),
            age_s: known.age,
            gateway: known.gateway,
        };
        let mut all: Vec<NeighbourView> = self.neighbours.all(now).into_iter().map(view).collect();
        all.sort_by(|a, b| (&a.port, a.address).cmp(&(&b.port, b.address)));
        all
    }

    /// The control plane's kernel says that station `mac` has `address` at the port of this name: see
    /// `Neighbours::learn_from_kernel`.
    pub fn kernel_neighbour(&self, port: &str, address: IpAddr, mac: Option<Mac>, fixed: bool, now: u32) {
        let (_, plan) = self.plan.take();
        let Some(at) = plan.interfaces().find(|at| at.port.name == port) else { return };
        let it = super::net::number(address);
        if at.has(it) || !at.reaches(address) && !fixed {
            return;
        }
        let word = mac.map(|Mac([a, b, c, d, e, f])| u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
        self.neighbours.learn_from_kernel(at.id, it, word.filter(|word| *word != 0), fixed, now);
    }

    /// What its ports have handed on to the control plane: each class with frames, and with those beyond its
    /// limit.
    pub fn punted(&self) -> Vec<ClassView> {
        let (_, plan) = self.plan.take();
        let mut sums: Vec<ClassView> = Vec::new();
        for (class, passed, refused) in plan.interfaces().flat_map(|at| at.limits.punt.counts()) {
            match sums.iter_mut().find(|sum| sum.class == class) {
                Some(sum) => (sum.passed, sum.refused) = (sum.passed + passed, sum.refused + refused),
                None => sums.push(ClassView { class: class.to_owned(), passed, refused }),
            }
        }
        sums
    }

    /// Its ports, and what it takes.
    pub fn interfaces(&self) -> Vec<InterfaceView> {
        let (_, plan) = self.plan.take();
        let view = |it: &Arc<Interface>| InterfaceView {
            port: it.port.name.clone(),
            mac: Mac(it.mac),
            addresses: it.addresses.clone(),
            link_local: address(it.link_local),
            mtu: it.port.mtu(),
            link: it.port.link(),
            rpf: (it.rpf != Rpf::Off).then(|| it.rpf.name().to_owned()),
        };
        plan.interfaces().map(view).collect()
    }

    /// Bytes that cores may touch of its tables.
    pub fn table_bytes(&self) -> usize {
        let control = self.control();
        control.v4.usage().table + control.v6.usage().table
    }

    /// What becomes of a frame to `to`, from port `from` if that is given, and why not otherwise.
    pub fn explain(&self, to: IpAddr, from: Option<PortId>, now: u32) -> Explained {
        let control = self.control();
        let (_, plan) = self.plan.take();
        let found = control.longest(to);
        let route = found.and_then(|(net, _)| control.routes.get(&net));
        let mut it = Explained {
            router: self.name.clone(),
            version: 0,
            to,
            from: from.and_then(|from| port_name(&plan, from)),
            action: String::new(),
            why: None,
            route: found.map(|(net, _)| net),
            origin: route.map(|route| origin(route.origin).to_owned()),
            group: found.map(|(_, group)| group),
            hops: Vec::new(),
            source_mac: None,
            mtu: None,
            shorter: Vec::new(),
        };
        let shorter = Net::around(to).filter(|net| Some(*net) != it.route);
        it.shorter = shorter
            .filter_map(|net| Some((net, control.routes.get(&net)?)))
            .map(|(net, route)| Shorter {
                prefix: net,
                why: format!("{} ({}): a longer prefix matches", action(&route.key), origin(route.origin)),
            })
            .chain(control.idle.iter().filter(|(idle, _)| idle.prefix.contains(to)).map(|(idle, why)| {
                Shorter { prefix: idle.prefix.network(), why: format!("not in force: {why}") }
            }))
            .collect();
        it.shorter.sort_by_key(|other| std::cmp::Reverse(other.prefix.len));
        let drop = |it: &mut Explained, why: DropReason| {
            it.action = "drop".to_owned();
            it.why = Some(why.name().to_owned());
        };
        if let Some(why) = never(to) {
            drop(&mut it, why);
            return it;
        }
        match found.map_or(&Group::Nothing, |(_, group)| plan.group(group)) {
            Group::Nothing => drop(&mut it, DropReason::NoRoute),
            Group::Blackhole => drop(&mut it, DropReason::Blackhole),
            Group::Unreachable => drop(&mut it, DropReason::Unreachable),
            Group::Prohibit => drop(&mut it, DropReason::Prohibit),
            Group::Broadcast => drop(&mut it, DropReason::GroupAddress),
            Group::Local => "answer".clone_into(&mut it.action),
            Group::OnLink(port) => {
                let known = self.neighbours.look(*port, super::net::number(to), now);
                let (mac, state) = known.map_or((None, "unknown"), |(_, known)| reach(known));
                let target = plan.interface(*port).map(|to| &to.port);
                it.hops = vec![HopView {
                    gateway: to,
                    port: port_name(&plan, *port).unwrap_or_default(),
                    link: target.is_some_and(|port| port.link()),
                    weight: None,
                    mac,
                    state: state.to_owned(),
                    frames: 0,
                    bytes: 0,
                }];
            }
            Group::Via(_) => it.hops = found.map_or_else(Vec::new, |(_, group)| self.hops(&plan, group, now)),
        }
        if it.action.is_empty() {
            "forward".clone_into(&mut it.action);
            let first = it.hops.first().map(|hop| hop.port.clone());
            let out = plan.interfaces().find(|at| Some(&at.port.name) == first.as_ref());
            it.source_mac = out.map(|at| Mac(at.mac));
            it.mtu = out.map(|at| at.port.mtu());
        }
        it
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Own => "own",
        Origin::Connected => "connected",
        Origin::Static => "static",
        Origin::Fed => "fpm",
    }
}

fn action(key: &Key) -> &'static str {
    match key {
        Key::Local => "answer",
        Key::Broadcast => "broadcast",
        Key::OnLink(_) => "neighbours",
        Key::Via(_) | Key::Fed(_) => "via",
        Key::Blackhole => "blackhole",
        Key::Unreachable => "unreachable",
        Key::Prohibit => "prohibit",
    }
}

fn port_name(plan: &Plan, port: PortId) -> Option<String> {
    plan.interface(port).map(|at| at.port.name.clone())
}

fn mac(word: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

fn reach(known: Reach) -> (Option<Mac>, &'static str) {
    match known {
        Reach::Known(it) => (Some(mac(it)), "reachable"),
        Reach::Stale(it) => (Some(mac(it)), "stale"),
        Reach::Unknown => (None, "unknown"),
        Reach::Silent => (None, "silent"),
    }
}
