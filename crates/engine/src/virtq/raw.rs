//! Ring fields in guest memory, read and written one at a time.
//!
//! Invariant of the `unsafe` here and in `split.rs` and `packed.rs`: a [`Raw`] is made from a ring part
//! that `RingConfig::check` found long enough and aligned, and the ring holds the `Arc` of the map that
//! it lies in. Offsets are computed from indices masked or compared with the queue size, so every
//! access is inside the part. The guest may write the same bytes at the same time: all accesses are
//! atomic, of naturally aligned words, and every value that was read is checked before it is used.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::mem::Piece;

/// One part of a ring.
#[derive(Clone, Copy)]
pub(super) struct Raw {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address in shared memory, accessed by atomics only.
unsafe impl Send for Raw {}

impl Raw {
    pub(super) fn new(piece: &Piece) -> Raw {
        Raw { base: piece.as_ptr(), len: piece.len() }
    }

    pub(super) fn at(&self, offset: usize) -> *const u8 {
        self.base.wrapping_add(offset)
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset % 2 == 0 && offset + 2 <= self.len);
        // SAFETY: module invariant.
        unsafe { AtomicU16::from_ptr(self.base.add(offset).cast()) }
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset + 8 <= self.len);
        // SAFETY: module invariant.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    #[inline]
    pub(super) fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        u16::from_le(self.u16_at(offset).load(order))
    }

    #[inline]
    pub(super) fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        #[cfg(test)]
        if crate::mem::last_store::is_behind() {
            return;
        }
        self.u16_at(offset).store(value.to_le(), order);
    }

    #[inline]
    pub(super) fn load_u32(&self, offset: usize) -> u32 {
        debug_assert!(offset % 4 == 0 && offset + 4 <= self.len);
        // SAFETY: module invariant.
        let word = unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) };
        u32::from_le(word.load(Ordering::Relaxed))
    }

    pub(super) fn load_u64(&self, offset: usize) -> u64 {
        u64::from_le(self.u64_at(offset).load(Ordering::Relaxed))
    }

    pub(super) fn store_u64(&self, offset: usize, value: u64) {
        #[cfg(test)]
        if crate::mem::last_store::is_behind() {
            return;
        }
        self.u64_at(offset).store(value.to_le(), Ordering::Relaxed);
    }

    /// A used element of the split ring is 8 bytes at an offset that is only a multiple of 4.
    #[inline]
    pub(super) fn store_used_elem(&self, offset: usize, id: u32, len: u32) {
        debug_assert!(offset % 4 == 0 && offset + 8 <= self.len);
        self.store_u32(offset, id);
        self.store_u32(offset + 4, len);
    }

    fn store_u32(&self, offset: usize, value: u32) {
        #[cfg(test)]
        if crate::mem::last_store::is_behind() {
            return;
        }
        // SAFETY: module invariant; the driver reads the element only after `used.idx` has moved.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()).store(value.to_le(), Ordering::Relaxed) }
    }
}

/// A descriptor as both formats have it: address, length, and the two last words, whose order differs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawDesc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) third: u16,
    pub(super) fourth: u16,
}

impl RawDesc {
    /// Reads descriptor `index` once, in two words.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    pub(super) fn read(table: &Raw, index: usize) -> RawDesc {
        let addr = table.load_u64(16 * index);
        let rest = table.load_u64(16 * index + 8);
        RawDesc { addr, len: rest as u32, third: (rest >> 32) as u16, fourth: (rest >> 48) as u16 }
    }
}
