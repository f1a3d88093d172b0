//! The queues of a receiver at the end of a wire, each with its own patience.
//!
//! Theory of operation. For which of several queues a frame is, its flow says, and that is not known before it has been
//! fetched. So a batch is fetched whole, and each queue that it has frames for is asked for its room then: what fits is
//! delivered, and the rest is *held*, in its batch, in its order, in the sender's memory. While frames are held their sender
//! is asked for no more, so that no frame overtakes another of its flow; but a queue that is stuck keeps only those frames
//! waiting that are for it, or come behind such a frame, and not a wire whose frames go elsewhere.
//!
//! A queue that gives no buffers for as long as the sender has patience is taken for dead, and that is remembered of it
//! alone: frames for it are dropped until it gives some again, and those for others pass. So a stuck queue costs the wire one
//! wait, and nothing from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::frame::MAX_BATCH;
use crate::port::{Port, Room, Wait, MAX_QUEUES};

/// The part of its patience for which a sender waits for a second buffer, when a receiver gives one at a time and the last
/// frames were large.
pub(super) const FOR_MORE: u32 = 10;

/// What a queue is taken for.
#[derive(Clone, Copy)]
enum Receiver {
    /// It has buffers, as far as is known.
    Ready,
    /// Frames have waited for it since then.
    Full(Instant),
    /// It gives none any more.
    Dead,
}

/// What an ingress queue knows of the queues at the other end of its wire.
pub(in crate::fabric) struct WireGate {
    /// Whose frames they are, and of which of its queues.
    port: Arc<Port>,
    index: usize,
    patience: Duration,
    receivers: [Receiver; MAX_QUEUES],
    /// Frames of the batch that are held; those for one queue in order.
    held: Vec<u16>,
    /// The queues that they are for, a bit each.
    holding: u32,
    /// Everything passes, whether there is room or not.
    open: bool,
}

/// A queue's bit.
fn bit(queue: usize) -> u32 {
    u32::try_from(queue).ok().and_then(|queue| 1u32.checked_shl(queue)).unwrap_or(0)
}

impl WireGate {
    /// That of ingress queue `index` of `port`.
    pub(in crate::fabric) fn new(port: &Arc<Port>, index: usize, patience: Duration) -> WireGate {
        WireGate {
            port: Arc::clone(port),
            index,
            patience,
            receivers: [Receiver::Ready; MAX_QUEUES],
            held: Vec::with_capacity(MAX_BATCH),
            holding: 0,
            open: false,
        }
    }

    /// Frames that are held.
    pub(in crate::fabric) fn held(&self) -> usize {
        self.held.len()
    }

    /// All that was held is to be tried again: moves it to `picks`. `open`: it has waited long enough, and passes.
    pub(in crate::fabric) fn again(&mut self, open: bool, picks: &mut Vec<u16>) {
        picks.clear();
        picks.append(&mut self.held);
        (self.holding, self.open) = (0, open);
    }

    /// Whether it matters what `queue` has room for. It does not where all passes, nor behind others of the same flows.
    #[inline]
    pub(in crate::fabric) fn asks(&self, queue: usize) -> bool {
        !self.open && self.holding & bit(queue) == 0
    }

    /// Splits `picks`, all of them for `queue`: those of the first part may be delivered now, the others are held. `room`
    /// is what the queue has, if the gate [`asks`](WireGate::asks), and `buffers` says what a frame takes.
    pub(in crate::fabric) fn split<'p>(
        &mut self,
        queue: usize,
        picks: &'p [u16],
        room: Option<Room>,
        buffers: impl Fn(u16) -> u32,
    ) -> &'p [u16] {
        let pass = if self.open {
            picks.len()
        } else if !self.asks(queue) {
            // Behind others of its flow.
            0
        } else {
            let costs = picks.iter().map(|pick| buffers(*pick));
            let (port, index) = (Arc::clone(&self.port), self.index);
            self.admit(queue, room, costs, Instant::now(), |wait| port.waits.add(index, wait))
                .min(picks.len())
        };
        let (now, later) = picks.split_at(pass);
        if !later.is_empty() {
            self.holding |= bit(queue);
            self.held.extend_from_slice(later);
        }
        now
    }

    /// How many of the frames for `queue`, which take so many buffers each, may be delivered now if it has this `room`; all,
    /// if there is no telling. Those that may not are held. `over` learns of a wait that has ended.
    fn admit(
        &mut self,
        queue: usize,
        room: Option<Room>,
        buffers: impl Iterator<Item = u32>,
        now: Instant,
        mut over: impl FnMut(Wait),
    ) -> usize {
        let Some(receiver) = self.receivers.get_mut(queue) else { return usize::MAX };
        let mut end = |since: Instant, given_up| {
            over(Wait { time: now.saturating_duration_since(since), given_up });
        };
        let (mut fit, mut all) = (0, true);
        if let Some(room) = room {
            let mut free = room.free;
            for cost in buffers {
                // A ring that never has room for such a frame is given it at half: it does with it what it can.
                let Some(left) = free.checked_sub(cost.min(room.size / 2).max(1)) else {
                    all = false;
                    break;
                };
                (free, fit) = (left, fit + 1);
            }
        }
        if all {
            if let Receiver::Full(since) = *receiver {
                end(since, false);
            }
            *receiver = Receiver::Ready;
            return usize::MAX;
        }
        let free = room.is_some_and(|room| room.free > 0);
        match *receiver {
            Receiver::Dead if !free => return usize::MAX,
            Receiver::Full(since) if fit == 0 => {
                let waited = now.saturating_duration_since(since);
                let patience = if free { self.patience / FOR_MORE } else { self.patience };
                if waited < patience {
                    return 0;
                }
                end(since, !free);
                if !free {
                    *receiver = Receiver::Dead;
                    return usize::MAX;
                }
                // It gives one buffer at a time: it gets one frame at a time.
                fit = 1;
            }
            Receiver::Full(since) => end(since, false),
            Receiver::Ready | Receiver::Dead => {}
        }
        *receiver = Receiver::Full(now);
        fit
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
            let over = |wait: Wait| {
                self.waits.push((u64::try_from(wait.time.as_millis()).unwrap(), wait.given_up));
            };
            let costs = std::iter::repeat_n(buffers, frames);
            self.gate.admit(queue, Some(Room { free, size: 8 }), costs, now, over).min(frames)
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
        assert_eq!(
            rig.gate.admit(7, None, std::iter::repeat_n(9, 9), rig.start, |_| panic!("no wait")),
            usize::MAX
        );
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
