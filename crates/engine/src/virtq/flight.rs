//! Requests in flight: what was picked from a ring and is not back with the driver yet.
//!
//! Theory of operation. Each request has a slot: in a split ring that of its head descriptor, in a packed
//! ring (whose buffer ids may be any numbers) a free one. A [`Token`] names slot and generation, so what
//! is told late about a request that is over says nothing about the next one in its slot. A request is
//! *flying* from `launch` to `finish`, *finished* from there until `land`, after it was published; in
//! between the driver must not use its id. What an earlier daemon left in flight is *owed*, and holds its
//! slot, until `relaunch`.
//!
//! In a packed ring a request has as many slots as descriptors, and they are lists as the in-flight region
//! has them. The region, if there is one, is written along with all that changes here (`region`).

use std::collections::VecDeque;

use super::descriptors::Used;
use super::memory::Walked;
use super::position::Cursor;
use super::raw::RawDesc;
use super::region::packed::{Entries, Writer as PackedWriter};
use super::region::split::Writer as SplitWriter;
use super::region::{Left, Recovered};

/// A request's name while it is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    slot: u16,
    generation: u32,
}

/// A request: one chain, its readable pieces first, then its writable ones (virtio 1.2 §2.7.4.2).
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its name until it is finished.
    pub token: Token,
    /// Its first piece in the list that was given to `pick`.
    pub start: u32,
    /// Pieces that the device reads.
    pub readable: u16,
    /// Pieces behind them that the device writes.
    pub writable: u16,
    /// Bytes to read.
    pub read_len: u32,
    /// Bytes to write.
    pub write_len: u32,
}

impl Request {
    pub(super) fn new(token: Token, walked: &Walked<'_>) -> Request {
        let (chain, (readable, read_len)) = (&walked.chain, walked.readable());
        let (writable, write_len) = (chain.count - readable, chain.len - read_len);
        Request { token, start: chain.start, readable, writable, read_len, write_len }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestState {
    Free,
    Owed,
    Flying,
    Finished,
}

#[derive(Clone, Copy)]
struct Entry {
    generation: u32,
    state: RequestState,
    used: Used,
    /// The next slot: of a request with several descriptors, or of the free ones (packed ring).
    next: u16,
    /// The last slot of the request.
    last: u16,
}

/// The in-flight region, if there is one.
pub(super) enum Writer {
    None,
    Split(SplitWriter),
    Packed(PackedWriter),
}

/// The requests of one ring that are in flight.
pub(super) struct Flight {
    entries: Box<[Entry]>,
    /// The first free slot (packed ring).
    free: u16,
    /// A bit for each buffer id of those in flight (packed ring).
    ids: Box<[u64]>,
    /// Slots of finished requests, in the order in which they were finished.
    finished: Vec<u16>,
    /// What was left in flight and is still to be picked again, oldest first.
    pub(super) owed: VecDeque<Left>,
    /// Owed and flying ones.
    pub(super) flying: u16,
    /// Slots that are taken: in a packed ring one for each descriptor.
    taken: u16,
    region: Writer,
    /// Says in the region which of two requests was picked first.
    counter: u64,
    /// Descriptors of the chain that is being picked, for the region (packed ring).
    descs: Vec<RawDesc>,
}

/// Words of a bit for each buffer id.
const IDS: usize = (u16::MAX as usize + 1) / 64;

fn id_bit(id: u16) -> (usize, u64) {
    (usize::from(id) / 64, 1 << (id % 64))
}

impl Flight {
    /// The record of a ring with `size` entries, in which none is in flight.
    pub(super) fn new(size: u16, packed: bool) -> Flight {
        let used = Used { id: 0, descs: 0, len: 0 };
        let entry = |next| Entry { generation: 0, state: RequestState::Free, used, next, last: 0 };
        Flight {
            entries: (1..=size).map(entry).collect(),
            free: 0,
            ids: vec![0; if packed { IDS } else { 0 }].into(),
            finished: Vec::with_capacity(size.into()),
            owed: VecDeque::new(),
            flying: 0,
            taken: 0,
            region: Writer::None,
            counter: 0,
            descs: Vec::with_capacity(if packed { size.into() } else { 0 }),
        }
    }

    /// Goes on with what was left.
    pub(super) fn resume(&mut self, recovered: Recovered) {
        for (entry, next) in self.entries.iter_mut().zip(&recovered.next) {
            entry.next = *next;
        }
        self.free = recovered.free;
        self.counter = recovered.counter;
        for left in &recovered.left {
            let id = left.descs.last().map_or(left.slot, |desc| desc.third);
            self.enter(left.slot, RequestState::Owed, Used { id, descs: left.num, len: 0 }, left.last);
        }
        self.owed = recovered.left.into();
    }

    /// What changes from now on is written there, too.
    pub(super) fn write_into(&mut self, region: Writer) {
        self.region = region;
    }

    /// Slots that are free.
    pub(super) fn room(&self) -> u16 {
        // No more are taken than there are.
        u16::try_from(self.entries.len()).unwrap_or(u16::MAX) - self.taken
    }

    /// Whether no request has this slot; beyond the ring there is none.
    pub(super) fn is_free(&self, slot: u16) -> bool {
        self.entries.get(usize::from(slot)).is_some_and(|entry| entry.state == RequestState::Free)
    }

    /// Whether a request with this buffer id is in flight (packed ring).
    pub(super) fn has_id(&self, id: u16) -> bool {
        let (word, bit) = id_bit(id);
        self.ids.get(word).is_some_and(|word| word & bit != 0)
    }

    /// A chain is about to be read.
    pub(super) fn chain_begins(&mut self) {
        self.descs.clear();
    }

    /// This descriptor of it was read.
    #[inline]
    pub(super) fn chain_has(&mut self, desc: RawDesc) {
        if let Writer::Packed(_) = self.region {
            self.descs.push(desc);
        }
    }

    /// A request takes the slot of its head, which is free (split ring).
    pub(super) fn launch_head(&mut self, head: u16) -> Token {
        if let Writer::Split(region) = &mut self.region {
            region.picked(head, self.counter);
            self.counter = self.counter.wrapping_add(1);
        }
        self.enter(head, RequestState::Flying, Used { id: head, descs: 1, len: 0 }, head)
    }

    /// A request with this buffer id takes as many slots as it has descriptors; so many are free (packed
    /// ring).
    pub(super) fn launch(&mut self, id: u16, descs: u16) -> Token {
        let first = self.free;
        let mut last = first;
        for _ in 1..descs {
            last = self.next(last);
        }
        self.free = self.next(last);
        if let Writer::Packed(region) = &mut self.region {
            let entries = &self.entries;
            let next = |slot: &u16| entries.get(usize::from(*slot)).map(|entry| entry.next);
            let slots = std::iter::successors(Some(first), next);
            let entries = Entries { first, last, num: descs, next: next(&first).unwrap_or(0) };
            region.picked(entries, self.counter, slots.zip(self.descs.iter().copied()), self.free);
            self.counter = self.counter.wrapping_add(1);
        }
        self.enter(first, RequestState::Flying, Used { id, descs, len: 0 }, last)
    }

    /// The first of those that are owed is picked again.
    pub(super) fn relaunch(&mut self) -> Option<Token> {
        let slot = self.owed.pop_front()?.slot;
        let entry = self.entries.get_mut(usize::from(slot))?;
        entry.state = RequestState::Flying;
        Some(Token { slot, generation: entry.generation })
    }

    fn next(&self, slot: u16) -> u16 {
        self.entries.get(usize::from(slot)).map_or(0, |entry| entry.next)
    }

    fn enter(&mut self, slot: u16, state: RequestState, used: Used, last: u16) -> Token {
        self.flying += 1;
        self.taken += used.descs;
        let (word, bit) = id_bit(used.id);
        if let Some(word) = self.ids.get_mut(word) {
            *word |= bit;
        }
        let Some(entry) = self.entries.get_mut(usize::from(slot)) else {
            return Token { slot, generation: 0 };
        };
        let generation = entry.generation.wrapping_add(1);
        *entry = Entry { generation, state, used, next: entry.next, last };
        Token { slot, generation }
    }

    /// The request is done. False: there is no such request in flight.
    pub(super) fn finish(&mut self, token: Token, written: u32) -> bool {
        match self.entries.get_mut(usize::from(token.slot)) {
            Some(entry) if entry.state == RequestState::Flying && entry.generation == token.generation => {
                entry.state = RequestState::Finished;
                entry.used.len = written;
                self.finished.push(token.slot);
                self.flying -= 1;
                true
            }
            _ => false,
        }
    }

    /// What is to be published.
    pub(super) fn finished(&self) -> impl Iterator<Item = Used> + '_ {
        self.finished.iter().filter_map(|slot| self.entries.get(usize::from(*slot))).map(|entry| entry.used)
    }

    /// Before all that was finished is published, which leads to `used` (packed ring).
    pub(super) fn will_publish(&mut self, used: Cursor) {
        match &mut self.region {
            Writer::None => {}
            Writer::Split(region) => region.will_publish(&self.finished),
            Writer::Packed(_) => {}
        }
        if self.ids.is_empty() {
            return;
        }
        for slot in &self.finished {
            let Some(last) = self.entries.get(usize::from(*slot)).map(|entry| entry.last) else { continue };
            let free = std::mem::replace(&mut self.free, *slot);
            if let Some(last) = self.entries.get_mut(usize::from(last)) {
                last.next = free;
            }
            if let Writer::Packed(region) = &mut self.region {
                region.freed(entries(&self.entries, *slot), free);
            }
        }
        if let Writer::Packed(region) = &mut self.region {
            region.will_publish(used);
        }
    }

    /// After it has been published; the used index is `used_idx` (split ring).
    pub(super) fn land(&mut self, used_idx: u16) {
        match &mut self.region {
            Writer::None => {}
            Writer::Split(region) => region.published(&self.finished, used_idx),
            Writer::Packed(region) => {
                for slot in &self.finished {
                    region.landed(entries(&self.entries, *slot));
                }
                region.published(self.free);
            }
        }
        for slot in self.finished.drain(..) {
            let Some(entry) = self.entries.get_mut(usize::from(slot)) else { continue };
            entry.state = RequestState::Free;
            self.taken -= entry.used.descs;
            let (word, bit) = id_bit(entry.used.id);
            if let Some(word) = self.ids.get_mut(word) {
                *word &= !bit;
            }
        }
    }
}

/// The entries of the request in this slot, as the region has them.
fn entries(all: &[Entry], first: u16) -> Entries {
    all.get(usize::from(first)).map_or(Entries { first, last: first, num: 1, next: 0 }, |entry| Entries {
        first,
        last: entry.last,
        num: entry.used.descs,
        next: entry.next,
    })
}
