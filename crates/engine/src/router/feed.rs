//! Routes that a control plane gives: what it said, kept until it says otherwise.
//!
//! Theory of operation. A control plane speaks of prefixes, of *links* (its own numbers of interfaces) and of *objects* (next hops, and
//! groups of them, each with a number). What it says is kept as it was said (`fed`). A way that it names is one group of the plan,
//! however many routes lead there; where it leads follows from objects, links and ports, and is worked out anew when one of these
//! changes. So a next hop that goes away under a million routes is one new plan.
//!
//! A way that leads to no port of this router is a group without hops: its packets are dropped as `no_route`. They must not fall to
//! a shorter prefix, by which they would go where the control plane did not send them.
//!
//! Each route and object has the *generation* in which it was said last: a control plane that comes back says all of it again, and what it
//! did not say again is swept.
//!
//! Bounded: `MAX_ROUTES`, `MAX_OBJECTS`, `MAX_MEMBERS`, `MAX_HOPS` (`said`); next hops of all ways together, `MAX_ALL_HOPS` (`groups`). What is
//! beyond is refused and counted. A route whose way is refused leads nowhere, as one that leads to no port of this router.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fed::digest;
use super::net::Net;
use super::rib::Control;
use super::route::{Key, Origin, Route};
use super::said::{Change, FedCounts, Way, MAX_ROUTES};
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
    /// Takes what the control plane says, at second `now`: all of it holds when this returns. What comes last of a prefix counts.
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
            false => {
                let depend = |(key, (number, _)): (&Arc<Key>, &(u32, usize))| match &**key {
                    Key::Fed(way) if control.fed.depends(way, &touched) => Some(*number),
                    _ => None,
                };
                let depend: BTreeSet<u32> = control.numbers.iter().filter_map(depend).collect();
                self.refresh(control, |_, number| depend.contains(&number), now)
            }
        };
        if !old.is_empty() || control.numbers.len() != before {
            self.publish(control);
            self.retire_groups(control, old);
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
        let fed = &mut control.fed;
        if fed.routes.len() >= MAX_ROUTES && !fed.routes.contains_key(&net) {
            fed.refused += 1;
            return;
        }
        fed.digest = fed.digest.wrapping_add(digest(&net, &key));
        if let Some((old, _)) = fed.routes.insert(net, (Arc::clone(&key), fed.generation)) {
            fed.digest = fed.digest.wrapping_sub(digest(&net, &old));
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
        let Some((key, _)) = control.fed.routes.remove(&net) else { return };
        control.fed.digest = control.fed.digest.wrapping_sub(digest(&net, &key));
        if control.routes.get(&net).is_some_and(|route| route.origin == Origin::Fed) {
            self.withdraw(control, net);
        }
    }

    /// The control plane's interfaces: the names of its numbers.
    pub fn set_links(&self, links: BTreeMap<u32, String>, now: u32) {
        let control = &mut *self.control();
        if control.fed.links == links {
            return;
        }
        self.reclaim(control);
        control.fed.links = links;
        let old = self.refresh(control, |_, _| true, now);
        self.publish(control);
        self.retire_groups(control, old);
    }

    /// The control plane says everything anew: what it has said so far is stale until it says it again.
    pub fn next_generation(&self) {
        let fed = &mut self.control().fed;
        fed.generation = fed.generation.wrapping_add(1);
    }

    /// Removes what is stale; how many routes that were.
    pub fn sweep(&self, now: u32) -> usize {
        let stale: Vec<Change> = {
            let fed = &self.control().fed;
            let old = |said: &u32| *said != fed.generation;
            let routes =
                fed.routes.iter().filter(|(_, (_, said))| old(said)).map(|(net, _)| Change::Gone(*net));
            let objects = fed.objects.iter().filter(|(_, (_, said))| old(said));
            routes.chain(objects.map(|(id, _)| Change::ObjectGone(*id))).collect()
        };
        self.feed(&stale, now);
        stale.iter().filter(|change| matches!(change, Change::Gone(_))).count()
    }

    /// Ends what no core has any more: a change that is the last one for long, and the plan, would keep it. Ways for whose hops there was no
    /// room get them at second `now`, if there is some.
    pub fn tidy(&self, now: u32) {
        let control = &mut *self.control();
        self.reclaim(control);
        let short = control.groups.retry();
        if !short.is_empty() || control.groups.is_outdated() {
            let old = self.refresh(control, |_, number| short.contains(&number), now);
            self.publish(control);
            self.retire_groups(control, old);
        }
        control.plans.retain(|plan| Arc::strong_count(plan) > 1);
    }

    /// Its control plane's routes of this generation, of which `there` is false.
    pub fn fed_without(&self, there: impl Fn(&Net) -> bool) -> Vec<Net> {
        let fed = &self.control().fed;
        let said = fed.routes.iter().filter(|(_, (_, said))| *said == fed.generation);
        said.map(|(net, _)| *net).filter(|net| !there(net)).collect()
    }

    /// Whether the control plane has said where `net` leads.
    pub fn is_fed(&self, net: &Net) -> bool {
        self.control().fed.routes.contains_key(net)
    }

    /// How many ways have no hops, because there was no room for them.
    pub fn short(&self) -> usize {
        self.control().groups.short()
    }

    /// What there is of the control plane's routes.
    pub fn fed(&self) -> FedCounts {
        let control = self.control();
        let fed = &control.fed;
        FedCounts {
            routes: fed.routes.len(),
            stale: fed.routes.values().filter(|(_, said)| *said != fed.generation).count(),
            objects: fed.objects.len(),
            hops: control.groups.hops(),
            short: control.groups.short(),
            digest: fed.digest,
            refused: fed.refused,
        }
    }
}
