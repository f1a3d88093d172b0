//! A vector of frames: headers are judged, destinations are looked up together, and each frame gets its
//! verdict.
//!
//! Theory of operation. The destinations of a family stand one after the other in a [`Wanted`], as the
//! forwarding tables take them, and each keeps the place of its frame. What follows the lookup is made once
//! for each family, so a frame is not asked again which one it is of. All of this is memory of the core's:
//! nothing is cleared for a vector.

use std::sync::Arc;

use super::header::{ethertype, is_plain4, judge4, judge6, judge_options, IPV4, IPV6};
use super::made::Arrival;
use super::plan::{Interface, Plan};
use super::reverse::Sources;
use super::rewrite::{Rewrite, RewriteBuffer};
use super::route::Rpf;
use super::wanted::{Family, Wanted, VECTOR};
use super::{Now, Refused, Router, RouterContext};
use crate::observe::account::DropReason;
use crate::packet::{is_group, Batch, Frame};
use crate::port::Port;
use crate::switch::Verdicts;

/// The vector, and what is known of all its frames.
struct Vector<'v> {
    router: &'v Router,
    batch: &'v Batch,
    /// The place of its first frame in the batch.
    first: usize,
    frames: &'v [Frame],
    /// Where they came from.
    source: &'v Port,
    now: &'v Now,
}

impl RouterContext {
    /// Pass 1: a verdict on each frame of `batch`, which came from `source`. What is to be changed of those
    /// that go on, and what the router says itself, is in `out` then.
    pub fn decide(
        &mut self,
        batch: &Batch,
        source: &Port,
        now: &Now,
        out: &mut RewriteBuffer,
        verdicts: &mut Verdicts,
    ) {
        let router = Arc::clone(&self.router);
        // From here to `leave` no number of a group that a lookup may find is used again.
        router.epochs.enter(&self.note);
        for (number, frames) in batch.frames().chunks(VECTOR).enumerate() {
            let first = number * VECTOR;
            let vector = Vector { router: &router, batch, first, frames, source, now };
            self.vector(&vector, out, verdicts);
        }
        router.epochs.leave(&self.note);
    }

    /// A verdict on each frame of `vector`.
    fn vector(&mut self, vector: &Vector<'_>, out: &mut RewriteBuffer, verdicts: &mut Verdicts) {
        self.renew();
        (self.four.count, self.six.count) = (0, 0);
        let Some(rpf) = vector.judge(&self.plan, &mut self.four, &mut self.six, out, verdicts) else {
            let all = vector.first..vector.first + vector.frames.len();
            return all.for_each(|index| verdicts.drop(index, DropReason::NoDestination));
        };
        self.four.find(|wanted, groups| self.v4.lookup(wanted, groups));
        self.six.find(|wanted, groups| self.v6.lookup(wanted, groups));
        let sources = (rpf != Rpf::Off).then(|| self.sources(vector.frames));
        // The groups that were found are in the plan that holds now.
        self.renew();
        let sources = sources.as_ref();
        vector.send(&self.plan, &self.four, sources, out, verdicts);
        if self.six.count > 0 {
            vector.send(&self.plan, &self.six, sources, out, verdicts);
        }
    }
}

impl Vector<'_> {
    /// Judges the headers: the destinations of those that are in order are wanted, the others get their
    /// verdict. `None`: the router does not have the port that they came from.
    #[inline]
    fn judge(
        &self,
        plan: &Plan,
        four: &mut Wanted<u32>,
        six: &mut Wanted<u128>,
        out: &mut RewriteBuffer,
        verdicts: &mut Verdicts,
    ) -> Option<Rpf> {
        let at = plan.interface(self.source.id)?;
        let [a, b, c, d, e, f] = at.mac;
        let mine = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        for (place, frame) in self.frames.iter().enumerate() {
            // Most frames go on, and none is described before it has to be.
            let arrival = || self.arrival(place, frame, at);
            let judged: Result<(), Refused> = match frame.dst() {
                dst if dst == mine => match ethertype(frame) {
                    IPV4 => match is_plain4(frame) {
                        true => Ok(()),
                        false => options(out, arrival()),
                    }
                    .and_then(|()| judge4(frame, plan))
                    .map(|address| four.push(place, address))
                    .map_err(Refused::from),
                    IPV6 => {
                        judge6(frame, plan).map(|address| six.push(place, address)).map_err(Refused::from)
                    }
                    _ => self.router.hear(out, arrival()),
                },
                dst if is_group(dst) => self.router.hear(out, arrival()),
                _ => Err(DropReason::NotForRouter.into()),
            };
            if let Err(why) = judged {
                self.router.refuse(why, arrival(), plan, verdicts);
            }
        }
        Some(at.rpf)
    }

    /// The frame at `place`, which came by interface `at`.
    fn arrival<'p>(&'p self, place: usize, frame: &'p Frame, at: &'p Interface) -> Arrival<'p> {
        Arrival { batch: self.batch, index: self.first + place, frame, at, now: self.now }
    }

    /// Verdicts on the frames whose destinations were looked up: `Router::way` says where each goes.
    #[inline]
    fn send<A: Family>(
        &self,
        plan: &Plan,
        wanted: &Wanted<A>,
        sources: Option<&Sources>,
        out: &mut RewriteBuffer,
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
            let arrival = || self.arrival(place, frame, at);
            match self.router.way(out, arrival, plan, found) {
                Ok(Some(way)) => {
                    out.put(index, Rewrite::forward(way.mac, &way.to.mac, A::V6));
                    verdicts.send(index, way.to.id);
                }
                // The frame becomes the answer, and goes back to the port that it came from.
                Ok(None) => verdicts.send(index, at.id),
                Err(why) => self.router.refuse(why, arrival(), plan, verdicts),
            }
        }
    }
}

/// A header of IPv4 that is not of the usual kind.
#[cold]
fn options(out: &mut RewriteBuffer, arrival: Arrival<'_>) -> Result<(), DropReason> {
    judge_options(arrival.batch, arrival.frame, |bytes| out.keep(arrival, bytes))
}
