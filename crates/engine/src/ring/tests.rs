//! Ring state against the rules: which side owns which slots, step by step, and clients that write nonsense.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use proptest::prelude::*;
use sidecore_abi::netmap::{SlotWord, RESERVED_BUFS};
use sidecore_abi::ring::{ask, publish, withdraw, End, Nonsense, RingStatus};

use super::region::{RingMemory, RingWords};
use super::{pipe_end, ClientRx, ClientTx, Geometry, PipeGate, Region};

fn region(slots: u32) -> Arc<Region> {
    let geometry =
        Geometry { rings: 2, slots, buf_size: 128, extra_bufs: 3, pipes: 1, ..Geometry::default() };
    Arc::new(Region::new(&geometry, "a-name-that-is-too-long").unwrap())
}

/// The client's side of ring `number`, in the same process.
struct Peer(RingMemory, RingWords);

impl Peer {
    fn new(region: &Arc<Region>, number: u32) -> Peer {
        Peer(region.ring(number), region.ring_words(number))
    }

    fn words(&self) -> &RingStatus {
        &self.1
    }

    fn give(&self, head: u32) {
        publish(&self.words().client.head, head);
    }

    fn indices(&self) -> (u32, u32) {
        let engine = &self.words().engine;
        (engine.hwcur.load(Ordering::Acquire), engine.hwtail.load(Ordering::Acquire))
    }

    fn resets(&self) -> (u32, Option<Nonsense>) {
        let engine = &self.words().engine;
        (engine.resets.load(Ordering::Acquire), Nonsense::from_code(engine.reason.load(Ordering::Relaxed)))
    }
}

#[test]
fn a_region_is_as_netmap_lays_it_out() {
    use sidecore_abi::netmap::{If, RingHead, Slot};
    let region = region(8);
    let info = *region.info();
    let mut bytes = vec![0; usize::try_from(info.total).unwrap()];
    rustix::io::pread(region.file(), &mut bytes[..], 0).unwrap();
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let i64_at = |at: usize| i64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..16], b"a-name-that-is-\0");
    assert_eq!((u32_at(16), u32_at(20)), (14, 1));
    assert_eq!([24, 28, 36, 40].map(u32_at), [2, 2, 1, 1]);
    let mut seen = vec![false; info.bufs as usize];
    let rings: Vec<i64> = (0..6).map(|i| i64_at(size_of::<If>() + 8 * i)).collect();
    // Order: TX, host TX, RX, host RX.
    assert_eq!((rings[2], rings[5]), (0, 0));
    for (i, &at) in [rings[0], rings[1], rings[3], rings[4]].iter().enumerate() {
        let at = usize::try_from(at).unwrap();
        let receives = i >= 2;
        assert_eq!(i64_at(at) + i64::try_from(at).unwrap(), i64::try_from(info.buf_pool).unwrap());
        assert_eq!((u32_at(at + 8), u32_at(at + 12)), (8, 128));
        assert_eq!(u32_at(at + 16), u32::try_from(i % 2).unwrap() | u32::from(receives) << 16);
        assert_eq!([20, 24, 28].map(|o| u32_at(at + o)), [0, 0, if receives { 0 } else { 7 }]);
        for slot in 0..8 {
            let at = at + size_of::<RingHead>() + slot * size_of::<Slot>();
            let index = u32_at(at);
            assert!((RESERVED_BUFS..info.bufs).contains(&index));
            assert!(!std::mem::replace(&mut seen[index as usize], true), "buffer {index} is in two slots");
            assert_eq!(u32_at(at + 4), 128);
        }
    }
    // What the rings do not have is in the list of extra buffers.
    let mut extra = u32_at(32);
    while extra != 0 {
        assert!(!std::mem::replace(&mut seen[extra as usize], true));
        extra = u32_at(usize::try_from(info.buf_pool).unwrap() + 128 * extra as usize);
    }
    assert_eq!(seen.iter().filter(|seen| !**seen).count(), RESERVED_BUFS as usize + 2 * 8);
    // What the pipe has stays, too: one set for each direction, in the sender's ring and in the receiver's.
    let ends = [End::Master, End::Slave].map(|end| {
        let pipe = pipe_end(&info, 0, end);
        let interface = usize::try_from(pipe.interface).unwrap();
        assert_eq!([24, 28, 36, 40].map(|o| u32_at(interface + o)), [1, 1, 1, 1]);
        [0, 2].map(|place| {
            let offset = i64_at(interface + size_of::<If>() + 8 * place);
            let ring = interface + usize::try_from(offset).unwrap();
            assert_eq!(u32_at(ring + 16), u32::from(place == 2) << 16);
            (0..8)
                .map(|slot| u32_at(ring + size_of::<RingHead>() + slot * size_of::<Slot>()))
                .collect::<Vec<_>>()
        })
    });
    assert_eq!((&ends[0][0], &ends[0][1]), (&ends[1][1], &ends[1][0]));
    for index in ends.iter().flat_map(|[tx, _]| tx) {
        assert!(!std::mem::replace(&mut seen[*index as usize], true));
    }
}

#[test]
fn rings_start_anew_with_the_buffers_that_they_have() {
    let region = region(8);
    let peer = Peer::new(&region, 0);
    let mut ring = ClientTx::new(&region, 0);
    peer.give(5);
    assert_eq!(ring.look(), 5);
    peer.0.set_slot(3, SlotWord::new(77, 60, 1));
    peer.words().client.ticket.store(9, Ordering::Relaxed);
    drop(ring);
    region.restart();
    assert_eq!(peer.0.slot(3), SlotWord::new(77, 0, 0));
    assert_eq!(peer.indices(), (0, 7));
    assert_eq!(ClientTx::new(&region, 0).look(), 0);
    assert_eq!(peer.words().client.ticket.load(Ordering::Relaxed), 0);
    region.restart_pipe(0);
}

#[test]
fn who_follows_a_ring_reads_what_is_given_up_and_writes_nothing() {
    let region = region(8);
    let number = region.pipe_ring(0, 0);
    let peer = Peer::new(&region, number);
    peer.give(2);
    let mut ring = ClientTx::follow(&region, number);
    assert_eq!((ring.first(), ring.look()), (2, 0));
    let before = peer.indices();
    peer.give(5);
    assert_eq!(ring.look(), 3);
    assert!(!ring.give_back(5));
    // Nonsense is nothing new, and resets no ring; what makes sense after it is.
    for wrong in [8, u32::MAX] {
        peer.give(wrong);
        assert_eq!(ring.look(), 0);
    }
    assert_eq!((peer.indices(), peer.resets()), (before, (0, None)));
    peer.give(1);
    assert_eq!(ring.look(), 4);
    // Where nonsense stands from the start, it begins at the start.
    peer.give(77);
    assert_eq!(ClientTx::follow(&region, number).first(), 0);
}

#[test]
fn slots_that_are_not_read_yet_are_kept() {
    let region = region(8);
    // A client's: it has released all seven, of which three were read.
    let (peer, mut ring) = (Peer::new(&region, 2), ClientRx::new(&region, 0));
    let gate = Arc::clone(&ring.gate);
    for _ in 0..7 {
        let (index, _) = ring.buffer(0).unwrap();
        ring.fill(index, 60, 0);
    }
    ring.publish();
    peer.give(7);
    gate.keep_from(3);
    gate.set(true);
    assert_eq!(ring.look(), 3);
    gate.keep_from(7);
    assert_eq!(ring.look(), 7);
    gate.keep_from(0);
    gate.set(false);
    assert_eq!(ring.look(), 7);
    // Nonsense keeps some or none, and no more than there are.
    gate.set(true);
    gate.keep_from(u32::MAX);
    assert!(ring.look() <= 7);
    // A pipe's: the sender reads it in the words, and is told when it waits.
    let (watched, sender) = (region.pipe_ring(0, 3), region.pipe_ring(0, 0));
    let (across, own) = (Peer::new(&region, watched), Peer::new(&region, sender));
    across.give(2);
    let mut gate = PipeGate::new(&region, watched, sender);
    let engine = &across.words().engine;
    assert_eq!([&engine.ticket, &engine.hwcur].map(|word| word.load(Ordering::Relaxed)), [1, 2]);
    assert!(!gate.keep_from(3));
    own.words().client.ticket.store(5, Ordering::Relaxed);
    assert!(gate.keep_from(4) && !gate.keep_from(5));
    assert_eq!(engine.hwcur.load(Ordering::Relaxed), 5);
    drop(gate);
    assert_eq!(engine.ticket.load(Ordering::Relaxed), 0);
}

#[test]
fn nobody_can_cut_a_region_short() {
    let region = region(8);
    assert!(rustix::fs::ftruncate(region.file(), 0).is_err());
    assert!(rustix::fs::ftruncate(region.file(), 1 << 30).is_err());
}

#[test]
fn sending_step_by_step() {
    let region = region(4);
    let (peer, mut ring) = (Peer::new(&region, 1), ClientTx::new(&region, 1));
    // All but one slot are the client's.
    assert_eq!(peer.indices(), (0, 3));
    assert_eq!(ring.look(), 0);
    peer.give(2);
    assert_eq!(ring.look(), 2);
    // Nothing moves before the slots are given back, and then hwtail is always one behind hwcur.
    assert_eq!(peer.indices(), (0, 3));
    ring.give_back(1);
    assert_eq!(peer.indices(), (1, 0));
    peer.give(0);
    assert_eq!(ring.look(), 3);
    ring.give_back(0);
    assert_eq!(peer.indices(), (0, 3));
    assert_eq!(ring.look(), 0);
    assert_eq!(ring.access.stats.describe(), "running");
}

#[test]
fn receiving_step_by_step() {
    let region = region(4);
    let (peer, mut ring) = (Peer::new(&region, 2), ClientRx::new(&region, 0));
    assert_eq!(peer.indices(), (0, 0));
    assert_eq!(ring.look(), 3);
    let (index, _) = ring.buffer(0).unwrap();
    ring.fill(index, 60, 0x100);
    assert_eq!(ring.look(), 2);
    assert_eq!(peer.indices(), (0, 0));
    ring.publish();
    assert_eq!(peer.indices(), (0, 1));
    assert_eq!(peer.0.slot(0), SlotWord::new(index, 60, 0x100));
    for _ in 0..2 {
        let (index, _) = ring.buffer(0).unwrap();
        ring.fill(index, 60, 0);
    }
    ring.publish();
    assert_eq!((peer.indices(), ring.look()), ((0, 3), 0));
    peer.give(2);
    assert_eq!(ring.look(), 2);
    assert_eq!(peer.indices(), (2, 3));
}

#[test]
fn nonsense_in_head_resets_to_the_engines_indices() {
    let region = region(8);
    let (peer, mut ring) = (Peer::new(&region, 0), ClientTx::new(&region, 0));
    peer.give(5);
    assert_eq!(ring.look(), 5);
    ring.give_back(3);
    // Back to before what was accepted.
    peer.give(4);
    assert_eq!(ring.look(), 0);
    assert_eq!(peer.resets(), (1, Some(Nonsense::HeadOutOfTurn)));
    assert_eq!(peer.indices(), (3, 2));
    // Against the indices that stand now the same value makes sense.
    assert_eq!(ring.look(), 1);
    assert_eq!(peer.resets().0, 1);
    // No slot at all: judged once.
    for (bad, count) in [(8, 2), (u32::MAX, 3)] {
        peer.give(bad);
        assert_eq!((ring.look(), ring.look()), (0, 0));
        assert_eq!(peer.resets(), (count, Some(Nonsense::HeadOutOfRing)));
    }
    // The client does as it was told, and goes on.
    peer.give(3);
    assert_eq!(ring.look(), 0);
    peer.give(2);
    assert_eq!(ring.look(), 7);
    assert_eq!(peer.resets().0, 3);
    assert_eq!(ring.access.stats.describe(), "running, 3 resets, the last for head_out_of_ring");
}

#[test]
fn a_receiver_cannot_release_what_it_does_not_have() {
    let region = region(8);
    let (peer, mut ring) = (Peer::new(&region, 3), ClientRx::new(&region, 1));
    let (index, _) = ring.buffer(0).unwrap();
    ring.fill(index, 60, 0);
    ring.publish();
    peer.give(2);
    assert_eq!(ring.look(), 6);
    assert_eq!(peer.resets(), (1, Some(Nonsense::HeadOutOfTurn)));
    peer.give(1);
    assert_eq!(ring.look(), 7);
    peer.give(0);
    assert_eq!(ring.look(), 7);
    assert_eq!(peer.resets().0, 2);
}

#[test]
fn buffers_of_others_are_refused() {
    let region = region(8);
    let bufs = region.info().bufs;
    let (peer, tx) = (Peer::new(&region, 0), ClientTx::new(&region, 0));
    for (word, good) in [
        (SlotWord::new(0, 60, 0), false),
        (SlotWord::new(1, 60, 0), false),
        (SlotWord::new(2, 128, 0), true),
        (SlotWord::new(2, 129, 0), false),
        (SlotWord::new(bufs - 1, 1, 0), true),
        (SlotWord::new(bufs, 1, 0), false),
        (SlotWord::new(u32::MAX, 1, 0), false),
    ] {
        assert_eq!(tx.buffer(word).is_some(), good, "{word:?}");
    }
    assert_eq!(tx.access.stats.bad_slots(), 5);
    let _ = peer;
    let (peer, mut rx) = (Peer::new(&region, 2), ClientRx::new(&region, 0));
    peer.0.set_slot(0, SlotWord::new(bufs, 0, 0));
    assert!(rx.buffer(0).is_none());
    rx.skip();
    assert_eq!(peer.0.slot(0), SlotWord::new(0, 0, 0));
    assert!(rx.buffer(0).is_some());
    assert_eq!(rx.access.stats.bad_slots(), 1);
}

#[test]
fn the_client_is_woken_once_for_each_ticket() {
    let region = region(8);
    let (peer, mut tx) = (Peer::new(&region, 0), ClientTx::new(&region, 0));
    peer.give(7);
    assert_eq!(tx.look(), 7);
    let words = peer.words();
    assert_eq!(ask(&words.client.ticket, 1, &words.engine.hwtail), 7);
    // A few slots are not worth waking for while more than half are under way; the rest is.
    assert!(!tx.give_back(2));
    assert!(tx.give_back(3));
    assert!(!tx.give_back(7));
    withdraw(&words.client.ticket);
    let (peer, mut rx) = (Peer::new(&region, 2), ClientRx::new(&region, 0));
    let words = peer.words();
    let mut receive = || {
        let (index, _) = rx.buffer(0).unwrap();
        rx.fill(index, 60, 0);
        rx.publish()
    };
    assert!(!receive());
    ask(&words.client.ticket, 9, &words.engine.hwtail);
    assert!(receive());
    assert!(!receive());
    ask(&words.client.ticket, 10, &words.engine.hwtail);
    assert!(receive());
    assert!(!rx.publish(), "nothing new");
}

proptest! {
    /// Whatever a client writes into `head`, the engine takes exactly the slots that a client that keeps the
    /// rules has given up, in order, and each once.
    #[test]
    fn a_hostile_sender_moves_nothing_but_its_own_slots(
        slots in 2u32..9, heads in prop::collection::vec((0u32..12, 0u32..4), 1..200),
    ) {
        let region = region(slots);
        let (peer, mut ring) = (Peer::new(&region, 0), ClientTx::new(&region, 0));
        // The model: the engine's hwcur and the accepted head, as distances that only grow.
        let (mut cur, mut accepted, mut resets, mut bad) = (0u64, 0u64, 0, None);
        let n = u64::from(slots);
        for (head, back) in heads {
            peer.give(head);
            let ahead = (accepted..cur + n).find(|at| at % n == u64::from(head));
            match ahead {
                Some(at) => { accepted = at; bad = None; }
                None if bad == Some(head) => {}
                None => { accepted = cur; resets += 1; bad = Some(head); }
            }
            let waiting = ring.look();
            prop_assert_eq!(u64::from(waiting), accepted - cur);
            prop_assert_eq!(peer.resets().0, resets);
            cur += u64::from(back.min(waiting));
            ring.give_back(u32::try_from(cur % n).unwrap());
            let expected = (u32::try_from(cur % n).unwrap(), u32::try_from((cur + n - 1) % n).unwrap());
            prop_assert_eq!(peer.indices(), expected);
        }
    }

    /// Whatever a client writes into `head`, the engine never fills a slot that the client has not released.
    #[test]
    fn a_hostile_receiver_is_never_overrun(
        slots in 2u32..9, heads in prop::collection::vec((0u32..12, 0u32..9), 1..200),
    ) {
        let region = region(slots);
        let (peer, mut ring) = (Peer::new(&region, 2), ClientRx::new(&region, 0));
        let (mut cur, mut tail) = (0u64, 0u64);
        let n = u64::from(slots);
        for (head, want) in heads {
            peer.give(head);
            if let Some(at) = (cur..=tail).find(|at| at % n == u64::from(head)) {
                cur = at;
            }
            let room = ring.look();
            prop_assert_eq!(u64::from(room), n - 1 - (tail - cur));
            for _ in 0..want.min(room) {
                let (index, _) = ring.buffer(0).unwrap();
                ring.fill(index, 60, 0);
                tail += 1;
            }
            ring.publish();
            prop_assert_eq!(peer.indices(), (u32::try_from(cur % n).unwrap(), u32::try_from(tail % n).unwrap()));
        }
    }
}
