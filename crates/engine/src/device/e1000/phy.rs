//! The PHY behind `MDIC` (8254x SDM §13.4.7): a Marvell M88E1011 or, in the 82574, a BM PHY with the same
//! registers on page 0 (82574 §8). Accesses end at once; the link is what the port's carrier is.

use super::config::Model;
use super::regs::MDAC;

/// `MDIC`: operations, flags, fields.
const WRITE: u32 = 1 << 26;
const READ: u32 = 1 << 27;
const READY: u32 = 1 << 28;
const INTERRUPT: u32 = 1 << 29;
const ERROR: u32 = 1 << 30;

/// Registers 0 to 31; those that exist are in `EXISTS`.
const CONTROL: usize = 0;
const STATUS: usize = 1;
const PARTNER: usize = 5;
const SPECIFIC_STATUS: usize = 17;
const INTERRUPT_STATUS: usize = 19;
/// The page that registers 0 to 28 are on (82574 §8.5).
const PAGE: usize = 22;
/// The BM PHY's page select.
const BM_PAGE: usize = 31;

/// Control: reset, restart auto-negotiation; both clear themselves (802.3 §22.2.4.1).
const SELF_CLEARING: u16 = 1 << 15 | 1 << 9;
/// Control: what is sent comes back (802.3 §22.2.4.1.2).
const LOOPBACK: u16 = 1 << 14;
/// Status: auto-negotiation complete and link (802.3 §22.2.4.2).
const LINKED: u16 = 1 << 5 | 1 << 2;
/// Partner: acknowledge.
const ACKNOWLEDGED: u16 = 1 << 14;
/// Specific status: resolved, link.
const RESOLVED: u16 = 1 << 11 | 1 << 10;

const EXISTS: u32 = 0b1110_0000_0111_1111_1000_0110_1111_1111 | 1 << 31;
const READ_ONLY: u32 =
    1 << STATUS | 1 << 2 | 1 << 3 | 1 << PARTNER | 1 << 6 | 1 << 10 | 1 << 15 | 1 << 17 | 1 << 19 | 1 << 21;

pub(super) const COUNT: usize = 32;

pub(super) struct Phy {
    words: [u16; COUNT],
    model: Model,
    link: bool,
}

impl Phy {
    pub(super) fn new(model: Model, link: bool) -> Phy {
        let mut phy = Phy { words: [0; COUNT], model, link };
        phy.reset();
        phy
    }

    /// Registers as after power on; the link stays.
    pub(super) fn reset(&mut self) {
        let w = &mut self.words;
        *w = [0; COUNT];
        (w[CONTROL], w[STATUS], w[2]) = (0x1140, 0x794d & !LINKED, 0x0141);
        (w[4], w[7], w[9], w[10]) = (0x0de1, 0, 0x0e00, 0x3c00);
        (w[16], w[SPECIFIC_STATUS], w[20]) = (0x0360, 0xac00 & !RESOLVED, 0x0d60);
        (w[3], w[PARTNER], w[6], w[15]) = match self.model {
            Model::E1000 => (0x0c20, 0x01e0, 0, 0),
            Model::E1000e => (0x0cb1, 0x07e0, 1 << 2, 3 << 12),
        };
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
        let bits = [(STATUS, LINKED), (PARTNER, ACKNOWLEDGED), (SPECIFIC_STATUS, RESOLVED)];
        for (at, bits) in bits {
            self.words[at] = self.words[at] & !bits | if up { bits } else { 0 };
        }
    }

    /// Whether the driver has what it sends come back.
    pub(super) fn is_looped(&self) -> bool {
        self.words[CONTROL] & LOOPBACK != 0
    }

    /// What `MDIC` holds after a write of `value`, and the interrupt cause that comes of it.
    pub(super) fn mdic(&mut self, value: u32) -> (u32, u32) {
        let at = (value >> 16 & 31) as usize;
        let paged = self.model == Model::E1000e && self.words[BM_PAGE] != 0 && at < 16 && at > 3;
        let exists = value >> 21 & 31 == 1 && EXISTS >> at & 1 != 0;
        let result = if !exists {
            value | ERROR
        } else if value & WRITE != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "the data field")]
            if !paged {
                self.write(at, value as u16);
            }
            value
        } else if value & READ != 0 {
            // Pages other than the first are blank: nothing on them has an effect here.
            value & 0xffff_0000 | if paged { 0 } else { u32::from(self.words[at]) }
        } else {
            return (value, 0);
        };
        (result | READY, if value & INTERRUPT != 0 { MDAC } else { 0 })
    }

    fn write(&mut self, at: usize, value: u16) {
        if READ_ONLY >> at & 1 != 0 {
            return;
        }
        match at {
            CONTROL if value & 1 << 15 != 0 => self.reset(),
            CONTROL => self.words[CONTROL] = value & !SELF_CLEARING,
            _ => self.words[at] = value,
        }
    }
}

const _: () = assert!(EXISTS >> PAGE & 1 == 1 && EXISTS >> INTERRUPT_STATUS & 1 == 1);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(phy: &mut Phy, at: u32) -> u32 {
        phy.mdic(READ | 1 << 21 | at << 16).0
    }

    #[test]
    fn identification_and_link() {
        for (model, id) in [(Model::E1000, 0x0c20), (Model::E1000e, 0x0cb1)] {
            let mut phy = Phy::new(model, true);
            assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
            assert_eq!(read(&mut phy, 3) & 0xffff, id);
            assert_eq!(read(&mut phy, 1) & 0x24, 0x24);
            phy.set_link(false);
            assert_eq!(read(&mut phy, 1) & 0x24, 0);
            // A reset neither brings the link up nor stays.
            phy.mdic(WRITE | 1 << 21 | 0x9200);
            assert_eq!(read(&mut phy, 0) & 0xffff, 0x1140);
            assert_eq!(read(&mut phy, 1) & 0x24, 0);
            phy.set_link(true);
            assert_eq!(read(&mut phy, 17) & 0xffff, 0xac00);
            // Auto-negotiation is over when it begins.
            phy.mdic(WRITE | 1 << 21 | 0x1340);
            assert_eq!(read(&mut phy, 0) & 0xffff, 0x1140);
        }
    }

    #[test]
    fn what_does_not_exist_is_an_error_and_never_hangs() {
        let mut phy = Phy::new(Model::E1000, true);
        assert_eq!(phy.mdic(READ | 2 << 21).0 & (READY | ERROR), READY | ERROR);
        assert_eq!(read(&mut phy, 12) & (READY | ERROR), READY | ERROR);
        assert_eq!(phy.mdic(READ | 1 << 21 | INTERRUPT).1, MDAC);
        // Read-only registers stay.
        phy.mdic(WRITE | 1 << 21 | 2 << 16 | 7);
        assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
    }
}
