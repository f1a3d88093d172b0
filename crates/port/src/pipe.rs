//! A pipe: two clients that exchange slots in one region, without the engine.
//!
//! Theory of operation. What one end sends in its ring T the other receives in its ring R; both have the same
//! slots and share one set of buffers. To send is to copy slots from T to R, at the same places, and to move
//! T's `head`; to release is to move R's `head`, and where the receiver exchanged a buffer (`NS_BUF_CHANGED`)
//! to copy that slot back from R to T. So `head` of R is to the sender what the engine's `hwcur` is
//! elsewhere, and `head` of T to the receiver what `hwtail` is. Nothing is ever dropped: a sender whose ring
//! is full waits.
//!
//! Slots are compared before they are written. Frames of one size that go round in the same buffers then cost
//! no line that passes from core to core, but for the two indices.
//!
//! The other end is trusted with our frames, since it shares our memory, but not with our indices: one that
//! is out of the ring counts as one that has not moved.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use sidecore_abi::netmap::{SlotWord, NS_BUF_CHANGED, NS_INDIRECT, NS_MOREFRAG};
use sidecore_abi::ring::{across, due, observe, publish};

use crate::map::Map;

/// The ring across.
#[derive(Debug)]
pub(crate) struct Far {
    number: u32,
    wake: OwnedFd,
    answered: u32,
    /// Our `head` as published.
    given: u32,
}

/// Whether the ring of a pipe with this number is one on which its end sends.
fn sends(number: u32) -> bool {
    number % 2 == 0
}

impl Far {
    /// What is across ring `number`, whose owner `wake` wakes.
    pub(crate) fn new(map: &Map, number: u32, wake: OwnedFd) -> Far {
        let given = observe(&map.words(number).client.head);
        Far { number: across(number), wake, answered: 0, given }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Our `head` as published.
    pub(crate) fn given(&self, num_slots: u32) -> u32 {
        self.given.min(num_slots - 1)
    }

    /// Where the ring across is, or where we are if that makes no sense; a sender's is no further than the
    /// pipe's monitors.
    #[inline]
    fn there(&self, map: &Map, number: u32) -> u32 {
        let n = map.num_slots(self.number);
        let head = observe(&map.words(self.number).client.head);
        let head = if head < n { head } else { self.given };
        if !sends(number) {
            return head;
        }
        [number, self.number].into_iter().fold(head, |there, ring| {
            let engine = &map.words(ring).engine;
            if observe(&engine.ticket) == 0 {
                return there;
            }
            let at = observe(&engine.hwcur);
            let pending =
                |from: u32| if self.given >= from { self.given - from } else { self.given + n - from };
            if at < n && pending(at) > pending(there) {
                at
            } else {
                there
            }
        })
    }

    #[inline]
    pub(crate) fn hwcur(&self, map: &Map, number: u32) -> u32 {
        if sends(number) {
            self.there(map, number)
        } else {
            self.given
        }
    }

    #[inline]
    pub(crate) fn hwtail(&self, map: &Map, number: u32) -> u32 {
        let there = self.there(map, number);
        match (sends(number), there) {
            (true, 0) => map.num_slots(number) - 1,
            (true, slot) => slot - 1,
            (false, slot) => slot,
        }
    }

    /// Hands the slots before `head` over, of those sent only whole frames.
    pub(crate) fn give(&mut self, map: &Map, number: u32, head: u32) {
        let to = if sends(number) { self.send(map, number, head) } else { self.release(map, number, head) };
        self.given = to;
        let words = map.words(number);
        words.client.cur.store(to, Ordering::Relaxed);
        publish(&words.client.head, to);
        if due(&map.words(self.number).client.ticket, &mut self.answered) {
            // Fails only when the counter is full, and then it has been woken.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Copies slots across; returns where the last whole frame ends.
    fn send(&self, map: &Map, number: u32, head: u32) -> u32 {
        let (from, to) = (map.slots(number), map.slots(self.number));
        let mut whole = self.given;
        // At most two runs of slots, the second from the start of the ring.
        for run in runs(self.given, head, map.num_slots(number)) {
            let words = 2 * run.start as usize..2 * run.end as usize;
            let pairs = from[words.clone()].chunks_exact(2).zip(to[words].chunks_exact(2));
            for (slot, (from, to)) in run.zip(pairs) {
                for (from, to) in from.iter().zip(to) {
                    let word = from.load(Ordering::Relaxed);
                    if to.load(Ordering::Relaxed) != word {
                        to.store(word, Ordering::Relaxed);
                    }
                }
                if SlotWord(from[0].load(Ordering::Relaxed)).flags() & NS_MOREFRAG == 0 {
                    whole = slot + 1;
                }
            }
        }
        if whole == map.num_slots(number) {
            0
        } else {
            whole
        }
    }

    /// Copies exchanged buffers back.
    fn release(&self, map: &Map, number: u32, head: u32) -> u32 {
        let (from, to) = (map.slots(number), map.slots(self.number));
        for run in runs(self.given, head, map.num_slots(number)) {
            let words = 2 * run.start as usize..2 * run.end as usize;
            for (from, to) in from[words.clone()].iter().zip(&to[words]).step_by(2) {
                let word = SlotWord(from.load(Ordering::Relaxed));
                if word.flags() & NS_BUF_CHANGED != 0 {
                    to.store(word.0, Ordering::Relaxed);
                    let flags = word.flags() & !(NS_BUF_CHANGED | NS_INDIRECT);
                    from.store(SlotWord::new(word.buf_idx(), word.len(), flags).0, Ordering::Relaxed);
                }
            }
        }
        head
    }
}

/// The slots from `from` on to `to`, as runs that do not wrap.
#[inline]
fn runs(from: u32, to: u32, n: u32) -> [Range<u32>; 2] {
    if from <= to {
        [from..to, 0..0]
    } else {
        [from..n, 0..to]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use proptest::prelude::*;
    use sidecore_abi::ring::End;
    use sidecore_engine::ring::{pipe_end, Geometry, Region};

    use super::*;
    use crate::link::Link;
    use crate::map::{load, store};

    const SLOTS: u32 = 8;

    fn event() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
    }

    /// Master's TX ring and slave's RX ring of pipe 1, each on a mapping of its own.
    fn ends() -> (Region, Link, Link) {
        let geometry = Geometry { slots: SLOTS, buf_size: 64, pipes: 2, ..Geometry::default() };
        let region = Region::new(&geometry, "pipes").unwrap();
        let file = region.file().try_clone_to_owned().unwrap();
        let link = |end: End, ring: usize| {
            let map = Arc::new(Map::new(&file, pipe_end(region.info(), 1, end)).unwrap());
            Link::of_pipe(&map, end.rings()[ring], event(), event())
        };
        let (tx, rx) = (link(End::Master, 0), link(End::Slave, 1));
        (region, tx, rx)
    }

    fn slot(link: &Link, at: u32) -> SlotWord {
        load(link.map().slots(link.number()), at)
    }

    fn put(link: &Link, at: u32, word: SlotWord) {
        store(link.map().slots(link.number()), at, word);
    }

    proptest! {
        /// Against a queue: what is sent arrives in order, whole frames at a time, in the buffers in which it
        /// was sent; buffers that the receiver exchanges come back; no buffer is ever in two hands.
        #[test]
        fn slots_go_across_and_come_back(
            steps in prop::collection::vec((any::<bool>(), 0u32..SLOTS, prop::collection::vec(any::<(bool, bool)>(), 8)), 1..80),
        ) {
            let (_region, mut tx, mut rx) = ends();
            let (mut head, mut taken, mut len) = (0, 0, 60u16);
            let mut spare = 2;
            let mut model: VecDeque<SlotWord> = VecDeque::new();
            // Slots of a frame that has no end yet: not visible at the other side.
            let mut open: VecDeque<SlotWord> = VecDeque::new();
            for (sends, count, choices) in steps {
                if sends {
                    for (more, _) in choices.iter().take(count as usize) {
                        if head == tx.hwtail() {
                            break;
                        }
                        let buf = slot(&tx, head).buf_idx();
                        len = if len == 64 { 60 } else { len + 1 };
                        let word = SlotWord::new(buf, len, if *more { NS_MOREFRAG } else { 0 });
                        put(&tx, head, word);
                        open.push_back(word);
                        if !more {
                            model.append(&mut open);
                        }
                        head = (head + 1) % SLOTS;
                    }
                    tx.give(head, head);
                } else {
                    for (_, exchange) in choices.iter().take(count as usize) {
                        prop_assert_eq!(rx.hwtail() == taken, model.is_empty());
                        let Some(expected) = model.pop_front() else { break };
                        let got = slot(&rx, taken);
                        prop_assert_eq!(got, expected);
                        if *exchange {
                            put(&rx, taken, SlotWord::new(spare, 64, NS_BUF_CHANGED));
                            spare = got.buf_idx();
                        }
                        taken = (taken + 1) % SLOTS;
                    }
                    rx.give(taken, taken);
                }
                prop_assert_eq!(tx.hwcur(), taken);
                prop_assert_eq!(rx.hwcur(), taken);
            }
            // Free slots and waiting ones have all buffers but the receiver's spare.
            let mut bufs: Vec<u32> = (0..SLOTS).map(|at| slot(&tx, at).buf_idx()).chain([spare]).collect();
            bufs.sort_unstable();
            bufs.dedup();
            prop_assert_eq!(bufs.len(), SLOTS as usize + 1);
        }
    }

    #[test]
    fn an_end_goes_on_where_the_last_one_left_it() {
        let (region, mut tx, mut rx) = ends();
        for at in 0..3 {
            put(&tx, at, SlotWord::new(slot(&tx, at).buf_idx(), 60, 0));
        }
        tx.give(3, 3);
        rx.give(1, 1);
        let map = Arc::clone(rx.map());
        drop((tx, rx));
        let rx = Link::of_pipe(&map, 3, event(), event());
        assert_eq!((rx.start(), rx.hwtail()), (1, 3));
        let tx = Link::of_pipe(&map, 0, event(), event());
        assert_eq!((tx.start(), tx.hwtail()), (3, 0));
        region.restart_pipe(1);
        assert_eq!((rx.hwtail(), tx.hwcur()), (0, 0));
    }

    #[test]
    fn an_index_out_of_the_ring_moves_nothing() {
        let (_region, mut tx, rx) = ends();
        tx.give(3, 3);
        for wrong in [SLOTS, u32::MAX] {
            publish(&tx.map().words(3).client.head, wrong);
            assert_eq!((tx.hwcur(), tx.hwtail()), (3, 2));
            publish(&tx.map().words(0).client.head, wrong);
            assert_eq!(rx.hwtail(), 0);
        }
    }

    #[test]
    fn who_waits_is_woken_once() {
        let (_region, mut tx, mut rx) = ends();
        let wake = event();
        let far = Far::new(tx.map(), 0, wake.try_clone().unwrap());
        tx.set_far(far);
        let woken = || {
            let mut count = [0; 8];
            rustix::io::read(&wake, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        assert_eq!(rx.arm(), 0);
        for at in 0..3 {
            put(&tx, at, SlotWord::new(slot(&tx, at).buf_idx(), 60, 0));
            tx.give(at + 1, at + 1);
        }
        assert_eq!(woken(), 1);
        rx.disarm();
        tx.give(3, 3);
        assert_eq!(woken(), 0);
        assert_eq!(rx.arm(), 3);
    }
}
