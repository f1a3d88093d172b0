//! A ring of descriptors in the driver's memory, with one buffer for each. Whose a descriptor is says its
//! highest bit.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::regs::{EOR, OWN};
use crate::error::{Error, Result};
use crate::memory::{Buffers, Memory, View};

/// A ring: `count` descriptors of two words, and a buffer for each.
pub(super) struct DescriptorRing {
    words: View,
    pub(super) buffers: Buffers,
    pub(super) count: u16,
    /// The first descriptor that the device has and that has not been looked at since.
    clean: u16,
    /// The next one to be given.
    next: u16,
    /// How many the device has.
    given: u16,
}

impl DescriptorRing {
    pub(super) fn new(memory: &Arc<Memory>, count: u16, buffer: usize) -> Result<DescriptorRing> {
        if !(1..=1024).contains(&count) {
            return Err(Error::Config(format!("a ring of {count}: 1 to 1024 are possible")));
        }
        let words = memory.view(memory.alloc(usize::from(count) * 16, 256)?, usize::from(count) * 16);
        let buffers = memory.alloc_buffers(usize::from(count), buffer)?;
        Ok(DescriptorRing { words, buffers, count, clean: 0, next: 0, given: 0 })
    }

    /// Bytes of memory that a ring takes.
    pub(super) fn size(count: u16, buffer: usize) -> usize {
        usize::from(count) * 16 + 256 + Memory::buffers_size(usize::from(count), buffer)
    }

    pub(super) fn restart(&mut self) {
        (self.clean, self.next, self.given) = (0, 0, 0);
        (0..2 * usize::from(self.count)).for_each(|at| self.words.store64(at, 0, Ordering::Relaxed));
    }

    pub(super) fn address(&self) -> u64 {
        self.words.memory().gpa(self.words.offset())
    }

    /// The descriptors, for a driver that lies.
    pub(super) fn words(&self) -> &View {
        &self.words
    }

    fn after(&self, place: u16) -> u16 {
        if place + 1 == self.count {
            0
        } else {
            place + 1
        }
    }

    /// The place of the next descriptor: the tail.
    pub(super) fn tail(&self) -> u16 {
        self.next
    }

    /// The place of the next descriptor, if the driver has one left to give.
    pub(super) fn room(&self) -> Option<u16> {
        (self.given < self.count).then_some(self.next)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.given == 0
    }

    /// Gives the next descriptor to the device, with its buffer.
    pub(super) fn give(&mut self, word: u64) {
        let at = 2 * usize::from(self.next);
        let end = if self.after(self.next) == 0 { EOR } else { 0 };
        let address = self.words.memory().gpa(self.buffers.offset(self.next));
        self.words.store64(at + 1, address, Ordering::Relaxed);
        self.words.store64(at, word | OWN | end, Ordering::Release);
        self.next = self.after(self.next);
        self.given += 1;
    }

    /// The oldest descriptor that the device had and has given back: its place and first word.
    pub(super) fn oldest(&self) -> Option<(u16, u64)> {
        let word = self.words.load64(2 * usize::from(self.clean), Ordering::Acquire);
        (self.given > 0 && word & OWN == 0).then_some((self.clean, word))
    }

    /// Takes it.
    pub(super) fn take(&mut self) {
        self.clean = self.after(self.clean);
        self.given -= 1;
    }
}
