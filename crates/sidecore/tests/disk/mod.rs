//! What the tests of disks have in common, beside the daemon itself.

use sidecore_driver::DiskOptions;

use super::work::BLOCK;
use crate::rig::Testbed;

/// Blocks of the disks.
pub const BLOCKS: u64 = 256;

/// Options of a driver whose requests are short.
pub fn small() -> DiskOptions {
    DiskOptions { largest: 8 * BLOCK, ..DiskOptions::default() }
}

/// What `show disks` says of the only disk.
pub fn shown(bed: &Testbed) -> serde_json::Value {
    bed.show("disks")["disks"][0].clone()
}
