//! Registers of the 8254x and the 82574, by their offset in BAR 0, and their bits.
//!
//! Sections are those of Intel's "PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's
//! Manual" (8254x SDM) and of the "82574 GbE Controller Family Datasheet" (82574). Where both are given the
//! register is the same on both.

/// Bytes of BAR 0 on both parts.
pub const BAR_SIZE: u64 = 0x2_0000;
/// Rings of each direction: the 82540EM has only the first.
pub const QUEUES: usize = 2;

// ---- General (8254x SDM §13.4.1–13.4.11; 82574 §10.2.2)
/// Device control, §13.4.1.
pub const CTRL: u32 = 0x0000;
/// A second address of `CTRL`.
pub const CTRL_DUP: u32 = 0x0004;
/// Device status, §13.4.2.
pub const STATUS: u32 = 0x0008;
/// EEPROM/Flash control, §13.4.3.
pub const EECD: u32 = 0x0010;
/// EEPROM read, §13.4.4.
pub const EERD: u32 = 0x0014;
/// Extended device control, §13.4.6; 82574 §10.2.2.5.
pub const CTRL_EXT: u32 = 0x0018;
/// MDI control, §13.4.7.
pub const MDIC: u32 = 0x0020;
/// Flow control address, high half, §13.4.9.
pub const FCAH: u32 = 0x002c;
/// Flow control type, §13.4.10.
pub const FCT: u32 = 0x0030;
/// VLAN EtherType, §13.4.11.
pub const VET: u32 = 0x0038;

/// `CTRL`: set link up.
pub const CTRL_SLU: u32 = 1 << 6;
/// `CTRL`: 1000 Mb/s.
pub const CTRL_SPD_1000: u32 = 1 << 9;
/// `CTRL`: the values that the software-defined pins 0 and 2 have after reset.
pub const CTRL_SWDPINS: u32 = 1 << 18 | 1 << 20;
/// `CTRL`: device reset; clears itself.
pub const CTRL_RST: u32 = 1 << 26;
/// `CTRL`: VLAN mode: tags are stripped and inserted.
pub const CTRL_VME: u32 = 1 << 30;
/// `CTRL`: PHY reset.
pub const CTRL_PHY_RST: u32 = 1 << 31;

/// `STATUS` but for the link: full duplex, 1000 Mb/s sensed and set, and what else reads as set.
pub const STATUS_RESET: u32 = 0x8000_0000 | 1 << 19 | 0x400 | 0x300 | 0x80 | 1;
/// `STATUS`: link up.
pub const STATUS_LU: u32 = 1 << 1;
/// `STATUS`: PCI-X mode. Linux's e1000 uses addresses above 4 GiB only if it is set.
pub const STATUS_PCIX: u32 = 1 << 13;

/// `CTRL_EXT`: reading `ICR` masks what `IAM` names (82574 §10.2.2.5).
pub const CTRL_EXT_IAME: u32 = 1 << 27;
/// `CTRL_EXT`: a message takes its causes out of `IAM` (82574 §10.2.2.5).
pub const CTRL_EXT_EIAME: u32 = 1 << 24;
/// `CTRL_EXT`: reset as if the EEPROM had been read anew; clears itself.
pub const CTRL_EXT_EE_RST: u32 = 1 << 13;

// ---- Interrupts (8254x SDM §13.4.17–13.4.22; 82574 §10.2.4)
/// Interrupt cause, §13.4.17; 82574 §10.2.4.1. Reading clears.
pub const ICR: u32 = 0x00c0;
/// Interrupt throttling, §13.4.18, in 256 ns.
pub const ITR: u32 = 0x00c4;
/// Interrupt cause set, §13.4.19.
pub const ICS: u32 = 0x00c8;
/// Interrupt mask set/read, §13.4.20.
pub const IMS: u32 = 0x00d0;
/// Interrupt mask clear, §13.4.21.
pub const IMC: u32 = 0x00d8;
/// Causes that a message clears, 82574 §10.2.4.6.
pub const EIAC: u32 = 0x00dc;
/// Masks that an acknowledged interrupt sets, 82574 §10.2.4.7.
pub const IAM: u32 = 0x00e0;
/// Which cause goes to which message, 82574 §10.2.4.9.
pub const IVAR: u32 = 0x00e4;
/// Throttling of message 0; 1 to 4 follow, 82574 §10.2.4.8.
pub const EITR0: u32 = 0x00e8;
/// Messages of the 82574.
pub const VECTORS: usize = 5;

/// Cause: a descriptor was written back.
pub const TXDW: u32 = 1;
/// Cause: the transmit ring ran empty.
pub const TXQE: u32 = 1 << 1;
/// Cause: the link changed.
pub const LSC: u32 = 1 << 2;
/// Cause: few receive descriptors are left.
pub const RXDMT0: u32 = 1 << 4;
/// Cause: a frame found no descriptor.
pub const RXO: u32 = 1 << 6;
/// Cause: frames were received.
pub const RXT0: u32 = 1 << 7;
/// Cause: an MDI access ended.
pub const MDAC: u32 = 1 << 9;
/// Cause (82574): receive queue 0; queue 1 follows.
pub const RXQ0: u32 = 1 << 20;
/// Cause (82574): receive queue 1.
pub const RXQ1: u32 = 1 << 21;
/// Cause (82574): transmit queue 0.
pub const TXQ0: u32 = 1 << 22;
/// Cause (82574): transmit queue 1.
pub const TXQ1: u32 = 1 << 23;
/// Cause (82574): any of those that have no message of their own.
pub const OTHER: u32 = 1 << 24;
/// `ICR`: an enabled cause is set.
pub const INT_ASSERTED: u32 = 1 << 31;
/// Causes that `OTHER` stands for: link, overrun, MDI, small packet, ACK, management.
pub const OTHER_CAUSES: u32 = LSC | RXO | MDAC | 1 << 16 | 1 << 17 | 1 << 18;

// ---- Receive (8254x SDM §13.4.22–13.4.31, §13.5; 82574 §10.2.5)
/// Receive control, §13.4.22.
pub const RCTL: u32 = 0x0100;
/// Flow control: pause time, §13.4.12.
pub const FCTTV: u32 = 0x0170;
/// Packet split sizes, 82574 §10.2.5.3.
pub const PSRCTL: u32 = 0x2170;
/// First register of receive ring 0: base, low.
pub const RX_RING: u32 = 0x2800;
/// Registers of ring 1 (82574).
pub const RX_RING_1: u32 = 0x2900;
/// The receive rings.
pub const RX_RINGS: [u32; QUEUES] = [RX_RING, RX_RING_1];
/// Receive checksum control, §13.4.32.
pub const RXCSUM: u32 = 0x5000;
/// Receive filter control, 82574 §10.2.5.12.
pub const RFCTL: u32 = 0x5008;
/// Multiple receive queues command, 82574 §10.2.5.
pub const MRQC: u32 = 0x5818;
/// Redirection table, 82574 §10.2.5: 128 bytes.
pub const RETA: u32 = 0x5c00;
/// Random key of receive side scaling, 82574 §10.2.5: 10 words, the key's first byte in the lowest.
pub const RSSRK: u32 = 0x5c80;
/// Multicast table, §13.5.1: 128 words.
pub const MTA: u32 = 0x5200;
/// Receive addresses, §13.5.2: 16 pairs.
pub const RA: u32 = 0x5400;
/// VLAN filter table, §13.5.4: 128 words.
pub const VFTA: u32 = 0x5600;

/// `RCTL`: receiver on.
pub const RCTL_EN: u32 = 1 << 1;
/// `RCTL`: store bad packets, which here means: too long ones.
pub const RCTL_SBP: u32 = 1 << 2;
/// `RCTL`: every unicast frame.
pub const RCTL_UPE: u32 = 1 << 3;
/// `RCTL`: every multicast frame.
pub const RCTL_MPE: u32 = 1 << 4;
/// `RCTL`: long frames.
pub const RCTL_LPE: u32 = 1 << 5;
/// `RCTL`: loopback; any but zero.
pub const RCTL_LBM: u32 = 3 << 6;
/// `RCTL`: packet split descriptors (82574).
pub const RCTL_DTYP_SPLIT: u32 = 1 << 10;
/// `RCTL`: broadcast frames.
pub const RCTL_BAM: u32 = 1 << 15;
/// `RCTL`: VLAN filter.
pub const RCTL_VFE: u32 = 1 << 18;
/// `RCTL`: buffers are sixteen times as large.
pub const RCTL_BSEX: u32 = 1 << 25;
/// `RCTL`: the checksum of the frame is not stored.
pub const RCTL_SECRC: u32 = 1 << 26;
/// `RXCSUM`: check IP headers.
pub const RXCSUM_IPOFL: u32 = 1 << 8;
/// `RXCSUM`: check TCP and UDP.
pub const RXCSUM_TUOFL: u32 = 1 << 9;
/// `RXCSUM`: the RSS hash instead of the packet's checksum stands in the descriptor (82574).
pub const RXCSUM_PCSD: u32 = 1 << 13;
/// `RFCTL`: extended receive descriptors.
pub const RFCTL_EXTEN: u32 = 1 << 15;
/// `RFCTL`: packets with IPv6 extension headers are hashed by their fixed header.
pub const RFCTL_IPV6_EX_DIS: u32 = 1 << 16;
/// `MRQC`: which queues there are; 1: two, by receive side scaling.
pub const MRQC_ENABLE: u32 = 3;
/// `MRQC_ENABLE`: receive side scaling.
pub const MRQC_RSS: u32 = 1;
/// `MRQC`: hash TCP over IPv4 with its ports.
pub const MRQC_TCP_IPV4: u32 = 1 << 16;
/// `MRQC`: hash IPv4.
pub const MRQC_IPV4: u32 = 1 << 17;
/// `MRQC`: hash TCP over IPv6 with its ports.
pub const MRQC_TCP_IPV6: u32 = 1 << 18;
/// `MRQC`: hash IPv6 with extension headers.
pub const MRQC_IPV6_EX: u32 = 1 << 19;
/// `MRQC`: hash IPv6.
pub const MRQC_IPV6: u32 = 1 << 20;
/// `RA` high word: the address is in use.
pub const RAH_AV: u32 = 1 << 31;

// ---- Transmit (8254x SDM §13.4.33–13.4.44; 82574 §10.2.6)
/// Transmit control, §13.4.33.
pub const TCTL: u32 = 0x0400;
/// Transmit inter-packet gap, §13.4.34.
pub const TIPG: u32 = 0x0410;
/// First register of transmit ring 0: base, low.
pub const TX_RING: u32 = 0x3800;
/// Registers of ring 1 (82574).
pub const TX_RING_1: u32 = 0x3900;
/// The transmit rings.
pub const TX_RINGS: [u32; QUEUES] = [TX_RING, TX_RING_1];
/// Arbitration of transmit ring 0, 82574 §10.2.6.11.
pub const TARC0: u32 = 0x3840;
/// Arbitration of transmit ring 1.
pub const TARC1: u32 = 0x3940;

/// `TCTL`: transmitter on.
pub const TCTL_EN: u32 = 1 << 1;
/// `TCTL`: short frames are padded.
pub const TCTL_PSP: u32 = 1 << 3;

/// Offsets within the registers of a ring (8254x SDM §13.4.25–13.4.31, §13.4.38–13.4.44).
pub mod ring {
    /// Base address, low half.
    pub const BAL: u32 = 0x00;
    /// Base address, high half.
    pub const BAH: u32 = 0x04;
    /// Bytes.
    pub const LEN: u32 = 0x08;
    /// Head: the device's place.
    pub const HEAD: u32 = 0x10;
    /// Tail: the driver's place, the doorbell.
    pub const TAIL: u32 = 0x18;
    /// Delay of interrupts after the last packet (RDTR, TIDV), in 1.024 µs.
    pub const DELAY: u32 = 0x20;
    /// Delay of interrupts after the first packet (RADV, TADV), in 1.024 µs.
    pub const ABSOLUTE_DELAY: u32 = 0x2c;
    /// Behind the last register.
    pub const END: u32 = 0x40;
    /// What of `LEN` counts: whole cache lines below a megabyte.
    pub const LEN_MASK: u32 = 0xf_ff80;
}

/// The part of BAR 0 that is plain memory: receive and transmit rings.
pub const SHARED: std::ops::Range<u32> = 0x2000..0x4000;

// ---- The rest: reset values and storage
/// Packet buffer allocation, §13.4.16.
pub const PBA: u32 = 0x1000;
/// Management EEPROM control, 82574 §10.2.2.20.
pub const EEMNGCTL: u32 = 0x1010;
/// LED control, §13.4.15.
pub const LEDCTL: u32 = 0x0e00;
/// Extended configuration control, 82574 §10.2.2.11.
pub const EXTCNF_CTRL: u32 = 0x0f00;
/// Statistics, §13.7: from here …
pub const STATS: u32 = 0x4000;
/// … to here.
pub const STATS_END: u32 = 0x4128;
/// Management control, §13.4.46.
pub const MANC: u32 = 0x5820;
/// Software semaphore, 82574 §10.2.2.17.
pub const SWSM: u32 = 0x5b50;
/// Firmware semaphore, 82574 §10.2.2.18.
pub const FWSM: u32 = 0x5b54;
/// End of the registers that are kept as words.
pub const STORED: u32 = 0x6000;
/// System time, low; its high half follows (82574 §10.2.9).
pub const SYSTIML: u32 = 0xb600;
/// System time, high.
pub const SYSTIMH: u32 = 0xb604;
/// System time's increment.
pub const TIMINCA: u32 = 0xb608;

// ---- Transmit descriptors (8254x SDM §3.3), the second word as one 64-bit number
/// Descriptors' commands and status, in the second of a descriptor's two words.
pub mod tx {
    /// The length of a data descriptor's buffer (§3.3.7.1).
    pub const LEN: u64 = 0xf_ffff;
    /// The length of a legacy descriptor's buffer (§3.3.3).
    pub const LEGACY_LEN: u64 = 0xffff;
    /// The descriptor's type: data, not context.
    pub const DTYP_DATA: u64 = 1 << 20;
    /// Last descriptor of a packet.
    pub const EOP: u64 = 1 << 24;
    /// Legacy: insert a checksum.
    pub const IC: u64 = 1 << 26;
    /// Data and context: segmentation.
    pub const TSE: u64 = 1 << 26;
    /// Report status: write `DD` when done.
    pub const RS: u64 = 1 << 27;
    /// Report packet sent; treated as `RS`.
    pub const RPS: u64 = 1 << 28;
    /// Not a legacy descriptor.
    pub const DEXT: u64 = 1 << 29;
    /// Insert the VLAN tag.
    pub const VLE: u64 = 1 << 30;
    /// Delay the interrupt.
    pub const IDE: u64 = 1 << 31;
    /// Context: TCP, not UDP.
    pub const TCP: u64 = 1 << 24;
    /// Context: IPv4, not IPv6.
    pub const IP: u64 = 1 << 25;
    /// Status: done.
    pub const DD: u64 = 1 << 32;
    /// Status bits that a write-back replaces: DD, EC, LC, TU.
    pub const STATUS: u64 = 0xf << 32;
    /// Option: insert the IP header's checksum.
    pub const IXSM: u64 = 1 << 40;
    /// Option: insert the TCP or UDP checksum.
    pub const TXSM: u64 = 1 << 41;
}

/// Status and errors of received frames (8254x SDM §3.2.3; the same bits in 82574 §7.1.5).
pub mod rx {
    /// Done.
    pub const DD: u64 = 1;
    /// Last descriptor of the frame.
    pub const EOP: u64 = 1 << 1;
    /// The checksums were not checked.
    pub const IXSM: u64 = 1 << 2;
    /// A VLAN tag was stripped.
    pub const VP: u64 = 1 << 3;
    /// The UDP checksum was checked (82574).
    pub const UDPCS: u64 = 1 << 4;
    /// The TCP checksum (or on 8254x UDP's) was checked.
    pub const TCPCS: u64 = 1 << 5;
}
