//! The registers and descriptor bits that the driver uses, from Intel's manuals (8254x SDM §3, §13; 82574
//! datasheet §7, §10). Written down here a second time, apart from the device's own list: a number that is
//! wrong in one of them shows.

/// BAR 0.
pub const BAR: u32 = 0;

pub const CTRL: u64 = 0x0000;
pub const CTRL_RST: u32 = 1 << 26;
pub const STATUS: u64 = 0x0008;
pub const STATUS_LU: u32 = 1 << 1;
pub const EECD: u64 = 0x0010;
pub const EERD: u64 = 0x0014;
pub const CTRL_EXT: u64 = 0x0018;
/// Queues' messages leave the mask as it is.
pub const CTRL_EXT_IAME: u32 = 1 << 27;
pub const ICR: u64 = 0x00c0;
pub const IMS: u64 = 0x00d0;
pub const IMC: u64 = 0x00d8;
pub const ITR: u64 = 0x00c4;
pub const EITR: u64 = 0x00e8;
pub const EIAC: u64 = 0x00dc;
pub const IVAR: u64 = 0x00e4;
pub const RCTL: u64 = 0x0100;
pub const TCTL: u64 = 0x0400;
pub const RFCTL: u64 = 0x5008;
pub const RFCTL_EXTEN: u32 = 1 << 15;
pub const RXCSUM: u64 = 0x5000;
/// The RSS hash instead of the packet's checksum stands in the descriptor.
pub const RXCSUM_PCSD: u32 = 1 << 13;
pub const MRQC: u64 = 0x5818;
/// Two queues by receive side scaling: TCP with its ports, and both versions of IP.
pub const MRQC_RSS: u32 = 1 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20;
pub const RETA: u64 = 0x5c00;
pub const RSSRK: u64 = 0x5c80;
pub const RAL0: u64 = 0x5400;
pub const RAH0: u64 = 0x5404;

/// Receive control: on, every address, long frames, broadcast, no FCS.
pub const RCTL_EN: u32 = 1 << 1;
pub const RCTL_PROMISCUOUS: u32 = 1 << 3 | 1 << 4;
pub const RCTL_LPE: u32 = 1 << 5;
pub const RCTL_BAM: u32 = 1 << 15;
pub const RCTL_SECRC: u32 = 1 << 26;
/// Transmit control: on, short frames padded.
pub const TCTL_EN: u32 = 1 << 1;
pub const TCTL_PSP: u32 = 1 << 3;

/// Causes.
pub const TXDW: u32 = 1;
pub const LSC: u32 = 1 << 2;
pub const RXT0: u32 = 1 << 7;
pub const RXQ0: u32 = 1 << 20;
pub const TXQ0: u32 = 1 << 22;
pub const OTHER: u32 = 1 << 24;

/// The rings: where their registers begin, and what is where in them.
pub const RX: u64 = 0x2800;
pub const TX: u64 = 0x3800;
/// From the first ring of a direction to the second.
pub const SECOND: u64 = 0x100;
pub const BAL: u64 = 0x00;
pub const BAH: u64 = 0x04;
pub const LEN: u64 = 0x08;
pub const HEAD: u64 = 0x10;
pub const TAIL: u64 = 0x18;

/// Descriptors: the second word. Transmit, legacy: end of packet, report status; done.
pub const TX_EOP: u64 = 1 << 24;
pub const TX_RS: u64 = 1 << 27;
pub const TX_DD: u64 = 1 << 32;
/// Receive, extended: done and end of packet, in the low half; the length above.
pub const RX_DD: u64 = 1;
pub const RX_EOP: u64 = 1 << 1;
