//! Feature bits of the block device, and its configuration space: both say what the disk is.

use sidecore_abi::virtio::blk::{config as at, SECTOR};
use sidecore_abi::virtio::features as bit;

use crate::device::FeatureTable;
use crate::disk::Disk;

/// Every feature that can be offered.
///
/// Not on offer, and why: `SIZE_MAX` (segments of any length are fine), `GEOMETRY` (no disk has one),
/// `LIFETIME` and `SECURE_ERASE` (unknown for a file), `IN_ORDER` (requests end when they end).
const KNOWN: [(&str, u64); 14] = [
    ("seg_max", bit::BLK_SEG_MAX),
    ("ro", bit::BLK_RO),
    ("blk_size", bit::BLK_BLK_SIZE),
    ("flush", bit::BLK_FLUSH),
    ("topology", bit::BLK_TOPOLOGY),
    ("config_wce", bit::BLK_CONFIG_WCE),
    ("mq", bit::BLK_MQ),
    ("discard", bit::BLK_DISCARD),
    ("write_zeroes", bit::BLK_WRITE_ZEROES),
    ("indirect", bit::INDIRECT_DESC),
    ("event_idx", bit::EVENT_IDX),
    ("version_1", bit::VERSION_1),
    ("packed", bit::RING_PACKED),
    ("order_platform", bit::ORDER_PLATFORM),
];
pub(super) const OFFERED: FeatureTable = FeatureTable { kind: "virtio-blk", known: &KNOWN };

/// Most segments of a request that drivers are told of: with header and status they fit into a ring of 128,
/// the usual one.
const MAX_SEGMENTS: u32 = 126;
/// Most ranges of a discard, or of a request to write zeroes.
pub(super) const MAX_RANGES: usize = 32;
/// Most sectors of such a range: 1 GiB, so that none takes for ever.
pub(super) const MAX_RANGE: u32 = 1 << 21;
/// Bytes of a physical block, as far as is told: pages are what is cached.
const PHYSICAL: u32 = 4096;

/// What is offered of `disk` with `queues` queues, without those named in `off`. `writeback`: what is written
/// may wait for a flush. Without FLUSH a driver knows that nothing has to (§5.2.5).
///
/// # Errors
/// A name that is not in the table.
pub(super) fn offered(disk: &Disk, queues: usize, writeback: bool, off: &[String]) -> Result<u64, String> {
    let mut word = OFFERED.without(off)?;
    let mut without = |no: bool, bits: u64| word &= if no { !bits } else { u64::MAX };
    without(!disk.read_only, bit::BLK_RO);
    without(disk.read_only, bit::BLK_WRITE_ZEROES);
    without(disk.read_only || !disk.discards(), bit::BLK_DISCARD);
    without(disk.read_only || !writeback, bit::BLK_FLUSH);
    without(queues == 1, bit::BLK_MQ);
    Ok(if word & bit::BLK_FLUSH == 0 { word & !bit::BLK_CONFIG_WCE } else { word })
}

/// The configuration space (§5.2.4) of `disk`, of which `offered` is offered. `writeback`: as the driver has
/// it now.
pub(super) fn space(disk: &Disk, offered: u64, queues: usize, writeback: bool) -> Vec<u8> {
    let mut space = vec![0; at::LEN];
    let mut put = |place: usize, bytes: &[u8]| space[place..place + bytes.len()].copy_from_slice(bytes);
    let has = |bits: u64| offered & bits != 0;
    put(at::CAPACITY, &(disk.capacity() / SECTOR).to_le_bytes());
    put(at::SEG_MAX, &MAX_SEGMENTS.to_le_bytes());
    put(at::BLK_SIZE, &disk.block_size.to_le_bytes());
    let blocks = (PHYSICAL / disk.block_size).max(1);
    put(at::PHYSICAL_BLOCK_EXP, &[u8::try_from(blocks.trailing_zeros()).unwrap_or(0)]);
    put(at::MIN_IO_SIZE, &u16::try_from(blocks).unwrap_or(1).to_le_bytes());
    put(at::WRITEBACK, &[u8::from(has(bit::BLK_FLUSH) && writeback)]);
    put(at::NUM_QUEUES, &u16::try_from(queues).unwrap_or(1).to_le_bytes());
    let ranges = u32::try_from(MAX_RANGES).unwrap_or(1).to_le_bytes();
    if has(bit::BLK_DISCARD) {
        put(at::MAX_DISCARD_SECTORS, &MAX_RANGE.to_le_bytes());
        put(at::MAX_DISCARD_SEG, &ranges);
        let sectors = u32::try_from(u64::from(PHYSICAL) / SECTOR).unwrap_or(1);
        put(at::DISCARD_SECTOR_ALIGNMENT, &sectors.to_le_bytes());
    }
    if has(bit::BLK_WRITE_ZEROES) {
        put(at::MAX_WRITE_ZEROES_SECTORS, &MAX_RANGE.to_le_bytes());
        put(at::MAX_WRITE_ZEROES_SEG, &ranges);
        put(at::WRITE_ZEROES_MAY_UNMAP, &[u8::from(disk.discards())]);
    }
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_what_the_disk_can_do() {
        let disk = Disk::null(1 << 20, 512, false);
        let all = offered(&disk, 2, true, &[]).unwrap();
        assert_eq!(all & (bit::BLK_RO | bit::BLK_DISCARD), 0);
        let wanted = bit::BLK_FLUSH | bit::BLK_CONFIG_WCE | bit::BLK_MQ | bit::BLK_WRITE_ZEROES;
        assert_eq!(all & wanted, wanted);
        let plain = offered(&disk, 1, true, &["flush".to_owned()]).unwrap();
        assert_eq!(plain & (bit::BLK_FLUSH | bit::BLK_CONFIG_WCE | bit::BLK_MQ), 0);
        assert_eq!(offered(&disk, 1, false, &[]).unwrap() & bit::BLK_FLUSH, 0);
        let fixed = offered(&Disk::null(1 << 20, 512, true), 1, true, &[]).unwrap();
        assert_eq!(fixed & (bit::BLK_RO | bit::BLK_FLUSH | bit::BLK_WRITE_ZEROES), bit::BLK_RO);
        assert!(offered(&disk, 1, true, &["scsi".to_owned()]).unwrap_err().contains("write_zeroes"));
    }

    #[test]
    fn the_space_follows_the_specification() {
        let disk = Disk::null(1 << 20, 512, false);
        let space = space(&disk, offered(&disk, 3, true, &[]).unwrap(), 3, true);
        assert_eq!(space.len(), 60);
        assert_eq!(space[..8], 2048u64.to_le_bytes());
        assert_eq!(space[12..16], 126u32.to_le_bytes());
        assert_eq!((&space[20..24], space[24], space[32]), (&512u32.to_le_bytes()[..], 3, 1));
        assert_eq!(space[34..36], [3, 0]);
        assert_eq!((&space[36..48], space[52]), (&[0u8; 12][..], 32));
        assert_eq!(super::space(&disk, bit::BLK_FLUSH, 1, false)[32], 0);
        assert_eq!(super::space(&disk, 0, 1, true)[32], 0);
    }
}
