//! The sizes of the IPv4 table. A model of it has smaller ones.

/// Bits of an address that the first access decides on.
pub(crate) const DIRECT: u32 = 24;
/// Bits that a block decides on.
pub(crate) const BLOCK: u32 = 8;
/// Blocks of a table with narrow entries: as many as a narrow entry can tell apart.
pub(crate) const NARROW_BLOCKS: usize = 1 << 15;
/// Blocks of a table with wide entries, 1 KiB each. Memory is taken as they are used.
pub(crate) const WIDE_BLOCKS: usize = 1 << 18;
