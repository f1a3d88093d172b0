//! Private memory that frames can be described in: for frames that the engine itself makes.
//!
//! Invariant: `base` is one allocation of `slots * size` bytes, owned by the arena and only ever reached
//! through raw pointers, so pieces of it may stand beside later writes to other slots. As with guest
//! memory, the user of a piece keeps the arena until the batch that holds the piece is released.

use super::piece::Piece;

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
