//! A block device's configuration space (§5.2.4), as the driver read it last.

use sidecore_abi::virtio::blk::{config as at, SECTOR};
use sidecore_abi::virtio::features as f;

/// What a device says about itself. A field whose feature was not negotiated is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Sectors of 512 bytes.
    pub capacity: u64,
    /// Bytes of a logical block.
    pub block: Option<u32>,
    /// Bytes of the longest segment.
    pub size_max: Option<u32>,
    /// Most segments of a request.
    pub seg_max: Option<u32>,
    /// Logical blocks per physical block, as a power of two, and the best sizes: `min_io_size`,
    /// `opt_io_size`.
    pub topology: Option<(u8, u16, u32)>,
    /// Writes may wait for a flush.
    pub writeback: Option<bool>,
    /// Queues.
    pub queues: Option<u16>,
    /// DISCARD: sectors and ranges of a request, and the sectors that a range should be a multiple of.
    pub discard: Option<[u32; 3]>,
    /// WRITE_ZEROES: sectors and ranges of a request.
    pub write_zeroes: Option<[u32; 2]>,
    /// A range of WRITE_ZEROES may give its room back.
    pub may_unmap: bool,
}

impl Geometry {
    /// Reads it from the bytes of a space; what lies beyond their end is zero.
    pub fn parse(bytes: &[u8], features: u64) -> Self {
        let word = |offset: usize, len: usize| {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(bytes.iter().skip(offset).take(len)) {
                *to = *from;
            }
            u64::from_le_bytes(word)
        };
        // Cut to the field's own width, so nothing is lost.
        let u8_at = |offset| (word(offset, 1) & 0xff) as u8;
        let u16_at = |offset| (word(offset, 2) & 0xffff) as u16;
        let u32_at = |offset| (word(offset, 4) & 0xffff_ffff) as u32;
        let has = |feature: u64| features & feature != 0;
        Self {
            capacity: word(at::CAPACITY, 8),
            block: has(f::BLK_BLK_SIZE).then(|| u32_at(at::BLK_SIZE)),
            size_max: has(f::BLK_SIZE_MAX).then(|| u32_at(at::SIZE_MAX)),
            seg_max: has(f::BLK_SEG_MAX).then(|| u32_at(at::SEG_MAX)),
            topology: has(f::BLK_TOPOLOGY)
                .then(|| (u8_at(at::PHYSICAL_BLOCK_EXP), u16_at(at::MIN_IO_SIZE), u32_at(at::OPT_IO_SIZE))),
            writeback: has(f::BLK_CONFIG_WCE).then(|| u8_at(at::WRITEBACK) != 0),
            queues: has(f::BLK_MQ).then(|| u16_at(at::NUM_QUEUES)),
            discard: has(f::BLK_DISCARD).then(|| {
                [at::MAX_DISCARD_SECTORS, at::MAX_DISCARD_SEG, at::DISCARD_SECTOR_ALIGNMENT].map(u32_at)
            }),
            write_zeroes: has(f::BLK_WRITE_ZEROES)
                .then(|| [at::MAX_WRITE_ZEROES_SECTORS, at::MAX_WRITE_ZEROES_SEG].map(u32_at)),
            may_unmap: has(f::BLK_WRITE_ZEROES) && u8_at(at::WRITE_ZEROES_MAY_UNMAP) != 0,
        }
    }

    /// Bytes of the disk.
    pub fn bytes(&self) -> u64 {
        self.capacity.saturating_mul(SECTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_where_they_lie_and_only_with_their_feature() {
        let bytes: Vec<u8> = (1..=60).collect();
        let all = Geometry::parse(&bytes, u64::MAX);
        assert_eq!(all.capacity, u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(all.size_max, Some(u32::from_le_bytes([9, 10, 11, 12])));
        assert_eq!(all.block, Some(u32::from_le_bytes([21, 22, 23, 24])));
        assert_eq!(
            all.topology,
            Some((25, u16::from_le_bytes([27, 28]), u32::from_le_bytes([29, 30, 31, 32])))
        );
        assert_eq!((all.writeback, all.queues), (Some(true), Some(u16::from_le_bytes([35, 36]))));
        assert_eq!(all.discard.map(|d| d[2]), Some(u32::from_le_bytes([45, 46, 47, 48])));
        assert!(all.may_unmap);
        let none = Geometry::parse(&bytes[..8], 0);
        assert_eq!(none, Geometry { capacity: all.capacity, ..Geometry::default() });
    }
}
