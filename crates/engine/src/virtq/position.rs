//! Where a ring stands.

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
