//! The registers as words: what the driver wrote is what the I/O cores read.
//!
//! A word is written by the conversation alone and read whole, so no lock stands around it; what must not happen under the
//! driver's eyes (a ring that is stopped, memory that goes away) is ordered by the device, which takes queues back.
//! Interrupt registers and the PHY's are not kept here.

use std::sync::atomic::{AtomicU32, Ordering};

use super::regs;
use crate::device::pci::Image;

/// Words of the register space, and of an image of it.
const WORDS: usize = regs::SPACE as usize / 4;
pub(super) const SAVED: usize = WORDS / 2;

/// The register file.
pub(super) struct Registers {
    words: [AtomicU32; WORDS],
}

impl Registers {
    /// All zero.
    pub(super) fn new() -> Registers {
        Registers { words: [const { AtomicU32::new(0) }; WORDS] }
    }

    /// The word at `offset`; zero where there is none.
    #[inline]
    pub(super) fn get(&self, offset: u32) -> u32 {
        self.words.get(offset as usize / 4).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The two words at `offset`: an address.
    pub(super) fn pair(&self, offset: u32) -> u64 {
        u64::from(self.get(offset)) | u64::from(self.get(offset + 4)) << 32
    }

    pub(super) fn set(&self, offset: u32, value: u32) {
        if let Some(word) = self.words.get(offset as usize / 4) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Sets those bits of the word that `mask` has.
    pub(super) fn change(&self, offset: u32, value: u32, mask: u32) {
        self.set(offset, self.get(offset) & !mask | value & mask);
    }

    /// The values after power on.
    pub(super) fn reset(&self, mac: [u8; 6]) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let [a, b, c, d, e, f] = mac;
        self.set(regs::IDR, u32::from_le_bytes([a, b, c, d]));
        self.set(regs::IDR + 4, u32::from(u16::from_le_bytes([e, f])));
        self.reload();
    }

    /// The values of the chip's own reset: the station's address stays.
    pub(super) fn soft_reset(&self) {
        // Where the status block is outlives the chip's reset, as an e1000's does.
        let kept = [
            regs::IDR,
            regs::IDR + 4,
            regs::MAR,
            regs::MAR + 4,
            regs::CR9346,
            regs::CONFIG3,
            regs::CSBAL,
            regs::CSBAH,
        ];
        let kept = kept.map(|offset| (offset, self.get(offset)));
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for (offset, value) in kept {
            self.set(offset, value);
        }
        self.set(regs::TCR, regs::TCR_VERSION);
    }

    /// What the chip loads from its EEPROM: `CONFIG1` says that both register spaces and power management are there.
    fn reload(&self) {
        self.set(regs::CR9346, 0x000d << 16);
        self.set(regs::TCR, regs::TCR_VERSION);
    }

    /// Two words to a word of `image`.
    pub(super) fn save(&self, image: &mut Image) {
        for (index, pair) in self.words.chunks_exact(2).enumerate() {
            let [low, high] = [0, 1].map(|half| u64::from(pair[half].load(Ordering::Relaxed)));
            image.put(index, low | high << 32);
        }
    }

    /// What was saved.
    pub(super) fn restore(&self, image: &Image) {
        for (index, pair) in self.words.chunks_exact(2).enumerate() {
            let word = image.get(index);
            #[expect(clippy::cast_possible_truncation, reason = "halves")]
            pair.iter().zip([word as u32, (word >> 32) as u32]).for_each(|(word, half)| {
                word.store(half, Ordering::Relaxed);
            });
        }
    }
}
