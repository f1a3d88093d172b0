//! The block device (virtio 1.2 §5.2): requests, statuses, and the configuration space.

/// Bytes of a sector, the unit of all places and of the capacity, whatever `blk_size` says (§5.2.4).
pub const SECTOR: u64 = 512;

/// Types of requests (§5.2.6).
pub mod request {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// What was written and completed before is made to last.
    pub const FLUSH: u32 = 4;
    /// The device's name, [`super::ID_LEN`] bytes.
    pub const GET_ID: u32 = 8;
    /// Lifetime of the medium.
    pub const GET_LIFETIME: u32 = 10;
    /// Sectors that hold nothing of interest any more.
    pub const DISCARD: u32 = 11;
    /// Sectors that read as zeroes from now on.
    pub const WRITE_ZEROES: u32 = 13;
    /// Sectors whose contents must not be found again.
    pub const SECURE_ERASE: u32 = 14;
}

/// The last byte that the device writes (§5.2.6).
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// An error of the device or of the driver.
    pub const IOERR: u8 = 1;
    /// A request that this device does not know.
    pub const UNSUPP: u8 = 2;
}

/// A request's header: type u32, reserved u32, sector u64 (§5.2.6).
pub const HEADER_LEN: usize = 16;
/// Bytes of the answer to GET_ID, padded with zeroes; none ends a name of full length (§5.2.6).
pub const ID_LEN: usize = 20;
/// A range of DISCARD, WRITE_ZEROES and SECURE_ERASE: sector u64, sectors u32, flags u32 (§5.2.6).
pub const SEGMENT_LEN: usize = 16;
/// A flag of a WRITE_ZEROES range: the device may give the sectors' room back (§5.2.6).
pub const SEGMENT_UNMAP: u32 = 1;

/// Byte offsets in the configuration space (§5.2.4).
pub mod config {
    /// u64, sectors of 512 bytes.
    pub const CAPACITY: usize = 0;
    /// u32, bytes of the longest segment; with SIZE_MAX.
    pub const SIZE_MAX: usize = 8;
    /// u32, most segments of a request; with SEG_MAX.
    pub const SEG_MAX: usize = 12;
    /// u16 cylinders, u8 heads, u8 sectors; with GEOMETRY.
    pub const GEOMETRY: usize = 16;
    /// u32, bytes; with BLK_SIZE.
    pub const BLK_SIZE: usize = 20;
    /// u8, logarithm of logical blocks per physical one; with TOPOLOGY.
    pub const PHYSICAL_BLOCK_EXP: usize = 24;
    /// u8, logical blocks before the first aligned one; with TOPOLOGY.
    pub const ALIGNMENT_OFFSET: usize = 25;
    /// u16, logical blocks; with TOPOLOGY.
    pub const MIN_IO_SIZE: usize = 26;
    /// u32, logical blocks; with TOPOLOGY.
    pub const OPT_IO_SIZE: usize = 28;
    /// u8, 1: what is written may wait for a flush; with CONFIG_WCE the driver may change it.
    pub const WRITEBACK: usize = 32;
    /// u16; with MQ.
    pub const NUM_QUEUES: usize = 34;
    /// u32; with DISCARD.
    pub const MAX_DISCARD_SECTORS: usize = 36;
    /// u32, ranges of a request; with DISCARD.
    pub const MAX_DISCARD_SEG: usize = 40;
    /// u32; with DISCARD.
    pub const DISCARD_SECTOR_ALIGNMENT: usize = 44;
    /// u32; with WRITE_ZEROES.
    pub const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    /// u32, ranges of a request; with WRITE_ZEROES.
    pub const MAX_WRITE_ZEROES_SEG: usize = 52;
    /// u8, 1: a range with [`super::SEGMENT_UNMAP`] may give room back; with WRITE_ZEROES.
    pub const WRITE_ZEROES_MAY_UNMAP: usize = 56;
    /// Bytes up to here: what a device without SECURE_ERASE has.
    pub const LEN: usize = 60;
}
