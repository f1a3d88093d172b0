//! What a router is told: its ports, its routes, and the groups that routes lead to. For the control plane
//! alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use sidecore_fib::{v4, v6, Error};

use super::fed::Fed;
use super::groups::Groups;
use super::hops::merged;
use super::net::{number, Net};
use super::plan::{Group, Limits, Plan};
use super::route::{Key, Member, Origin, Route, Static, Target};
use crate::port::PortId;

/// The routes that are to be, and those that cannot be, with why.
#[derive(Default)]
pub(super) struct Wanted {
    pub routes: BTreeMap<Net, Route>,
    pub idle: Vec<(Static, String)>,
}

impl Wanted {
    /// What follows from these ports and routes.
    pub fn of(members: &[Member], statics: &[Static], loopbacks: &BTreeSet<IpAddr>) -> Wanted {
        let mut wanted = Wanted::default();
        for it in statics {
            match key(members, it) {
                Ok(key) => wanted.prefer(it.prefix.network(), Origin::Static, key),
                Err(why) => wanted.idle.push((it.clone(), why)),
            }
        }
        for member in members {
            let port = member.port.id;
            for net in &member.addresses {
                wanted.prefer(net.network(), Origin::Connected, Key::OnLink(port));
            }
        }
        for net in members.iter().flat_map(|member| &member.addresses) {
            if let Some(it) = net.broadcast() {
                wanted.prefer(Net::host(IpAddr::V4(it)), Origin::Own, Key::Broadcast);
            }
            // RFC 4291 §2.6.1: the address of a network itself is any of its routers.
            if let (IpAddr::V6(_), ..=126) = (net.address, net.len) {
                wanted.prefer(Net::host(net.network().address), Origin::Own, Key::Local);
            }
        }
        let own = members.iter().flat_map(|member| &member.addresses).map(|net| net.address);
        for address in own.chain(loopbacks.iter().copied()) {
            wanted.prefer(Net::host(address), Origin::Own, Key::Local);
        }
        wanted
    }

    fn prefer(&mut self, prefix: Net, origin: Origin, key: Key) {
        self.routes.insert(prefix, Route { origin, key: Arc::new(key) });
    }
}

/// What `route` leads to, or why it leads nowhere.
fn key(members: &[Member], route: &Static) -> Result<Key, String> {
    let there = |id: PortId| members.iter().any(|member| member.port.id == id);
    match &route.target {
        Target::Blackhole => Ok(Key::Blackhole),
        Target::Unreachable => Ok(Key::Unreachable),
        Target::Prohibit => Ok(Key::Prohibit),
        Target::Port(port) if there(*port) => Ok(Key::OnLink(*port)),
        Target::Port(_) => Err("its port is not on this router".to_owned()),
        Target::Via(gateways, port) => {
            let hop = |gateway: &IpAddr| {
                let own = members.iter().flat_map(|it| &it.addresses).any(|net| net.address == *gateway);
                if own {
                    return Err(format!("gateway {gateway} is this router itself"));
                }
                let near = members.iter().find(|member| match port {
                    Some(port) => member.port.id == *port,
                    None => member.addresses.iter().any(|net| net.contains(*gateway)),
                });
                let member = near.ok_or_else(|| format!("gateway {gateway} is on no port's network"))?;
                Ok((member.port.id, number(*gateway)))
            };
            let hops = gateways.iter().map(hop).collect::<Result<BTreeSet<_>, String>>()?;
            Ok(Key::Via(merged(hops.into_iter().map(|hop| (hop, 1u16)))))
        }
    }
}

/// What is kept until no core can be on its way there.
pub(super) enum Retired {
    /// The number of a group that no table leads to.
    Number(u32),
    /// A group in whose place stands another one.
    Group(Arc<Group>),
}

/// The tables, and what they hold.
pub(super) struct Control {
    pub v4: v4::Writer,
    pub v6: v6::Writer,
    pub groups: Groups,
    /// Numbers of groups in use, with how many routes lead there.
    pub numbers: BTreeMap<Arc<Key>, (u32, usize)>,
    /// Those that no route led to when a change came by them: at its end they are looked at again.
    pub loose: Vec<Arc<Key>>,
    /// What no core finds any more, and from which epoch on none is on its way there.
    pub retired: VecDeque<(u64, Retired)>,
    /// Plans that were replaced and that a core still has. Here, so that no core ever ends one: it may have
    /// many groups.
    pub plans: Vec<Arc<Plan>>,
    /// Its ports.
    pub members: Vec<Member>,
    /// The operator's routes.
    pub statics: Vec<Static>,
    /// Its addresses that are at no port.
    pub loopbacks: BTreeSet<IpAddr>,
    /// What the control plane has said.
    pub fed: Fed,
    pub routes: BTreeMap<Net, Route>,
    pub idle: Vec<(Static, String)>,
    pub limits: BTreeMap<PortId, Arc<Limits>>,
}

impl Control {
    pub fn new() -> std::io::Result<Control> {
        Ok(Control {
            v4: v4::Writer::new()?,
            v6: v6::Writer::new()?,
            groups: Groups::new(),
            numbers: BTreeMap::new(),
            loose: Vec::new(),
            retired: VecDeque::new(),
            plans: Vec::new(),
            members: Vec::new(),
            statics: Vec::new(),
            loopbacks: BTreeSet::new(),
            fed: Fed::default(),
            routes: BTreeMap::new(),
            idle: Vec::new(),
            limits: BTreeMap::new(),
        })
    }

    /// Has the tables lead to `group`.
    pub fn insert(&mut self, prefix: Net, group: u32) -> Result<(), Error> {
        match prefix.address {
            IpAddr::V4(it) => self.v4.insert(it.to_bits(), prefix.len, group).map(drop),
            IpAddr::V6(it) => self.v6.insert(it.to_bits(), prefix.len, group).map(drop),
        }
    }

    pub fn remove(&mut self, prefix: Net) {
        match prefix.address {
            IpAddr::V4(it) => drop(self.v4.remove(it.to_bits(), prefix.len)),
            IpAddr::V6(it) => drop(self.v6.remove(it.to_bits(), prefix.len)),
        }
    }

    /// The longest prefix of `address`, and its group.
    pub fn longest(&self, address: IpAddr) -> Option<(Net, u32)> {
        match address {
            IpAddr::V4(it) => {
                let ((address, len), group) = self.v4.explain(it.to_bits())?;
                Some((Net { address: IpAddr::V4(address.into()), len }, group))
            }
            IpAddr::V6(it) => {
                let ((address, len), group) = self.v6.explain(it.to_bits())?;
                Some((Net { address: IpAddr::V6(address.into()), len }, group))
            }
        }
    }
}
