//! The PCI function that the guest's bus finds: regions and identity.
//!
//! Both BARs show the same 256 bytes of registers. They are less than a page, and the doorbell is one of them: nothing of it can be
//! mapped into a guest without making memory of all registers, so every access traps.

use super::regs;
use crate::device::pci::{ConfigSpace, Identity, Region, Space, REGIONS};

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
