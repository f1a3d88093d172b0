//! Pipes with guests at both ends, played by hand: blocks in a memory file, slots in the pipe's.
#![allow(clippy::cast_possible_truncation)]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_abi::netmap::{SlotWord, NS_BUF_CHANGED, NS_INDIRECT, NS_MOREFRAG};

use super::*;
use crate::mem::{GuestMap, RegionSpec};
use crate::observe::CounterFile;
use crate::port::{Port, PortId};
use crate::ring::Block;
use crate::util::fault::Fault;

const SLOTS: u32 = 8;
/// Where a guest's block of either kind is, and the host's.
const SENDS: u64 = 0;
const RECEIVES: u64 = 64;
const HOST: u64 = 0x1000;

fn geometry() -> Geometry {
    Geometry { slots: SLOTS, buf_size: 64, ..Geometry::default() }.of_pipe()
}

/// A guest's memory.
struct Guest {
    file: File,
    map: Arc<GuestMap>,
}

impl Guest {
    fn new() -> Guest {
        let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x2000).unwrap();
        let file: File = fd.into();
        let spec =
            RegionSpec { gpa: 0, size: 0x2000, user_addr: 0, offset: 0, file: file.try_clone().unwrap() };
        Guest { map: Arc::new(GuestMap::new(&[spec]).unwrap()), file }
    }

    fn block(&self, at: u64) -> Option<Block> {
        Block::find(&self.map, [at, HOST + at], 0)
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn set_head(&self, at: u64, head: u32) {
        self.file.write_all_at(&head.to_le_bytes(), at).unwrap();
    }

    /// The host's two indices.
    fn told(&self, at: u64) -> [u32; 2] {
        [self.word(HOST + at), self.word(HOST + at + 4)]
    }
}

/// Slot `slot` of the ring on which `region` sends, or receives.
fn slot_at(region: &Region, receives: bool, slot: u32) -> u64 {
    let info = region.info();
    info.ring_pool + u64::from(receives) * u64::from(info.ring_size) + 256 + 16 * u64::from(slot)
}

fn slot(region: &Region, receives: bool, at: u32) -> SlotWord {
    let file = File::from(region.file().try_clone_to_owned().unwrap());
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, slot_at(region, receives, at)).unwrap();
    SlotWord(u64::from_le_bytes(bytes))
}

fn put(region: &Region, receives: bool, at: u32, word: SlotWord) {
    let file = File::from(region.file().try_clone_to_owned().unwrap());
    file.write_all_at(&word.0.to_le_bytes(), slot_at(region, receives, at)).unwrap();
}

struct Ear {
    port: Port,
    raised: AtomicU64,
}

impl Far for Ear {
    fn port(&self) -> &Port {
        &self.port
    }

    fn raise(&self) -> u64 {
        self.raised.fetch_add(1, Ordering::Relaxed);
        1
    }
}

/// One direction of a pipe, both of whose guests have begun.
struct Rig {
    ends: [Arc<End>; 2],
    regions: [Arc<Region>; 2],
    sender: Guest,
    receiver: Guest,
    sending: Sending,
    receiving: Receiving,
    ear: Arc<Ear>,
    _file: CounterFile,
}

impl Rig {
    fn new(name: &str) -> Rig {
        let ends = [(); 2].map(|()| End::join(name, &geometry(), false).unwrap());
        let regions = ends.each_ref().map(|end| end.enter().unwrap());
        let (sender, receiver) = (Guest::new(), Guest::new());
        let [first, second] = &ends;
        let (mut sending, mut receiving) = (first.sending(0).unwrap(), second.receiving(0).unwrap());
        let file = CounterFile::anonymous().unwrap();
        let counters = file.open_slot(PortId(1), "receiver");
        let port = Port::new(PortId(1), "receiver", counters, 1500).unwrap();
        let ear = Arc::new(Ear { port, raised: AtomicU64::new(0) });
        sending.set_block(sender.block(SENDS), true);
        receiving.set_block(receiver.block(RECEIVES), true);
        receiving.show(Arc::clone(&ear) as Arc<dyn Far>);
        Rig { ends, regions, sender, receiver, sending, receiving, ear, _file: file }
    }

    fn pass(&mut self) -> Moved {
        self.sending.pass(usize::MAX)
    }
}

proptest! {
    /// Against a queue: what is sent arrives in order, whole frames at a time, in the buffers in which it was
    /// sent; buffers that the receiver exchanges come back; no buffer is ever in two hands.
    #[test]
    fn slots_go_across_and_come_back(
        steps in prop::collection::vec((any::<bool>(), 0u32..SLOTS, prop::collection::vec(any::<(bool, bool)>(), 8), 0usize..4), 1..60),
    ) {
        let mut rig = Rig::new("model");
        let [from, to] = rig.regions.clone();
        let (mut head, mut taken, mut len) = (0, 0, 60u16);
        // One of the other direction's.
        let mut spare = 2 + SLOTS;
        let mut model: VecDeque<SlotWord> = VecDeque::new();
        let mut open: VecDeque<SlotWord> = VecDeque::new();
        let (mut given, mut counted) = (0u64, 0u64);
        for (sends, count, choices, limit) in steps {
            if sends {
                let [_, tail] = rig.sender.told(SENDS);
                for (more, _) in choices.iter().take(count as usize) {
                    if head == tail {
                        break;
                    }
                    let buf = slot(&from, false, head).buf_idx();
                    len = if len == 64 { 60 } else { len + 1 };
                    let word = SlotWord::new(buf, len, if *more { NS_MOREFRAG } else { 0 });
                    put(&from, false, head, word);
                    open.push_back(word);
                    if !more {
                        model.append(&mut open);
                        given += 1;
                    }
                    head = (head + 1) % SLOTS;
                }
                rig.sender.set_head(SENDS, head);
            } else {
                let [_, tail] = rig.receiver.told(RECEIVES);
                for (_, exchange) in choices.iter().take(count as usize) {
                    if taken == tail {
                        break;
                    }
                    let got = slot(&to, true, taken);
                    prop_assert_eq!(Some(got), model.pop_front());
                    if *exchange {
                        put(&to, true, taken, SlotWord::new(spare, 64, NS_BUF_CHANGED));
                        spare = got.buf_idx();
                    }
                    taken = (taken + 1) % SLOTS;
                }
                rig.receiver.set_head(RECEIVES, taken);
            }
            let moved = rig.sending.pass(limit);
            prop_assert!(moved.frames <= limit && moved.bad == 0);
            counted += moved.frames as u64;
            prop_assert!(counted <= given);
        }
        let moved = rig.pass();
        prop_assert_eq!(counted + moved.frames as u64, given);
        prop_assert!(!rig.sending.has_news());
        prop_assert_eq!(rig.sender.told(SENDS), [taken, (taken + SLOTS - 1) % SLOTS]);
        // What is left is what was never taken.
        let [_, tail] = rig.receiver.told(RECEIVES);
        while taken != tail {
            prop_assert_eq!(Some(slot(&to, true, taken)), model.pop_front());
            taken = (taken + 1) % SLOTS;
        }
        prop_assert!(model.is_empty());
        let mut bufs: Vec<u32> = (0..SLOTS).map(|at| slot(&from, false, at).buf_idx()).chain([spare]).collect();
        bufs.sort_unstable();
        bufs.dedup();
        prop_assert_eq!(bufs.len(), SLOTS as usize + 1);
        prop_assert_eq!(rig.ear.port.fault.get(), None);
    }

    /// Whatever either end writes into blocks and slots: the receiver is never shown a slot that is not in
    /// the pipe, and each index that either is told is one of its ring.
    #[test]
    fn nothing_leads_out_of_the_pipe(
        steps in prop::collection::vec((0u8..5, any::<u64>(), 0u32..SLOTS + 3), 1..60),
    ) {
        let mut rig = Rig::new("lies");
        let [from, to] = rig.regions.clone();
        for (what, word, head) in steps {
            match what {
                0 => put(&from, false, word as u32 % SLOTS, SlotWord(word)),
                1 => put(&to, true, word as u32 % SLOTS, SlotWord(word)),
                2 => rig.sender.set_head(SENDS, head),
                3 => rig.receiver.set_head(RECEIVES, head),
                _ => {
                    let [_, before] = rig.receiver.told(RECEIVES);
                    let moved = rig.pass();
                    let [_, after] = rig.receiver.told(RECEIVES);
                    prop_assert!(after < SLOTS);
                    prop_assert!(rig.sender.told(SENDS).iter().all(|index| *index < SLOTS));
                    prop_assert!(moved.bad as usize <= moved.frames && moved.frames < SLOTS as usize);
                    let mut at = before;
                    while at != after {
                        let word = slot(&to, true, at);
                        prop_assert!(word.buf_idx() < to.info().bufs && u32::from(word.len()) <= to.info().buf_size);
                        at = (at + 1) % SLOTS;
                    }
                    if rig.sending.is_lost() {
                        rig.sending.set_block(rig.sender.block(SENDS), true);
                    }
                    if let Some(fault) = rig.ear.port.fault.get() {
                        prop_assert_eq!(fault, Fault::BadHead);
                        rig.ear.port.fault.clear();
                        rig.receiving.set_block(rig.receiver.block(RECEIVES), true);
                        rig.receiving.show(Arc::clone(&rig.ear) as Arc<dyn Far>);
                    }
                }
            }
        }
    }
}

#[test]
fn while_no_receiver_is_there_nothing_moves_and_nothing_is_lost() {
    let mut rig = Rig::new("absent");
    rig.receiving.hide();
    rig.sender.set_head(SENDS, 3);
    assert_eq!((rig.pass().frames, rig.sending.has_news(), rig.sending.waits()), (0, false, true));
    rig.receiving.show(Arc::clone(&rig.ear) as Arc<dyn Far>);
    assert!(rig.sending.has_news());
    let moved = rig.pass();
    assert_eq!((moved.frames, rig.receiver.told(RECEIVES)), (3, [0, 3]));
    // It wanted to be told, as an end that begins does.
    assert_eq!(rig.ear.raised.load(Ordering::Relaxed), 1);
    let (_, outcome) = moved.out.unwrap();
    assert_eq!((outcome.frames, outcome.interrupts), (3, 1));
}

#[test]
fn a_frame_without_an_end_keeps_no_core_busy() {
    let mut rig = Rig::new("open");
    put(&rig.regions[0], false, 0, SlotWord::new(2, 60, NS_MOREFRAG));
    rig.sender.set_head(SENDS, 1);
    assert!(rig.sending.has_news());
    assert_eq!((rig.pass().frames, rig.sending.has_news()), (0, false));
    rig.sender.set_head(SENDS, 2);
    assert_eq!((rig.pass().frames, rig.receiver.told(RECEIVES)), (1, [0, 2]));
}

#[test]
fn slots_that_are_none_pass_without_bytes_and_are_counted() {
    let mut rig = Rig::new("bad");
    let bufs = rig.regions[0].info().bufs;
    let words = [(0, 60, 0), (bufs, 60, 0), (2, 65, 0), (2, 60, NS_INDIRECT), (3, 60, 0)];
    for (at, (buf, len, flags)) in (0..).zip(words) {
        put(&rig.regions[0], false, at, SlotWord::new(buf, len, flags));
    }
    rig.sender.set_head(SENDS, 5);
    let moved = rig.pass();
    assert_eq!((moved.frames, moved.bad, moved.bytes), (5, 4, 60));
    assert_eq!(moved.out.unwrap().1.frames, 1);
    let got: Vec<_> = (0..5).map(|at| slot(&rig.regions[1], true, at)).collect();
    assert!(got[..4].iter().all(|word| *word == SlotWord::new(0, 0, 0)), "{got:?}");
    assert_eq!(got[4], SlotWord::new(3, 60, 0));
}

/// A look between two visits finds a `head` that is none, and the visit one that is a slot of the receiver's.
#[test]
fn what_the_receiver_has_is_never_given_up_again() {
    let mut rig = Rig::new("flips");
    rig.sender.set_head(SENDS, 5);
    rig.pass();
    rig.receiver.set_head(RECEIVES, 2);
    rig.pass();
    rig.sender.set_head(SENDS, SLOTS);
    assert!(!rig.sending.has_news() && rig.sending.is_lost());
    rig.sender.set_head(SENDS, 3);
    assert_eq!((rig.pass().frames, rig.receiver.told(RECEIVES)), (0, [2, 5]));
    assert_eq!(rig.ear.port.fault.get(), None);
    // An end that begins again begins behind it.
    rig.sending.set_block(rig.sender.block(SENDS), true);
    assert_eq!(rig.sender.word(SENDS), 5);
    rig.sender.set_head(SENDS, 1);
    assert_eq!((rig.pass().frames, rig.receiver.told(RECEIVES)), (4, [2, 1]));
}

#[test]
fn an_end_that_begins_again_goes_on_where_it_was() {
    let mut rig = Rig::new("again");
    rig.sender.set_head(SENDS, 5);
    rig.pass();
    rig.receiver.set_head(RECEIVES, 2);
    rig.pass();
    assert_eq!(rig.sender.told(SENDS), [2, 1]);
    // A head that goes back: what the receiver has stays the receiver's.
    rig.sender.set_head(SENDS, 3);
    rig.pass();
    assert!(rig.sending.is_lost());
    rig.sending.set_block(rig.sender.block(SENDS), true);
    assert_eq!((rig.sender.word(SENDS), rig.sender.told(SENDS)), (5, [2, 1]));
    // Another VMM with other blocks.
    let other = Guest::new();
    rig.receiving = rig.ends[1].receiving(0).unwrap();
    rig.receiving.set_block(other.block(RECEIVES), true);
    rig.receiving.show(Arc::clone(&rig.ear) as Arc<dyn Far>);
    assert_eq!((other.word(RECEIVES), other.told(RECEIVES)), (2, [2, 5]));
    rig.sender.set_head(SENDS, 6);
    assert_eq!((rig.pass().frames, other.told(RECEIVES)), (1, [2, 6]));
    // The one before is not touched any more.
    assert_eq!(rig.receiver.told(RECEIVES), [2, 5]);
}

#[test]
fn the_memory_is_new_when_nobody_was_there() {
    let ends = [(); 2].map(|()| End::join("fresh", &geometry(), false).unwrap());
    let inode = |region: &Region| rustix::fs::fstat(region.file().as_fd()).unwrap().st_ino;
    let first = ends[0].enter().unwrap();
    let mark = SlotWord::new(7, 7, 0);
    put(&first, false, 0, mark);
    // While the other end is there an end that comes finds what is.
    assert_eq!(inode(&ends[1].enter().unwrap()), inode(&first));
    ends[0].leave();
    ends[0].restart();
    assert_eq!(inode(&ends[0].enter().unwrap()), inode(&first));
    assert_eq!(slot(&first, false, 0), mark);
    ends[1].leave();
    ends[0].restart();
    assert_ne!(slot(&first, false, 0), mark);
    ends[0].leave();
    assert_ne!(inode(&ends[1].enter().unwrap()), inode(&first));
}

#[test]
fn a_pipe_has_two_ends_of_the_same_rings() {
    let first = End::join("ends", &geometry(), false).unwrap();
    let other = Geometry { slots: 16, ..geometry() };
    assert!(End::join("ends", &other, false).unwrap_err().to_string().contains("slots"));
    let program = End::join("ends", &geometry(), true).unwrap();
    assert_eq!((first.side(), program.side()), (Side::First, Side::Second));
    assert!(End::join("ends", &geometry(), false).unwrap_err().to_string().contains("two ends"));
    drop(first);
    assert!(End::join("ends", &geometry(), true).unwrap_err().to_string().contains("program"));
    drop(program);
    assert!(End::join("ends", &other, true).is_ok());
}

#[test]
fn another_process_finds_the_ways_where_they_were() {
    let mut rig = Rig::new("adopted");
    rig.sender.set_head(SENDS, 5);
    rig.pass();
    rig.receiver.set_head(RECEIVES, 2);
    rig.pass();
    let file = || rig.regions[0].file().try_clone_to_owned().unwrap();
    // As the pipe of another daemon: of another name here.
    let ends = [(); 2].map(|()| End::join("adopted by", &geometry(), false).unwrap());
    // The second port had the first end.
    let region = ends[1].adopt(file(), Side::First).unwrap();
    assert_eq!((ends[0].side(), ends[1].side()), (Side::Second, Side::First));
    ends[0].adopt(file(), Side::Second).unwrap();
    assert!(ends[0].adopt(file(), Side::First).is_err());
    let mut sending = ends[1].sending(0).unwrap();
    let mut receiving = ends[0].receiving(0).unwrap();
    sending.set_block(rig.sender.block(SENDS), false);
    receiving.set_block(rig.receiver.block(RECEIVES), false);
    receiving.show(Arc::clone(&rig.ear) as Arc<dyn Far>);
    put(&region, false, 5, SlotWord::new(2, 61, 0));
    rig.sender.set_head(SENDS, 6);
    rig.receiver.set_head(RECEIVES, 4);
    assert_eq!(sending.pass(8).frames, 1);
    assert_eq!((rig.sender.told(SENDS), rig.receiver.told(RECEIVES)), ([4, 3], [4, 6]));
}
