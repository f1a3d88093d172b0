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
pub(super) struct DirtyLog(pub(super) SharedFile);

impl DirtyLog {
    /// Sets these bits of word `index`. False: it is behind the log's end. The VMM says with its size that it
    /// does not want those pages.
    #[inline]
    fn set(&self, index: u64, bits: u64) -> bool {
        let Some(at) = usize::try_from(index).ok().and_then(|index| index.checked_mul(8)) else {
            return false;
        };
        if let Some(word) = self.0.word(at) {
            word.fetch_or(bits.to_le(), Ordering::SeqCst);
            return true;
        }
        // The log's last bytes, or all of one that is not aligned.
        let bytes = (at..).zip(bits.to_le_bytes());
        bytes.filter_map(|(at, bits)| Some((self.0.byte(at)?, bits))).fold(false, |_, (byte, bits)| {
            if bits != 0 {
                byte.fetch_or(bits, Ordering::SeqCst);
            }
            true
        })
    }
}

impl WriteLog for DirtyLog {
    fn wrote(&self, gpa: u64, len: u32) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(u64::from(len) - 1) >> PAGE_SHIFT;
        let mut page = gpa >> PAGE_SHIFT;
        // A word at a time: a request to a disk may have 4 GiB, which are a million pages.
        while page <= last {
            let bit = page % 64;
            let count = (64 - bit).min(last - page + 1);
            if !self.set(page / 64, (u64::MAX >> (64 - count)) << bit) {
                return;
            }
            page += count;
        }
    }

    fn find(&self, gpa: u64, size: u64) {
        let byte = |gpa: u64| usize::try_from(gpa >> PAGE_SHIFT >> 3).unwrap_or(usize::MAX);
        self.0.find(byte(gpa), byte(gpa.saturating_add(size)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation)]

    use std::os::unix::fs::FileExt;

    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    /// The first `size` bytes of a log, and the rest of its file.
    fn log(offset: u64, size: u64) -> (DirtyLog, impl Fn() -> Vec<u8>) {
        let fd = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 1 << 20).unwrap();
        let file = std::fs::File::from(fd);
        let log = DirtyLog(SharedFile::map(&file, offset, size).unwrap());
        let bytes = move || {
            let mut bytes = vec![0; 64];
            file.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        };
        (log, bytes)
    }

    #[test]
    fn long_stretches_have_all_their_bits() {
        // Aligned, ending within a word, and not aligned at all.
        for (offset, size) in [(0, 40), (8, 35), (3, 37)] {
            for (first, count) in
                [(0u64, 1u64), (5, 3), (0, 64), (63, 2), (1, 200), (60, 70), (250, 200), (400, 9)]
            {
                let (log, bytes) = log(offset, size);
                log.wrote((first << 12) + 0xfff, u32::try_from(((count - 1) << 12) + 1).unwrap());
                let wanted = |at: u64| at < 8 * size && (first..first + count).contains(&at);
                let found = |at: u64| bytes()[at as usize / 8] >> (at % 8) & 1 == 1;
                for at in 0..512 {
                    assert_eq!(
                        found(at),
                        wanted(at),
                        "page {at} of {first} + {count}, log {offset} + {size}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_memory_of_a_log_can_be_found_beforehand() {
        let fd = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 64 << 12).unwrap();
        let file = fd.into();
        let pages = || rustix::fs::fstat(&file).unwrap().st_blocks / 8;
        let log = DirtyLog(SharedFile::map(&file, 0, 64 << 12).unwrap());
        // A page of the log is for 128 MiB.
        log.find(0x7ff_f000, 0x2000);
        assert_eq!(pages(), 2);
        log.find(1 << 30, 1 << 28);
        log.find(u64::MAX - 1, 1);
        assert_eq!(pages(), 5);
    }

    #[test]
    fn every_page_touched_has_its_bit_and_no_other() {
        let fd = memfd_create(c"log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let file = fd.into();
        let log = DirtyLog(SharedFile::map(&file, 0, 4).unwrap());
        log.wrote(0x1fff, 2);
        log.wrote(0x9000, 0);
        log.wrote(0xa000, 1);
        log.wrote(0x1f_ffff, 0x1000);
        log.wrote(u64::MAX, u32::MAX);
        let bytes: Vec<u8> = (0..4).map(|at| log.0.byte(at).unwrap().load(Ordering::Relaxed)).collect();
        assert_eq!(bytes, [0b0000_0110, 0b0000_0100, 0, 0]);
    }
}
