//! Ports: what a switch sees of a guest, a host interface or a native program.
//!
//! A [`Port`] is shared by everybody: its name and counters, its MTU, whether its link is up, and the
//! egress side. The two directions differ in who owns them:
//!
//! * an **ingress queue** ([`IngressQueue`]) belongs to one I/O core, which polls it. Whoever wants to
//!   change it asks that core to hand it back (`core::Cores::take_back`), which also proves that no
//!   batch of that queue is under way;
//! * an **egress queue** ([`EgressQueue`]) may be reached from several I/O cores and sits behind a
//!   lock that is taken once per batch. Whoever wants to change it takes the lock and swaps it out.
//!
//! That is the whole rule for memory that can vanish: a queue holds the `Arc` of the map that its
//! pointers lead into, and the map is unmapped when the last queue that was built on it is gone.

mod attachment;
mod claims;
mod links;
mod mtu;
mod slow;
mod talk;
mod waits;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub use attachment::{Attachment, AttachmentStatus, InterruptCount, Peer, QueueKey, QueueStatus, Scheduler};

pub use sidecore_abi::counters::DropReason;

pub use crate::fault::{Fault, FaultCell};

pub use claims::{ClaimCount, Claims};
pub use links::LinkEvents;
pub use slow::{Slow, SlowCount, SLOW_BATCH};
pub use talk::{Talk, TalkCount, BURST};
pub use waits::{Wait, WaitCount, Waits};

use crate::frame::{Batch, MAX_BATCH};
use crate::mem::Terms;
pub use crate::mem::{Bell, BellCount};
use crate::observe::capture::{CapturePoint, CaptureSlot};
use crate::observe::PortCounters;
use crate::wire::offload::Offloads;

/// A port's number: its place in the counters file and in the switch's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// Most egress queues of a port.
pub const MAX_QUEUES: usize = 16;
/// MTU of a port that was not given one, in bytes of the Ethernet payload.
pub const DEFAULT_MTU: u32 = 1500;

/// Frames on their way into the switch. One I/O core owns it; nothing here blocks.
pub trait IngressQueue: Send {
    /// Describes waiting frames in `batch` (which is empty), as many as there are and fit. What has to
    /// be dropped at once is counted in `tally`. Zero frames: nothing to do, or the queue has stopped
    /// itself and left a fault in its port.
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally);

    /// Whether there may be frames: what costs no more than a look at the sender's index. Asked where work would have to be
    /// done before they are fetched; true if it is not known.
    fn has_frames(&mut self) -> bool {
        true
    }

    /// Called instead of `fetch` while frames of the last one wait for their receiver: what is to be done in time, but
    /// neither takes frames nor gives any back.
    fn tend(&mut self, tally: &mut Tally) {
        let _ = tally;
    }

    /// Gives the sender back what the last `fetch` took: its frames have been delivered or dropped.
    /// Called after every `fetch`.
    fn release(&mut self, tally: &mut Tally);

    /// Asks for kicks (before the core sleeps) or declines them (while it polls). After asking, true
    /// means that frames are waiting already and the core must not sleep.
    fn want_kicks(&mut self, on: bool) -> bool;

    /// A descriptor that becomes readable when a kick or a frame arrives: what a sleeping core waits for,
    /// edge-triggered. `None` if there is none, or the queue has stopped itself.
    fn kick_fd(&self) -> Option<BorrowedFd<'_>>;

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

    /// The queue itself again, for the owner that takes it back from a core.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// Frames on their way out of the switch. Reached under the port's lock, once per batch.
pub trait EgressQueue: Send {
    /// Delivers the frames `picks` of `batch`, in this order, publishes them once and interrupts the
    /// receiver once if it is due. Every pick is either delivered or dropped with a reason.
    ///
    /// A receiver that makes no progress costs next to nothing: once its ring is full, the rest of the picks is
    /// dropped ([`DropReason::RingFull`]) before a byte of them is touched.
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome);

    /// Whether nothing could be delivered now because the receiver gives no buffers. Asked before work on a frame
    /// that would be in vain; false if it is not known.
    fn is_full(&mut self) -> bool {
        false
    }

    /// The receiver's buffers, for a sender that waits for them; `None` if there is no telling, or they never end.
    fn room(&mut self) -> Option<Room> {
        None
    }

    /// The queue itself again, for the owner that swaps it out.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// Buffers of a receiver: each takes a frame of usual size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Those that wait to be filled.
    pub free: u32,
    /// Those of the whole ring.
    pub size: u32,
}

/// What happened while frames were fetched; the core adds it to the port's counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Frames taken, including those dropped on the spot.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Kicks that were drained.
    pub kicks: u64,
    /// Interrupts that told the sender of buffers given back.
    pub interrupts: u64,
    /// Frames dropped on the spot, by reason.
    pub drops: Drops,
}

/// Numbers of dropped frames by reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drops {
    counts: [u32; sidecore_abi::counters::DROP_PLACES],
    any: bool,
}

impl Drops {
    /// Counts `n` drops.
    #[inline]
    pub fn add(&mut self, reason: DropReason, n: u32) {
        self.counts[reason as usize] += n;
        self.any = true;
    }

    /// Counts those of `others`, too.
    pub fn merge(&mut self, others: &Drops) {
        self.counts.iter_mut().zip(&others.counts).for_each(|(all, n)| *all += n);
        self.any |= others.any;
    }

    /// Whether anything was dropped.
    #[inline]
    pub fn any(&self) -> bool {
        self.any
    }

    /// The counts, in the order of the reasons' numbers.
    #[inline]
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }
}

/// What became of the frames given to an egress queue.
#[derive(Debug)]
pub struct Outcome {
    /// Frames delivered.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Frames dropped, by reason.
    pub drops: Drops,
    /// While a capture runs: each dropped pick with its reason.
    pub trace: Option<Vec<(u16, DropReason)>>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self::new()
    }
}

impl Outcome {
    /// Nothing yet.
    pub fn new() -> Outcome {
        Outcome { frames: 0, bytes: 0, interrupts: 0, drops: Drops::default(), trace: None }
    }

    /// Counts a delivered frame.
    #[inline]
    pub fn delivered(&mut self, bytes: u32) {
        self.frames += 1;
        self.bytes += u64::from(bytes);
    }

    /// Counts a dropped pick.
    #[inline]
    pub fn dropped(&mut self, pick: u16, reason: DropReason) {
        self.drops.add(reason, 1);
        if let Some(trace) = &mut self.trace {
            if trace.len() < MAX_BATCH {
                trace.push((pick, reason));
            }
        }
    }

    /// Counts all of `picks` as dropped.
    pub fn dropped_all(&mut self, picks: &[u16], reason: DropReason) {
        for &pick in picks {
            self.dropped(pick, reason);
        }
    }
}

type Slot = Mutex<Option<Box<dyn EgressQueue>>>;

/// An attachment to a switch.
pub struct Port {
    /// Its number.
    pub id: PortId,
    /// Its name, as the operator gave it.
    pub name: String,
    /// Its counters in the shared file.
    pub counters: PortCounters,
    /// What stopped it, if anything did.
    pub fault: FaultCell,
    /// Its uses of addresses that live elsewhere.
    pub claims: Claims,
    /// Waits of its ingress queues.
    pub waits: Waits,
    /// What it costs its I/O cores beyond what is usual.
    pub slow: Slow,
    /// What its conversation costs others.
    pub talk: Talk,
    /// On which its peer gives memory.
    pub terms: Terms,
    /// Who sends its interrupts when they are slow.
    pub bell: Bell,
    /// Who captures what passes.
    pub capture: CaptureSlot,
    /// What the operator allows.
    most: AtomicU32,
    /// What holds: the peer may have lowered it.
    mtu: AtomicU32,
    link: AtomicBool,
    held: AtomicBool,
    carrier: AtomicBool,
    events: OnceLock<Arc<LinkEvents>>,
    accepts: AtomicU32,
    queues: AtomicUsize,
    egress: [Slot; MAX_QUEUES],
}

impl Port {
    /// A port without queues and with its link down.
    pub fn new(id: PortId, name: &str, counters: PortCounters, mtu: u32) -> std::io::Result<Port> {
        Ok(Port {
            id,
            name: name.to_owned(),
            counters,
            fault: FaultCell::new()?,
            claims: Claims::default(),
            waits: Waits::default(),
            slow: Slow::default(),
            talk: Talk::default(),
            terms: Terms::default(),
            bell: Bell::new(name),
            capture: CaptureSlot::default(),
            most: AtomicU32::new(mtu),
            mtu: AtomicU32::new(mtu),
            link: AtomicBool::new(false),
            held: AtomicBool::new(false),
            carrier: AtomicBool::new(true),
            events: OnceLock::new(),
            accepts: AtomicU32::new(0),
            queues: AtomicUsize::new(0),
            egress: [const { Mutex::new(None) }; MAX_QUEUES],
        })
    }

    /// Bytes of Ethernet payload that the port may send.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Whether frames can be delivered.
    #[inline]
    pub fn link(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// Whether somebody is behind it who would receive: the link is up, or is down only because the device
    /// was told that there is no carrier. What the other end of a wire follows.
    pub fn is_ready(&self) -> bool {
        self.link.load(Ordering::Acquire) || self.held.load(Ordering::Acquire)
    }

    /// Notes that the device would receive if it had a carrier; for those that give their egress queue up
    /// without one.
    pub fn set_held(&self, held: bool) {
        if self.held.swap(held, Ordering::AcqRel) != held {
            self.link_changed();
        }
    }

    /// The carrier that the device should show: down while the other end of its wire is.
    pub fn carrier(&self) -> bool {
        self.carrier.load(Ordering::Acquire)
    }

    /// Changes it. Whoever does also tells the [`Attachment`].
    pub fn set_carrier(&self, up: bool) {
        self.carrier.store(up, Ordering::Release);
    }

    /// Has changes of [`Port::is_ready`] told to `events`, from now on; once in a port's life.
    pub fn watch_link(&self, events: Arc<LinkEvents>) {
        let _ = self.events.set(events);
    }

    fn link_changed(&self) {
        if let Some(events) = self.events.get() {
            events.raise();
        }
    }

    /// The offloads that its receiver takes over; the switch makes up for the others.
    #[inline]
    pub fn accepts(&self) -> Offloads {
        Offloads::from_bits(self.accepts.load(Ordering::Relaxed))
    }

    /// Sets what the receiver takes over; before the queues that need it are swapped in.
    pub fn set_accepts(&self, offloads: Offloads) {
        self.accepts.store(offloads.bits(), Ordering::Relaxed);
    }

    /// Egress queues in use, from number 0 without gaps; 0 while there is no peer.
    #[inline]
    pub fn egress_queues(&self) -> usize {
        self.queues.load(Ordering::Acquire)
    }

    /// Has the port say that it has `queues`: what another thread that takes some away does at any moment.
    #[cfg(test)]
    pub(crate) fn say_queues(&self, queues: usize) {
        self.queues.store(queues, Ordering::Release);
    }

    /// The egress queue `index` under its lock.
    #[inline]
    pub fn egress(&self, index: usize) -> Option<MutexGuard<'_, Option<Box<dyn EgressQueue>>>> {
        // A panic while the lock was held has ended that batch; the queue itself is still whole.
        Some(self.egress.get(index)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `queue` into place `index` and returns what was there. When this returns, no I/O core
    /// uses the old one any more. The link is up while queue 0 is there.
    pub fn swap_egress(
        &self,
        index: usize,
        queue: Option<Box<dyn EgressQueue>>,
    ) -> Option<Box<dyn EgressQueue>> {
        // Whoever delivers here now waits for it.
        self.talk.changed(1);
        let mut slot = self.egress(index)?;
        let old = std::mem::replace(&mut *slot, queue);
        drop(slot);
        let used = (0..MAX_QUEUES).take_while(|&i| self.egress(i).is_some_and(|q| q.is_some())).count();
        self.queues.store(used, Ordering::Release);
        if self.link.swap(used > 0, Ordering::AcqRel) != (used > 0) {
            self.link_changed();
        }
        old
    }
}

impl CapturePoint for Port {
    fn capture_name(&self) -> &str {
        &self.name
    }

    fn capture_slot(&self) -> &CaptureSlot {
        &self.capture
    }
}
