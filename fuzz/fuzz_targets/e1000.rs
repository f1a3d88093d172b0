//! A driver that does anything to an e1000 or e1000e: registers in any order by traps and by the mapped
//! pages, descriptors and buffers rewritten at any time, memory taken away and given back, resets, link
//! changes, another process that takes the card over, in the middle of a batch, too, and with words of its
//! state changed. Nothing may panic, every frame lies inside the guest's memory, and every frame given is
//! accounted for.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use sidecore_abi::csb::{CSBAH, CSBAL};
use sidecore_engine::device::e1000::{regs, E1000Config, Model, E1000};
use sidecore_engine::device::pci::{self, Image, Index, PciDevice};
use sidecore_engine::graph::Scheduler;
use sidecore_engine::mem::SharedPages;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::Port;
use sidecore_fuzz::fuzz_target;
use sidecore_fuzz::nic::{World, BUFFERS};
use sidecore_fuzz::{anonymous_port, ManualScheduler, GPA, MEMORY};

/// Registers that do something, so that a byte chooses one of them.
const REGISTERS: [u32; 59] = [
    regs::CTRL,
    regs::STATUS,
    regs::EECD,
    regs::EERD,
    regs::MDIC,
    regs::CTRL_EXT,
    regs::VET,
    regs::ICR,
    regs::ITR,
    regs::ICS,
    regs::IMS,
    regs::IMC,
    regs::EIAC,
    regs::IAM,
    regs::IVAR,
    regs::EITR0,
    regs::EITR0 + 4,
    regs::RCTL,
    regs::TCTL,
    regs::RXCSUM,
    regs::RFCTL,
    regs::MTA,
    regs::RA,
    regs::RA + 4,
    regs::VFTA,
    regs::PSRCTL,
    0x4010,
    0x4088,
    regs::SYSTIML,
    regs::TIMINCA,
    0x2820,
    0x282c,
    0x3820,
    0x382c,
    0x2800,
    0x2804,
    0x2808,
    0x2810,
    0x2818,
    0x3800,
    0x3804,
    0x3808,
    0x3810,
    0x3818,
    CSBAL,
    CSBAH,
    0x2900,
    0x2908,
    0x2910,
    0x2918,
    0x3900,
    0x3908,
    0x3910,
    0x3918,
    regs::MRQC,
    regs::RETA,
    regs::RETA + 0x7c,
    regs::RSSRK,
    regs::RSSRK + 0x24,
];
/// Where the presets put the rings, in guest memory.
const TX: u64 = 0x1000;
const RX: u64 = 0x2000;
/// Descriptors of a preset ring.
const RING: u32 = 16;

thread_local! {
    static WORLD: std::cell::RefCell<World> = std::cell::RefCell::new(World::new());
}

fuzz_target!(|data: &[u8]| {
    let [flags, data @ ..] = data else { return };
    WORLD.with_borrow_mut(|world| Run::new(world, *flags).run(data));
});

struct Run<'a> {
    world: &'a mut World,
    device: E1000,
    port: Arc<Port>,
    scheduler: Arc<ManualScheduler>,
    pages: Arc<SharedPages>,
    config: E1000Config,
    /// The presets use both rings of each direction.
    pair: bool,
}

fn mapped(device: &E1000) -> Arc<SharedPages> {
    device.regions()[0].as_ref().unwrap().mappable.as_ref().unwrap().pages.clone()
}

impl Run<'_> {
    fn new(world: &mut World, flags: u8) -> Run<'_> {
        let model = if flags & 1 == 0 { Model::E1000 } else { Model::E1000e };
        let (port, scheduler) = (anonymous_port(), Arc::new(ManualScheduler::default()));
        port.fault.clear();
        world.guest.write(0, &[0; MEMORY as usize]);
        let mut config = E1000Config::new(model, Mac([2, 0, 0, 0, 0, 1]));
        config.pcix = flags & 2 != 0;
        config.csb = flags & 8 != 0;
        config.receive_share = if flags & 16 != 0 { 50 } else { 100 };
        let mut device =
            E1000::new(config, Arc::clone(&port), Arc::clone(&scheduler) as Arc<dyn Scheduler>).unwrap();
        let pages = mapped(&device);
        if flags & 4 != 0 {
            for (index, number) in [(Index::Intx, 0), (Index::Msi, 0), (Index::Msix, 0), (Index::Msix, 1)] {
                let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
                device.interrupts().set_trigger(index, number, Some(event));
            }
        }
        device.dma_changed(Arc::clone(&world.maps[0]));
        Run { world, device, port, scheduler, pages, config, pair: flags & 32 != 0 }
    }

    fn run(mut self, mut data: &[u8]) {
        while let Some(([what, a, b, c, d, e], rest)) = data.split_first_chunk::<6>() {
            data = rest;
            let register = if a & 0x80 == 0 {
                REGISTERS[usize::from(*a) % REGISTERS.len()]
            } else {
                u32::from_le_bytes([*a & 0x7f, *b, 0, 0]) << 2 & 0x1_fffc
            };
            let value = u32::from_le_bytes([*b, *c, *d, *e]);
            match what % 16 {
                0 | 1 => self.device.write(0, u64::from(register), &value.to_le_bytes()),
                2 => self.device.read(0, u64::from(register), &mut [0; 4]),
                3 | 4 => {
                    if let Some(word) = self.pages.word((register & 0x3ffc) as usize) {
                        word.store(value, Ordering::Release);
                    }
                }
                5 => self.device.write(usize::from(*a % 6), u64::from(*b), &value.to_le_bytes()),
                6 => pci::write_config(&mut self.device, u64::from(*a), &[*b, *c]),
                7 => {
                    // A descriptor or anything else: so many bytes of what follows.
                    let bytes = &data[..usize::from(*c).min(data.len())];
                    data = &data[bytes.len()..];
                    self.world.guest.write(u64::from(u16::from_le_bytes([*a, *b])), bytes);
                }
                8 => self.describe(*a, [*b, *c, *d, *e]),
                9 | 10 => self.scheduler.poll(&mut self.world.batch),
                11 => self.world.send(&self.port, *a, u16::from_le_bytes([*b, *c]) & 0x3fff, *d),
                12 => self.device.dma_changed(Arc::clone(&self.world.maps[usize::from(*a) % 4])),
                13 => self.device.set_link(a & 1 != 0),
                14 => self.bring_up(),
                _ if *a == 0 => pci::reset(&mut self.device),
                _ if *a == 1 || *a == 2 => self.take_over(*b, *a == 2, [*c, *d, *e]),
                _ => drop((self.device.queues(), self.device.features())),
            }
            // As the conversation does.
            if self.port.fault.get().is_some() {
                self.device.faulted(self.port.fault.get().unwrap());
                assert!(self.port.egress(0).unwrap().is_none(), "a stopped device still receives");
            }
        }
        self.device.detached();
        assert!(self.scheduler.is_empty(), "a queue stayed behind");
    }

    /// What a driver does, so that the fuzzer need not find it out.
    fn bring_up(&mut self) {
        pci::write_config(&mut self.device, 4, &[0b111, 0]);
        // The second rings lie where the first ones do: what a driver may not do harms only itself.
        let rings = [(regs::TX_RING, TX), (regs::RX_RING, RX), (regs::TX_RING_1, TX), (regs::RX_RING_1, RX)];
        for (at, base) in rings.into_iter().take(if self.pair { 4 } else { 2 }) {
            let words = [(0, (GPA + base) as u32), (4, 0), (8, RING * 16), (0x10, 0), (0x18, 0)];
            for (offset, value) in words {
                self.pages.word((at + offset) as usize).unwrap().store(value, Ordering::Release);
            }
        }
        for n in 0..RING {
            self.world
                .guest
                .write(RX + 16 * u64::from(n), &(GPA + BUFFERS + 0x800 * u64::from(n)).to_le_bytes());
        }
        for (register, value) in [
            (regs::TCTL, regs::TCTL_EN | regs::TCTL_PSP),
            (regs::RCTL, regs::RCTL_EN | regs::RCTL_UPE | regs::RCTL_MPE | regs::RCTL_BAM),
            (regs::IMS, u32::MAX),
            (regs::RETA, 0x8000_8000),
            (regs::MRQC, if self.pair { !2 } else { 0 }),
        ] {
            let before = if register == regs::RCTL { self.rctl() } else { 0 };
            self.device.write(0, u64::from(register), &(value | before).to_le_bytes());
        }
        for at in regs::RX_RINGS {
            self.pages.word((at + 0x18) as usize).unwrap().store(RING - 1, Ordering::Release);
        }
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
            image.put(usize::from(at) * (1 + usize::from(high & 7)) % image.size(), word);
        } else if lies {
            // The journal of one ring: its words, or those of its entries.
            let place = u64::from(how & 3) * 8 * (32 + 3 * 1024) + 8 * u64::from(at % 44);
            rustix::io::pwrite(&files[1], &word.to_ne_bytes(), place).unwrap();
        }
        let (port, scheduler) = (Arc::clone(&self.port), Arc::clone(&self.scheduler));
        let mut next = E1000::new(self.config, port, scheduler as Arc<dyn Scheduler>).unwrap();
        let adopted = next.persist().unwrap().adopt(files, &image);
        assert!(lies || adopted.is_ok(), "{adopted:?}");
        // The former process is gone.
        self.device = next;
        self.device.dma_changed(Arc::clone(&self.world.maps[usize::from(how) % 4]));
        if adopted.is_ok() {
            pci::resume(&mut self.device);
        }
        self.pages = mapped(&self.device);
    }

    fn rctl(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.device.read(0, u64::from(regs::RCTL), &mut bytes);
        // What was chosen of sizes and formats stays.
        u32::from_le_bytes(bytes) & 0x0203_0c00
    }

    /// A transmit descriptor at the preset ring's place, plausible but for what the bytes change; the tail
    /// behind it.
    fn describe(&mut self, place: u8, [command, option, low, high]: [u8; 4]) {
        let ring = regs::TX_RINGS[usize::from(self.pair && place & 0x80 != 0)];
        let place = u32::from(place) % RING;
        let word = u64::from(u16::from_le_bytes([low, high]) & 0x3fff)
            | u64::from(command & 0x30) << 16
            | u64::from(command & 0xcf) << 24
            | u64::from(option) << 40;
        let word = if command & 0x10 != 0 { word | 1 << 29 | 1 << 20 } else { word };
        let at = TX + 16 * u64::from(place);
        self.world.guest.write(at, &(GPA + BUFFERS + 0x400 * u64::from(option)).to_le_bytes());
        self.world.guest.write(at + 8, &word.to_le_bytes());
        self.pages.word((ring + 0x18) as usize).unwrap().store((place + 1) % RING, Ordering::Release);
    }
}
