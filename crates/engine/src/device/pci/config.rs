//! The regions that a function has, and its configuration space: a type 0 header, a list of capabilities, and
//! which bits of them software may write.
//!
//! Theory of operation. Three byte arrays of the same length: the contents, the bits that can be written, and
//! the bits that writing a one clears. A write touches each byte through its two masks and nothing else, so
//! the sizing of BARs, read-only identity and read-back behaviour are all data, filled in once by
//! [`ConfigSpace::new`] and the `add_…` methods. Register numbers are in `sidecore_abi::pci`; PCI 3.0 §6.1
//! and §6.2 describe the header, §6.7 the list.

use std::sync::Arc;

use sidecore_abi::pci::{self, capability, command, status};

use super::interrupts::Mode;
use super::persist::Image;
use crate::mem::{halves, SharedPages};

/// Number of regions: six BARs and the ROM, which no device has. The configuration space is not one of them.
pub const REGIONS: usize = 7;

/// How a region is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Memory below 4 GiB.
    Memory32,
    /// Memory anywhere, without side effects of reads (PCI 3.0 §6.2.5.1); takes this BAR and the next one,
    /// which must be absent.
    Prefetchable,
    /// I/O ports.
    Io,
}

/// One BAR.
#[derive(Clone, Debug)]
pub struct Region {
    /// How it is reached.
    pub space: Space,
    /// Bytes: a power of two, at least 16 (memory) or 4 (I/O).
    pub size: u64,
    /// The pages of it that the guest may map and then reaches without a trap.
    pub mappable: Option<MappablePages>,
}

/// Pages of a region that the guest may map.
#[derive(Clone, Debug)]
pub struct MappablePages {
    /// The memory behind them. Byte 0 of it stands for byte 0 of the region, so it reaches at least to the
    /// end of the last area; what lies between areas is never touched and costs nothing.
    pub pages: Arc<SharedPages>,
    /// The areas, in bytes from the region's start; page-aligned, in order, not overlapping.
    pub areas: Vec<Area>,
}

/// A stretch of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte, from the region's start.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// The identification registers of a function.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// Revision ID.
    pub revision: u8,
    /// Whether it has an interrupt pin.
    pub has_pin: bool,
}

/// The command register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u16);

impl Command {
    /// Answers in I/O space.
    pub const IO: u16 = command::IO;
    /// Answers in memory space.
    pub const MEMORY: u16 = command::MEMORY;
    /// May read and write guest memory.
    pub const MASTER: u16 = command::MASTER;
    /// Must not assert its interrupt pin.
    pub const INTX_DISABLE: u16 = command::INTX_DISABLE;

    /// Whether all of `bits` are set.
    pub fn has(self, bits: u16) -> bool {
        self.0 & bits == bits
    }
}

/// Where MSI-X keeps its table and its pending bits.
#[derive(Clone, Copy, Debug)]
pub struct MsixPlace {
    /// Vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR of the table and its byte offset there, a multiple of 8.
    pub table: (u8, u32),
    /// BAR of the pending bits and their byte offset there, a multiple of 8.
    pub pending: (u8, u32),
}

/// A function's configuration space.
#[derive(Clone)]
pub struct ConfigSpace {
    /// Its contents, byte by byte.
    pub(in crate::device) bytes: Vec<u8>,
    writable: Vec<u8>,
    clears: Vec<u8>,
    /// Contents after power on.
    initial: Vec<u8>,
    /// Where the pointer to the next capability goes.
    link: usize,
    msi: Option<usize>,
    msix: Option<usize>,
    express: Option<usize>,
}

impl ConfigSpace {
    /// A header for `identity` with BARs for `regions`. It has 256 bytes, and 4096 as soon as a PCI Express
    /// capability is added.
    pub fn new(identity: &Identity, regions: &[Option<Region>; REGIONS]) -> ConfigSpace {
        let size = pci::CONVENTIONAL_SIZE;
        let mut config = ConfigSpace {
            bytes: vec![0; size],
            writable: vec![0; size],
            clears: vec![0; size],
            initial: Vec::new(),
            link: pci::CAPABILITIES,
            msi: None,
            msix: None,
            express: None,
        };
        config.put(pci::VENDOR, &identity.vendor.to_le_bytes());
        config.put(pci::DEVICE, &identity.device.to_le_bytes());
        config.put(pci::REVISION, &[identity.revision]);
        config.put(pci::CLASS, &identity.class.to_le_bytes()[..3]);
        config.put(pci::SUBSYSTEM_VENDOR, &identity.subsystem_vendor.to_le_bytes());
        config.put(pci::SUBSYSTEM, &identity.subsystem.to_le_bytes());
        config.put(pci::INTERRUPT_PIN, &[u8::from(identity.has_pin)]);
        let mut bits = command::MASTER | command::PARITY | command::SERR;
        for (index, region) in regions.iter().enumerate() {
            if let Some(region) = region {
                bits |= if region.space == Space::Io { command::IO } else { command::MEMORY };
                config.add_region(index, region);
            }
        }
        if identity.has_pin {
            bits |= command::INTX_DISABLE;
        }
        config.allow(pci::COMMAND, &bits.to_le_bytes());
        config.clears[pci::STATUS..pci::STATUS + 2].copy_from_slice(&status::ERRORS.to_le_bytes());
        config.allow(pci::CACHE_LINE, &[0xff]);
        config.allow(pci::LATENCY, &[0xf8]);
        config.allow(pci::INTERRUPT_LINE, &[0xff]);
        config.initial.clone_from(&config.bytes);
        config
    }

    /// PCI 3.0 §6.2.5: the low bits say what it is, the address bits below the size read as zero.
    fn add_region(&mut self, index: usize, region: &Region) {
        let address = !(region.size - 1);
        let (low, high) = halves(address);
        let at = pci::BAR0 + 4 * index;
        let (kind, mask) = match region.space {
            Space::Memory32 => (0b000, low & !0xf),
            Space::Prefetchable => (0b1100, low & !0xf),
            Space::Io => (0b01, low & !0x3),
        };
        self.put(at, &u32::to_le_bytes(kind));
        self.allow(at, &mask.to_le_bytes());
        if region.space == Space::Prefetchable {
            self.allow(at + 4, &high.to_le_bytes());
        }
    }

    /// Adds a capability at byte `at`: `body` follows the number and the link, `writable` says which bits of
    /// the body software may write.
    ///
    /// # Panics
    /// If it does not fit: the list is fixed when the device is written.
    pub fn add_capability(&mut self, id: u8, at: usize, body: &[u8], writable: &[u8]) {
        assert!(at >= pci::FIRST_CAPABILITY && at % 4 == 0 && at + 2 + body.len() <= pci::CONVENTIONAL_SIZE);
        #[expect(clippy::cast_possible_truncation, reason = "below 256, as just checked")]
        self.put(self.link, &[at as u8]);
        self.link = at + 1;
        self.put(at, &[id, 0]);
        self.put(at + 2, body);
        self.allow(at + 2, writable);
        let status = self.read_u16(pci::STATUS) | status::CAPABILITY_LIST;
        self.put(pci::STATUS, &status.to_le_bytes());
        self.initial.clone_from(&self.bytes);
    }

    /// Power management, version 3 (PCI PM 1.2 §3.2): D0 and D3hot, and nothing is lost in D3hot.
    pub fn add_power(&mut self, at: usize) {
        const VERSION: u8 = 3;
        const NO_SOFT_RESET: u8 = 1 << 3;
        self.add_capability(
            capability::POWER,
            at,
            &[VERSION, 0, NO_SOFT_RESET, 0, 0, 0],
            &[0, 0, 0b11, 0x01, 0, 0],
        );
    }

    /// MSI with 64-bit addresses and `vectors` vectors, 1 to 32 (PCI 3.0 §6.8.1).
    pub fn add_msi(&mut self, at: usize, vectors: u16) {
        let log2 = vectors.max(1).next_power_of_two().trailing_zeros();
        let mut body = [0; 12];
        let mut writable = [0xff; 12];
        #[expect(clippy::cast_possible_truncation, reason = "at most 5")]
        let control = capability::MSI_64 | (log2 as u16) << 1;
        body[..2].copy_from_slice(&control.to_le_bytes());
        // Enable and the number of vectors in use; the address is a multiple of four; data has 16 bits.
        writable[..2].copy_from_slice(&0x0071u16.to_le_bytes());
        writable[2] = 0xfc;
        self.add_capability(capability::MSI, at, &body, &writable);
        self.msi = Some(at);
    }

    /// MSI-X (PCI 3.0 §6.8.2).
    pub fn add_msix(&mut self, at: usize, place: &MsixPlace) {
        let mut body = [0; 10];
        body[..2].copy_from_slice(&(place.vectors.max(1) - 1).to_le_bytes());
        let word = |(bar, offset): (u8, u32)| (offset & !7 | u32::from(bar & 7)).to_le_bytes();
        body[2..6].copy_from_slice(&word(place.table));
        body[6..].copy_from_slice(&word(place.pending));
        let mut writable = [0; 10];
        writable[..2].copy_from_slice(&(capability::MSIX_ENABLE | capability::MSIX_MASK).to_le_bytes());
        self.add_capability(capability::MSIX, at, &body, &writable);
        self.msix = Some(at);
    }

    /// PCI Express endpoint, version 1, one lane of 2.5 GT/s, with function level reset (PCIe 1.1 §7.8).
    pub fn add_express(&mut self, at: usize) {
        const VERSION: u8 = 1;
        const ROLE_BASED_ERRORS: u32 = 1 << 15;
        const FUNCTION_RESET: u32 = 1 << 28;
        /// 2.5 GT/s, one lane: link capabilities and link status say the same.
        const LINK: u16 = 1 | 1 << 4;
        // Offsets are the specification's, from the capability's start, less the two bytes of the header.
        let mut body = [0; 0x12];
        body[0] = VERSION;
        body[0x02..0x06].copy_from_slice(&(ROLE_BASED_ERRORS | FUNCTION_RESET).to_le_bytes());
        body[0x0a..0x0c].copy_from_slice(&LINK.to_le_bytes());
        body[0x10..0x12].copy_from_slice(&LINK.to_le_bytes());
        let mut writable = [0; 0x12];
        writable[0x06..0x08].copy_from_slice(&0x7fffu16.to_le_bytes());
        // Link control: ASPM, read completion boundary, common clock, extended synch.
        writable[0x0e] = 0xcb;
        for array in [&mut self.bytes, &mut self.writable, &mut self.clears] {
            array.resize(pci::EXPRESS_SIZE, 0);
        }
        self.add_capability(capability::EXPRESS, at, &body, &writable);
        // Device status: errors seen.
        self.clears[at + 0x0a] = 0x0f;
        self.express = Some(at);
    }

    /// Bytes: 256 or 4096.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The command register.
    pub fn command(&self) -> Command {
        Command(self.read_u16(pci::COMMAND))
    }

    /// Which kind of interrupts the guest has turned on.
    pub fn interrupt_mode(&self) -> Mode {
        let control = |at: Option<usize>| at.map_or(0, |at| self.read_u16(at + capability::CONTROL));
        if control(self.msix) & capability::MSIX_ENABLE != 0 {
            Mode::Msix
        } else if control(self.msi) & capability::MSI_ENABLE != 0 {
            Mode::Msi
        } else {
            Mode::Intx
        }
    }

    /// Reads from byte `offset` on; what lies beyond the end is left as it is.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.bytes.get(offset..).unwrap_or(&[]);
        for (to, from) in data.iter_mut().zip(rest) {
            *to = *from;
        }
    }

    /// Writes what may be written. True if the guest asked for a function level reset.
    #[must_use]
    pub fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let reset_at = self.express.map(|at| at + capability::DEVICE_CONTROL + 1);
        let mut reset = false;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, new) in data.iter().enumerate() {
            let at = offset.saturating_add(index);
            let Some(byte) = self.bytes.get_mut(at) else { break };
            reset |= reset_at == Some(at) && u16::from(*new) << 8 & capability::FUNCTION_RESET != 0;
            let mask = self.writable[at];
            *byte = *byte & !mask & !(new & self.clears[at]) | new & mask;
        }
        reset
    }

    /// Everything as after power on.
    pub fn reset(&mut self) {
        self.bytes.clone_from(&self.initial);
    }

    /// Takes the contents that an equal function of another process had from words of `image`, from `at` on.
    ///
    /// # Errors
    /// The function was none.
    pub fn restore(&mut self, image: &Image, at: usize) -> Result<(), String> {
        let mut bytes = vec![0; self.size()];
        image.get_bytes(at, &mut bytes);
        let fixed = |at: usize| !(self.writable[at] | self.clears[at]);
        let equal = (0..bytes.len())
            .filter(|at| !(pci::STATUS..pci::STATUS + 2).contains(at))
            .all(|at| (bytes[at] ^ self.initial[at]) & fixed(at) == 0);
        if !equal {
            return Err("its configuration space belongs to another device".to_owned());
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Shows the level of the interrupt pin in the status register.
    pub fn set_interrupt_status(&mut self, level: bool) {
        let mut value = self.read_u16(pci::STATUS) & !status::INTERRUPT;
        if level {
            value |= status::INTERRUPT;
        }
        self.put(pci::STATUS, &value.to_le_bytes());
    }

    fn read_u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ConfigSpace {
        let identity = Identity {
            vendor: 0x8086,
            device: 0x10d3,
            subsystem_vendor: 0x8086,
            subsystem: 0xa01f,
            class: 0x02_0000,
            revision: 3,
            has_pin: true,
        };
        let region = |space, size| Some(Region { space, size, mappable: None });
        let regions = [
            region(Space::Memory32, 0x2_0000),
            region(Space::Prefetchable, 1 << 33),
            None,
            region(Space::Io, 32),
            None,
            None,
            None,
        ];
        let mut config = ConfigSpace::new(&identity, &regions);
        config.add_power(0xc8);
        config.add_msi(0xd0, 1);
        config.add_express(0xe0);
        config.add_msix(0xa0, &MsixPlace { vectors: 5, table: (3, 0), pending: (3, 0x2000) });
        config
    }

    fn read32(config: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        config.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn bars_tell_their_size() {
        let mut config = config();
        let mut sized = |at: u64| {
            assert!(!config.write(at, &[0xff; 4]));
            read32(&config, at)
        };
        assert_eq!(sized(0x10), 0xfffe_0000);
        assert_eq!(sized(0x14), 0x0000_000c);
        assert_eq!(sized(0x18), 0xffff_fffe);
        assert_eq!(sized(0x1c), 0xffff_ffe1);
        assert_eq!(sized(0x20), 0);
        assert_eq!(sized(0x30), 0);
        // Identity cannot be written.
        assert_eq!(sized(0x00), 0x10d3_8086);
        assert_eq!(sized(0x2c), 0xa01f_8086);
    }

    #[test]
    fn the_list_is_walked_and_every_capability_found() {
        let config = config();
        assert_eq!(read32(&config, 0x04) >> 16, u32::from(status::CAPABILITY_LIST));
        let (mut at, mut found) = (read32(&config, 0x34) & 0xff, Vec::new());
        while at != 0 {
            let header = read32(&config, u64::from(at));
            found.push((header & 0xff, at));
            at = header >> 8 & 0xff;
        }
        assert_eq!(found, [(1, 0xc8), (5, 0xd0), (0x10, 0xe0), (0x11, 0xa0)]);
        assert_eq!(read32(&config, 0xa0) >> 16, 4);
        assert_eq!(read32(&config, 0xa8), 0x2003);
    }

    #[test]
    fn writes_keep_to_their_masks_and_reset_undoes_them() {
        let mut config = config();
        assert!(!config.write(4, &[0xff; 4]));
        assert!(config
            .command()
            .has(Command::IO | Command::MEMORY | Command::MASTER | Command::INTX_DISABLE));
        assert_eq!(config.interrupt_mode(), Mode::Intx);
        assert!(!config.write(0xd2, &[1, 0]));
        assert_eq!(config.interrupt_mode(), Mode::Msi);
        assert!(!config.write(0xa2, &[0, 0x80]));
        assert_eq!(config.interrupt_mode(), Mode::Msix);
        // Writing a one clears.
        config.put(0xea, &[0b11]);
        assert!(!config.write(0xea, &[0b01]));
        assert_eq!(read32(&config, 0xe8) >> 16 & 0xf, 0b10);
        // Function level reset, in a write of the whole register and not in one beside it.
        assert!(!config.write(0xe8, &[0xff]));
        assert!(config.write(0xe8, &[0, 0x80]));
        config.reset();
        assert_eq!((config.command(), config.interrupt_mode()), (Command(0), Mode::Intx));
        config.set_interrupt_status(true);
        assert_eq!(read32(&config, 4) >> 16, 0x18);
    }

    #[test]
    fn accesses_beyond_the_end_do_nothing() {
        let mut config = config();
        for at in [0xfff, 0x1000, u64::MAX] {
            assert!(!config.write(at, &[0xff; 8]));
            let mut bytes = [7; 8];
            config.read(at, &mut bytes);
            assert_eq!(bytes[1..], [7; 7]);
        }
    }
}
