//! Models of the protocols by which two sides hand indices over, checked by loom in every interleaving
//! and with every reordering that the memory model allows.
//!
//! Covered: that neither side sleeps while there is work (kicks, interrupts, the mailbox), and that who
//! sees an index sees what was written before it. The models repeat the order of the accesses in
//! `virtq::split` and `core::mailbox`; the accesses themselves go to raw shared memory there, which loom
//! cannot watch. Not covered: a peer that breaks the protocol (`tests/virtq.rs`, the fuzz targets), the
//! kernel's side of an eventfd, wrap-around of indices (property tests).

#![allow(clippy::unwrap_used)]

use loom::sync::atomic::{fence, AtomicBool, AtomicU16, AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// One direction of a split ring with EVENT_IDX (virtio 1.2 §2.7.7, §2.7.10): `idx` is written by the
/// producer, `event` by the consumer, `data` stands for descriptors and buffers.
#[derive(Default)]
struct Ring {
    data: AtomicU32,
    idx: AtomicU16,
    event: AtomicU16,
    notified: AtomicBool,
}

impl Ring {
    /// The producer: data, index, then the consumer's wish.
    fn produce(&self) {
        self.data.store(7, Ordering::Relaxed);
        self.idx.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        // The index moved from 0 to 1: the event 0 lies in between, the parked one does not.
        if self.event.load(Ordering::Relaxed) == 0 {
            self.notified.store(true, Ordering::Release);
        }
    }

    /// The consumer, which polls once, asks to be notified, looks once more and sleeps. True: it sleeps.
    fn consume(&self) -> bool {
        if self.sees_data() {
            return false;
        }
        self.event.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.sees_data()
    }

    fn sees_data(&self) -> bool {
        let there = self.idx.load(Ordering::Acquire) == 1;
        if there {
            assert_eq!(self.data.load(Ordering::Relaxed), 7, "the index was seen before the data");
        }
        there
    }
}

#[test]
fn nobody_sleeps_over_a_kick_or_an_interrupt() {
    loom::model(|| {
        let ring = Arc::new(Ring::default());
        // Parked half the index space away while the consumer polls.
        ring.event.store(0x8000, Ordering::Relaxed);
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.produce())
        };
        let sleeps = ring.consume();
        producer.join().unwrap();
        assert!(!sleeps || ring.notified.load(Ordering::Acquire), "asleep, and nobody will knock");
    });
}

/// The same without the fence on the consumer's side must fail, or the model proves nothing.
#[test]
#[should_panic(expected = "asleep, and nobody will knock")]
fn the_model_notices_a_missing_fence() {
    loom::model(|| {
        let ring = Arc::new(Ring::default());
        ring.event.store(0x8000, Ordering::Relaxed);
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.produce())
        };
        ring.event.store(0, Ordering::Relaxed);
        let sleeps = !ring.sees_data();
        producer.join().unwrap();
        assert!(!sleeps || ring.notified.load(Ordering::Acquire), "asleep, and nobody will knock");
    });
}

/// The mailbox: a letter posted at any time is read, or the eventfd is left readable.
#[test]
fn no_letter_is_slept_over() {
    loom::model(|| {
        let letters = Arc::new(Mutex::new(0u32));
        let raised = Arc::new(AtomicBool::new(false));
        let event = Arc::new(AtomicBool::new(false));
        let writer = {
            let (letters, raised, event) = (letters.clone(), raised.clone(), event.clone());
            thread::spawn(move || {
                *letters.lock().unwrap() += 1;
                raised.store(true, Ordering::Release);
                event.store(true, Ordering::Release);
            })
        };
        let mut read = 0;
        let mut open = || {
            if raised.swap(false, Ordering::AcqRel) {
                event.store(false, Ordering::Release);
            }
            let mut waiting = letters.lock().unwrap();
            let got = *waiting > 0;
            *waiting = waiting.saturating_sub(1);
            read += u32::from(got);
            got
        };
        // Two rounds of the core, then it would sleep.
        while open() {}
        while open() {}
        writer.join().unwrap();
        let wakes = event.load(Ordering::Acquire) || raised.load(Ordering::Acquire);
        assert!(read == 1 || wakes, "a letter was slept over");
    });
}

/// The e1000's status block (`sidecore_abi::csb`): the guest's tail and the device's wish for a kick; the device's
/// heads (descriptors that are done) and the guest's wish for an interrupt. Both ways the same protocol: one side
/// publishes and then looks at the other's wish, the other wishes and then looks at what was published.
#[derive(Default)]
struct Block {
    descriptor: AtomicU32,
    tail: AtomicU32,
    need_kick: AtomicU32,
    kicked: AtomicBool,
}

impl Block {
    /// `Block::set_tx_tail` of the native driver; for the other direction `RxRing::write_back` and
    /// `Block::wants_interrupt` of the device.
    fn publish(&self, fenced: bool) {
        self.descriptor.store(7, Ordering::Relaxed);
        self.tail.store(1, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        if self.need_kick.load(Ordering::Acquire) == 1 {
            self.kicked.store(true, Ordering::Release);
        }
    }

    /// `TxRing::want_kicks` of the device; for the other direction `E1000::service` of the driver. True: asleep.
    fn sleep(&self) -> bool {
        self.need_kick.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let moved = self.tail.load(Ordering::Acquire) == 1;
        assert!(
            !moved || self.descriptor.load(Ordering::Relaxed) == 7,
            "the tail was seen before its descriptor"
        );
        if moved {
            self.need_kick.store(0, Ordering::Release);
        }
        !moved
    }
}

fn status_block(fenced: bool) {
    loom::model(move || {
        let block = Arc::new(Block::default());
        let guest = {
            let block = Arc::clone(&block);
            thread::spawn(move || block.publish(fenced))
        };
        let asleep = block.sleep();
        guest.join().unwrap();
        assert!(!asleep || block.kicked.load(Ordering::Acquire), "asleep, and nobody will kick");
    });
}

#[test]
fn no_side_of_a_status_block_sleeps_over_work() {
    status_block(true);
}

#[test]
#[should_panic(expected = "asleep, and nobody will kick")]
fn the_model_notices_a_guest_without_a_fence() {
    status_block(false);
}
