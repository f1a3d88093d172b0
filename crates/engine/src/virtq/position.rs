//! Where a ring stands, and the entries that follow.
//!
//! Lines that will be written are asked for exclusively before they are ([`Entries`]). The driver has read
//! what was written a lap ago, so each store there waits until the line is the writer's alone: a quarter of a
//! microsecond from a processor far away. A batch's used entries are in many lines, and the index behind them
//! becomes visible only after all of them. So a ring asks for those lines when it takes the chains, and they
//! come while the frames are copied.

use super::raw::Raw;
use crate::mem::prefetch_own;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Where a ring stands. What GET_VRING_BASE returns and SET_VRING_BASE sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Split ring: the next available (and, as we complete in order, used) index.
    Split(u16),
    /// Packed ring: the next descriptor and its wrap counter; bit 15 of each is the wrap counter.
    Packed {
        /// Where the next available descriptor is looked for.
        avail: u16,
        /// Where the next used descriptor is written.
        used: u16,
    },
}

/// An index into a packed ring with the wrap counter that belongs to it (virtio 1.2 §2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) index: u16,
    pub(super) wrap: bool,
}

impl Cursor {
    pub(super) fn from_bits(bits: u16) -> Cursor {
        Cursor { index: bits & 0x7fff, wrap: bits & 0x8000 != 0 }
    }

    pub(super) fn bits(self) -> u16 {
        self.index | (u16::from(self.wrap) << 15)
    }

    /// `by` is at most `size`.
    #[inline]
    pub(super) fn advance(&mut self, by: u16, size: u16) {
        self.index += by;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }
}

/// Entries in a row: where they are in their part of the ring.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    /// Where the first one of the ring begins.
    pub(super) start: usize,
    /// Bytes of each.
    pub(super) bytes: usize,
    /// How many the ring has.
    pub(super) size: u16,
}

impl Entries {
    /// Asks for the lines of the `n` entries from `first` on, at most as many as the ring has.
    #[inline]
    pub(super) fn bring(self, part: &Raw, first: u16, n: u16) {
        self.lines(first, n).for_each(|offset| prefetch_own(part.at(offset)));
    }

    /// A byte of each of those lines.
    #[inline]
    fn lines(self, first: u16, n: u16) -> impl Iterator<Item = usize> {
        let n = n.min(self.size);
        let before_end = n.min(self.size.saturating_sub(first));
        self.run(first, before_end).chain(self.run(0, n - before_end))
    }

    /// The lines of entries that lie together. A line need not begin where an entry does: the last byte is
    /// asked for, too.
    #[inline]
    fn run(self, first: u16, n: u16) -> impl Iterator<Item = usize> {
        let start = self.start + self.bytes * usize::from(first);
        let end = start + self.bytes * usize::from(n);
        (start..end).step_by(LINE).chain((n > 0).then(|| end - 1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_of_the_entries_is_asked_for_and_no_other() {
        for (start, bytes) in [(4, 8), (0, 16)] {
            for size in [1, 2, 3, 8, 256] {
                let entries = Entries { start, bytes, size };
                // A part of a ring is aligned to 4 bytes, or to 16.
                for base in [0, 4, 16, 60] {
                    for (first, n) in (0..size).flat_map(|first| [0, 1, 7, 64, size].map(|n| (first, n))) {
                        let line = |offset: usize| (base + offset) / LINE;
                        let asked: BTreeSet<usize> = entries.lines(first, n).map(line).collect();
                        let place = |i: u16| start + bytes * usize::from((first + i) % size);
                        let bytes_of = |i: u16| place(i)..place(i) + bytes;
                        let theirs: BTreeSet<usize> = (0..n.min(size)).flat_map(bytes_of).map(line).collect();
                        assert_eq!(asked, theirs, "{n} of {size} from {first}, at {base}");
                    }
                }
            }
        }
    }
}
