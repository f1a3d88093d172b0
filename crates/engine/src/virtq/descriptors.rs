//! The descriptors of a packed ring, and how a batch of them is given back: by its ring, and by the journal
//! of one that was killed.

use std::sync::atomic::Ordering;

use sidecore_abi::virtio::{DESC_F_WRITE, PACKED_F_AVAIL, PACKED_F_USED};

use super::position::Cursor;
use super::raw::Raw;
use crate::mem::Piece;

const FLAGS: usize = 14;

/// A used descriptor: it gives `descs` descriptors back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub id: u16,
    pub descs: u16,
    pub len: u32,
}

/// The descriptors, and how a batch of them is given back.
pub(super) struct PackedDescriptors {
    pub(super) desc: Raw,
    pub(super) size: u16,
}

impl PackedDescriptors {
    /// `desc` holds `size` descriptors, is aligned, and its map outlives the ring.
    pub(super) fn new(desc: &Piece, size: u16) -> PackedDescriptors {
        PackedDescriptors { desc: Raw::new(desc), size }
    }

    pub(super) fn is_available(&self, at: Cursor) -> bool {
        self.available(at).is_some()
    }

    /// The flags of the descriptor at `at`, if it is available.
    #[inline]
    pub(super) fn available(&self, at: Cursor) -> Option<u16> {
        let flags = self.desc.load_u16(16 * usize::from(at.index) + FLAGS, Ordering::Acquire);
        let avail = flags & PACKED_F_AVAIL != 0;
        let used = flags & PACKED_F_USED != 0;
        (avail == at.wrap && used != at.wrap).then_some(flags)
    }

    /// The descriptor at `at` looks used in its lap, though none was published there: it looks available
    /// again.
    pub(super) fn unuse(&self, at: Cursor) {
        let offset = 16 * usize::from(at.index) + FLAGS;
        let flags = self.desc.load_u16(offset, Ordering::Relaxed);
        let both = PACKED_F_AVAIL | PACKED_F_USED;
        if flags & both == if at.wrap { both } else { 0 } {
            let available = if at.wrap { PACKED_F_AVAIL } else { PACKED_F_USED };
            self.desc.store_u16(offset, available, Ordering::Relaxed);
        }
    }

    /// Gives a batch back from `first` on: the flags of its first descriptor are written last, and publish
    /// all of it. `wrote` is told the offset of each descriptor before it is visible.
    #[inline]
    pub(super) fn publish(&self, first: Cursor, batch: impl Iterator<Item = Used>, wrote: impl Fn(usize)) {
        let mut at = first;
        let mut publishing = 0;
        for (i, used) in batch.enumerate() {
            let offset = 16 * usize::from(at.index);
            let mut flags = if at.wrap { PACKED_F_AVAIL | PACKED_F_USED } else { 0 };
            if used.len > 0 {
                // §2.8.13: WRITE in a used descriptor says that its length is meaningful.
                flags |= DESC_F_WRITE;
            }
            let kept = if i == 0 {
                publishing = flags;
                self.desc.load_u16(offset + FLAGS, Ordering::Relaxed)
            } else {
                flags
            };
            let word = u64::from(used.len) | u64::from(used.id) << 32 | u64::from(kept) << 48;
            self.desc.store_u64(offset + 8, word);
            wrote(offset);
            at.advance(used.descs, self.size);
        }
        self.desc.store_u16(16 * usize::from(first.index) + FLAGS, publishing, Ordering::Release);
    }
}

/// By what a packed ring is known again: a random number in its device event area, in the field that counts
/// only with `EVENT_F_DESC` (virtio 1.2 §2.8.14), which we do not use. What is kept of the ring elsewhere has
/// the same number. A driver that sets its ring up anew clears it.
pub(super) mod mark {
    use std::collections::hash_map::RandomState;
    use std::hash::{BuildHasher, Hasher};
    use std::sync::atomic::Ordering;

    use sidecore_abi::virtio::packed;

    use crate::mem::Piece;
    use crate::virtq::raw::Raw;

    /// The number, if it is that of the ring with event area `device`.
    pub(in crate::virtq) fn held(number: u64, device: &Piece) -> Option<u16> {
        let there = Raw::new(device).load_u16(packed::EVENT_OFF_WRAP, Ordering::Relaxed);
        (there != 0 && u64::from(there) == number).then_some(there)
    }

    /// A new number.
    pub(in crate::virtq) fn any() -> u16 {
        u16::try_from(1 + RandomState::new().build_hasher().finish() % 0xffff).unwrap_or(1)
    }

    /// Gives it to the ring with event area `device`.
    pub(in crate::virtq) fn write(number: u16, device: &Piece) {
        Raw::new(device).store_u16(packed::EVENT_OFF_WRAP, number, Ordering::Relaxed);
    }
}
