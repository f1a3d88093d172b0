//! A ring of descriptors in the driver's memory, with one buffer for each.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{prefetch, prefetch_write, Buffers, Memory, View};

/// A ring: `count` descriptors of two words, and a buffer for each.
pub(super) struct DescriptorRing {
    words: View,
    pub(super) buffers: Buffers,
    pub(super) count: u16,
    /// The first descriptor that belongs to the device and has not been looked at since.
    clean: u16,
    /// The first descriptor that belongs to the driver: the tail.
    pub(super) tail: u16,
}

impl DescriptorRing {
    pub(super) fn new(memory: &Arc<Memory>, count: u16, buffer: usize) -> Result<DescriptorRing> {
        // A ring is a multiple of 128 bytes long (8254x SDM §13.4.27).
        if count < 8 || count % 8 != 0 {
            return Err(Error::Config(format!("a ring of {count}: a multiple of 8 is needed")));
        }
        let at = memory.alloc(usize::from(count) * 16, 128)?;
        let words = memory.view(at, usize::from(count) * 16);
        let buffers = memory.alloc_buffers(usize::from(count), buffer)?;
        Ok(DescriptorRing { words, buffers, count, clean: 0, tail: 0 })
    }

    /// Bytes of memory that a ring takes.
    pub(super) fn size(count: u16, buffer: usize) -> usize {
        usize::from(count) * 16 + 128 + Memory::buffers_size(usize::from(count), buffer)
    }

    pub(super) fn restart(&mut self) {
        (self.clean, self.tail) = (0, 0);
    }

    pub(super) fn address(&self) -> u64 {
        self.words.memory().gpa(self.words.offset())
    }

    pub(super) fn bytes(&self) -> u32 {
        u32::from(self.count) * 16
    }

    fn next(&self, place: u16) -> u16 {
        if place + 1 == self.count {
            0
        } else {
            place + 1
        }
    }

    /// Whether the driver has a descriptor left to give. One always stays: a full ring would look empty.
    pub(super) fn has_room(&self) -> bool {
        self.next(self.tail) != self.clean
    }

    pub(super) fn is_clean(&self) -> bool {
        self.clean == self.tail
    }

    /// Fills the descriptor at the tail and moves the tail; the device sees it with the doorbell.
    #[inline]
    pub(super) fn give(&mut self, word: u64) {
        let place = usize::from(self.tail);
        let address = self.words.memory().gpa(self.buffers.offset(self.tail));
        self.words.store64(2 * place, address, Ordering::Relaxed);
        self.words.store64(2 * place + 1, word, Ordering::Relaxed);
        self.tail = self.next(self.tail);
    }

    /// The second word of the oldest descriptor that the device has, and its place.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(u16, u64)> {
        let place = usize::from(self.clean);
        (!self.is_clean()).then(|| (self.clean, self.words.load64(2 * place + 1, Ordering::Acquire)))
    }

    /// Asks the cache for the buffers of the next `count` descriptors that come back.
    pub(super) fn look_ahead(&self, count: usize) {
        let mut place = self.clean;
        for line in (0..count.min(usize::from(self.count))).step_by(4) {
            let place = (usize::from(place) + line) % usize::from(self.count);
            self.words.prefetch(16 * place);
        }
        for _ in 0..count {
            if place == self.tail || self.words.load64(2 * usize::from(place) + 1, Ordering::Relaxed) == 0 {
                break;
            }
            prefetch(self.words.memory().at(self.buffers.offset(place), 64));
            place = self.next(place);
        }
    }

    /// Asks the cache for the places of the next `count` frames but these, to be written.
    pub(super) fn prefetch_next(&self, count: usize) {
        let memory = self.words.memory();
        for ahead in count..2 * count {
            let place = (usize::from(self.tail) + ahead) % usize::from(self.count);
            if place % 4 == 0 {
                prefetch_write(memory.at(self.words.offset() + 16 * place, 16));
            }
            // Below `count`, which is a ring's size.
            prefetch_write(memory.at(self.buffers.offset(u16::try_from(place).unwrap_or(0)), 64));
        }
    }

    /// Takes the oldest descriptor back.
    #[inline]
    pub(super) fn take(&mut self) {
        self.clean = self.next(self.clean);
    }
}
