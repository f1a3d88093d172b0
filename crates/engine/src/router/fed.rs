//! What a control plane has said, as it said it, and where its ways lead on this router.
//!
//! What is shown of all routes together is kept while they change: how many are stale, how many a comparison
//! has found, and their digest. Nothing looks at all of them while the router's lock is held; code that has
//! to takes [`LOOK`] at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::copy::{Changed, News, RouteCopy, TOLD};
use super::digest::{Digest, Led};
use super::groups::Groups;
use super::hops::merged;
use super::net::{number, Net};
use super::route::{Key, Member};
use super::said::{Change, FedCounts, FedHop, Object, Way, MAX_MEMBERS, MAX_OBJECTS, MAX_ROUTES};
use crate::port::PortId;

/// Routes that are looked at together.
pub(super) const LOOK: usize = 4096;

/// What a control plane has said.
#[derive(Default)]
pub(super) struct Fed {
    routes: BTreeMap<Net, Said>,
    pub ways: Ways,
    digest: Digest,
    pub changed: Changed,
    pub refused: u64,
    generation: u32,
    /// Routes of an earlier generation.
    stale: usize,
    /// The number of the last comparison, and how many routes it has found so far.
    comparison: u32,
    found: usize,
}

/// A route.
struct Said {
    key: Arc<Key>,
    /// The generation in which it was said last.
    generation: u32,
    /// The comparison that found it last.
    found: u32,
}

/// What ways are made of.
#[derive(Default)]
pub(super) struct Ways {
    objects: BTreeMap<u32, (Object, u32)>,
    /// Members of all groups among them.
    members: usize,
    /// Names of its interfaces, by its numbers.
    pub links: BTreeMap<u32, String>,
}

impl Ways {
    /// What `way` comes to on a router with these ports.
    pub fn leads(&self, way: &Way, members: &[Member]) -> Key {
        let Some(hops) = self.hops(way) else { return Key::Blackhole };
        let at = |hop: &FedHop| {
            let name = self.links.get(&hop.link)?;
            let member = members.iter().find(|member| member.port.name == *name)?;
            Some((member.port.id, hop.gateway.map(number)))
        };
        let here: Vec<((PortId, Option<u128>), u16)> =
            hops.iter().filter_map(|(hop, weight)| Some((at(hop)?, *weight))).collect();
        let mut gateways = here.iter().map(|((_, gateway), _)| gateway);
        if let (Some(((port, None), _)), true) = (here.first(), gateways.all(Option::is_none)) {
            return Key::OnLink(*port);
        }
        Key::Via(merged(here.into_iter().filter_map(|((port, gateway), it)| Some(((port, gateway?), it)))))
    }

    /// Where it leads by names, whatever ports there are.
    fn led(&self, key: &Key) -> Led {
        let way = match key {
            Key::Fed(way) => way,
            Key::Unreachable => return Led::Unreachable,
            Key::Prohibit => return Led::Prohibit,
            _ => return Led::Blackhole,
        };
        let Some(hops) = self.hops(way) else { return Led::Blackhole };
        // A link without a name is none of this namespace's any more.
        let hop = |hop: &FedHop| (self.links.get(&hop.link).cloned().unwrap_or_default(), hop.gateway);
        Led::Hops(merged(hops.iter().map(|(it, weight)| (hop(it), *weight))))
    }

    /// The hops of a way. `None`: it drops what comes.
    fn hops(&self, way: &Way) -> Option<Vec<(FedHop, u16)>> {
        let id = match way {
            Way::Hops(hops) => return Some(hops.clone()),
            Way::Object(id) => id,
            Way::Blackhole | Way::Unreachable | Way::Prohibit => return None,
        };
        match self.objects.get(id).map(|(object, _)| object) {
            Some(Object::Blackhole) => None,
            Some(Object::Hop(hop)) => Some(vec![(*hop, 1)]),
            // Members are next hops: the kernel has no groups of groups.
            Some(Object::Group(ids)) => {
                let hop = |(id, weight): &(u32, u16)| match self.objects.get(id) {
                    Some((Object::Hop(hop), _)) => Some((*hop, *weight)),
                    _ => None,
                };
                Some(ids.iter().filter_map(hop).collect())
            }
            Some(Object::Elsewhere) | None => Some(Vec::new()),
        }
    }

    /// Whether where `way` leads depends on one of these objects.
    pub fn depends(&self, way: &Way, touched: &BTreeSet<u32>) -> bool {
        let Way::Object(id) = way else { return false };
        let member = match self.objects.get(id) {
            Some((Object::Group(ids), _)) => ids.iter().any(|(id, _)| touched.contains(id)),
            _ => false,
        };
        member || touched.contains(id)
    }
}

impl Fed {
    /// Notes what is said of objects; those that are another now.
    pub fn note(&mut self, changes: &[Change]) -> BTreeSet<u32> {
        let mut touched = BTreeSet::new();
        let Ways { objects, members, .. } = &mut self.ways;
        for change in changes {
            match change {
                Change::Object(id, object) => {
                    let room = objects.len() < MAX_OBJECTS;
                    let others = *members - objects.get(id).map_or(0, |(old, _)| old.members());
                    // What there is no room for leads nowhere. What it was before is not what it is.
                    let object = match others + object.members() <= MAX_MEMBERS {
                        true => object,
                        false => {
                            self.refused += 1;
                            &Object::Elsewhere
                        }
                    };
                    match objects.get_mut(id) {
                        Some((old, said)) => {
                            *said = self.generation;
                            if old != object {
                                old.clone_from(object);
                                touched.insert(*id);
                            }
                        }
                        None if room => {
                            objects.insert(*id, (object.clone(), self.generation));
                            touched.insert(*id);
                        }
                        None => {
                            self.refused += 1;
                            continue;
                        }
                    }
                    *members = others + object.members();
                }
                Change::ObjectGone(id) => {
                    if let Some((old, _)) = objects.remove(id) {
                        *members -= old.members();
                        touched.insert(*id);
                    }
                }
                Change::Route(..) | Change::Gone(_) => {}
            }
        }
        if !touched.is_empty() {
            let ways = &self.ways;
            let which = |key: &Key| matches!(key, Key::Fed(way) if ways.depends(way, &touched));
            if self.digest.again(which, |key| ways.led(key)) {
                self.changed.all();
            }
        }
        touched
    }

    /// The control plane's interfaces have these names.
    pub fn set_links(&mut self, links: BTreeMap<u32, String>) {
        self.ways.links = links;
        let ways = &self.ways;
        if self.digest.again(|key| matches!(key, Key::Fed(_)), |key| ways.led(key)) {
            self.changed.all();
        }
    }

    /// What the route of `net` leads to.
    pub fn key(&self, net: &Net) -> Option<&Arc<Key>> {
        self.routes.get(net).map(|said| &said.key)
    }

    /// Where the route of `net` leads, by names.
    pub fn led(&self, net: &Net) -> Option<Led> {
        Some(self.ways.led(self.key(net)?))
    }

    /// What `copy` is to be told next; it counts as told from now on.
    pub fn news(&self, copy: &mut RouteCopy) -> News {
        let (mut news, end) = (News::default(), self.changed.end);
        let led = |net: Net| (net, self.led(&net));
        let known = copy.at.and_then(|at| Some((at, self.changed.since(at)?)));
        if known.is_none() {
            (news.begins, copy.at, copy.whole) = (true, Some(end), Some(None));
        }
        match (copy.whole.take(), known) {
            (Some(behind), _) => {
                let (nets, next) = self.some(behind, TOLD, |_| true);
                news.routes = nets.into_iter().map(led).collect();
                (news.ends, copy.whole) = (next.is_none(), next.map(Some));
            }
            (None, Some((at, changed))) => {
                let some: Vec<Net> = changed.take(TOLD).collect();
                copy.at = Some(at + some.len() as u64);
                news.routes = BTreeSet::from_iter(some).into_iter().map(led).collect();
            }
            (None, None) => {}
        }
        let done = copy.whole.is_none() && copy.at == Some(end);
        news.all = done.then_some((end, self.digest.total));
        news
    }

    /// The route of `net` leads to `key`. False: there is no room for it.
    pub fn enter(&mut self, net: Net, key: &Arc<Key>) -> bool {
        if self.routes.len() >= MAX_ROUTES && !self.routes.contains_key(&net) {
            self.refused += 1;
            return false;
        }
        let said = Said { key: Arc::clone(key), generation: self.generation, found: self.comparison };
        let ways = &self.ways;
        self.digest.add(&net, key, || ways.led(key));
        // What is said while a comparison is under way is no loss of it.
        self.found += 1;
        let old = self.routes.insert(net, said);
        if old.as_ref().is_none_or(|old| old.key != *key) {
            self.changed.push(net);
        }
        if let Some(old) = old {
            self.forget(&net, &old);
        }
        true
    }

    /// There is no route of `net` any more; false: there was none.
    pub fn leave(&mut self, net: &Net) -> bool {
        let Some(old) = self.routes.remove(net) else { return false };
        self.changed.push(*net);
        self.forget(net, &old);
        true
    }

    fn forget(&mut self, net: &Net, old: &Said) {
        self.digest.remove(net, &old.key);
        self.stale -= usize::from(old.generation != self.generation);
        self.found -= usize::from(old.found == self.comparison);
    }

    /// All that was said so far is stale until it is said again.
    pub fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.stale = self.routes.len();
    }

    /// Stale routes of the next [`LOOK`] behind `behind`, and where to go on.
    pub fn stale(&self, behind: Option<Net>) -> (Vec<Net>, Option<Net>) {
        match self.stale {
            0 => (Vec::new(), None),
            _ => self.some(behind, LOOK, |said| said.generation != self.generation),
        }
    }

    /// Stale objects.
    pub fn stale_objects(&self) -> impl Iterator<Item = u32> + '_ {
        let stale = self.ways.objects.iter().filter(|(_, (_, said))| *said != self.generation);
        stale.map(|(id, _)| *id)
    }

    /// A comparison begins: none of its routes is found yet.
    pub fn compare(&mut self) {
        self.comparison = self.comparison.wrapping_add(1);
        self.found = 0;
    }

    /// The route of `net` is found; false: there is none.
    pub fn find(&mut self, net: &Net) -> bool {
        let Some(said) = self.routes.get_mut(net) else { return false };
        if said.found != self.comparison {
            said.found = self.comparison;
            self.found += 1;
        }
        true
    }

    /// Routes that are not found, of the next [`LOOK`] behind `behind`, and where to go on.
    pub fn unfound(&self, behind: Option<Net>) -> (Vec<Net>, Option<Net>) {
        match self.routes.len() - self.found {
            0 => (Vec::new(), None),
            _ => self.some(behind, LOOK, |said| said.found != self.comparison),
        }
    }

    /// Whether there is a route of `net` that is not found.
    pub fn lacks(&self, net: &Net) -> bool {
        self.routes.get(net).is_some_and(|said| said.found != self.comparison)
    }

    fn some(
        &self,
        behind: Option<Net>,
        most: usize,
        which: impl Fn(&Said) -> bool,
    ) -> (Vec<Net>, Option<Net>) {
        let from = behind.map_or(Unbounded, Excluded);
        let (mut all, mut seen, mut last) = (Vec::new(), 0, None);
        for (net, said) in self.routes.range((from, Unbounded)).take(most) {
            (seen, last) = (seen + 1, Some(*net));
            if which(said) {
                all.push(*net);
            }
        }
        (all, last.filter(|_| seen == most))
    }

    /// What there is of it, with what its `groups` take.
    pub fn counts(&self, groups: &Groups) -> FedCounts {
        FedCounts {
            hops: groups.hops,
            short: groups.short(),
            routes: self.routes.len(),
            stale: self.stale,
            objects: self.ways.objects.len(),
            digest: self.digest.total,
            refused: self.refused,
        }
    }
}
