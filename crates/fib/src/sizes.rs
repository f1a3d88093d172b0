//! The sizes of the IPv4 table. A model of it has smaller ones.

/// Bits of an address that the first access decides on. The 14 bits below are those of cells and blocks.
pub(crate) const FIRST: u32 = 18;
/// Blocks of a table with narrow values: as many as a narrow value can tell apart.
pub(crate) const NARROW_BLOCKS: usize = 1 << 15;
/// Blocks of a table with wide values. Memory is taken as they are used.
pub(crate) const WIDE_BLOCKS: usize = 1 << 18;
