//! What a control plane has said, as it said it, and where its ways lead on this router.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::net::{number, Net};
use super::route::{Key, Member};
use super::said::{Change, FedHop, Object, Way, MAX_MEMBERS, MAX_OBJECTS};
use crate::port::PortId;

/// What a control plane has said.
#[derive(Default)]
pub(super) struct Fed {
    pub routes: BTreeMap<Net, (Arc<Key>, u32)>,
    pub objects: BTreeMap<u32, (Object, u32)>,
    /// Members of all groups among them.
    members: usize,
    /// Names of its interfaces, by its numbers.
    pub links: BTreeMap<u32, String>,
    pub digest: u64,
    pub refused: u64,
    pub generation: u32,
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
    pub fn depends(&self, way: &Way, touched: &BTreeSet<u32>) -> bool {
        let Way::Object(id) = way else { return false };
        let member = match self.objects.get(id) {
            Some((Object::Group(ids), _)) => ids.iter().any(|id| touched.contains(id)),
            _ => false,
        };
        member || touched.contains(id)
    }

    /// Notes what is said of objects; those that are another now.
    pub fn note(&mut self, changes: &[Change]) -> BTreeSet<u32> {
        let mut touched = BTreeSet::new();
        for change in changes {
            match change {
                Change::Object(id, object) => {
                    let room = self.objects.len() < MAX_OBJECTS;
                    let others = self.members - self.objects.get(id).map_or(0, |(old, _)| old.members());
                    // What there is no room for leads nowhere. What it was before is not what it is.
                    let object = match others + object.members() <= MAX_MEMBERS {
                        true => object,
                        false => {
                            self.refused += 1;
                            &Object::Elsewhere
                        }
                    };
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
                        None => {
                            self.refused += 1;
                            continue;
                        }
                    }
                    self.members = others + object.members();
                }
                Change::ObjectGone(id) => {
                    if let Some((old, _)) = self.objects.remove(id) {
                        self.members -= old.members();
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
pub(super) fn digest(net: &Net, key: &Key) -> u64 {
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
