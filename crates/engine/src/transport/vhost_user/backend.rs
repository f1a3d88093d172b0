//! What each message does: to the memory table, to the rings, to the device.
//!
//! A ring runs while everything that it needs is known and it is enabled. Messages may come in any order, and
//! on rings that run: whatever changes under a ring, the ring is first taken back (so that no core is in the
//! middle of it), the change is made, and all rings that can run run again where they stood.

use std::ops::Range;
use std::sync::Arc;

use sidecore_abi::virtio::features as bit;

use super::channel::Channel;
use super::journal::RingSlots;
use super::messages::protocol;
use super::ring::{packed_from_wire, translate, used_index, Base, Vring};
use crate::device::VirtioDevice;
use crate::mem::{GuestMap, Terms};
use crate::port::{AttachmentStatus, Lack, Peer, QueueStatus};
use crate::virtq::{PackedJournal, Position, Region, RingConfig, WriteLog};

/// Bits of the feature word that are the transport's and not the device's.
pub(super) const TRANSPORT_FEATURES: u64 = bit::VHOST_USER_PROTOCOL | bit::VHOST_LOG_ALL;

/// One device in a conversation with its VMM.
pub(super) struct Backend<D> {
    pub(super) device: D,
    pub(super) rings: Vec<Vring>,
    /// The terms on which the front end gives its memory.
    pub(super) terms: Terms,
    pub(super) map: Option<Arc<GuestMap>>,
    /// `None` until SET_FEATURES: no ring can run before it is known in which format.
    pub(super) acked: Option<u64>,
    pub(super) protocol: u64,
    pub(super) status: u64,
    pub(super) log: Option<Arc<dyn WriteLog>>,
    pub(super) inflight: Option<RingSlots>,
    pub(super) positions: RingSlots,
    pub(super) channel: Arc<Channel>,
}

impl<D: VirtioDevice> Backend<D> {
    pub(super) fn new(device: D, positions: RingSlots) -> Backend<D> {
        let terms = device.port().terms.clone();
        let overrun = &device.port().overrun;
        let rings = (0..device.rings()).map(|_| Vring::new(overrun)).collect();
        Backend {
            device,
            rings,
            terms,
            map: None,
            acked: None,
            protocol: 0,
            status: 0,
            log: None,
            inflight: None,
            positions,
            channel: Arc::default(),
        }
    }

    pub(super) fn protocol_features(&mut self) -> u64 {
        let mut set = protocol::MQ
            | protocol::LOG_SHMFD
            | protocol::REPLY_ACK
            | protocol::INFLIGHT_SHMFD
            | protocol::RESET_DEVICE
            | protocol::CONFIGURE_MEM_SLOTS
            | protocol::STATUS;
        if self.device.network().is_some() {
            set |= protocol::RARP | protocol::MTU;
        }
        // QEMU warns of CONFIG on network devices and ignores it: offered only if there is something in it.
        if self.device.config_space().is_some() {
            set |= protocol::CONFIG;
        }
        // Disks grow; User-mode Linux has no interrupts without a channel, and hears nothing on it.
        if self.device.disk().is_some() || self.terms.call_sockets() {
            set |= protocol::BACKEND_REQ;
        }
        set
    }

    pub(super) fn index(&self, index: u32) -> Result<usize, String> {
        let at = Some(index as usize).filter(|at| *at < self.rings.len());
        at.ok_or_else(|| format!("ring {index} does not exist, there are {}", self.rings.len()))
    }

    pub(super) fn stop(&mut self, index: usize) {
        if std::mem::take(&mut self.rings[index].running) {
            if let Some(position) = self.device.stop_ring(index) {
                self.rings[index].base = Base::At(position);
            }
        }
    }

    /// Makes a change while none of `rings` runs, then runs those that can.
    pub(super) fn stopped<T>(&mut self, rings: Range<usize>, change: impl FnOnce(&mut Self) -> T) -> T {
        for index in rings.clone() {
            self.stop(index);
        }
        let result = change(self);
        for index in rings {
            self.start(index);
        }
        result
    }

    pub(super) fn all(&self) -> Range<usize> {
        0..self.rings.len()
    }

    pub(super) fn features(&self) -> u64 {
        self.acked.unwrap_or(0)
    }

    fn missing(&self, index: usize) -> Option<&'static str> {
        if self.acked.is_none() {
            return Some("waits for features");
        }
        // With protocol features rings start disabled, without them nothing could enable them.
        let starts_enabled = self.features() & bit::VHOST_USER_PROTOCOL == 0;
        self.rings[index].missing(self.map.is_some(), starts_enabled)
    }

    /// Runs a ring if it can run. That it cannot is no error of the message that came last: the next one
    /// may mend it. It is said in the log and in `show`.
    pub(super) fn start(&mut self, index: usize) {
        if self.rings[index].running || self.missing(index).is_some() {
            return;
        }
        let refused = self.try_start(index).err();
        if let Some(why) = &refused {
            if self.rings[index].refused != refused {
                tracing::warn!(port = %self.device.port().name, ring = index, "the ring cannot run: {why}");
            }
        }
        self.rings[index].refused = refused;
    }

    fn try_start(&mut self, index: usize) -> Result<(), String> {
        let ring = &self.rings[index];
        let (Some(map), Some(at), Some(size)) = (&self.map, ring.addresses, ring.size) else { return Ok(()) };
        self.device.port().look_at_memory(map);
        let features = self.features() & !TRANSPORT_FEATURES;
        let [desc, driver, device] = translate(map, at, size, features)?;
        let is_packed = features & bit::RING_PACKED != 0;
        let region = if self.device.completes_in_order() { None } else { Some(self.region(index, size)?) };
        let given = self.inflight.as_ref().and_then(|inflight| inflight.slot(index));
        let slot = given.or_else(|| self.positions.slot(index)).filter(|_| region.is_none());
        let position = match ring.base {
            Base::At(position) => position,
            Base::Sent(word) if is_packed => {
                let kept = slot.as_ref().and_then(|slot| slot.recover(&desc, &device, size));
                if let (Some(log), Some(gpa)) = (&self.log, map.gpa_of(&desc)) {
                    // The journal may have written a batch once more.
                    log.wrote(gpa, 16 * u32::from(size));
                }
                kept.unwrap_or(packed_from_wire(word))
            }
            // The used index in memory is where we stopped; what the front end sent may be older (after a
            // crash) or newer (the available index, as cloud-hypervisor sends it).
            Base::Sent(_) | Base::Unknown => Position::Split(used_index(&device)),
        };
        let logging = self.features() & bit::VHOST_LOG_ALL != 0;
        let journal = match (position, slot) {
            (Position::Packed { used, .. }, Some(slot)) if used & 0x7fff < size => {
                Some(slot.begin(features, size, used, &device))
            }
            _ => None,
        };
        let config = RingConfig {
            size,
            desc,
            driver,
            device,
            // A packed ring's used descriptors lie in the descriptor ring, whatever address was sent.
            used_log: if is_packed { at.log.and(map.gpa_of(&desc)) } else { at.log },
            map: Arc::clone(map),
            features,
            position,
            notifier: Arc::clone(&ring.notifier),
            log: self.log.clone().filter(|_| logging),
            journal,
            region,
        };
        let kick = ring.kick_copy().map_err(|e| format!("its kick descriptor cannot be duplicated: {e}"))?;
        self.device.start_ring(index, config, kick).map_err(|e| e.to_string())?;
        let ring = &mut self.rings[index];
        ring.running = true;
        // The previous daemon may have died between publishing and interrupting.
        ring.notifier.raise();
        Ok(())
    }

    /// Where it is written down which requests ring `index` of `size` entries has in flight.
    fn region(&self, index: usize, size: u16) -> Result<Region, String> {
        let given = self.inflight.as_ref().filter(|inflight| inflight.region(index).is_some());
        let slots = given.unwrap_or(&self.positions);
        if usize::from(size) > slots.entries {
            let of_whom =
                if given.is_some() { "in the front end's" } else { "without one of the front end's" };
            let room = slots.entries;
            return Err(format!("{size} entries are too many for its in-flight region: {room} {of_whom}"));
        }
        if given.is_some() {
            // What stands in ours is about an earlier ring.
            self.positions.region(index).iter().for_each(Region::close);
        }
        slots.region(index).ok_or_else(|| "it has no in-flight region".to_owned())
    }

    /// Charges the port for `count` changes that I/O cores notice.
    pub(super) fn changes(&self, count: usize) {
        self.device.port().messages.changed(count);
    }

    /// Puts all rings on `map`, in which `others` regions are other ones, or are missing.
    pub(super) fn set_memory(&mut self, map: GuestMap, others: usize) {
        self.changes(others);
        let map = Some(Arc::new(map)).filter(|map| !map.is_empty());
        self.stopped(self.all(), |backend| backend.map = map);
    }

    /// Stops everything and forgets what the driver set up; memory and features stay.
    pub(super) fn reset(&mut self) {
        for index in self.all() {
            self.stop(index);
            self.close_journal(index);
            self.rings[index].reset();
        }
    }

    /// Nothing that is kept of ring `index` says anything any more.
    pub(super) fn close_journal(&self, index: usize) {
        let in_order = self.device.completes_in_order();
        for slots in [self.inflight.as_ref(), Some(&self.positions)].into_iter().flatten() {
            if in_order {
                slots.slot(index).iter().for_each(PackedJournal::close);
            } else {
                slots.region(index).iter().for_each(Region::close);
            }
        }
    }

    /// The front end learns where ring `index`, which is stopped, stands. What is kept of it goes on saying
    /// something only about requests that are still in flight.
    pub(super) fn hand_over(&self, index: usize) {
        let packed = self.features() & bit::RING_PACKED != 0;
        let size = self.rings[index].size.unwrap_or(0);
        let slots = self.inflight.as_ref().unwrap_or(&self.positions);
        let idle = slots.region(index).is_none_or(|region| region.is_idle(size, packed));
        if self.device.completes_in_order() || idle {
            self.close_journal(index);
        }
    }

    /// The conversation is over: nothing of it stays but the positions.
    pub(super) fn disconnect(&mut self, faulty: bool) {
        for index in self.all() {
            self.stop(index);
            if faulty {
                self.rings[index].error.raise();
            }
            self.rings[index].interrupt_by(None, false);
            self.rings[index] = Vring::new(&self.device.port().overrun);
        }
        self.device.set_features(0);
        self.device.port().forget_mtu();
        (self.map, self.log, self.inflight) = (None, None, None);
        (self.acked, self.protocol, self.status) = (None, 0, 0);
        self.channel.set(None);
    }

    fn lack(&self, running: bool) -> Option<Lack> {
        let refused = || self.rings.iter().any(|ring| ring.refused.is_some());
        // A front end of a disk has to ask for the disk's size.
        let is_net = || self.protocol != 0 && self.protocol & protocol::CONFIG == 0;
        match (self.acked, &self.map) {
            (Some(_), None) => Some(Lack::Memory),
            (Some(_), Some(_)) if running || refused() => None,
            _ if is_net() && self.device.disk().is_some() => Some(Lack::Kind),
            _ => Some(Lack::Driver),
        }
    }

    /// For `show`.
    pub(super) fn status(&self, detail: String) -> AttachmentStatus {
        let running = self.rings.iter().any(|ring| ring.running);
        let packed = self.features() & bit::RING_PACKED != 0;
        let mut features = self.device.feature_names(self.features());
        if self.features() & bit::VHOST_LOG_ALL != 0 {
            features.push("log_all".to_owned());
        }
        let known = |(_, ring): &(usize, &Vring)| ring.size.is_some();
        let queues = self.rings.iter().enumerate().filter(known).map(|(index, ring)| {
            let (number, direction) = self.device.ring_role(index);
            let state = if ring.running { Some("running") } else { self.missing(index) };
            QueueStatus {
                index: number,
                direction,
                size: ring.size.map_or(0, u32::from),
                kind: if packed { "packed" } else { "split" },
                state: state.map_or_else(|| ring.refused.clone().unwrap_or_default(), str::to_owned),
                interrupts: None,
            }
        });
        AttachmentStatus {
            peer: if running { Peer::Running } else { Peer::Connected },
            detail,
            hint: None,
            lack: self.lack(running),
            features,
            queues: queues.collect(),
        }
    }
}
