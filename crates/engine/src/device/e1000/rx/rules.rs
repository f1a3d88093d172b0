//! What the registers say about received frames: which ones the receiver takes (8254x SDM §3.2.1: length,
//! VLAN, address), and how they are written down, read once a batch, with the words of a descriptor's
//! write-back.
//!
//! The tables of addresses and VLANs are read where the driver's writes put them: a word at a time, each
//! whole. A driver that changes one while frames arrive gets a decision by the old or the new word, as on
//! silicon.

use super::super::config::Model;
use super::super::regs::{self, rx};
use super::super::shared::NicState;
use super::super::state::Registers;
use crate::packet::{is_group, Frame, Offload, BROADCAST};
use crate::port::DropReason;

const FCS: u32 = 4;

/// How descriptors look and how much their buffers hold.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Extended or split: the write-back begins with the first word.
    pub(super) extended: bool,
    /// Bytes of the buffers; all but the first are zero unless the format is packet split.
    pub(super) buffers: [u32; 4],
    /// Ring places, of 16 bytes, that a descriptor takes.
    pub(super) step: u32,
}

impl Layout {
    fn new(nic: &NicState, rctl: u32) -> Layout {
        // RCTL.BSIZE and BSEX (8254x SDM §13.4.22).
        let size = 2048 >> (rctl >> 16 & 3);
        let size = if rctl & regs::RCTL_BSEX != 0 { size * 16 } else { size };
        let mut plain = Layout { extended: false, buffers: [size.min(16_384), 0, 0, 0], step: 1 };
        if nic.model == Model::E1000 {
            return plain;
        }
        // RCTL.FLXBUF (82574 §10.2.5.1): KiB instead.
        let flexible = (rctl >> 27 & 0xf) << 10;
        if flexible != 0 {
            plain.buffers[0] = flexible;
        }
        if rctl & regs::RCTL_DTYP_SPLIT != 0 {
            // PSRCTL (82574 §10.2.5.3): units of 128 bytes, then of 1 KiB.
            let psrctl = nic.regs.get(regs::PSRCTL);
            let kib = |shift: u32| (psrctl >> shift & 0x3f) << 10;
            return Layout {
                extended: true,
                buffers: [(psrctl & 0x7f) << 7, kib(8), kib(16), kib(24)],
                step: 2,
            };
        }
        Layout { extended: nic.regs.get(regs::RFCTL) & regs::RFCTL_EXTEN != 0, ..plain }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.buffers.iter().sum()
    }
}

/// What the registers say about frames: read once a batch.
pub(super) struct Rules {
    pub(super) rctl: u32,
    pub(super) layout: Layout,
    pub(super) vet: u16,
    /// Tags are taken out.
    pub(super) strip: bool,
    /// Bytes that the length counts beyond the frame.
    pub(super) fcs: u32,
    /// What is said about a frame whose checksums were checked (8254x SDM §3.2.9).
    checked: u64,
}

impl Rules {
    pub(super) fn new(nic: &NicState) -> Rules {
        let regs = &nic.regs;
        let rctl = regs.get(regs::RCTL);
        let wanted = regs.get(regs::RXCSUM) & regs::RXCSUM_TUOFL != 0;
        #[expect(clippy::cast_possible_truncation, reason = "its lower half counts")]
        let vet = regs.get(regs::VET) as u16;
        let udp = if nic.model == Model::E1000e { rx::UDPCS } else { 0 };
        Rules {
            rctl,
            layout: Layout::new(nic, rctl),
            vet,
            strip: regs.get(regs::CTRL) & regs::CTRL_VME != 0,
            fcs: if rctl & regs::RCTL_SECRC == 0 { FCS } else { 0 },
            checked: if wanted { rx::TCPCS | udp } else { rx::IXSM },
        }
    }

    /// What is said about the checksums of `frame`.
    #[inline]
    pub(super) fn checksums(&self, frame: &Frame) -> u64 {
        if frame.offload.flags & Offload::DATA_VALID == 0 {
            rx::IXSM
        } else {
            self.checked
        }
    }
}

/// A descriptor's words as they are written back (8254x SDM §3.2.3; 82574 §7.1.5.2). `mark` says how the ring
/// was chosen.
#[inline]
pub(super) fn words(extended: bool, len: u64, mark: u64, (status, special): (u64, u64)) -> [u64; 2] {
    if extended {
        [mark, status | len << 32 | special << 48]
    } else {
        [0, len | status << 32 | special << 48]
    }
}

/// Longest frame without `RCTL.LPE`: 1518 bytes and a tag, without the FCS.
const LONGEST_PLAIN: u32 = 1518;
/// Longest frame at all (8254x SDM §13.4.22, LPE).
const LONGEST: u32 = 16_384 - 4;

/// Judges one frame: it is longer than the driver allows (`BufferTooSmall`), or its address or VLAN is not
/// among those that the driver asked for (`Filtered`).
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
