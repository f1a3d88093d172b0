//! The PHY behind `PHYAR`: an RTL8211 with the registers of IEEE 802.3 §22.2.4. Accesses end at once; the link is what the port's
//! carrier is.
//!
//! Register 31 selects a page. Drivers write settings of the analogue part to other pages: those are blank here, and take
//! nothing.

/// `PHYAR`: an access to be done, and whether it is a write; a read that is done has the same bit.
const FLAG: u32 = 1 << 31;

const CONTROL: usize = 0;
const STATUS: usize = 1;
const PARTNER: usize = 5;
const GIGABIT_STATUS: usize = 10;
const PAGE: usize = 31;
pub(super) const COUNT: usize = 32;

/// Control: reset, restart auto-negotiation; both clear themselves (802.3 §22.2.4.1).
const SELF_CLEARING: u16 = 1 << 15 | 1 << 9;
/// Control: what is sent comes back (802.3 §22.2.4.1.2).
const LOOPBACK: u16 = 1 << 14;
/// Status: auto-negotiation complete and link (802.3 §22.2.4.2).
const LINKED: u16 = 1 << 5 | 1 << 2;
/// Partner: acknowledge, and all that there is with pause.
const ABILITIES: u16 = 0x45e1;
/// Gigabit status: both receivers work, the partner has gigabit, full duplex (802.3 §40.5.1).
const GIGABIT: u16 = 1 << 13 | 1 << 12 | 1 << 11;
const READ_ONLY: u32 =
    1 << STATUS | 1 << 2 | 1 << 3 | 1 << PARTNER | 1 << 6 | 1 << GIGABIT_STATUS | 1 << 15 | 1 << 17;

pub(super) struct Phy {
    words: [u16; COUNT],
    link: bool,
}

impl Phy {
    pub(super) fn new(link: bool) -> Phy {
        let mut phy = Phy { words: [0; COUNT], link };
        phy.reset();
        phy
    }

    /// Registers as after power on; the link stays.
    pub(super) fn reset(&mut self) {
        let w = &mut self.words;
        *w = [0; COUNT];
        // Auto-negotiation at gigabit; all speeds, and more in register 15; an RTL8211.
        (w[CONTROL], w[STATUS], w[2], w[3]) = (0x1140, 0x7949, 0x001c, 0xc910);
        (w[4], w[6], w[9], w[15]) = (0x0de1, 1 << 2, 0x0300, 3 << 12);
        self.set_link(self.link);
    }

    /// Its registers, to be saved.
    pub(super) fn words(&self) -> [u16; COUNT] {
        self.words
    }

    /// Those that were saved.
    pub(super) fn restore(&mut self, words: [u16; COUNT]) {
        self.words = words;
    }

    /// The carrier came or went.
    pub(super) fn set_link(&mut self, up: bool) {
        self.link = up;
        for (at, bits) in [(STATUS, LINKED), (PARTNER, ABILITIES), (GIGABIT_STATUS, GIGABIT)] {
            self.words[at] = self.words[at] & !bits | if up { bits } else { 0 };
        }
    }

    /// Whether the driver has what it sends come back.
    pub(super) fn is_looped(&self) -> bool {
        self.words[CONTROL] & LOOPBACK != 0
    }

    /// What `PHYAR` holds after a write of `value`: the access has been done.
    pub(super) fn access(&mut self, value: u32) -> u32 {
        let at = (value >> 16 & 31) as usize;
        let paged = at != PAGE && self.words[PAGE] != 0;
        if value & FLAG == 0 {
            let word = if paged { 0 } else { self.words[at] };
            return value & 0x1f_0000 | FLAG | u32::from(word);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the data field")]
        if !paged {
            self.write(at, value as u16);
        }
        value & !FLAG
    }

    fn write(&mut self, at: usize, value: u16) {
        match at {
            _ if READ_ONLY >> at & 1 != 0 => {}
            CONTROL if value & 1 << 15 != 0 => self.reset(),
            CONTROL => self.words[CONTROL] = value & !SELF_CLEARING,
            _ => self.words[at] = value,
        }
    }
}
