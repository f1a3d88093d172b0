//! The dirty log: a bit per guest page, set for every page that the device writes while a VMM migrates
//! the guest.
//!
//! There is no cache of pages that were logged lately: the VMM clears bits while we run, and a page that
//! it has just sent must be logged again. The atomic OR is also the full barrier that puts the data
//! before the bit.

use std::sync::atomic::Ordering;

use crate::mem::SharedFile;
use crate::virtq::WriteLog;

const PAGE_SHIFT: u32 = 12;

/// The bitmap that the VMM shares.
pub(super) struct DirtyLog {
    bits: SharedFile,
}

impl DirtyLog {
    pub(super) fn new(bits: SharedFile) -> DirtyLog {
        DirtyLog { bits }
    }
}

impl WriteLog for DirtyLog {
    fn wrote(&self, gpa: u64, len: u32) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(u64::from(len) - 1) >> PAGE_SHIFT;
        for page in (gpa >> PAGE_SHIFT)..=last {
            // Pages behind the log's end: the VMM says with its size that it does not want them.
            let Ok(at) = usize::try_from(page / 8) else { return };
            let Some(byte) = self.bits.byte(at) else { return };
            byte.fetch_or(1 << (page % 8), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    #[test]
    fn every_page_touched_has_its_bit_and_no_other() {
        let fd = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let file = fd.into();
        let log = DirtyLog::new(SharedFile::map(&file, 0, 4).unwrap());
        log.wrote(0x1fff, 2);
        log.wrote(0x9000, 0);
        log.wrote(0xa000, 1);
        log.wrote(0x1f_ffff, 0x1000);
        log.wrote(u64::MAX, u32::MAX);
        let bytes: Vec<u8> = (0..4).map(|at| log.bits.byte(at).unwrap().load(Ordering::Relaxed)).collect();
        assert_eq!(bytes, [0b0000_0110, 0b0000_0100, 0, 0]);
    }
}
