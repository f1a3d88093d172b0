//! Memory that frames of the host lie in: private pages, or rings that are shared with the kernel.
//!
//! Invariant of the `unsafe` here: `base .. + len` is one mapping that lives exactly as long as the
//! `Mapping`. Every word, piece and slice made of it is bounded by `len`. The kernel is the only other party,
//! and it is trusted to keep to the protocol of its rings: what it has handed over it does not write. Each caller that
//! takes a slice says why that holds there.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU32;

use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::mem::Piece;

/// A mapping.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length of memory of its own; words are reached as atomics, and slices are taken by the side
// that has the memory at that moment.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Zeroed private pages; those that nothing has reached yet cost nothing.
    pub(super) fn private(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE) }?;
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// The `len` bytes from `offset` on of what the kernel shows behind `fd`.
    pub(super) fn shared(fd: &OwnedFd, offset: u64, len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, flags, fd, offset) }?;
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Where it begins, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The word at byte `at`, which is aligned and inside.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at % 4 == 0 && at < self.len && self.len - at >= 4, "a word outside of the mapping");
        // SAFETY: inside and aligned, as just checked (a mapping begins on a page).
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The value at byte `at`, as plain bytes.
    ///
    /// # Safety
    /// No other side writes there meanwhile.
    #[inline]
    pub(super) unsafe fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(at <= self.len && self.len - at >= N, "a value outside of the mapping");
        // SAFETY: inside, as just checked; the caller vouches for the rest.
        unsafe { self.base.as_ptr().add(at).cast::<[u8; N]>().read_unaligned() }
    }

    /// Stores plain bytes at byte `at`.
    ///
    /// # Safety
    /// No other side reads or writes there meanwhile.
    #[inline]
    pub(super) unsafe fn write<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        assert!(at <= self.len && self.len - at >= N, "a value outside of the mapping");
        // SAFETY: inside, as just checked; the caller vouches for the rest.
        unsafe { self.base.as_ptr().add(at).cast::<[u8; N]>().write_unaligned(bytes) };
    }

    /// The stretch from `at` to `at + len`, cut at the mapping's end.
    ///
    /// # Safety
    /// No side writes there while the slice is used.
    #[inline]
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let at = at.min(self.len);
        // SAFETY: inside the mapping; the caller vouches for the rest.
        unsafe { slice::from_raw_parts(self.base.as_ptr().add(at), len.min(self.len - at)) }
    }

    /// Bytes of the mapping, to be written.
    ///
    /// # Safety
    /// No other side reads or writes there while the slice is used.
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        let at = at.min(self.len);
        // SAFETY: inside the mapping; the caller vouches for the rest.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr().add(at), len.min(self.len - at)) }
    }

    /// The stretch as a piece, cut at the mapping's end. The user of the piece keeps the mapping.
    #[inline]
    pub(super) fn piece(&self, at: usize, len: u32) -> Piece {
        let at = at.min(self.len);
        let room = u32::try_from(self.len - at).unwrap_or(u32::MAX);
        // SAFETY: inside the mapping, which outlives the batch that the piece goes into: a queue is taken
        // back between two batches before it is dropped.
        unsafe { Piece::new(self.base.as_ptr().add(at), len.min(room)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that the maker made; everything made of it is given back.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
