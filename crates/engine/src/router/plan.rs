//! The plan of a router: interfaces and next-hop groups, as an immutable snapshot for its cores.
//!
//! The forwarding tables have only numbers of groups; the plan has the groups. So a change of a next hop is a
//! new plan, however many routes lead there. A new group is in the published plan before the first route
//! leads to it. A core first looks addresses up and then takes the plan, which therefore has each group that
//! it found. The number of a removed group is used again when each core has begun a later batch
//! (`sidecore_fib::epoch`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::hops::Hops;
use super::limit::Fair;
use super::net::{number, Net};
use super::punt::Punt;
use super::route::Rpf;
use crate::port::{Port, PortId};

/// ICMP errors that an interface may send a second, and at once: RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f). Each
/// port whose packets they are about has a part.
const ERRORS: (u64, u64) = (1000, 50);
/// Requests for addresses of neighbours. Each port whose packets are for them has a part.
const REQUESTS: (u64, u64) = (1000, 64);

/// What frames do that a route leads to.
pub(super) enum Group {
    /// There is no such group.
    Nothing,
    /// They are the router's own.
    Local,
    /// They are for everybody on a network, to which a router lets no sender speak from afar (RFC 2644).
    Broadcast,
    /// Their destination is a neighbour at this port.
    OnLink(PortId),
    /// They go to one of these, by their flow.
    Via(Hops),
    /// They are dropped without a word.
    Blackhole,
    /// Their sender is told that the destination is unreachable,
    Unreachable,
    /// or that communication is prohibited.
    Prohibit,
}

/// A port of the router.
pub(super) struct Interface {
    pub id: PortId,
    pub port: Arc<Port>,
    /// Its station address, as it stands in a frame.
    pub mac: [u8; 6],
    pub addresses: Vec<Net>,
    /// What it says of itself: the first address of each family.
    pub v4: Option<u32>,
    pub v6: Option<u128>,
    pub link_local: u128,
    /// How much it may say.
    pub limits: Arc<Limits>,
    /// The port to which goes what is for the router itself, if there is a control plane.
    pub control: Option<PortId>,
    /// Which sources packets may come from.
    pub rpf: Rpf,
}

/// Limits of an interface, which outlive a plan.
pub(super) struct Limits {
    pub errors: Fair,
    pub requests: Fair,
    pub punt: Punt,
}

impl Limits {
    pub fn new() -> Limits {
        Limits {
            errors: Fair::new(ERRORS.0, ERRORS.1),
            requests: Fair::new(REQUESTS.0, REQUESTS.1),
            punt: Punt::new(),
        }
    }
}

impl Interface {
    pub fn new(port: &Arc<Port>, mac: [u8; 6], addresses: &[Net], limits: Arc<Limits>) -> Interface {
        let v4 = addresses.iter().find_map(|net| match net.address {
            IpAddr::V4(it) => Some(it.to_bits()),
            IpAddr::V6(_) => None,
        });
        let v6 = addresses.iter().find_map(|net| match net.address {
            IpAddr::V6(it) if !it.is_unicast_link_local() => Some(it.to_bits()),
            _ => None,
        });
        Interface {
            id: port.id,
            port: Arc::clone(port),
            mac,
            addresses: addresses.to_vec(),
            v4,
            v6,
            link_local: link_local(mac),
            limits,
            control: None,
            rpf: Rpf::Off,
        }
    }

    /// Whether `address` is its own.
    pub fn has(&self, address: u128) -> bool {
        address == self.link_local || self.addresses.iter().any(|net| number(net.address) == address)
    }

    /// Whether `address` is on the network behind it.
    pub fn reaches(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V6(it) if it.is_unicast_link_local())
            || self.addresses.iter().any(|net| net.contains(address))
    }
}

/// The link-local address made of a station address: RFC 4291 appendix A.
fn link_local(mac: [u8; 6]) -> u128 {
    let [a, b, c, d, e, f] = mac;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    0xfe80 << 112 | u128::from(id)
}

/// The snapshot.
#[derive(Default)]
pub(super) struct Plan {
    groups: Vec<Arc<Group>>,
    interfaces: Vec<Option<Arc<Interface>>>,
    /// Addresses that no frame may come from: the router's own, and broadcasts on its networks. A bit for
    /// each, by its hash, says that a look at the list is due.
    own: Vec<u128>,
    sieve: u64,
}

impl Plan {
    pub fn new(groups: Vec<Arc<Group>>, all: Vec<Arc<Interface>>, loopbacks: &BTreeSet<IpAddr>) -> Plan {
        let own = loopbacks.iter().copied().map(number).collect();
        let mut plan = Plan { groups, own, ..Plan::default() };
        for interface in all {
            for net in &interface.addresses {
                let broadcast = net.broadcast().map(|it| number(IpAddr::V4(it)));
                plan.own.extend([number(net.address)].into_iter().chain(broadcast));
            }
            plan.own.push(interface.link_local);
            let place = usize::from(interface.id.0);
            if plan.interfaces.len() <= place {
                plan.interfaces.resize_with(place + 1, || None);
            }
            if let Some(slot) = plan.interfaces.get_mut(place) {
                *slot = Some(interface);
            }
        }
        plan.own.sort_unstable();
        plan.own.dedup();
        plan.sieve = plan.own.iter().fold(0, |sieve, address| sieve | bit(*address));
        plan
    }

    pub fn group(&self, number: u32) -> &Group {
        self.groups.get(number as usize).map_or(&Group::Nothing, |group| group)
    }

    pub fn interface(&self, port: PortId) -> Option<&Arc<Interface>> {
        self.interfaces.get(usize::from(port.0))?.as_ref()
    }

    pub fn interfaces(&self) -> impl Iterator<Item = &Arc<Interface>> {
        self.interfaces.iter().flatten()
    }

    /// Whether no other station may send from this address.
    pub fn is_own(&self, address: u128) -> bool {
        self.sieve & bit(address) != 0 && self.own.binary_search(&address).is_ok()
    }
}

/// The bit of an address in the sieve.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "halves")]
fn bit(address: u128) -> u64 {
    let folded = address as u64 ^ (address >> 64) as u64;
    1 << (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// Where cores find the plan.
#[derive(Default)]
pub(super) struct Published {
    version: AtomicU64,
    plan: Mutex<Arc<Plan>>,
}

impl Published {
    /// Replaces the plan. The one before is returned.
    pub fn replace(&self, plan: Arc<Plan>) -> Arc<Plan> {
        let old = std::mem::replace(&mut *crate::lock(&self.plan), plan);
        self.version.fetch_add(1, Ordering::Release);
        old
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The plan, and the least version that it has.
    pub fn take(&self) -> (u64, Arc<Plan>) {
        let version = self.version();
        (version, Arc::clone(&crate::lock(&self.plan)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_is_made_of_the_station_address() {
        let it = link_local([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(super::super::net::address(it), "fe80::11:22ff:fe33:4455".parse::<IpAddr>().unwrap());
    }
}
