//! Regions: what they are, and reads and writes of them.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use sidecore_abi::pci::EXPRESS_SIZE;
use sidecore_abi::vfio_user::{region, RegionAccess, RegionInfo, SparseArea, SparseCap};

use super::messages::{Answer, Handled, Refusal};
use crate::device::pci::{self, PciDevice, Region, REGIONS};

/// What there is to know of the regions of a device.
pub(super) struct Regions {
    /// BARs and ROM.
    list: [Option<Region>; REGIONS],
    /// Bytes of configuration space.
    config: u64,
}

impl Regions {
    pub(super) fn new(device: &mut dyn PciDevice) -> Regions {
        Regions { list: device.regions(), config: device.config().size() as u64 }
    }

    fn get(&self, index: u32) -> Option<&Region> {
        self.list.get(index as usize)?.as_ref()
    }

    /// Bytes of region `index`; 0: there is none.
    fn size(&self, index: u32) -> u64 {
        if index == region::CONFIG {
            return self.config;
        }
        self.get(index).map_or(0, |region| region.size)
    }

    /// DEVICE_GET_REGION_INFO. A client whose `argsz` is too small for the list of areas gets the structure
    /// alone, with the `argsz` that it takes, and asks again.
    pub(super) fn describe(&self, ask: &RegionInfo, takes_fds: bool, answer: &mut Answer) -> Handled {
        if ask.index >= region::COUNT {
            return Err(Refusal::invalid(format!("no region {}", ask.index)));
        }
        let mut info = RegionInfo { index: ask.index, size: self.size(ask.index), ..RegionInfo::default() };
        info.flags = if info.size > 0 { region::READ | region::WRITE } else { 0 };
        info.argsz = RegionInfo::LEN;
        let Some(mappable) =
            self.get(ask.index).and_then(|region| region.mappable.as_ref()).filter(|_| takes_fds)
        else {
            answer.put(&info.bytes());
            return Ok(());
        };
        let areas = u32::try_from(mappable.areas.len()).unwrap_or(0);
        info.argsz = RegionInfo::LEN + SparseCap::LEN + areas * SparseArea::LEN;
        info.flags |= region::MMAP | region::CAPS;
        info.cap_offset = RegionInfo::LEN;
        answer.put(&info.bytes());
        if ask.argsz < info.argsz {
            return Ok(());
        }
        answer.put(&SparseCap { id: region::CAP_SPARSE, version: 1, next: 0, areas, reserved: 0 }.bytes());
        for area in &mappable.areas {
            answer.put(&SparseArea { offset: area.offset, size: area.size }.bytes());
        }
        let fd = mappable.pages.file().try_clone_to_owned();
        answer.fd = Some(fd.map_err(|e| Refusal::invalid(format!("no descriptor is left: {e}")))?);
        Ok(())
    }

    /// Whether `access` is inside a region.
    ///
    /// All that a guest can address of a function's configuration space is, even if the function has less:
    /// Cloud Hypervisor hands such an access on, and waits for ever for the data that no error brings.
    pub(super) fn check(&self, access: &RegionAccess) -> Handled {
        let RegionAccess { offset, region, count } = *access;
        let size = if region == region::CONFIG { EXPRESS_SIZE as u64 } else { self.size(region) };
        if offset.checked_add(u64::from(count)).is_none_or(|end| end > size) {
            return Err(Refusal::invalid(format!(
                "{count} bytes at {offset:#x} are not inside region {region}, which has {size:#x}"
            )));
        }
        Ok(())
    }
}

/// Reads what `check` has passed.
pub(super) fn read(device: &mut dyn PciDevice, access: &RegionAccess, data: &mut [u8]) {
    if access.region == region::CONFIG {
        return pci::read_config(device, access.offset, data);
    }
    let (mut at, mut left) = (access.offset, data);
    while let Some((piece, rest)) = left.split_at_mut_checked(step(at, left.len())) {
        device.read(access.region as usize, at, piece);
        (at, left) = (at + piece.len() as u64, rest);
    }
}

/// Writes what `check` has passed.
pub(super) fn write(device: &mut dyn PciDevice, access: &RegionAccess, data: &[u8]) {
    if access.region == region::CONFIG {
        return pci::write_config(device, access.offset, data);
    }
    let (mut at, mut left) = (access.offset, data);
    while let Some((piece, rest)) = left.split_at_checked(step(at, left.len())) {
        device.write(access.region as usize, at, piece);
        (at, left) = (at + piece.len() as u64, rest);
    }
}

/// The next piece of an access: 1, 2 or 4 bytes, aligned to their number.
fn step(at: u64, left: usize) -> usize {
    [4, 2].into_iter().find(|&len| at % len as u64 == 0 && left >= len).unwrap_or(1)
}
