//! A descriptor ring, walked by the bits in it.
//!
//! A ring has no length and no tail. A descriptor says whether the device may use it (`OWN`), and whether the
//! ring ends with it (`EOR`); a ring without such an end has [`MAX`] descriptors, as many as the part can
//! walk. So the device looks at the next descriptor to see whether there is work, and walks once around at
//! most. What of a ring lies outside of guest memory is a fault when the device comes there.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::sync::Arc;

use super::journal::{RingJournal, MAX_ENTRIES};
use super::regs::desc::{EOR, OWN};
use crate::device::csb::RingSide;
use crate::device::nic::RingBase;
use crate::mem::{GuestMap, Words};
use crate::util::fault::Fault;

/// Descriptors of the longest ring.
pub(super) const MAX: u32 = 1024;
const _: () = assert!(MAX as usize == MAX_ENTRIES);

/// One direction's ring, as its owner sees it: descriptors as far as they lie in guest memory.
pub(super) type Ring = RingBase<RingWalk>;

/// How far it was walked.
pub struct RingWalk {
    /// Where it begins, and whether it has been looked up there.
    begins: u64,
    found: bool,
    /// Descriptors from the head on that are known to be the device's.
    known: u32,
    /// The one behind those.
    known_to: u32,
    journal: RingJournal,
}

impl Ring {
    /// Descriptors are known as far as they lie in guest memory, and how many there are as far as the walk
    /// has seen the end.
    pub(super) fn new(map: &Arc<GuestMap>, journal: RingJournal, side: RingSide, csb: bool) -> Ring {
        let own = RingWalk { begins: 0, found: false, known: 0, known_to: 0, journal };
        RingBase { size: MAX, ..RingBase::with(map, side, csb, own) }
    }

    /// The ring begins at `base`, and the device at its beginning.
    pub(super) fn restart(&mut self, base: u64) {
        let base = base & !0xff;
        self.own.journal.begin(base);
        (self.own.begins, self.own.found, self.table) = (base, false, Words::EMPTY);
        (self.head, self.size) = (0, MAX);
        (self.own.known, self.own.known_to) = (0, 0);
        self.block.forget();
    }

    /// The status block is where `address` says, or nowhere (zero): whether it counts is looked up.
    ///
    /// # Errors
    /// The driver named a page that is none, or is not in its memory.
    pub(super) fn look_at_block(&mut self, address: impl FnOnce() -> u64) -> Result<(), Fault> {
        self.block.tail(address, &self.map, self.head).map(drop)
    }

    /// The ring is in memory that is now described by `map`.
    pub(super) fn remap(&mut self, map: &Arc<GuestMap>) {
        self.map = Arc::clone(map);
        (self.own.found, self.table) = (false, Words::EMPTY);
        (self.own.known, self.own.known_to) = (0, self.head);
        self.block.forget();
    }

    /// Goes on where a former owner of the ring at `base` has ended.
    pub(super) fn recover(&mut self, base: u64) {
        self.own.begins = base & !0xff;
        self.find();
        self.head = self.own.journal.recover(self.own.begins, &self.table);
        (self.own.known, self.own.known_to) = (0, self.head);
    }

    fn find(&mut self) {
        let most = 16 * MAX;
        let there = self.map.parts(self.own.begins, most).next().flatten();
        self.table = there.and_then(|piece| Words::new(&piece)).unwrap_or(Words::EMPTY);
        self.own.found = true;
    }

    /// The first word of the descriptor at `place`. What its owner wrote before is seen after it.
    ///
    /// # Errors
    /// It is not in guest memory.
    #[inline]
    pub(super) fn look(&mut self, place: u32) -> Result<u64, Fault> {
        if !self.own.found {
            self.find();
        }
        let at = 2 * place as usize;
        if at + 1 >= self.table.len() {
            return Err(Fault::AddressOutOfRange);
        }
        Ok(self.table.acquire(at))
    }

    /// The buffer's address in the descriptor at `place`.
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
    pub(super) fn has_next(&mut self) -> Result<bool, Fault> {
        Ok(self.own.known > 0 || self.look(self.head)? & OWN != 0)
    }

    /// How many descriptors from the head on are the device's. Those that were are looked at once.
    pub(super) fn free(&mut self) -> Result<u32, Fault> {
        while self.own.known < self.size.min(MAX) && (self.own.known == 0 || self.own.known_to != self.head) {
            let word = self.look(self.own.known_to)?;
            if word & OWN == 0 {
                break;
            }
            self.own.known_to = self.next(self.own.known_to, word);
            self.own.known += 1;
        }
        Ok(self.own.known)
    }

    /// Asks the cache for the descriptors from `place` on.
    #[inline]
    pub(super) fn prefetch(&self, place: u32, count: u32) {
        for at in (0..count).step_by(4) {
            self.table.prefetch(2 * (place + at) as usize);
        }
    }

    /// Gives descriptors back: each of `marks`, in order from the head on, is a place and the word that shall
    /// stand there. The head is at `head` afterwards.
    pub(super) fn give_back(&mut self, marks: &[(u32, u64)], head: u32) {
        self.own.journal.give_back(&self.table, marks, head);
        self.head = head;
        self.block.publish(head);
        let given = u32::try_from(marks.len()).unwrap_or(u32::MAX);
        match self.own.known.checked_sub(given) {
            Some(left) => self.own.known = left,
            None => (self.own.known, self.own.known_to) = (0, head),
        }
        if self.own.known == 0 {
            self.own.known_to = head;
        }
    }
}
