//! What the I/O cores and the conversation of a device share, above all the registers as words: what the
//! driver wrote is what the cores read, be it which frames the receiver takes (`RCR`, `MAR`).
//!
//! A word is written by the conversation alone and read whole, so no lock stands around it; what must not
//! happen under the driver's eyes (a ring that is stopped, memory that goes away) is ordered by the device,
//! which takes queues back. Interrupt registers and the PHY's are not kept here.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::irq::IrqState;
use super::regs;
use super::stats::Stats;
use crate::device::nic::{Nic, SharedPart};
use crate::device::pci::Image;
use crate::packet::{is_group, Frame, BROADCAST};

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

    /// What the chip loads from its EEPROM: `CONFIG1` says that both register spaces and power management are
    /// there.
    fn reload(&self) {
        self.set(regs::CR9346, 0x000d << 16);
        self.set(regs::TCR, regs::TCR_VERSION);
    }

    /// Two words to a word of `image`.
    pub(super) fn save(&self, image: &mut Image) {
        image.put_registers(0, &self.words);
    }

    /// What was saved.
    pub(super) fn restore(&self, image: &Image) {
        image.get_registers(0, &self.words);
    }
}

/// Whether the driver asked for frames with the address of this one.
#[inline]
pub(super) fn admits(registers: &Registers, rcr: u32, frame: &Frame) -> bool {
    let dst = frame.dst();
    if is_group(dst) {
        return if dst == BROADCAST {
            rcr & regs::RCR_AB != 0
        } else {
            rcr & regs::RCR_AM != 0 && registers.pair(regs::MAR) >> hash(dst) & 1 != 0
        };
    }
    let own = registers.pair(regs::IDR) & BROADCAST;
    rcr & regs::RCR_AAP != 0 || rcr & regs::RCR_APM != 0 && dst == own
}

/// The place of a group address in the hash table: the six highest bits of its CRC (802.3 §3.2.9), as it is
/// before it is complemented.
fn hash(address: u64) -> u32 {
    /// The polynomial, its highest power in the lowest bit; of each value of four bits what they leave.
    const TABLE: [u32; 16] = {
        let mut table = [0u32; 16];
        let mut value = 0u32;
        while value < 16 {
            let mut crc = value;
            let mut bit = 0;
            while bit < 4 {
                crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
                bit += 1;
            }
            table[value as usize] = crc;
            value += 1;
        }
        table
    };
    let step = |crc: u32, nibble: u32| crc >> 4 ^ TABLE[((crc ^ nibble) & 0xf) as usize];
    let crc = (0..12).fold(u32::MAX, |crc, at| step(crc, (address >> (4 * at) & 0xf) as u32));
    crc.reverse_bits() >> 26
}

/// What the I/O cores and the conversation share.
pub(super) type NicState = Nic<RealtekPart>;

/// What a Realtek part has beside what all cards share.
pub struct RealtekPart {
    /// There is a status block.
    pub(super) csb: bool,
    pub(super) regs: Registers,
    pub(super) stats: Stats,
    /// Descriptors of the transmit and the receive ring, as far as they have been seen.
    pub(super) sizes: [AtomicU32; 2],
    /// Doorbells: all of them trapped.
    pub(super) doorbells: AtomicU64,
}

impl RealtekPart {
    /// Where the status block is; zero if there is none.
    #[inline]
    pub(super) fn block(&self) -> u64 {
        match self.regs.get(regs::CSBAL) {
            0 => 0,
            _ => self.regs.pair(regs::CSBAL),
        }
    }
}

impl SharedPart for RealtekPart {
    type Causes = IrqState;
    /// Each doorbell wakes it.
    const NAP_IF_TRAPPING: Option<Duration> = None;

    fn always_traps(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// The hashes of 01:00:5e:00:00:01 (all hosts) and 33:33:00:00:00:01 (all nodes), as drivers work them
    /// out bit by bit.
    #[test]
    fn the_hash_is_that_of_a_crc_bit_by_bit() {
        for address in [[1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [0xff; 6], [1, 0x80, 0xc2, 0, 0, 0]]
        {
            let mut crc = u32::MAX;
            for byte in address {
                for bit in 0..8 {
                    let carry = crc >> 31 ^ u32::from(byte >> bit & 1u8);
                    crc = crc << 1 ^ if carry & 1 != 0 { 0x04c1_1db7 } else { 0 };
                }
            }
            let mut word = [0; 8];
            word[..6].copy_from_slice(&address);
            assert_eq!(hash(u64::from_le_bytes(word)), crc >> 26, "{address:x?}");
        }
    }
}
