//! A stretch of memory that was mapped: memory of our own that several threads copy to and from at once (what
//! a RAM disk consists of), or a file that is shared with others.
//!
//! Invariant: `base .. + len` is one mapping that lives exactly as long as the `Mapping`. Others decide what
//! is written where and when, also twice at once, so its bytes are only ever copied as those of a [`Piece`]
//! or reached as atomic words, and never borrowed. The holder of a piece of it keeps the `Mapping`.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use super::piece::Piece;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A huge page of x86-64, and of arm64 with pages of 4 KiB.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages for private memory that is used at random. Where the system has none, nothing changes.
pub fn in_huge_pages(memory: &mut [u64]) {
    let from = memory.as_mut_ptr().cast::<u8>();
    let begin = from.align_offset(HUGE_PAGE);
    if let Some(len) = size_of_val(memory).checked_sub(begin) {
        // SAFETY: advice on whole pages within `memory`, of which it changes no byte.
        let _ = unsafe {
            madvise(from.wrapping_add(begin).cast(), len & !(HUGE_PAGE - 1), Advice::LinuxHugepage)
        };
    }
}

/// A mapping.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; the bytes are only reached by copies and as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` zero bytes of our own, none of which takes room before it is touched.
    ///
    /// # Errors
    /// The system has no such stretch.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE) }?;
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// The first `len` bytes of `file`, to read and write.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_file(file: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::of_part(file, 0, len, true, MapFlags::empty())
    }

    /// The `len` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_part(
        file: impl AsFd,
        offset: u64,
        len: usize,
        writable: bool,
        flags: MapFlags,
    ) -> io::Result<Mapping> {
        let access = if writable { READ_WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED | flags, file, offset) }?;
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Where it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes in it.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The `len` bytes from `at` on, if it is that long.
    #[inline]
    pub fn piece(&self, at: u64, len: u32) -> Option<Piece> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(len as usize)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping, as was just seen; its holder keeps it.
        Some(unsafe { Piece::new(self.base.as_ptr().add(at), len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made, of which no piece and no word is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_inside() {
        let store = Mapping::anonymous(8192).unwrap();
        assert!(store.piece(8192, 1).is_none() && store.piece(u64::MAX, 2).is_none());
        assert!(store.piece(8192, 0).is_some());
        assert_eq!(store.piece(8190, 2).unwrap().write(b"end"), 2);
        let mut bytes = [1; 4];
        store.piece(8188, 4).unwrap().read(&mut bytes);
        assert_eq!(&bytes, b"\0\0en");
    }
}
