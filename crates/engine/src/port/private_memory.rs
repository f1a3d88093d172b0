//! Whether a port's guest seems to write to memory that we do not see.
//!
//! Theory of operation. A VMM may give the file of its memory and map it privately itself: then we read zeros
//! for ever, and no message tells. What tells is low memory without a byte in it under a driver that has
//! begun ([`GuestMap::is_blank`]). That is suspicious and no proof, so the first frame that comes from the
//! port clears it. Frames that it was given say nothing about what its guest sees.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::GuestMap;

/// 0: the memory is not suspect; else one more than the frames that had come from the port when it became so.
#[derive(Debug, Default)]
pub(super) struct PrivateMemoryCheck(AtomicU64);

impl PrivateMemoryCheck {
    /// A driver has begun in the memory of `map`, and `frames` have come from its port: looks whether that
    /// can be its guest's. Reads it, so the caller may wait for the server of the memory.
    pub fn look(&self, map: &GuestMap, frames: u64) {
        let suspect = if map.is_blank() { frames.wrapping_add(1) } else { 0 };
        self.0.store(suspect, Ordering::Relaxed);
    }

    /// No VMM gives memory any more.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the memory is suspect, now that `frames` have come.
    pub fn is_suspect(&self, frames: u64) -> bool {
        let suspect = self.0.load(Ordering::Relaxed);
        suspect != 0 && suspect == frames.wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::RegionSpec;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    #[test]
    fn low_memory_of_zeros_is_suspect_until_a_frame_comes() {
        const BYTES: u64 = 1 << 20;
        let file = |gpa| {
            let file = std::fs::File::from(memfd_create(c"low", MemfdFlags::CLOEXEC).unwrap());
            ftruncate(&file, BYTES).unwrap();
            RegionSpec { gpa, size: BYTES, user_addr: 0x7f00_0000_0000, offset: 0, file }
        };
        let check = PrivateMemoryCheck::default();
        let look = |spec: RegionSpec| {
            check.look(&GuestMap::new(&[spec]).unwrap(), 7);
            check.is_suspect(7)
        };
        assert!(look(file(0)));
        assert!(!check.is_suspect(8), "a frame has come");
        let last = file(0);
        rustix::io::pwrite(&last.file, &[1], (640 << 10) - 1).unwrap();
        assert!(!look(last));
        let above = file(0);
        rustix::io::pwrite(&above.file, &[1], 640 << 10).unwrap();
        assert!(look(above));
        // It is no PC's.
        assert!(!look(file(1 << 32)));
        assert!(look(file(0)));
        check.clear();
        assert!(!check.is_suspect(7));
    }
}
