//! A descriptor ring, walked by the bits in it.
//!
//! A ring has no length and no tail. A descriptor says whether the device may use it (`OWN`), and whether the ring ends with it
//! (`EOR`); a ring without such an end has [`MAX`] descriptors, as many as the part can walk. So the device looks at the next
//! descriptor to see whether there is work, and walks once around at most. What of a ring lies outside of guest memory
//! is a fault when the device comes there.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use super::journal::{RingJournal, MAX_ENTRIES};
use super::regs::desc::{EOR, OWN};
use crate::device::csb::{Block, RingSide};
use crate::fault::Fault;
use crate::mem::{GuestMap, Words};

/// Descriptors of the longest ring.
pub(super) const MAX: u32 = 1024;
const _: () = assert!(MAX as usize == MAX_ENTRIES);

/// One direction's ring, as its owner sees it.
pub(super) struct Ring {
    map: Arc<GuestMap>,
    /// Where it begins, and whether it has been looked up there.
    base: u64,
    found: bool,
    /// The descriptors, as pairs of words: as many as lie in guest memory, up to the most.
    pub(super) table: Words,
    /// The first that has not been given back.
    pub(super) head: u32,
    /// How many there are, as far as the walk has seen the end; the most until then.
    pub(super) size: u32,
    /// Descriptors from the head on that are known to be the device's.
    known: u32,
    /// The one behind those.
    known_to: u32,
    journal: RingJournal,
    /// The status block, if the device has one: what the driver says there of interrupts and kicks.
    pub(super) block: Block,
}

impl Ring {
    /// `csb`: which side of a status block is its, and whether there is one.
    pub(super) fn new(map: Arc<GuestMap>, journal: RingJournal, csb: (RingSide, bool)) -> Ring {
        Ring {
            map,
            base: 0,
            found: false,
            table: Words::EMPTY,
            head: 0,
            size: MAX,
            known: 0,
            known_to: 0,
            journal,
            block: Block::new(csb.0, csb.1),
        }
    }

    /// The memory that descriptors and buffers lie in.
    #[inline]
    pub(super) fn map(&self) -> &Arc<GuestMap> {
        &self.map
    }

    /// The ring begins at `base`, and the device at its beginning.
    pub(super) fn restart(&mut self, base: u64) {
        let base = base & !0xff;
        self.journal.begin(base);
        (self.base, self.found, self.table) = (base, false, Words::EMPTY);
        (self.head, self.size, self.known, self.known_to) = (0, MAX, 0, 0);
        self.block.forget();
    }

    /// The status block is where `address` says, or nowhere (zero): whether it counts is looked up.
    ///
    /// # Errors
    /// The driver named a page that is none, or is not in its memory.
    #[inline]
    pub(super) fn look_at_block(&mut self, address: impl FnOnce() -> u64) -> Result<(), Fault> {
        self.block.tail(address, &self.map, self.head).map(drop)
    }

    /// The same ring in memory that is now described by `map`.
    pub(super) fn remap(&mut self, map: Arc<GuestMap>) {
        self.map = map;
        (self.found, self.table) = (false, Words::EMPTY);
        (self.known, self.known_to) = (0, self.head);
        self.block.forget();
    }

    /// Goes on where a former owner of the ring at `base` has ended.
    pub(super) fn recover(&mut self, base: u64) {
        self.base = base & !0xff;
        self.find();
        self.head = self.journal.recover(self.base, &self.table);
        (self.known, self.known_to) = (0, self.head);
    }

    fn find(&mut self) {
        let most = 16 * MAX;
        let there = self.map.parts(self.base, most).next().flatten();
        self.table = there.and_then(|piece| Words::new(&piece)).unwrap_or(Words::EMPTY);
        self.found = true;
    }

    /// The first word of the descriptor at `place`. What its owner wrote before is seen after it.
    ///
    /// # Errors
    /// It is not in guest memory.
    #[inline]
    pub(super) fn look(&mut self, place: u32) -> Result<u64, Fault> {
        if !self.found {
            self.find();
        }
        let at = 2 * place as usize;
        if at + 1 >= self.table.len() {
            return Err(Fault::AddressOutOfRange);
        }
        Ok(self.table.acquire(at))
    }

    /// The buffer's address in the descriptor at `place`.
    #[inline]
    pub(super) fn buffer(&self, place: u32) -> u64 {
        self.table.load(2 * place as usize + 1)
    }

    /// The place behind `place`, whose first word is `word`.
    #[inline]
    pub(super) fn next(&mut self, place: u32, word: u64) -> u32 {
        if word & EOR != 0 || place + 1 >= MAX {
            self.size = place + 1;
            0
        } else {
            place + 1
        }
    }

    /// Whether the next descriptor is the device's.
    #[inline]
    pub(super) fn has_next(&mut self) -> Result<bool, Fault> {
        Ok(self.known > 0 || self.look(self.head)? & OWN != 0)
    }

    /// How many descriptors from the head on are the device's. Those that were are looked at once.
    pub(super) fn free(&mut self) -> Result<u32, Fault> {
        while self.known < self.size.min(MAX) && (self.known == 0 || self.known_to != self.head) {
            let word = self.look(self.known_to)?;
            if word & OWN == 0 {
                break;
            }
            self.known_to = self.next(self.known_to, word);
            self.known += 1;
        }
        Ok(self.known)
    }

    /// Asks the cache for the descriptors from `place` on.
    #[inline]
    pub(super) fn prefetch(&self, place: u32, count: u32) {
        for at in (0..count).step_by(4) {
            self.table.prefetch(2 * (place + at) as usize);
        }
    }

    /// Gives descriptors back: each of `marks`, in order from the head on, is a place and the word that shall stand there. The head
    /// is at `head` afterwards.
    pub(super) fn give_back(&mut self, marks: &[(u32, u64)], head: u32) {
        self.journal.give_back(&self.table, marks, head);
        self.head = head;
        self.block.publish(head);
        let given = u32::try_from(marks.len()).unwrap_or(u32::MAX);
        match self.known.checked_sub(given) {
            Some(left) => self.known = left,
            None => (self.known, self.known_to) = (0, head),
        }
        if self.known == 0 {
            self.known_to = head;
        }
    }
}
