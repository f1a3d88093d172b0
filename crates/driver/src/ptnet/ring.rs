//! One ring as the guest has it: slots and buffers in the mapped memory, indices in a block of its own
//! memory.
//!
//! Invariant kept by the `unsafe` here: slots and buffers lie inside the window, checked when the ring is
//! made, and each index into them is compared with their number; the window lives as long as the ring. Slots
//! are only reached as atomics. A buffer is borrowed only while its slot is the guest's, which the device is
//! trusted to respect.

use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Arc;

use sidecore_abi::netmap::{Slot, SlotWord};

use crate::error::{Error, Result};
use crate::memory::{prefetch, prefetch_write, View};
use crate::vfio::Window;

/// Words of a block: our indices or the host's, and what either side wishes.
const HEAD: usize = 0;
const CUR: usize = 1;
const WISH: usize = 2;
const HWCUR: usize = 0;
const HWTAIL: usize = 1;

/// A ring.
#[derive(Debug)]
pub(super) struct SlotRing {
    slots: *const AtomicU64,
    bufs: *mut u8,
    buf_size: usize,
    buf_count: u32,
    num_slots: u32,
    /// The first slot that we have not given up.
    head: u32,
    /// The first that is not ours, as far as we know.
    tail: u32,
    published: u32,
    ours: View,
    theirs: View,
    _window: Arc<Window>,
}

// SAFETY: addresses in shared memory that the ring keeps mapped.
unsafe impl Send for SlotRing {}

/// Where a ring is.
pub(super) struct RingLayout {
    /// Byte of the window at which its slots begin, and their number.
    pub(super) slots: (u64, u32),
    /// Where buffer 0 is.
    pub(super) bufs: u64,
    /// How many there are.
    pub(super) buf_count: u32,
    /// Bytes of one.
    pub(super) buf_size: usize,
}

impl SlotRing {
    pub(super) fn new(
        window: &Arc<Window>,
        layout: &RingLayout,
        ours: View,
        theirs: View,
    ) -> Result<SlotRing> {
        let (slots, num_slots) = layout.slots;
        let outside = || Error::Device("a ring or its buffers are not inside the memory".to_owned());
        let slots = window.at(slots, num_slots as usize * size_of::<Slot>()).ok_or_else(outside)?;
        let bufs = window.at(layout.bufs, layout.buf_count as usize * layout.buf_size).ok_or_else(outside)?;
        if num_slots < 2 || slots.as_ptr() as usize % 8 != 0 {
            return Err(Error::Device(format!("a ring of {num_slots} slots")));
        }
        Ok(SlotRing {
            slots: slots.as_ptr().cast(),
            bufs: bufs.as_ptr(),
            buf_size: layout.buf_size,
            buf_count: layout.buf_count,
            num_slots,
            head: 0,
            tail: 0,
            published: 0,
            ours,
            theirs,
            _window: Arc::clone(window),
        })
    }

    /// What a driver sets before it begins: the host wants kicks, and we want interrupts or not.
    pub(super) fn prepare(&self, interrupts: bool) {
        self.theirs.store32(WISH, 1, Ordering::Relaxed);
        self.ours.store32(WISH, interrupts.into(), Ordering::Release);
    }

    /// Takes over the indices that the host has written.
    pub(super) fn adopt(&mut self) -> Result<()> {
        self.head = self.ours.load32(HEAD, Ordering::Acquire);
        self.published = self.head;
        self.tail = self.theirs.load32(HWTAIL, Ordering::Acquire);
        if self.head >= self.num_slots || self.tail >= self.num_slots {
            return Err(Error::Device(format!("indices {} and {} of a ring", self.head, self.tail)));
        }
        Ok(())
    }

    /// Bytes of a buffer.
    pub(super) fn buf_size(&self) -> usize {
        self.buf_size
    }

    /// Slots that are ours, as far as we know.
    #[inline]
    pub(super) fn space(&self) -> u32 {
        if self.tail >= self.head {
            self.tail - self.head
        } else {
            self.tail + self.num_slots - self.head
        }
    }

    /// Looks how many slots are ours.
    #[inline]
    pub(super) fn look(&mut self) -> u32 {
        // A host that gives an index that is none gives nothing.
        let tail = self.theirs.load32(HWTAIL, Ordering::Acquire);
        if tail < self.num_slots {
            self.tail = tail;
        }
        self.space()
    }

    /// Whether the host has dealt with all that was given up.
    pub(super) fn is_clean(&self) -> bool {
        self.theirs.load32(HWCUR, Ordering::Acquire) == self.published
    }

    #[inline]
    fn slot(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.num_slots);
        // SAFETY: the ring has so many slots of 16 bytes, of which this is the first half of one.
        unsafe { &*self.slots.add(2 * slot as usize) }
    }

    #[inline]
    fn ahead(&self, by: u32) -> u32 {
        let slot = self.head + by;
        if slot >= self.num_slots {
            slot - self.num_slots
        } else {
            slot
        }
    }

    /// The next slot of ours.
    #[inline]
    pub(super) fn next(&self) -> SlotWord {
        SlotWord(self.slot(self.head).load(Ordering::Relaxed))
    }

    /// Writes `word` where [`SlotRing::next`] gave `was`, and gives it up. What stands there already is not
    /// written: its line stays where it is.
    #[inline]
    pub(super) fn give(&mut self, was: SlotWord, word: SlotWord) {
        if was != word {
            self.slot(self.head).store(word.0, Ordering::Relaxed);
        }
        self.head = self.ahead(1);
    }

    /// Gives it up as it is.
    #[inline]
    pub(super) fn release(&mut self) {
        self.head = self.ahead(1);
    }

    /// The buffer of slot `word`, which is ours.
    #[inline]
    pub(super) fn buffer(&mut self, word: SlotWord) -> Result<&mut [u8]> {
        if word.buf_idx() >= self.buf_count {
            return Err(Error::Device(format!("buffer {} in a slot", word.buf_idx())));
        }
        // SAFETY: inside the window; the slot is ours, so no other side touches the buffer meanwhile.
        let bytes = unsafe {
            let at = self.bufs.add(word.buf_idx() as usize * self.buf_size);
            std::slice::from_raw_parts_mut(at, self.buf_size)
        };
        Ok(bytes)
    }

    /// Prefetches the first line of the buffer `by` slots ahead, for writing or reading.
    #[inline]
    pub(super) fn prefetch(&self, by: u32, write: bool) {
        if by >= self.num_slots {
            return;
        }
        let index = SlotWord(self.slot(self.ahead(by)).load(Ordering::Relaxed)).buf_idx() as usize;
        let at = self.bufs.wrapping_add(index * self.buf_size);
        if write {
            prefetch_write(at);
        } else {
            prefetch(at);
        }
    }

    /// Asks for both lines of the block, ours to be written: [`SlotRing::publish`] waits until it has them.
    #[inline]
    pub(super) fn prefetch_block(&self) {
        // A block is one line on each side.
        self.ours.prefetch_write(0);
        self.theirs.prefetch(0);
    }

    /// Tells the host what was given up, the dependent index first. True if it wants a kick.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        self.ours.store32(CUR, self.head, Ordering::Release);
        self.ours.store32(HEAD, self.head, Ordering::Release);
        // The host sets its wish, and then looks at our head once more.
        fence(Ordering::SeqCst);
        self.theirs.load32(WISH, Ordering::Relaxed) != 0
    }

    /// Wants to be interrupted or not. True: after asking, there is something already.
    pub(super) fn want_interrupts(&mut self, on: bool) -> bool {
        self.ours.store32(WISH, on.into(), Ordering::Relaxed);
        if !on {
            return false;
        }
        fence(Ordering::SeqCst);
        let before = self.space();
        self.look() > before
    }

    /// The guest's half of the block, to be lied in.
    pub(super) fn block(&self) -> &View {
        &self.ours
    }
}
