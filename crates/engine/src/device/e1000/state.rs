//! The registers as words: what the driver wrote is what the I/O cores read.
//!
//! Everything but pages 2 and 3 lies in private memory; those two are the pages that the guest maps. A word
//! is written by one side at a time and read whole, so no lock stands around them; whatever must not happen
//! under the driver's eyes (a ring that is stopped, memory that goes away) is ordered by the device, which
//! takes queues back, and not by these words.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use sidecore_abi::csb::{CSBAH, CSBAL};

use super::config::Model;
use super::regs::{self, ring};
use crate::device::pci::Image;
use crate::mem::SharedPages;

/// Words of an image that the private registers take.
pub(super) const SAVED: usize = regs::STORED as usize / 8 + 8;

/// The register file.
pub(super) struct Registers {
    words: Box<[AtomicU32]>,
    /// `TIMINCA`, far behind the others.
    increment: AtomicU32,
    /// Byte 0 of it is byte 0 of BAR 0; only `regs::SHARED` is used.
    pub(super) pages: Arc<SharedPages>,
    /// Which of `words`, a line each, were written since the last save.
    dirty: [AtomicU64; LINES.div_ceil(64)],
}

/// Words that are saved together, and how many such lines there are.
const LINE: usize = 64;
const LINES: usize = regs::STORED as usize / 4 / LINE;

impl Registers {
    /// All zero, but for the pages of a device that is taken over.
    pub(super) fn new(pages: Option<OwnedFd>) -> std::io::Result<Registers> {
        let words = (0..regs::STORED / 4).map(|_| AtomicU32::new(0)).collect();
        let size = regs::SHARED.end as usize;
        let pages = match pages {
            Some(file) => SharedPages::adopt(file, size)?,
            None => SharedPages::new(c"sidecore-e1000", size)?,
        };
        let dirty = [const { AtomicU64::new(u64::MAX) }; LINES.div_ceil(64)];
        Ok(Registers { words, increment: AtomicU32::new(0), pages: Arc::new(pages), dirty })
    }

    /// The private registers, two to a word of `image`; what was not written since the last time is left out.
    pub(super) fn save(&self, image: &mut Image) {
        for line in 0..LINES {
            let bit = 1 << (line % 64);
            if self.dirty[line / 64].load(Ordering::Relaxed) & bit == 0 {
                continue;
            }
            self.dirty[line / 64].fetch_and(!bit, Ordering::Relaxed);
            image.put_registers(line * LINE / 2, &self.words[line * LINE..(line + 1) * LINE]);
        }
        image.put(SAVED - 1, self.get(regs::TIMINCA).into());
    }

    /// What was saved.
    pub(super) fn restore(&self, image: &Image) {
        image.get_registers(0, &self.words);
        self.increment.store(u32::try_from(image.get(SAVED - 1)).unwrap_or(0), Ordering::Relaxed);
    }

    #[inline]
    fn word(&self, offset: u32) -> Option<&AtomicU32> {
        if regs::SHARED.contains(&offset) {
            self.pages.word(offset as usize)
        } else if offset == regs::TIMINCA {
            Some(&self.increment)
        } else {
            self.words.get(offset as usize / 4)
        }
    }

    /// The word at `offset`; zero where nothing is stored.
    pub(super) fn get(&self, offset: u32) -> u32 {
        self.word(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The word at `offset`; what the driver wrote before it is seen by reads after this one.
    pub(super) fn acquire(&self, offset: u32) -> u32 {
        self.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn set(&self, offset: u32, value: u32) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
        }
        // The shared pages are not saved, and I/O cores write them.
        let line = offset as usize / 4 / LINE;
        if let Some(dirty) = self.dirty.get(line / 64).filter(|_| !regs::SHARED.contains(&offset)) {
            dirty.fetch_or(1 << (line % 64), Ordering::Relaxed);
        }
    }

    /// Sets the word on a shared page if it is still `old`; false if the driver has written it.
    pub(super) fn replace(&self, offset: u32, old: u32, new: u32) -> bool {
        self.word(offset)
            .is_some_and(|word| word.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok())
    }

    pub(super) fn change(&self, offset: u32, clear: u32, set: u32) {
        self.set(offset, self.get(offset) & !clear | set);
    }

    /// The values after reset (8254x SDM §13.4; 82574 §10.2). Interrupt registers are not kept here.
    pub(super) fn reset(&self, model: Model, mac: [u8; 6], link: bool, pcix: bool, csb: bool) {
        // Where the status block is outlives the chip's reset (FreeBSD's lem names it before its first one).
        let block = [CSBAL, CSBAH].map(|register| (register, self.get(register)));
        for word in &self.words {
            word.store(0, Ordering::Relaxed);
        }
        for dirty in &self.dirty {
            dirty.store(u64::MAX, Ordering::Relaxed);
        }
        // Kept free of whatever the driver left there: a stale tail would be taken for work.
        self.pages.clear(regs::SHARED.start as usize, regs::SHARED.end as usize);
        for (register, value) in block.into_iter().filter(|_| csb) {
            self.set(register, value);
        }
        self.set(regs::CTRL, regs::CTRL_SLU | regs::CTRL_SPD_1000 | regs::CTRL_SWDPINS);
        let link = if link { regs::STATUS_LU } else { 0 };
        self.set(regs::STATUS, regs::STATUS_RESET | link | if pcix { regs::STATUS_PCIX } else { 0 });
        self.set(regs::LEDCTL, 0x602);
        // Management traffic is not ours, but the bits read as the part's defaults.
        self.set(regs::MANC, 1 << 21 | 1 << 17 | 1 << 13 | 1 << 10 | 1 << 8);
        self.set(regs::RA, u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]));
        self.set(regs::RA + 4, u32::from(u16::from_le_bytes([mac[4], mac[5]])) | regs::RAH_AV);
        self.set(regs::VET, 0x8100);
        match model {
            Model::E1000 => self.set(regs::PBA, 0x0010_0030),
            Model::E1000e => {
                self.set(regs::PBA, 0x0014_0014);
                self.set(regs::EXTCNF_CTRL, 1 << 3);
                // Configuration of both ports is done.
                self.set(regs::EEMNGCTL, 1 << 18 | 1 << 31);
                self.set(regs::TIPG, 0x0060_2008);
                self.set(regs::TARC0, 0x403);
                self.set(regs::TARC1, 0x403);
                self.set(regs::RXCSUM, regs::RXCSUM_IPOFL | regs::RXCSUM_TUOFL);
            }
        }
    }

    /// What a read of a word without side effects of its own gives.
    pub(super) fn read(&self, offset: u32) -> u32 {
        match offset {
            // Reading takes the semaphore (82574 §10.2.2.17): zero once, then one.
            regs::SWSM => {
                let value = self.get(offset);
                self.set(offset, value | 1);
                value
            }
            _ => self.get(offset),
        }
    }

    /// A write of a word without side effects outside of these registers.
    pub(super) fn write(&self, offset: u32, value: u32) {
        match offset {
            // Read-only ones.
            regs::STATUS | regs::EEMNGCTL | regs::FWSM | 0x0180 => {}
            _ => self.set(offset, value & kept(offset)),
        }
    }
}

/// The bits that a register keeps of what is written: some are narrower than a word, and drivers' self-tests
/// look for it. A store to a mapped page keeps everything; a reader of such a register takes the bits that
/// count.
fn kept(offset: u32) -> u32 {
    const HALF: u32 = 0xffff;
    const RA_END: u32 = regs::RA + 0x80;
    const RINGS: [u32; 4] = [regs::RX_RING, regs::RX_RING_1, regs::TX_RING, regs::TX_RING_1];
    match offset {
        regs::FCAH | regs::FCT | regs::VET | regs::FCTTV => HALF,
        regs::TIPG => 0x3fff_ffff,
        // The high words: half an address, which of them is compared, whether it is in use (8254x SDM
        // §13.5.3).
        regs::RA..RA_END if offset % 8 == 4 => regs::RAH_AV | 3 << 16 | HALF,
        _ => match RINGS.iter().find_map(|ring| offset.checked_sub(*ring).filter(|at| *at < ring::END)) {
            Some(ring::BAL) => !0xf,
            Some(ring::LEN) => ring::LEN_MASK,
            Some(ring::HEAD | ring::TAIL | ring::DELAY | ring::ABSOLUTE_DELAY) => HALF,
            _ => !0,
        },
    }
}
