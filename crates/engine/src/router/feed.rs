//! Routes that a control plane gives: what it said, kept until it says otherwise.
//!
//! Theory of operation. A control plane speaks of prefixes, of *links* (its own numbers of interfaces) and of *objects* (next hops, and
//! groups of them, each with a number). What it says is kept as it was said ([`Fed`]). A way that it names is one group of the plan,
//! however many routes lead there; where it leads follows from objects, links and ports, and is worked out anew when one of these
//! changes. So a next hop that goes away under a million routes is one new plan.
//!
//! A way that leads to no port of this router is a group without hops: its packets are dropped as `no_route`. They must not fall to
//! a shorter prefix, by which they would go where the control plane did not send them.
//!
//! Each route and object has the *generation* in which it was said last: a control plane that comes back says all of it again, and what it
//! did not say again is swept.
//!
//! Bounded: [`MAX_ROUTES`], [`MAX_OBJECTS`], [`MAX_HOPS`]. What is beyond is refused and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::net::{number, Net};
use super::rib::{Control, Key, Member, Origin, Route};
use super::Router;
use crate::port::PortId;

/// Most routes of a control plane: two tables of the whole Internet.
pub const MAX_ROUTES: usize = 3_000_000;
/// Most objects.
pub const MAX_OBJECTS: usize = 262_144;
/// Most next hops of a way, or members of an object.
pub const MAX_HOPS: usize = 256;

/// A next hop as the control plane names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FedHop {
    /// The control plane's number of an interface.
    pub link: u32,
    /// The gateway; none: the destination is a neighbour.
    pub gateway: Option<IpAddr>,
}

/// Where a route of the control plane leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Where the object of this number does.
    Object(u32),
    /// To one of these.
    Hops(Vec<FedHop>),
    /// Nowhere, silently.
    Blackhole,
    /// Nowhere: the destination is unreachable.
    Unreachable,
    /// Nowhere: it is prohibited.
    Prohibit,
}

/// What a number of the control plane stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A next hop.
    Hop(FedHop),
    /// Several objects.
    Group(Vec<u32>),
    /// Nothing: packets are dropped.
    Blackhole,
    /// A next hop that this router cannot use, such as one with labels.
    Elsewhere,
}

/// One thing that the control plane says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The prefix leads there.
    Route(Net, Way),
    /// It leads nowhere any more.
    Gone(Net),
    /// The number stands for this.
    Object(u32, Object),
    /// It stands for nothing any more.
    ObjectGone(u32),
}

/// What there is of a control plane's routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedCounts {
    /// Routes.
    pub routes: usize,
    /// Of these, routes of an earlier generation.
    pub stale: usize,
    /// Objects.
    pub objects: usize,
    /// Of all routes, in any order: equal tables have equal digests.
    pub digest: u64,
    /// What was beyond a bound, or had no room in a table.
    pub refused: u64,
}

/// What a control plane has said.
#[derive(Default)]
pub(super) struct Fed {
    pub routes: BTreeMap<Net, (Arc<Key>, u32)>,
    objects: BTreeMap<u32, (Object, u32)>,
    /// Names of its interfaces, by its numbers.
    links: BTreeMap<u32, String>,
    digest: u64,
    refused: u64,
    generation: u32,
}

/// Where a way leads on this router.
pub(super) enum Leads {
    Blackhole,
    OnLink(PortId),
    Via(Vec<(PortId, u128)>),
}

impl Fed {
    /// Where `way` leads on a router with these ports.
    pub fn leads(&self, way: &Way, members: &[Member]) -> Leads {
        let hops = match way {
            Way::Hops(hops) => hops.clone(),
            Way::Object(id) => match self.hops_of(*id) {
                Some(hops) => hops,
                None => return Leads::Blackhole,
            },
            Way::Blackhole | Way::Unreachable | Way::Prohibit => return Leads::Blackhole,
        };
        let at = |hop: &FedHop| {
            let name = self.links.get(&hop.link)?;
            let member = members.iter().find(|member| member.port.name == *name)?;
            Some((member.port.id, hop.gateway.map(number)))
        };
        let here: Vec<(PortId, Option<u128>)> = hops.iter().filter_map(at).collect();
        if let (Some((port, None)), true) = (here.first(), here.iter().all(|(_, gateway)| gateway.is_none()))
        {
            return Leads::OnLink(*port);
        }
        let mut via: Vec<_> = here.into_iter().filter_map(|(port, gateway)| Some((port, gateway?))).collect();
        via.sort_unstable();
        via.dedup();
        Leads::Via(via)
    }

    /// The hops of an object. `None`: it drops what comes.
    fn hops_of(&self, id: u32) -> Option<Vec<FedHop>> {
        match self.objects.get(&id).map(|(object, _)| object) {
            Some(Object::Blackhole) => None,
            Some(Object::Hop(hop)) => Some(vec![*hop]),
            // Members are next hops: the kernel has no groups of groups, nor does anybody else.
            Some(Object::Group(ids)) => {
                let hop = |id: &u32| match self.objects.get(id) {
                    Some((Object::Hop(hop), _)) => Some(*hop),
                    _ => None,
                };
                Some(ids.iter().filter_map(hop).collect())
            }
            Some(Object::Elsewhere) | None => Some(Vec::new()),
        }
    }

    /// Whether where `way` leads depends on one of these objects.
    fn depends(&self, way: &Way, touched: &BTreeSet<u32>) -> bool {
        let Way::Object(id) = way else { return false };
        let member = match self.objects.get(id) {
            Some((Object::Group(ids), _)) => ids.iter().any(|id| touched.contains(id)),
            _ => false,
        };
        member || touched.contains(id)
    }

    /// Notes what is said of objects; those that are another now.
    fn note(&mut self, changes: &[Change]) -> BTreeSet<u32> {
        let mut touched = BTreeSet::new();
        for change in changes {
            match change {
                Change::Object(id, object) => {
                    let room = self.objects.len() < MAX_OBJECTS;
                    match self.objects.get_mut(id) {
                        Some((old, said)) => {
                            *said = self.generation;
                            if old != object {
                                old.clone_from(object);
                                touched.insert(*id);
                            }
                        }
                        None if room => {
                            self.objects.insert(*id, (object.clone(), self.generation));
                            touched.insert(*id);
                        }
                        None => self.refused += 1,
                    }
                }
                Change::ObjectGone(id) => {
                    if self.objects.remove(id).is_some() {
                        touched.insert(*id);
                    }
                }
                Change::Route(..) | Change::Gone(_) => {}
            }
        }
        touched
    }
}

/// The part of one route in the digest.
fn digest(net: &Net, key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    net.hash(&mut hasher);
    match key {
        Key::Fed(way) => way.hash(&mut hasher),
        Key::Blackhole => Way::Blackhole.hash(&mut hasher),
        Key::Unreachable => Way::Unreachable.hash(&mut hasher),
        _ => Way::Prohibit.hash(&mut hasher),
    }
    hasher.finish()
}

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
                Change::Route(_, way) => Some(self.number(control, Arc::new(key(way)), now)),
                _ => None,
            })
            .collect();
        let old = match touched.is_empty() {
            true => Vec::new(),
            false => {
                let depend: BTreeSet<Way> = control
                    .numbers
                    .keys()
                    .filter_map(|key| match &**key {
                        Key::Fed(way) if control.fed.depends(way, &touched) => Some(way.clone()),
                        _ => None,
                    })
                    .collect();
                self.refresh(control, |way| depend.contains(way), now)
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
        let old = self.refresh(control, |_| true, now);
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

    /// What there is of the control plane's routes.
    pub fn fed(&self) -> FedCounts {
        let fed = &self.control().fed;
        FedCounts {
            routes: fed.routes.len(),
            stale: fed.routes.values().filter(|(_, said)| *said != fed.generation).count(),
            objects: fed.objects.len(),
            digest: fed.digest,
            refused: fed.refused,
        }
    }
}
