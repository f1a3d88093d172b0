//! PCI configuration space: the registers that devices and drivers meet in (PCI 3.0 §6, PCIe 5.0 §7).

/// Vendor ID, u16.
pub const VENDOR: usize = 0x00;
/// Device ID, u16.
pub const DEVICE: usize = 0x02;
/// Command register, u16.
pub const COMMAND: usize = 0x04;
/// Status register, u16.
pub const STATUS: usize = 0x06;
/// Revision ID, u8.
pub const REVISION: usize = 0x08;
/// Class code, three bytes.
pub const CLASS: usize = 0x09;
/// Cache line size, u8.
pub const CACHE_LINE: usize = 0x0c;
/// Latency timer, u8.
pub const LATENCY: usize = 0x0d;
/// Header type, u8.
pub const HEADER_TYPE: usize = 0x0e;
/// First base address register, u32; five more follow.
pub const BAR0: usize = 0x10;
/// Subsystem vendor ID, u16.
pub const SUBSYSTEM_VENDOR: usize = 0x2c;
/// Subsystem ID, u16.
pub const SUBSYSTEM: usize = 0x2e;
/// Expansion ROM base address, u32.
pub const ROM: usize = 0x30;
/// Offset of the first capability, u8.
pub const CAPABILITIES: usize = 0x34;
/// Interrupt line, u8: software's scratch pad.
pub const INTERRUPT_LINE: usize = 0x3c;
/// Interrupt pin, u8: 0 none, 1 INTA.
pub const INTERRUPT_PIN: usize = 0x3d;
/// First byte that capabilities may use.
pub const FIRST_CAPABILITY: usize = 0x40;
/// Bytes of conventional configuration space.
pub const CONVENTIONAL_SIZE: usize = 0x100;
/// Bytes of PCI Express configuration space; extended capabilities start at `CONVENTIONAL_SIZE`.
pub const EXPRESS_SIZE: usize = 0x1000;

/// Bits of the command register.
pub mod command {
    /// Answers in I/O space.
    pub const IO: u16 = 1 << 0;
    /// Answers in memory space.
    pub const MEMORY: u16 = 1 << 1;
    /// May start transactions: read and write guest memory, send messages.
    pub const MASTER: u16 = 1 << 2;
    /// Reports parity errors.
    pub const PARITY: u16 = 1 << 6;
    /// Reports system errors.
    pub const SERR: u16 = 1 << 8;
    /// Must not assert its interrupt pin.
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Bits of the status register.
pub mod status {
    /// The interrupt pin is asserted.
    pub const INTERRUPT: u16 = 1 << 3;
    /// There is a capability list.
    pub const CAPABILITY_LIST: u16 = 1 << 4;
    /// Errors, each cleared by writing one.
    pub const ERRORS: u16 = 0xf900;
}

/// Capability numbers and their registers, from the capability's start.
pub mod capability {
    /// Power management.
    pub const POWER: u8 = 0x01;
    /// MSI.
    pub const MSI: u8 = 0x05;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSIX: u8 = 0x11;

    /// MSI and MSI-X: message control, u16.
    pub const CONTROL: usize = 2;
    /// MSI message control: enable.
    pub const MSI_ENABLE: u16 = 1 << 0;
    /// MSI message control: 64-bit addresses.
    pub const MSI_64: u16 = 1 << 7;
    /// MSI-X message control: mask all vectors.
    pub const MSIX_MASK: u16 = 1 << 14;
    /// MSI-X message control: enable.
    pub const MSIX_ENABLE: u16 = 1 << 15;
    /// MSI-X: offset and BAR of the vector table, u32.
    pub const MSIX_TABLE: usize = 4;
    /// MSI-X: offset and BAR of the pending bits, u32.
    pub const MSIX_PBA: usize = 8;
    /// PCI Express: device control, u16.
    pub const DEVICE_CONTROL: usize = 8;
    /// PCI Express device control: reset the function.
    pub const FUNCTION_RESET: u16 = 1 << 15;
}
