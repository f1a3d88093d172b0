//! The hand-over of slots under every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p sidecore-abi --test loom --release`.
//!
//! The model runs the functions that engine and client run, on loom's words. It covers: what was written before an
//! index was published is seen by who observes it; a side that asked to be woken and found nothing new is
//! woken. It does not cover what the two sides do besides (rings, batches, what a hostile client writes), nor more
//! than a few steps, nor more than one sleep of each side; and loom does not model that two processes may
//! map the same memory at two addresses.
#![cfg(loom)]
#![allow(missing_docs)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use sidecore_abi::ring::{ask, due, next_ticket, observe, publish, withdraw, Word};

struct LoomWord(AtomicU32);

impl LoomWord {
    fn new() -> LoomWord {
        LoomWord(AtomicU32::new(0))
    }
}

impl Word for LoomWord {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// One direction: who gives slots, who waits for them, and the descriptor that wakes it.
struct Shared {
    index: LoomWord,
    ticket: LoomWord,
    /// The slots' contents.
    slots: [UnsafeCell<u32>; 3],
    /// The pipe or eventfd: set by a write, and it stays set until read.
    woken: Notify,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        index: LoomWord::new(),
        ticket: LoomWord::new(),
        slots: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
        woken: Notify::new(),
    })
}

/// Fills the slots and gives them one by one, as the client's `give` and the engine's `publish` do.
fn give(shared: &Shared, count: u32) {
    let mut answered = 0;
    for i in 0..count {
        // SAFETY: the slot is the giver's until the index has passed it; loom checks that.
        shared.slots[i as usize].with_mut(|slot| unsafe { *slot = i + 1 });
        publish(&shared.index, i + 1);
        if due(&shared.ticket, &mut answered) {
            shared.woken.notify();
        }
    }
}

/// Takes `count` slots, sleeping when there are none.
fn take(shared: &Shared, count: u32) {
    let (mut next, mut number) = (0, 0);
    while next < count {
        let mut index = observe(&shared.index);
        if index == next {
            number = next_ticket(number);
            index = ask(&shared.ticket, number, &shared.index);
            if index == next {
                // Asleep: only the descriptor ends it. Were a wake-up lost, loom would find a deadlock.
                shared.woken.wait();
                index = observe(&shared.index);
            }
            withdraw(&shared.ticket);
        }
        while next < index {
            // SAFETY: the index has passed the slot, so it is the taker's; loom checks that.
            let value = shared.slots[next as usize].with(|slot| unsafe { *slot });
            assert_eq!(value, next + 1);
            next += 1;
        }
    }
}

#[test]
fn no_wake_up_is_lost_and_no_slot_is_seen_early() {
    for count in 1..=2 {
        loom::model(move || {
            let shared = shared();
            let giver = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || give(&giver, count));
            take(&shared, count);
            thread.join().unwrap();
        });
    }
}
