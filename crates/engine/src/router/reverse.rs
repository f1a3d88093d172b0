//! Whether a packet's source is where its route leads: reverse path forwarding as a check (RFC 3704).
//!
//! Theory of operation. A port may ask for the check ([`Rpf`]). The sources of a vector of its frames are
//! looked up together in the forwarding tables, as their destinations are, and before the plan is taken,
//! which has all groups that were found. A port without the check costs one comparison for each vector.
//!
//! * *Strict* (RFC 3704 §2.2): a route to the source leads back by this port. Of several next hops one is
//!   enough, since a sender chooses its way as well as we do: paths that are equally good are not asymmetric.
//! * *Loose* (RFC 3704 §2.4): some route leads to the source, by whatever port. The default route is one.
//!
//! In both a route that drops its packets is none, so that a blackhole route to a flood's source stops it
//! (RFC 5635 §4). What no route can lead to is not checked: link-local addresses of IPv6, which no router
//! passes on. Frames to groups are not checked, either: ARP, Neighbor Discovery and hellos of routing daemons
//! have checks of their own.

use super::header::{source4, source6};
use super::net::is_link_local6;
use super::plan::{Group, Interface};
use super::route::Rpf;
use super::wanted::{Wanted, VECTOR};
use super::RouterContext;
use crate::packet::Frame;

/// The groups that the sources of a vector's frames lead to; none: that one is not checked.
pub(super) type Sources = [Option<u32>; VECTOR];

impl RouterContext {
    /// Looks up the sources of those of `frames` whose destinations are wanted.
    #[inline(never)]
    pub(super) fn sources(&mut self, frames: &[Frame]) -> Sources {
        let (mut four, mut six) = (Wanted::<u32>::new(), Wanted::<u128>::new());
        for (place, _) in self.four.found() {
            frames.get(place).iter().for_each(|frame| four.push(place, source4(frame)));
        }
        for (place, _) in self.six.found() {
            let source = frames.get(place).map(source6).filter(|source| !is_link_local6(*source));
            source.iter().for_each(|source| six.push(place, *source));
        }
        four.find(|wanted, groups| self.v4.lookup(wanted, groups));
        six.find(|wanted, groups| self.v6.lookup(wanted, groups));
        let mut sources = [None; VECTOR];
        let found = four.found().map(|(place, (group, _))| (place, group));
        for (place, group) in found.chain(six.found().map(|(place, (group, _))| (place, group))) {
            sources.iter_mut().skip(place).take(1).for_each(|it| *it = Some(group));
        }
        sources
    }
}

impl Interface {
    /// Whether a packet may come in here whose source leads to `group`.
    pub(super) fn may_come(&self, group: &Group) -> bool {
        match (self.rpf, group) {
            (Rpf::Off, _) => true,
            (Rpf::Loose, Group::OnLink(_)) => true,
            (Rpf::Loose, Group::Via(hops)) => !hops.all.is_empty(),
            (Rpf::Strict, Group::OnLink(port)) => *port == self.id,
            (Rpf::Strict, Group::Via(hops)) => hops.all.iter().any(|hop| hop.port == self.id),
            _ => false,
        }
    }
}
