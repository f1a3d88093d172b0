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
//! Routers may be each other's neighbours on a switch. A visit takes the core's [`Crossing`] for its way through a
//! gateway. A frame that comes to another gateway meanwhile waits in a *lobby*, as a copy of its description. When all
//! frames before it have left their router, those in the lobby enter theirs, and so on, in rounds. So a frame passes one
//! router in each round, and no call leads into a call of its own kind: the stack does not grow with the way.
//!
//! Bounded: there are [`PASSAGES`] rounds, and a lobby has room for two batches. A frame beyond either is dropped as
//! `reentry`, at the gateway that it came to. So a circle of switches and routers holds a core for [`PASSAGES`] times as
//! long as one router at most, and the sender is charged for that. What the routers of all rounds say lies in one desk's
//! memory, which is given out once in a crossing: a frame made in one round may still be on its way in the last.
//!
//! Each router on the way has limits, and parts of them for those who send (`router/limit.rs`). Whoever sent the frames into
//! the crossing has its own part at all of these routers: what guests behind one router cause at the next one takes nothing from
//! each other, nor from what the control planes of the two say to each other.
//!
//! At a gateway's port, frames that enter the router are counted and captured as coming in, and those that leave it as going out.

use std::time::Instant;

use super::deliver::Delivery;
use super::forward::classify;
use super::local::seconds;
use super::pass::{Crossing, Hall, Pass, PASSAGES};
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
        let Some(mut crossing) = self.crossing.take() else { return self.wait(at, batch, picks) };
        crossing.desk.clear();
        crossing.origin = source.id;
        match topology.get(source.id).map(|member| &member.attach) {
            Some(Attach::Switch(_)) => self.enter(&mut crossing, topology, at, batch, picks),
            // From its router, or from its control plane's namespace by a wire.
            _ => self.leave(&mut crossing.leaving, crossing.epoch, topology, at, batch, picks),
        }
        if !self.lobby.is_empty() {
            self.go_on(&mut crossing, topology);
        }
        self.crossing = Some(crossing);
    }

    /// `picks` of `batch` have passed a router and came to gateway `at` of the next one.
    #[cold]
    fn wait(&mut self, at: &Member, batch: &Batch, picks: &[u16]) {
        let no_room = |pick: &u16| !self.lobby.take(batch, *pick, at.port.id);
        let left = picks.iter().position(no_room).and_then(|n| picks.get(n..));
        if let Some(left) = left {
            self.refuse_entry(at, batch, left);
        }
    }

    /// Has those in the lobby enter their routers, and so on until nobody is there any more, or they have passed enough.
    #[cold]
    fn go_on(&mut self, crossing: &mut Crossing, topology: &Topology) {
        let Some(mut here) = crossing.lobby.take() else { return };
        for passed in 1.. {
            // Whoever comes next finds an empty one.
            std::mem::swap(&mut self.lobby, &mut here);
            for hall in here.halls() {
                self.open(crossing, topology, hall, passed < PASSAGES);
            }
            here.clear();
            if self.lobby.is_empty() {
                break;
            }
        }
        crossing.lobby = Some(here);
    }

    /// Lets those in `hall` enter, or drops them.
    fn open(&mut self, crossing: &mut Crossing, topology: &Topology, hall: &mut Hall, may_enter: bool) {
        let Hall { batch, gates, picks } = hall;
        let is_first = |n: usize, at: &PortId| !gates.iter().take(n).any(|it| it == at);
        for (n, at) in gates.iter().enumerate().filter(|(n, at)| is_first(*n, at)) {
            picks.clear();
            picks.extend(ALL.iter().zip(&*gates).skip(n).filter(|(_, it)| *it == at).map(|(pick, _)| *pick));
            match topology.get(*at) {
                Some(at) if may_enter => self.enter(crossing, topology, at, batch, picks),
                Some(at) => self.refuse_entry(at, batch, picks),
                None => {}
            }
        }
    }

    /// Exchanges its scratch memory for that of `pass`, or back: that of the batch under way is in use.
    fn exchange(&mut self, pass: &mut Pass) {
        std::mem::swap(&mut self.picks, &mut pass.picks);
        std::mem::swap(&mut self.others, &mut pass.others);
        std::mem::swap(&mut self.floods, &mut pass.floods);
        // What is known of flows is of another batch.
        self.forget_flows();
    }

    /// They have passed enough routers, or there is no room for them.
    #[cold]
    fn refuse_entry(&self, at: &Member, batch: &Batch, picks: &[u16]) {
        self.count_drops(&at.port, picks.iter().map(|_| DropReason::Reentry));
        if at.port.capture.is_on() {
            let drops: Vec<_> = picks.iter().map(|pick| (*pick, DropReason::Reentry)).collect();
            at.port.capture.egress(batch, picks, &drops);
        }
    }

    /// `picks` of `batch` enter the router by `at`.
    fn enter(
        &mut self,
        crossing: &mut Crossing,
        topology: &Topology,
        at: &Member,
        batch: &Batch,
        picks: &[u16],
    ) {
        let Crossing { epoch, origin, entering, desk, leaving, .. } = crossing;
        let Attach::Gateway(router, _) = &at.attach else { return };
        let (left, bytes) = entering.take(batch, picks);
        let frames = entering.batch.len() as u64;
        at.port.counters.block(self.core).add_tally(&Tally { frames, bytes, ..Tally::default() });
        desk.next();
        self.exchange(entering);
        let Pass { batch, verdicts, .. } = entering;
        match self.seats.iter_mut().find(|seat| seat.is_of(router)) {
            Some(seat) => {
                let (epoch, core, sender) = (*epoch, self.core, *origin);
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
