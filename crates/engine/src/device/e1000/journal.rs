//! Where a ring is, written down so that a killed daemon's successor goes on at the right descriptor.
//!
//! Theory of operation. A ring's place changes in two steps that cannot be one: descriptors are marked done,
//! and the head moves. So both are written ahead (`mem::journal`), as an *intent*; the head's own word is the
//! commit. A successor that finds an open intent has to tell whether the guest has seen the batch:
//!
//! * *Transmit.* Marking a descriptor twice does no harm as long as the driver has not filled it anew. It
//!   has, if its tail has come past the old head, or the word is another. Else all of them are marked
//!   (again), and the head moves.
//! * *Receive.* A driver takes descriptors in order. So the first one of a batch is marked last: until then,
//!   it sees none of them. The successor looks at that one only: if it is marked, or the driver has filled it
//!   anew, or its tail has come past it, the batch is done. Else the driver has not seen it, and it is
//!   written again as a whole.
//!
//! The head in memory can be written by the driver, too, which starts a ring anew by it. What was published
//! before is kept beside what is published now until the register has it, so that the register's value always
//! tells whose it is.
//!
//! What a kill can cost: frames of the transmit batch under way may be sent twice, those of the receive batch
//! under way are lost if the intent had not been written. No descriptor is left out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use crate::mem::{halves, journals, JournalSlot};

/// Words of one ring's part.
const HEADS: usize = 0;
const BASE: usize = 1;
const LENGTH: usize = 2;
const INTENT: usize = 3;
/// The first descriptor's words before a batch.
const BEFORE: usize = 4;
/// The transmit ring's own, as it was before the batch and as it is after it.
const OWN: [usize; 2] = [8, 16];
const OWN_WORDS: usize = 5;
const ENTRIES: usize = 32;
/// Most descriptors that are marked together.
pub(super) const MAX_ENTRIES: usize = 1024;
const ENTRY: usize = 3;
const WORDS: usize = ENTRIES + ENTRY * MAX_ENTRIES;
/// Those of the first queue pair, and those of the second.
const RINGS: usize = 4;

/// `INTENT`: it is open; the descriptors are extended ones; how many; the new head.
const OPEN: u64 = 1 << 63;
const EXTENDED: u64 = 1 << 62;

/// One ring's part of a device's journal.
#[derive(Clone)]
pub(super) struct RingJournal(JournalSlot);

/// Where a ring is, as its journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingPosition {
    pub(super) bal: u32,
    pub(super) bah: u32,
    pub(super) len: u32,
    pub(super) head: u32,
    /// What the head's register says, if only the device has written it: one of two values.
    pub(super) published: [u32; 2],
}

/// A batch that was being marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) head: u32,
    pub(super) count: usize,
    pub(super) extended: bool,
}

impl RingJournal {
    /// Those of a device's rings, of each pair the transmit ring's and the receive ring's: a new device's, or
    /// those that stand in `file`. And the file.
    pub(super) fn open(file: Option<OwnedFd>) -> io::Result<(File, [RingJournal; RINGS])> {
        let (file, slots) = journals(c"sidecore-e1000-rings", 8 * WORDS, file)?;
        Ok((file, slots.map(RingJournal)))
    }

    /// Nothing is known of the ring.
    pub(super) fn clear(&self) {
        self.0.set(LENGTH, 0);
        self.0.set(INTENT, 0);
        OWN.iter().for_each(|own| (0..OWN_WORDS).for_each(|at| self.0.set(own + at, 0)));
    }

    /// The ring is described by these registers now.
    pub(super) fn latch(&self, (bal, bah, len): (u32, u32, u32), head: u32, published: u32) {
        self.0.set(LENGTH, 0);
        self.0.set(BASE, u64::from(bal) | u64::from(bah) << 32);
        self.moved(head, published, published);
        self.0.set(LENGTH, len.into());
    }

    /// The head is here now. `published`: what its register says; `before`: what it may still say.
    pub(super) fn moved(&self, head: u32, published: u32, before: u32) {
        let low = |word: u32| u64::from(word & 0xffff);
        self.0.set(HEADS, low(head) | low(published) << 16 | low(before) << 32);
    }

    /// Where the ring is; `None`: it has not been described yet.
    pub(super) fn position(&self) -> Option<RingPosition> {
        let (len, _) = halves(self.0.get(LENGTH));
        let (bal, bah) = halves(self.0.get(BASE));
        let (low, before) = halves(self.0.get(HEADS));
        let published = [low >> 16, before];
        (len != 0).then_some(RingPosition { bal, bah, len, head: low & 0xffff, published })
    }

    /// Receive descriptors are about to be marked: places and both words. `first` has the words of the first
    /// one as they are.
    #[inline]
    pub(super) fn begin_receive(
        &self,
        head: u32,
        extended: bool,
        first: [u64; 2],
        filled: &[(u32, [u64; 2])],
    ) {
        for (index, (place, [low, high])) in filled.iter().enumerate().take(MAX_ENTRIES) {
            let at = ENTRIES + ENTRY * index;
            self.0.set(at, (*place).into());
            self.0.set(at + 1, *low);
            self.0.set(at + 2, *high);
        }
        self.0.set(BEFORE, first[0]);
        self.0.set(BEFORE + 1, first[1]);
        let kind = if extended { EXTENDED } else { 0 };
        self.0.open(INTENT, OPEN | kind | (filled.len() as u64) << 32 | u64::from(head));
    }

    /// Transmit descriptors are about to be marked: places and second words. `own` is what the ring remembers
    /// then.
    #[inline]
    pub(super) fn begin_transmit(&self, head: u32, reports: &[(u32, u64)], own: [u64; OWN_WORDS]) {
        for (index, (place, word)) in reports.iter().enumerate().take(MAX_ENTRIES) {
            let at = ENTRIES + ENTRY * index;
            self.0.set(at, (*place).into());
            self.0.set(at + 1, *word);
        }
        own.iter().enumerate().for_each(|(at, word)| self.0.set(OWN[1] + at, *word));
        self.0.open(INTENT, OPEN | (reports.len() as u64) << 32 | u64::from(head));
    }

    /// The head has moved. What the transmit ring remembers is what it wanted to remember.
    #[inline]
    pub(super) fn end(&self, own: Option<[u64; OWN_WORDS]>) {
        for (at, word) in own.iter().flatten().enumerate() {
            self.0.set(OWN[0] + at, *word);
        }
        self.0.close(INTENT, 0);
    }

    /// The batch that was being marked, if there is one.
    pub(super) fn intent(&self) -> Option<Intent> {
        let intent = self.0.get(INTENT);
        let (head, rest) = halves(intent);
        let count = (rest & 0xffff) as usize;
        (intent & OPEN != 0 && count <= MAX_ENTRIES).then_some(Intent {
            head,
            count,
            extended: intent & EXTENDED != 0,
        })
    }

    /// Entry `index` of that batch: the place and two words.
    pub(super) fn entry(&self, index: usize) -> (u32, [u64; 2]) {
        let at = ENTRIES + ENTRY * index;
        (halves(self.0.get(at)).0, [self.0.get(at + 1), self.0.get(at + 2)])
    }

    /// The first descriptor's words before that batch.
    pub(super) fn before(&self) -> [u64; 2] {
        [self.0.get(BEFORE), self.0.get(BEFORE + 1)]
    }

    /// What the transmit ring remembers: before the batch that was being marked, or after it.
    pub(super) fn own(&self, after: bool) -> [u64; OWN_WORDS] {
        std::array::from_fn(|at| self.0.get(OWN[usize::from(after)] + at))
    }
}
