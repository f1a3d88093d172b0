//! Which frames the receiver takes (8254x SDM §3.2.1): length, VLAN, address.
//!
//! The tables are read where the driver's writes put them: a word at a time, each whole. A driver that
//! changes one while frames arrive gets a decision by the old or the new word, as on silicon.

use super::regs;
use super::state::Registers;
use crate::packet::{is_group, Frame, BROADCAST};
use crate::port::DropReason;

/// Longest frame without `RCTL.LPE`: 1518 bytes and a tag, without the FCS.
const LONGEST_PLAIN: u32 = 1518;
/// Longest frame at all (8254x SDM §13.4.22, LPE).
const LONGEST: u32 = 16_384 - 4;

/// Judges one frame: it is longer than the driver allows (`BufferTooSmall`), or its address or VLAN is not among those that the driver
/// asked for (`Filtered`).
#[inline]
pub(super) fn admit(regs: &Registers, rctl: u32, frame: &Frame, tag: Option<u16>) -> Result<(), DropReason> {
    if frame.len > LONGEST_PLAIN && rctl & (regs::RCTL_LPE | regs::RCTL_SBP) == 0 || frame.len > LONGEST {
        return Err(DropReason::BufferTooSmall);
    }
    if let (Some(tci), true) = (tag, rctl & regs::RCTL_VFE != 0) {
        let vid = u32::from(tci & 0xfff);
        if !bit(regs, regs::VFTA, vid) {
            return Err(DropReason::Filtered);
        }
    }
    let dst = frame.dst();
    let wanted = if dst == BROADCAST {
        rctl & regs::RCTL_BAM != 0
    } else if is_group(dst) {
        rctl & regs::RCTL_MPE != 0
    } else {
        rctl & regs::RCTL_UPE != 0
    };
    if wanted || exact(regs, dst) || (is_group(dst) && hash(regs, rctl, dst)) {
        Ok(())
    } else {
        Err(DropReason::Filtered)
    }
}

/// Bit `index` of the table at `table`.
#[inline]
fn bit(regs: &Registers, table: u32, index: u32) -> bool {
    regs.get(table + 4 * (index >> 5)) >> (index & 31) & 1 != 0
}

/// Whether `dst` is one of the receive addresses (§13.5.2). The first is the station's own: the usual hit.
#[inline]
fn exact(regs: &Registers, dst: u64) -> bool {
    (0..16).any(|pair| {
        let high = regs.get(regs::RA + 8 * pair + 4);
        high & regs::RAH_AV != 0
            && u64::from(high & 0xffff) == dst >> 32
            && u64::from(regs.get(regs::RA + 8 * pair)) == dst & 0xffff_ffff
    })
}

/// The multicast table (§13.5.1): twelve bits of the address, which twelve by `RCTL.MO`.
fn hash(regs: &Registers, rctl: u32, dst: u64) -> bool {
    let shift = [4, 3, 2, 0][(rctl >> 12 & 3) as usize];
    let last = (dst >> 32) as u32;
    bit(regs, regs::MTA, last >> shift & 0xfff)
}
