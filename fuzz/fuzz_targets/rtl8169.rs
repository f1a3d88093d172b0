//! A driver that does anything to an rtl8169: registers of any width in any order, descriptors and buffers
//! rewritten at any time, memory taken away and given back, resets, link changes, another process that takes
//! the card over, in the middle of a batch, too, and with words of its state changed. Nothing may panic,
//! every frame lies inside the guest's memory, and every frame given is accounted for.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use sidecore_engine::device::pci::{self, Image, Index, PciDevice};
use sidecore_engine::device::rtl8169::regs::{self, desc};
use sidecore_engine::device::rtl8169::{Rtl8169, Rtl8169Config};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::Port;
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::nic::{World, BUFFERS};
use sidecore_fuzz::{anonymous_port, ManualScheduler, GPA, MEMORY};

/// Where the presets put the rings, in guest memory.
const TX: u64 = 0x1000;
const RX: u64 = 0x2000;
/// Descriptors of a preset ring.
const RING: u64 = 16;

thread_local! {
    static WORLD: std::cell::RefCell<World> = std::cell::RefCell::new(World::new());
}

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    WORLD.with_borrow_mut(|world| Run::new(world, *flags).run(data));
});

struct Run<'a> {
    world: &'a mut World,
    device: Rtl8169,
    port: Arc<Port>,
    scheduler: Arc<ManualScheduler>,
}

fn device(port: &Arc<Port>, scheduler: &Arc<ManualScheduler>) -> Rtl8169 {
    let config = Rtl8169Config::new(Mac([2, 0, 0, 0, 0, 1]));
    let device = Rtl8169::new(config, Arc::clone(port), Arc::clone(scheduler) as Arc<dyn Scheduler>);
    device.unwrap()
}

impl Run<'_> {
    fn new(world: &mut World, flags: u8) -> Run<'_> {
        let (port, scheduler) = (anonymous_port(), Arc::new(ManualScheduler::default()));
        port.fault.clear();
        world.guest.write(0, &[0; MEMORY as usize]);
        let mut device = device(&port, &scheduler);
        if flags & 1 != 0 {
            let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
            device.interrupts().set_trigger(Index::Intx, 0, Some(event));
        }
        device.dma_changed(Arc::clone(&world.maps[0]));
        Run { world, device, port, scheduler }
    }

    fn run(mut self, mut data: &[u8]) {
        while let Some(([what, a, b, c, d, e], rest)) = data.split_first_chunk::<6>() {
            data = rest;
            match what % 16 {
                0..=3 => {
                    let width = 1usize << ((what >> 4) % 3);
                    let offset = u64::from(*a) & !(width as u64 - 1);
                    self.device.write(1, offset, &[*b, *c, *d, *e][..width]);
                }
                4 => self.device.read(1, u64::from(*a) & !3, &mut [0; 4]),
                5 => self.device.write(usize::from(*a % 7), u64::from(*b), &[*c]),
                6 => pci::write_config(&mut self.device, u64::from(*a), &[*b, *c]),
                7 => {
                    // A descriptor or anything else: so many bytes of what follows.
                    let bytes = &data[..usize::from(*c).min(data.len())];
                    data = &data[bytes.len()..];
                    self.world.guest.write(u64::from(u16::from_le_bytes([*a, *b])), bytes);
                }
                8 | 9 => self.describe(if *what & 1 == 0 { TX } else { RX }, *a, [*b, *c, *d, *e]),
                10 => self.scheduler.poll(&mut self.world.batch),
                11 => self.world.send(&self.port, *a, u16::from_le_bytes([*b, *c]) & 0x3fff, *d),
                12 => self.device.dma_changed(Arc::clone(&self.world.maps[usize::from(*a) % 4])),
                13 => self.device.set_link(a & 1 != 0),
                14 => self.bring_up(),
                _ if *a == 0 => pci::reset(&mut self.device),
                _ if *a == 1 || *a == 2 => self.take_over(*b, *a == 2, [*c, *d, *e]),
                _ => drop((self.device.queues(), self.device.features())),
            }
            // As the conversation does.
            if let Some(fault) = self.port.fault.get() {
                self.device.faulted(fault);
                assert!(self.port.egress(0).unwrap().is_none(), "a stopped device still receives");
            }
        }
        self.device.detached();
        assert!(self.scheduler.is_empty(), "a queue stayed behind");
    }

    /// What a driver does, so that the fuzzer need not find it out.
    fn bring_up(&mut self) {
        pci::write_config(&mut self.device, 4, &[0b111, 0]);
        for n in 0..RING {
            self.describe(RX, n as u8, [0, 0, 0x07, n as u8]);
        }
        for (register, base) in [(regs::TNPDS, TX), (regs::RDSAR, RX)] {
            self.device.write(1, u64::from(register) + 4, &[0; 4]);
            self.device.write(1, u64::from(register), &((GPA + base) as u32).to_le_bytes());
        }
        self.device.write(1, 0x37, &[0x0c]);
        self.device.write(1, u64::from(regs::RCR), &[0x0f]);
        self.device.write(1, 0x08, &[0xff; 4]);
        self.device.write(1, 0x3c, &[0xff; 2]);
    }

    /// A descriptor at a preset ring's place, plausible but for what the bytes change.
    fn describe(&mut self, ring: u64, place: u8, [bits, low, high, buffer]: [u8; 4]) {
        let place = u64::from(place) % RING;
        let end = if place + 1 == RING { desc::EOR } else { 0 };
        let len = u64::from(u16::from_le_bytes([low, high]));
        let word = (desc::OWN | desc::FS | desc::LS | end) ^ u64::from(bits) << 24 | len;
        let at = ring + 16 * place;
        self.world.guest.write(at + 8, &(GPA + BUFFERS + 0x100 * u64::from(buffer)).to_le_bytes());
        self.world.guest.write(at, &word.to_le_bytes());
    }

    /// Another process goes on with the card, or with what the card's state has become: `lies` change a word
    /// of it.
    fn take_over(&mut self, how: u8, lies: bool, [at, low, high]: [u8; 3]) {
        let Some(old) = self.device.persist() else { return };
        let mut image = Image::new(old.format().size);
        old.save(&mut image);
        let files: Vec<OwnedFd> =
            old.files().into_iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        // Killed, or asked to go: in the first case perhaps while the scheduler has a batch.
        if how & 0x10 == 0 {
            old.suspend();
        } else {
            self.scheduler.fetch(&mut self.world.batch);
        }
        let word = u64::from(low) << (how >> 5 << 3) | u64::from(high) << (8 * (how & 7));
        if lies && how & 8 == 0 {
            image.put(usize::from(at) % image.size(), word);
        } else if lies {
            rustix::io::pwrite(&files[0], &word.to_ne_bytes(), 8 * u64::from(at)).unwrap();
        }
        let mut next = device(&self.port, &self.scheduler);
        let adopted = next.persist().unwrap().adopt(files, &image);
        assert!(lies || adopted.is_ok(), "{adopted:?}");
        // The former process is gone.
        self.device = next;
        self.device.dma_changed(Arc::clone(&self.world.maps[usize::from(how) % 4]));
        if adopted.is_ok() {
            pci::resume(&mut self.device);
        }
    }
}
