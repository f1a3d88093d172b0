//! The hand-over of slots, checked by loom in every interleaving and with every reordering that the memory
//! model allows.
//!
//! The model runs the functions that engine and client run, on loom's words. It covers: what was written
//! before an index was published is seen by the side that observes it; a side that asked to be woken and
//! found nothing new is woken. It does not cover what the two sides do besides (rings, batches, what a
//! hostile client writes), nor more than a few steps, nor more than one sleep of each side; and loom does not
//! model that two processes may map the same memory at two addresses.
#![allow(clippy::unwrap_used)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use sidecore_abi::ring::{ask, due, next_ticket, observe, publish, withdraw, Word};

/// Without `FENCED`: as it must not be.
struct LoomWord<const FENCED: bool>(AtomicU32);

impl<const FENCED: bool> LoomWord<FENCED> {
    fn new() -> Self {
        LoomWord(AtomicU32::new(0))
    }
}

impl<const FENCED: bool> Word for LoomWord<FENCED> {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn full_fence() {
        if FENCED {
            fence(Ordering::SeqCst);
        }
    }
}

/// One handover: the side that gives slots, the side that waits for them, and the descriptor that wakes it.
struct Handover<const FENCED: bool> {
    index: LoomWord<FENCED>,
    ticket: LoomWord<FENCED>,
    /// The slots' contents.
    slots: [UnsafeCell<u32>; 3],
    /// The pipe or eventfd: set by a write, and it stays set until read.
    woken: Notify,
}

fn handover<const FENCED: bool>() -> Arc<Handover<FENCED>> {
    Arc::new(Handover {
        index: LoomWord::new(),
        ticket: LoomWord::new(),
        slots: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
        woken: Notify::new(),
    })
}

/// Fills the slots and gives them one by one, as the client's `give` and the engine's `publish` do.
fn give<const FENCED: bool>(handover: &Handover<FENCED>, count: u32) {
    let mut answered = 0;
    for i in 0..count {
        // SAFETY: the slot is the giver's until the index has passed it; loom checks that.
        handover.slots[i as usize].with_mut(|slot| unsafe { *slot = i + 1 });
        publish(&handover.index, i + 1);
        if due(&handover.ticket, &mut answered) {
            handover.woken.notify();
        }
    }
}

/// Takes `count` slots, sleeping when there are none.
fn take<const FENCED: bool>(handover: &Handover<FENCED>, count: u32) {
    let (mut next, mut number) = (0, 0);
    while next < count {
        let mut index = observe(&handover.index);
        if index == next {
            number = next_ticket(number);
            index = ask(&handover.ticket, number, &handover.index);
            if index == next {
                // Asleep: only the descriptor ends it. Were a wake-up lost, loom would find a deadlock.
                handover.woken.wait();
                index = observe(&handover.index);
            }
            withdraw(&handover.ticket);
        }
        while next < index {
            // SAFETY: the index has passed the slot, so it is the taker's; loom checks that.
            let value = handover.slots[next as usize].with(|slot| unsafe { *slot });
            assert_eq!(value, next + 1);
            next += 1;
        }
    }
}

fn slots_change_hands<const FENCED: bool>(count: u32) {
    loom::model(move || {
        let handover = handover::<FENCED>();
        let giver = Arc::clone(&handover);
        let thread = loom::thread::spawn(move || give(&giver, count));
        take(&handover, count);
        thread.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost_and_no_slot_is_seen_early() {
    slots_change_hands::<true>(1);
    slots_change_hands::<true>(2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_notices_a_missing_fence() {
    slots_change_hands::<false>(1);
}
