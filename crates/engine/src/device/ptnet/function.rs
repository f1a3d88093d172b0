//! What can be chosen about a device. The two PCI functions that the guest's bus finds: regions, identity and
//! capabilities; and what a guest has written to registers.

use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::ptnet::{memdev, reg, DEVICE, MEMORY_DEVICE, VENDOR};
use sidecore_abi::ring::MAX_RINGS;

use super::bar::RegionSource;
use crate::device::pci::{Area, ConfigSpace, Identity, MappablePages, MsixPlace, Region, Space, REGIONS};
use crate::mem::SharedPages;
use crate::packet::Mac;
use crate::port::Port;
use crate::ring::Geometry;
use crate::slots::pipe::End;

/// Most pairs of rings: a region has one more, which netmap calls the host's, and to which nothing comes.
pub const MAX_PAIRS: usize = MAX_RINGS - 1;
/// Frames may begin with a virtio-net header.
pub const VNET_HDR: &str = "vnet-hdr";
/// Smallest gap between two interrupts, if the operator does not say otherwise.
const GAP: Duration = Duration::from_micros(8);

/// What can be chosen about a device.
#[derive(Clone, Debug)]
pub struct PtnetConfig {
    /// The station's address.
    pub mac: Mac,
    /// Pairs of rings, 1 to [`MAX_PAIRS`].
    pub pairs: usize,
    /// Slots of each ring.
    pub slots: u32,
    /// Bytes of a buffer.
    pub buf_size: u32,
    /// [`VNET_HDR`].
    pub header: bool,
    /// Smallest gap between two interrupts of one ring.
    pub moderation: Duration,
    /// The end of a pipe that it is, instead of a port of a switch. Its frames have no header: nothing on the
    /// way could carry out the offloads that they ask for.
    pub pipe: Option<Arc<End>>,
}

impl PtnetConfig {
    /// One pair of rings of the usual size, everything on.
    pub fn new(mac: Mac) -> PtnetConfig {
        let Geometry { rings, slots, buf_size, .. } = Geometry::default();
        PtnetConfig { mac, pairs: rings, slots, buf_size, header: true, moderation: GAP, pipe: None }
    }

    /// Where the memory comes from of such a device behind `port`.
    pub(super) fn source(&self, port: &Port) -> RegionSource {
        match &self.pipe {
            Some(end) => RegionSource::Pipe(Arc::clone(end)),
            None => RegionSource::Own(self.geometry(), port.name.clone()),
        }
    }

    /// The memory that such a device has. Its host rings lead nowhere, but netmap in a guest writes to those
    /// that an interface mentions, so they have to be there.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            rings: self.pairs,
            slots: self.slots,
            buf_size: self.buf_size,
            pipes: 0,
            host_rings: 1,
            ..Geometry::default()
        }
    }
}

/// The subsystem, for drivers that need more than vendor and device: as QEMU's own devices have it.
const SUBSYSTEM: (u16, u16) = (0x1af4, 0x1100);
/// Class codes: an Ethernet controller, and a device of no class.
const ETHERNET: u32 = 0x02_0000;
const UNCLASSIFIED: u32 = 0x00_ff00;
/// Bytes of the BAR of the message table.
const MSIX_SIZE: u64 = 0x1000;

fn identity(device: u16, class: u32) -> Identity {
    Identity {
        vendor: VENDOR,
        device,
        subsystem_vendor: SUBSYSTEM.0,
        subsystem: SUBSYSTEM.1,
        class,
        revision: 0,
        has_pin: false,
    }
}

/// The ptnet device: registers, and the message table.
pub(super) fn nic_regions() -> [Option<Region>; REGIONS] {
    let plain = |space, size| Some(Region { space, size, mappable: None });
    [plain(Space::Io, reg::SIZE), None, plain(Space::Memory32, MSIX_SIZE), None, None, None, None]
}

/// Its configuration space, with a message for each ring.
pub(super) fn nic_config(rings: u16) -> ConfigSpace {
    let mut config = ConfigSpace::new(&identity(DEVICE, ETHERNET), &nic_regions());
    let place =
        MsixPlace { vectors: rings, table: (reg::MSIX_BAR, 0), pending: (reg::MSIX_BAR, reg::PENDING) };
    config.add_msix(0x40, &place);
    config
}

/// The memory device: registers, and the memory, which a guest maps whole.
pub(super) fn memory_regions(pages: &Arc<SharedPages>) -> [Option<Region>; REGIONS] {
    let size = pages.size() as u64;
    let mappable = MappablePages { pages: Arc::clone(pages), areas: vec![Area { offset: 0, size }] };
    let mut regions = [const { None }; REGIONS];
    regions[0] = Some(Region { space: Space::Io, size: memdev::SIZE, mappable: None });
    regions[memdev::MEMORY_BAR] = Some(Region { space: Space::Prefetchable, size, mappable: Some(mappable) });
    regions
}

/// Its configuration space.
pub(super) fn memory_config(regions: &[Option<Region>; REGIONS]) -> ConfigSpace {
    ConfigSpace::new(&identity(MEMORY_DEVICE, UNCLASSIFIED), regions)
}

/// What the guest has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers {
    /// Features that it has.
    pub(super) features: u32,
    /// How its last command ended: 0, or an errno.
    pub(super) status: u32,
    /// High halves of addresses whose low half has not come yet.
    pub(super) high: [u32; 2],
    /// Where the guest's blocks begin, and ours; 0: nowhere.
    pub(super) blocks: [u64; 2],
}
