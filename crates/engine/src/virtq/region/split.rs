//! The in-flight region of a split ring.
//! ```text
//!  0 features u64   8 version u16 = 1, desc_num u16, last_batch_head u16, used_idx u16   (one word)
//! 16 + 16 i: inflight u8, 5 unused, next u16   (one word);   counter u64
//! ```
//! Picking: counter, then inflight. Publishing: the batch is linked from `last_batch_head` on through
//! `next`; the ring's used index moves; inflight is cleared in the batch; `used_idx` follows. So `used_idx`
//! differs from the ring's index exactly when entries of the last batch may still look as if in flight.
//!
//! In a file of ours the features say whether anything was published since the region began. If not, it is
//! not asked: what is in flight is what stands behind the used index, whosever ring it is.

use std::sync::atomic::Ordering;

use sidecore_abi::virtio::split as layout;

use super::common::{
    halves, word, BadRegion, Left, Parts, Recovered, Whose, FEATURES, IN_FLIGHT, VERSION, VERSION_1,
};
use crate::mem::JournalSlot;
use crate::virtq::position::Position;
use crate::virtq::raw::Raw;

pub(super) const HEAD: usize = 2;
pub(super) const ENTRY: usize = 2;
/// The counter's word in an entry.
const COUNTER: usize = 1;
const PUBLISHED: u64 = 1;

fn entry(head: u16) -> usize {
    HEAD + ENTRY * usize::from(head)
}

fn state(in_flight: u64, next: u16) -> u64 {
    in_flight | u64::from(next) << 48
}

/// What writes into the region of a ring that runs.
pub(in crate::virtq) struct Writer {
    slot: JournalSlot,
    size: u16,
    last_batch_head: u16,
    used_idx: u16,
    /// To be noted with the first batch.
    notes: bool,
}

impl Writer {
    /// For a ring whose used index is `used_idx`, when its region says so, too.
    pub(in crate::virtq) fn new(slot: JournalSlot, whose: Whose, size: u16, used_idx: u16) -> Writer {
        Writer { slot, size, last_batch_head: 0, used_idx, notes: whose == Whose::Ours }
    }

    fn head(&self) {
        self.slot.set(VERSION, word([VERSION_1, self.size, self.last_batch_head, self.used_idx]));
    }

    /// The request at `head` is picked.
    #[inline]
    pub(in crate::virtq) fn picked(&mut self, head: u16, counter: u64) {
        self.slot.set(entry(head) + COUNTER, counter);
        self.slot.set(entry(head), state(IN_FLIGHT, 0));
    }

    /// Before the used index moves over these.
    #[inline]
    pub(in crate::virtq) fn will_publish(&mut self, batch: &[u16]) {
        if std::mem::take(&mut self.notes) {
            self.slot.set(FEATURES, PUBLISHED);
        }
        for head in batch {
            self.slot.set(entry(*head), state(IN_FLIGHT, self.last_batch_head));
            self.last_batch_head = *head;
        }
        self.head();
    }

    /// After it has moved.
    #[inline]
    pub(in crate::virtq) fn published(&mut self, batch: &[u16], used_idx: u16) {
        // Only how many of the list count is told by the index, so the links have to stay.
        let before = batch.iter().rev().skip(1).copied().chain([0]);
        for (head, next) in batch.iter().rev().zip(before) {
            self.slot.set(entry(*head), state(0, next));
        }
        self.used_idx = used_idx;
        self.head();
    }
}

pub(super) fn begin(slot: &JournalSlot, whose: Whose, size: u16, used_idx: u16) {
    for head in 0..size {
        slot.set(entry(head), 0);
    }
    Writer::new(slot.clone(), whose, size, used_idx).head();
}

pub(super) fn recover(slot: &JournalSlot, whose: Whose, parts: &Parts<'_>) -> Result<Recovered, BadRegion> {
    let Parts { driver, device, size, .. } = *parts;
    let [_, _, last_batch_head, used_idx] = halves(slot.get(VERSION));
    let (avail, used) = (Raw::new(driver), Raw::new(device));
    let ring_idx = used.load_u16(layout::USED_IDX, Ordering::Acquire);
    let states: Vec<u64> = (0..size).map(|head| slot.get(entry(head))).collect();
    let in_flight = |state: &u64| state & 0xff == IN_FLIGHT;
    let mut flying: Vec<bool> = states.iter().map(in_flight).collect();

    // The last batch was published; so it is not in flight, whatever its entries say.
    let batch = ring_idx.wrapping_sub(used_idx);
    let mut seen = vec![false; size.into()];
    let mut at = last_batch_head;
    for _ in 0..batch {
        let (state, seen) =
            states.get(usize::from(at)).zip(seen.get_mut(usize::from(at))).ok_or(BadRegion::Batch)?;
        if std::mem::replace(seen, true) {
            return Err(BadRegion::Batch);
        }
        [.., at] = halves(*state);
    }
    for (flying, seen) in flying.iter_mut().zip(&seen) {
        *flying &= !seen;
    }
    let heads = (0..size).zip(&flying).filter(|(_, flying)| **flying).map(|(head, _)| head);
    let left = |slot_index| Left {
        slot: slot_index,
        last: slot_index,
        num: 1,
        counter: slot.get(entry(slot_index) + COUNTER),
        descs: Vec::new(),
    };
    let left: Vec<Left> = heads.map(left).collect();
    let count = u16::try_from(left.len()).unwrap_or(size);
    // In our own file this may be about a ring that is gone. What is in flight was offered, and is not back.
    let out = avail.load_u16(layout::AVAIL_IDX, Ordering::Acquire).wrapping_sub(ring_idx);
    if whose == Whose::Ours && (count > out || slot.get(FEATURES) != PUBLISHED) {
        return Err(BadRegion::NotOffered);
    }

    // All is known; a process killed from here on leaves as much.
    for (head, state_word) in
        (0..size).zip(&states).filter(|(head, _)| seen.get(usize::from(*head)) == Some(&true))
    {
        let [.., next] = halves(*state_word);
        slot.set(entry(head), state(0, next));
    }
    slot.set(VERSION, word([VERSION_1, size, last_batch_head, ring_idx]));
    let position = Position::Split(ring_idx.wrapping_add(count));
    let mut recovered = Recovered { position, left, counter: 0, next: Vec::new(), free: 0 };
    recovered.in_order();
    Ok(recovered)
}
