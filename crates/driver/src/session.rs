//! From a connection to running rings: negotiation, memory, vrings, and all of it once more after a
//! reconnect.
//!
//! The order is the one that QEMU and DPDK's virtio-user keep: owner, features, protocol features,
//! queue count, features set, inflight record, memory table, then for every ring number of entries,
//! base, addresses, call and kick, then enable, then DRIVER_OK.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use sidecore_abi::virtio::features as f;

use crate::error::{Error, Result};
use crate::frontend::{protocol, Frontend, Inflight, Region};
use crate::memory::{Memory, Page};
use crate::queue::{Options, Parts, Queue, Table};

/// What the backend is: it decides what the low feature bits mean, and how queues are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A network device, whose queues come in pairs.
    Net,
    /// A block device.
    Block,
}

impl Kind {
    /// The feature without which there is one queue, or one pair.
    fn several(self) -> u64 {
        match self {
            Self::Net => f::NET_MQ,
            Self::Block => f::BLK_MQ,
        }
    }

    /// Queues that count as one.
    fn counted(self) -> u16 {
        match self {
            Self::Net => 2,
            Self::Block => 1,
        }
    }

    /// Names of feature bits, for people.
    pub fn feature_names(self, bits: u64) -> String {
        let own = match self {
            Self::Net => NET_NAMES,
            Self::Block => BLOCK_NAMES,
        };
        let name = |bit: u32| {
            let known = own.iter().chain(NAMES).find(|(mask, _)| *mask == 1 << bit);
            known.map_or_else(|| format!("bit {bit}"), |(_, name)| (*name).into())
        };
        (0..64).filter(|bit| bits >> bit & 1 != 0).map(name).collect::<Vec<_>>().join(", ")
    }
}

/// Feature bits of network devices with the names used in messages.
const NET_NAMES: &[(u64, &str)] = &[
    (f::NET_CSUM, "CSUM"),
    (f::NET_GUEST_CSUM, "GUEST_CSUM"),
    (f::NET_GUEST_TSO4, "GUEST_TSO4"),
    (f::NET_GUEST_TSO6, "GUEST_TSO6"),
    (f::NET_GUEST_USO4, "GUEST_USO4"),
    (f::NET_GUEST_USO6, "GUEST_USO6"),
    (f::NET_HOST_TSO4, "HOST_TSO4"),
    (f::NET_HOST_TSO6, "HOST_TSO6"),
    (f::NET_HOST_USO, "HOST_USO"),
    (f::NET_MRG_RXBUF, "MRG_RXBUF"),
    (f::NET_MQ, "MQ"),
];

/// Those of block devices.
const BLOCK_NAMES: &[(u64, &str)] = &[
    (f::BLK_SIZE_MAX, "SIZE_MAX"),
    (f::BLK_SEG_MAX, "SEG_MAX"),
    (f::BLK_GEOMETRY, "GEOMETRY"),
    (f::BLK_RO, "RO"),
    (f::BLK_BLK_SIZE, "BLK_SIZE"),
    (f::BLK_FLUSH, "FLUSH"),
    (f::BLK_TOPOLOGY, "TOPOLOGY"),
    (f::BLK_CONFIG_WCE, "CONFIG_WCE"),
    (f::BLK_MQ, "MQ"),
    (f::BLK_DISCARD, "DISCARD"),
    (f::BLK_WRITE_ZEROES, "WRITE_ZEROES"),
];

/// Those of all devices.
const NAMES: &[(u64, &str)] = &[
    (f::INDIRECT_DESC, "INDIRECT_DESC"),
    (f::EVENT_IDX, "EVENT_IDX"),
    (f::VHOST_USER_PROTOCOL, "PROTOCOL_FEATURES"),
    (f::VERSION_1, "VERSION_1"),
    (f::RING_PACKED, "RING_PACKED"),
    (f::IN_ORDER, "IN_ORDER"),
];

/// Which features are negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Without these there is no connection.
    pub must: u64,
    /// These too, if offered.
    pub may: u64,
    /// vhost-user protocol features, if offered.
    pub protocol: u64,
}

impl Default for Want {
    /// Virtio 1.x with protocol features, and nothing else.
    fn default() -> Self {
        Self { must: f::VERSION_1 | f::VHOST_USER_PROTOCOL, may: 0, protocol: protocol::ALL }
    }
}

impl Want {
    /// Requires further features.
    #[must_use]
    pub fn and(mut self, features: u64) -> Self {
        self.must |= features;
        self
    }

    /// Requires further features on a condition.
    #[must_use]
    pub fn and_if(self, on: bool, features: u64) -> Self {
        self.and(if on { features } else { 0 })
    }

    /// Takes further features if they are offered.
    #[must_use]
    pub fn or(mut self, features: u64) -> Self {
        self.may |= features;
        self
    }

    /// What becomes of an offer.
    pub fn choose(&self, kind: Kind, offered: u64) -> Result<u64> {
        let missing = self.must & !offered;
        if missing != 0 {
            return Err(Error::Missing(kind.feature_names(missing)));
        }
        Ok(offered & (self.must | self.may))
    }
}

/// A virtio-net front end's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Features.
    pub want: Want,
    /// Queue pairs.
    pub pairs: u16,
    /// Entries of each ring.
    pub entries: u16,
    /// Bytes of each buffer, network header included.
    pub buffer: usize,
    /// Pages of the memory.
    pub page: Page,
    /// Descriptors of an indirect table; one table for each transmit descriptor if INDIRECT is on.
    pub table: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { want: Want::default(), pairs: 1, entries: 256, buffer: 2048, page: Page::Small, table: 8 }
    }
}

impl Config {
    /// What it asks of a session: room for a buffer, and perhaps a table, beside each descriptor.
    fn setup(&self) -> Setup {
        let (queues, entries) = (self.pairs * 2, usize::from(self.entries));
        let indirect = (self.want.must | self.want.may) & f::INDIRECT_DESC != 0;
        let tables = if indirect { entries * self.table * 16 } else { 0 };
        let room = usize::from(queues) * (Memory::buffers_size(entries, self.buffer) + tables);
        Setup { kind: Kind::Net, want: self.want, queues, entries: self.entries, page: self.page, room }
    }
}

/// What any device's session is made from.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The device.
    pub kind: Kind,
    /// Features.
    pub want: Want,
    /// Rings.
    pub queues: u16,
    /// Entries of each ring.
    pub entries: u16,
    /// Pages of the memory.
    pub page: Page,
    /// Bytes of memory beside the rings.
    pub room: usize,
}

/// A ring's surroundings: everything but the ring itself.
#[derive(Debug)]
pub struct Vring {
    /// Virtio queue number: a network device's receive queues are even, its transmit queues odd (§5.1.2).
    pub number: u16,
    /// Where it lies.
    pub parts: Parts,
    /// Driver to device.
    pub kick: OwnedFd,
    /// Device to driver.
    pub call: OwnedFd,
}

/// A negotiated connection with its memory.
#[derive(Debug)]
pub struct Session {
    /// The conversation.
    pub frontend: Frontend,
    /// The memory told to the backend.
    pub memory: Arc<Memory>,
    /// Negotiated virtio features.
    pub features: u64,
    /// Negotiated protocol features.
    pub protocol: u64,
    /// Surroundings of each ring.
    pub vrings: Vec<Vring>,
    setup: Setup,
    inflight: Option<Inflight>,
}

/// Asks, chooses and sets features; returns virtio's and the protocol's.
fn negotiate(frontend: &mut Frontend, want: Want, kind: Kind, queues: u16) -> Result<(u64, u64)> {
    frontend.set_owner()?;
    let count = queues / kind.counted();
    let want = want.and_if(count > 1, kind.several());
    let features = want.choose(kind, frontend.features()?)?;
    let mut chosen = 0;
    if features & f::VHOST_USER_PROTOCOL != 0 {
        chosen = frontend.protocol_features()? & want.protocol;
        frontend.set_protocol_features(chosen)?;
    }
    if count > 1 {
        let most = if chosen & protocol::MQ != 0 { frontend.queue_count()? } else { 1 };
        if u64::from(count) > most {
            let unit = if kind == Kind::Net { "queue pairs" } else { "queues" };
            return Err(Error::Config(format!("{count} {unit}, but the backend allows {most}")));
        }
    }
    frontend.set_features(features)?;
    Ok((features, chosen))
}

impl Session {
    /// A network device's session.
    pub fn new(frontend: Frontend, config: Config) -> Result<Self> {
        Self::open(frontend, config.setup())
    }

    /// Negotiates and takes memory. The rings run after [`Session::start`].
    pub fn open(mut frontend: Frontend, setup: Setup) -> Result<Self> {
        let (features, chosen) = negotiate(&mut frontend, setup.want, setup.kind, setup.queues)?;
        let rings = usize::from(setup.queues) * Parts::size(setup.entries);
        let memory = Memory::new(rings + setup.room, setup.page)?;
        let mut session =
            Self { frontend, memory, features, protocol: chosen, vrings: Vec::new(), setup, inflight: None };
        for number in 0..setup.queues {
            let parts = Parts::new(&session.memory, session.options())?;
            let event = || {
                eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                    .map_err(|e| Error::io("eventfd", e))
            };
            session.vrings.push(Vring { number, parts, kick: event()?, call: event()? });
        }
        Ok(session)
    }

    /// What was negotiated about the rings.
    pub fn options(&self) -> Options {
        Options {
            entries: self.setup.entries,
            packed: self.has(f::RING_PACKED),
            event_idx: self.has(f::EVENT_IDX),
            in_order: self.has(f::IN_ORDER),
        }
    }

    /// Were these features negotiated?
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// A ring over queue `number`'s parts.
    pub fn queue(&self, number: u16) -> Result<Queue> {
        let vring = self.vring(number)?;
        Queue::new(number, self.options(), vring.parts.clone())
    }

    /// A ring over queue `number`'s parts, which are emptied first. No device may have them.
    pub fn fresh_queue(&self, number: u16) -> Result<Queue> {
        let Parts { desc, avail, used } = &self.vring(number)?.parts;
        for part in [desc, avail, used] {
            self.memory.write(part.offset(), &vec![0; part.size()]);
        }
        self.queue(number)
    }

    /// Surroundings of queue `number`.
    pub fn vring(&self, number: u16) -> Result<&Vring> {
        let vring = self.vrings.get(usize::from(number));
        vring.ok_or_else(|| Error::Config(format!("there is no queue {number}")))
    }

    /// Indirect tables of `table` descriptors for one queue, if INDIRECT was negotiated.
    pub fn tables(&self, table: usize) -> Result<Vec<Table>> {
        let count = if self.has(f::INDIRECT_DESC) { self.setup.entries } else { 0 };
        (0..count).map(|_| Table::new(&self.memory, table)).collect()
    }

    /// The base of a ring that never ran: zero, with both wrap counters set if packed (§2.8.1).
    pub fn first_base(&self) -> u32 {
        if self.has(f::RING_PACKED) {
            0x8000_8000
        } else {
            0
        }
    }

    /// The record of descriptors in flight, if there is one: its file, and how long that is.
    pub fn inflight(&self) -> Option<(&OwnedFd, usize)> {
        let Inflight { fd, offset, size, .. } = self.inflight.as_ref()?;
        Some((fd, usize::try_from(offset + size).ok()?))
    }

    /// The memory as one region.
    pub fn region(&self) -> Region {
        let memory = &self.memory;
        Region { gpa: memory.gpa(0), size: memory.size() as u64, user: memory.user(0), offset: 0 }
    }

    /// Tells memory and rings, and enables all rings. `bases`: one for each ring.
    pub fn start(&mut self, bases: &[u32]) -> Result<()> {
        if self.protocol & protocol::INFLIGHT_SHMFD != 0 {
            if self.inflight.is_none() {
                self.inflight = Some(self.frontend.inflight(self.setup.queues, self.setup.entries)?);
            }
            if let Some(inflight) = &self.inflight {
                self.frontend.set_inflight(inflight)?;
            }
        }
        let fd = self.memory.fd();
        if self.protocol & protocol::CONFIGURE_MEM_SLOTS != 0 {
            self.frontend.add_region(self.region(), fd)?;
        } else {
            self.frontend.set_mem_table(&[(self.region(), fd)])?;
        }
        for vring in &self.vrings {
            self.start_vring(vring, bases.get(usize::from(vring.number)).copied().unwrap_or(0))?;
        }
        for vring in &self.vrings {
            self.enable(vring.number, true)?;
        }
        if self.protocol & protocol::STATUS != 0 {
            // ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK (§2.1).
            self.frontend.set_status(1 | 2 | 8 | 4)?;
        }
        Ok(())
    }

    fn start_vring(&self, vring: &Vring, base: u32) -> Result<()> {
        let number = vring.number;
        self.frontend.set_vring_num(number, self.setup.entries)?;
        self.frontend.set_vring_base(number, base)?;
        self.frontend.set_vring_addr(number, vring.parts.addresses())?;
        self.frontend.set_vring_call(number, &vring.call)?;
        self.frontend.set_vring_kick(number, &vring.kick)
    }

    /// Enables or disables one ring; without protocol features rings run when they are kicked.
    pub fn enable(&self, number: u16, on: bool) -> Result<()> {
        if self.has(f::VHOST_USER_PROTOCOL) {
            self.frontend.enable(number, on)?;
        }
        Ok(())
    }

    /// Stops one ring; returns where the device was.
    pub fn stop_vring(&self, number: u16) -> Result<u32> {
        self.frontend.vring_base(number)
    }

    /// Starts one stopped ring again.
    pub fn resume_vring(&self, number: u16, base: u32) -> Result<()> {
        self.start_vring(self.vring(number)?, base)?;
        self.enable(number, true)
    }

    /// Goes on over a new connection with the same memory and the same features. `bases`: where each
    /// ring goes on.
    pub fn reconnect(&mut self, frontend: Frontend, bases: &[u32]) -> Result<()> {
        self.renegotiate(frontend)?;
        self.start(bases)
    }

    /// The first half of [`Session::reconnect`]: the rings do not run yet.
    pub fn renegotiate(&mut self, mut frontend: Frontend) -> Result<()> {
        let want = Want { must: self.features, may: 0, protocol: self.protocol };
        let (_, chosen) = negotiate(&mut frontend, want, self.setup.kind, self.setup.queues)?;
        self.frontend = frontend;
        self.protocol = chosen;
        Ok(())
    }
}
