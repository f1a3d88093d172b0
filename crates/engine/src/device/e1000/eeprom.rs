//! The EEPROM (`device::eeprom`): what stands in it, and the two ways to it: bit by bit through `EECD`, or a
//! word at a time through `EERD` (8254x SDM §13.4.4). The bus of the 82540EM is Microwire, that of the 82574L
//! SPI.

use super::config::Model;
use crate::device::eeprom::{Bus, Chip, CS, DI, DO, SK, WORDS};

/// What all words add up to (8254x SDM §5.6.35).
const SUM: u16 = 0xbaba;

/// `EECD` (8254x SDM §13.4.3), behind the lines: flash write enable, storage.
const FWE: u32 = 3 << 4;
/// Software asks for the bus; it is always granted.
const REQ: u32 = 1 << 6;
const GNT: u32 = 1 << 7;
/// An EEPROM is there.
const PRES: u32 = 1 << 8;
/// The 82574 has loaded its configuration by itself.
const AUTO_RD: u32 = 1 << 9;

/// The EEPROM of `model`.
pub(super) fn eeprom(model: Model, mac: [u8; 6], subsystem: (u16, u16)) -> Chip {
    let mut words = [0xffff; WORDS];
    for (word, pair) in words.iter_mut().zip(mac.chunks_exact(2)) {
        *word = u16::from_le_bytes([pair[0], pair[1]]);
    }
    // Compatibility and LED settings: defaults. Part number: none.
    words[3..10].copy_from_slice(&[0, 0, 0, 0xffff, 0xffff, 0, 0]);
    // Init control 1 and 2 (§5.6.6, §5.6.11); the latter asks for full flow control to be advertised.
    words[0x0a] = 0x6403;
    words[0x0b..0x0f].copy_from_slice(&[subsystem.1, subsystem.0, model.device_id(), 0x8086]);
    words[0x0f] = 0x3040;
    // Init control 3: no wake on LAN.
    (words[0x14], words[0x24]) = (0, 0);
    if model == Model::E1000e {
        // PCIe control, "MSI-X number" (82574 §6.1): five, or FreeBSD's em tries to write it here.
        words[0x1b] = !(7 << 7) | 4 << 7;
    }
    words[WORDS - 1] = 0;
    let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
    words[WORDS - 1] = SUM.wrapping_sub(sum);
    let bus = if model == Model::E1000 { Bus::Microwire } else { Bus::Spi };
    Chip::new(bus, words)
}

/// A write of `EECD`: levels on the wires.
pub(super) fn write_eecd(chip: &mut Chip, value: u32) {
    chip.set_lines(value & (SK | CS | DI | FWE | REQ));
}

/// A read of `EECD`.
pub(super) fn read_eecd(chip: &Chip, model: Model) -> u32 {
    let auto = if model == Model::E1000e { AUTO_RD } else { 0 };
    chip.lines | PRES | GNT | auto | if chip.data() { DO } else { 0 }
}

/// What `EERD` holds after a write of `value`: the word that was asked for (8254x SDM §13.4.4; the fields
/// moved in the 82574, §10.2.2.4).
pub(super) fn eerd(chip: &Chip, model: Model, value: u32) -> u32 {
    let (done, shift, mask) = match model {
        Model::E1000 => (1 << 4, 8, 0xff),
        Model::E1000e => (1 << 1, 2, 0x3fff),
    };
    if value & 1 == 0 {
        return value;
    }
    let address = value >> shift & mask;
    u32::from(chip.word(address as usize)) << 16 | address << shift | done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::eeprom::{COMMAND_BITS, READ, SPI_COMMAND_BITS, SPI_READ};

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

    struct Eeprom {
        chip: Chip,
        model: Model,
    }

    impl Eeprom {
        fn new(model: Model, mac: [u8; 6], subsystem: (u16, u16)) -> Eeprom {
            Eeprom { chip: eeprom(model, mac, subsystem), model }
        }

        fn write_eecd(&mut self, value: u32) {
            write_eecd(&mut self.chip, value);
        }

        fn read_eecd(&self) -> u32 {
            read_eecd(&self.chip, self.model)
        }

        fn eerd(&self, value: u32) -> u32 {
            eerd(&self.chip, self.model, value)
        }
    }

    /// Clocks the lower `bits` of `value` out, with the line `select` where it selects.
    fn out(eeprom: &mut Eeprom, select: u32, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            let di = if value >> bit & 1 != 0 { DI } else { 0 };
            eeprom.write_eecd(REQ | select | di);
            eeprom.write_eecd(REQ | select | di | SK);
            eeprom.write_eecd(REQ | select | di);
        }
    }

    /// Clocks `bits` in.
    fn take(eeprom: &mut Eeprom, select: u32, bits: u32) -> u16 {
        let mut value = 0;
        for _ in 0..bits {
            eeprom.write_eecd(REQ | select | SK);
            value = value << 1 | u16::from(eeprom.read_eecd() & DO != 0);
            eeprom.write_eecd(REQ | select);
        }
        value
    }

    /// Reads `count` words from `address` on as a driver does: levels on wires.
    fn bang(eeprom: &mut Eeprom, address: u32, count: usize) -> Vec<u16> {
        eeprom.write_eecd(REQ);
        assert_ne!(eeprom.read_eecd() & GNT, 0);
        if eeprom.model == Model::E1000 {
            out(eeprom, CS, READ << 6 | address, COMMAND_BITS);
            let words = (0..count).map(|_| take(eeprom, CS, 16)).collect();
            eeprom.write_eecd(0);
            return words;
        }
        // The status register says that it is ready; chip select ends each command.
        out(eeprom, 0, 5, 8);
        assert_eq!(take(eeprom, 0, 8) & 1, 0);
        eeprom.write_eecd(REQ | CS);
        out(eeprom, 0, SPI_READ << 8 | (2 * address), SPI_COMMAND_BITS);
        let words = (0..count).map(|_| take(eeprom, 0, 16).swap_bytes()).collect();
        eeprom.write_eecd(CS);
        words
    }

    #[test]
    fn both_ways_of_reading_agree_and_the_sum_is_right() {
        for (model, address_at, done) in [(Model::E1000, 8, 1 << 4), (Model::E1000e, 2, 1 << 1)] {
            let mut eeprom = Eeprom::new(model, MAC, (0x8086, 0x001e));
            let row = bang(&mut eeprom, 0, WORDS);
            assert_eq!(row.iter().fold(0u16, |sum, word| sum.wrapping_add(*word)), SUM);
            assert_eq!(row[..3], [0x5452, 0x1200, 0x5634]);
            for (address, word) in row.iter().enumerate() {
                let address = u32::try_from(address).unwrap();
                assert_eq!(bang(&mut eeprom, address, 1), [*word]);
                let eerd = eeprom.eerd(address << address_at | 1);
                assert_ne!(eerd & done, 0);
                assert_eq!(eerd >> 16, u32::from(*word));
            }
        }
    }

    #[test]
    fn commands_that_are_not_reads_leave_the_line_ready() {
        let mut eeprom = Eeprom::new(Model::E1000, MAC, (0, 0));
        for bit in [1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1] {
            eeprom.write_eecd(CS | (DI * bit));
            eeprom.write_eecd(CS | (DI * bit) | SK);
        }
        assert_ne!(eeprom.read_eecd() & DO, 0);
        assert_eq!(bang(&mut eeprom, 1, 1), [0x1200]);
    }
}
