//! A vector of frames: headers are judged, destinations are looked up together, and each frame gets its verdict.
//!
//! Theory of operation. The destinations of a family stand one after the other in a [`Wanted`], as the forwarding tables
//! take them, and each keeps the place of its frame. What follows the lookup is made once for each family, so a frame is
//! not asked again which one it is of. All of this is memory of the core's: nothing is cleared for a vector.

use super::header::{ethertype, is_plain4, judge4, judge6, judge_options, IPV4, IPV6};
use super::net::mapped;
use super::plan::Plan;
use super::reverse::Sources;
use super::rewrite::{Desk, Rewrite};
use super::route::Rpf;
use super::{Now, Refused, Router, Seat, NO_ROUTE, VECTOR};
use crate::account::DropReason;
use crate::frame::{is_group, Batch, Frame};
use crate::port::Port;
use crate::switch::Verdicts;

/// A family of addresses.
pub(super) trait Family: Copy + Default {
    const V6: bool;

    /// The address as a number of both families.
    fn number(self) -> u128;
}

impl Family for u32 {
    const V6: bool = false;

    #[inline]
    fn number(self) -> u128 {
        mapped(self)
    }
}

impl Family for u128 {
    const V6: bool = true;

    #[inline]
    fn number(self) -> u128 {
        self
    }
}

/// Destinations of a vector's frames, those of one family.
pub(super) struct Wanted<A> {
    count: usize,
    /// The places of their frames in the vector.
    of: [u8; VECTOR],
    addresses: [A; VECTOR],
    /// The groups that they lead to.
    groups: [u32; VECTOR],
}

impl<A: Family> Wanted<A> {
    pub fn new() -> Wanted<A> {
        Wanted { count: 0, of: [0; VECTOR], addresses: [A::default(); VECTOR], groups: [NO_ROUTE; VECTOR] }
    }

    #[inline]
    pub fn push(&mut self, place: usize, address: A) {
        if let (Some(of), Some(to)) = (self.of.get_mut(self.count), self.addresses.get_mut(self.count)) {
            #[expect(clippy::cast_possible_truncation, reason = "below VECTOR")]
            {
                *of = place as u8;
            }
            *to = address;
            self.count += 1;
        }
    }

    /// Has `lookup` find the groups of all that is wanted.
    #[inline]
    pub fn find(&mut self, lookup: impl FnOnce(&[A], &mut [u32])) {
        if let (Some(addresses), true) = (self.addresses.get(..self.count), self.count > 0) {
            lookup(addresses, &mut self.groups);
        }
    }

    /// The places of frames, with the groups and addresses that were found for them.
    #[inline]
    pub fn found(&self) -> impl Iterator<Item = (usize, (u32, A))> + '_ {
        let found = self.of.iter().zip(&self.groups).zip(&self.addresses).take(self.count);
        found.map(|((of, group), address)| (usize::from(*of), (*group, *address)))
    }
}

/// The vector, and what is known of all its frames.
pub(super) struct Vector<'v> {
    pub router: &'v Router,
    pub batch: &'v Batch,
    /// The place of its first frame in the batch.
    pub first: usize,
    pub frames: &'v [Frame],
    /// Where they came from.
    pub source: &'v Port,
    pub now: &'v Now,
}

impl Seat {
    /// A verdict on each frame of `vector`.
    pub(super) fn vector(&mut self, vector: &Vector<'_>, desk: &mut Desk, verdicts: &mut Verdicts) {
        self.renew();
        (self.four.count, self.six.count) = (0, 0);
        let Some(rpf) = vector.judge(&self.plan, &mut self.four, &mut self.six, desk, verdicts) else {
            let all = vector.first..vector.first + vector.frames.len();
            return all.for_each(|index| verdicts.drop(index, DropReason::NoDestination));
        };
        self.four.find(|wanted, groups| self.v4.lookup(wanted, groups));
        self.six.find(|wanted, groups| self.v6.lookup(wanted, groups));
        let sources = (rpf != Rpf::Off).then(|| self.sources(vector.frames));
        // The groups that were found are in the plan that holds now.
        self.renew();
        let sources = sources.as_ref();
        vector.send(&self.plan, &self.four, sources, desk, verdicts);
        if self.six.count > 0 {
            vector.send(&self.plan, &self.six, sources, desk, verdicts);
        }
    }
}

impl Vector<'_> {
    /// Judges the headers: the destinations of those that are in order are wanted, the others get their verdict. `None`: the router does
    /// not have the port that they came from.
    #[inline]
    fn judge(
        &self,
        plan: &Plan,
        four: &mut Wanted<u32>,
        six: &mut Wanted<u128>,
        desk: &mut Desk,
        verdicts: &mut Verdicts,
    ) -> Option<Rpf> {
        let at = plan.interface(self.source.id)?;
        let [a, b, c, d, e, f] = at.mac;
        let mine = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        for (place, frame) in self.frames.iter().enumerate() {
            let judged: Result<(), Refused> = match frame.dst() {
                _ if self.source.is_too_long(frame) => Err(DropReason::TooLong.into()),
                dst if dst == mine => match ethertype(frame) {
                    IPV4 => match is_plain4(frame) {
                        true => Ok(()),
                        false => self.options(place, frame, desk),
                    }
                    .and_then(|()| judge4(frame, plan))
                    .map(|address| four.push(place, address))
                    .map_err(Refused::from),
                    IPV6 => {
                        judge6(frame, plan).map(|address| six.push(place, address)).map_err(Refused::from)
                    }
                    _ => self.router.hear(desk, self.batch, self.first + place, frame, at, self.now),
                },
                dst if is_group(dst) => {
                    self.router.hear(desk, self.batch, self.first + place, frame, at, self.now)
                }
                _ => Err(DropReason::NotForRouter.into()),
            };
            if let Err(why) = judged {
                self.router.refuse(why, self.first + place, frame, at, plan, self.now, verdicts);
            }
        }
        Some(at.rpf)
    }

    /// A header of IPv4 that is not of the usual kind.
    #[cold]
    fn options(&self, place: usize, frame: &Frame, desk: &mut Desk) -> Result<(), DropReason> {
        judge_options(self.batch, frame, |bytes| desk.keep(self.batch, self.first + place, frame, bytes))
    }

    /// Verdicts on the frames whose destinations were found.
    #[inline]
    fn send<A: Family>(
        &self,
        plan: &Plan,
        wanted: &Wanted<A>,
        sources: Option<&Sources>,
        desk: &mut Desk,
        verdicts: &mut Verdicts,
    ) {
        let at = plan.interface(self.source.id);
        for (place, found) in wanted.found() {
            let index = self.first + place;
            let (Some(at), Some(frame)) = (at, self.frames.get(place)) else {
                verdicts.drop(index, DropReason::NoDestination);
                continue;
            };
            if let Some(Some(source)) = sources.and_then(|all| all.get(place)) {
                if !at.may_come(plan.group(*source)) {
                    verdicts.drop(index, DropReason::ReversePath);
                    continue;
                }
            }
            match self.router.way(desk, self.batch, index, frame, at, plan, found, self.now) {
                Ok(Some(way)) => {
                    desk.put(index, Rewrite::forward(way.mac, &way.to.mac, A::V6));
                    verdicts.send(index, way.to.id);
                }
                // To whom it came from.
                Ok(None) => verdicts.send(index, at.id),
                Err(why) => self.router.refuse(why, index, frame, at, plan, self.now, verdicts),
            }
        }
    }
}
