//! The EEPROM, a 93C46 (`device::eeprom`), and the way to it: its lines in `9346CR`.

use super::regs::{EECS, EEDI, EEDO, EEM, EEM_PROGRAM, EESK};
use crate::device::eeprom::{Bus, Chip, CS, DI, SK, WORDS};

/// What its first word says: there are contents.
const IDENTIFICATION: u16 = 0x8129;
/// Where the station's address stands.
const ADDRESS: usize = 7;

pub(super) struct Eeprom {
    chip: Chip,
}

impl Eeprom {
    pub(super) fn new(mac: [u8; 6]) -> Eeprom {
        let mut words = [0; WORDS];
        // Identification, as in configuration space: chip, subsystem.
        words[..5].copy_from_slice(&[IDENTIFICATION, 0x10ec, 0x8169, 0x10ec, 0x8169]);
        for (word, pair) in words[ADDRESS..].iter_mut().zip(mac.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        Eeprom { chip: Chip::new(Bus::Microwire, words) }
    }

    /// A write of `9346CR`.
    pub(super) fn write(&mut self, value: u32) {
        // In other modes the lines are not driven.
        let on = value & EEM == EEM_PROGRAM;
        let lines = [(EESK, SK), (EECS, CS), (EEDI, DI)];
        let lines = lines.iter().filter(|(bit, _)| on && value & bit != 0);
        self.chip.set_lines(lines.fold(0, |all, (_, line)| all | line));
    }

    /// What `9346CR` shows of its data line.
    pub(super) fn data(&self) -> u32 {
        if self.chip.data() {
            EEDO
        } else {
            0
        }
    }

    /// Where the serial port is in a command, to be saved.
    pub(super) fn wires(&self) -> [u32; 4] {
        self.chip.wires()
    }

    /// Where it was.
    pub(super) fn restore(&mut self, wires: [u32; 4]) {
        self.chip.restore(wires);
    }
}
