//! Memory that frames of the host lie in: private pages, or rings that are shared with the kernel.
//!
//! Invariant of the `unsafe` here: `base .. + len` is one mapping that lives exactly as long as the
//! `Mapping`. Every word, piece and slice made of it is bounded by `len`. The kernel is the only other party,
//! and it is trusted to keep to the protocol of its rings: what it has handed over it does not write. Each
//! caller that takes a slice says why that holds there.

use std::io;
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::atomic::AtomicU32;

use rustix::mm::MapFlags;

use crate::mem::{self, Piece};

/// A mapping: words are reached as atomics, and slices are taken by the side that has the memory at that
/// moment.
pub(super) struct Mapping(mem::Mapping);

impl Mapping {
    /// Zeroed private pages; those that nothing has reached yet cost nothing.
    pub(super) fn private(len: usize) -> io::Result<Mapping> {
        Ok(Mapping(mem::Mapping::anonymous(len)?))
    }

    /// The `len` bytes from `offset` on of what the kernel shows behind `fd`.
    pub(super) fn shared(fd: &OwnedFd, offset: u64, len: usize) -> io::Result<Mapping> {
        Ok(Mapping(mem::Mapping::of_part(fd, offset, len, true, MapFlags::POPULATE)?))
    }

    /// Where it begins, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.0.base().as_ptr()
    }

    fn holds(&self, at: usize, len: usize) -> bool {
        at <= self.0.size() && self.0.size() - at >= len
    }

    /// The word at byte `at`, which is aligned and inside.
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at % 4 == 0 && self.holds(at, 4), "a word outside of the mapping");
        // SAFETY: inside and aligned, as just checked (a mapping begins on a page).
        unsafe { AtomicU32::from_ptr(self.address().add(at).cast()) }
    }

    /// The value at byte `at`, as plain bytes.
    ///
    /// # Safety
    /// No other side writes there meanwhile.
    pub(super) unsafe fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(self.holds(at, N), "a value outside of the mapping");
        // SAFETY: inside, as just checked; the caller vouches for the rest.
        unsafe { self.address().add(at).cast::<[u8; N]>().read_unaligned() }
    }

    /// Stores plain bytes at byte `at`.
    ///
    /// # Safety
    /// No other side reads or writes there meanwhile.
    pub(super) unsafe fn write<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        assert!(self.holds(at, N), "a value outside of the mapping");
        // SAFETY: inside, as just checked; the caller vouches for the rest.
        unsafe { self.address().add(at).cast::<[u8; N]>().write_unaligned(bytes) };
    }

    /// The stretch from `at` to `at + len`, cut at the mapping's end.
    ///
    /// # Safety
    /// No side writes there while the slice is used.
    #[inline]
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let at = at.min(self.0.size());
        // SAFETY: inside the mapping; the caller vouches for the rest.
        unsafe { slice::from_raw_parts(self.address().add(at), len.min(self.0.size() - at)) }
    }

    /// Bytes of the mapping, to be written.
    ///
    /// # Safety
    /// No other side reads or writes there while the slice is used.
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        let at = at.min(self.0.size());
        // SAFETY: inside the mapping; the caller vouches for the rest.
        unsafe { slice::from_raw_parts_mut(self.address().add(at), len.min(self.0.size() - at)) }
    }

    /// The stretch as a piece, cut at the mapping's end. The user of the piece keeps the mapping.
    #[inline]
    pub(super) fn piece(&self, at: usize, len: u32) -> Piece {
        let at = at.min(self.0.size());
        let room = u32::try_from(self.0.size() - at).unwrap_or(u32::MAX);
        // SAFETY: inside the mapping, which outlives the batch that the piece goes into: a queue is taken
        // back between two batches before it is dropped.
        unsafe { Piece::new(self.address().add(at), len.min(room)) }
    }
}
