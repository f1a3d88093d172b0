//! A switch as a node: each frame goes to the port behind which its address was learned, or to all of the switch's ports, as
//! far as the sender's limits allow.

use std::time::Instant;

use super::deliver::{queues_of, Delivery};
use super::topology::{Member, Topology};
use crate::packet::{is_group, Batch, MAX_BATCH};
use crate::port::{DropReason, Port, PortId};
use crate::switch::{Members, Switch, Verdicts};

use sidecore_abi::counters::MAX_PORTS;

/// Has `switch` decide on each frame of `batch`, which came from `at`, a port on it.
#[inline]
pub(super) fn decide(
    switch: &Switch,
    topology: &Topology,
    at: &Member,
    batch: &Batch,
    now: u32,
    verdicts: &mut Verdicts,
) {
    let members = Members { here: &at.everybody, all: &topology.ports };
    switch.classify(batch, &at.port, at.policy.as_deref(), now, members, verdicts);
}

/// Frames of a batch that go to all ports, and the ports.
pub(super) struct Floods {
    to: Vec<PortId>,
    frames: Vec<u16>,
}

impl Floods {
    pub(super) fn new() -> Floods {
        Floods { to: Vec::with_capacity(MAX_PORTS), frames: Vec::with_capacity(MAX_BATCH) }
    }

    /// Finds who gets the frames of `batch` that the switch floods, which came from `at`, and which of them the limits end: those of
    /// `at`, and for stations that have gone also those of `sender`, whose frames came by a gateway. What a router asks a group
    /// is the router's: no sender's limit keeps others from being answered.
    #[cold]
    pub(super) fn find(
        &mut self,
        topology: &Topology,
        at: &Member,
        sender: PortId,
        batch: &Batch,
        verdicts: &mut Verdicts,
        core: usize,
    ) {
        let source = &at.port;
        // A port without a peer is not there: a flooded frame that it does not get is no drop.
        let there = |id: &PortId| *id != source.id && topology.ports.is_up(*id);
        self.to.clear();
        self.to.extend(at.everybody.iter().copied().filter(there));
        let (frames, copies) = (batch.frames(), self.to.len());
        let behind = topology.get(sender).filter(|behind| behind.port.id != source.id);
        for member in [Some(at), behind].into_iter().flatten().filter(|_| copies > 0) {
            let Some(storm) = member.policy.as_ref().and_then(|policy| policy.storm.as_ref()) else {
                continue;
            };
            let mut gate = storm.open(Instant::now());
            let own = member.port.id == source.id;
            verdicts.limit_floods(|frame| match frames[frame].dst() {
                dst if own || !is_group(dst) => gate.admit(dst, copies),
                _ => Ok(()),
            });
        }
        verdicts.floods(&mut self.frames);
        match self.to.len().checked_sub(1) {
            Some(more) if !self.frames.is_empty() => {
                source.counters.block(core).add_made((more * self.frames.len()) as u64);
            }
            _ => {
                // The limit has ended all of them, or there is no other port.
                self.frames
                    .iter()
                    .for_each(|pick| verdicts.drop(usize::from(*pick), DropReason::NoDestination));
                verdicts.forget_floods();
            }
        }
    }

    /// Delivers what the `verdicts` say of `batch`, which came from `source`: to each port its own frames, with the flooded ones
    /// among them in their order.
    #[cold]
    pub(super) fn spread(
        &mut self,
        delivery: &mut Delivery,
        topology: &Topology,
        source: &Port,
        batch: &Batch,
        verdicts: &mut Verdicts,
    ) {
        // A frame for a station that has not spoken yet is no storm: it may take each buffer that is free, as any other.
        self.frames.retain(|pick| is_group(batch.frame(*pick).dst()));
        for &id in &self.to {
            verdicts.picks(id, &mut delivery.picks);
            if let (true, Some(member)) = (self.frames.len() > 1, topology.get(id)) {
                self.leave_room(delivery, &member.port, batch);
            }
            delivery.visit(topology, source, id, batch);
        }
        delivery.spread(topology, source, batch, verdicts, &self.to);
    }

    /// Takes frames for groups out of what `port` is to get, until half of the buffers that it has free now are left to
    /// other frames: a flood without end would have each buffer as soon as it comes, and frames of other senders would
    /// have no chance. A lone frame may take any buffer.
    fn leave_room(&self, delivery: &mut Delivery, port: &Port, batch: &Batch) {
        if port.overrun.rests() {
            // Delivery drops all its frames as `Overrun`.
            return;
        }
        // A queue in which another core stands still has no say: delivery drops its frames as `ReceiverBusy`.
        let room = |queue| Some(delivery.ask(port, queue, None, |queue| queue.room())??.free as usize);
        let Some(free) = (0..queues_of(port)).filter_map(room).max() else { return };
        let Some(rest) = self.frames.get(free.div_ceil(2).max(1)..).filter(|rest| !rest.is_empty()) else {
            return;
        };
        delivery.picks.retain(|pick| rest.binary_search(pick).is_err());
        delivery.refuse(port, batch, rest, DropReason::RingFull);
    }
}
