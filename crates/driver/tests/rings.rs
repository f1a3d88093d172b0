//! The driver's rings against a plain model of the device, with random batches, chain shapes, order of
//! completion and notification wishes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::model::{Device, Taken};
use proptest::prelude::*;
use sidecore_driver::memory::{Memory, Page};
use sidecore_driver::queue::{Buf, Options, Parts, Queue, Table};

struct Bench {
    queue: Queue,
    device: Device,
    tables: Vec<Table>,
    /// Chains that the driver offered and the device has not taken, in order.
    offered: VecDeque<(u16, Vec<Buf>)>,
    /// Bytes that the device reported for each outstanding name it gave back.
    given: HashMap<u16, u32>,
    next_len: u32,
}

fn bench(options: Options) -> Bench {
    let memory = Memory::new(1 << 20, Page::Small).unwrap();
    // Something first, so that offsets are not zero.
    memory.alloc(4096, 4096).unwrap();
    let parts = Parts::new(&memory, options).unwrap();
    let tables = (0..options.entries).map(|_| Table::new(&memory, 8).unwrap()).collect();
    Bench {
        queue: Queue::new(3, options, parts.clone()).unwrap(),
        device: Device::new(&memory, options, parts),
        tables,
        offered: VecDeque::new(),
        given: HashMap::new(),
        next_len: 1,
    }
}

impl Bench {
    /// The driver offers one chain of `n` pieces, the last `w` of them for writing.
    fn add(&mut self, n: usize, w: usize, indirect: bool) -> bool {
        let chain: Vec<Buf> = (0..n)
            .map(|i| {
                self.next_len += 1;
                Buf { addr: u64::from(self.next_len) << 20, len: self.next_len, write: i + w >= n }
            })
            .collect();
        let room = usize::from(self.queue.room());
        let expected = if room > 0 { Some(self.queue.next_free(0)) } else { None };
        let name = if indirect {
            let table = self.tables[usize::from(expected.unwrap_or(0))].clone();
            self.queue.add_indirect(&table, &chain)
        } else {
            self.queue.add(&chain)
        };
        let fits = room >= if indirect { 1 } else { n };
        assert_eq!(name, if fits { expected } else { None });
        if let Some(name) = name {
            self.offered.push_back((name, chain));
        }
        name.is_some()
    }

    /// The device takes `n` chains, each as it was offered.
    fn take(&mut self, n: usize) {
        for _ in 0..n {
            if !self.device.take() {
                return;
            }
            let taken = self.device.held.back().unwrap();
            let (name, chain) = self.offered.pop_front().expect("a chain that was never offered");
            assert_eq!((taken.id, &taken.bufs), (name, &chain));
        }
    }

    fn writable(taken: &Taken) -> u32 {
        taken.bufs.iter().filter(|b| b.write).map(|b| b.len).sum()
    }

    fn give(&mut self, picks: &[usize]) {
        for pick in picks {
            if self.device.held.is_empty() {
                return;
            }
            let place = if self.device.options.in_order { 0 } else { pick % self.device.held.len() };
            let taken = self.device.held.remove(place).unwrap();
            let written = Self::writable(&taken) / 2;
            self.device.give(&taken, written);
            self.given.insert(taken.id, written);
        }
    }

    /// IN_ORDER: one element for the first `n` held chains.
    fn give_batch(&mut self, n: usize) {
        let n = n.min(self.device.held.len());
        if n == 0 {
            return;
        }
        let batch: Vec<Taken> = self.device.held.drain(..n).collect();
        for taken in &batch {
            // Chains that the element skips count as fully written.
            self.given.insert(taken.id, Self::writable(taken));
        }
        let written = Self::writable(batch.last().unwrap());
        self.device.give_batch(&batch.iter().collect::<Vec<_>>(), written);
    }

    fn reap(&mut self, limit: usize) -> usize {
        let mut seen = Vec::new();
        let done = self.queue.reap(limit, |name, len| seen.push((name, len))).unwrap();
        assert_eq!(done, seen.len());
        for (name, len) in seen {
            assert_eq!(self.given.remove(&name), Some(len), "name {name}");
        }
        done
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(Vec<(usize, usize, bool)>),
    Take(usize),
    Give(Vec<usize>),
    GiveBatch(usize),
    Reap(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec((1..6usize, 0..6usize, any::<bool>()), 1..12).prop_map(Step::Add),
        (1..20usize).prop_map(Step::Take),
        prop::collection::vec(any::<usize>(), 1..12).prop_map(Step::Give),
        (1..12usize).prop_map(Step::GiveBatch),
        (1..20usize).prop_map(Step::Reap),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 0..5u32, 1..40u16).prop_map(
        |(packed, event_idx, in_order, power, odd)| Options {
            entries: if packed { odd } else { 1 << power },
            packed,
            event_idx,
            in_order,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the order of steps: the device sees each chain exactly as it was offered, once and in
    /// order; the driver gets each back once with the length that the device wrote; nothing is lost.
    #[test]
    fn chains_arrive_and_return(options in options(), steps in prop::collection::vec(step(), 1..120)) {
        let mut b = bench(options);
        for step in steps {
            match step {
                Step::Add(chains) => {
                    for (n, w, indirect) in chains {
                        b.add(n, w, indirect);
                    }
                    if !b.device.take() {
                        b.queue.publish();
                    } else {
                        panic!("visible before it was published");
                    }
                }
                Step::Take(n) => b.take(n),
                Step::Give(picks) => b.give(&picks),
                Step::GiveBatch(n) if options.in_order => b.give_batch(n),
                Step::GiveBatch(_) => {}
                Step::Reap(limit) => { b.reap(limit); }
            }
            // The next Add's check needs everything visible to be taken.
            b.take(usize::MAX);
        }
        let held = b.device.held.len();
        b.give(&vec![0; held]);
        b.reap(usize::MAX);
        prop_assert!(b.given.is_empty());
        prop_assert_eq!(b.queue.room(), options.entries);
    }

    /// A kick happens exactly when the offered chains pass the place that the device asked for.
    #[test]
    fn kicks_when_asked(
        options in options(),
        rounds in prop::collection::vec((prop::option::of(0..8u16), 1..8u16), 1..200),
    ) {
        let mut b = bench(options);
        for (wish, batch) in rounds {
            // An event further away than the ring is long cannot be expressed.
            let wish = wish.map(|n| n.min(options.entries - 1));
            b.device.ask_for_kick(wish);
            let batch = batch.min(options.entries);
            for _ in 0..batch {
                assert!(b.add(1, 1, false));
            }
            let kick = b.queue.publish();
            let expected = match wish {
                None => false,
                Some(_) if !options.event_idx => true,
                Some(n) => batch > n,
            };
            prop_assert_eq!(kick, expected, "wish {:?} batch {}", wish, batch);
            b.take(usize::MAX);
            b.give(&vec![0; usize::from(batch)]);
            b.reap(usize::MAX);
        }
    }

    /// The driver is interrupted for the first chain after it asked, and never while it did not.
    #[test]
    fn interrupts_when_asked(options in options(), rounds in prop::collection::vec((any::<bool>(), 1..8u16), 1..200)) {
        // A lap of the whole ring cannot be told from no progress.
        prop_assume!(options.entries > 8);
        let mut b = bench(options);
        for (on, batch) in rounds {
            let batch = batch.min(options.entries);
            for _ in 0..batch {
                assert!(b.add(1, 1, false));
            }
            b.queue.publish();
            b.take(usize::MAX);
            prop_assert!(!b.queue.set_interrupts(on));
            let old = b.device.used();
            b.give(&vec![0; usize::from(batch)]);
            prop_assert_eq!(b.device.wants_interrupt(old), on);
            prop_assert!(b.queue.set_interrupts(on));
            b.reap(usize::MAX);
        }
    }
}

/// The index space is crossed several times, with the far-away event still far away.
#[test]
fn two_hundred_thousand_chains() {
    for packed in [false, true] {
        for event_idx in [false, true] {
            let options = Options { entries: 64, packed, event_idx, in_order: false };
            let mut b = bench(options);
            b.device.ask_for_kick(None);
            for round in 0..10_000u32 {
                for _ in 0..20 {
                    assert!(b.add(1, 1, false));
                }
                if !packed && event_idx && round % 800 == 0 {
                    b.device.ask_for_kick(None);
                }
                assert!(!b.queue.publish());
                b.take(20);
                let old = b.device.used();
                b.give(&[5; 20]);
                assert!(!b.device.wants_interrupt(old));
                assert_eq!(b.reap(usize::MAX), 20);
            }
        }
    }
}

/// A device that gives back what it does not hold is named.
#[test]
fn broken_devices_are_named() {
    for packed in [false, true] {
        for in_order in [false, true] {
            let mut b = bench(Options { entries: 8, packed, event_idx: false, in_order });
            assert!(b.add(1, 1, false) && b.add(1, 1, false));
            b.queue.publish();
            b.take(2);
            let mut taken = b.device.held.pop_front().unwrap();
            taken.id = 6;
            b.device.give(&taken, 0);
            let error = b.queue.reap(9, |_, _| {}).unwrap_err().to_string();
            assert!(error.starts_with("queue 3: the device"), "{error}");
        }
    }
}

#[test]
fn memory_is_bounded() {
    let memory = Memory::new(4096, Page::Small).unwrap();
    assert!(memory.alloc(4097, 1).is_err());
    memory.alloc(4000, 16).unwrap();
    assert!(memory.alloc(97, 1).is_err());
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.read(4090, &mut [0; 7])));
    assert!(read.is_err());
    let _ = Arc::clone(&memory);
}
