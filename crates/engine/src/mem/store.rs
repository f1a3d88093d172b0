//! Zeroed memory of our own that several threads copy to and from at once: what a RAM disk consists of.
//!
//! Invariant: `base .. + len` is one private anonymous mapping that lives exactly as long as the `Store`. Guests decide
//! what is written where and when, also twice at once, so its bytes are only ever copied as those of a [`Piece`], and
//! never borrowed. The holder of a piece of it keeps the `Store`.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{mmap_anonymous, munmap, MapFlags, ProtFlags};

use super::piece::Piece;

/// A stretch of memory.
#[derive(Debug)]
pub struct Store {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; the bytes are only reached by copies through pieces.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// `len` bytes, none of which takes room before it is touched.
    ///
    /// # Errors
    /// The system has no such stretch.
    pub fn new(len: usize) -> io::Result<Store> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Store { base, len })
    }

    /// The `len` bytes from `at` on, if the store is that long.
    #[inline]
    pub fn piece(&self, at: u64, len: u32) -> Option<Piece> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(len as usize)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping, as was just seen; its holder keeps the store.
        Some(unsafe { Piece::new(self.base.as_ptr().add(at), len) })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, of which no piece is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_inside() {
        let store = Store::new(8192).unwrap();
        assert!(store.piece(8192, 1).is_none() && store.piece(u64::MAX, 2).is_none());
        assert!(store.piece(8192, 0).is_some());
        assert_eq!(store.piece(8190, 2).unwrap().write(b"end"), 2);
        let mut bytes = [1; 4];
        store.piece(8188, 4).unwrap().read(&mut bytes);
        assert_eq!(&bytes, b"\0\0en");
    }
}
