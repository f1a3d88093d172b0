//! The PCI function that the guest's bus finds: regions, identity and capabilities.

use std::sync::Arc;

use super::config::{E1000Config, Model};
use super::regs;
use super::state::Registers;
use crate::device::pci::{Area, ConfigSpace, Identity, MappablePages, MsixPlace, Region, Space, REGIONS};

/// BAR 0 the registers; an I/O BAR through which Linux resets the 82540EM; the 82574L's flash and MSI-X
/// table.
pub(super) fn regions(settings: &E1000Config, registers: &Registers) -> [Option<Region>; REGIONS] {
    let plain = |space, size| Some(Region { space, size, mappable: None });
    let areas = vec![Area {
        offset: u64::from(regs::SHARED.start),
        size: u64::from(regs::SHARED.end - regs::SHARED.start),
    }];
    let mappable = settings.exitless.then(|| MappablePages { pages: Arc::clone(&registers.pages), areas });
    let registers = Some(Region { space: Space::Memory32, size: regs::BAR_SIZE, mappable });
    let memory = |size| plain(Space::Memory32, size);
    match settings.model {
        Model::E1000 => [registers, plain(Space::Io, 64), None, None, None, None, None],
        Model::E1000e => {
            [registers, memory(0x2_0000), plain(Space::Io, 32), memory(0x4000), None, None, None]
        }
    }
}

pub(super) fn config_space(
    settings: &E1000Config,
    subsystem: (u16, u16),
    regions: &[Option<Region>; REGIONS],
) -> ConfigSpace {
    let identity = Identity {
        vendor: 0x8086,
        device: settings.model.device_id(),
        subsystem_vendor: subsystem.0,
        subsystem: subsystem.1,
        class: 0x02_0000,
        revision: if settings.model == Model::E1000 { 3 } else { 0 },
        has_pin: true,
    };
    let mut config = ConfigSpace::new(&identity, regions);
    if settings.model == Model::E1000e {
        // Places as on the part (82574 §9.1).
        config.add_power(0xc8);
        config.add_msi(0xd0, 1);
        config.add_express(0xe0);
        if settings.msix {
            config.add_msix(0xa0, &MsixPlace { vectors: 5, table: (3, 0), pending: (3, 0x2000) });
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Mac;

    /// PCI 3.0 appendix H: the numbers of capabilities.
    #[test]
    fn msix_can_be_taken_away_and_leaves_msi() {
        const MSI: u8 = 0x05;
        const MSIX: u8 = 0x11;
        for msix in [true, false] {
            let settings = E1000Config { msix, ..E1000Config::new(Model::E1000e, Mac([2; 6])) };
            let config = config_space(&settings, (0, 0), &[const { None }; REGIONS]);
            let bytes = &config.bytes;
            let chain = std::iter::successors(Some(bytes[0x34]), |at| Some(bytes[usize::from(*at) + 1]));
            let ids: Vec<u8> = chain.take_while(|at| *at != 0).map(|at| bytes[usize::from(at)]).collect();
            assert_eq!((ids.contains(&MSI), ids.contains(&MSIX)), (true, msix), "{ids:x?}");
        }
    }
}
