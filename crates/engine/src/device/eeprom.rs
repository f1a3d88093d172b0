//! A serial EEPROM of 64 words, read-only, as NICs have it: a driver bangs its lines bit by bit.
//!
//! Two buses. Microwire (8254x SDM §5.3; the 93C46): words, selected by a high line. SPI: bytes, the lower
//! one of a word first, selected by a low line; U-Boot reads the 82574L's so. Write commands are taken and
//! forgotten.

/// Words in it.
pub(super) const WORDS: usize = 64;
const BITS: u32 = 16 * 64;

/// Lines: clock, chip select, data in, data out. A device keeps others of its own beside the first three.
pub(super) const SK: u32 = 1;
pub(super) const CS: u32 = 1 << 1;
pub(super) const DI: u32 = 1 << 2;
pub(super) const DO: u32 = 1 << 3;

/// Start bit and opcode of a read: 110 in binary.
pub(super) const READ: u32 = 6;
/// Bits of start, opcode and address of a 64-word part.
pub(super) const COMMAND_BITS: u32 = 9;
/// SPI: a read, but for the bit in which larger parts take an address bit, and a byte of address.
pub(super) const SPI_READ: u32 = 3;
const SPI_A8: u32 = 1 << 3;
pub(super) const SPI_COMMAND_BITS: u32 = 16;

/// How it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bus {
    Microwire,
    Spi,
}

/// The EEPROM and its serial port.
pub(super) struct Chip {
    words: [u16; WORDS],
    bus: Bus,
    /// The levels that were set last.
    pub(super) lines: u32,
    /// Bits shifted in since it was selected.
    shifted: u32,
    bits: u32,
    /// The bit that is being read, counted from the first word's highest; none while commands come in.
    reading: Option<u32>,
}

impl Chip {
    /// One that holds `words`.
    pub(super) fn new(bus: Bus, words: [u16; WORDS]) -> Chip {
        Chip { words, bus, lines: 0, shifted: 0, bits: 0, reading: None }
    }

    /// Where the serial port is in a command, to be saved.
    pub(super) fn wires(&self) -> [u32; 4] {
        [self.lines, self.shifted, self.bits, self.reading.map_or(0, |bit| bit + 1)]
    }

    /// Where it was.
    pub(super) fn restore(&mut self, [lines, shifted, bits, reading]: [u32; 4]) {
        (self.lines, self.shifted, self.bits) = (lines, shifted, bits);
        self.reading = reading.checked_sub(1).map(|bit| bit % BITS);
    }

    /// Word `at`; ones beyond the end.
    pub(super) fn word(&self, at: usize) -> u16 {
        self.words.get(at).copied().unwrap_or(0xffff)
    }

    /// Levels on the lines.
    pub(super) fn set_lines(&mut self, value: u32) {
        let rose = value & !self.lines;
        let fell = self.lines & !value;
        self.lines = value;
        let selected = (value & CS != 0) == (self.bus == Bus::Microwire);
        if !selected || (rose | fell) & CS != 0 {
            (self.shifted, self.bits, self.reading) = (0, 0, None);
        }
        if !selected {
            return;
        }
        if rose & SK != 0 && self.reading.is_none() {
            self.shifted = self.shifted << 1 | u32::from(value & DI != 0);
            // Microwire: leading zeros before the start bit do not count (8254x SDM §5.3.1).
            let counts = self.shifted != 0 || self.bus == Bus::Spi;
            self.bits = self.bits.saturating_add(u32::from(counts));
        }
        if fell & SK != 0 {
            self.reading = match self.reading {
                Some(bit) => Some((bit + 1) % BITS),
                None => self.asked(),
            };
        }
    }

    /// The first bit that a read asks for, if the command is one and complete.
    fn asked(&self) -> Option<u32> {
        let (bits, sent) = (self.bits, self.shifted);
        match self.bus {
            Bus::Microwire => (bits == COMMAND_BITS && sent >> 6 == READ).then_some(16 * (sent & 0x3f)),
            Bus::Spi => {
                let read = bits == SPI_COMMAND_BITS && sent >> 8 & !SPI_A8 == SPI_READ;
                read.then_some(8 * (sent & 0x7f))
            }
        }
    }

    /// The level of its data line.
    pub(super) fn data(&self) -> bool {
        match (self.reading, self.bus) {
            (Some(bit), bus) => {
                let word = self.word((bit / 16) as usize);
                let row = if bus == Bus::Microwire { word } else { word.swap_bytes() };
                row >> (15 - bit % 16) & 1 != 0
            }
            // Ready: a high line, and the status register's lowest bit clear.
            (None, bus) => bus == Bus::Microwire,
        }
    }
}
