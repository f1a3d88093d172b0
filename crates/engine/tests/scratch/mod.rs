//! A PCI device with a bit of everything, for tests of what carries it: registers, a page that the guest
//! maps, MSI-X and a pin, and a queue on an I/O core that reads guest memory all the time.

// No test uses all of it.
#![allow(dead_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::vfio_user::{command, flags, Header};
use sidecore_engine::core::Lease;
use sidecore_engine::device::pci::{
    Area, Command, ConfigSpace, Identity, Interrupts, MappablePages, MsixPlace, PciDevice, Region, Space,
    REGIONS,
};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::mem::{GuestMap, SharedPages};
use sidecore_engine::packet::Batch;
use sidecore_engine::port::{Fault, IngressQueue, Port, QueueStatus, Tally};
use sidecore_engine::transport::vfio_user::Bare;

/// BAR 0: registers in its first page, the shared page in its second.
pub const REGISTERS: u32 = 0;
/// BAR 2: the registers again, as I/O ports.
pub const PORTS: u32 = 2;
/// BAR 3: MSI-X.
pub const MSIX: u32 = 3;
/// Where the shared page is.
pub const SHARED: u64 = 0x1000;

/// Storage.
pub const PAD: u64 = 0x00;
/// Writing it sends that message.
pub const MESSAGE: u64 = 0x04;
/// Writing it sets the level of the pin.
pub const LEVEL: u64 = 0x08;
/// Writing it adds one to the word of guest memory at that address (below 4 GiB).
pub const INCREMENT: u64 = 0x0c;
/// Writing a number other than zero starts a queue that reads the word at that address; zero stops it.
pub const WATCH: u64 = 0x10;
/// Writing it does what a queue does that finds a fault.
pub const FAIL: u64 = 0x14;
const COUNT: usize = 16;

/// What the test sees of the device from inside.
#[derive(Debug, Default)]
pub struct Inside {
    /// How often the watching queue has read.
    pub looks: AtomicU64,
    /// What it read last.
    pub seen: AtomicU32,
    pub resets: AtomicU32,
    pub detached: AtomicU32,
    pub maps: AtomicU32,
    /// Accesses to the shared page that came as messages.
    pub shared_accesses: AtomicU32,
    pub command: AtomicU32,
}

pub struct Scratch {
    pub inside: Arc<Inside>,
    pub pages: Arc<SharedPages>,
    port: Arc<Port>,
    cores: Arc<dyn Scheduler>,
    config: ConfigSpace,
    interrupts: Arc<Interrupts>,
    registers: [u32; COUNT],
    msix: Vec<u8>,
    map: Arc<GuestMap>,
    queue: Option<Lease<Watcher>>,
    link: bool,
}

fn regions(pages: &Arc<SharedPages>) -> [Option<Region>; REGIONS] {
    let mappable =
        MappablePages { pages: Arc::clone(pages), areas: vec![Area { offset: SHARED, size: 0x1000 }] };
    let plain = |space, size| Some(Region { space, size, mappable: None });
    let first = Some(Region { space: Space::Memory32, size: 0x4000, mappable: Some(mappable) });
    [first, None, plain(Space::Io, 64), plain(Space::Memory32, 0x4000), None, None, None]
}

impl Scratch {
    pub fn new(port: &Arc<Port>, cores: Arc<dyn Scheduler>) -> Scratch {
        let pages = Arc::new(SharedPages::new(c"scratch", 0x2000).unwrap());
        let identity = Identity {
            vendor: 0x1b36,
            device: 0x5ca7,
            subsystem_vendor: 0x1af4,
            subsystem: 0x1100,
            class: 0x00ff_0000,
            revision: 1,
            has_pin: true,
        };
        let mut config = ConfigSpace::new(&identity, &regions(&pages));
        config.add_power(0xc8);
        config.add_msi(0xd0, 1);
        config.add_express(0xe0);
        config.add_msix(0xa0, &MsixPlace { vectors: 3, table: (3, 0), pending: (3, 0x2000) });
        Scratch {
            inside: Arc::default(),
            pages,
            port: Arc::clone(port),
            cores,
            config,
            interrupts: Interrupts::new(true, 1, 3, &sidecore_engine::mem::Overrun::default()),
            registers: [0; COUNT],
            msix: vec![0; 0x4000],
            map: Arc::default(),
            queue: None,
            link: true,
        }
    }

    fn stop(&mut self) -> Option<Watcher> {
        self.queue.take()?.take_back()
    }

    fn start(&mut self, address: u64) {
        let map = Arc::clone(&self.map);
        let queue = Watcher { map, address, inside: Arc::clone(&self.inside) };
        self.queue = Some(self.cores.serve(&self.port, 0, queue));
    }

    fn register(&mut self, offset: u64, value: u32) {
        let Some(place) = self.registers.get_mut(offset as usize / 4) else { return };
        *place = value;
        match offset {
            MESSAGE => drop(self.interrupts.message(value as u16)),
            LEVEL => drop(self.interrupts.set_level(value != 0)),
            INCREMENT => {
                if let Some(word) = self.map.translate(u64::from(value), 4, &mut 0) {
                    let old = u32::from_le_bytes(word.read_array().unwrap());
                    assert!(word.write_array(&old.wrapping_add(1).to_le_bytes()));
                }
            }
            WATCH => {
                drop(self.stop());
                if value != 0 {
                    self.start(u64::from(value));
                }
            }
            FAIL => self.port.fault.set(Fault::BadRegister),
            _ => {}
        }
    }
}

impl PciDevice for Scratch {
    fn regions(&self) -> [Option<Region>; REGIONS] {
        regions(&self.pages)
    }

    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        assert!(matches!(data.len(), 1 | 2 | 4) && offset % data.len() as u64 == 0, "{offset:#x} {data:?}");
        let (word, byte) = (offset & !3, (offset & 3) as usize);
        let value = match (region as u32, word) {
            (MSIX, _) => {
                data.copy_from_slice(&self.msix[offset as usize..][..data.len()]);
                return;
            }
            (REGISTERS, SHARED..0x2000) => {
                self.inside.shared_accesses.fetch_add(1, Ordering::SeqCst);
                self.pages.word(word as usize).unwrap().load(Ordering::Relaxed)
            }
            (REGISTERS | PORTS, _) => self.registers.get(word as usize / 4).copied().unwrap_or(0),
            _ => panic!("a read of region {region}"),
        };
        data.copy_from_slice(&value.to_le_bytes()[byte..][..data.len()]);
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8]) {
        assert!(matches!(data.len(), 1 | 2 | 4) && offset % data.len() as u64 == 0, "{offset:#x} {data:?}");
        let (word, byte) = (offset & !3, (offset & 3) as usize);
        let mut bytes = [0; 4];
        match (region as u32, word) {
            (MSIX, _) => self.msix[offset as usize..][..data.len()].copy_from_slice(data),
            (REGISTERS, SHARED..0x2000) => {
                self.inside.shared_accesses.fetch_add(1, Ordering::SeqCst);
                let register = self.pages.word(word as usize).unwrap();
                bytes = register.load(Ordering::Relaxed).to_le_bytes();
                bytes[byte..][..data.len()].copy_from_slice(data);
                register.store(u32::from_le_bytes(bytes), Ordering::Relaxed);
            }
            (REGISTERS | PORTS, _) => {
                if let Some(old) = self.registers.get(word as usize / 4) {
                    bytes = old.to_le_bytes();
                }
                bytes[byte..][..data.len()].copy_from_slice(data);
                self.register(word, u32::from_le_bytes(bytes));
            }
            _ => panic!("a write of region {region}"),
        }
    }

    fn command_changed(&mut self, command: Command) {
        self.inside.command.store(u32::from(command.0), Ordering::SeqCst);
    }

    fn dma_changed(&mut self, map: Arc<GuestMap>) {
        self.inside.maps.fetch_add(1, Ordering::SeqCst);
        self.map = map;
        if let Some(queue) = self.stop() {
            let address = queue.address;
            drop(queue);
            self.start(address);
        }
    }

    fn reset(&mut self) {
        self.inside.resets.fetch_add(1, Ordering::SeqCst);
        drop(self.stop());
        self.registers = [0; COUNT];
        self.msix.fill(0);
        self.pages.clear(0, usize::MAX);
        self.port.fault.clear();
    }

    fn faulted(&mut self, _: Fault) {
        drop(self.stop());
    }

    fn detached(&mut self) {
        self.reset();
        self.inside.detached.fetch_add(1, Ordering::SeqCst);
    }

    fn set_link(&mut self, up: bool) {
        self.link = up;
    }

    fn queues(&self) -> Vec<QueueStatus> {
        let state = if self.queue.is_some() { "running" } else { "stopped" }.to_owned();
        vec![QueueStatus {
            index: 0,
            direction: "ingress",
            size: 1,
            kind: "scratch",
            state,
            interrupts: None,
        }]
    }

    fn features(&self) -> Vec<String> {
        vec![format!("link {}", if self.link { "up" } else { "down" })]
    }
}

/// Reads a word of guest memory as fast as its I/O core allows.
struct Watcher {
    map: Arc<GuestMap>,
    address: u64,
    inside: Arc<Inside>,
}

impl IngressQueue for Watcher {
    fn fetch(&mut self, _: &mut Batch, _: &mut Tally) {
        if let Some(word) = self.map.translate(self.address, 4, &mut 0) {
            self.inside.seen.store(u32::from_le_bytes(word.read_array().unwrap()), Ordering::SeqCst);
            self.inside.looks.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn release(&mut self, _: &mut Tally) {}

    fn want_kicks(&mut self, on: bool) -> bool {
        // Always something to look at: the core does not sleep.
        on
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Bytes of a memory file that comes along with a command of [`converse`].
const MEMORY: u64 = 0x10000;

/// What came of [`converse`].
#[derive(Default)]
pub struct Conversed {
    /// Commands that were answered.
    pub answered: usize,
    /// Whether one ended the conversation.
    pub ended: bool,
}

/// Talks to `device` as `bytes` say: for each command a byte for the descriptors that come along (two bits
/// say how many, each further bit whether one is memory or an eventfd; the highest bit of the first: VERSION
/// comes first), then the command, whose size is the header's own. Ends with the bytes, or as a conversation
/// ends. Panics if an answer is not one.
pub fn converse(bytes: &[u8], device: Box<dyn PciDevice>) -> Conversed {
    hear_all(&mut Bare::new(device), bytes)
}

/// As [`converse`], in a conversation that has begun.
pub fn hear_all(bare: &mut Bare, mut bytes: &[u8]) -> Conversed {
    let mut done = Conversed::default();
    if bytes.first().is_some_and(|first| first & 0x80 != 0) {
        let version = Header { command: command::VERSION, ..Header::default() };
        assert!(bare.hear(&version, &[0; 4], Vec::new()).3, "a plain VERSION was refused");
    }
    while let Some((kinds, rest)) = bytes.split_first() {
        let Some(header) = Header::parse(rest) else { break };
        if header.flags & flags::TYPE != flags::COMMAND {
            break;
        }
        let Some(message) = rest.get(..header.size as usize) else { break };
        let Some(payload) = message.get(Header::SIZE..) else { break };
        bytes = &rest[message.len()..];
        let Some(fds) = descriptors(*kinds) else { break };
        let (due, answer, with_fd, goes_on) = bare.hear(&header, payload, fds);
        assert_eq!(due, header.flags & flags::NO_REPLY == 0);
        let reply = Header::parse(answer).unwrap();
        assert_eq!((reply.id, reply.command), (header.id, header.command));
        assert_eq!(reply.size as usize, answer.len());
        let failed = reply.error != 0;
        assert_eq!(reply.flags, if failed { flags::REPLY | flags::ERROR } else { flags::REPLY });
        assert!(!failed || (!with_fd && answer.len() == Header::SIZE));
        done.answered += 1;
        if !goes_on {
            assert!(failed);
            done.ended = true;
            break;
        }
    }
    done
}

/// None if the system has no more of them.
fn descriptors(kinds: u8) -> Option<Vec<OwnedFd>> {
    let one = |index: u8| {
        if kinds & 4 << index == 0 {
            return eventfd(0, EventfdFlags::CLOEXEC).ok();
        }
        let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&memory, MEMORY).ok()?;
        Some(memory)
    };
    (0..kinds & 3).map(one).collect()
}
