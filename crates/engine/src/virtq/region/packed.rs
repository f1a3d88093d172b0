//! The in-flight region of a packed ring.
//! ```text
//!  0 features u64   8 version u16 = 1, desc_num u16, free_head u16, old_free_head u16       (one word)
//! 16 used_idx u16, old_used_idx u16, used_wrap_counter u8, old_used_wrap_counter u8         (one word)
//! 24 mark u16                                                         (unused in the specification)
//! 32 + 32 i: inflight u8, 1 unused, next u16, last u16, num u16   (one word);   counter u64
//!            id u16, flags u16, len u32;   addr u64
//! ```
//! An entry is a copy of a descriptor, as the ring's own may be written over before its request is done. A
//! request has as many as its chain has descriptors, linked through `next`; so are the free ones, and the
//! last free one names `desc_num`.
//!
//! Picking: entries from the free list are filled, then the list moves on. Publishing: the entries of the
//! batch go in front of the free list and the used cursor moves, while the `old` fields keep what was; the
//! ring's descriptors are written, the first one's flags last; inflight is cleared; the `old` fields follow,
//! the free list's first. A successor that finds the used cursor and the old one apart looks at the ring: if
//! the descriptor at the old cursor is still available, all that is rolled back, else it is carried out.
//!
//! Two things go beyond the text. The cursors are compared with their wrap counters, as a batch may be a
//! whole lap. And a batch that is rolled back may have left used descriptors behind its first, which the
//! driver would find when a later batch ends before them: they are made to look available again.
//!
//! `mark` says in a file of ours that the region is about this ring, as in `virtq/journal.rs`.

use super::common::{halves, word, BadRegion, Left, Parts, Recovered, Whose, IN_FLIGHT, VERSION, VERSION_1};
use crate::mem::JournalSlot;
use crate::virtq::descriptors::{mark, PackedDescriptors};
use crate::virtq::position::{Cursor, Position};
use crate::virtq::raw::RawDesc;

pub(super) const HEAD: usize = 4;
pub(super) const ENTRY: usize = 4;
const CURSORS: usize = 2;
const MARK: usize = 3;
/// Inside an entry.
const COUNTER: usize = 1;
const DESC: usize = 2;
const ADDR: usize = 3;

fn entry(slot: u16) -> usize {
    HEAD + ENTRY * usize::from(slot)
}

fn state(in_flight: u64, next: u16, last: u16, num: u16) -> u64 {
    in_flight | word([0, next, last, num])
}

/// The entries of a request.
#[derive(Clone, Copy)]
pub(in crate::virtq) struct Entries {
    pub(in crate::virtq) first: u16,
    pub(in crate::virtq) last: u16,
    pub(in crate::virtq) num: u16,
    /// What the first one names as its next.
    pub(in crate::virtq) next: u16,
}

/// What writes into the region of a ring that runs.
pub(in crate::virtq) struct Writer {
    slot: JournalSlot,
    size: u16,
    /// The first free entry and the used cursor, as the `old` fields have them.
    free: u16,
    used: Cursor,
}

impl Writer {
    /// For a ring at `used`, when its region says so, too, and names `free` as the first free entry.
    pub(in crate::virtq) fn new(slot: JournalSlot, size: u16, used: Cursor, free: u16) -> Writer {
        Writer { slot, size, free, used }
    }

    fn lists(&self, free: u16, old: u16) {
        self.slot.set(VERSION, word([VERSION_1, self.size, free, old]));
    }

    #[inline]
    fn cursors(&self, used: Cursor, old: Cursor) {
        let wraps = u16::from(used.wrap) | u16::from(old.wrap) << 8;
        self.slot.set(CURSORS, word([used.index, old.index, wraps, 0]));
    }

    /// A request is picked, with these descriptors in these entries; `free` is the next free one.
    #[inline]
    pub(in crate::virtq) fn picked(
        &mut self,
        entries: Entries,
        counter: u64,
        descs: impl Iterator<Item = (u16, RawDesc)>,
        free: u16,
    ) {
        let Entries { first, last, num, next } = entries;
        self.slot.set(entry(first) + COUNTER, counter);
        self.slot.set(entry(first), state(IN_FLIGHT, next, last, num));
        for (slot, desc) in descs {
            // In the ring the flags stand behind the id, here in front of the length.
            let word = u64::from(desc.third) | u64::from(desc.fourth) << 16 | u64::from(desc.len) << 32;
            self.slot.set(entry(slot) + DESC, word);
            self.slot.set(entry(slot) + ADDR, desc.addr);
        }
        self.free = free;
        self.lists(free, free);
    }

    /// A request of the batch that will be published goes in front of the free entries from `free` on. Its
    /// first one names its `next` already as it is then.
    #[inline]
    pub(in crate::virtq) fn freed(&mut self, entries: Entries, free: u16) {
        let Entries { first, last, num, next } = entries;
        if first == last {
            self.slot.set(entry(first), state(IN_FLIGHT, next, last, num));
        } else {
            self.slot.set(entry(last), state(0, free, 0, 0));
        }
        self.lists(first, self.free);
    }

    /// Before the used descriptors of the batch are written, which lead to `used`.
    #[inline]
    pub(in crate::virtq) fn will_publish(&mut self, used: Cursor) {
        self.cursors(used, self.used);
        self.used = used;
    }

    /// After they have been written: a request of the batch is not in flight any more.
    #[inline]
    pub(in crate::virtq) fn landed(&mut self, entries: Entries) {
        let Entries { first, last, num, next } = entries;
        self.slot.set(entry(first), state(0, next, last, num));
    }

    /// After that, for all of them: `free` is the first free entry.
    #[inline]
    pub(in crate::virtq) fn published(&mut self, free: u16) {
        self.free = free;
        self.lists(free, free);
        self.cursors(self.used, self.used);
    }
}

pub(super) fn begin(slot: &JournalSlot, whose: Whose, parts: &Parts<'_>, used: u16) {
    let size = parts.size;
    for at in 0..size {
        slot.set(entry(at), state(0, at + 1, 0, 0));
    }
    if whose == Whose::Ours {
        let mark = mark::held(slot.get(MARK), parts.device).unwrap_or_else(mark::any);
        mark::write(mark, parts.device);
        slot.set(MARK, mark.into());
    }
    let used = Cursor::from_bits(used);
    let writer = Writer::new(slot.clone(), size, used, 0);
    writer.cursors(used, used);
    writer.lists(0, 0);
}

/// An entry, read once.
struct Entry {
    in_flight: bool,
    next: u16,
    last: u16,
    num: u16,
    counter: u64,
    desc: RawDesc,
}

fn read(slot: &JournalSlot, at: u16) -> Entry {
    let at = entry(at);
    let (state, desc) = (slot.get(at), slot.get(at + DESC));
    let [_, next, last, num] = halves(state);
    let [third, fourth, ..] = halves(desc);
    let len = (desc >> 32) as u32;
    Entry {
        in_flight: state & 0xff == IN_FLIGHT,
        next,
        last,
        num,
        counter: slot.get(at + COUNTER),
        desc: RawDesc { addr: slot.get(at + ADDR), len, third, fourth },
    }
}

pub(super) fn recover(slot: &JournalSlot, whose: Whose, parts: &Parts<'_>) -> Result<Recovered, BadRegion> {
    let size = parts.size;
    if whose == Whose::Ours && mark::held(slot.get(MARK), parts.device).is_none() {
        return Err(BadRegion::NotOffered);
    }
    let [_, _, free, old_free] = halves(slot.get(VERSION));
    let [used_idx, old_idx, wraps, _] = halves(slot.get(CURSORS));
    let used = Cursor { index: used_idx, wrap: wraps & 0xff != 0 };
    let old = Cursor { index: old_idx, wrap: wraps >> 8 != 0 };
    if used.index >= size || old.index >= size {
        return Err(BadRegion::Cursor);
    }
    let ring = PackedDescriptors::new(parts.desc, size);
    let (free, used) = if used != old && !ring.is_available(old) { (free, used) } else { (old_free, old) };

    let entries: Vec<Entry> = (0..size).map(|at| read(slot, at)).collect();
    // Each entry belongs to one list.
    let mut listed = vec![false; size.into()];
    let mut list = |at: u16| {
        let listed = listed.get_mut(usize::from(at)).ok_or(BadRegion::Lists)?;
        if std::mem::replace(listed, true) {
            return Err(BadRegion::Lists);
        }
        entries.get(usize::from(at)).ok_or(BadRegion::Lists)
    };
    let mut flying: Vec<bool> = entries.iter().map(|entry| entry.in_flight).collect();
    let mut stale = Vec::new();
    let (mut frees, mut at) = (0, free);
    while at < size {
        let one = list(at)?;
        if let Some(flying @ true) = flying.get_mut(usize::from(at)) {
            *flying = false;
            stale.push(at);
        }
        (frees, at) = (frees + 1, one.next);
    }
    let mut left = Vec::new();
    for ((first, head), _) in (0..size).zip(&entries).zip(&flying).filter(|(_, flying)| **flying) {
        let (mut at, mut descs) = (first, Vec::new());
        for n in 1..=head.num {
            let one = list(at)?;
            descs.push(one.desc);
            if (at == head.last) != (n == head.num) {
                return Err(BadRegion::Lists);
            }
            at = one.next;
        }
        left.push(Left { slot: first, last: head.last, num: head.num, counter: head.counter, descs });
    }
    let taken: usize = left.iter().map(|left| left.descs.len()).sum();
    if taken + frees != entries.len() || left.iter().any(|left| left.num == 0) {
        return Err(BadRegion::Lists);
    }
    if let Some(id) = same_id(&left) {
        return Err(BadRegion::SameId(id));
    }

    // All is known; a process killed from here on leaves as much.
    for at in stale {
        let Some(Entry { next, last, num, .. }) = entries.get(usize::from(at)) else { continue };
        slot.set(entry(at), state(0, *next, *last, *num));
    }
    let writer = Writer::new(slot.clone(), size, used, free);
    writer.lists(free, free);
    writer.cursors(used, used);
    let mut avail = used;
    for _ in 0..taken {
        ring.unuse(avail);
        avail.advance(1, size);
    }
    let position = Position::Packed { avail: avail.bits(), used: used.bits() };
    let next = entries.iter().map(|entry| entry.next).collect();
    let mut recovered = Recovered { position, left, counter: 0, next, free };
    recovered.in_order();
    Ok(recovered)
}

/// A buffer id that two of these have.
fn same_id(left: &[Left]) -> Option<u16> {
    let mut ids: Vec<u16> = left.iter().filter_map(|left| left.descs.last()).map(|desc| desc.third).collect();
    ids.sort_unstable();
    ids.windows(2).find_map(|pair| match pair {
        [a, b] if a == b => Some(*a),
        _ => None,
    })
}
