//! A switch as a node: each frame goes to the port behind which its address was learned, or to all of the
//! switch's ports, as far as the sender's limits allow.

use std::time::Instant;

use super::deliver::{queues_of, Delivery};
use super::effects::Effects;
use super::topology::{Member, Source, Topology};
use crate::packet::{is_group, Batch, MAX_BATCH};
use crate::policy::BatchVlans;
use crate::port::{DropReason, Port, PortId};
use crate::switch::Verdicts;

use sidecore_abi::counters::MAX_PORTS;

/// Whether port `id` carries the VLAN of frame `pick`.
fn carries(topology: &Topology, id: PortId, vlans: &BatchVlans, pick: u16) -> bool {
    topology.get(id).is_some_and(|member| member.carries(vlans.of(pick).number()))
}

/// Frames of a batch that go to all ports, and the ports.
pub(super) struct Floods {
    /// The ports that get flooded frames.
    pub(super) to: Vec<PortId>,
    frames: Vec<u16>,
    /// Those for which a port has no room.
    late: Vec<u16>,
}

impl Floods {
    pub(super) fn new() -> Floods {
        let frames = || Vec::with_capacity(MAX_BATCH);
        Floods { to: Vec::with_capacity(MAX_PORTS), frames: frames(), late: frames() }
    }

    /// Finds who gets the frames of `batch` that the switch floods, which came from `at`, and which of them
    /// the limits end: those of `at`, and for stations that have gone also those of `sender`, whose frames
    /// came by a gateway. What a router asks a group is the router's: no sender's limit keeps others from
    /// being answered.
    #[cold]
    pub(super) fn find<E: Effects>(
        &mut self,
        topology: &Topology,
        at: &Member,
        sender: PortId,
        batch: &Batch,
        delivery: &Delivery<E>,
        verdicts: &mut Verdicts,
    ) {
        let (source, vlans) = (&at.port, &delivery.vlans);
        // A port without a peer is not there: a flooded frame that it does not get is no drop.
        let alike = vlans.are_alike();
        // All frames of one VLAN go to ports that carry it.
        let one = vlans.is_on() && alike;
        let there = |id: &PortId| {
            *id != source.id && topology.ports.is_up(*id) && (!one || carries(topology, *id, vlans, 0))
        };
        self.to.clear();
        self.to.extend(at.everybody.iter().copied().filter(there));
        let (frames, to) = (batch.frames(), &self.to);
        let copies = |frame: u16| match alike {
            true => to.len(),
            false => to.iter().filter(|id| carries(topology, **id, vlans, frame)).count(),
        };
        let behind = topology.get(sender).filter(|behind| behind.port.id != source.id);
        for member in [Some(at), behind].into_iter().flatten().filter(|_| !to.is_empty()) {
            let Some(storm) = member.policy.as_ref().and_then(|policy| policy.storm.as_ref()) else {
                continue;
            };
            let mut gate = storm.open(Instant::now(), E::LIVE);
            let own = member.port.id == source.id;
            verdicts.limit_floods(|frame| match frames[usize::from(frame)].dst() {
                dst if own || !is_group(dst) => gate.admit(dst, copies(frame)),
                _ => Ok(()),
            });
        }
        let mut made = 0;
        // There may be no other port, or none that carries a frame's VLAN.
        verdicts.limit_floods(|frame| match copies(frame).checked_sub(1) {
            Some(more) => {
                made += more;
                Ok(())
            }
            None => Err(DropReason::NoDestination),
        });
        verdicts.floods(&mut self.frames);
        delivery.made(source, made);
    }

    /// Delivers what the `verdicts` say of `batch`, which came from `source`: to each port its own frames,
    /// with the flooded ones among them in their order.
    #[cold]
    pub(super) fn spread<E: Effects>(
        &mut self,
        delivery: &mut Delivery<E>,
        source: Source<'_>,
        batch: &Batch,
        verdicts: &mut Verdicts,
    ) {
        // A frame for a station that has not spoken yet is no storm: it may take each buffer that is free, as
        // any other.
        self.frames.retain(|pick| is_group(batch.frame(*pick).dst()));
        for at in 0..self.to.len() {
            let id = self.to[at];
            let Delivery { picks, vlans, .. } = &mut *delivery;
            let topology = source.topology;
            match vlans.are_alike() {
                true => verdicts.picks(id, picks, |_| true),
                false => verdicts.picks(id, picks, |pick| carries(topology, id, vlans, pick)),
            }
            if let (true, Some(member)) = (self.frames.len() > 1, topology.get(id)) {
                self.leave_room(delivery, &member.port, batch);
            }
            delivery.visit(source, id, batch);
        }
        delivery.spread(source, batch, verdicts, &self.to);
    }

    /// Takes frames for groups out of what `port` is to get, until half of the buffers that it has free now
    /// are left to other frames: a flood without end would have each buffer as soon as it comes, and frames
    /// of other senders would have no chance. A lone frame may take any buffer.
    fn leave_room<E: Effects>(&mut self, delivery: &mut Delivery<E>, port: &Port, batch: &Batch) {
        if port.overrun.rests() {
            // Delivery drops all its frames as `Overrun`.
            return;
        }
        // A queue in which another core stands still has no say: delivery drops its frames as `ReceiverBusy`.
        let room = |queue| Some(delivery.ask(port, queue, None, |queue| queue.room())??.free as usize);
        let Some(free) = (0..queues_of(port)).filter_map(room).max() else { return };
        let Floods { frames, late, .. } = self;
        let mut room = free.div_ceil(2).max(1);
        if room >= frames.len() {
            return;
        }
        late.clear();
        delivery.picks.retain(|pick| {
            let flooded = frames.binary_search(pick).is_ok();
            if flooded && room == 0 {
                late.push(*pick);
                return false;
            }
            room -= usize::from(flooded);
            true
        });
        delivery.refuse(port, batch.only(late), DropReason::RingFull);
    }
}
