//! Clients that write nonsense into their memory, while others use the switch.

use crate::rig;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::rig::{frame, number, until, Engine};
use sidecore_abi::netmap::{RingHead, SlotWord, NS_INDIRECT, NS_MOREFRAG};
use sidecore_abi::ring::{Answer, Ask, Request, RingStatus, MESSAGE};
use sidecore_engine::port::{Attachment, DropReason};
use sidecore_port::attach::{attach, Attached};
use sidecore_port::{AttachError, Interest, Port, Reset};

const SOON: Option<Duration> = Some(Duration::from_secs(60));

/// A client that minds no rules.
struct Rogue(Attached);

impl Rogue {
    fn new(engine: &Engine, port: usize) -> Rogue {
        Rogue(attach(&engine.name(port)).unwrap())
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        let info = self.0.map.info();
        assert!(offset % 4 == 0 && offset + 4 <= info.total);
        // SAFETY: inside the mapping and aligned; shared memory, accessed as atomics by the others, too.
        unsafe { &*self.0.map.base().add(offset as usize).cast() }
    }

    fn slot(&self, ring: u32, slot: u32) -> &AtomicU64 {
        let info = self.0.map.info();
        assert!(ring < info.tx_rings + info.rx_rings && slot < info.tx_slots);
        let at = info.ring_pool as usize + (ring * info.ring_size) as usize + size_of::<RingHead>();
        // SAFETY: as above: slots follow the ring's head.
        unsafe { &*self.0.map.base().add(at + 16 * slot as usize).cast() }
    }

    fn words(&self, ring: u32) -> &RingStatus {
        // SAFETY: as above: the words of the rings stand at `words`.
        unsafe {
            &*self.0.map.base().add(self.0.map.info().words as usize).cast::<RingStatus>().add(ring as usize)
        }
    }
}

fn drops(engine: &Engine, port: usize, reason: DropReason) -> u64 {
    engine.ports[port].counters.totals().drops[reason as usize]
}

#[test]
fn bad_slots_are_dropped_with_a_name() {
    let engine = Engine::sleepy(2);
    let mut rogue = Rogue::new(&engine, 0);
    let mut other = engine.attach(1);
    let bufs = rogue.0.map.info().bufs;
    let bad = [
        SlotWord::new(0, 60, 0),
        SlotWord::new(1, 60, 0),
        SlotWord::new(bufs, 60, 0),
        SlotWord::new(u32::MAX, 60, 0),
        SlotWord::new(2, 2049, 0),
        SlotWord::new(2, u16::MAX, 0),
        SlotWord::new(2, 60, NS_INDIRECT),
    ];
    for (i, word) in bad.iter().enumerate() {
        rogue.slot(0, i as u32).store(word.0, Ordering::Relaxed);
    }
    for (i, len) in (7..).zip([0, 1, 13]) {
        rogue.slot(0, i).store(SlotWord::new(2, len, 0).0, Ordering::Relaxed);
    }
    // A packet of two slots with one bad one, and one frame that is right.
    rogue.slot(0, 10).store(SlotWord::new(2, 60, NS_MOREFRAG).0, Ordering::Relaxed);
    rogue.slot(0, 11).store(SlotWord::new(bufs, 60, 0).0, Ordering::Relaxed);
    rogue.slot(0, 12).store(SlotWord::new(3, 60, 0).0, Ordering::Relaxed);
    rogue.0.tx[0].give(13, 13);
    assert!(other.wait(Interest::RECEIVE, SOON).unwrap());
    assert_eq!(other.rx[0].take().unwrap().len(), 60);
    assert!(other.rx[0].take().is_none());
    until("all is counted", || engine.ports[0].counters.totals().in_frames == 12);
    assert_eq!(drops(&engine, 0, DropReason::BadBuffer), bad.len() as u64 + 1);
    assert_eq!(drops(&engine, 0, DropReason::TooShort), 3);
    assert_eq!(rogue.0.tx[0].hwtail(), 12);
    assert_eq!(engine.attachments[0].status().queues[0].state, "running, 7 bad slots");
}

#[test]
fn endless_packets_are_cut_where_the_ring_ends() {
    let engine = Engine::sleepy(2);
    let mut rogue = Rogue::new(&engine, 0);
    let other = engine.attach(1);
    for slot in 0..1024 {
        rogue.slot(0, slot).store(SlotWord::new(2 + slot, 100, NS_MOREFRAG).0, Ordering::Relaxed);
    }
    rogue.0.tx[0].give(1023, 1023);
    until("it was dropped", || drops(&engine, 0, DropReason::TooManyPieces) == 1);
    until("the slots are back", || rogue.0.tx[0].hwtail() == 1022);
    // One that ends with what was given up is taken as it is (as VALE does), here: 65 slots are one too many.
    rogue.0.tx[0].give(64, 64);
    until("65 slots", || drops(&engine, 0, DropReason::TooManyPieces) == 2);
    engine.ports[0].set_mtu(9000);
    rogue.0.tx[0].give(128, 128);
    until("64 slots", || engine.ports[1].counters.totals().out_frames == 1);
    drop(other);
}

#[test]
fn a_bad_receive_slot_is_passed_over() {
    let engine = Engine::sleepy(2);
    let mut a = engine.attach(0);
    let rogue = Rogue::new(&engine, 1);
    rogue.slot(1, 0).store(SlotWord::new(1 << 30, 0, 0).0, Ordering::Relaxed);
    rogue.slot(1, 2).store(SlotWord::new(0, 0, 0).0, Ordering::Relaxed);
    for i in 0..3 {
        a.tx[0].push(&frame(0xff, 1, i, 60));
    }
    a.tx[0].sync().unwrap();
    until("they came", || rogue.0.rx[0].hwtail() == 5);
    let slots = [0, 1, 2, 3, 4].map(|i| SlotWord(rogue.slot(1, i).load(Ordering::Relaxed)));
    assert_eq!(slots.map(SlotWord::len), [0, 60, 0, 60, 60]);
    assert_eq!((slots[0].buf_idx(), slots[2].buf_idx()), (0, 0));
    assert_eq!(engine.ports[1].counters.totals().out_frames, 3);
}

#[test]
fn a_client_that_was_reset_goes_on() {
    let engine = Engine::sleepy(2);
    let mut b = engine.attach(1);
    let rogue = Rogue::new(&engine, 0);
    rogue.slot(0, 0).store(SlotWord::new(2, 60, 0).0, Ordering::Relaxed);
    let mut links = rogue.0;
    links.tx[0].give(5000, 5000);
    until("the reset", || links.tx[0].reset().is_some());
    assert!(engine.attachments[0].status().queues[0].state.contains("head_out_of_ring"));
    assert_eq!((links.tx[0].hwcur(), links.tx[0].hwtail()), (0, 1023));
    // One slot, from the engine's index on, is a frame again.
    links.tx[0].give(1, 1);
    assert!(b.wait(Interest::RECEIVE, SOON).unwrap());
    assert!(b.rx[0].take().is_some());
    drop(links);
    let mut a = loop {
        match Port::attach(&engine.name(0)) {
            Ok(port) => break port,
            Err(AttachError::InUse(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(a.tx[0].sync(), Ok::<(), Reset>(()));
}

#[test]
fn neighbours_lose_nothing_while_one_scribbles_everywhere() {
    let frames = 200_000u64;
    let engine = Engine::sleepy(3);
    let (mut a, mut b) = (engine.attach(0), engine.attach(1));
    let end = AtomicBool::new(false);
    let got = AtomicU64::new(0);
    // Frames of several slots could be long enough to be flooded and to fill the others' rings, which would
    // be a loss with a name, but a loss. It may send nothing longer than an Ethernet header.
    engine.ports[2].set_mtu(0);
    // The switch knows both before the rogue can flood it with other addresses.
    for (port, dst, src) in [(&mut a, 2, 1), (&mut b, 1, 2)] {
        port.tx[0].push(&frame(dst, src, u64::MAX, 60));
        port.tx[0].sync().unwrap();
    }
    until("both are known", || {
        engine.ports[0].counters.totals().out_frames + engine.ports[1].counters.totals().out_frames >= 2
    });
    std::thread::scope(|scope| {
        // Also when an assertion below fails: otherwise the scope would wait for the others for ever.
        let _over = Over(&end);
        scope.spawn(|| {
            let mut rogue = Rogue::new(&engine, 2);
            let info = *rogue.0.map.info();
            let mut state = 88_172_645_463_325_252u64;
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            while !end.load(Ordering::Relaxed) {
                let value = random();
                let small = if value & 1 == 0 { value as u32 % 1100 } else { (value >> 32) as u32 };
                // Its frames are short, so that it names no address of the others: it may be as loud as it
                // likes, but frames from another's address are the source guard's affair, not the ring's.
                match value >> 60 {
                    0..=5 => rogue.0.tx[0].give(small, small),
                    6..=8 => rogue.words(1).client.head.store(small, Ordering::Release),
                    9..=10 => rogue.words(0).client.ticket.store(small, Ordering::Relaxed),
                    11 => rogue.words(0).engine.hwcur.store(small, Ordering::Relaxed),
                    12..=13 => {
                        let len = (random() % 14) as u16;
                        let word = SlotWord::new(small, len | (value as u16 & 0xf000), random() as u16);
                        rogue
                            .slot((value >> 20) as u32 & 1, (value >> 32) as u32 % 1024)
                            .store(word.0, Ordering::Relaxed);
                    }
                    // Everything before the buffers, interface and ring heads included.
                    14 => rogue.word((random() % info.buf_pool) & !3).store(small, Ordering::Relaxed),
                    _ => rogue.word(info.words + ((random() % 512) & !3)).store(small, Ordering::Relaxed),
                }
            }
        });
        scope.spawn(|| {
            let mut next = 0;
            while next < frames && !end.load(Ordering::Relaxed) {
                let limit = frames.min(got.load(Ordering::Acquire) + 500);
                while next < limit && a.tx[0].push(&frame(2, 1, next, 60)) {
                    next += 1;
                }
                a.tx[0].sync().unwrap();
                // Slots that floods of the rogue fill have to go back.
                while a.rx[0].take().is_some() {}
                a.rx[0].sync().unwrap();
                std::thread::yield_now();
            }
        });
        let mut next = 0;
        while next < frames {
            assert!(b.wait(Interest::RECEIVE, SOON).unwrap(), "frame {next} did not come");
            while let Some(received) = b.rx[0].take() {
                let bytes = received.bytes();
                if bytes.len() < 60 || bytes[..6] != rig::mac(2) || number(&bytes) == u64::MAX {
                    continue;
                }
                assert_eq!(bytes, frame(2, 1, next, 60));
                next += 1;
            }
            b.rx[0].sync().unwrap();
            got.store(next, Ordering::Release);
        }
        until("the rogue was noticed", || {
            engine.attachments[2].status().queues.first().is_some_and(|queue| queue.state.contains("resets"))
        });
    });
}

/// Ends the test's other threads, however this one ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn nonsense_at_the_socket_ends_that_conversation_only() {
    let engine = Engine::sleepy(1);
    let port = engine.attach(0);
    let connect = || UnixStream::connect(engine.name(0)).unwrap();
    let mut answer = [0; MESSAGE];
    // Another protocol, an unknown request, half a message, nothing at all.
    let mut alien = connect();
    alien.write_all(&[b'x'; MESSAGE]).unwrap();
    alien.read_exact(&mut answer).unwrap();
    assert_eq!(Answer::from_bytes(&answer).unwrap().errno, 71, "EPROTO");
    assert_eq!(alien.read(&mut answer).unwrap(), 0);
    let mut unknown = connect();
    unknown.write_all(&Request { ask: 99, ..Request::new(Ask::Info, 0) }.to_bytes()).unwrap();
    unknown.read_exact(&mut answer).unwrap();
    assert_ne!(Answer::from_bytes(&answer).unwrap().errno, 0);
    let idle: Vec<_> = (0..20).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(&[0; MESSAGE / 2]).unwrap();
    // Requests in two parts and in one go are answered all the same.
    let mut slow = connect();
    let request = Request::new(Ask::Info, 0).to_bytes();
    for part in [&request[..1], &request[1..100], &request[100..], &request[..]] {
        slow.write_all(part).unwrap();
    }
    for _ in 0..2 {
        slow.read_exact(&mut answer).unwrap();
        assert_eq!(Answer::from_bytes(&answer).unwrap().errno, 0);
    }
    assert!(port.is_attached());
    drop((idle, half));
}
