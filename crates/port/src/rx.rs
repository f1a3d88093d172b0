//! A ring on which we receive.

use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd};

use sidecore_abi::netmap::{SlotWord, NS_MOREFRAG};

use crate::link::Link;
use crate::map::load;
use crate::Reset;

/// How many slots ahead buffers are fetched into the cache: the engine's core has them.
const AHEAD: u32 = 8;

/// A ring on which we receive. Slots of frames that were taken go back with the next [`RxRing::sync`].
#[derive(Debug)]
pub struct RxRing {
    link: Link,
    /// First slot that holds a frame we have not taken.
    head: u32,
    /// As given back.
    given: u32,
    tail: u32,
}

/// A received frame: one part, or several.
#[derive(Clone, Copy, Debug)]
pub struct Received<'r> {
    ring: &'r RxRing,
    first: u32,
    slots: u32,
    len: usize,
}

impl RxRing {
    pub(crate) fn new(link: Link) -> RxRing {
        let head = link.start();
        RxRing { link, head, given: head, tail: head }
    }

    #[inline]
    fn after(&self, slot: u32) -> u32 {
        if slot + 1 == self.link.num_slots() {
            0
        } else {
            slot + 1
        }
    }

    #[inline]
    fn word(&self, slot: u32) -> SlotWord {
        load(self.link.map().slots(self.link.number()), slot)
    }

    #[inline]
    fn prefetch(&self, slot: u32) {
        let n = self.link.num_slots();
        let slot = if slot >= n { slot - n } else { slot };
        let Some(at) = self.link.map().buffer(self.word(slot).buf_idx()) else { return };
        crate::prefetch(at.as_ptr());
    }

    /// The next frame. `None` if all that had come by the last sync were taken.
    #[inline]
    pub fn take(&mut self) -> Option<Received<'_>> {
        loop {
            if self.head == self.tail {
                return None;
            }
            let first = self.head;
            let mut slots = 0;
            let mut len = 0;
            loop {
                let word = self.word(self.head);
                slots += 1;
                len += usize::from(word.len());
                self.head = self.after(self.head);
                if word.flags() & NS_MOREFRAG == 0 || self.head == self.tail {
                    break;
                }
            }
            // Slots without bytes are those that the engine had to pass over.
            if len > 0 {
                return Some(Received { ring: self, first, slots, len });
            }
        }
    }

    /// Takes at most `limit` frames without looking at them: how many, and their bytes together. Buffers are
    /// not touched, so they stay where they are cached.
    #[inline]
    pub fn skip(&mut self, limit: usize) -> (usize, u64) {
        let (mut frames, mut bytes, mut len) = (0, 0, 0);
        while frames < limit && self.head != self.tail {
            let word = self.word(self.head);
            self.head = self.after(self.head);
            len += u64::from(word.len());
            if word.flags() & NS_MOREFRAG != 0 && self.head != self.tail {
                continue;
            }
            // As in `take`: a frame has bytes.
            frames += usize::from(len > 0);
            bytes += std::mem::take(&mut len);
        }
        (frames, bytes)
    }

    /// Gives the slots of taken frames back, and sees what has come. Never a system call.
    ///
    /// # Errors
    /// The engine has reset the ring; nothing that came is lost.
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

    /// Asks to be woken when frames come. True if there are some already.
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

impl AsFd for RxRing {
    /// Readable when frames have come since [`RxRing::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.wake_fd()
    }
}

impl<'r> Received<'r> {
    /// Bytes of the frame.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a frame has bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its parts, one for each slot.
    pub fn parts(&self) -> impl Iterator<Item = &'r [u8]> + '_ {
        let mut slot = self.first;
        (0..self.slots).map(move |_| {
            let part = self.ring.part(slot);
            slot = self.ring.after(slot);
            part
        })
    }

    /// The frame in one piece: where it is, or copied together if it has several parts.
    #[inline]
    pub fn bytes(&self) -> Cow<'r, [u8]> {
        if self.slots == 1 {
            return Cow::Borrowed(self.ring.part(self.first));
        }
        let mut all = Vec::with_capacity(self.len);
        self.parts().for_each(|part| all.extend_from_slice(part));
        Cow::Owned(all)
    }
}

impl RxRing {
    #[inline]
    fn part(&self, slot: u32) -> &[u8] {
        // A reader of this frame's bytes will read those that follow.
        if self.link.num_slots() > AHEAD {
            self.prefetch(slot + AHEAD);
        }
        // SAFETY: the slot was taken but not yet given back: `given` moves in `sync` only, which cannot be
        // called while the frame borrows the ring.
        unsafe { self.link.map().bytes(self.word(slot)) }.unwrap_or(&[])
    }
}
