//! Egress queues: frames on their way out of the switch, and the slots of a port in which I/O cores find
//! them.
//!
//! Theory of operation. Several I/O cores may deliver to one port. Each of its queues stands in a slot of its
//! own, behind a lock that is taken once per batch; a slot has a cache line to itself, so that cores that
//! deliver to different queues of a port do not meet. A queue is lent (`core::Lease`): its owner gets it back
//! with its type when no core is in it any more.
//!
//! A core that delivers may stand still in the receiver's memory, for as long as a VMM punches it out. Others
//! that have frames for the same receiver must not stand still with it ([`Patient`]): their frames are
//! dropped, or wait on their wire.
//!
//! Ingress queues: frames on their way into the switch.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::MutexGuard;
use std::time::Duration;

use crate::core::Lent;
use crate::mem::Patient;
use crate::observe::account::{Outcome, Tally};
use crate::observe::PortCounters;
use crate::packet::Batch;

/// Most egress queues of a port.
pub const MAX_QUEUES: usize = 16;

/// Frames on their way out of the switch. Reached under the port's lock, once per batch.
pub trait EgressQueue: Any + Send {
    /// Delivers the frames `picks` of `batch`, in this order, publishes them once and interrupts the receiver
    /// once if it is due. Every pick is either delivered or dropped with a reason. A queue whose memory can
    /// make it wait asks before each frame whether time is up ([`Outcome::is_late`]).
    ///
    /// A receiver that makes no progress costs next to nothing: once its ring is full, the rest of the picks
    /// is dropped ([`DropReason::RingFull`]) before a byte of them is touched.
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome);

    /// Whether nothing could be delivered now because the receiver gives no buffers. Asked before work on a
    /// frame that would be in vain; false if it is not known.
    fn is_full(&mut self) -> bool {
        false
    }

    /// Sends the interrupt that had to wait, if there is one and it may be sent now. True: it was.
    fn tend(&mut self) -> bool {
        false
    }

    /// The receiver's buffers, for a sender that waits for them; `None` if there is no telling, or they never
    /// end.
    fn room(&mut self) -> Option<Room> {
        None
    }

    /// Whether what a delivery takes depends on a peer's memory. At an interface of the host's it does not:
    /// there it is the kernel's work on the frames, and their sender's time. Asked once, when it is plugged
    /// in.
    fn is_a_peers(&self) -> bool {
        true
    }

    /// It is taken out of its port, and returns to its owner: what uses it without the port must not do so
    /// any more when this returns.
    fn unplugged(&mut self) {}
}

/// Buffers of a receiver: each takes a frame of usual size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Those that wait to be filled.
    pub free: u32,
    /// All that the ring can have.
    pub size: u32,
}

impl Room {
    /// What is left of it where only `most` buffers may be filled.
    #[must_use]
    pub fn within(self, most: u32) -> Room {
        Room { free: self.free.saturating_sub(self.size.saturating_sub(most)), size: self.size.min(most) }
    }
}

/// A queue in its slot.
pub struct Plugged {
    /// Which of all that were ever plugged in here.
    serial: u64,
    is_a_peers: bool,
    queue: Lent<dyn EgressQueue>,
}

impl Deref for Plugged {
    type Target = dyn EgressQueue;

    fn deref(&self) -> &Self::Target {
        &*self.queue
    }
}

impl DerefMut for Plugged {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.queue
    }
}

impl Plugged {
    /// Whether the time of a delivery to it is looked at: see [`EgressQueue::is_a_peers`].
    pub fn is_timed(&self) -> bool {
        self.is_a_peers
    }

    /// Gives it back to its owner.
    fn return_to_owner(mut self) {
        self.queue.unplugged();
        self.queue.map(|queue| queue as Box<dyn Any + Send>).return_to_owner();
    }
}

/// The slots of a port.
#[derive(Default)]
pub(super) struct EgressSlots {
    slots: [EgressSlot; MAX_QUEUES],
    serial: AtomicU64,
}

#[derive(Default)]
#[repr(align(64))]
struct EgressSlot(Patient<Option<Plugged>>);

/// What an I/O core finds where it looks for an egress queue.
pub enum Reached<'p> {
    /// The slot, under its lock.
    Slot(MutexGuard<'p, Option<Plugged>>),
    /// Another core stands still in it.
    Busy,
    /// There is no such slot.
    Nowhere,
}

impl EgressSlots {
    /// The slot `index` under its lock, however long that takes: for threads that are no I/O cores.
    pub(super) fn lock(&self, index: usize) -> Option<MutexGuard<'_, Option<Plugged>>> {
        Some(self.slots.get(index)?.0.lock())
    }

    /// The slot `index` under its lock, for an I/O core: it does not wait for one that stands still.
    pub(super) fn reach(&self, index: usize) -> Reached<'_> {
        let Some(slot) = self.slots.get(index) else { return Reached::Nowhere };
        slot.0.reach().map_or(Reached::Busy, Reached::Slot)
    }

    /// Puts `queue` into slot `index`, and returns the one that was there to its owner. The number by which
    /// it is unplugged.
    pub(super) fn plug(&self, index: usize, queue: Lent<dyn EgressQueue>) -> u64 {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let plugged = Plugged { serial, is_a_peers: queue.is_a_peers(), queue };
        let old = self.lock(index).and_then(|mut slot| slot.replace(plugged));
        if let Some(old) = old {
            old.return_to_owner();
        }
        serial
    }

    /// Returns the queue that was plugged into slot `index` as number `serial` to its owner, if it still is
    /// there.
    pub(super) fn unplug(&self, index: usize, serial: u64) {
        let Some(mut slot) = self.lock(index) else { return };
        let plugged = slot.take_if(|plugged| plugged.serial == serial);
        drop(slot);
        if let Some(plugged) = plugged {
            plugged.return_to_owner();
        }
    }

    /// Returns all to their owners.
    pub(super) fn clear(&self) {
        for index in (0..MAX_QUEUES).rev() {
            let plugged = self.lock(index).and_then(|mut slot| slot.take());
            if let Some(plugged) = plugged {
                plugged.return_to_owner();
            }
        }
    }

    /// How many are used, from number 0 without gaps.
    pub(super) fn used(&self) -> usize {
        (0..MAX_QUEUES).take_while(|index| self.lock(*index).is_some_and(|slot| slot.is_some())).count()
    }
}

/// Frames on their way into the switch. One I/O core owns it; nothing here blocks.
pub trait IngressQueue: Send {
    /// Describes waiting frames in `batch` (which is empty), as many as there are and fit. What has to
    /// be dropped at once is counted in `tally`. Zero frames: nothing to do, or the queue has stopped
    /// itself and left a fault in its port.
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally);

    /// Whether there may be frames: what costs no more than a look at the sender's index. Asked where work
    /// would have to be done before they are fetched; true if it is not known.
    fn has_frames(&mut self) -> bool {
        true
    }

    /// Called instead of `fetch` while frames of the last one wait for their receiver: what is to be done in
    /// time, but neither takes frames nor gives any back.
    fn tend(&mut self, tally: &mut Tally) {
        let _ = tally;
    }

    /// What the last `fetch` brought to another port by itself, without a frame in `batch`; for that port's
    /// counters.
    fn passed(&mut self) -> Option<(PortCounters, Outcome)> {
        None
    }

    /// Gives the sender back what the last `fetch` took: its frames have been delivered or dropped.
    /// Called after every `fetch` that took any (`graph::ingress` sees to it by type).
    fn release(&mut self, tally: &mut Tally);

    /// Asks for kicks (before the core sleeps) or declines them (while it polls). After asking, true
    /// means that frames are waiting already and the core must not sleep.
    fn want_kicks(&mut self, on: bool) -> bool;

    /// A descriptor that becomes readable when a kick or a frame arrives: what a sleeping core waits for,
    /// edge-triggered. `None` if there is none, or the queue has stopped itself.
    fn kick_fd(&self) -> Option<BorrowedFd<'_>>;

    /// A second descriptor of that kind: what else has to be looked at in time has come nearer.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How a poll that finds nothing compares with reading one cache line: true if it costs a system
    /// call, so that the core asks less often.
    fn poll_is_costly(&self) -> bool {
        false
    }

    /// How long a core that serves this queue may sleep without looking at it, for queues whose work can
    /// come without a kick, or at a set time. Asked after `want_kicks`; `None`: until it is kicked.
    fn longest_sleep(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::Home;

    struct Noted(Arc<AtomicU64>);

    impl EgressQueue for Noted {
        fn send(&mut self, _: &Batch, _: &[u16], _: &mut Outcome) {}

        fn unplugged(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Also where its owner does not take it back: a pipe's other end must not go on with what was deleted.
    #[test]
    fn a_queue_learns_that_it_was_taken_out_whoever_does_so() {
        let (slots, count) = (EgressSlots::default(), Arc::<AtomicU64>::default());
        let mut homes = Vec::new();
        let mut plug = |index| {
            let home = Home::<Noted>::default();
            let lent = home.lend(Box::new(Noted(Arc::clone(&count))) as Box<dyn EgressQueue>);
            homes.push(home);
            slots.plug(index, lent)
        };
        let seen = || count.load(Ordering::Relaxed);
        let serial = plug(0);
        slots.unplug(0, serial);
        assert_eq!(seen(), 1);
        plug(0);
        plug(1);
        plug(1);
        assert_eq!(seen(), 2, "the first one in slot 1");
        slots.clear();
        assert_eq!((seen(), slots.used()), (4, 0));
    }
}
