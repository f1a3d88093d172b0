//! What can be chosen about a device; the PCI function that the guest's bus finds, with its regions and
//! identity; and its EEPROM, a 93C46 (`device::eeprom`) that says the same, with the way to it: its lines in
//! `9346CR`.
//!
//! Both BARs show the same 256 bytes of registers. They are less than a page, and the doorbell is one of
//! them: nothing of it can be mapped into a guest without making memory of all registers, so every access
//! traps.

use std::time::Duration;

use super::regs::{self, EECS, EEDI, EEM, EEM_PROGRAM, EESK};
use crate::device::eeprom::{Bus, Chip, CS, DI, SK, WORDS};
use crate::device::mii::{Part, Phy, CONTROL, LINKED, PARTNER, STATUS};
use crate::device::pci::{ConfigSpace, Identity, Region, Space, REGIONS};
use crate::packet::Mac;

/// Smallest gap between two interrupts, if the operator does not say otherwise.
const FLOOR: Duration = Duration::from_micros(8);

/// What can be chosen about a device.
#[derive(Clone, Copy, Debug)]
pub struct Rtl8169Config {
    /// The station's address, in the EEPROM.
    pub mac: Mac,
    /// Smallest gap between two interrupts, whatever the driver programs; zero: what it programs alone.
    pub moderation: Duration,
    /// It has a communication status block (`sidecore_abi::csb`).
    pub csb: bool,
}

impl Rtl8169Config {
    /// One with address `mac`.
    pub fn new(mac: Mac) -> Rtl8169Config {
        Rtl8169Config { mac, moderation: FLOOR, csb: false }
    }
}

/// The registers as I/O ports, and as memory.
pub(super) const IO: usize = 0;
pub(super) const MEMORY: usize = 1;

pub(super) fn regions() -> [Option<Region>; REGIONS] {
    let registers = |space| Some(Region { space, size: regs::SPACE.into(), mappable: None });
    [registers(Space::Io), registers(Space::Memory32), None, None, None, None, None]
}

/// `csb`: a driver shall find out that there is a status block.
pub(super) fn config_space(csb: bool) -> ConfigSpace {
    let (subsystem_vendor, subsystem) =
        if csb { (0x1af4, sidecore_abi::csb::SUBSYSTEM) } else { (0x10ec, 0x8169) };
    let identity = Identity {
        vendor: 0x10ec,
        device: 0x8169,
        subsystem_vendor,
        subsystem,
        class: 0x02_0000,
        revision: 0x10,
        has_pin: true,
    };
    let mut config = ConfigSpace::new(&identity, &regions());
    config.add_power(0xdc);
    config
}

/// What its first word says: there are contents.
const IDENTIFICATION: u16 = 0x8129;
/// Where the station's address stands.
const ADDRESS: usize = 7;

pub(super) fn eeprom(mac: [u8; 6]) -> Chip {
    let mut words = [0; WORDS];
    // Identification, as in configuration space: chip, subsystem.
    words[..5].copy_from_slice(&[IDENTIFICATION, 0x10ec, 0x8169, 0x10ec, 0x8169]);
    for (word, pair) in words[ADDRESS..].iter_mut().zip(mac.chunks_exact(2)) {
        *word = u16::from_le_bytes([pair[0], pair[1]]);
    }
    Chip::new(Bus::Microwire, words)
}

/// A write of `9346CR`.
pub(super) fn write_9346cr(chip: &mut Chip, value: u32) {
    // In other modes the lines are not driven.
    let on = value & EEM == EEM_PROGRAM;
    let lines = [(EESK, SK), (EECS, CS), (EEDI, DI)];
    let lines = lines.iter().filter(|(bit, _)| on && value & bit != 0);
    chip.set_lines(lines.fold(0, |all, (_, line)| all | line));
}

/// `PHYAR`: an access to be done, and whether it is a write; a read that is done has the same bit.
const FLAG: u32 = 1 << 31;
/// The PHY's register that selects a page. Drivers write settings of the analogue part to other pages than
/// the first: those are blank here, and take nothing.
const PAGE: usize = 31;
const GIGABIT_STATUS: usize = 10;

/// The PHY: an RTL8211. Auto-negotiation at gigabit; all speeds, and more in register 15. The partner
/// acknowledges, and has all that there is with pause; both receivers work, it has gigabit, full duplex
/// (802.3 §40.5.1).
#[rustfmt::skip]
pub(super) static PHY: Part = Part {
    fresh: &[
        (CONTROL, 0x1140), (STATUS, 0x7949), (2, 0x001c), (3, 0xc910), (4, 0x0de1), (6, 1 << 2), (9, 0x0300), (15, 3 << 12),
    ],
    read_only: 1 << STATUS | 1 << 2 | 1 << 3 | 1 << PARTNER | 1 << 6 | 1 << GIGABIT_STATUS | 1 << 15 | 1 << 17,
    linked: [(STATUS, LINKED), (PARTNER, 0x45e1), (GIGABIT_STATUS, 1 << 13 | 1 << 12 | 1 << 11)],
};

/// What `PHYAR` holds after a write of `value`: the access has been done; and whether auto-negotiation
/// begins.
pub(super) fn phy_access(phy: &mut Phy, value: u32) -> (u32, bool) {
    let at = (value >> 16 & 31) as usize;
    let paged = at != PAGE && phy.word(PAGE) != 0;
    if value & FLAG == 0 {
        let word = if paged { 0 } else { phy.word(at) };
        return (value & 0x1f_0000 | FLAG | u32::from(word), false);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the data field")]
    let begins = !paged && phy.write(at, value as u16);
    (value & !FLAG, begins)
}
