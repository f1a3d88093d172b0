//! The registers of a PHY, as IEEE 802.3 §22.2.4 has them. Accesses end at once; the link is what the card
//! says.

use super::pci::Image;

pub(super) const CONTROL: usize = 0;
pub(super) const STATUS: usize = 1;
pub(super) const PARTNER: usize = 5;
pub(super) const REGISTERS: usize = 32;
/// Bytes of an image that they take.
const BYTES: usize = 2 * REGISTERS;

/// Control: reset, restart auto-negotiation; both clear themselves (802.3 §22.2.4.1).
const RESET: u16 = 1 << 15;
const SELF_CLEARING: u16 = RESET | 1 << 9;
/// Control: auto-negotiation is on (802.3 §22.2.4.1.4).
const NEGOTIATES: u16 = 1 << 12;
/// Control: what is sent comes back (802.3 §22.2.4.1.2).
const LOOPBACK: u16 = 1 << 14;
/// Status: auto-negotiation complete and link (802.3 §22.2.4.2).
pub(super) const LINKED: u16 = 1 << 5 | 1 << 2;

/// What tells one PHY from another.
pub(super) struct Part {
    /// Registers after power on that are not zero, without a link.
    pub(super) fresh: &'static [(usize, u16)],
    pub(super) read_only: u32,
    /// What is set while there is a link.
    pub(super) linked: [(usize, u16); 3],
}

pub(super) struct Phy {
    part: &'static Part,
    words: [u16; REGISTERS],
    link: bool,
}

impl Phy {
    pub(super) fn new(part: &'static Part, link: bool) -> Phy {
        let mut phy = Phy { part, words: [0; REGISTERS], link };
        phy.reset();
        phy
    }

    /// Registers as after power on; the link stays.
    pub(super) fn reset(&mut self) {
        self.words = [0; REGISTERS];
        for &(at, word) in self.part.fresh {
            self.words[at] = word;
        }
        self.set_link(self.link);
    }

    pub(super) fn word(&self, at: usize) -> u16 {
        self.words.get(at).copied().unwrap_or(0)
    }

    /// Saves its registers at `at`.
    pub(super) fn save(&self, image: &mut Image, at: usize) {
        image.put_bytes(at, self.words.map(u16::to_le_bytes).as_flattened());
    }

    /// Takes over those that were saved.
    pub(super) fn restore(&mut self, image: &Image, at: usize) {
        let mut bytes = [0; BYTES];
        image.get_bytes(at, &mut bytes);
        self.words = std::array::from_fn(|at| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
    }

    /// The carrier came or went.
    pub(super) fn set_link(&mut self, up: bool) {
        self.link = up;
        for (at, bits) in self.part.linked {
            self.words[at] = self.words[at] & !bits | if up { bits } else { 0 };
        }
    }

    /// Whether it says that there is a link.
    pub(super) fn is_linked(&self) -> bool {
        self.words[STATUS] & LINKED == LINKED
    }

    /// Whether the driver has what it sends come back.
    pub(super) fn is_looped(&self) -> bool {
        self.words[CONTROL] & LOOPBACK != 0
    }

    /// The driver writes a register. True: auto-negotiation begins by it, for which a PHY drops its link
    /// (802.3 §28.2.3.2); a driver that sees no such drop does not ask again for the speed.
    pub(super) fn write(&mut self, at: usize, value: u16) -> bool {
        let before = self.words[CONTROL];
        match at {
            _ if self.part.read_only >> at & 1 != 0 => {}
            CONTROL if value & RESET != 0 => self.reset(),
            CONTROL => self.words[CONTROL] = value & !SELF_CLEARING,
            _ => self.words[at] = value,
        }
        let begins = value & SELF_CLEARING != 0 || before & NEGOTIATES == 0;
        at == CONTROL && begins && self.words[CONTROL] & NEGOTIATES != 0
    }
}
