//! Pieces: bounds-checked stretches of foreign memory.
//!
//! Invariant: a `Piece` is only made from a stretch that a `GuestMap` (or a buffer that its maker owns)
//! covers whole, and its maker keeps that memory mapped until the batch that holds the piece is released. The
//! bytes may change at any moment, so they are only ever copied, never borrowed.
//!
//! Private memory that frames can be described in: for frames that the engine itself makes.
//!
//! Invariant: `base` is one allocation of `slots * size` bytes, owned by the arena and only ever reached
//! through raw pointers, so pieces of it may stand beside later writes to other slots. As with guest
//! memory, the user of a piece keeps the arena until the batch that holds the piece is released.

use std::ptr;

/// Most frames in a batch.
pub const MAX_BATCH: usize = 256;
/// Most pieces of one frame. Linux sends up to 19, some drivers more.
pub const MAX_PIECES: usize = 256;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Pieces of a whole batch.
pub const BATCH_PIECES: usize = 4096;
/// Bytes of the smallest page that there is: what does not cross their boundaries lies in one page, whatever
/// its size.
const PAGE: usize = 4096;

/// A stretch of foreign memory: mapped, but written by others at will.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    ptr: *mut u8,
    len: u32,
}

// SAFETY: a piece is an address and a length; it gives no reference, and the copies below go through
// raw pointers. The batch decides how long it may be used.
unsafe impl Send for Piece {}

impl Piece {
    /// The empty piece.
    pub const EMPTY: Piece = Piece { ptr: ptr::null_mut(), len: 0 };

    /// A piece of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` stays mapped, readable and (if the piece is written) writable for as long as
    /// the piece is used.
    pub const unsafe fn new(ptr: *mut u8, len: u32) -> Piece {
        Piece { ptr, len }
    }

    /// Bytes in the piece.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for prefetching and for system calls such as `writev`.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Drops the first `n` bytes, at most all of them; returns how many were dropped.
    #[inline]
    pub fn advance(&mut self, n: usize) -> usize {
        let n = n.min(self.len as usize);
        // SAFETY: `n` is at most the length, so the result is inside or one past the piece.
        self.ptr = unsafe { self.ptr.add(n) };
        #[expect(clippy::cast_possible_truncation, reason = "n is at most self.len")]
        {
            self.len -= n as u32;
        }
        n
    }

    /// The first `n` bytes of the piece, or all if it has fewer.
    #[inline]
    #[must_use]
    pub fn first(&self, n: usize) -> Piece {
        #[expect(clippy::cast_possible_truncation, reason = "at most self.len")]
        Piece { ptr: self.ptr, len: n.min(self.len as usize) as u32 }
    }

    /// Its part in the page in which it begins.
    #[must_use]
    pub fn first_page(&self) -> Piece {
        self.first(PAGE - self.ptr as usize % PAGE)
    }

    /// Copies the first bytes of the piece into `to`; returns how many there were.
    #[inline]
    pub fn read(&self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len as usize);
        // SAFETY: both sides hold at least `n` bytes; `to` is private memory, so they do not overlap.
        unsafe { copy(self.ptr, to.as_mut_ptr(), n) };
        n
    }

    /// Copies `from` to the start of the piece; returns how many bytes fitted.
    #[inline]
    pub fn write(&self, from: &[u8]) -> usize {
        let n = from.len().min(self.len as usize);
        // SAFETY: both sides hold at least `n` bytes; `from` is private memory, so they do not overlap.
        unsafe { copy(from.as_ptr(), self.ptr, n) };
        n
    }

    /// Copies all of `from` to the start of the piece if it fits whole.
    #[inline]
    #[must_use]
    pub fn write_array<const N: usize>(&self, from: &[u8; N]) -> bool {
        if (self.len as usize) < N {
            return false;
        }
        // SAFETY: the piece holds at least `N` bytes; the store is unaligned.
        unsafe { self.ptr.cast::<[u8; N]>().write_unaligned(*from) };
        true
    }

    /// Reads `N` bytes from the start of the piece if it has that many.
    #[inline]
    pub fn read_array<const N: usize>(&self) -> Option<[u8; N]> {
        if (self.len as usize) < N {
            return None;
        }
        // SAFETY: the piece holds at least `N` bytes; the load is unaligned.
        Some(unsafe { self.ptr.cast::<[u8; N]>().read_unaligned() })
    }

    /// Reads its first byte, for the page to be found now.
    #[inline]
    pub fn touch(&self) {
        if !self.is_empty() {
            // SAFETY: the piece holds a byte.
            let _ = unsafe { self.ptr.read_volatile() };
        }
    }

    /// Whether it lies in two stretches of 2 MiB, each of which may be a huge page of its own.
    #[inline]
    pub fn is_in_two_blocks(&self) -> bool {
        const BLOCK_BITS: u32 = 21;
        let first = self.ptr as usize;
        (first ^ first.wrapping_add((self.len as usize).saturating_sub(1))) >> BLOCK_BITS != 0
    }

    /// Copies the first bytes of `from` to the start of this piece: the one copy of a frame's life.
    /// Returns how many bytes fitted.
    #[inline]
    pub fn write_from(&self, from: &Piece) -> usize {
        let n = (from.len as usize).min(self.len as usize);
        // SAFETY: both pieces hold at least `n` bytes. A guest may offer a buffer that overlaps the
        // one it sends from: `ptr::copy` is defined for that.
        unsafe { ptr::copy(from.ptr, self.ptr, n) };
        n
    }

    /// Asks the cache for the line at `offset`, to be read soon.
    pub fn prefetch(&self, offset: usize) {
        prefetch_read(self.ptr.wrapping_add(offset));
    }

    /// Asks the cache for the lines from `offset` on, to be read soon.
    #[inline]
    pub fn prefetch_from(&self, offset: usize) {
        for at in (offset..self.len()).step_by(LINE) {
            prefetch_read(self.ptr.wrapping_add(at));
        }
    }

    /// Asks the cache for the lines from `offset` on, to be written soon.
    #[inline]
    pub fn prefetch_own_from(&self, offset: usize) {
        for at in (offset..self.len()).step_by(LINE) {
            prefetch_own(self.ptr.wrapping_add(at));
        }
    }
}

/// Copies `n` bytes. Heads of frames, 32 to 64 bytes, are by far the most frequent: two overlapping moves
/// copy any of them without a call or a loop.
///
/// # Safety
/// As `ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    type Half = [u8; 32];
    if (32..=64).contains(&n) {
        // SAFETY: the caller vouches for `n` bytes on both sides; unaligned accesses are asked for.
        unsafe {
            let a = from.cast::<Half>().read_unaligned();
            let b = from.add(n - 32).cast::<Half>().read_unaligned();
            to.cast::<Half>().write_unaligned(a);
            to.add(n - 32).cast::<Half>().write_unaligned(b);
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, n) }
    }
}

/// Asks the cache for a line, to be read soon. Any address will do: a prefetch never faults.
#[inline]
pub fn prefetch_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks the cache for a line that will be read and then written, and takes it away from its owner at once:
/// one transfer instead of two. (Asked for in assembly because the compiler makes a plain prefetch of the
/// hint unless the whole program is built for processors with PREFETCHW; older ones take it for a
/// no-operation.)
#[inline]
pub fn prefetch_own(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A bounded list of pieces: the memory of one batch. Never grows beyond its capacity.
pub struct Pieces {
    slots: Box<[Piece]>,
    len: usize,
}

impl Pieces {
    /// Room for `capacity` pieces.
    pub fn new(capacity: usize) -> Pieces {
        Pieces { slots: vec![Piece::EMPTY; capacity].into(), len: 0 }
    }

    /// Forgets all pieces.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Number of pieces held; the place that the next one gets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more fit.
    pub fn room(&self) -> usize {
        self.slots.len() - self.len
    }

    /// Adds a piece; false if there is no room.
    #[inline]
    #[must_use]
    pub fn push(&mut self, piece: Piece) -> bool {
        let Some(slot) = self.slots.get_mut(self.len) else { return false };
        *slot = piece;
        self.len += 1;
        true
    }

    /// Drops all pieces from place `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The piece at place `index`, to be advanced in place.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Piece> {
        self.slots[..self.len].get_mut(index)
    }

    /// `count` pieces from place `start`; none if there are not that many.
    pub fn range(&self, start: usize, count: usize) -> &[Piece] {
        self.slots[..self.len].get(start..start + count).unwrap_or(&[])
    }

    /// `count` pieces from place `start`, to be advanced in place.
    pub fn range_mut(&mut self, start: usize, count: usize) -> &mut [Piece] {
        self.slots[..self.len].get_mut(start..start + count).unwrap_or(&mut [])
    }
}

/// Reads the next `to.len()` bytes of `list` from piece `at` on, which hold at least that many, and drops
/// them from the pieces. Returns the first piece that still has bytes.
#[inline]
pub fn gather(list: &mut [Piece], mut at: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(piece) = list.get_mut(at) {
        let n = piece.read(&mut to[done..]);
        piece.advance(n);
        done += n;
        if !piece.is_empty() {
            break;
        }
        at += 1;
    }
    at
}

/// Writes through a list of pieces, each of which it moves on.
pub struct PieceWriter<'a>(pub &'a mut [Piece]);

impl PieceWriter<'_> {
    /// Writes bytes of our own.
    #[inline]
    pub fn write(&mut self, mut from: &[u8]) {
        while let Some(first) = self.0.first_mut() {
            let n = first.write(from);
            first.advance(n);
            from = &from[n..];
            if from.is_empty() {
                return;
            }
            self.next();
        }
    }

    /// Copies another piece.
    #[inline]
    pub fn copy(&mut self, mut from: Piece) {
        while let Some(first) = self.0.first_mut() {
            let n = first.write_from(&from);
            first.advance(n);
            from.advance(n);
            if from.is_empty() {
                return;
            }
            self.next();
        }
    }

    fn next(&mut self) {
        self.0 = &mut std::mem::take(&mut self.0)[1..];
    }
}

/// A fixed number of slots of a fixed size.
pub struct Arena {
    base: *mut u8,
    slots: usize,
    size: usize,
}

// SAFETY: the arena owns its allocation.
unsafe impl Send for Arena {}

impl Arena {
    /// `slots` slots of `size` bytes, zeroed.
    pub fn new(slots: usize, size: usize) -> Arena {
        let memory = vec![0u8; slots * size].into_boxed_slice();
        Arena { base: Box::into_raw(memory).cast(), slots, size }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Writes `bytes` to the start of slot `slot` and returns the part of it from `from` on as a piece.
    ///
    /// # Panics
    /// If there is no such slot, it is smaller than `bytes`, or `from` lies behind them.
    pub fn put(&mut self, slot: usize, bytes: &[u8], from: usize) -> Piece {
        assert!(slot < self.slots && bytes.len() <= self.size && from <= bytes.len());
        // SAFETY: just checked to be inside the allocation; `bytes` is a borrow of other memory.
        unsafe {
            let at = self.base.add(slot * self.size);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            #[expect(clippy::cast_possible_truncation, reason = "a slot is a few hundred bytes")]
            Piece::new(at.add(from), (bytes.len() - from) as u32)
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.base, self.slots * self.size);
        // SAFETY: the allocation of `new`, freed once.
        drop(unsafe { Box::from_raw(slice) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_by_both_sides() {
        let mut buf = [0u8; 100];
        // SAFETY: `buf` outlives the piece.
        let mut piece = unsafe { Piece::new(buf.as_mut_ptr(), 100) };
        for n in [0usize, 1, 63, 64, 65, 100, 200] {
            let from: Vec<u8> = (0..200u8).take(n).collect();
            assert_eq!(piece.write(&from), n.min(100));
            let mut to = vec![0; n];
            assert_eq!(piece.read(&mut to), n.min(100));
            assert_eq!(to[..n.min(100)], from[..n.min(100)]);
        }
        assert_eq!(piece.advance(30), 30);
        assert_eq!(piece.len(), 70);
        assert_eq!(piece.advance(71), 70);
        assert!(piece.is_empty());
    }

    #[test]
    fn pieces_never_grow() {
        let mut pieces = Pieces::new(3);
        let room = pieces.room();
        for _ in 0..room {
            assert!(pieces.push(Piece::EMPTY));
        }
        assert!(!pieces.push(Piece::EMPTY));
        assert_eq!(pieces.range(room - 1, 1).len(), 1);
        assert!(pieces.range(room - 1, 2).is_empty());
        // What an earlier batch left behind is out of reach: its memory may be gone.
        pieces.truncate(1);
        assert!(
            pieces.range(1, 1).is_empty() && pieces.range_mut(0, 2).is_empty() && pieces.get_mut(1).is_none()
        );
    }
}
