//! The memory device: a function whose BAR is the region, and registers that say what is where in it.
//!
//! It moves no frames and reaches no guest memory. What it offers is the guest's to read and write at any
//! time; the queues that serve the rings (`sender`, `receiver`) trust none of it.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use sidecore_abi::netmap::If;
use sidecore_abi::ptnet::memdev;
use sidecore_abi::ring::Info;

use super::bar::{Bar, Current, PtnetFunction};
use super::function::{memory_config, memory_regions};
use crate::device::pci::{
    answer, Command, ConfigSpace, Format, Image, Interrupts, PciDevice, Persist, Region as Window, REGIONS,
};
use crate::mem::GuestMap;
use crate::port::{Port, QueueStatus};
use crate::ring::Side;
use crate::util::fault::Fault;
use crate::util::slice::{behind_mut, put};

/// The memory of a ptnet device.
pub struct MemoryDevice {
    config: ConfigSpace,
    interrupts: Arc<Interrupts>,
    /// What its VMM has.
    bar: Arc<Bar>,
    /// What the next one is to have.
    current: Current,
    /// It stands alone, in its holder's process, at this end of a pipe if at any.
    alone: Option<Side>,
}

impl MemoryDevice {
    /// That of `current`; `beside` is for its conversation alone.
    pub(super) fn new(current: &Current, beside: &Port, alone: Option<Side>) -> MemoryDevice {
        let bar = current.get();
        MemoryDevice {
            config: memory_config(&memory_regions(&bar.pages)),
            interrupts: Interrupts::new(false, 0, 0, &beside.overrun),
            bar,
            current: current.clone(),
            alone,
        }
    }

    /// A register; zero where there is none.
    #[expect(clippy::cast_possible_truncation, reason = "halves, and places below 4 GiB")]
    fn register(&self, offset: u64) -> u32 {
        let bar = &self.bar;
        let info @ Info {
            memsize,
            tx_rings,
            rx_rings,
            host_rings,
            ring_size,
            ring_pool,
            buf_pool,
            bufs,
            buf_size,
            ..
        } = *bar.region.info();
        // A pipe's end has a pair of idle rings beside, as its host's.
        let rings = u64::from(tx_rings + rx_rings) + if host_rings == 0 { 2 } else { 0 };
        let interface = size_of::<If>() as u64 + 8 * rings;
        let word = match offset {
            memdev::MEMSIZE_LO => memsize,
            memdev::MEMSIZE_HI => memsize >> 32,
            memdev::MEMID => bar.id.into(),
            memdev::IF_POOL..=0x4b => of_pool([info.interface, 1, interface], offset - memdev::IF_POOL),
            memdev::RING_POOL..=0x57 => {
                of_pool([ring_pool, rings, ring_size.into()], offset - memdev::RING_POOL)
            }
            memdev::BUF_POOL..=0x63 => {
                of_pool([buf_pool, bufs.into(), buf_size.into()], offset - memdev::BUF_POOL)
            }
            _ => 0,
        };
        word as u32
    }
}

/// The register at `offset` of a pool, which has these three.
fn of_pool(registers: [u64; 3], offset: u64) -> u64 {
    usize::try_from(offset / 4).ok().and_then(|place| registers.get(place)).copied().unwrap_or(0)
}

impl PciDevice for MemoryDevice {
    fn attached(&mut self) -> io::Result<()> {
        self.bar = self.current.join(PtnetFunction::Memory)?;
        Ok(())
    }

    fn regions(&self) -> [Option<Window>; REGIONS] {
        memory_regions(&self.bar.pages)
    }

    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        let word = match region {
            0 => self.register(offset & !3),
            // The VMM has no mapping of it, or does not use it.
            memdev::MEMORY_BAR => {
                let pages = &self.bar.pages;
                let word = usize::try_from(offset & !3).ok().and_then(|at| pages.word(at));
                word.map_or(0, |word| word.load(Ordering::Acquire))
            }
            _ => return,
        };
        answer(word, offset, data);
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8]) {
        let pages = &self.bar.pages;
        let word = usize::try_from(offset & !3).ok().and_then(|at| pages.word(at));
        let Some(word) = word.filter(|_| region == memdev::MEMORY_BAR) else { return };
        let (skip, mut mask, mut value) = (usize::try_from(offset & 3).unwrap_or(0), [0; 4], [0; 4]);
        put(&mut value, skip, data);
        behind_mut(&mut mask, skip).iter_mut().zip(data).for_each(|(mask, _)| *mask = 0xff);
        let (mask, value) = (u32::from_le_bytes(mask), u32::from_le_bytes(value));
        let change = |before: u32| Some(before & !mask | value);
        // It always says what the word becomes.
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    fn command_changed(&mut self, _: Command) {}

    /// It reaches none.
    fn dma_changed(&mut self, _: Arc<GuestMap>) {}

    /// What is in the memory is the other function's affair.
    fn reset(&mut self) {}

    fn faulted(&mut self, _: Fault) {}

    fn detached(&mut self) {
        self.current.leave(PtnetFunction::Memory, &self.bar);
    }

    fn set_link(&mut self, _: bool) {}

    fn queues(&self) -> Vec<QueueStatus> {
        Vec::new()
    }

    fn features(&self) -> Vec<String> {
        Vec::new()
    }

    fn persist(&mut self) -> Option<&mut dyn Persist> {
        Some(self)
    }
}

/// Its image is its configuration space: all else is the NIC's, which is taken over first.
impl Persist for MemoryDevice {
    fn format(&self) -> Format {
        Format { kind: "ptnet memory".to_owned(), version: 1, size: 256 / 8 }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bar.region.file()]
    }

    fn save(&mut self, image: &mut Image) {
        image.put_bytes(0, &self.config.bytes);
    }

    fn adopt(&mut self, files: Vec<OwnedFd>, image: &Image) -> Result<(), String> {
        if let (Some(side), Some(file)) = (self.alone, files.first()) {
            let file = file.try_clone().map_err(|e| e.to_string())?;
            let bar = self.current.source().adopt(file, self.bar.id, side).map_err(|e| e.to_string())?;
            self.current.take_over(&bar);
        }
        let current = self.current.get();
        if !files.first().is_some_and(|file| current.is(file)) {
            return Err("its NIC has other memory: the VMM of that one is gone".to_owned());
        }
        self.config.restore(image, 0)?;
        self.current.stay(PtnetFunction::Memory);
        self.bar = current;
        Ok(())
    }

    fn resume(&mut self) {}

    fn stand_still(&mut self) -> bool {
        true
    }

    fn suspend(&mut self) {}
}
