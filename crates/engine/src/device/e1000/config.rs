//! What can be chosen about a device.

use std::time::Duration;

use crate::packet::Mac;

/// Which part it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// 82540EM, Linux's `e1000`.
    E1000,
    /// 82574L, Linux's `e1000e`.
    E1000e,
}

impl Model {
    /// The PCI device number; the vendor is Intel.
    pub const fn device_id(self) -> u16 {
        match self {
            Model::E1000 => 0x100e,
            Model::E1000e => 0x10d3,
        }
    }
}

/// Smallest gap between two interrupts, if the operator does not say otherwise.
pub(super) const FLOOR: Duration = Duration::from_micros(8);
/// The guest may map the ring pages.
pub const EXITLESS: &str = "exitless";
/// The 82540EM says that it is a PCI-X part, which lets Linux use addresses above 4 GiB directly.
pub const PCIX: &str = "pcix";
/// The 82574L has MSI-X beside MSI. QEMU 11.1 aborts when a vfio-user device with MSI-X is unplugged.
pub const MSIX: &str = "msix";

/// The address of a device that was not given one: locally administered, and the same whenever a port of this
/// name is made on this machine.
pub fn usual_mac(name: &str) -> Mac {
    // Not there on every machine; then the name alone decides.
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    // FNV-1a: names can be chosen so that they collide.
    let hash = machine.iter().chain(name.as_bytes()).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = (hash ^ hash >> 32).to_le_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// What can be chosen about a device.
#[derive(Clone, Copy, Debug)]
pub struct E1000Config {
    /// Which part.
    pub model: Model,
    /// The station's address, in the EEPROM.
    pub mac: Mac,
    /// [`EXITLESS`]. Without, every doorbell traps.
    pub exitless: bool,
    /// [`PCIX`].
    pub pcix: bool,
    /// [`MSIX`].
    pub msix: bool,
    /// The 82540EM has a communication status block (`sidecore_abi::csb`).
    pub csb: bool,
    /// Smallest gap between two interrupts, whatever the driver programs; zero: what it programs alone.
    pub moderation: Duration,
    /// Percent of its time that the guest may spend on serving receive interrupts; 100: all.
    pub receive_share: u32,
}

impl E1000Config {
    /// Part `model` with address `mac` and everything on.
    pub fn new(model: Model, mac: Mac) -> E1000Config {
        E1000Config {
            model,
            mac,
            exitless: true,
            pcix: true,
            msix: true,
            csb: false,
            moderation: FLOOR,
            receive_share: 100,
        }
    }
}
