//! Pass 2: each destination of a batch is visited once.
//!
//! Theory of operation. The destination's list of frames is handed to its egress queue under the port's
//! lock; with several queues a hash of the flow picks one, so that a flow stays in order. If some frames
//! ask for offloads that the receiver did not accept, `boundary` makes plain frames of them first.

use std::sync::Arc;
use std::time::Instant;

use super::boundary::Boundary;
use super::gate::Gate;
use super::pause::buffers;
use super::topology::{Member, Topology, View};
use super::watch::Beat;
use crate::frame::{is_group, Batch, Frame, MAX_BATCH};
use crate::port::{DropReason, Drops, Outcome, Port, PortId, Room, MAX_QUEUES};
use crate::switch::{Members, Verdicts};
use crate::wire::{flow_hash, Offloads};

use sidecore_abi::counters::MAX_PORTS;

/// The frames of a batch, all of them.
static ALL: [u16; MAX_BATCH] = {
    let mut all = [0; MAX_BATCH];
    let mut i = 0;
    while i < MAX_BATCH {
        #[expect(clippy::cast_possible_truncation, reason = "below MAX_BATCH")]
        {
            all[i] = i as u16;
        }
        i += 1;
    }
    all
};

/// What delivery needs besides the batch: scratch memory of one core.
pub(super) struct Delivery {
    core: usize,
    beat: Arc<Beat>,
    picks: Vec<u16>,
    by_queue: Vec<u16>,
    others: Vec<PortId>,
    /// Frames for everybody; once copies are counted, those for groups.
    floods: Vec<u16>,
    /// Frames that were handed to ports, for the batch under way.
    deliveries: usize,
    boundary: Boundary,
    /// Of the queue whose batch is under way, if it is on a wire to several queues.
    pub(super) gate: Option<Box<Gate>>,
}

impl Delivery {
    pub(super) fn new(core: usize, beat: Arc<Beat>) -> Delivery {
        Delivery {
            core,
            beat,
            picks: Vec::with_capacity(MAX_BATCH),
            by_queue: Vec::with_capacity(MAX_BATCH),
            others: Vec::with_capacity(MAX_PORTS),
            floods: Vec::with_capacity(MAX_BATCH),
            deliveries: 0,
            boundary: Boundary::new(),
            gate: None,
        }
    }

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
        self.deliveries = 0;
        // A port that is being removed is not in the topology any more, while its queues may still be served.
        let member = topology.get(source.id);
        let everybody: &[PortId] = match member {
            None | Some(Member { attach: View::Nothing, .. }) => {
                (0..batch.len()).for_each(|i| verdicts.drop(i, DropReason::NoDestination));
                &[]
            }
            Some(Member { attach: View::Wire(peer), .. }) => {
                verdicts.wire(batch, source, *peer);
                &[]
            }
            Some(Member { attach: View::Switch { switch, ports }, rules, .. }) => {
                let is_up = |id| topology.get(id).is_some_and(|member| member.port.link());
                let members = Members { ports, is_up };
                switch.classify(batch, source, rules, now, &members, verdicts);
                ports
            }
        };
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        if verdicts.any_flood() {
            // Who has no peer is not there: a flooded frame that it does not get is no drop.
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
        source.capture.ingress(batch, verdicts.drops());
        if verdicts.any_flood() {
            // A frame for a station that has not spoken yet is no storm: it is given what there is, as any other.
            self.floods.retain(|pick| is_group(batch.frames()[usize::from(*pick)].dst()));
            for &id in &others {
                verdicts.picks(id, &mut self.picks);
                if self.floods.len() > 1 {
                    self.leave_room(topology, id, batch);
                }
                self.visit(topology, source, id, batch);
            }
        }
        for &id in verdicts.destinations() {
            // Whoever was flooded has had its own frames among them.
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
        self.deliveries
    }

    /// Takes so many frames for groups out of `self.picks` that half of the buffers which port `id` has free now are
    /// left to others: a flood without end would have each as soon as it comes, and nobody else's frame a chance. A lone
    /// frame finds whatever there is.
    fn leave_room(&mut self, topology: &Topology, id: PortId, batch: &Batch) {
        let Some(port) = topology.get(id).map(|member| &member.port) else { return };
        let room = |queue| Some(port.egress(queue)?.as_mut()?.room()?.free as usize);
        let Some(free) = (0..queues_of(port)).filter_map(room).max() else { return };
        let Some(rest) = self.floods.get(free.div_ceil(2).max(1)..).filter(|rest| !rest.is_empty()) else {
            return;
        };
        self.picks.retain(|pick| rest.binary_search(pick).is_err());
        self.count_drops(port, rest.iter().map(|_| DropReason::RingFull));
        if port.capture.is_on() {
            let drops: Vec<_> = rest.iter().map(|pick| (*pick, DropReason::RingFull)).collect();
            port.capture.egress(batch, rest, &drops);
        }
    }

    /// Delivers frames for addresses that two ports have to the second of them.
    #[cold]
    fn second_copies(&mut self, topology: &Topology, source: &Port, batch: &Batch, verdicts: &mut Verdicts) {
        source.counters.block(self.core).add_made(verdicts.seconds() as u64);
        while let Some(id) = verdicts.take_seconds(&mut self.picks) {
            self.visit(topology, source, id, batch);
        }
    }

    /// The receiver at the other end of `source`'s wire, if it is on one.
    #[inline]
    pub(super) fn wired<'t>(topology: &'t Topology, source: &Port) -> Option<&'t Port> {
        let View::Wire(peer) = topology.get(source.id)?.attach else { return None };
        Some(&topology.get(peer)?.port)
    }

    /// What queue `queue` of `port` has room for. `None`: there is no telling.
    #[inline]
    pub(super) fn room(port: &Port, queue: usize) -> Option<Room> {
        port.egress(queue)?.as_mut()?.room()
    }

    /// Tries to deliver what the gate holds of `batch`, which came from `source`; whatever there is room for if it is
    /// `open`.
    pub(super) fn again(&mut self, topology: &Topology, source: &Port, batch: &Batch, open: bool) {
        let Some(gate) = &mut self.gate else { return };
        gate.again(open, &mut self.picks);
        match Self::wired(topology, source) {
            Some(port) => self.visit(topology, source, port.id, batch),
            // The wire is gone.
            None => self.count_drops(source, self.picks.iter().map(|_| DropReason::NoDestination)),
        }
    }

    fn count_drops(&self, port: &Port, reasons: impl Iterator<Item = DropReason>) {
        let mut drops = Drops::default();
        reasons.for_each(|reason| drops.add(reason, 1));
        port.counters.block(self.core).add_outcome(&Outcome { drops, ..Outcome::new() });
    }

    /// Gives `self.picks` of `batch` to port `id`.
    #[inline]
    fn visit(&mut self, topology: &Topology, source: &Port, id: PortId, batch: &Batch) {
        let picks = std::mem::take(&mut self.picks);
        self.deliveries += picks.len();
        match topology.get(id) {
            Some(member) if batch.any_offload => self.across(&member.port, batch, &picks),
            Some(member) => self.send_gated(&member.port, batch, &picks),
            None => self.count_drops(source, picks.iter().map(|_| DropReason::NoDestination)),
        }
        self.picks = picks;
    }

    /// Delivers frames that may need more than the receiver accepts.
    #[cold]
    fn across(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        let accepts = port.accepts();
        let fits = |pick: &u16| {
            let offload = &batch.frames()[usize::from(*pick)].offload;
            offload.required().without(accepts) == Offloads::NONE
        };
        let mut rest = picks;
        while let Some(first) = rest.first() {
            let same = fits(first);
            let run = rest.iter().take_while(|pick| fits(pick) == same).count();
            let (now, later) = rest.split_at(run);
            if same {
                self.send_gated(port, batch, now);
            } else {
                self.convert(port, batch, now);
            }
            rest = later;
        }
    }

    /// Delivers frames of which each needs something that the receiver does not accept.
    fn convert(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        let mut boundary = std::mem::take(&mut self.boundary);
        for &pick in picks {
            let frame = &batch.frames()[usize::from(pick)];
            let queue = queue_of(queues_of(port), frame).into();
            if let Some(gate) = &mut self.gate {
                if gate.split(queue, &[pick], || Self::room(port, queue), |_| buffers(frame)).is_empty() {
                    continue;
                }
            }
            if is_full(port, queue) {
                self.count_drops(port, std::iter::once(DropReason::RingFull));
                continue;
            }
            let made = boundary.convert(frame, batch.body(frame), port.accepts(), |plain, picks| {
                self.send(port, plain, picks);
            });
            match made {
                Ok(made) => port.counters.block(self.core).add_made(made.saturating_sub(1)),
                Err(_) => self.count_drops(port, std::iter::once(DropReason::CannotSegment)),
            }
        }
        self.boundary = boundary;
    }

    /// Hands `picks` of `batch` to the queues of `port`, or has the gate hold them.
    fn send_gated(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        self.share(port, batch, picks, true);
    }

    /// Hands `picks` of `batch` to the queues of `port`.
    fn send(&mut self, port: &Port, batch: &Batch, picks: &[u16]) {
        self.share(port, batch, picks, false);
    }

    #[inline]
    fn share(&mut self, port: &Port, batch: &Batch, picks: &[u16], gated: bool) {
        // Read once for all frames: queues come and go meanwhile, and a frame that were asked twice could be given to two
        // queues or to none. One that goes to a queue which is gone by then is counted there.
        let queues = queues_of(port);
        if queues <= 1 {
            return self.send_to(port, 0, batch, picks);
        }
        // Which queues there are frames for, and for which one each frame is: by its place in `picks`.
        let (mut used, mut of) = (0u32, [0u8; MAX_BATCH]);
        for (pick, of) in picks.iter().zip(&mut of) {
            *of = queue_of(queues, &batch.frames()[usize::from(*pick)]);
            used |= 1 << *of;
        }
        let mut mine = std::mem::take(&mut self.by_queue);
        while used != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "a bit's number")]
            let queue = used.trailing_zeros() as u8;
            used &= used - 1;
            mine.clear();
            mine.extend(picks.iter().zip(&of).filter(|(_, of)| **of == queue).map(|(pick, _)| *pick));
            let queue = usize::from(queue);
            let now = match &mut self.gate {
                Some(gate) if gated => {
                    let cost = |pick| buffers(&batch.frames()[usize::from(pick)]);
                    gate.split(queue, &mine, || Self::room(port, queue), cost)
                }
                _ => &mine,
            };
            if !now.is_empty() {
                self.send_to(port, queue, batch, now);
            }
        }
        self.by_queue = mine;
    }

    #[inline]
    fn send_to(&self, port: &Port, queue: usize, batch: &Batch, picks: &[u16]) {
        let mut outcome = Outcome::new();
        outcome.trace = port.capture.is_on().then(Vec::new);
        self.beat.towards(Some(port.id));
        match port.egress(queue).as_deref_mut() {
            Some(Some(queue)) => queue.send(batch, picks, &mut outcome),
            Some(None) | None => outcome.dropped_all(picks, DropReason::LinkDown),
        }
        self.beat.elsewhere();
        port.counters.block(self.core).add_outcome(&outcome);
        if let Some(drops) = &outcome.trace {
            port.capture.egress(batch, picks, drops);
        }
    }
}

/// Egress queues of `port` now.
#[inline]
fn queues_of(port: &Port) -> usize {
    port.egress_queues().min(MAX_QUEUES)
}

/// The queue of `queues` that takes `frame`: by its flow, so that a flow stays in order.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "below MAX_QUEUES")]
fn queue_of(queues: usize, frame: &Frame) -> u8 {
    match queues {
        0 | 1 => 0,
        queues => (flow_hash(&frame.head[..frame.head_len()]) as usize % queues) as u8,
    }
}

/// Whether the receiver gives queue `queue` no buffers: then nothing is worked out for it.
fn is_full(port: &Port, queue: usize) -> bool {
    port.egress(queue).is_some_and(|mut slot| slot.as_mut().is_some_and(|queue| queue.is_full()))
}

#[cfg(test)]
mod tests;
