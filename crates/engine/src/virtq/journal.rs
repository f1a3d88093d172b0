//! What a packed ring was about to publish, kept where it outlives us.
//!
//! A split ring needs none of this: used elements count only once the used index in guest memory has moved,
//! and as we complete in order that is also the next available index. A packed ring has no index in memory,
//! and giving a descriptor back overwrites it. A process killed half-way through a batch leaves descriptors
//! whose former contents are lost.
//!
//! So a ring writes ahead (`mem::journal`): every used descriptor of the batch and both positions. A slot is
//! open without `committed`. The first descriptor of the batch is written last and publishes all of it. A
//! successor that finds the slot open looks at that descriptor: if it is still available in its lap, the
//! batch is written once more, else it had been published.
//!
//! A slot in the layout of vhost-user's inflight region for packed rings, as far as we use it:
//! ```text
//!  0 features u64   8 version u16 = 1, desc_num u16
//! 16 used_idx u16, old_used_idx u16, used_wrap u8, old_used_wrap u8, committed u8   (one word)
//! 24 mark u16                                                 (padding in the specification)
//! 32 + 32 i: used descriptor i of the batch: at 16 id u16, descriptors u16 (`flags`), len u32
//! ```
//! `mark` also stands in the ring (`descriptors.rs`). A driver that sets its ring up anew clears it there,
//! and then the slot is about another ring and does not count.
//!
//! The other side may write into the slot, so what is read from it is compared with the ring's size.

use super::descriptors::{mark, PackedDescriptors, Used};
use super::position::{Cursor, Position};
use crate::mem::{JournalSlot, Piece, MAX_BATCH};

/// Words of a slot.
const FEATURES: usize = 0;
const VERSION: usize = 1;
const INDICES: usize = 2;
const MARK: usize = 3;
/// Words before the per-descriptor part of a slot, and of each descriptor.
const HEAD: usize = 4;
const ENTRY: usize = 4;
/// The used descriptor's word in an entry.
const USED: usize = 2;
/// What slots are aligned to: a cache line.
const ALIGN: usize = 64;
const COMMITTED: u64 = 1 << 48;

/// The slot of one ring.
pub struct PackedJournal(JournalSlot);

/// The word that opens a slot about the way from `old` to `new`.
fn indices(old: u16, new: u16) -> u64 {
    let (index, wrap) = (|bits: u16| u64::from(bits & 0x7fff), |bits: u16| u64::from(bits >> 15));
    index(new) | index(old) << 16 | wrap(new) << 32 | wrap(old) << 40
}

impl PackedJournal {
    /// Bytes of a slot for batches of `used` descriptors.
    pub const fn bytes(used: usize) -> usize {
        (8 * (HEAD + ENTRY * used)).next_multiple_of(ALIGN)
    }

    /// The one in `slot`.
    pub fn new(slot: JournalSlot) -> PackedJournal {
        PackedJournal(slot)
    }

    /// The slot no longer says anything about its ring: the position was handed to the front end.
    pub fn close(&self) {
        self.0.set(MARK, 0);
    }

    /// Where the packed ring with descriptors `desc` and device event area `device` was left, if this slot is
    /// about that ring and open. A batch that was not published is published now.
    pub fn recover(&self, desc: &Piece, device: &Piece, size: u16) -> Option<Position> {
        mark::held(self.0.get(MARK), device)?;
        let word = self.0.get(INDICES);
        #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
        let bits = |index: u64, wrap: u64| (index as u16 & 0x7fff) | ((wrap as u16 & 1) << 15);
        let (new, old) = (bits(word, word >> 32), bits(word >> 16, word >> 40));
        if new & 0x7fff >= size || old & 0x7fff >= size {
            return None;
        }
        if word & COMMITTED == 0 {
            let ring = PackedDescriptors::new(desc, size);
            let (old, new) = (Cursor::from_bits(old), Cursor::from_bits(new));
            if ring.is_available(old) {
                ring.publish(old, self.batch(old, new, size)?.into_iter(), |_| ());
            }
        }
        Some(Position::Packed { avail: new, used: new })
    }

    /// The batch that leads from `old` to `new`; none if the slot holds no such batch.
    fn batch(&self, old: Cursor, new: Cursor, size: u16) -> Option<Vec<Used>> {
        let (mut at, mut left) = (old, size);
        let mut batch = Vec::new();
        while at != new {
            let word = self.0.get(HEAD + ENTRY * batch.len() + USED);
            #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
            let used = Used { id: word as u16, descs: (word >> 16) as u16, len: (word >> 32) as u32 };
            if used.descs == 0 || used.descs > left || batch.len() == MAX_BATCH {
                return None;
            }
            left -= used.descs;
            at.advance(used.descs, size);
            batch.push(used);
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Starts the journal of a ring at `used`. `device` gets the mark.
    #[must_use]
    pub fn begin(self, features: u64, size: u16, used: u16, device: &Piece) -> PackedJournal {
        let mark = mark::held(self.0.get(MARK), device).unwrap_or_else(mark::any);
        // Closed while it is written, so that a crash in between leaves nothing half true.
        self.close();
        self.0.set(FEATURES, features);
        self.0.set(VERSION, 1 | u64::from(size) << 16);
        self.0.set(INDICES, indices(used, used) | COMMITTED);
        mark::write(mark, device);
        self.0.set(MARK, mark.into());
        self
    }

    /// Before a batch that leads from `before` to `after` is written into the ring.
    #[inline]
    pub(super) fn will_publish(&mut self, before: Cursor, after: Cursor, batch: impl Iterator<Item = Used>) {
        for (i, used) in batch.enumerate() {
            let word = u64::from(used.id) | u64::from(used.descs) << 16 | u64::from(used.len) << 32;
            self.0.set(HEAD + ENTRY * i + USED, word);
        }
        self.0.open(INDICES, indices(before.bits(), after.bits()));
    }

    /// After it has been published: the ring stands at `after`, index and wrap counter as in [`Position`].
    pub fn published(&mut self, after: u16) {
        self.0.close(INDICES, indices(after, after) | COMMITTED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{GuestMap, JournalSlots, Pieces, RegionSpec, Signal};
    use crate::virtq::{Access, Queue, RingConfig};
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use sidecore_abi::virtio::{features, DESC_F_NEXT, DESC_F_WRITE, PACKED_F_AVAIL, PACKED_F_USED};
    use std::fs::File;
    use std::sync::Arc;

    const SIZE: u16 = 8;
    /// Descriptors of each chain that the driver makes available, and what the device writes.
    const BATCH: [(u16, u32); 3] = [(1, 60), (2, 1500), (1, 0)];
    const WORDS: usize = 2 * SIZE as usize;

    /// Guest memory: the ring, its two event areas, buffers.
    struct Guest {
        map: Arc<GuestMap>,
        slots: JournalSlots,
    }

    fn file(bytes: usize) -> File {
        let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes as u64).unwrap();
        fd.into()
    }

    impl Guest {
        /// With `BATCH` available from `at` on.
        fn new(at: Cursor) -> Guest {
            let spec = RegionSpec { gpa: 0, size: 0x2000, user_addr: 0, offset: 0, file: file(0x2000) };
            let map = Arc::new(GuestMap::new(&[spec]).unwrap());
            let bytes = PackedJournal::bytes(MAX_BATCH);
            let slots = JournalSlots::open(&file(bytes), bytes, 1).unwrap();
            let guest = Guest { map, slots };
            // What earlier laps left: used descriptors.
            let idle = if at.wrap { 0 } else { PACKED_F_AVAIL | PACKED_F_USED };
            for index in 0..SIZE {
                guest.desc(index, 0, idle);
            }
            let mut cursor = at;
            for (id, (descs, _)) in (100..).zip(BATCH) {
                for left in (0..descs).rev() {
                    let lap = if cursor.wrap { PACKED_F_AVAIL } else { PACKED_F_USED };
                    let next = if left > 0 { DESC_F_NEXT } else { 0 };
                    guest.desc(cursor.index, id, lap | next | DESC_F_WRITE);
                    cursor.advance(1, SIZE);
                }
            }
            guest
        }

        fn part(&self, gpa: u64, len: u32) -> Piece {
            self.map.translate(gpa, len, &mut 0).unwrap()
        }

        fn desc(&self, index: u16, id: u16, flags: u16) {
            let at = self.part(u64::from(index) * 16, 16);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&0x1000u64.to_le_bytes());
            bytes[8..12].copy_from_slice(&1526u32.to_le_bytes());
            bytes[12..14].copy_from_slice(&id.to_le_bytes());
            bytes[14..].copy_from_slice(&flags.to_le_bytes());
            at.write(&bytes);
        }

        fn words(&self) -> [u64; WORDS] {
            std::array::from_fn(|i| {
                let mut bytes = [0; 8];
                self.part(i as u64 * 8, 8).read(&mut bytes);
                u64::from_le_bytes(bytes)
            })
        }

        fn set_words(&self, words: &[u64; WORDS]) {
            for (i, word) in words.iter().enumerate() {
                self.part(i as u64 * 8, 8).write(&word.to_le_bytes());
            }
        }

        fn journal(&self) -> PackedJournal {
            PackedJournal::new(self.slots.slot(0).unwrap())
        }

        fn recover(&self) -> Option<u16> {
            match self.journal().recover(&self.part(0, 128), &self.part(0x104, 4), SIZE)? {
                Position::Packed { used, .. } => Some(used),
                Position::Split(_) => unreachable!(),
            }
        }

        /// The device takes the batch and gives it back; returns where it stands then.
        fn run(&self, at: Cursor, in_order: bool) -> Cursor {
            let (device, flags) = (self.part(0x104, 4), features::VERSION_1 | features::RING_PACKED);
            let flags = if in_order { flags | features::IN_ORDER } else { flags };
            let mut queue = Queue::new(RingConfig {
                size: SIZE,
                desc: self.part(0, 128),
                driver: self.part(0x100, 4),
                device,
                used_log: None,
                map: Arc::clone(&self.map),
                features: flags,
                position: Position::Packed { avail: at.bits(), used: at.bits() },
                notifier: Arc::new(Signal::default()),
                log: None,
                journal: Some(self.journal().begin(flags, SIZE, at.bits(), &device)),
                region: None,
            })
            .unwrap();
            assert_eq!(queue.take(Access::Write, 16, &mut Pieces::new(64)).unwrap(), BATCH.len());
            if in_order {
                queue.complete_read(BATCH.len());
            } else {
                queue.complete(BATCH.len(), |i| BATCH[i].1);
            }
            match queue.position() {
                Position::Packed { used, .. } => Cursor::from_bits(used),
                Position::Split(_) => unreachable!(),
            }
        }
    }

    /// Every lap, every start, so that the batch crosses the end of the ring in some.
    fn starts() -> impl Iterator<Item = (Cursor, bool)> {
        let cursors = (0..SIZE).flat_map(|index| [true, false].map(|wrap| Cursor { index, wrap }));
        cursors.flat_map(|at| [(at, false), (at, true)])
    }

    /// Killed before the first store into the ring, after the last, and with any of them made: the next
    /// daemon finishes the batch, and the driver sees exactly what it would have seen.
    #[test]
    fn a_batch_cut_off_anywhere_is_finished() {
        for (at, in_order) in starts() {
            let guest = Guest::new(at);
            let before = guest.words();
            let end = guest.run(at, in_order);
            let after = guest.words();
            assert_eq!(guest.recover(), Some(end.bits()), "nothing was cut off");
            assert_eq!(guest.words(), after);

            // As it was before `published`.
            guest.journal().0.set(INDICES, indices(at.bits(), end.bits()));
            let changed: Vec<usize> = (0..WORDS).filter(|i| before[*i] != after[*i]).collect();
            assert_eq!(changed.len(), if in_order { 1 } else { BATCH.len() });
            let first = 2 * usize::from(at.index) + 1;
            for made in 0u32..1 << changed.len() {
                let mut words = before;
                for (_, i) in changed.iter().enumerate().filter(|(bit, _)| made & 1 << bit != 0) {
                    // The first descriptor's length and id go first, its flags only when all is done.
                    let flags_too = *i != first || made.count_ones() as usize == changed.len();
                    let mask = if flags_too { u64::MAX } else { (1 << 48) - 1 };
                    words[*i] = (after[*i] & mask) | (words[*i] & !mask);
                }
                guest.set_words(&words);
                assert_eq!(guest.recover(), Some(end.bits()), "{at:?} {made:b}");
                assert_eq!(guest.words(), after, "{at:?} {made:b}");
            }
            // Published, and the driver has already made its descriptor available again.
            let mut words = after;
            let lap = if at.wrap { PACKED_F_USED } else { PACKED_F_AVAIL };
            words[first] = u64::from(lap) << 48 | 1526;
            guest.set_words(&words);
            assert_eq!(guest.recover(), Some(end.bits()));
            assert_eq!(guest.words(), words, "what the driver wrote stays");
        }
    }

    #[test]
    fn a_slot_about_another_ring_says_nothing() {
        let at = Cursor { index: 3, wrap: true };
        let guest = Guest::new(at);
        assert_eq!(guest.recover(), None, "never begun");
        let end = guest.run(at, false);
        let smaller = |size| guest.journal().recover(&guest.part(0, 128), &guest.part(0x104, 4), size);
        assert_eq!(smaller(4), None, "a ring of another size");
        let mark = guest.part(0x104, 2);
        let mut kept = [0; 2];
        mark.read(&mut kept);
        mark.write(&[0; 2]);
        assert_eq!(guest.recover(), None, "the driver set the ring up anew");
        mark.write(&kept);
        assert_eq!(guest.recover(), Some(end.bits()));
        guest.journal().close();
        assert_eq!(guest.recover(), None, "its position was handed over");
    }

    /// The other side writes into the slot: a batch that leads nowhere, or past the ring.
    #[test]
    fn nonsense_in_the_slot_is_refused() {
        let at = Cursor { index: 3, wrap: true };
        let guest = Guest::new(at);
        let before = guest.words();
        let _ = guest.run(at, false);
        guest.set_words(&before);
        guest.journal().0.set(INDICES, indices(at.bits(), at.bits()));
        assert_eq!((guest.recover(), guest.words()), (None, before), "a batch of nothing");
        for descs in [0u64, 1, 5, 0xffff] {
            let guest = Guest::new(at);
            let before = guest.words();
            let end = guest.run(at, false);
            guest.set_words(&before);
            guest.journal().0.set(INDICES, indices(at.bits(), end.bits()));
            for i in 0..MAX_BATCH {
                guest.journal().0.set(HEAD + ENTRY * i + USED, descs << 16);
            }
            let recovered = guest.recover();
            match descs {
                // Single steps do lead from one to the other.
                1 => assert_eq!(recovered, Some(end.bits())),
                _ => assert_eq!((recovered, guest.words()), (None, before)),
            }
        }
    }
}
