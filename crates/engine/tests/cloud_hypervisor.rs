//! Cloud Hypervisor's own clients, the crates `vfio_user` and `vhost`, asked what it asks them and in its
//! order (seen with version 53), and in the guest the least that a driver does.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::pci::{self, capability};
use sidecore_abi::vfio_user::{irq, region};
use sidecore_driver::vfio::Event;
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Attachment, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::transport::vfio_user::VfioUser;
use sidecore_engine::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

const LIMIT: Duration = Duration::from_secs(20);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::yield_now();
    }
}

/// Two ports on a wire, an I/O core, a directory for sockets.
struct Rig {
    dir: PathBuf,
    cores: Arc<Graph>,
    ports: [Arc<Port>; 2],
}

impl Rig {
    fn new(name: &str) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-ch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = CounterFile::anonymous().unwrap();
        let ports = [(0, "a"), (1, "b")].map(|(id, name)| {
            Arc::new(Port::new(PortId(id), name, file.open_slot(PortId(id), name), DEFAULT_MTU).unwrap())
        });
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let wires = [PortId(1), PortId(0)].map(Attach::Wire);
        cores.publish(&Arc::new(Topology::new(&ports.iter().cloned().zip(wires).collect::<Vec<_>>())));
        Rig { dir, cores, ports }
    }

    fn path(&self, port: usize) -> PathBuf {
        self.dir.join(&*self.ports[port].name)
    }

    fn endpoint(&self, port: usize) -> Endpoint {
        Endpoint::Listen { path: self.path(port), mode: None, owner: (None, None) }
    }

    fn card(&self, at: usize, model: Model) -> VfioUser {
        let config = E1000Config::new(model, Mac([2, 0, 0, 0, 0, at as u8]));
        let port = Arc::clone(&self.ports[at]);
        let device = E1000::new(config, Arc::clone(&port), Arc::clone(&self.cores) as Arc<dyn Scheduler>);
        VfioUser::start(self.endpoint(at), port, Box::new(device.unwrap()), None).unwrap()
    }

    fn net(&self, at: usize) -> VhostUser {
        let device = VirtioNet::new(
            &NetConfig { queue_pairs: 1, ..NetConfig::default() },
            Arc::clone(&self.ports[at]),
            Arc::clone(&self.cores) as _,
        );
        let config = VhostUserConfig { endpoint: self.endpoint(at), journal: None };
        VhostUser::start(config, device.unwrap()).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A guest's memory.
struct Memory {
    map: MmapRegion<()>,
    file: File,
}

impl Memory {
    fn new(size: usize) -> Memory {
        let file = File::from(memfd_create("ch", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, size as u64).unwrap();
        let map = MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), size).unwrap();
        Memory { map, file }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.map.as_volatile_slice().write_slice(bytes, at).unwrap();
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.as_volatile_slice().read_slice(&mut bytes, at).unwrap();
        bytes
    }

    fn publish16(&self, at: usize, value: u16) {
        self.map.as_volatile_slice().store(value, at, Ordering::Release).unwrap();
    }

    fn look16(&self, at: usize) -> u16 {
        self.map.as_volatile_slice().load(at, Ordering::Acquire).unwrap()
    }
}

fn frame(number: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[number; 86]].concat()
}

/// An Intel card in a Cloud Hypervisor.
struct Card {
    client: vfio_user::Client,
    memory: Memory,
    pages: MmapRegion<()>,
    /// Byte of BAR 0 where the pages begin.
    pages_at: u64,
    pin: Event,
    messages: Vec<Event>,
}

/// The registers and bits that the least driver needs (8254x SDM §13; 82574 datasheet §10).
mod regs {
    pub const BAR: u32 = 0;
    pub const ICR: u64 = 0x00c0;
    pub const IMS: u64 = 0x00d0;
    pub const IVAR: u64 = 0x00e4;
    pub const RCTL: u64 = 0x0100;
    pub const TCTL: u64 = 0x0400;
    pub const RX: u64 = 0x2800;
    pub const TX: u64 = 0x3800;
    pub const BAL: u64 = 0x00;
    pub const BAH: u64 = 0x04;
    pub const LEN: u64 = 0x08;
    pub const TAIL: u64 = 0x18;
    /// On, broadcasts too, without FCS.
    pub const RCTL_ON: u32 = 1 << 1 | 1 << 15 | 1 << 26;
    /// On, short frames padded.
    pub const TCTL_ON: u32 = 1 << 1 | 1 << 3;
    /// Causes: a frame came, without and with MSI-X.
    pub const RXT0: u32 = 1 << 7;
    pub const RXQ0: u32 = 1 << 20;
    /// A descriptor's second word: end of packet, report status.
    pub const TX_EOP: u64 = 1 << 24;
    pub const TX_RS: u64 = 1 << 27;
}

const TRIGGER: u32 = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
const DISABLE: u32 = irq::DATA_NONE | irq::ACTION_TRIGGER;
/// Where rings and buffers lie.
const TX_RING: usize = 0;
const RX_RING: usize = 0x1000;
const TX_BUFFER: usize = 0x2000;
const RX_BUFFERS: usize = 0x4000;

impl Card {
    /// `VfioUserPciDevice::new`, `dma_map`, `allocate_bars`, `map_mmio_regions`.
    fn plug(path: &std::path::Path) -> Card {
        let client = vfio_user::Client::new(path).unwrap();
        let mut card = Card {
            memory: Memory::new(0x1_0000),
            pages: MmapRegion::new(0x1000).unwrap(),
            pages_at: 0,
            pin: Event::new().unwrap(),
            messages: Vec::new(),
            client,
        };
        let mut at = card.config(0x34) as u8 as u64;
        let (mut found, mut vectors) = (Vec::new(), 0);
        while at != 0 {
            let word = card.config(at);
            match word as u8 {
                capability::MSI => assert!(card.client.get_irq_info(irq::MSI).unwrap().count > 0),
                capability::MSIX => vectors = card.client.get_irq_info(irq::MSIX).unwrap().count,
                _ => {}
            }
            found.push(word as u8);
            at = u64::from(word >> 8 & 0xff);
        }
        if found.contains(&capability::EXPRESS) && found.contains(&capability::POWER) {
            card.config(0x100);
        }
        assert_eq!(card.client.get_irq_info(irq::INTX).unwrap().count, 1);
        card.messages = (0..vectors).map(|_| Event::new().unwrap()).collect();
        card.wire_pin();
        card.client.dma_map(0, 0, 0x1_0000, card.memory.file.as_raw_fd()).unwrap();
        let sizes: Vec<u32> = (0x10..0x28).step_by(4).map(|bar| card.sized(bar)).collect();
        card.sized(0x30);
        let bar = card.client.region(regs::BAR).unwrap();
        assert_eq!(u64::from(sizes[0]), bar.size);
        let [area] = bar.sparse_areas[..] else { panic!("{:?}", bar.sparse_areas) };
        let file = bar.file_offset.clone().unwrap();
        let file = FileOffset::from_arc(Arc::clone(file.arc()), file.start() + area.offset);
        card.pages = MmapRegion::from_file(file, area.size as usize).unwrap();
        card.pages_at = area.offset;
        card
    }

    fn config(&mut self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(region::CONFIG, at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// The bytes of the BAR at `at` of configuration space, which keeps all ones: Cloud Hypervisor tells no
    /// device its addresses.
    fn sized(&mut self, at: u64) -> u32 {
        let low = if self.config(at) & 1 == 0 { 0xf } else { 0x3 };
        self.client.region_write(region::CONFIG, at, &[0xff; 4]).unwrap();
        (!(self.config(at) & !low)).wrapping_add(1)
    }

    fn wire_pin(&mut self) {
        self.client.set_irqs(irq::INTX, TRIGGER, 0, 1, &[self.pin.as_fd().as_raw_fd()]).unwrap();
    }

    fn wire_messages(&mut self) {
        self.client.set_irqs(irq::INTX, DISABLE, 0, 0, &[]).unwrap();
        let fds: Vec<i32> = self.messages.iter().map(|event| event.as_fd().as_raw_fd()).collect();
        self.client.set_irqs(irq::MSIX, TRIGGER, 0, fds.len() as u32, &fds).unwrap();
        self.client.region_write(region::CONFIG, 0xa2, &capability::MSIX_ENABLE.to_le_bytes()).unwrap();
    }

    fn write(&mut self, register: u64, value: u32) {
        self.client.region_write(regs::BAR, register, &value.to_le_bytes()).unwrap();
        self.unmask();
    }

    fn read(&mut self, register: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(regs::BAR, register, &mut bytes).unwrap();
        self.unmask();
        u32::from_le_bytes(bytes)
    }

    /// With INTx on, every access to a BAR may have been the end of an interrupt.
    fn unmask(&mut self) {
        if self.messages.is_empty() {
            self.client.set_irqs(irq::INTX, irq::DATA_NONE | irq::ACTION_UNMASK, 0, 1, &[]).unwrap();
        }
    }

    /// A store of the guest's to a page that it has mapped.
    fn ring(&self, register: u64, value: u32) {
        let at = (register - self.pages_at) as usize;
        self.pages.as_volatile_slice().store(value, at, Ordering::Release).unwrap();
    }

    /// What a driver does first.
    fn start(&mut self) {
        let master = (pci::command::MEMORY | pci::command::MASTER | pci::command::IO).to_le_bytes();
        self.client.region_write(region::CONFIG, 4, &master).unwrap();
        if !self.messages.is_empty() {
            self.wire_messages();
            self.write(regs::IVAR, 8);
        }
        for place in 0..8 {
            let address = (RX_BUFFERS + place * 0x800) as u64;
            self.memory.write(RX_RING + 16 * place, &u128::from(address).to_le_bytes());
        }
        for (ring, at) in [(regs::TX, TX_RING), (regs::RX, RX_RING)] {
            for (register, value) in [(regs::BAL, at as u32), (regs::BAH, 0), (regs::LEN, 128)] {
                self.write(ring + register, value);
            }
        }
        self.write(regs::TCTL, regs::TCTL_ON);
        self.write(regs::RCTL, regs::RCTL_ON);
        let cause = if self.messages.is_empty() { regs::RXT0 } else { regs::RXQ0 };
        self.write(regs::IMS, cause);
        self.ring(regs::RX + regs::TAIL, 7);
    }

    /// Sends the first frame after `start`.
    fn send(&self, bytes: &[u8]) {
        self.memory.write(TX_BUFFER, bytes);
        let control = regs::TX_EOP | regs::TX_RS | bytes.len() as u64;
        self.memory.write(TX_RING, &(u128::from(control) << 64 | TX_BUFFER as u128).to_le_bytes());
        self.ring(regs::TX + regs::TAIL, 1);
    }

    /// Receives frame number `place` after `start`.
    fn receive(&mut self, place: usize) -> Vec<u8> {
        let interrupt = self.messages.first().unwrap_or(&self.pin);
        until("an interrupt", || interrupt.wait(LIMIT).unwrap() > 0);
        if self.messages.is_empty() {
            assert_ne!(self.read(regs::ICR) & regs::RXT0, 0);
        }
        let descriptor = self.memory.read(RX_RING + 16 * place, 16);
        let (len, done) = (usize::from(u16::from_le_bytes([descriptor[8], descriptor[9]])), descriptor[12]);
        assert_eq!(done & 3, 3, "done and end of packet: {descriptor:?}");
        self.memory.read(RX_BUFFERS + 0x800 * place, len)
    }
}

#[test]
fn intel_cards_work_with_its_client() {
    let rig = Rig::new("cards");
    let cards = [rig.card(0, Model::E1000e), rig.card(1, Model::E1000)];
    // Twice: when a guest reboots, Cloud Hypervisor hangs up and calls again at once.
    for _ in 0..2 {
        let [mut a, mut b] = [0, 1].map(|at| Card::plug(&rig.path(at)));
        assert_eq!((a.messages.len(), b.messages.len()), (5, 0));
        a.start();
        b.start();
        a.send(&frame(1));
        assert_eq!(b.receive(0), frame(1));
        b.send(&frame(2));
        assert_eq!(a.receive(0), frame(2));
        for (card, status) in [&mut a, &mut b].into_iter().zip(&cards) {
            until("it runs", || status.status().peer == Peer::Running);
            card.client.dma_unmap(0, 0x1_0000).unwrap();
            assert!(!status.status().detail.contains("refused"), "{}", status.status().detail);
            card.client.shutdown().unwrap();
        }
    }
}

/// Cloud Hypervisor lets the guest reach 4 KiB of each function's configuration space, and its client waits
/// for the data of a read that was refused.
#[test]
fn all_of_configuration_space_can_be_touched() {
    let rig = Rig::new("config");
    let cards = [rig.card(0, Model::E1000e), rig.card(1, Model::E1000)];
    for (at, beyond) in [(0, 0), (1, u32::MAX)] {
        let mut card = Card::plug(&rig.path(at));
        for offset in [0x100, 0x800, 0xffc] {
            assert_eq!(card.config(offset), beyond);
            card.client.region_write(region::CONFIG, offset, &[0; 4]).unwrap();
        }
        assert_eq!(card.config(0) & 0xffff, 0x8086);
        assert!(!cards[at].status().detail.contains("refused"), "{}", cards[at].status().detail);
    }
}

/// A virtio-net card in a Cloud Hypervisor.
struct Net {
    frontend: Frontend,
    memory: Memory,
    kicks: [EventFd; 2],
    calls: [EventFd; 2],
}

/// Entries of a ring, and where its parts lie, from its start; buffers follow.
const ENTRIES: u16 = 8;
const AVAILABLE: usize = 0x100;
const USED: usize = 0x200;
const BUFFERS: usize = 0x1000;
/// From one ring to the next.
const APART: usize = 0x8000;
const HEADER: usize = 12;
const RX: usize = 0;
const TX: usize = 1;

impl Net {
    /// `Net::new` and, when the driver is ready, `setup_vhost_user`.
    fn plug(path: &std::path::Path) -> Net {
        let mut frontend = Frontend::connect(path, 2).unwrap();
        frontend.set_owner().unwrap();
        // MRG_RXBUF, GUEST_ANNOUNCE, CTRL_VQ, the checksums, INDIRECT_DESC, EVENT_IDX, VERSION_1, IN_ORDER,
        // ORDER_PLATFORM, NOTIFICATION_DATA, and those of vhost-user.
        let known = [15, 21, 17, 0, 1, 28, 29, 32, 35, 36, 38, 26, 30].map(|bit| 1u64 << bit);
        let features = frontend.get_features().unwrap() & known.iter().sum::<u64>();
        assert_ne!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), 0);
        let known = Protocol::MQ
            | Protocol::CONFIGURE_MEM_SLOTS
            | Protocol::REPLY_ACK
            | Protocol::INFLIGHT_SHMFD
            | Protocol::LOG_SHMFD
            | Protocol::DEVICE_STATE;
        let protocol = known & frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(known - Protocol::DEVICE_STATE));
        frontend.set_protocol_features(protocol).unwrap();
        // From here on a message that is refused is an error.
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        // It compares this with its rings, not with pairs of them.
        assert!(frontend.get_queue_num().unwrap() >= 2);

        // The guest takes VERSION_1 and no more.
        let taken = 1 << 32 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        frontend.set_features(features & taken).unwrap();
        let events = || [0; 2].map(|_| EventFd::new(EFD_NONBLOCK).unwrap());
        let mut net = Net { frontend, memory: Memory::new(2 * APART), kicks: events(), calls: events() };
        let regions = [net.region()];
        net.frontend.set_mem_table(&regions).unwrap();
        for ring in [RX, TX] {
            net.frontend.set_vring_num(ring, ENTRIES).unwrap();
        }
        let ask = VhostUserInflight { num_queues: 2, queue_size: ENTRIES, ..VhostUserInflight::default() };
        let (inflight, file) = net.frontend.get_inflight_fd(&ask).unwrap();
        net.frontend.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
        for ring in [RX, TX] {
            let part = |offset: usize| regions[0].userspace_addr + (ring * APART + offset) as u64;
            let addresses = VringConfigData {
                queue_max_size: 256,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: part(0),
                used_ring_addr: part(USED),
                avail_ring_addr: part(AVAILABLE),
                log_addr: None,
            };
            net.frontend.set_vring_addr(ring, &addresses).unwrap();
            // The available index that is in memory, not the next one to be served.
            let base = net.memory.look16(ring * APART + AVAILABLE + 2);
            net.frontend.set_vring_base(ring, base).unwrap();
            net.frontend.set_vring_call(ring, &net.calls[ring]).unwrap();
            net.frontend.set_vring_kick(ring, &net.kicks[ring]).unwrap();
        }
        for ring in [RX, TX] {
            net.frontend.set_vring_enable(ring, true).unwrap();
        }
        net
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: 2 * APART as u64,
            userspace_addr: self.memory.map.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: self.memory.file.as_raw_fd(),
        }
    }

    /// Makes buffer `number` of `len` bytes available on `ring`.
    fn offer(&self, ring: usize, number: u16, len: u32) {
        let (at, slot) = (ring * APART, usize::from(number % ENTRIES));
        let address = (at + BUFFERS + slot * 0x800) as u128;
        let flags: u128 = if ring == RX { 2 } else { 0 };
        let descriptor = address | u128::from(len) << 64 | flags << 96;
        self.memory.write(at + 16 * slot, &descriptor.to_le_bytes());
        self.memory.write(at + AVAILABLE + 4 + 2 * slot, &(slot as u16).to_le_bytes());
        self.memory.publish16(at + AVAILABLE + 2, number + 1);
        self.kicks[ring].write(1).unwrap();
    }

    fn send(&self, number: u16, bytes: &[u8]) {
        let at = TX * APART + BUFFERS + usize::from(number % ENTRIES) * 0x800;
        self.memory.write(at, &[0; HEADER]);
        self.memory.write(at + HEADER, bytes);
        self.offer(TX, number, (HEADER + bytes.len()) as u32);
    }

    /// The frame in receive buffer `number`, when the interrupt has come.
    fn receive(&self, number: u16) -> Vec<u8> {
        until("a frame", || self.memory.look16(RX * APART + USED + 2) == number + 1);
        until("an interrupt", || self.calls[RX].read().is_ok());
        let slot = usize::from(number % ENTRIES);
        let used = self.memory.read(RX * APART + USED + 4 + 8 * slot, 8);
        let len = u32::from_le_bytes(used[4..].try_into().unwrap()) as usize;
        self.memory.read(RX * APART + BUFFERS + slot * 0x800 + HEADER, len - HEADER)
    }
}

#[test]
fn virtio_net_works_with_its_client() {
    let rig = Rig::new("net");
    let nets = [rig.net(0), rig.net(1)];
    // Twice, as above.
    for _ in 0..2 {
        let [a, mut b] = [0, 1].map(|at| Net::plug(&rig.path(at)));
        for number in 0..4 {
            b.offer(RX, number, 0x800);
        }
        until("they run", || nets.iter().all(|net| net.status().peer == Peer::Running));
        for number in 0..2 {
            a.send(number, &frame(number as u8));
            assert_eq!(b.receive(number), frame(number as u8));
        }
        // Memory is plugged in while frames pass, and is there to stay.
        let more = Memory::new(0x1000);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 1 << 32,
            memory_size: 0x1000,
            userspace_addr: more.map.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: more.file.as_raw_fd(),
        };
        b.frontend.add_mem_region(&region).unwrap();
        a.send(2, &frame(2));
        assert_eq!(b.receive(2), frame(2));
        // A driver that lets go: `reset_vhost_user`.
        for mut net in [a, b] {
            for ring in [RX, TX] {
                net.frontend.set_vring_enable(ring, false).unwrap();
                let base = net.frontend.get_vring_base(ring).unwrap();
                assert_eq!(base, u32::from(net.memory.look16(ring * APART + USED + 2)));
            }
        }
    }
}
