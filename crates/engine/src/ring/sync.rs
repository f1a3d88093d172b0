//! The engine's side of a ring: what netmap's kernel does in txsync and rxsync.
//!
//! Indices are circular; `hwcur` and `hwtail` as the engine believes them are private, and what stands in
//! shared memory is never read back. Of the client's words only `head` is used, and it is read once per look.
//! It is valid between what was accepted before and what the client owns; anything else resets the ring as
//! netmap's ring re-initialisation does, but always to the engine's own indices: slots given up but not yet
//! taken come back to the client, which is told by the words' `resets`. A bad `head` is judged once, not each
//! time it is seen again; against the indices that stand after the reset it may make sense, and then it
//! counts.
//!
//! Where the two sides' indices stand, and how each wakes the other, is [`Hands`]' affair: in the words of
//! `tickets`, or in blocks of the client's own memory (`block`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use sidecore_abi::netmap::{SlotWord, NS_INDIRECT, NS_MOREFRAG};
use sidecore_abi::ring::Nonsense;

use super::region::{Region, RingMemory};
use super::tickets::{Hands, Tickets};
use crate::mem::Piece;

/// What went wrong on a ring; for `show`.
#[derive(Debug, Default)]
pub struct RingStats {
    resets: AtomicU32,
    reason: AtomicU32,
    bad_slots: AtomicU32,
}

impl RingStats {
    /// Slots that named a buffer which is not the client's, or more bytes than a buffer has.
    pub fn bad_slots(&self) -> u32 {
        self.bad_slots.load(Ordering::Relaxed)
    }

    /// `running`, and what went wrong so far.
    pub fn describe(&self) -> String {
        let mut text = String::from("running");
        let reason = Nonsense::from_code(self.reason.load(Ordering::Relaxed));
        if let (n @ 1.., Some(reason)) = (self.resets.load(Ordering::Relaxed), reason) {
            text.push_str(&format!(", {n} resets, the last for {}", reason.name()));
        }
        if let n @ 1.. = self.bad_slots() {
            text.push_str(&format!(", {n} bad slots"));
        }
        text
    }
}

/// Next slot of a ring of `n`.
#[inline]
fn after(slot: u32, n: u32) -> u32 {
    if slot + 1 == n {
        0
    } else {
        slot + 1
    }
}

/// The slot in front of `slot` in a ring of `n`.
#[inline]
fn before(slot: u32, n: u32) -> u32 {
    if slot == 0 {
        n - 1
    } else {
        slot - 1
    }
}

/// Slots from `from` on to `to`.
#[inline]
fn distance(from: u32, to: u32, n: u32) -> u32 {
    if to >= from {
        to - from
    } else {
        to + n - from
    }
}

/// The slot `by` slots behind `slot`, for `by` at most `n`.
#[inline]
fn ahead(slot: u32, by: u32, n: u32) -> u32 {
    let at = slot + by;
    if at >= n {
        at - n
    } else {
        at
    }
}

/// What both directions have.
pub struct RingAccess<H> {
    memory: RingMemory,
    hands: H,
    /// What went wrong so far.
    pub stats: Arc<RingStats>,
    /// A `head` that has been found bad and still stands there.
    bad_head: Option<u32>,
}

impl<H: Hands> RingAccess<H> {
    fn new(region: &Arc<Region>, number: u32, hands: H) -> RingAccess<H> {
        RingAccess { memory: region.ring(number), hands, stats: Arc::default(), bad_head: None }
    }

    /// The client's indices stand elsewhere from now on: at `hands`, to be told where the ring is.
    pub fn set_hands(&mut self, hands: H) -> &mut H {
        self.bad_head = None;
        self.hands = hands;
        &mut self.hands
    }

    /// What was found bad stood elsewhere.
    pub fn forget(&mut self) {
        self.bad_head = None;
    }

    /// Where the client's indices stand.
    pub fn hands(&mut self) -> &mut H {
        &mut self.hands
    }

    /// Whether the client's `head` makes no sense.
    pub fn is_lost(&self) -> bool {
        self.bad_head.is_some()
    }

    /// Bytes of a buffer.
    pub fn buf_size(&self) -> u32 {
        self.memory.buf_size()
    }

    /// The slot that comes after `slot`.
    pub fn after(&self, slot: u32) -> u32 {
        after(slot, self.memory.num_slots())
    }

    /// Slot `slot`, read once.
    pub fn slot(&self, slot: u32) -> SlotWord {
        self.memory.slot(slot)
    }

    /// Writes slot `slot`, which the client has released.
    pub fn set_slot(&self, slot: u32, word: SlotWord) {
        self.memory.set_slot(slot, word);
    }

    /// Slots of the ring.
    pub fn slots(&self) -> u32 {
        self.memory.num_slots()
    }

    /// The client's `head`, if it is between `from` and `to`.
    #[inline]
    fn head(&mut self, from: u32, to: u32) -> Result<u32, BadHead> {
        let head = self.hands.head();
        let n = self.memory.num_slots();
        if head < n && distance(from, head, n) <= distance(from, to, n) {
            self.bad_head = None;
            return Ok(head);
        }
        if self.bad_head == Some(head) {
            return Err(BadHead::Known);
        }
        self.bad_head = Some(head);
        Err(BadHead::New(if head < n { Nonsense::HeadOutOfTurn } else { Nonsense::HeadOutOfRing }))
    }

    /// Tells the client that its ring was reset; the indices have been published before.
    #[cold]
    fn reset(&mut self, reason: Nonsense) {
        let resets = self.stats.resets.fetch_add(1, Ordering::Relaxed) + 1;
        self.stats.reason.store(reason as u32, Ordering::Relaxed);
        self.hands.reset(resets, reason);
    }

    #[cold]
    fn count_bad_slot(&self) {
        self.stats.bad_slots.fetch_add(1, Ordering::Relaxed);
    }
}

enum BadHead {
    New(Nonsense),
    Known,
}

/// A ring on which the client sends.
pub struct ClientTx<H = Tickets> {
    /// What the other direction has, too.
    pub access: RingAccess<H>,
    hwcur: u32,
    /// The `head` that was accepted last.
    head: u32,
    /// Another task serves the ring: nothing is written, and the client is not woken.
    follows: bool,
}

/// How far the reader of what the client of a ring has released is: no slot beyond that is filled anew.
#[derive(Debug, Default)]
pub struct ReleaseGate {
    on: AtomicBool,
    at: AtomicU32,
}

impl ReleaseGate {
    /// The slots from `at` on are kept.
    pub fn keep_from(&self, at: u32) {
        self.at.store(at, Ordering::Relaxed);
    }

    /// Begins, and ends. It begins while no core fills slots: under the lock of the port's egress.
    pub fn set(&self, on: bool) {
        self.on.store(on, Ordering::Release);
    }
}

impl ClientTx {
    /// Ring `index` of those on which the client sends. One at a time may exist for a ring of a region.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn new(region: &Arc<Region>, index: u32) -> ClientTx {
        ClientTx::with(region, index, Tickets::new(region, index))
    }

    /// Ring `number`, counted over all rings and then those of pipes, to be looked at only: from where its
    /// client is now on, the slots that it gives up or releases.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn follow(region: &Arc<Region>, number: u32) -> ClientTx {
        let access = RingAccess::new(region, number, Tickets::new(region, number));
        let head = access.hands.head();
        let hwcur = if head < access.memory.num_slots() { head } else { 0 };
        ClientTx { access, hwcur, head: hwcur, follows: true }
    }
}

impl<H: Hands> ClientTx<H> {
    /// Ring `index` of those on which the client sends, whose indices `hands` has. One at a time may exist
    /// for a ring of a region.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn with(region: &Arc<Region>, index: u32, hands: H) -> ClientTx<H> {
        assert!(index < region.info().tx_rings);
        ClientTx { access: RingAccess::new(region, index, hands), hwcur: 0, head: 0, follows: false }
    }

    /// Where the ring is: the client's `head` that was accepted last, and the engine's two indices.
    pub fn position(&self) -> [u32; 3] {
        [self.head, self.hwcur, before(self.hwcur, self.access.memory.num_slots())]
    }

    /// The ring, at rest, is where another process left it: `hwcur` is its first slot that has not been given
    /// back, and those before `head` were taken. False: there are no such slots.
    pub fn set_position(&mut self, hwcur: u32, head: u32) -> bool {
        let n = self.access.memory.num_slots();
        let known = hwcur < n && head < n;
        if known {
            (self.hwcur, self.head) = (hwcur, head);
        }
        known
    }

    /// The client's `head` that was accepted last.
    pub fn last(&self) -> u32 {
        self.head
    }

    /// Looks at `head`; returns how many slots wait to be taken from [`ClientTx::first`] on.
    #[inline]
    pub fn look(&mut self) -> u32 {
        let n = self.access.memory.num_slots();
        match self.access.head(self.head, before(self.hwcur, n)) {
            Ok(head) => self.head = head,
            Err(BadHead::New(reason)) => {
                // The engine's indices stand: what was accepted but not taken goes back.
                self.head = self.hwcur;
                if !self.follows {
                    self.publish();
                    self.access.reset(reason);
                }
            }
            Err(BadHead::Known) => {}
        }
        distance(self.hwcur, self.head, n)
    }

    /// The first slot that has not been given back.
    pub fn first(&self) -> u32 {
        self.hwcur
    }

    /// Whether `word` names a buffer of the region and no more bytes than one has; counted if not.
    #[inline]
    pub fn is_sound(&self, word: SlotWord) -> bool {
        let sound = self.access.memory.is_sound(word);
        if !sound {
            self.access.count_bad_slot();
        }
        sound
    }

    /// Gives slot `slot`, which has not been given back, the buffer `index`, if there is one of that number.
    #[inline]
    pub fn exchange(&self, slot: u32, index: u32) {
        let word = SlotWord::new(index, 0, 0);
        if self.is_sound(word) {
            self.access.memory.set_slot(slot, word);
        }
    }

    /// Asks the cache for the start of the buffer `by` slots behind `slot`.
    #[inline]
    pub fn prefetch(&self, slot: u32, by: u32) {
        let n = self.access.memory.num_slots();
        if by < n {
            self.access.memory.prefetch_read(ahead(slot, by, n));
        }
    }

    /// The buffer that `word` names, whole; `None` (and counted) if it is not the client's or too small for
    /// what the slot claims.
    #[inline]
    pub fn buffer(&self, word: SlotWord) -> Option<Piece> {
        match self.access.memory.buffer(word.buf_idx()) {
            Some(piece) if u32::from(word.len()) <= self.access.memory.buf_size() => Some(piece),
            _ => {
                self.access.count_bad_slot();
                None
            }
        }
    }

    /// Gives the slots before `to` back. True if the client waits for that and is to be woken: not for a
    /// few slots while more are under way, or a fast engine would wake a slow client for every frame.
    #[inline]
    pub fn give_back(&mut self, to: u32) -> bool {
        self.put_back(to);
        self.may_wake() && self.access.hands.is_due()
    }

    /// Gives the slots before `to` back, and does not ask yet whether the client waits.
    #[inline]
    pub fn put_back(&mut self, to: u32) {
        self.hwcur = to;
        if !self.follows {
            self.publish();
        }
    }

    /// Whether the client waits for slots that were put back and is to be woken, after a full barrier of the
    /// caller's.
    pub fn is_asked(&mut self) -> bool {
        self.may_wake() && self.access.hands.is_asked()
    }

    #[inline]
    fn may_wake(&self) -> bool {
        let n = self.access.memory.num_slots();
        !self.follows && distance(self.hwcur, self.head, n) <= n / 2
    }

    #[inline]
    fn publish(&mut self) {
        let hwtail = before(self.hwcur, self.access.memory.num_slots());
        self.access.hands.publish(self.hwcur, hwtail);
    }

    /// Asks for kicks or declines them. After asking, true means that slots wait already.
    pub fn want_kicks(&mut self, on: bool) -> bool {
        if !on {
            self.access.hands.withdraw();
            return false;
        }
        self.access.hands.ask();
        self.look() > 0
    }
}

/// A ring on which the client receives.
pub struct ClientRx<H = Tickets> {
    /// What the other direction has, too.
    pub access: RingAccess<H>,
    hwcur: u32,
    /// As published.
    hwtail: u32,
    /// The next slot to fill: `hwtail` when the fills are published.
    fill: u32,
    /// What keeps released slots for their reader.
    pub gate: Arc<ReleaseGate>,
}

impl ClientRx {
    /// Ring `index` of those on which the client receives. One at a time may exist for a ring of a region.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn new(region: &Arc<Region>, index: u32) -> ClientRx {
        ClientRx::with(region, index, Tickets::new(region, region.info().tx_rings + index))
    }
}

impl<H: Hands> ClientRx<H> {
    /// Ring `index` of those on which the client receives, whose indices `hands` has. One at a time may exist
    /// for a ring of a region.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn with(region: &Arc<Region>, index: u32, hands: H) -> ClientRx<H> {
        let info = region.info();
        assert!(index < info.rx_rings);
        let access = RingAccess::new(region, info.tx_rings + index, hands);
        ClientRx { access, hwcur: 0, hwtail: 0, fill: 0, gate: Arc::default() }
    }

    /// Where the ring is: the client's `head` that was accepted last, and the engine's two indices.
    pub fn position(&self) -> [u32; 3] {
        [self.hwcur, self.hwcur, self.hwtail]
    }

    /// The ring, at rest, is where another process left it. False: there are no such slots.
    pub fn set_position(&mut self, hwcur: u32, hwtail: u32) -> bool {
        let n = self.access.memory.num_slots();
        let known = hwcur < n && hwtail < n;
        if known {
            (self.hwcur, self.hwtail, self.fill) = (hwcur, hwtail, hwtail);
        }
        known
    }

    /// The first slot that the client has not released, as far as is known.
    pub fn first(&self) -> u32 {
        self.hwcur
    }

    /// The next slot to fill.
    pub fn next(&self) -> u32 {
        self.fill
    }

    /// Whether the client has moved its `head` since the last look.
    pub fn has_moved(&self) -> bool {
        self.access.hands.head() != self.hwcur
    }

    /// Fills the next slot with `word`. What says so already is not written, so that its line stays in the
    /// client's cache.
    #[inline]
    pub fn mirror(&mut self, word: SlotWord) {
        if self.access.memory.slot(self.fill) != word {
            self.access.memory.set_slot(self.fill, word);
        }
        self.fill = after(self.fill, self.access.memory.num_slots());
    }

    /// Fills the next slots, before `until` and at most `limit`, with what stands in the same places of
    /// `from`, as long as each is a whole frame that [`ClientTx::is_sound`]. Returns their number and bytes.
    #[inline]
    pub fn mirror_row(&mut self, from: &ClientTx<H>, until: u32, limit: usize) -> (usize, u64) {
        let n = self.access.memory.num_slots();
        let end = if until < self.fill { n } else { until };
        let (given, shown) = (from.access.memory.row(self.fill, end), self.access.memory.row(self.fill, end));
        let bounds = from.access.memory.bounds();
        let (mut slots, mut bytes) = (0, 0);
        for ([given, _], [shown, _]) in given.iter().zip(shown).take(limit) {
            let word = SlotWord(given.load(Ordering::Relaxed));
            if word.flags() & (NS_MOREFRAG | NS_INDIRECT) != 0 || !bounds.has(word) {
                break;
            }
            let word = SlotWord::new(word.buf_idx(), word.len(), 0);
            // As above.
            if shown.load(Ordering::Relaxed) != word.0 {
                shown.store(word.0, Ordering::Relaxed);
            }
            bytes += u64::from(word.len());
            slots += 1;
        }
        self.fill += slots;
        if self.fill == n {
            self.fill = 0;
        }
        (slots as usize, bytes)
    }

    /// Flags that the slots from `from` to `to` have, all of them or some; each is read once.
    #[inline]
    pub fn flags(&self, from: u32, to: u32) -> u16 {
        let n = self.access.memory.num_slots();
        let of = |from: u32, to: u32| {
            let row = self.access.memory.row(from, to);
            row.iter().fold(0, |all, [word, _]| all | word.load(Ordering::Relaxed))
        };
        SlotWord(if from <= to { of(from, to) } else { of(from, n) | of(0, to) }).flags()
    }

    /// Looks at `head`; returns how many slots can be filled.
    #[inline]
    pub fn look(&mut self) -> u32 {
        let n = self.access.memory.num_slots();
        if self.accept() {
            self.access.hands.publish(self.hwcur, self.hwtail);
        }
        let kept = if self.gate.on.load(Ordering::Acquire) {
            self.gate.at.load(Ordering::Relaxed)
        } else {
            self.hwcur
        };
        n - 1 - distance(kept.min(n - 1), self.fill, n)
    }

    /// Accepts what the client has released, and does not say so yet. True: it has released something.
    #[inline]
    pub fn accept(&mut self) -> bool {
        match self.access.head(self.hwcur, self.hwtail) {
            Ok(head) => return std::mem::replace(&mut self.hwcur, head) != head,
            Err(BadHead::New(reason)) => self.access.reset(reason),
            Err(BadHead::Known) => {}
        }
        false
    }

    /// The buffer of the slot `by` slots behind the next one; `None` if the client named one that is not its
    /// own.
    #[inline]
    pub fn buffer(&self, by: u32) -> Option<(u32, Piece)> {
        let index = self.access.memory.slot(ahead(self.fill, by, self.access.memory.num_slots())).buf_idx();
        Some((index, self.access.memory.buffer(index)?))
    }

    /// Asks the cache for the next `count` slots and the first lines of their buffers.
    #[inline]
    pub fn prefetch(&self, count: u32) {
        let n = self.access.memory.num_slots();
        for by in 0..count.min(n - 1) {
            let slot = ahead(self.fill, by, n);
            // Four slots share a line.
            if slot % 4 == 0 || by == 0 {
                self.access.memory.prefetch_slot(slot);
            }
            self.access.memory.prefetch_buffer(slot, 1);
        }
    }

    /// Asks the cache for the first `len` bytes of the buffer of the slot behind the next one.
    #[inline]
    pub fn prefetch_behind(&self, len: u32) {
        let slot = after(self.fill, self.access.memory.num_slots());
        self.access.memory.prefetch_buffer(slot, len.min(self.access.buf_size()));
    }

    /// Fills the next slot: `index` is the buffer's, as [`ClientRx::buffer`] gave it. The caller has room.
    #[inline]
    pub fn fill(&mut self, index: u32, len: u16, flags: u16) {
        self.access.memory.set_slot(self.fill, SlotWord::new(index, len, flags));
        self.fill = after(self.fill, self.access.memory.num_slots());
    }

    /// Passes over the next slot, whose buffer is not the client's: it gets buffer 0 and no bytes, as
    /// netmap's re-initialisation does, and receivers skip it.
    #[cold]
    pub fn skip(&mut self) {
        self.access.count_bad_slot();
        self.fill(0, 0, 0);
    }

    /// Passes over the next slot and leaves it its buffer: a frame does not start there after all.
    #[cold]
    pub fn pass(&mut self) {
        let index = self.access.memory.slot(self.fill).buf_idx();
        self.fill(index, 0, 0);
    }

    /// Publishes what was filled. True if the client waits for it and is to be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.fill == self.hwtail {
            return false;
        }
        self.show();
        self.access.hands.is_due()
    }

    /// Publishes what was accepted and what was filled, and does not ask yet whether the client waits.
    #[inline]
    pub fn show(&mut self) {
        self.hwtail = self.fill;
        self.access.hands.publish(self.hwcur, self.hwtail);
    }

    /// Whether the client waits for what was shown and is to be woken, after a full barrier of the caller's.
    pub fn is_asked(&mut self) -> bool {
        self.access.hands.is_asked()
    }
}
