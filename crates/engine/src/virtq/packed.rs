//! The packed virtqueue (virtio 1.2 §2.8), device side.
//!
//! Theory of operation. There is one ring of descriptors; a descriptor is available when its AVAIL bit
//! equals the wrap counter and its USED bit does not (§2.8.1), and it is given back by overwriting the
//! first descriptor of its chain. Frames are completed in the order in which they were taken, so at rest
//! the next available and the next used position are the same. Requests complete in any order: `pick`
//! takes a chain for good, and the used position lags behind by the descriptors of what is in flight
//! (`flight.rs`). Used descriptors are written there, over descriptors that were taken long ago.
//!
//! A batch is published all or nothing: every used descriptor but the first is written, then the first
//! one's flags with release order. A driver looks at them in ring order, so it sees none or all. What a
//! daemon that is killed in between leaves is put right by the next one (`journal.rs`).
//!
//! The `unsafe` invariant is that of `raw.rs`.

use std::sync::atomic::{fence, Ordering};

use sidecore_abi::virtio::{features, packed, DESC_F_NEXT, EVENT_F_DESC, EVENT_F_DISABLE, EVENT_F_ENABLE};

use super::common::Common;
use super::config::RingConfig;
use super::descriptors::{PackedDescriptors, Used};
use super::flight::{Flight, Request};
use super::journal::PackedJournal;
use super::memory::{is_indirect, Access, Chain, Memory, Refusal, Walked};
use super::position::{Cursor, Entries, Position};
use super::raw::{Raw, RawDesc};
use crate::mem::{prefetch_read, Pieces};
use crate::util::fault::Fault;

/// Descriptors that are known to be available, all in a row, and the chains that end in them.
#[derive(Clone, Copy, Default)]
struct Counted {
    descs: u16,
    chains: u16,
}

impl Counted {
    /// How many of the first were used.
    #[inline]
    fn forget(&mut self, descs: u16, chains: usize) {
        self.descs = self.descs.saturating_sub(descs);
        // None of them is one that ends behind the last descriptor.
        let rest = usize::from(self.chains).saturating_sub(chains);
        self.chains = u16::try_from(rest).unwrap_or(0).min(self.descs);
    }
}

/// A packed ring.
pub struct Packed {
    ring: PackedDescriptors,
    driver: Raw,
    device: Raw,
    /// Where the next available descriptor is.
    next: Cursor,
    /// Where the next used descriptor goes. It lags behind `next` only while requests are in flight.
    used: Cursor,
    /// What was counted from `next` on.
    counted: Counted,
    event_idx: bool,
    in_order: bool,
    journal: Option<PackedJournal>,
}

impl Packed {
    /// A ring on a configuration that has been checked.
    pub(super) fn new(config: RingConfig, avail: u16, used: u16) -> Packed {
        let ring = Packed {
            ring: PackedDescriptors::new(&config.desc, config.size),
            driver: Raw::new(&config.driver),
            device: Raw::new(&config.device),
            next: Cursor::from_bits(avail),
            used: Cursor::from_bits(used),
            counted: Counted::default(),
            event_idx: config.features & features::EVENT_IDX != 0,
            in_order: config.features & features::IN_ORDER != 0,
            journal: config.journal,
        };
        ring.set_events(EVENT_F_DISABLE);
        ring
    }

    pub(super) fn position(&self) -> Position {
        Position::Packed { avail: self.next.bits(), used: self.used.bits() }
    }

    /// Takes up to `want` chains that the driver has made available.
    pub(super) fn take(
        &mut self,
        common: &mut Common,
        access: Access,
        want: usize,
        pieces: &mut Pieces,
    ) -> Result<(), Fault> {
        let mut at = self.next;
        let mut left = self.ring.size;
        while common.taken.as_slice().len() < want && left > 0 && self.ring.is_available(at) {
            // Descriptors lie in a row: prefetch the line after next.
            prefetch_read(self.ring.desc.at(16 * usize::from(at.index) + 128));
            let desc = RawDesc::read(&self.ring.desc, usize::from(at.index));
            let marks = (desc.fourth, desc.third);
            if let Some(chain) = common.memory.direct(pieces, access, desc, marks) {
                at.advance(1, self.ring.size);
                left -= 1;
                common.taken.push(chain);
                continue;
            }
            let before = pieces.len();
            let walked = self.walk(&mut common.memory, at, left, Walked::only(access, pieces));
            let walked = walked.map(|walked| walked.chain);
            let Some(descs) = common.took(walked, pieces, before) else { break };
            at.advance(descs, self.ring.size);
            left -= descs;
        }
        // With IN_ORDER one descriptor stands for all that were read (`complete`). Not before they were seen
        // to be available: the driver may be writing those that follow.
        if access == Access::Write || !self.in_order {
            let descriptors = Entries { start: 0, bytes: 16, size: self.ring.size };
            descriptors.bring(&self.ring.desc, self.next.index, self.ring.size - left);
        }
        Ok(())
    }

    /// Asks for the driver's wish; the descriptor that publishes a batch was asked for with the others.
    pub(super) fn bring_marks(&self) {
        prefetch_read(self.driver.at(packed::EVENT_OFF_WRAP));
    }

    /// Walks the chain at `at`; it may use at most the `left` descriptors that are not taken yet.
    #[inline]
    fn walk<'p>(
        &self,
        memory: &mut Memory,
        mut at: Cursor,
        left: u16,
        to: Walked<'p>,
    ) -> Result<Walked<'p>, Refusal> {
        let read = |ring: &PackedDescriptors| {
            let desc = RawDesc::read(&ring.desc, usize::from(at.index));
            at.advance(1, ring.size);
            desc
        };
        self.walk_along(memory, read, left, to)
    }

    /// Walks the chain whose descriptors `read` gives, one after the other.
    #[inline]
    fn walk_along<'p>(
        &self,
        memory: &mut Memory,
        mut read: impl FnMut(&PackedDescriptors) -> RawDesc,
        left: u16,
        mut to: Walked<'p>,
    ) -> Result<Walked<'p>, Refusal> {
        let access = to.access;
        loop {
            if to.chain.descs == left {
                return Err(Fault::ChainTooLong.into());
            }
            let desc = read(&self.ring);
            let (id, flags) = (desc.third, desc.fourth);
            to.chain.descs += 1;
            if is_indirect(flags) {
                if to.chain.descs > 1 {
                    return Err(Fault::BadIndirect.into());
                }
                indirect(memory, desc, &mut to)?;
            } else {
                memory.add(&mut to, desc, flags)?;
            }
            if flags & DESC_F_NEXT == 0 {
                // §2.8.6: the id counts in the last descriptor of a chain.
                to.chain.id = id;
                break;
            }
        }
        to.prefetch(access);
        Ok(to)
    }

    /// Gives the first `n` taken chains back; see `Split::complete`.
    pub(super) fn complete(
        &mut self,
        (taken, memory): (&[Chain], &Memory),
        skip: bool,
        len: impl Fn(usize) -> u32,
    ) {
        let n = taken.len();
        let last = taken.last().map_or(0, |chain| chain.id);
        let descs = taken.iter().map(|chain| chain.descs).sum();
        let (first, mut after) = (self.next, self.next);
        after.advance(descs, self.ring.size);
        // §2.8.9: with IN_ORDER one used descriptor, with the id of the last buffer, stands for all.
        let one = skip && self.in_order;
        let count = if one { 1 } else { n };
        let used = |i: usize| {
            if one {
                Used { id: last, descs, len: len(n - 1) }
            } else {
                // The caller counts up to `n`, as many as there are.
                let (id, descs) = taken.get(i).map_or((0, 0), |chain| (chain.id, chain.descs));
                Used { id, descs, len: len(i) }
            }
        };
        if let Some(journal) = &mut self.journal {
            journal.will_publish(first, after, (0..count).map(used));
        }
        self.ring.publish(first, (0..count).map(used), |offset| memory.log_used(offset, 16));
        if let Some(journal) = &mut self.journal {
            journal.published(after.bits());
        }
        (self.next, self.used) = (after, after);
        self.counted.forget(descs, n);
    }

    /// No more than the ring has: only the descriptors themselves say how many.
    pub(super) fn offered(&self) -> Result<u16, Fault> {
        Ok(self.ring.size)
    }

    pub(super) fn has_next(&self, flight: &Flight) -> bool {
        flight.room() > 0 && self.ring.is_available(self.next)
    }

    pub(super) fn picked(&mut self, _: &Memory) {}

    /// The next request: one that is owed, else one that waits.
    pub(super) fn request(
        &mut self,
        memory: &mut Memory,
        flight: &mut Flight,
        pieces: &mut Pieces,
    ) -> Result<Request, Refusal> {
        let request = Walked::request(pieces);
        if let Some(left) = flight.owed.front() {
            // In the ring its descriptors may have been written over.
            let mut descs = left.descs.iter().copied();
            let read = |_: &PackedDescriptors| descs.next().unwrap_or_default();
            let walked = self.walk_along(memory, read, left.num, request)?;
            if walked.chain.descs != left.num {
                return Err(Fault::ChainTooLong.into());
            }
            let token = flight.relaunch().ok_or(Refusal::NoRoom)?;
            return Ok(Request::new(token, &walked));
        }
        let mut at = self.next;
        flight.chain_begins();
        let room = flight.room();
        let read = |ring: &PackedDescriptors| {
            let desc = RawDesc::read(&ring.desc, usize::from(at.index));
            at.advance(1, ring.size);
            flight.chain_has(desc);
            desc
        };
        let walked = self.walk_along(memory, read, room, request)?;
        let Chain { id, descs, .. } = walked.chain;
        if flight.has_id(id) {
            return Err(Fault::InFlightAlready.into());
        }
        self.next = at;
        self.counted.forget(descs, 1);
        Ok(Request::new(flight.launch(id, descs), &walked))
    }

    /// Makes all finished requests visible at once.
    pub(super) fn publish(&mut self, memory: &Memory, flight: &mut Flight) {
        let before = self.used;
        self.used.advance(flight.finished().map(|used| used.descs).sum(), self.ring.size);
        flight.will_publish(self.used);
        self.ring.publish(before, flight.finished(), |offset| memory.log_used(offset, 16));
        flight.land(self.used.bits());
    }

    /// Whether the driver wants to know that the ring moved from `before` to here.
    pub(super) fn wants_interrupt(&self, before: u16) -> bool {
        fence(Ordering::SeqCst);
        let event = self.driver.load_u32(packed::EVENT_OFF_WRAP);
        #[expect(clippy::cast_possible_truncation, reason = "two halves of a word")]
        let (off_wrap, flags) = (event as u16, (event >> 16) as u16 & 3);
        match flags {
            EVENT_F_DISABLE => false,
            EVENT_F_DESC if self.event_idx => {
                // §2.8.10: compare in one lap, the one that `used` is in.
                let mut event = off_wrap & 0x7fff;
                if (off_wrap & 0x8000 != 0) != self.used.wrap {
                    event = event.wrapping_sub(self.ring.size);
                }
                let mut old = before & 0x7fff;
                if (before & 0x8000 != 0) != self.used.wrap {
                    old = old.wrapping_sub(self.ring.size);
                }
                self.used.index.wrapping_sub(event).wrapping_sub(1) < self.used.index.wrapping_sub(old)
            }
            _ => true,
        }
    }

    pub(super) fn used_bits(&self) -> u16 {
        self.used.bits()
    }

    fn set_events(&self, flags: u16) {
        self.device.store_u16(packed::EVENT_FLAGS, flags, Ordering::Relaxed);
    }

    /// Whether the driver has offered nothing that was not taken.
    pub(super) fn is_empty(&self) -> bool {
        !self.ring.is_available(self.next)
    }

    /// The ring does not tell how many there are, and a driver may write the first of several descriptors
    /// last (§2.8.21): they are counted one after the other, each of them once.
    #[inline]
    pub(super) fn room(&mut self) -> (u16, u16) {
        let size = self.ring.size;
        let mut at = self.next;
        at.advance(self.counted.descs, size);
        while self.counted.descs < size {
            let Some(flags) = self.ring.available(at) else { break };
            at.advance(1, size);
            self.counted.descs += 1;
            self.counted.chains += u16::from(flags & DESC_F_NEXT == 0);
        }
        (self.counted.chains, size)
    }

    pub(super) fn want_kicks(&mut self, _: &Memory, on: bool) -> bool {
        self.set_events(if on { EVENT_F_ENABLE } else { EVENT_F_DISABLE });
        if !on {
            return false;
        }
        fence(Ordering::SeqCst);
        self.ring.is_available(self.next)
    }
}

/// §2.8.7: all entries of an indirect table belong to the chain, NEXT is reserved there.
fn indirect(memory: &mut Memory, desc: RawDesc, to: &mut Walked<'_>) -> Result<(), Refusal> {
    let (table, entries) = memory.indirect(desc.addr, desc.len, desc.fourth)?;
    for i in 0..entries {
        let entry = RawDesc::read(&table, i);
        if is_indirect(entry.fourth) {
            return Err(Fault::BadIndirect.into());
        }
        memory.add(to, entry, entry.fourth)?;
    }
    Ok(())
}
