//! Pass 1: each frame of a batch gets its destinations, from the wire or the switch that its sender is attached to.
//! Flooded frames are copied to all ports, as far as the sender's limits allow.

use std::time::Instant;

use super::deliver::{queues_of, Delivery};
use super::topology::{Attach, Member, Topology};
use crate::frame::{is_group, Batch, ALL};
use crate::port::{DropReason, Port, PortId};
use crate::switch::{Members, Switch, Verdicts};

impl Delivery {
    /// Decides on every frame of `batch`, which came from `source`, and delivers it. Returns how many frames were handed
    /// to ports: more than the batch has, if some went to several.
    pub(super) fn forward(
        &mut self,
        topology: &Topology,
        source: &Port,
        batch: &Batch,
        now: u32,
        verdicts: &mut Verdicts,
    ) -> usize {
        verdicts.clear();
        self.begin();
        // A port that is being removed is not in the topology any more, while its queues may still be served.
        match topology.get(source.id) {
            _ if source.is_silent() => {
                (0..batch.len()).for_each(|i| verdicts.drop(i, DropReason::LinkDown));
            }
            // Frames on a router go another way (`route`), and gateways have no queues (`crossing`).
            None | Some(Member { attach: Attach::Nothing | Attach::Router(_) | Attach::Gateway(..), .. }) => {
                (0..batch.len()).for_each(|i| verdicts.drop(i, DropReason::NoDestination));
            }
            Some(Member { attach: Attach::Wire(peer), .. }) => verdicts.wire(batch, source, *peer),
            Some(member @ Member { attach: Attach::Switch(switch), .. }) => {
                classify(switch, topology, member, batch, now, verdicts);
            }
        }
        self.spread(topology, source, batch, verdicts, true);
        self.deliveries
    }

    /// Delivers what the `verdicts` say of `batch`, which came from `source`, and has it captured there before, if that is wanted.
    pub(super) fn spread(
        &mut self,
        topology: &Topology,
        source: &Port,
        batch: &Batch,
        verdicts: &mut Verdicts,
        capture: bool,
    ) {
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        if verdicts.any_flood() {
            let member = topology.get(source.id);
            let everybody = member.map_or(&[][..], |member| &member.everybody);
            // A port without a peer is not there: a flooded frame that it does not get is no drop.
            let there =
                |id: &PortId| *id != source.id && topology.get(*id).is_some_and(|member| member.port.link());
            others.extend(everybody.iter().copied().filter(there));
            if let (Some(storm), false) =
                (member.and_then(|member| member.rules.storm.as_ref()), others.is_empty())
            {
                let mut gate = storm.open(Instant::now());
                let (frames, copies) = (batch.frames(), others.len());
                verdicts.limit_floods(|frame| gate.admit(frames[frame].dst(), copies));
            }
            verdicts.floods(&mut self.floods);
            if self.floods.is_empty() {
                // The limit has ended all of them: nobody gets its own frames together with a flood's.
                others.clear();
            }
            if others.is_empty() {
                self.floods
                    .iter()
                    .for_each(|pick| verdicts.drop(usize::from(*pick), DropReason::NoDestination));
                verdicts.forget_floods();
            } else {
                let copies = (others.len() as u64 - 1) * self.floods.len() as u64;
                source.counters.block(self.core).add_made(copies);
            }
        }
        if capture {
            source.capture.ingress(batch, verdicts.drops());
        }
        if verdicts.any_flood() {
            // A frame for a station that has not spoken yet is no storm: it is given what there is, as any other.
            self.floods.retain(|pick| is_group(batch.frame(*pick).dst()));
            for &id in &others {
                verdicts.picks(id, &mut self.picks);
                if self.floods.len() > 1 {
                    self.leave_room(topology, id, batch);
                }
                self.visit(topology, source, id, batch);
            }
        }
        for &id in verdicts.destinations() {
            // A port that was flooded has had its own frames among them.
            let id = PortId(id);
            if !others.contains(&id) {
                if verdicts.is_all_for_one(batch) {
                    self.picks.clear();
                    self.picks.extend_from_slice(&ALL[..batch.len()]);
                } else {
                    verdicts.picks_alone(id, &mut self.picks);
                }
                self.visit(topology, source, id, batch);
            }
        }
        if verdicts.seconds() > 0 {
            self.second_copies(topology, source, batch, verdicts);
        }
        self.others = others;
        if !verdicts.drops().is_empty() {
            self.count_drops(source, verdicts.drops().iter().map(|(_, reason)| *reason));
        }
    }

    /// Takes so many frames for groups out of `self.picks` that half of the buffers which port `id` has free now are
    /// left to others: a flood without end would have each as soon as it comes, and frames of other senders would have
    /// no chance. A lone frame finds whatever there is.
    fn leave_room(&mut self, topology: &Topology, id: PortId, batch: &Batch) {
        let Some(port) = topology.get(id).map(|member| &member.port) else { return };
        if port.overrun.rests() {
            // They are dropped for that.
            return;
        }
        // Where another core stands still they are dropped for that.
        let room = |queue| Some(self.ask(port, queue, None, |queue| queue.room())??.free as usize);
        let Some(free) = (0..queues_of(port)).filter_map(room).max() else { return };
        let Some(rest) = self.floods.get(free.div_ceil(2).max(1)..).filter(|rest| !rest.is_empty()) else {
            return;
        };
        self.picks.retain(|pick| rest.binary_search(pick).is_err());
        self.refuse(port, batch, rest, DropReason::RingFull);
    }

    /// Delivers frames for addresses that two ports have to the second of them.
    #[cold]
    fn second_copies(&mut self, topology: &Topology, source: &Port, batch: &Batch, verdicts: &mut Verdicts) {
        source.counters.block(self.core).add_made(verdicts.seconds() as u64);
        while let Some(id) = verdicts.take_seconds(&mut self.picks) {
            self.visit(topology, source, id, batch);
        }
    }
}

/// Has `switch` decide on each frame of `batch`, which came from `member`, a port on it.
#[inline]
pub(super) fn classify(
    switch: &Switch,
    topology: &Topology,
    member: &Member,
    batch: &Batch,
    now: u32,
    verdicts: &mut Verdicts,
) {
    let is_up = |id| topology.get(id).is_some_and(|member| member.port.link());
    let members = Members { ports: &member.everybody, is_up };
    switch.classify(batch, &member.port, &member.rules, now, &members, verdicts);
}
