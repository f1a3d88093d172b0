//! Small shared files that are not guest memory: the dirty log and the journal of ring positions.
//!
//! Invariant: `mapping.first .. + len` is inside one mapping that lives exactly as long as the
//! `SharedFile`. The other side reads and writes at will, so every access is a whole atomic word at an
//! offset that was compared with `len`. A file that is cut short reads as zeros from then on (`sigbus`).
//!
//! A row of 64-bit words in foreign memory, such as a ring of descriptors.
//!
//! Invariant: as for `Piece`, the holder of the row keeps the map that it was translated by. All accesses are
//! aligned atomic words inside the row, because the owner writes the same words at will.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

use super::foreign::{BadFile, ForeignMapping};
use super::piece::Piece;
use super::sigbus::Flag;
use super::terms::Terms;

/// A stretch of a file, mapped shared, accessed by atomic bytes and words.
#[derive(Debug)]
pub struct SharedFile {
    mapping: ForeignMapping,
    len: usize,
}

impl SharedFile {
    /// Maps `len` bytes of `file`, which is our own, from byte `offset` on.
    ///
    /// # Errors
    /// The stretch is empty, wraps or ends behind the file; or what the system says of mapping it.
    pub fn map(file: &File, offset: u64, len: u64) -> io::Result<SharedFile> {
        let mapped = ForeignMapping::of_ours(file, offset, len, &Flag::default());
        SharedFile::of(mapped, len).map_err(io::Error::other)
    }

    /// Maps `len` bytes of `file`, which a peer gives on `terms`, from byte `offset` on.
    ///
    /// # Errors
    /// As above, or the file is none that may be given.
    pub fn lent(file: &File, offset: u64, len: u64, terms: &Terms) -> Result<SharedFile, BadFile> {
        SharedFile::of(ForeignMapping::of_peer(file, offset, len, &Flag::default(), terms), len)
    }

    fn of(mapped: Result<ForeignMapping, BadFile>, len: u64) -> Result<SharedFile, BadFile> {
        Ok(SharedFile { mapping: mapped?, len: usize::try_from(len).map_err(|_| BadFile::BadRange)? })
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an empty stretch cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has the pages found that bytes `from` to `to` lie in, as far as the memory has them: a thread that
    /// writes there later does not wait for that.
    pub fn find(&self, from: usize, to: usize) {
        /// Bytes of the smallest page.
        const PAGE: usize = 4096;
        let pages = (from..=to.min(self.len - 1)).step_by(PAGE).chain([to]);
        for byte in pages.filter_map(|at| self.byte(at)) {
            std::hint::black_box(byte.load(Ordering::Relaxed));
        }
    }

    /// The byte at `offset`, if it is inside.
    pub fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        // SAFETY: `offset < len`, so the byte is inside the mapping, which lives as long as `self`.
        (offset < self.len).then(|| unsafe { AtomicU8::from_ptr(self.mapping.first.as_ptr().add(offset)) })
    }

    /// The eight bytes at `offset`, if they are inside and aligned.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(8)?;
        if end > self.len || (self.mapping.first.as_ptr() as usize + offset) % 8 != 0 {
            return None;
        }
        // SAFETY: inside the mapping as just checked, and aligned.
        Some(unsafe { AtomicU64::from_ptr(self.mapping.first.as_ptr().add(offset).cast()) })
    }
}

/// The lower and the upper half of a word.
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
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the piece, whose memory stays mapped (`Piece`'s promise), and aligned.
        (index < self.len).then(|| unsafe { &*self.base.add(index) })
    }

    /// Word `index`; zero beyond the end.
    pub fn load(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    /// Word `index`; what its writer wrote before is seen after it.
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
    pub fn prefetch(&self, index: usize) {
        super::piece::prefetch_own(self.base.wrapping_add(index).cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    #[test]
    fn bounds_and_alignment_hold() {
        let fd = memfd_create(c"shared", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x3000).unwrap();
        let file: File = fd.into();
        assert!(SharedFile::map(&file, 0, 0).is_err());
        assert!(SharedFile::map(&file, 0x2001, 0x1000).is_err());
        assert!(SharedFile::map(&file, u64::MAX, 2).is_err());
        let shared = SharedFile::map(&file, 0x1008, 20).unwrap();
        shared.word(8).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(shared.byte(15).unwrap().load(Ordering::Relaxed), 0xff);
        assert!(shared.word(4).is_none() && shared.word(16).is_none() && shared.word(usize::MAX).is_none());
        assert!(shared.byte(19).is_some() && shared.byte(20).is_none());
        ftruncate(&file, 0).unwrap();
        assert_eq!(shared.word(8).unwrap().load(Ordering::Relaxed), 0);
    }
}

#[cfg(test)]
mod words_tests {
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
