//! Models of the protocols by which two sides hand indices over, checked by loom in every interleaving
//! and with every reordering that the memory model allows.
//!
//! Covered: that neither side sleeps while there is work (kicks, interrupts, the mailbox), and that a side
//! that sees an index sees what was written before it. The models repeat the order of the accesses in
//! `virtq::split`, `core::mailbox` and `core::registry`; the accesses themselves go to raw shared memory
//! there, which loom cannot watch. Not covered: a peer that breaks the protocol (`tests/virtq.rs`, the fuzz
//! targets), the kernel's side of an eventfd, wrap-around of indices (property tests).

#![allow(clippy::unwrap_used)]

use loom::sync::atomic::{fence, AtomicBool, AtomicU16, AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// One direction of a split ring with EVENT_IDX (virtio 1.2 §2.7.7, §2.7.10): `idx` is written by the
/// producer, `event` by the consumer, `data` stands for descriptors and buffers.
#[derive(Default)]
struct SplitRing {
    data: AtomicU32,
    idx: AtomicU16,
    event: AtomicU16,
    notified: AtomicBool,
}

impl SplitRing {
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
        let ring = Arc::new(SplitRing::default());
        // Parked half the index space away while the consumer polls.
        ring.event.store(0x8000, Ordering::Relaxed);
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.produce())
        };
        let sleeps = ring.consume();
        producer.join().unwrap();
        assert!(!sleeps || ring.notified.load(Ordering::Acquire), "asleep, and nobody will notify");
    });
}

/// Without the fence on the consumer's side the model must fail, or it proves nothing.
#[test]
#[should_panic(expected = "asleep, and nobody will notify")]
fn the_model_notices_a_missing_fence() {
    loom::model(|| {
        let ring = Arc::new(SplitRing::default());
        ring.event.store(0x8000, Ordering::Relaxed);
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.produce())
        };
        ring.event.store(0, Ordering::Relaxed);
        let sleeps = !ring.sees_data();
        producer.join().unwrap();
        assert!(!sleeps || ring.notified.load(Ordering::Acquire), "asleep, and nobody will notify");
    });
}

/// The mailbox (`core::mailbox`): messages, the flag that a core looks at, the eventfd that wakes it.
#[derive(Default)]
struct Box {
    messages: Mutex<u32>,
    raised: AtomicBool,
    /// The kernel's lock stands around an eventfd's counter (fs/eventfd.c), so reads and writes of it have an
    /// order.
    event: Mutex<bool>,
}

impl Box {
    /// `Mailbox::post`; without `raise_last`: as it must not be.
    fn post(&self, raise_last: bool) {
        *self.messages.lock().unwrap() += 1;
        self.raised.swap(true, Ordering::AcqRel);
        *self.event.lock().unwrap() = true;
        if raise_last {
            self.raised.swap(true, Ordering::AcqRel);
        }
    }

    /// `Mailbox::open`. True: a message was read.
    fn open(&self) -> bool {
        if self.raised.swap(false, Ordering::AcqRel) {
            *self.event.lock().unwrap() = false;
        }
        let mut messages = self.messages.lock().unwrap();
        let got = *messages > 0;
        *messages = messages.saturating_sub(1);
        if *messages > 0 {
            self.raised.swap(true, Ordering::AcqRel);
        }
        got
    }

    /// What a core does in a round: a bounded number of messages. True: it would go to sleep now.
    fn round(&self, messages: u32) -> bool {
        if self.raised.load(Ordering::Acquire) {
            for _ in 0..messages {
                if !self.open() {
                    break;
                }
            }
        }
        !self.raised.load(Ordering::Acquire)
    }
}

/// A core that goes to sleep beside messages is woken by the eventfd; one that has read all of them is let
/// sleep. `a_round`: how many messages a round reads, of two.
fn mailbox(raise_last: bool, a_round: u32) {
    loom::model(move || {
        let mail = Arc::new(Box::default());
        let writer = {
            let mail = Arc::clone(&mail);
            thread::spawn(move || {
                mail.post(raise_last);
                mail.post(raise_last);
            })
        };
        mail.round(a_round);
        mail.round(a_round);
        writer.join().unwrap();
        // No thread writes any more. Each round that does not end asleep has read a message, or lowered the
        // flag.
        let rounds = (0..4).take_while(|_| !mail.round(a_round)).count();
        assert!(rounds < 4, "the core never sleeps again: its flag stays raised");
        let (left, wakes) = (*mail.messages.lock().unwrap(), *mail.event.lock().unwrap());
        assert!(left == 0 || wakes, "a message was slept over");
        assert!(left > 0 || !wakes, "the core never sleeps again: its eventfd stays readable");
    });
}

#[test]
fn no_message_is_slept_over_and_no_core_stays_awake_without_one() {
    mailbox(true, 1);
    mailbox(true, 4);
}

/// Raised only before the eventfd is written, as it was once, a core drains nothing and stays awake for ever.
#[test]
#[should_panic(expected = "its eventfd stays readable")]
fn the_model_notices_a_flag_that_is_raised_too_early() {
    mailbox(false, 4);
}

/// The e1000's status block (`sidecore_abi::csb`): the guest's tail and the device's wish for a kick; the
/// device's heads (descriptors that are done) and the guest's wish for an interrupt. Both ways the same
/// protocol: one side publishes and then looks at the other's wish, the other wishes and then looks at what
/// was published.
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

    /// `TxRing::want_kicks` of the device; for the other direction `E1000::service` of the driver. True:
    /// asleep.
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

/// The core of a task (`core::registry`): a message about it goes to the core that the registry names, under
/// the registry's lock; a core that hands the task over posts it and changes the registry under that lock,
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoreMessage {
    Take,
    Move,
    GiveBack,
}

struct Cores {
    /// Which core has the task; none: it is at home.
    registry: Mutex<Option<usize>>,
    mail: [Mutex<Vec<CoreMessage>>; 2],
    has: [Mutex<bool>; 2],
    /// How often the task came home, and the asker was answered.
    home: Mutex<u32>,
    answers: Mutex<u32>,
}

impl Cores {
    /// The task is on core 0.
    fn new() -> Cores {
        Cores {
            registry: Mutex::new(Some(0)),
            mail: [Mutex::new(Vec::new()), Mutex::new(Vec::new())],
            has: [Mutex::new(true), Mutex::new(false)],
            home: Mutex::new(0),
            answers: Mutex::new(0),
        }
    }

    /// `Registry::recall` and `Registry::send`.
    fn ask(&self, message: CoreMessage) {
        let registry = self.registry.lock().unwrap();
        match *registry {
            Some(core) => self.mail[core].lock().unwrap().push(message),
            // Its sender is dropped, which answers.
            None if message == CoreMessage::GiveBack => *self.answers.lock().unwrap() += 1,
            None => {}
        }
    }

    /// `Core::read_mail` of core `me`: one message. False: there was none. `apart`: the task is posted before
    /// the registry's lock is taken, as it must not be.
    fn read(&self, me: usize, apart: bool) -> bool {
        let message = {
            let mut mail = self.mail[me].lock().unwrap();
            if mail.is_empty() {
                return false;
            }
            mail.remove(0)
        };
        let has = { *self.has[me].lock().unwrap() };
        match message {
            CoreMessage::Take => *self.has[me].lock().unwrap() = true,
            CoreMessage::Move if has => {
                *self.has[me].lock().unwrap() = false;
                let to = 1 - me;
                if apart {
                    *self.registry.lock().unwrap() = Some(to);
                    self.mail[to].lock().unwrap().push(CoreMessage::Take);
                } else {
                    let mut registry = self.registry.lock().unwrap();
                    *registry = Some(to);
                    self.mail[to].lock().unwrap().push(CoreMessage::Take);
                }
            }
            CoreMessage::Move => {}
            CoreMessage::GiveBack if has => {
                *self.has[me].lock().unwrap() = false;
                *self.registry.lock().unwrap() = None;
                *self.home.lock().unwrap() += 1;
                *self.answers.lock().unwrap() += 1;
            }
            // It has gone on: so does the message, unless the task is to come here, behind it.
            CoreMessage::GiveBack => {
                assert!(*self.registry.lock().unwrap() != Some(me), "a message came before its task");
                self.ask(CoreMessage::GiveBack);
            }
        }
        true
    }
}

/// A task is moved and recalled at once: it comes home, once, and the caller of the recall is answered.
fn moved_and_recalled(apart: bool) {
    loom::model(move || {
        let cores = Arc::new(Cores::new());
        let balancer = {
            let cores = Arc::clone(&cores);
            thread::spawn(move || cores.ask(CoreMessage::Move))
        };
        let first = {
            let cores = Arc::clone(&cores);
            thread::spawn(move || {
                cores.read(0, apart);
                cores.read(0, apart);
            })
        };
        cores.ask(CoreMessage::GiveBack);
        cores.read(1, apart);
        balancer.join().unwrap();
        first.join().unwrap();
        while cores.read(0, apart) || cores.read(1, apart) {}
        assert_eq!((*cores.home.lock().unwrap(), *cores.answers.lock().unwrap()), (1, 1));
        assert_eq!(*cores.registry.lock().unwrap(), None);
    });
}

#[test]
fn a_lease_that_is_dropped_while_its_task_moves_brings_it_home() {
    moved_and_recalled(false);
}

#[test]
#[should_panic(expected = "a message came before its task")]
fn the_model_notices_a_task_that_is_posted_apart_from_the_registry() {
    moved_and_recalled(true);
}
