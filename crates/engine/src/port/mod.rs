//! Ports: a guest, a host interface or a native program, as a switch sees it.
//!
//! All threads share a [`Port`]: its name and counters, its MTU, whether its link is up, and the
//! egress side. The two directions differ in their owners:
//!
//! * an **ingress queue** ([`IngressQueue`]) is lent to one I/O core, which polls it. To change it, its
//!   owner takes it back ([`Lease`]), which also proves that no batch of that queue is in progress;
//! * an **egress queue** ([`EgressQueue`]) is lent to the port, may be reached from several I/O cores
//!   and is behind a lock that is taken once per batch. Its owner takes it back to change it, too.
//!
//! One rule covers memory that can vanish: a queue holds the `Arc` of the map that its
//! pointers lead into, and the map is unmapped when the last queue that was built on it is gone.

mod attachment;
mod egress;
mod interrupts;
mod message_limit;
mod private_memory;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

pub use attachment::{Attachment, AttachmentStatus, InterruptCount, Lack, LinkEvents, Peer, QueueStatus};

pub use crate::core::{Slow, SlowCount, Tenant};
pub use crate::observe::account::{DropReason, Drops, Outcome, PortId, Tally};
pub use crate::util::fault::{Fault, FaultCell};

pub use egress::{EgressQueue, IngressQueue, Plugged, Reached, Room, MAX_QUEUES};
pub use interrupts::{ClaimCount, Claims, QueueInterrupts, Wait, WaitCount, Waits};
pub use message_limit::{ConversationCount, MessageLimiter, BURST};

use self::private_memory::PrivateMemoryCheck;
use crate::core::{Home, Lease, Owner};
use crate::mem::{node_of, GuestMap, Piece, Terms};
pub use crate::mem::{Overrun, OverrunCount};
use crate::observe::capture::{CapturePoint, CaptureSlot};
use crate::observe::PortCounters;
use crate::packet::{Batch, Frame, Gso, Offloads};

/// MTU of a port that was not given one, in bytes of the Ethernet payload.
pub const DEFAULT_MTU: u32 = 1500;

/// An attachment to a switch.
pub struct Port {
    /// Its number.
    pub id: PortId,
    /// Its name, as the operator gave it.
    pub name: String,
    /// Its counters in the shared file.
    pub counters: PortCounters,
    /// What stopped it, if anything did.
    pub fault: Arc<FaultCell>,
    /// Its uses of addresses that live elsewhere.
    pub claims: Claims,
    /// Whether its guest's memory seems to be private.
    private_memory: PrivateMemoryCheck,
    /// Waits of its ingress queues.
    pub waits: Waits,
    /// Interrupts for its queues.
    pub interrupts: QueueInterrupts,
    /// Who pays for it: itself, or a tenant with several ports.
    pub tenant: Arc<Tenant>,
    /// Its visits that took very long.
    pub slow: Slow,
    /// Its tenant's account of what I/O cores lose by it.
    pub overrun: Overrun,
    /// What its conversation costs others, and how much of that it may.
    pub messages: MessageLimiter,
    /// The terms on which its peer gives memory.
    pub terms: Terms,
    /// Captures and watchers of what passes.
    pub capture: CaptureSlot,
    /// What the operator allows.
    most: AtomicU32,
    /// What holds: the peer may have lowered it.
    mtu: AtomicU32,
    /// Most frames that may wait in each of its receive rings.
    queue: AtomicU32,
    link: AtomicBool,
    silent: AtomicBool,
    told: AtomicBool,
    held: AtomicBool,
    carrier: AtomicBool,
    events: OnceLock<Arc<LinkEvents>>,
    accepts: AtomicU32,
    queues: AtomicUsize,
    /// The NUMA node of its peer's memory; `NOWHERE` while it is not known.
    node: AtomicU32,
    slots: egress::EgressSlots,
}

/// Ports by their numbers.
#[derive(Default)]
pub struct Ports(Vec<Option<Arc<Port>>>);

impl FromIterator<Arc<Port>> for Ports {
    fn from_iter<I: IntoIterator<Item = Arc<Port>>>(ports: I) -> Ports {
        let mut all = Vec::new();
        for port in ports {
            let place = usize::from(port.id.0);
            if all.len() <= place {
                all.resize(place + 1, None);
            }
            all[place] = Some(port);
        }
        Ports(all)
    }
}

impl Ports {
    /// Whether port `id` is one of them and has its link up.
    pub fn is_up(&self, id: PortId) -> bool {
        self.get(id).is_some_and(Port::link)
    }

    /// Whether a station behind port `id` lives there until it is clear that it has moved.
    pub fn keeps(&self, id: PortId) -> bool {
        self.get(id).is_some_and(|port| port.link() && !port.is_told())
    }

    fn get(&self, id: PortId) -> Option<&Port> {
        self.0.get(usize::from(id.0))?.as_deref()
    }
}

const NOWHERE: u32 = u32::MAX;
/// Bytes of an Ethernet header.
const HEADER: u32 = 14;

impl Port {
    /// A port without queues and with its link down, which pays for itself.
    pub fn new(id: PortId, name: &str, counters: PortCounters, mtu: u32) -> std::io::Result<Port> {
        let fault = Arc::new(FaultCell::new()?);
        let tenant = Arc::new(Tenant::new(name));
        tenant.overrun.stops(&fault);
        Ok(Port {
            id,
            name: name.to_owned(),
            counters,
            slow: Slow::default(),
            overrun: tenant.overrun.clone(),
            tenant,
            fault,
            claims: Claims::default(),
            private_memory: PrivateMemoryCheck::default(),
            waits: Waits::default(),
            interrupts: QueueInterrupts::default(),
            messages: MessageLimiter::default(),
            terms: Terms::default(),
            capture: CaptureSlot::default(),
            most: AtomicU32::new(mtu),
            mtu: AtomicU32::new(mtu),
            queue: AtomicU32::new(u32::MAX),
            link: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            told: AtomicBool::new(false),
            held: AtomicBool::new(false),
            carrier: AtomicBool::new(true),
            events: OnceLock::new(),
            accepts: AtomicU32::new(0),
            queues: AtomicUsize::new(0),
            node: AtomicU32::new(NOWHERE),
            slots: egress::EgressSlots::default(),
        })
    }

    /// The port, with another one to pay for it.
    #[must_use]
    pub fn paid_by(self, tenant: &Arc<Tenant>) -> Port {
        tenant.overrun.stops(&self.fault);
        Port { tenant: Arc::clone(tenant), overrun: tenant.overrun.clone(), ..self }
    }

    /// Bytes of Ethernet payload that the port may send.
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Changes the MTU: the operator does, or the interface behind the port has another one.
    pub fn set_mtu(&self, mtu: u32) {
        self.most.store(mtu, Ordering::Relaxed);
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Frames that may wait in each of its receive rings; as many as it has buffers for, if `None`.
    pub fn set_queue(&self, frames: Option<u32>) {
        self.queue.store(frames.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Most frames that may wait in a receive ring. Beyond any ring: there is no limit.
    pub fn queue(&self) -> u32 {
        self.queue.load(Ordering::Relaxed)
    }

    /// The peer wants an MTU of its own, for as long as it is there.
    ///
    /// # Errors
    /// It is more than the operator allows.
    pub fn ask_mtu(&self, mtu: u32) -> Result<(), String> {
        let most = self.most.load(Ordering::Relaxed);
        if mtu > most {
            return Err(format!(
                "an MTU of {mtu} is more than the port's, {most}: `sidecore set {} mtu={mtu}` allows it",
                self.name
            ));
        }
        self.mtu.store(mtu, Ordering::Relaxed);
        Ok(())
    }

    /// The peer is gone, and so is what it wanted.
    pub fn forget_mtu(&self) {
        self.mtu.store(self.most.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether `frame` is longer than this port may send. Of a frame that is to be segmented the segments
    /// count, not the whole.
    pub fn is_too_long(&self, frame: &Frame) -> bool {
        let limit = self.mtu() + HEADER;
        frame.len > limit && exceeds(frame, limit)
    }

    /// Whether some frame of `batch` is [too long](Port::is_too_long).
    #[inline]
    pub fn any_too_long(&self, batch: &Batch) -> bool {
        let limit = self.mtu() + HEADER;
        batch.frames().iter().any(|frame| frame.len > limit && exceeds(frame, limit))
    }

    /// Whether frames can be delivered.
    pub fn link(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// Whether the operator wants it to send and receive nothing.
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Has it send and receive nothing, whether or not what stands behind it complies; or lets it again.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Whether a control plane tells of the stations behind it: none are learned there, and one that speaks
    /// at another port has moved.
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Has a control plane tell of the stations behind it.
    pub fn set_told(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    /// Something else is to stand behind it: what the former said of itself holds no more.
    pub fn renew(&self) {
        self.told.store(false, Ordering::Relaxed);
        self.set_accepts(Offloads::NONE);
        self.set_held(false);
        self.node.store(NOWHERE, Ordering::Relaxed);
        self.private_memory.clear();
    }

    /// Whether there is a receiver behind it: the link is up, or is down only because the device was told
    /// that there is no carrier. What the other end of a wire follows.
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

    /// Changes it. The caller also tells the [`Attachment`].
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
    pub fn accepts(&self) -> Offloads {
        Offloads::from_bits(self.accepts.load(Ordering::Relaxed))
    }

    /// Sets what the receiver takes over; before the queues that need it are swapped in.
    pub fn set_accepts(&self, offloads: Offloads) {
        self.accepts.store(offloads.bits(), Ordering::Relaxed);
    }

    /// A driver has begun in the memory of `map`: looks whether that can be its guest's.
    pub fn look_at_memory(&self, map: &GuestMap) {
        self.overrun.expect_clearing(map.in_huge_pages());
        self.private_memory.look(map, self.counters.totals().in_frames);
    }

    /// No VMM gives it memory any more.
    pub fn memory_is_gone(&self) {
        self.private_memory.clear();
    }

    /// Whether its guest's memory seems to be private.
    pub fn memory_seems_private(&self) -> bool {
        self.private_memory.is_suspect(self.counters.totals().in_frames)
    }

    /// Notes on which NUMA node its peer's memory is, by a piece of it that is in use: a core there is the
    /// best one for its queues. Before they are served.
    pub fn note_memory(&self, piece: &Piece) {
        if crate::util::place::has_nodes() {
            let node = node_of(piece).and_then(|node| u32::try_from(node).ok());
            self.node.store(node.unwrap_or(NOWHERE), Ordering::Relaxed);
        }
    }

    /// Egress queues in use, from number 0 without gaps; 0 while there is no peer.
    pub fn egress_queues(&self) -> usize {
        self.queues.load(Ordering::Acquire)
    }

    /// Has the port say that it has `queues`: what another thread that takes some away does at any moment.
    #[cfg(test)]
    pub(crate) fn say_queues(&self, queues: usize) {
        self.queues.store(queues, Ordering::Release);
    }

    /// The egress queue `index` under its lock, for an I/O core: it does not wait for one that stands still.
    pub fn reach(&self, index: usize) -> Reached<'_> {
        self.slots.reach(index)
    }

    /// The egress queue `index` under its lock, for any other thread.
    pub fn egress(&self, index: usize) -> Option<MutexGuard<'_, Option<Plugged>>> {
        self.slots.lock(index)
    }

    /// Lends `queue` to the port as egress queue `index`, in place of the one that was there. The link is up
    /// while queue 0 is there. The queue comes back, or ends, when no I/O core uses it any more.
    pub fn lend<Q: EgressQueue + 'static>(self: &Arc<Port>, index: usize, queue: Q) -> Lease<Q> {
        let home = Home::default();
        let lent = home.lend(Box::new(queue) as Box<dyn EgressQueue>);
        // A core that delivers here now waits for it.
        self.messages.changed(1);
        let serial = self.slots.plug(index, lent);
        self.count_queues();
        let port = Arc::clone(self);
        home.lease(Box::new(move || {
            port.messages.changed(1);
            port.slots.unplug(index, serial);
            port.count_queues();
        }))
    }

    /// Returns all its egress queues to their owners: what stands behind the port does not take them back.
    pub(crate) fn evict(&self) {
        self.slots.clear();
        self.count_queues();
    }

    fn count_queues(&self) {
        let used = self.slots.used();
        self.queues.store(used, Ordering::Release);
        if self.link.swap(used > 0, Ordering::AcqRel) != (used > 0) {
            self.link_changed();
        }
    }
}

impl Owner for Port {
    fn number(&self) -> u16 {
        self.id.0
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    fn slow(&self) -> &Slow {
        &self.slow
    }

    fn node(&self) -> Option<usize> {
        Some(self.node.load(Ordering::Relaxed)).filter(|node| *node != NOWHERE).map(|node| node as usize)
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

/// The judgement on the few frames that are longer than an untagged one may be.
#[cold]
fn exceeds(frame: &Frame, limit: u32) -> bool {
    let limit = limit + vlan_bytes(frame);
    // The headers of a segment end somewhere behind `csum_start`; a sender of absurd transport headers gains
    // segments that are longer by those, and the receiver's own check.
    let longest = match frame.offload.gso {
        Gso::None => frame.len,
        _ => u32::from(frame.offload.gso_size) + u32::from(frame.offload.csum_start) + 8,
    };
    longest > limit
}

/// Bytes of the VLAN tags in front of the payload (802.1Q §9.3): 0, 4 or 8.
fn vlan_bytes(frame: &Frame) -> u32 {
    let tagged = |at: usize| matches!([frame.head[at], frame.head[at + 1]], [0x81, 0x00] | [0x88, 0xa8]);
    match (tagged(12), tagged(16)) {
        (true, true) => 8,
        (true, false) => 4,
        _ => 0,
    }
}
