//! The queues of a receiver at the end of a wire, each with its own patience.
//!
//! Theory of operation. For which of several queues a frame is, its flow says, and that is not known before
//! it has been fetched. So a batch is fetched whole, and each queue that it has frames for is asked for its
//! room then: what fits is delivered, and the rest is *held*, in its batch, in its order, in the sender's
//! memory. While frames are held their sender is asked for no more, so that no frame overtakes another of its
//! flow; but a queue that is stuck keeps only those frames waiting that are for it, or come behind such a
//! frame, and not a wire whose frames go elsewhere.
//!
//! A queue that gives no buffers for as long as the sender has patience is taken for dead, and that is
//! remembered of it alone: frames for it are dropped until it gives some again, and those for others pass. So
//! a stuck queue costs the wire one wait, and nothing from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::receiver::{buffers, Receiver};
use crate::graph::deliver::{queues_of, Delivery};
use crate::graph::effects::Effects;
use crate::packet::{Batch, MAX_BATCH};
use crate::port::{Port, Room, Wait, MAX_QUEUES};

/// What an ingress queue knows of the queues at the other end of its wire.
pub(in crate::graph) struct WireGate {
    /// Whose frames they are, and of which of its queues.
    port: Arc<Port>,
    index: usize,
    patience: Duration,
    receivers: [Receiver; MAX_QUEUES],
    /// Frames of the batch that are held, in its order.
    held: Vec<u16>,
}

impl WireGate {
    /// That of ingress queue `index` of `port`.
    pub(in crate::graph) fn new(port: &Arc<Port>, index: usize, patience: Duration) -> WireGate {
        WireGate {
            port: Arc::clone(port),
            index,
            patience,
            receivers: [Receiver::Ready; MAX_QUEUES],
            held: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Frames that are held.
    pub(in crate::graph) fn held(&self) -> usize {
        self.held.len()
    }

    /// All that was held is to be tried again: moves it to `picks`.
    pub(in crate::graph) fn again(&mut self, picks: &mut Vec<u16>) {
        picks.clear();
        picks.append(&mut self.held);
    }

    /// Leaves those of the frames that `delivery` has picked of `batch` which may go to `port` now, and holds
    /// the others.
    pub(in crate::graph) fn pass<E: Effects>(
        &mut self,
        delivery: &mut Delivery<E>,
        port: &Port,
        batch: &Batch,
    ) {
        let queues = queues_of(port);
        let (mut used, mut of) = (0u32, [0u8; MAX_BATCH]);
        for (pick, of) in delivery.picks.iter().zip(&mut of) {
            *of = delivery.flows.queue(queues, batch, *pick);
            used |= 1 << *of;
        }
        let (picks, now) = (std::mem::take(&mut delivery.picks), Instant::now());
        while used != 0 {
            let queue = used.trailing_zeros() as usize;
            used &= used - 1;
            let its =
                || picks.iter().zip(&of).filter(|(_, of)| usize::from(**of) == queue).map(|(pick, _)| *pick);
            let room = delivery.room(port, queue);
            let (most, wait) = self.admit(queue, room, its().map(|pick| buffers(batch.frame(pick))), now);
            if let Some(wait) = wait {
                self.port.waits.add(self.index, wait);
            }
            self.held.extend(its().skip(most));
        }
        delivery.picks = picks;
        if !self.held.is_empty() {
            self.held.sort_unstable();
            delivery.picks.retain(|pick| self.held.binary_search(pick).is_err());
        }
    }

    /// How many of the frames for `queue`, which take so many buffers each, may be delivered now if it has
    /// this `room`; all, if there is no telling. With it the wait that has ended.
    fn admit(
        &mut self,
        queue: usize,
        room: Option<Room>,
        buffers: impl Iterator<Item = u32>,
        now: Instant,
    ) -> (usize, Option<Wait>) {
        let Some(receiver) = self.receivers.get_mut(queue) else { return (usize::MAX, None) };
        let (mut fit, mut all) = (0, true);
        if let Some(room) = room {
            let mut free = room.free;
            for cost in buffers {
                // A ring that never has room for such a frame is given it at half: it does with it what it
                // can.
                let Some(left) = free.checked_sub(cost.min(room.size / 2).max(1)) else {
                    all = false;
                    break;
                };
                (free, fit) = (left, fit + 1);
            }
        }
        match all {
            true => (usize::MAX, receiver.is_ready(now)),
            false => receiver.is_full(fit, room.is_some_and(|room| room.free > 0), self.patience, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::CounterFile;
    use crate::port::{PortId, DEFAULT_MTU};

    const PATIENCE: Duration = Duration::from_millis(100);

    struct Rig {
        gate: WireGate,
        start: Instant,
        waits: Vec<(u64, bool)>,
    }

    impl Rig {
        fn new() -> Rig {
            let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "a");
            let port = Arc::new(Port::new(PortId(0), "a", counters, DEFAULT_MTU).unwrap());
            Rig { gate: WireGate::new(&port, 0, PATIENCE), start: Instant::now(), waits: Vec::new() }
        }

        /// `frames` of `buffers` for `queue`, which has `free` of 8, at `ms`.
        fn admit(&mut self, queue: usize, free: u32, (frames, buffers): (usize, u32), ms: u64) -> usize {
            let now = self.start + Duration::from_millis(ms);
            let costs = std::iter::repeat_n(buffers, frames);
            let (most, wait) = self.gate.admit(queue, Some(Room { free, size: 8 }), costs, now);
            let ms = |wait: Wait| (u64::try_from(wait.time.as_millis()).unwrap(), wait.given_up);
            self.waits.extend(wait.map(ms));
            most.min(frames)
        }
    }

    #[test]
    fn each_queue_has_its_own_patience() {
        let mut rig = Rig::new();
        assert_eq!(rig.admit(0, 8, (8, 1), 0), 8);
        assert_eq!(rig.admit(1, 0, (3, 1), 0), 0);
        assert_eq!(rig.admit(2, 2, (3, 1), 0), 2);
        assert_eq!(rig.admit(0, 8, (8, 1), 50), 8);
        assert_eq!(rig.admit(1, 0, (3, 1), 99), 0);
        assert_eq!(rig.waits, []);
        // One is given up, and stays so without another wait; the other one has moved on.
        assert_eq!(rig.admit(1, 0, (3, 1), 100), 3);
        assert_eq!(rig.admit(1, 0, (3, 1), 101), 3);
        assert_eq!(rig.admit(2, 1, (1, 1), 110), 1);
        assert_eq!(rig.waits, [(100, true), (110, false)]);
        // It gives buffers again, and then it is waited for again.
        assert_eq!(rig.admit(1, 2, (3, 1), 200), 2);
        assert_eq!(rig.admit(1, 0, (1, 1), 299), 0);
        assert_eq!(rig.admit(1, 0, (1, 1), 300), 1);
        assert_eq!(rig.waits[2..], [(100, true)]);
        assert_eq!(rig.gate.admit(7, None, std::iter::repeat_n(9, 9), rig.start), (usize::MAX, None));
    }

    #[test]
    fn large_frames_wait_for_what_they_take_and_small_rings_do_what_they_can() {
        let mut rig = Rig::new();
        assert_eq!(rig.admit(0, 6, (3, 3), 0), 2);
        // Half of the ring is all that is waited for.
        assert_eq!(rig.admit(0, 4, (1, 45), 1), 1);
        // One buffer at a time: after a tenth of the patience it is given a frame.
        assert_eq!(rig.admit(0, 1, (2, 4), 2), 0);
        assert_eq!(rig.admit(0, 1, (2, 4), 11), 0);
        assert_eq!(rig.admit(0, 1, (2, 4), 12), 1);
        assert_eq!(rig.admit(0, 0, (1, 4), 111), 0);
        assert_eq!(rig.waits, [(1, false), (10, false)]);
    }
}
