//! The router: IPv4 and IPv6 between its ports.
//!
//! Theory of operation. A batch comes from one port. [`RouterContext::decide`] (`vector`) takes it in vectors
//! of [`VECTOR`] frames. It checks their headers (`header`), looks all their destinations up together in the
//! forwarding tables (`sidecore_fib`), and gives each frame its group, next hop and neighbour (`plan`,
//! `neighbours`). The result for each frame is a verdict, as on a switch, and a [`rewrite::Rewrite`]. After
//! captures have seen the frames as they came, [`RewriteBuffer::rewrite`] changes their private heads:
//! station addresses, hop limit and checksum (incrementally, RFC 1624). If a header is longer than the head,
//! the router reads the rest once and forwards what it read. So each receiver gets one copy, as on a switch,
//! and a sender that rewrites its buffer meanwhile cannot change what was decided.
//!
//! A port may have the sources of its packets looked up, too (`reverse`).
//!
//! Packets for the router itself are answered in `own`, or passed to its control plane (`punt`). Errors and
//! requests that the router makes (`made`) are delivered behind the batch, and an error goes back by the way
//! that its packet came. All input is hostile: each refusal is a drop with a name.
//!
//! This path allocates nothing and waits for no lock: the table of neighbours is changed only when its lock
//! is free.
//!
//! The other side is for the control plane: `rib` has routes and groups, `fed` the routes of routing daemons.
//! `control` makes the tables and the plan follow them, and explains the decision for an address.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod class;
mod control;
mod copy;
mod digest;
mod fed;
mod feed;
mod gateway;
mod groups;
mod header;
mod hops;
mod limit;
mod made;
mod neighbours;
mod net;
mod own;
mod plan;
mod punt;
mod reverse;
mod rewrite;
mod rib;
mod route;
mod said;
#[cfg(test)]
mod tests;
mod vector;
pub mod view;
mod wanted;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use sidecore_fib::epoch::{Epochs, Note};
use sidecore_fib::{v4, v6, NO_ROUTE};

pub use copy::{News, RouteCopy};
pub use digest::{digest, part, Led};
pub use gateway::Gateway;
pub use hops::merged;
pub use limit::Now;
pub use net::{never, Net};
pub use rewrite::RewriteBuffer;
pub use route::{Member, Rpf, Static, Target};
pub use said::{Change, FedCounts, FedHop, Object, Way, MAX_ALL_HOPS, MAX_HOPS};
pub use wanted::VECTOR;

use self::header::{ethertype, may_be_cut, packet_len, source4, source6, IPV4, V4_LEN, V6_LEN};
use self::made::{Arrival, IcmpError};
use self::neighbours::{Neighbours, Reach};
use self::net::{is_link_local6, mapped};
use self::plan::{Group, Interface, Plan, Published};
use self::punt::Class;
use self::rib::Control;
use self::wanted::{Family, Wanted};
use crate::observe::account::DropReason;
use crate::packet::{flow_hash, Frame};
use crate::switch::Verdicts;

/// A router.
pub struct Router {
    /// Its name.
    pub name: String,
    plan: Published,
    /// When numbers of groups may be used again.
    epochs: Epochs,
    neighbours: Neighbours,
    control: Mutex<Control>,
    /// Members of groups that have its control plane's routes in force.
    copies: Mutex<BTreeSet<String>>,
}

/// What one core has of a router: readers of its tables, and the plan that holds.
pub struct RouterContext {
    router: Arc<Router>,
    v4: v4::Reader,
    v6: v6::Reader,
    note: Arc<Note>,
    version: u64,
    plan: Arc<Plan>,
    /// The destinations of the vector under way.
    four: Wanted<u32>,
    six: Wanted<u128>,
}

/// Where a frame goes: by which interface, and to which station.
struct Onward<'p> {
    to: &'p Interface,
    mac: u64,
}

impl RouterContext {
    /// A context of one core. It is made before the core sees the router.
    pub fn new(router: &Arc<Router>) -> RouterContext {
        let (v4, v6) = router.readers();
        let (version, plan) = router.plan.take();
        RouterContext {
            router: Arc::clone(router),
            v4,
            v6,
            note: router.epochs.join(),
            version,
            plan,
            four: Wanted::new(),
            six: Wanted::new(),
        }
    }

    /// Whether it is one of `router`.
    pub fn is_of(&self, router: &Arc<Router>) -> bool {
        Arc::ptr_eq(&self.router, router)
    }

    /// Has the plan that holds now, at least.
    #[inline]
    fn renew(&mut self) {
        if self.router.plan.version() != self.version {
            (self.version, self.plan) = self.router.plan.take();
        }
    }
}

/// Why a frame does not go on.
enum Refused {
    /// It is dropped.
    Drop(DropReason),
    /// The router itself is its destination, and has no answer of its own.
    Own,
}

impl From<DropReason> for Refused {
    fn from(why: DropReason) -> Refused {
        Refused::Drop(why)
    }
}

impl Router {
    /// Where the frame of `arrival`, whose destination `address` leads to `group`, goes. `None`: it is
    /// answered. A frame that goes on needs no [`Arrival`] in memory, so it is made where one is told of it.
    #[inline]
    fn way<'a, 'p, A: Family>(
        &self,
        out: &mut RewriteBuffer,
        arrival: impl Fn() -> Arrival<'a>,
        plan: &'p Plan,
        (group, address): (u32, A),
    ) -> Result<Option<Onward<'p>>, Refused> {
        let Arrival { frame, at, now, .. } = arrival();
        let v6 = A::V6;
        // No route leads to a neighbour's own address, not even the default one.
        let near = v6 && is_link_local6(address.number());
        let (port, number, hop) = match plan.group(if near { NO_ROUTE } else { group }) {
            Group::OnLink(port) => (*port, address.number(), None),
            Group::Via(hops) => {
                let hop = hops.choose(|| flow_hash(frame.head()));
                let Some(hop) = hop else { return Err(DropReason::NoRoute.into()) };
                (hop.port, hop.gateway, Some(hop))
            }
            Group::Local => return self.take(out, arrival()).map(|()| None),
            _ if near => {
                if !at.has(address.number()) {
                    return Err(DropReason::Martian.into());
                }
                return self.take(out, arrival()).map(|()| None);
            }
            refused => {
                let (error, why) = match refused {
                    Group::Broadcast => return Err(DropReason::GroupAddress.into()),
                    Group::Blackhole => return Err(DropReason::Blackhole.into()),
                    // RFC 1812 §5.2.7.1; IPv6 knows no more of it than that there is no route.
                    Group::Unreachable if v6 => (IcmpError::NoRoute, DropReason::Unreachable),
                    Group::Unreachable => (IcmpError::HostUnreachable, DropReason::Unreachable),
                    Group::Prohibit => (IcmpError::Prohibited, DropReason::Prohibit),
                    _ => (IcmpError::NoRoute, DropReason::NoRoute),
                };
                out.made.error(arrival(), error);
                return Err(why.into());
            }
        };
        // The hop limit of IPv6, the time to live of IPv4.
        let hops_left = if v6 { frame.head[21] } else { frame.head[22] };
        if hops_left <= 1 {
            out.made.error(arrival(), IcmpError::TimeExceeded);
            return Err(DropReason::TimeExceeded.into());
        }
        if v6 && is_link_local6(source6(frame)) {
            out.made.error(arrival(), IcmpError::BeyondScope);
            return Err(DropReason::Martian.into());
        }
        let Some(to) = plan.interface(port) else { return Err(DropReason::NoDestination.into()) };
        let (len, mtu) = (packet_len(frame), to.port.mtu());
        let cut = len > mtu && !v6 && may_be_cut(frame);
        if len > mtu && !cut {
            out.made.error(arrival(), IcmpError::TooBig(mtu));
            return Err(DropReason::TooBig.into());
        }
        let known = match hop.and_then(|hop| hop.entry) {
            Some(entry) => Some((entry, self.neighbours.reach(entry, now.seconds))),
            None => self.neighbours.look(port, number, now.seconds),
        };
        let mac = match known {
            Some((_, Reach::Known(mac))) => mac,
            known => self.resolve(out, arrival(), to, number, known)?,
        };
        if let Some(hop) = hop {
            hop.counts.count(now.core, frame.len);
        }
        if cut {
            return Err(out.made.fragments(arrival().batch, frame, (to, mac), mtu).into());
        }
        Ok(Some(Onward { to, mac }))
    }

    /// What becomes of a frame that does not go on: what is for the router itself goes to its control plane,
    /// if there is one.
    #[inline]
    fn refuse(&self, why: Refused, arrival: Arrival, plan: &Plan, verdicts: &mut Verdicts) {
        let Arrival { index, frame, at, now, .. } = arrival;
        match (why, at.control) {
            (Refused::Drop(why), _) => verdicts.drop(index, why),
            // ARP and Neighbor Discovery were heard; nobody is there for the rest.
            (Refused::Own, None) if class::class(frame) == Class::Neighbours => {
                verdicts.drop(index, DropReason::ToRouter);
            }
            (Refused::Own, None) => verdicts.drop(index, DropReason::NotTaken),
            (Refused::Own, Some(_)) if class::is_obeyed(frame) => verdicts.drop(index, DropReason::ToRouter),
            (Refused::Own, Some(control)) => {
                let class = class::class(frame);
                // Who is behind another port could speak in a neighbour's name: a hop limit proves only that
                // it is near.
                let source = source(frame);
                let elsewhere = || plan.interfaces().any(|other| other.reaches(source));
                let claims = || class == Class::Bfd || class::is_from_near(frame) && elsewhere();
                if !at.reaches(source) && claims() {
                    return verdicts.drop(index, DropReason::Spoofed);
                }
                match at.limits.punt.admit(class, now.sender, now.micros()) {
                    Ok(()) => verdicts.send(index, control),
                    Err(why) => verdicts.drop(index, why),
                }
            }
        }
    }

    /// Asks for the station that has `number` behind `to`; its address, if an old one can still be used.
    #[cold]
    fn resolve(
        &self,
        out: &mut RewriteBuffer,
        arrival: Arrival,
        to: &Interface,
        number: u128,
        known: Option<(usize, Reach)>,
    ) -> Result<u64, DropReason> {
        let now = arrival.now;
        let (entry, reach) = match known {
            Some(known) => known,
            None => {
                // No request, no entry: a scan of a network gets no more entries than requests.
                if !to.limits.requests.take(now.sender, now.micros()) {
                    return Err(DropReason::NoNeighbour);
                }
                let entered = self.neighbours.enter(to.id, number, now.seconds);
                (entered.ok_or(DropReason::NoNeighbour)?, Reach::Unknown)
            }
        };
        let may = known.is_none() || to.limits.requests.take(now.sender, now.micros());
        if may && self.neighbours.ask(entry, now.seconds) {
            self.request(out, to, number);
        }
        match reach {
            Reach::Known(mac) | Reach::Stale(mac) => Ok(mac),
            Reach::Unknown => Err(DropReason::NoNeighbour),
            Reach::Silent => {
                out.made.error(arrival, IcmpError::HostUnreachable);
                Err(DropReason::NoNeighbour)
            }
        }
    }

    /// Makes the request by ARP or Neighbor Discovery for `number`, to be sent by `to`.
    fn request(&self, out: &mut RewriteBuffer, to: &Interface, number: u128) {
        #[expect(clippy::cast_possible_truncation, reason = "a mapped IPv4 address")]
        if number >> 32 == 0xffff {
            let address = net::address(number);
            // From an address on the same network, so that whoever is asked believes the question.
            let near =
                to.addresses.iter().find(|net| net.contains(address)).map(|net| net::number(net.address));
            let own = near.map(|own| own as u32).or(to.v4);
            if let Some(own) = own {
                out.made.arp(to, 1, None, own, number as u32);
            }
        } else {
            out.made.solicit(to, number);
        }
    }
}

/// The source of a packet.
fn source(frame: &Frame) -> IpAddr {
    net::address(if ethertype(frame) == IPV4 { mapped(source4(frame)) } else { source6(frame) })
}

/// Bytes of the headers that a frame has to have whole in its head.
const _: () = assert!(header::L3 + V6_LEN + 8 <= crate::packet::HEAD && V4_LEN < V6_LEN);
