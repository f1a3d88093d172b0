//! Where a ring is, written down so that a killed daemon's successor goes on at the right descriptor.
//!
//! Theory of operation. A batch of descriptors is given back in two steps that cannot be one: the descriptors
//! are marked, and the place in the ring moves. So both are written ahead (`mem::journal`), and the successor
//! has to tell whether the guest has seen the batch. There is no tail by which it could, and a driver may
//! fill a descriptor anew with the very words that stood in it before. So before the batch is written down
//! its first descriptor is *touched*: bits of it that have no meaning are set while the device still owns it.
//! Then all others are marked, and the touched one last. Drivers take descriptors in order: while it is
//! touched the guest has seen none of the batch, and the successor marks it whole; else it has been marked,
//! and the guest has seen what it has seen.
//!
//! What a kill can cost: frames of the transmit batch under way may be sent twice, those of the receive batch
//! under way are lost if the batch had not been written down. No descriptor is left out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use super::regs::desc::{EOR, OWN, SPARE};
use crate::mem::{journals, JournalSlot, Words};

/// Words of one ring's part.
const PLACE: usize = 0;
const BASE: usize = 1;
const INTENT: usize = 2;
const TOUCHED: usize = 3;
const ENTRIES: usize = 8;
/// Most descriptors that are given back together: as many as a ring has.
pub(super) const MAX_ENTRIES: usize = 1024;
const ENTRY: usize = 2;
const WORDS: usize = ENTRIES + ENTRY * MAX_ENTRIES;
const RINGS: usize = 2;

/// `INTENT`: it is open; the number of descriptors behind the new place.
const OPEN: u64 = 1 << 63;

/// How a descriptor looks while its batch is given back.
fn touched(word: u64) -> u64 {
    word & !SPARE | 0x2a95 << SPARE.trailing_zeros()
}

/// A store into the guest's ring.
fn mark(table: &Words, at: usize, word: u64) {
    #[cfg(test)]
    if crate::mem::last_store::is_behind() {
        return;
    }
    table.publish(at, word);
}

/// One ring's part of a device's journal.
#[derive(Clone)]
pub(super) struct RingJournal(JournalSlot);

impl RingJournal {
    /// Those of a device's transmit and receive ring: a new device's, or those that stand in `file`. And the
    /// file.
    pub(super) fn open(file: Option<OwnedFd>) -> io::Result<(File, [RingJournal; RINGS])> {
        let (file, slots) = journals(c"sidecore-rtl8169-rings", 8 * WORDS, file)?;
        Ok((file, slots.map(RingJournal)))
    }

    /// The ring is at its beginning, which is at `base`.
    pub(super) fn begin(&self, base: u64) {
        self.0.set(INTENT, 0);
        self.0.set(PLACE, 0);
        self.0.set(BASE, base);
    }

    /// Gives descriptors of `table` back: each of `marks` is a place and the word that shall stand there. The
    /// ring is at `place` afterwards.
    pub(super) fn give_back(&self, table: &Words, marks: &[(u32, u64)], place: u32) {
        let Some(((first, word), rest)) = marks.split_first() else { return };
        let at = |place: u32| 2 * place as usize;
        let touched = touched(table.load(at(*first)) | OWN);
        mark(table, at(*first), touched);
        for (index, (place, word)) in marks.iter().enumerate().take(MAX_ENTRIES) {
            self.0.set(ENTRIES + ENTRY * index, (*place).into());
            self.0.set(ENTRIES + ENTRY * index + 1, *word);
        }
        self.0.set(TOUCHED, touched);
        self.0.open(INTENT, OPEN | (marks.len() as u64) << 32 | u64::from(place));
        rest.iter().rev().for_each(|(place, word)| mark(table, at(*place), *word));
        mark(table, at(*first), *word);
        self.0.set(PLACE, place.into());
        self.0.close(INTENT, 0);
    }

    /// Makes good what was under way in the ring that begins at `base`; where it goes on. The file may say
    /// anything: what is no place of `table` is not written.
    pub(super) fn recover(&self, base: u64, table: &Words) -> u32 {
        if self.0.get(BASE) != base {
            self.begin(base);
            return 0;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a half")]
        let low = |word: u64| (word as u32).min(MAX_ENTRIES as u32 - 1);
        let intent = self.0.get(INTENT);
        if intent & OPEN != 0 {
            let count = (intent >> 32 & 0xffff) as usize;
            let entry = |index: usize| {
                let at = ENTRIES + ENTRY * index;
                (2 * low(self.0.get(at)) as usize, self.0.get(at + 1))
            };
            if table.load(entry(0).0) == self.0.get(TOUCHED) {
                for (at, word) in (0..count.min(MAX_ENTRIES)).rev().map(entry) {
                    // Whose it is, and where the ring ends, is not for a file to say.
                    mark(table, at, word & !(OWN | EOR) | table.load(at) & EOR);
                }
            }
            self.0.set(PLACE, low(intent).into());
        }
        self.0.close(INTENT, 0);
        low(self.0.get(PLACE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{last_store, memory_file, GuestMap, RegionSpec};

    const SIZE: u32 = 8;
    /// A descriptor as the driver gives it, always the same.
    fn given(place: u32) -> u64 {
        OWN | 0x600 | if place + 1 == SIZE { EOR } else { 0 }
    }

    /// A driver that takes what is done, in order, and gives it again at once.
    struct Driver {
        next: u32,
        seen: Vec<u32>,
    }

    impl Driver {
        fn look(&mut self, table: &Words) {
            while table.acquire(2 * self.next as usize) & OWN == 0 {
                self.seen.push(self.next);
                table.publish(2 * self.next as usize, given(self.next));
                self.next = (self.next + 1) % SIZE;
            }
        }
    }

    /// Three batches; in the last one the owner is killed behind any of its stores, and the driver looks
    /// before its successor comes, or does not.
    #[test]
    fn a_batch_is_seen_once_and_whole_wherever_its_owner_ended() {
        for looks in [false, true] {
            let mut made = u64::MAX;
            let mut stores = 0;
            while stores <= made {
                let file = memory_file(c"guest", 0x1000).unwrap();
                let spec = RegionSpec { gpa: 0, size: 0x1000, user_addr: 0, offset: 0, file };
                let map = GuestMap::new(&[spec]).unwrap();
                let table = Words::new(&map.translate(0, 16 * SIZE, &mut 0).unwrap()).unwrap();
                (0..SIZE).for_each(|place| table.publish(2 * place as usize, given(place)));
                let (_file, [journal, _]) = RingJournal::open(None).unwrap();
                journal.begin(0);
                let mut driver = Driver { next: 0, seen: Vec::new() };
                let batch = |from: u32, count: u32| -> Vec<(u32, u64)> {
                    let places = (from..from + count).map(|place| place % SIZE);
                    places.map(|place| (place, given(place) & !OWN)).collect()
                };
                journal.give_back(&table, &batch(0, 1), 1);
                journal.give_back(&table, &batch(1, 5), 6);
                driver.look(&table);
                assert_eq!(driver.seen, [0, 1, 2, 3, 4, 5]);
                last_store::after(stores);
                journal.give_back(&table, &batch(6, 4), 2);
                if last_store::left() > 0 {
                    made = stores - last_store::left();
                }
                last_store::after(u64::MAX);
                let before = driver.seen.len();
                if looks {
                    driver.look(&table);
                }
                let place = journal.recover(0, &table);
                driver.look(&table);
                let seen = &driver.seen[before..];
                match place {
                    6 => {
                        assert!(seen.is_empty(), "after {stores} stores: {seen:?} were seen, and come again")
                    }
                    2 => assert_eq!(seen, [6, 7, 0, 1], "after {stores} stores"),
                    other => panic!("after {stores} stores the ring is at {other}"),
                }
                // A second successor finds nothing to do.
                assert_eq!(journal.recover(0, &table), place);
                driver.look(&table);
                assert_eq!(driver.seen.len(), before + if place == 2 { 4 } else { 0 });
                stores += 1;
            }
            assert!((10..100).contains(&made), "{made} stores");
        }
    }
}
