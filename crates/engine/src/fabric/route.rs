//! Pass 1 for ports on a router: each frame of a batch gets its destination and its new head, and what the router says itself is
//! delivered behind them.
//!
//! Frames are captured as they came, then rewritten. A frame that the router makes counts as *made* at the port whose batch
//! gave rise to it.

use super::deliver::Delivery;
use super::local::Local;
use super::topology::{Attach, Member, Topology};
use crate::frame::{Batch, ALL};
use crate::port::{DropReason, Port, PortId};
use crate::router::{Now, Seat};
use crate::switch::Verdicts;

impl Local {
    /// Decides on every frame of the batch at hand, which came from `source`, a port on a router, and delivers it. Returns how
    /// many frames were handed to ports.
    pub(super) fn route(&mut self, source: &Port, seconds: u32) -> usize {
        let Local { number, epoch, topology, batch, verdicts, delivery, desk, .. } = self;
        verdicts.clear();
        delivery.begin();
        desk.clear();
        let seat = match topology.get(source.id) {
            Some(Member { attach: Attach::Router(router), .. }) => {
                delivery.seats.iter_mut().find(|it| it.is_of(router))
            }
            _ => None,
        };
        match seat {
            _ if source.is_silent() => refuse(batch, verdicts, DropReason::LinkDown),
            None => refuse(batch, verdicts, DropReason::NoDestination),
            Some(seat) => {
                let now = Now { seconds, epoch: *epoch, core: *number, sender: source.id };
                Seat::decide(seat, batch, source, &now, desk, verdicts);
            }
        }
        source.capture.ingress(batch, verdicts.drops());
        desk.rewrite(batch);
        delivery.each(topology, source, batch, verdicts);
        let (made, to) = desk.made();
        if !made.is_empty() {
            delivery.made(topology, source, made, to);
        }
        if !verdicts.drops().is_empty() {
            delivery.count_drops(source, verdicts.drops().iter().map(|(_, reason)| *reason));
        }
        delivery.deliveries
    }
}

fn refuse(batch: &Batch, verdicts: &mut Verdicts, why: DropReason) {
    (0..batch.len()).for_each(|frame| verdicts.drop(frame, why));
}

impl Delivery {
    /// Visits each destination of a batch whose frames have one each.
    fn each(&mut self, topology: &Topology, source: &Port, batch: &Batch, verdicts: &Verdicts) {
        for &id in verdicts.destinations() {
            let id = PortId(id);
            if verdicts.is_all_for_one(batch) {
                self.picks.clear();
                self.picks.extend_from_slice(&ALL[..batch.len()]);
            } else {
                verdicts.picks_alone(id, &mut self.picks);
            }
            self.visit(topology, source, id, batch);
        }
    }

    /// Delivers frames that the router made, each to its port. All that one port gets are one delivery, which ends when its time is up.
    #[cold]
    fn made(&mut self, topology: &Topology, source: &Port, made: &Batch, to: &[PortId]) {
        source.counters.block(self.core).add_made(to.len() as u64);
        self.forget_flows();
        for (at, id) in to.iter().enumerate().filter(|(at, id)| !to.iter().take(*at).any(|it| it == *id)) {
            self.picks.clear();
            let its = ALL.iter().zip(to).skip(at).filter(|(_, other)| *other == id);
            self.picks.extend(its.map(|(pick, _)| *pick));
            self.visit(topology, source, *id, made);
        }
    }
}
