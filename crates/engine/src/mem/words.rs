//! A row of 64-bit words in foreign memory, such as a ring of descriptors.
//!
//! Invariant: as for `Piece`, the holder of the row keeps the map that it was translated by. All accesses are aligned
//! atomic words inside the row, because the owner writes the same words at will.

use std::sync::atomic::{AtomicU64, Ordering};

use super::piece::Piece;

/// The lower and the upper half of a word.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "halves")]
pub fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Little-endian words; both sides write them.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    base: *const AtomicU64,
    len: usize,
}

// SAFETY: an address in shared memory, accessed by atomics only.
unsafe impl Send for Words {}

impl Words {
    /// No words.
    pub const EMPTY: Words = Words { base: std::ptr::null(), len: 0 };

    /// The words of `piece`; none if it is not aligned to 8 bytes.
    pub fn new(piece: &Piece) -> Option<Words> {
        let base: *const AtomicU64 = piece.as_ptr().cast();
        base.is_aligned().then_some(Words { base, len: piece.len() / 8 })
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn at(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the piece, whose memory stays mapped (`Piece`'s promise), and aligned.
        (index < self.len).then(|| unsafe { &*self.base.add(index) })
    }

    /// Word `index`; zero beyond the end.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    /// Word `index`; what its writer wrote before is seen after it.
    #[inline]
    pub fn acquire(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Sets word `index`, if there is one. Everything written before is visible to a side that sees it.
    #[inline]
    pub fn publish(&self, index: usize, value: u64) {
        if let Some(word) = self.at(index) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Asks the cache for the line of word `index`, to be read and written.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        super::piece::prefetch_own(self.base.wrapping_add(index).cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_reached_outside() {
        let mut memory = [1u64, 2, 3];
        // SAFETY: the array outlives the piece.
        let mut piece = unsafe { Piece::new(memory.as_mut_ptr().cast(), 24) };
        let words = Words::new(&piece).unwrap();
        words.publish(1, 7);
        words.publish(3, 9);
        assert_eq!((0..4).map(|i| words.load(i)).collect::<Vec<_>>(), [1, 7, 3, 0]);
        piece.advance(4);
        assert!(Words::new(&piece).is_none());
        assert_eq!(Words::EMPTY.load(0), 0);
    }
}
