//! Numbers of the RTL8169: registers with their bits, descriptors with theirs. Names are those of Realtek's
//! data sheet of the RTL8169S/8110S ("Register Descriptions", "Descriptors"), which has no other numbers to
//! cite.
//!
//! Registers are one, two or four bytes wide. Those of a word are reached together here; offsets are those of
//! words unless it is said otherwise.

/// Bytes of the register space, in both BARs.
pub const SPACE: u32 = 256;

/// `IDR0`–`IDR5`: the station's address.
pub const IDR: u32 = 0x00;
/// `MAR0`–`MAR7`: the multicast hash table.
pub const MAR: u32 = 0x08;
/// `DTCCR`: where the counters are dumped, and the command for it.
pub const DTCCR: u32 = 0x10;
/// `DTCCR`: dump now. Clears itself.
pub const DTCCR_DUMP: u32 = 1 << 3;
/// `TNPDS`: the ring of frames to be sent.
pub const TNPDS: u32 = 0x20;
/// `THPDS`: another such ring, of high priority.
pub const THPDS: u32 = 0x28;
/// The word with `CR`, its highest byte.
pub const CR: u32 = 0x34;
/// `CR`: reset, receiver on, transmitter on.
pub const CR_RST: u32 = 1 << 4;
pub const CR_RE: u32 = 1 << 3;
pub const CR_TE: u32 = 1 << 2;
/// `TPPoll`, the lowest byte: the doorbells of both rings, and an interrupt that software wishes.
pub const TPPOLL: u32 = 0x38;
pub const TPPOLL_NPQ: u32 = 1 << 6;
pub const TPPOLL_FSWINT: u32 = 1;
/// `IMR` and `ISR`: the lower and the upper half.
pub const INTERRUPTS: u32 = 0x3c;
/// `TCR`: transmit configuration, with the chip's version.
pub const TCR: u32 = 0x40;
/// `TCR`: what software may write: interframe gap, loopback, FCS, burst.
pub const TCR_WRITABLE: u32 = 0x030f_0700;
/// `TCR`: version bits of the RTL8169SB/8110SB.
pub const TCR_VERSION: u32 = 0x1000_0000;
/// `TCR`: what is sent comes back.
pub const TCR_LOOPBACK: u32 = 3 << 17;
/// `RCR`: receive configuration.
pub const RCR: u32 = 0x44;
/// `RCR`: which frames are accepted: all unicast, ours, multicast by the hash, broadcast.
pub const RCR_AAP: u32 = 1;
pub const RCR_APM: u32 = 1 << 1;
pub const RCR_AM: u32 = 1 << 2;
pub const RCR_AB: u32 = 1 << 3;
/// `TCTR`: a timer that any write starts at zero.
pub const TCTR: u32 = 0x48;
/// `MPC`: frames that were missed, 24 bits; any write clears it.
pub const MPC: u32 = 0x4c;
/// The word with `9346CR` and `CONFIG0`–`CONFIG2`.
pub const CR9346: u32 = 0x50;
/// `9346CR`: which mode: the EEPROM's lines, or configuration registers may be written.
pub const EEM: u32 = 3 << 6;
pub const EEM_PROGRAM: u32 = 2 << 6;
pub const EEM_CONFIG: u32 = 3 << 6;
/// `9346CR`: the lines: select, clock, data in, data out.
pub const EECS: u32 = 1 << 3;
pub const EESK: u32 = 1 << 2;
pub const EEDI: u32 = 1 << 1;
pub const EEDO: u32 = 1;
/// The word with `CONFIG3`–`CONFIG5`.
pub const CONFIG3: u32 = 0x54;
/// `TimerInt`: the timer interrupts when it gets here; zero: never.
pub const TIMER_INT: u32 = 0x58;
/// `PHYAR`: access to the PHY.
pub const PHYAR: u32 = 0x60;
/// The word with `PHYStatus`, its lowest byte.
pub const PHYSTATUS: u32 = 0x6c;
/// `PHYStatus`: transmit and receive flow control, 1000 Mb/s, link, full duplex.
pub const PHYSTATUS_UP: u32 = 1 << 6 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
/// Where a status block is (`sidecore_abi::csb`): words that the part reserves, there only with the option.
pub const CSBAL: u32 = 0x70;
pub const CSBAH: u32 = 0x74;
/// The word with `RMS` (its upper half): the longest frame that is received, with FCS; 14 bits.
pub const RMS: u32 = 0xd8;
/// `C+CR` (the lower half) and the mitigation of interrupts.
pub const CPCR: u32 = 0xe0;
/// `C+CR`: the unit of mitigation, receive checksums, tags taken out.
pub const CPCR_UNIT: u32 = 3;
pub const CPCR_RXCHKSUM: u32 = 1 << 5;
pub const CPCR_RXVLAN: u32 = 1 << 6;
/// `RDSAR`: the ring of receive buffers.
pub const RDSAR: u32 = 0xe4;

/// Causes of interrupts in `IMR` and `ISR`.
pub mod cause {
    /// A frame was received.
    pub const ROK: u32 = 1;
    /// A frame was sent.
    pub const TOK: u32 = 1 << 2;
    /// A frame found no receive buffer.
    pub const RDU: u32 = 1 << 4;
    /// The link came or went.
    pub const LINK: u32 = 1 << 5;
    /// Software wished it.
    pub const SWINT: u32 = 1 << 8;
    /// The timer.
    pub const TIMEOUT: u32 = 1 << 14;
}

/// The first word of a descriptor; the second one is a buffer's address.
pub mod desc {
    /// The device may use it.
    pub const OWN: u64 = 1 << 31;
    /// The ring ends with it.
    pub const EOR: u64 = 1 << 30;
    /// The first, and the last, of a frame.
    pub const FS: u64 = 1 << 29;
    pub const LS: u64 = 1 << 28;
    /// Transmit: segmentation, with the segment size.
    pub const LGSEN: u64 = 1 << 27;
    pub const MSS_SHIFT: u32 = 16;
    pub const MSS: u64 = 0x7ff;
    /// Transmit, without segmentation: checksums of IP, UDP, TCP.
    pub const IPCS: u64 = 1 << 18;
    pub const UDPCS: u64 = 1 << 17;
    pub const TCPCS: u64 = 1 << 16;
    /// Transmit: bytes of the buffer.
    pub const TX_LEN: u64 = 0xffff;
    /// Transmit: a tag is to be put in. The tag stands in the sixteen bits before, its higher byte first.
    pub const TAGC: u64 = 1 << 49;
    /// Receive: bytes of the buffer, and of the frame when it is done.
    pub const RX_LEN: u64 = 0x3fff;
    /// Receive, done: how the frame was addressed: multicast, to this station, broadcast.
    pub const MAR: u64 = 1 << 27;
    pub const PAM: u64 = 1 << 26;
    pub const BAR: u64 = 1 << 25;
    /// Receive, done: checksums of UDP, or TCP, over IPv4 were checked.
    pub const UDP: u64 = 1 << 18;
    pub const TCP: u64 = 1 << 17;
    /// Receive, done: a tag was taken out.
    pub const TAVA: u64 = 1 << 48;
    /// Where a tag stands.
    pub const TAG_SHIFT: u32 = 32;
    /// Bits that neither side gives a meaning, in the half with the tag.
    pub const SPARE: u64 = 0x3fff << 50;
}
