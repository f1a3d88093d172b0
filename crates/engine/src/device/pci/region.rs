//! Regions: the BARs and the ROM of a function, and the pages of them that a guest may map.

use std::sync::Arc;

use crate::mem::SharedPages;

/// Number of regions: six BARs and the ROM. The configuration space is not one of them.
pub const REGIONS: usize = 7;
/// The region number of the expansion ROM.
pub const ROM: usize = 6;

/// How a region is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Memory below 4 GiB.
    Memory32,
    /// Memory anywhere; takes this BAR and the next one, which must be absent.
    Memory64,
    /// The same, without side effects of reads: a bridge may put it where large things are (PCI 3.0 §6.2.5.1).
    Prefetchable,
    /// I/O ports.
    Io,
    /// The expansion ROM (region 6 only): memory that is read, not written.
    Rom,
}

/// One BAR or the ROM.
#[derive(Clone, Debug)]
pub struct Region {
    /// How it is reached.
    pub space: Space,
    /// Bytes: a power of two, at least 16 (memory) or 4 (I/O).
    pub size: u64,
    /// The pages of it that the guest may map and then reaches without a trap.
    pub mappable: Option<MappablePages>,
}

/// Pages of a region that the guest may map.
#[derive(Clone, Debug)]
pub struct MappablePages {
    /// The memory behind them. Byte 0 of it stands for byte 0 of the region, so it reaches at least to the
    /// end of the last area; what lies between areas is never touched and costs nothing.
    pub pages: Arc<SharedPages>,
    /// The areas, in bytes from the region's start; page-aligned, in order, not overlapping.
    pub areas: Vec<Area>,
}

/// A stretch of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte, from the region's start.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}
