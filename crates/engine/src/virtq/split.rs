//! The split virtqueue (virtio 1.2 §2.7), device side.
//!
//! Theory of operation. `take` reads `avail.idx` once, with acquire order; everything up to it is ours.
//! It reads the head indices of the batch and prefetches their descriptors, then walks the chains and
//! prefetches the buffers. Nothing moves in the ring yet: `complete` writes the used elements of as many
//! chains as were really used and publishes them with one release store of `used.idx`; chains that were
//! taken but not used are simply taken again. As chains are completed in the order in which they were
//! taken, one index says it all: it is the base that survives a restart. The lines of the used elements are
//! prefetched when the chains are taken (`position.rs`).
//!
//! Requests complete in any order. `pick` takes a chain for good, so the index of the next one to take
//! runs ahead of the used index by as many as are in flight (`flight.rs`); `publish` makes all finished
//! ones visible with the same one store.
//!
//! Kicks: while polling they are declined. With EVENT_IDX that means parking `avail_event` half the
//! index space away, refreshed each quarter (§2.7.10): the driver kicks only when it passes it.
//!
//! The `unsafe` invariant is that of `raw.rs`.

use std::sync::atomic::{fence, Ordering};

use sidecore_abi::virtio::{features, split, AVAIL_F_NO_INTERRUPT, DESC_F_NEXT, USED_F_NO_NOTIFY};

use super::common::Common;
use super::config::RingConfig;
use super::flight::{Flight, Request};
use super::memory::{is_indirect, Access, Chain, Memory, Refusal, Walked};
use super::position::{Cursor, Entries, Position};
use super::raw::{Raw, RawDesc};
use crate::mem::{prefetch_own, prefetch_read, Pieces, MAX_BATCH, MAX_PIECES};
use crate::util::fault::Fault;

/// A split ring.
pub struct Split {
    desc: Raw,
    avail: Raw,
    used: Raw,
    size: u16,
    /// What an index is cut to for its place in the ring.
    mask: u16,
    /// Next chain to take; `taken` starts here.
    next: u16,
    /// Next place of the used ring. It lags behind `next` only while requests are in flight.
    used_idx: u16,
    /// The heads of the batch that is being taken.
    heads: Box<[u16]>,
    event_idx: bool,
    in_order: bool,
    /// `next` when `avail_event` was parked last.
    parked_at: u16,
    wants_kicks: bool,
}

impl Split {
    /// A ring on a configuration that has been checked.
    pub(super) fn new(config: &RingConfig, next: u16, common: &Common) -> Split {
        // What is in flight was taken, and not given back.
        let used_idx = next.wrapping_sub(common.flight.as_ref().map_or(0, |flight| flight.flying));
        let ring = Split {
            desc: Raw::new(&config.desc),
            avail: Raw::new(&config.driver),
            used: Raw::new(&config.device),
            size: config.size,
            mask: config.size - 1,
            next,
            used_idx,
            heads: vec![0; MAX_BATCH].into(),
            event_idx: config.features & features::EVENT_IDX != 0,
            in_order: config.features & features::IN_ORDER != 0,
            parked_at: next,
            wants_kicks: false,
        };
        ring.decline_kicks(&common.memory);
        ring
    }

    /// What is in flight counts as not taken, as what `take` took does.
    pub(super) fn position(&self) -> Position {
        Position::Split(self.used_idx)
    }

    /// Takes up to `want` chains that the driver has made available.
    pub(super) fn take(
        &mut self,
        common: &mut Common,
        access: Access,
        want: usize,
        pieces: &mut Pieces,
    ) -> Result<(), Fault> {
        let n = usize::from(self.offered()?).min(want);
        if n == 0 {
            return Ok(());
        }
        let mut heads = std::mem::take(&mut self.heads);
        for (i, head) in heads.iter_mut().enumerate().take(n) {
            *head = self.head(i);
            prefetch_read(self.desc.at(16 * usize::from(*head & self.mask)));
        }
        for &head in heads.iter().take(n) {
            if let Some(chain) = self.direct(&common.memory, head, access, pieces) {
                common.taken.push(chain);
            } else if !self.take_any(common, head, access, pieces) {
                break;
            }
        }
        self.heads = heads;
        self.bring_used(access, common.taken.as_slice().len());
        Ok(())
    }

    /// How many chains the driver has made available that were not taken for good.
    #[inline]
    pub(super) fn offered(&self) -> Result<u16, Fault> {
        let waiting = self.avail.load_u16(split::AVAIL_IDX, Ordering::Acquire).wrapping_sub(self.next);
        if waiting > self.size {
            return Err(Fault::IndexJump);
        }
        Ok(waiting)
    }

    /// Prefetches the lines that are written when the next `n` chains are given back.
    #[inline]
    fn bring_used(&self, access: Access, n: usize) {
        // Chains that were read need one element for all of them under IN_ORDER (`complete`).
        if access == Access::Write || !self.in_order {
            #[expect(clippy::cast_possible_truncation, reason = "n is at most MAX_BATCH")]
            self.elements().bring(&self.used, self.used_idx & self.mask, n as u16);
        }
        // A driver seldom looks for what it has sent, so the line stays until the batch is given back. For
        // what it receives it may look all the time.
        if access == Access::Read {
            prefetch_own(self.used.at(split::USED_IDX));
        }
    }

    /// The used elements.
    fn elements(&self) -> Entries {
        Entries { start: split::USED_RING, bytes: 8, size: self.size }
    }

    /// Prefetches the used index, to be written, and the driver's wish for interrupts, to be read behind it.
    #[inline]
    pub(super) fn bring_marks(&self) {
        prefetch_own(self.used.at(split::USED_IDX));
        prefetch_read(self.avail.at(self.wish_at()));
    }

    /// Where the driver says whether it wants interrupts.
    #[inline]
    fn wish_at(&self) -> usize {
        if self.event_idx {
            split::avail_used_event(self.size)
        } else {
            split::AVAIL_FLAGS
        }
    }

    /// The chain at `head` if it is a single plain buffer. `None`: it is something else, or wrong.
    #[inline]
    fn direct(&self, memory: &Memory, head: u16, access: Access, pieces: &mut Pieces) -> Option<Chain> {
        if head >= self.size {
            return None;
        }
        let desc = RawDesc::read(&self.desc, usize::from(head));
        memory.direct(pieces, access, desc, (desc.third, head))
    }

    /// Takes the chain at `head`, whatever it looks like. False: the batch ends before it.
    #[inline(never)]
    fn take_any(&mut self, common: &mut Common, head: u16, access: Access, pieces: &mut Pieces) -> bool {
        let before = pieces.len();
        let walked = self.walk(&mut common.memory, head, Walked::only(access, pieces));
        let walked = walked.map(|walked| walked.chain);
        common.took(walked, pieces, before).is_some()
    }

    /// The `i`-th available head from `next` on.
    #[inline]
    fn head(&self, i: usize) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "i is below the queue size")]
        let slot = self.next.wrapping_add(i as u16) & self.mask;
        self.avail.load_u16(split::AVAIL_RING + 2 * usize::from(slot), Ordering::Relaxed)
    }

    /// Follows the chain at `head` from descriptor to descriptor, in the ring or in its indirect table.
    #[inline]
    fn walk<'p>(&self, memory: &mut Memory, head: u16, mut to: Walked<'p>) -> Result<Walked<'p>, Refusal> {
        let access = to.access;
        to.chain.id = head;
        if head >= self.size {
            return Err(Fault::DescriptorOutOfRange.into());
        }
        let first = RawDesc::read(&self.desc, usize::from(head));
        let flags = first.third;
        if is_indirect(flags) {
            let (table, entries) = memory.indirect(first.addr, first.len, flags)?;
            follow(memory, (&table, entries), RawDesc::read(&table, 0), &mut to)?;
        } else if flags & DESC_F_NEXT != 0 {
            follow(memory, (&self.desc, usize::from(self.size)), first, &mut to)?;
        } else {
            memory.add(&mut to, first, flags)?;
        }
        to.prefetch(access);
        Ok(to)
    }

    /// Gives the first `n` taken chains back, chain `i` with `len(i)` bytes written, and publishes them
    /// together. `skip`: the lengths do not matter, so that IN_ORDER needs one element for them all
    /// (§2.7.9).
    pub(super) fn complete(
        &mut self,
        (taken, memory): (&[Chain], &Memory),
        skip: bool,
        len: impl Fn(usize) -> u32,
    ) {
        let (before, n) = (self.next, taken.len());
        if skip && self.in_order {
            let last = taken.last().map_or(0, |chain| chain.id);
            self.used_elem(memory, before, last, len(n - 1));
        } else {
            for (i, chain) in taken.iter().enumerate() {
                #[expect(clippy::cast_possible_truncation, reason = "i is below MAX_BATCH")]
                self.used_elem(memory, before.wrapping_add(i as u16), chain.id, len(i));
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "n is at most MAX_BATCH")]
        let after = before.wrapping_add(n as u16);
        self.show(memory, after);
        self.next = after;
        self.park(memory);
    }

    /// Shows the driver all used elements before `after`, with one store.
    #[inline]
    fn show(&mut self, memory: &Memory, after: u16) {
        self.used.store_u16(split::USED_IDX, after, Ordering::Release);
        self.used_idx = after;
        memory.log_used(split::USED_IDX, 2);
    }

    /// Parks `avail_event` anew when a quarter of the index space has been passed.
    #[inline]
    fn park(&mut self, memory: &Memory) {
        if !self.wants_kicks && self.event_idx && self.next.wrapping_sub(self.parked_at) >= 0x4000 {
            self.parked_at = self.next;
            self.decline_kicks(memory);
        }
    }

    /// What is offered is what the index says.
    pub(super) fn has_next(&self, _: &Flight) -> bool {
        true
    }

    /// Requests were picked.
    pub(super) fn picked(&mut self, memory: &Memory) {
        self.park(memory);
    }

    /// The next request: one that is owed, else one that waits.
    pub(super) fn request(
        &mut self,
        memory: &mut Memory,
        flight: &mut Flight,
        pieces: &mut Pieces,
    ) -> Result<Request, Refusal> {
        let request = Walked::request(pieces);
        if let Some(left) = flight.owed.front() {
            let walked = self.walk(memory, left.slot, request)?;
            let token = flight.relaunch().ok_or(Refusal::NoRoom)?;
            return Ok(Request::new(token, &walked));
        }
        let head = self.head(0);
        // Asked first: what is in flight is none of the driver's business any more, whatever it is.
        if head < self.size && !flight.is_free(head) {
            return Err(Fault::InFlightAlready.into());
        }
        let walked = self.walk(memory, head, request)?;
        self.next = self.next.wrapping_add(1);
        Ok(Request::new(flight.launch_head(head), &walked))
    }

    /// Makes all finished requests visible at once.
    pub(super) fn publish(&mut self, memory: &Memory, flight: &mut Flight) {
        let mut after = self.used_idx;
        for used in flight.finished() {
            self.used_elem(memory, after, used.id, used.len);
            after = after.wrapping_add(1);
        }
        flight.will_publish(Cursor::from_bits(after));
        self.show(memory, after);
        flight.land(after);
    }

    /// Writes the used element at `index`; [`Split::show`] makes it visible.
    #[inline]
    fn used_elem(&self, memory: &Memory, index: u16, id: u16, len: u32) {
        let at = split::USED_RING + 8 * usize::from(index & self.mask);
        self.used.store_used_elem(at, u32::from(id), len);
        memory.log_used(at, 8);
    }

    /// Whether the driver wants to know that the ring moved from `before` to here.
    pub(super) fn wants_interrupt(&self, before: u16) -> bool {
        // The driver stores its wish and then reads used.idx; we stored used.idx and now read the wish.
        fence(Ordering::SeqCst);
        let wish = self.avail.load_u16(self.wish_at(), Ordering::Relaxed);
        if self.event_idx {
            // §2.7.10: the event lies in [before, used_idx).
            self.used_idx.wrapping_sub(wish).wrapping_sub(1) < self.used_idx.wrapping_sub(before)
        } else {
            wish & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// The used index: where the ring stands before a completion, for [`Split::wants_interrupt`].
    pub(super) fn used_bits(&self) -> u16 {
        self.used_idx
    }

    /// Tells the driver not to kick.
    fn decline_kicks(&self, memory: &Memory) {
        if self.event_idx {
            let parked = self.parked_at.wrapping_add(0x8000);
            self.used.store_u16(split::used_avail_event(self.size), parked, Ordering::Relaxed);
        }
        // Drivers without EVENT_IDX look at the flag; those with it ignore it.
        self.used.store_u16(split::USED_FLAGS, USED_F_NO_NOTIFY, Ordering::Relaxed);
        self.log_events(memory);
    }

    /// Asks the driver for kicks or declines them. After asking, true means that chains wait already.
    pub(super) fn want_kicks(&mut self, memory: &Memory, on: bool) -> bool {
        self.wants_kicks = on;
        if !on {
            self.parked_at = self.next;
            self.decline_kicks(memory);
            return false;
        }
        self.used.store_u16(split::USED_FLAGS, 0, Ordering::Relaxed);
        if self.event_idx {
            self.used.store_u16(split::used_avail_event(self.size), self.next, Ordering::Relaxed);
        }
        self.log_events(memory);
        fence(Ordering::SeqCst);
        self.avail.load_u16(split::AVAIL_IDX, Ordering::Acquire) != self.next
    }

    /// Whether the driver has offered nothing that was not taken.
    pub(super) fn is_empty(&self) -> bool {
        self.avail.load_u16(split::AVAIL_IDX, Ordering::Relaxed) == self.next
    }

    /// Chains that wait to be taken, and entries of the ring.
    #[inline]
    pub(super) fn room(&self) -> (u16, u16) {
        let waiting = self.avail.load_u16(split::AVAIL_IDX, Ordering::Relaxed).wrapping_sub(self.next);
        (waiting.min(self.size), self.size)
    }

    fn log_events(&self, memory: &Memory) {
        memory.log_used(split::USED_FLAGS, 2);
        memory.log_used(split::used_avail_event(self.size), 2);
    }
}

/// Follows `next` from `desc` on, inside a table of `entries`. Each step uses one of as many lives, so a loop
/// ends.
fn follow(
    memory: &mut Memory,
    (table, entries): (&Raw, usize),
    mut desc: RawDesc,
    to: &mut Walked<'_>,
) -> Result<(), Refusal> {
    for _ in 0..entries.min(MAX_PIECES) {
        let (flags, next) = (desc.third, usize::from(desc.fourth));
        if is_indirect(flags) {
            // §2.7.5.3.1: an indirect table neither nests nor ends a chain.
            return Err(Fault::BadIndirect.into());
        }
        memory.add(to, desc, flags)?;
        if flags & DESC_F_NEXT == 0 {
            return Ok(());
        }
        if next >= entries {
            return Err(Fault::DescriptorOutOfRange.into());
        }
        desc = RawDesc::read(table, next);
    }
    Err(Fault::ChainTooLong.into())
}
