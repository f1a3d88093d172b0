//! A ring on which we send.

use std::os::fd::{AsFd, BorrowedFd};

use sidecore_abi::netmap::{SlotWord, MAX_FRAGS, NS_MOREFRAG};

use crate::link::Link;
use crate::map::{load, store};
use crate::Reset;

/// A ring on which we send. Frames that were pushed go out with the next [`TxRing::sync`].
#[derive(Debug)]
pub struct TxRing {
    link: Link,
    /// First slot that is ours and free.
    head: u32,
    /// As given up.
    given: u32,
    tail: u32,
}

impl TxRing {
    pub(crate) fn new(link: Link) -> TxRing {
        let (tail, head) = (link.hwtail(), link.start());
        TxRing { link, head, given: head, tail }
    }

    /// Free slots, as of the last sync.
    #[inline]
    pub fn space(&self) -> usize {
        let n = self.link.num_slots();
        let space = if self.tail >= self.head { self.tail - self.head } else { self.tail + n - self.head };
        space as usize
    }

    /// Slots of the ring, one of which is always empty.
    #[inline]
    pub fn slots(&self) -> usize {
        self.link.num_slots() as usize
    }

    /// Bytes that a slot holds.
    #[inline]
    pub fn slot_size(&self) -> usize {
        (self.link.map().info().buf_size as usize).min(usize::from(u16::MAX))
    }

    /// The next free slot's buffer, to be written and then pushed by [`TxRing::commit`]. `None` if the ring
    /// is full.
    #[inline]
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if self.head == self.tail {
            return None;
        }
        let map = self.link.map();
        let word = load(map.slots(self.link.number()), self.head);
        // SAFETY: the slot is between `head` and `tail`, and the ring is borrowed as long as the slice lives.
        unsafe { map.bytes_mut(word) }
    }

    /// Pushes the slot whose buffer was written, with `len` bytes. `more`: the frame continues in the next.
    /// False if there is no free slot or `len` is more than it holds.
    #[inline]
    pub fn commit(&mut self, len: usize, more: bool) -> bool {
        let Some(bytes) = u16::try_from(len).ok().filter(|_| len <= self.slot_size()) else { return false };
        if self.head == self.tail {
            return false;
        }
        let slots = self.link.map().slots(self.link.number());
        let index = load(slots, self.head).buf_idx();
        store(slots, self.head, SlotWord::new(index, bytes, if more { NS_MOREFRAG } else { 0 }));
        self.head = if self.head + 1 == self.link.num_slots() { 0 } else { self.head + 1 };
        true
    }

    /// Pushes a frame, over several slots if it is longer than one. False, and nothing pushed, if there is no
    /// room for it, or it is empty or longer than 64 slots.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let size = self.slot_size();
        let slots = frame.len().div_ceil(size);
        if slots == 0 || slots > MAX_FRAGS || slots > self.space() {
            return false;
        }
        if slots == 1 {
            return self.put(frame, false);
        }
        let last = slots - 1;
        frame.chunks(size).enumerate().all(|(i, part)| self.put(part, i < last))
    }

    #[inline]
    fn put(&mut self, part: &[u8], more: bool) -> bool {
        let Some(buffer) = self.buffer() else { return false };
        buffer[..part.len()].copy_from_slice(part);
        self.commit(part.len(), more)
    }

    /// Gives what was pushed to the engine and takes back what it has done. No system call, unless the engine
    /// sleeps.
    ///
    /// # Errors
    /// The engine has reset the ring; frames that it had not taken are free slots again.
    #[inline]
    pub fn sync(&mut self) -> Result<(), Reset> {
        if self.given != self.head {
            self.given = self.head;
            self.link.give(self.head, self.head);
        }
        let reset = self.link.reset();
        self.tail = self.link.tail(self.head);
        match reset {
            None => Ok(()),
            Some(reason) => Err(self.fall_back(reason)),
        }
    }

    #[cold]
    fn fall_back(&mut self, reason: sidecore_abi::ring::Nonsense) -> Reset {
        self.head = self.link.hwcur();
        self.given = self.head;
        self.link.give(self.head, self.head);
        Reset(reason)
    }

    /// Whether everything that was given has been taken.
    pub fn is_drained(&self) -> bool {
        self.link.hwcur() == self.given && self.given == self.head
    }

    /// Asks to be woken when slots become free. True if there are some already, or the ring was reset.
    pub fn arm(&mut self) -> bool {
        self.link.arm();
        self.tail = self.link.tail(self.head);
        self.head != self.tail
    }

    /// Asks no more.
    pub fn disarm(&mut self) {
        self.link.disarm();
    }
}

impl AsFd for TxRing {
    /// Readable when slots have become free since [`TxRing::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.wake_fd()
    }
}
