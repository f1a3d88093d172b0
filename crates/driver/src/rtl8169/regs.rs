//! Numbers of the RTL8169 (data sheet of the RTL8169S/8110S).

/// The registers as memory.
pub const BAR: u32 = 1;

pub const IDR: u64 = 0x00;
pub const TNPDS: u64 = 0x20;
pub const CR: u64 = 0x37;
pub const TPPOLL: u64 = 0x38;
pub const IMR: u64 = 0x3c;
pub const ISR: u64 = 0x3e;
pub const TCR: u64 = 0x40;
pub const RCR: u64 = 0x44;
pub const CR9346: u64 = 0x50;
pub const PHYAR: u64 = 0x60;
pub const RMS: u64 = 0xda;
/// Where a status block is.
pub const CSBAL: u64 = 0x70;
pub const CSBAH: u64 = 0x74;
pub const CPCR: u64 = 0xe0;
pub const RDSAR: u64 = 0xe4;

pub const CR_RST: u8 = 1 << 4;
pub const CR_RE: u8 = 1 << 3;
pub const CR_TE: u8 = 1 << 2;
pub const NPQ: u8 = 1 << 6;
pub const ROK: u16 = 1;
pub const TOK: u16 = 1 << 2;
pub const LINK: u16 = 1 << 5;
/// Bits of `TCR` that say which chip it is, and what those of the RTL8169SB/8110SB are.
pub const TCR_VERSION: u32 = 0xfcf0_0000;
pub const TCR_SB: u32 = 0x1000_0000;
/// Every burst, every frame that has a receiver.
pub const TCR_BURST: u32 = 7 << 8 | 3 << 24;
pub const RCR_ALL: u32 = 7 << 13 | 7 << 8 | 0xf;

/// `9346CR`: the EEPROM's lines, and the mode in which they are driven.
pub const PROGRAM: u8 = 2 << 6;
pub const EECS: u8 = 1 << 3;
pub const EESK: u8 = 1 << 2;
pub const EEDI: u8 = 1 << 1;
pub const EEDO: u8 = 1;

pub const OWN: u64 = 1 << 31;
pub const EOR: u64 = 1 << 30;
pub const FS: u64 = 1 << 29;
pub const LS: u64 = 1 << 28;
pub const RX_LEN: u64 = 0x3fff;
