//! Routes of a control plane, kept as it sent them until it changes them.
//!
//! Theory of operation. A control plane speaks of prefixes, of *links* (its own numbers of interfaces) and of
//! *objects* (next hops, and groups of them, each with a number). Its messages are kept as they came (`fed`).
//! Each way (a next hop or group) that routes name is one group of the plan, however many routes lead there.
//! Its next hops follow from objects, links and ports, and are computed anew when one of these changes. So a
//! next hop that goes away under a million routes is one new plan.
//!
//! A way that leads to no port of this router is a group without hops: its packets are dropped as `no_route`.
//! They must not fall to a shorter prefix, by which they would go where the control plane did not send them.
//!
//! Each route and object has the *generation* in which it was sent last. A control plane that comes back
//! sends all of them again; those that it does not send again are removed.
//!
//! Bounded: `MAX_ROUTES`, `MAX_OBJECTS`, `MAX_MEMBERS`, `MAX_HOPS` (`said`); next hops of all ways together,
//! `MAX_ALL_HOPS` (`groups`). What is beyond is refused and counted. A route whose way is refused leads
//! nowhere, as one that leads to no port of this router.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::copy::{News, RouteCopy};
use super::net::Net;
use super::rib::Control;
use super::route::{Key, Origin, Route};
use super::said::{Change, FedCounts, Way};
use super::Router;

/// The key of `way`.
fn key(way: &Way) -> Key {
    match way {
        Way::Blackhole => Key::Blackhole,
        Way::Unreachable => Key::Unreachable,
        Way::Prohibit => Key::Prohibit,
        Way::Object(_) | Way::Hops(_) => Key::Fed(way.clone()),
    }
}

impl Router {
    /// Member `name` of a group has the control plane's routes in force, or has them not.
    pub fn set_copy(&self, name: &str, in_force: bool) {
        let mut copies = crate::lock(&self.copies);
        match in_force {
            true => drop(copies.insert(name.to_owned())),
            false => drop(copies.remove(name)),
        }
    }

    /// Whether it has them in force.
    pub fn has_copy(&self, name: &str) -> bool {
        crate::lock(&self.copies).contains(name)
    }

    /// What `copy` is to be told next, of some hundred routes at most; it counts as told from now on.
    pub fn news(&self, copy: &mut RouteCopy) -> News {
        self.control().fed.news(copy)
    }

    /// Takes what the control plane says, at second `now`: all of it holds when this returns. What comes last
    /// of a prefix counts.
    pub fn feed(&self, changes: &[Change], now: u32) {
        let control = &mut *self.control();
        self.reclaim(control);
        let touched = control.fed.note(changes);
        let before = control.numbers.len();
        let keys: Vec<Option<Arc<Key>>> = changes
            .iter()
            .map(|change| match change {
                Change::Route(_, way) => Some(self.number_of(control, way, now)),
                _ => None,
            })
            .collect();
        let old = match touched.is_empty() {
            true => Vec::new(),
            false => self.refresh(control, |ways, way, _| ways.depends(way, &touched), now),
        };
        if !old.is_empty() || control.numbers.len() != before {
            self.publish(control, old);
        }
        for (change, key) in changes.iter().zip(keys) {
            match (change, key) {
                (Change::Route(net, _), Some(key)) => self.enter(control, *net, key),
                (Change::Gone(net), _) => self.leave(control, *net),
                _ => {}
            }
        }
        self.settle(control);
    }

    /// The [`Key`] of `way`; if there is no room for its hops, that of one without any.
    fn number_of(&self, control: &mut Control, way: &Way, now: u32) -> Arc<Key> {
        let mut wanted = key(way);
        if way.hops() > control.groups.room(0) && !control.numbers.contains_key(&wanted) {
            control.fed.refused += 1;
            wanted = Key::Fed(Way::Hops(Vec::new()));
        }
        self.number(control, Arc::new(wanted), now)
    }

    /// The route of `net` leads to `key`.
    fn enter(&self, control: &mut Control, net: Net, key: Arc<Key>) {
        if !control.fed.enter(net, &key) {
            return;
        }
        let route = Route { origin: Origin::Fed, key };
        match control.routes.get(&net) {
            // The router's own routes, and the operator's, go before it.
            Some(old) if old.origin != Origin::Fed || *old == route => {}
            _ => {
                let done = self.install(control, net, route);
                control.fed.refused += u64::from(!done);
            }
        }
    }

    /// There is no route of `net`.
    fn leave(&self, control: &mut Control, net: Net) {
        if !control.fed.leave(&net) {
            return;
        }
        if control.routes.get(&net).is_some_and(|route| route.origin == Origin::Fed) {
            self.withdraw(control, net);
        }
    }

    /// The control plane's interfaces: the names of its numbers.
    pub fn set_links(&self, links: BTreeMap<u32, String>, now: u32) {
        let control = &mut *self.control();
        if control.fed.ways.links == links {
            return;
        }
        self.reclaim(control);
        control.fed.set_links(links);
        let old = self.refresh(control, |_, _, _| true, now);
        self.publish(control, old);
    }

    /// The control plane says everything anew: what it has said so far is stale until it says it again.
    pub fn next_generation(&self) {
        self.control().fed.next_generation();
    }

    /// Removes what is stale of the routes behind `behind`, as far as it looks at once: how many, and behind
    /// which to go on. `None`: that was all. Feeds that come between two such steps need not wait.
    pub fn sweep(&self, behind: Option<Net>, now: u32) -> (usize, Option<Net>) {
        let (gone, next, all) = {
            let fed = &self.control().fed;
            let (stale, next) = fed.stale(behind);
            // Routes first: they lead to objects.
            let objects = next.is_none().then(|| fed.stale_objects().map(Change::ObjectGone));
            let gone = stale.len();
            let all: Vec<_> =
                stale.into_iter().map(Change::Gone).chain(objects.into_iter().flatten()).collect();
            (gone, next, all)
        };
        if !all.is_empty() {
            self.feed(&all, now);
        }
        (gone, next)
    }

    /// Ends what no core has any more: a change that is the last one for long, and the plan, would keep it.
    /// Ways for whose hops there was no room get them at second `now`, if there is some.
    pub fn tidy(&self, now: u32) {
        let control = &mut *self.control();
        self.reclaim(control);
        let short = control.groups.retry();
        if !short.is_empty() || control.groups.outdated {
            let old = self.refresh(control, |_, _, number| short.contains(&number), now);
            self.publish(control, old);
        }
        control.plans.retain(|plan| Arc::strong_count(plan) > 1);
    }

    /// A comparison with another table begins: none of the control plane's routes has been found there yet.
    /// What is said from now on counts as found.
    pub fn compare(&self) {
        self.control().fed.compare();
    }

    /// The other table has routes of these prefixes; those of which the control plane has said nothing.
    pub fn found(&self, those: &[Net]) -> Vec<Net> {
        let fed = &mut self.control().fed;
        those.iter().filter(|net| !fed.find(net)).copied().collect()
    }

    /// The control plane's routes that the other table lacks, as far as it looks at once behind `behind`, and
    /// behind which to go on.
    pub fn unfound(&self, behind: Option<Net>) -> (Vec<Net>, Option<Net>) {
        self.control().fed.unfound(behind)
    }

    /// Whether the control plane has a route of `net` that the other table lacks.
    pub fn lacks(&self, net: &Net) -> bool {
        self.control().fed.lacks(net)
    }

    /// What there is of the control plane's routes.
    pub fn fed(&self) -> FedCounts {
        let control = self.control();
        control.fed.counts(&control.groups)
    }
}
