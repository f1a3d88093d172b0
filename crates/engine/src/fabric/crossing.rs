//! Frames between a switch and a router on it.
//!
//! Theory of operation. A router's port of kind `switch` is a *gateway*: an interface of the router, and a port on the
//! switch, without a device. Frames pass it within the visit that brought them. Frames from the switch to the gateway
//! (those for the router's station address, and floods) *enter* the router: they are copied, descriptions without their
//! bodies, into a batch of its own, which the router decides on as on any other. So the router changes only heads of
//! copies, and other receivers of the same frame do not see the changes. Frames from the router to a gateway, its own
//! frames among them, are copied likewise. They *leave* the router and get the switch's verdicts, as a batch from that
//! port. The bodies are not copied: there is still one copy to each receiver.
//!
//! Bounded: the frames of one visit pass one router, with one switch before it and one behind it. A visit takes the
//! core's [`Crossing`] for this; a frame that comes to a gateway meanwhile is dropped there as `reentry`. So no loop of
//! switches and routers can hold a core, and a batch causes three passes at most for each gateway on its switch.
//!
//! At a gateway's port, frames that enter the router are counted and captured as coming in, and those that leave it as going out.

use std::time::Instant;

use super::deliver::Delivery;
use super::forward::classify;
use super::local::seconds;
use super::pass::{Crossing, Pass};
use super::topology::{Attach, Member, Topology};
use crate::account::{Outcome, Tally};
use crate::frame::{Batch, ALL};
use crate::port::{DropReason, Port, PortId};
use crate::router::Now;

impl Delivery {
    /// Has `picks` of `batch`, which came from `source`, pass gateway `at`: into its router if they come from the switch, else out of it.
    #[inline(never)]
    pub(super) fn cross(
        &mut self,
        topology: &Topology,
        source: &Port,
        at: &Member,
        batch: &Batch,
        picks: &[u16],
    ) {
        let Some(mut crossing) = self.crossing.take() else { return self.refuse_entry(at, batch, picks) };
        match topology.get(source.id).map(|member| &member.attach) {
            Some(Attach::Switch(_)) => self.enter(&mut crossing, topology, source, at, batch, picks),
            // From its router, or from its control plane's namespace by a wire.
            _ => self.leave(&mut crossing.leaving, crossing.epoch, topology, at, batch, picks),
        }
        self.crossing = Some(crossing);
    }

    /// Exchanges its scratch memory for that of `pass`, or back: that of the batch under way is in use.
    fn exchange(&mut self, pass: &mut Pass) {
        std::mem::swap(&mut self.picks, &mut pass.picks);
        std::mem::swap(&mut self.others, &mut pass.others);
        std::mem::swap(&mut self.floods, &mut pass.floods);
        // What is known of flows is of another batch.
        self.forget_flows();
    }

    /// They have passed a router already.
    #[cold]
    fn refuse_entry(&self, at: &Member, batch: &Batch, picks: &[u16]) {
        self.count_drops(&at.port, picks.iter().map(|_| DropReason::Reentry));
        if at.port.capture.is_on() {
            let drops: Vec<_> = picks.iter().map(|pick| (*pick, DropReason::Reentry)).collect();
            at.port.capture.egress(batch, picks, &drops);
        }
    }

    /// `picks` of `batch`, which came from `source`, enter the router by `at`.
    fn enter(
        &mut self,
        crossing: &mut Crossing,
        topology: &Topology,
        source: &Port,
        at: &Member,
        batch: &Batch,
        picks: &[u16],
    ) {
        let Crossing { epoch, entering, desk, leaving } = crossing;
        let Attach::Gateway(router, _) = &at.attach else { return };
        let (left, bytes) = entering.take(batch, picks);
        let frames = entering.batch.len() as u64;
        at.port.counters.block(self.core).add_tally(&Tally { frames, bytes, ..Tally::default() });
        desk.clear();
        self.exchange(entering);
        let Pass { batch, verdicts, .. } = entering;
        match self.seats.iter_mut().find(|seat| seat.is_of(router)) {
            Some(seat) => {
                let (epoch, core, sender) = (*epoch, self.core, source.id);
                let now = Now { seconds: seconds(epoch), epoch, core, sender };
                seat.decide(batch, &at.port, &now, desk, verdicts);
            }
            None => (0..batch.len()).for_each(|frame| verdicts.drop(frame, DropReason::NoDestination)),
        }
        at.port.capture.ingress(batch, verdicts.drops());
        desk.rewrite(batch);
        for &id in verdicts.destinations() {
            verdicts.picks_alone(PortId(id), &mut self.picks);
            self.hand_on(leaving, *epoch, topology, at, PortId(id), batch);
        }
        let (made, to) = desk.made();
        if !made.is_empty() {
            at.port.counters.block(self.core).add_made(to.len() as u64);
            self.forget_flows();
            for (_, id) in to.iter().enumerate().filter(|(n, id)| !to.iter().take(*n).any(|it| it == *id)) {
                let its = ALL.iter().zip(to).filter(|(_, to)| *to == id).map(|(pick, _)| *pick);
                self.picks.clear();
                self.picks.extend(its);
                self.hand_on(leaving, *epoch, topology, at, *id, made);
            }
        }
        if !verdicts.drops().is_empty() {
            self.count_drops(&at.port, verdicts.drops().iter().map(|(_, reason)| *reason));
        }
        if left > 0 {
            self.count_drops(&at.port, (0..left).map(|_| DropReason::TooManyPieces));
        }
        self.exchange(entering);
    }

    /// Gives `self.picks` of `batch`, which the router has for port `id` and which came to it by `at`, to that port.
    fn hand_on(
        &mut self,
        leaving: &mut Pass,
        epoch: Instant,
        topology: &Topology,
        at: &Member,
        id: PortId,
        batch: &Batch,
    ) {
        match topology.get(id) {
            Some(to) if to.attach.is_gateway() && !to.port.is_silent() => {
                let picks = std::mem::take(&mut self.picks);
                self.deliveries += picks.len();
                self.leave(leaving, epoch, topology, to, batch, &picks);
                self.picks = picks;
            }
            _ => self.visit(topology, &at.port, id, batch),
        }
    }

    /// `picks` of `batch` leave the router for the switch by `at`.
    fn leave(
        &mut self,
        leaving: &mut Pass,
        epoch: Instant,
        topology: &Topology,
        at: &Member,
        batch: &Batch,
        picks: &[u16],
    ) {
        let Attach::Gateway(_, switch) = &at.attach else { return };
        let (left, bytes) = leaving.take(batch, picks);
        let mut outcome = Outcome::new();
        (outcome.frames, outcome.bytes) = (leaving.batch.len() as u64, bytes);
        if left > 0 {
            outcome.drops.add(DropReason::TooManyPieces, u32::try_from(left).unwrap_or(0));
        }
        at.port.counters.block(self.core).add_outcome(&outcome);
        at.port.capture.egress(batch, picks, &[]);
        self.exchange(leaving);
        let Pass { batch, verdicts, .. } = leaving;
        classify(switch, topology, at, batch, seconds(epoch), verdicts);
        self.spread(topology, &at.port, batch, verdicts, false);
        self.exchange(leaving);
    }
}

#[cfg(test)]
mod tests;
