//! A driver that does anything to a ptnet device: registers in any order, blocks and memory rewritten at any
//! time, guest memory taken away and given back, resets, link changes, another process that takes the device
//! over, perhaps with a word of its image changed. Nothing may panic, every frame lies inside the region, and
//! every frame given is accounted for. The device is a port of a switch or an end of a pipe, whose other end
//! begins again whenever it was stopped.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use rustix::event::{eventfd, EventfdFlags};
use sidecore_abi::ptnet::{memdev, reg, CREATE, DELETE};
use sidecore_engine::device::pci::{self, Image, Index, PciDevice, Persist};
use sidecore_engine::device::ptnet::{functions, MemoryDevice, Ptnet, PtnetConfig};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::mem::GuestMap;
use sidecore_engine::packet::{Batch, Mac};
use sidecore_engine::port::Port;
use sidecore_engine::slots::pipe::End;
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::{anonymous_port, port, send, Guest, ManualScheduler, GPA, MEMORY};

const PAIRS: usize = 2;
const SLOTS: u32 = 16;
/// Where the presets put the blocks, in guest memory.
const BLOCKS: [u64; 2] = [0x1000, 0x2000];
/// The status blocks of the pipe's other end.
const FAR_BLOCKS: [u64; 2] = [0x1100, 0x2100];

/// Registers that do something, so that a byte chooses one of them.
const REGISTERS: [u64; 12] = [
    reg::PTFEAT,
    reg::PTCTL,
    reg::VNET_HDR_LEN,
    reg::CSB_GH_BAH,
    reg::CSB_GH_BAL,
    reg::CSB_HG_BAH,
    reg::CSB_HG_BAL,
    reg::KICKS,
    reg::KICKS + 4,
    reg::KICKS + 12,
    reg::KICKS + 124,
    reg::MAC_LO,
];

struct World {
    guest: Guest,
    empty: Arc<GuestMap>,
    batch: Batch,
}

thread_local! {
    static WORLD: std::cell::RefCell<World> = std::cell::RefCell::new(World {
        guest: Guest::new(),
        empty: Arc::new(GuestMap::new(&[]).unwrap()),
        batch: Batch::new(),
    });
}

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    WORLD.with_borrow_mut(|world| Run::new(world, *flags).run(data));
});

struct Run<'a> {
    world: &'a mut World,
    nic: Ptnet,
    memory: MemoryDevice,
    /// The region, as the guest has it.
    region: std::fs::File,
    size: u64,
    port: Arc<Port>,
    scheduler: Arc<ManualScheduler>,
    flags: u8,
    /// The other end of the pipe, with its memory device and its port.
    far: Option<(Ptnet, MemoryDevice, Arc<Port>)>,
}

/// A device that a driver has not found yet, and its memory.
fn device(
    world: &World,
    scheduler: &Arc<ManualScheduler>,
    port: &Arc<Port>,
    flags: u8,
    number: u8,
) -> (Ptnet, MemoryDevice) {
    let mut config = PtnetConfig {
        pairs: PAIRS,
        slots: SLOTS,
        buf_size: if flags & 1 == 0 { 64 } else { 2048 },
        ..PtnetConfig::new(Mac([2, 0, 0, 0, 0, number]))
    };
    if flags & 4 != 0 {
        config.pipe = Some(End::join("fuzz", &config.geometry().of_pipe(), false).unwrap());
    }
    let scheduler = Arc::clone(scheduler) as Arc<dyn Scheduler>;
    let (mut nic, mut memory, _) = functions(config, port, scheduler).unwrap();
    nic.attached().unwrap();
    memory.attached().unwrap();
    nic.dma_changed(Arc::clone(&world.guest.map));
    (nic, memory)
}

/// What a driver does, so that the fuzzer need not find it out.
fn bring_up(nic: &mut Ptnet, blocks: [u64; 2], flags: u8) {
    pci::write_config(nic, 4, &[0b111, 0]);
    pci::write_config(nic, 0x42, &[0, 0x80]);
    let header = u32::from(flags & 1);
    let writes = [
        (reg::PTFEAT, header),
        (reg::VNET_HDR_LEN, 12 * header),
        (reg::CSB_GH_BAH, 0),
        (reg::CSB_GH_BAL, (GPA + blocks[0]) as u32),
        (reg::CSB_HG_BAH, 0),
        (reg::CSB_HG_BAL, (GPA + blocks[1]) as u32),
        (reg::PTCTL, CREATE),
    ];
    for (register, value) in writes {
        nic.write(0, register, &value.to_le_bytes());
    }
}

fn far_port() -> Arc<Port> {
    static PORT: OnceLock<Arc<Port>> = OnceLock::new();
    Arc::clone(PORT.get_or_init(port))
}

impl Run<'_> {
    fn new(world: &mut World, flags: u8) -> Run<'_> {
        let (port, scheduler) = (anonymous_port(), Arc::new(ManualScheduler::default()));
        port.fault.clear();
        world.guest.write(0, &[0; MEMORY as usize]);
        let (nic, memory) = device(world, &scheduler, &port, flags, 1);
        let far = (flags & 4 != 0).then(|| {
            let port = far_port();
            port.fault.clear();
            let (mut nic, memory) = device(world, &scheduler, &port, flags, 2);
            bring_up(&mut nic, FAR_BLOCKS, 0);
            (nic, memory, port)
        });
        let mappable = memory.regions()[memdev::MEMORY_BAR].as_ref().unwrap().mappable.clone().unwrap();
        let file: OwnedFd = mappable.pages.file().try_clone_to_owned().unwrap();
        let size = mappable.pages.size() as u64;
        if flags & 2 != 0 {
            for vector in 0..2 * PAIRS {
                let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
                nic.interrupts().set_trigger(Index::Msix, vector, Some(event));
            }
        }
        Run { world, nic, memory, region: file.into(), size, port, scheduler, flags, far }
    }

    fn run(mut self, mut data: &[u8]) {
        while let Some(([what, a, b, c, d, e], rest)) = data.split_first_chunk::<6>() {
            data = rest;
            let value = u32::from_le_bytes([*b, *c, *d, *e]);
            match what % 16 {
                0 | 1 => {
                    self.nic.write(0, REGISTERS[usize::from(*a) % REGISTERS.len()], &value.to_le_bytes())
                }
                2 => self.nic.write(usize::from(*a % 6), u64::from(*b), &[*c, *d][..1 + usize::from(*e & 1)]),
                3 => {
                    self.nic.read(usize::from(*a % 6), u64::from(*b), &mut [0; 4]);
                    self.memory.read(usize::from(*a % 6), (u64::from(value) % self.size) & !3, &mut [0; 4]);
                }
                4 => pci::write_config(&mut self.nic, u64::from(*a), &[*b, *c]),
                // A block's word: of a ring, on either side.
                5 | 6 => {
                    let block =
                        BLOCKS[usize::from(*what >> 7)] + 64 * u64::from(*a & 3) + 4 * u64::from(*a >> 2 & 3);
                    let small = if *what & 0x40 == 0 { value % (SLOTS + 2) } else { value };
                    self.world.guest.write(block, &small.to_le_bytes());
                }
                7 => {
                    // Anything, anywhere in the region: so many bytes of what follows.
                    let bytes = &data[..usize::from(*e).min(data.len())];
                    data = &data[bytes.len()..];
                    let at = u64::from(u32::from_le_bytes([*a, *b, *c, 0])) % (self.size - 256);
                    self.region.write_all_at(bytes, at).unwrap();
                }
                8 => self.slot(*a, *b, u16::from_le_bytes([*c, *d]), *e),
                9 | 10 => self.scheduler.poll(&mut self.world.batch),
                11 => self.send(usize::from(*e), *a, u16::from_le_bytes([*b, *c]) & 0x3fff, *d),
                12 => {
                    let map = if a & 1 == 0 { &self.world.guest.map } else { &self.world.empty };
                    self.nic.dma_changed(Arc::clone(map));
                }
                13 => self.nic.set_link(a & 1 != 0),
                14 => bring_up(&mut self.nic, BLOCKS, *a),
                _ if *a == 0 => pci::reset(&mut self.nic),
                _ if matches!(*a, 1 | 2) && self.far.is_none() => self.take_over(*b, *a == 2, [*c, *d, *e]),
                _ => drop((self.nic.queues(), self.nic.features())),
            }
            // As the conversation does.
            if let Some(fault) = self.port.fault.get() {
                self.nic.faulted(fault);
                assert!(self.port.egress(0).unwrap().is_none(), "a stopped device still receives");
            }
            if let Some((far, _, port)) = &mut self.far {
                if let Some(fault) = port.fault.get() {
                    far.faulted(fault);
                    bring_up(far, FAR_BLOCKS, 0);
                }
            }
        }
        if let Some((far, ..)) = &mut self.far {
            far.detached();
        }
        self.nic.write(0, reg::PTCTL, &DELETE.to_le_bytes());
        assert!(self.scheduler.is_empty(), "a queue stayed behind");
        self.nic.detached();
    }

    /// Another process goes on with the device, or with what its image has become: `lies` change a word of
    /// it.
    fn take_over(&mut self, how: u8, lies: bool, [at, low, high]: [u8; 3]) {
        let (mut image, mut other) =
            (Image::new(self.nic.format().size), Image::new(self.memory.format().size));
        self.nic.save(&mut image);
        self.memory.save(&mut other);
        let own = |device: &dyn Persist| -> Vec<OwnedFd> {
            device.files().into_iter().map(|file| file.try_clone_to_owned().unwrap()).collect()
        };
        let files = [own(&self.nic), own(&self.memory)];
        if how & 0x10 == 0 {
            self.nic.suspend();
        } else {
            self.scheduler.fetch(&mut self.world.batch);
        }
        if lies {
            let word = u64::from(low) << (how >> 5 << 3) | u64::from(high) << (8 * (how & 7));
            // Behind the configuration space, mostly.
            let at = if how & 8 == 0 { 32 + usize::from(at) } else { usize::from(at) };
            image.put(at % image.size(), word);
        }
        let (mut nic, mut memory) = device(self.world, &self.scheduler, &self.port, self.flags, 1);
        let [first, second] = files;
        let adopted = nic.adopt(first, &image).and_then(|()| memory.adopt(second, &other));
        assert!(lies || adopted.is_ok(), "{adopted:?}");
        // The former process is gone.
        (self.nic, self.memory) = (nic, memory);
        self.nic.dma_changed(Arc::clone(&self.world.guest.map));
        if adopted.is_ok() {
            pci::resume(&mut self.nic);
            pci::resume(&mut self.memory);
        }
        let mappable = self.memory.regions()[memdev::MEMORY_BAR].as_ref().unwrap().mappable.clone().unwrap();
        let file: OwnedFd = mappable.pages.file().try_clone_to_owned().unwrap();
        (self.region, self.size) = (file.into(), mappable.pages.size() as u64);
    }

    /// A slot of a sending ring, plausible but for what the bytes change.
    fn slot(&mut self, place: u8, index: u8, len: u16, flags: u8) {
        let ring_pool = {
            let mut bytes = [0; 4];
            self.memory.read(0, memdev::RING_POOL, &mut bytes);
            u64::from(u32::from_le_bytes(bytes))
        };
        let word = u64::from(index) | u64::from(len) << 32 | u64::from(flags) << 48;
        let at = ring_pool + 256 + 16 * u64::from(u32::from(place) % SLOTS);
        self.region.write_all_at(&word.to_le_bytes(), at).unwrap();
    }

    fn send(&mut self, ring: usize, count: u8, len: u16, fill: u8) {
        let World { guest, batch, .. } = &mut *self.world;
        let queue = (&*self.port, ring % PAIRS);
        send(guest, batch, queue, (u16::from(count % 40), len), 0, |frame| frame.head = [fill; 64]);
    }
}
