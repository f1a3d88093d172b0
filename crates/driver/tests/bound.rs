//! Bound rings against the plain model of the device.

use crate::model::{Device, Taken};
use proptest::prelude::*;
use sidecore_driver::bound::Bound;
use sidecore_driver::memory::{Memory, Page};
use sidecore_driver::queue::{Buf, Options, Parts};

const ENTRIES: u16 = 64;

fn buffer(n: u16) -> Buf {
    Buf { addr: 0x1_0000_0000 + u64::from(n) * 4096, len: 1000 + u32::from(n), write: true }
}

fn bench(packed: bool, in_order: bool) -> (Bound, Device) {
    let memory = Memory::new(1 << 16, Page::Small).unwrap();
    let options = Options { entries: ENTRIES, packed, event_idx: false, in_order };
    let parts = Parts::new(&memory, options).unwrap();
    (Bound::new(5, options, parts.clone(), buffer).unwrap(), Device::new(&memory, options, parts))
}

/// Packed rings show less than a look-ahead only after some calls.
fn pending(bound: &mut Bound, limit: u16) -> u16 {
    (0..16).map(|_| bound.pending(limit).unwrap()).find(|n| *n > 0).unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each entry always offers its own buffer, comes back once and in order with the device's length.
    #[test]
    fn entries_keep_their_buffers(
        packed in any::<bool>(),
        in_order in any::<bool>(),
        steps in prop::collection::vec((1..=ENTRIES, 1..=ENTRIES, 1..=ENTRIES, any::<bool>()), 1..200),
    ) {
        let (mut bound, mut device) = bench(packed, in_order);
        let (mut offered, mut taken, mut given, mut back) = (0u64, 0u64, 0u64, 0u64);
        for (offer, give, limit, batch) in steps {
            let offer = offer.min(bound.room());
            bound.offer(offer);
            offered += u64::from(offer);
            while device.take() {
                let n = (taken % u64::from(ENTRIES)) as u16;
                let chain = device.held.back().unwrap();
                prop_assert_eq!((chain.id, &chain.bufs), (n, &vec![buffer(n)]));
                taken += 1;
            }
            prop_assert_eq!(taken, offered);
            let give = usize::from(give).min(device.held.len());
            let chains: Vec<Taken> = device.held.drain(..give).collect();
            if in_order && batch && give > 0 {
                device.give_batch(&chains.iter().collect::<Vec<_>>(), 7);
            } else {
                chains.iter().for_each(|chain| device.give(chain, 100 + u32::from(chain.id)));
            }
            given += give as u64;
            loop {
                // An IN_ORDER batch is taken whole.
                let n = pending(&mut bound, limit);
                prop_assert!(back + u64::from(n) <= given);
                if n == 0 {
                    break;
                }
                if !in_order {
                    prop_assert!(n <= limit);
                    for i in 0..n {
                        let entry = bound.oldest().wrapping_add(i) & (ENTRIES - 1);
                        prop_assert_eq!(bound.written(entry), Some(100 + u32::from(entry)));
                    }
                }
                bound.take_back(n).unwrap();
                back += u64::from(n);
            }
            prop_assert_eq!(back, given);
            prop_assert_eq!(u64::from(bound.outstanding()), offered - back);
        }
    }
}

/// A device that goes out of order is named before a buffer is used twice.
#[test]
fn out_of_order_is_named() {
    for packed in [false, true] {
        let (mut bound, mut device) = bench(packed, false);
        bound.offer(2);
        device.take();
        device.take();
        let first = device.held.pop_front().unwrap();
        let second = device.held.pop_front().unwrap();
        device.give(&second, 1);
        device.give(&first, 1);
        let error = (0..16).find_map(|_| match bound.pending(ENTRIES) {
            Ok(0) => None,
            Ok(n) => bound.take_back(n).err(),
            Err(error) => Some(error),
        });
        assert!(error.unwrap().to_string().starts_with("queue 5: the device g"));
    }
}

/// A buffer stays where it is when its length changes, and a new connection goes on where the device was.
#[test]
fn lengths_change_and_the_place_is_known() {
    for packed in [false, true] {
        let (mut bound, mut device) = bench(packed, false);
        for lap in 0..3u16 {
            for n in 0..ENTRIES {
                bound.set_len(n, 60 + u32::from(lap));
            }
            bound.set_len(3, 1514);
            bound.offer(ENTRIES);
            while device.take() {}
            for (n, chain) in (0u16..).zip(&device.held) {
                let len = if n == 3 { 1514 } else { 60 + u32::from(lap) };
                assert_eq!(chain.bufs, [Buf { len, ..buffer(n) }], "{packed}");
            }
            let given = device.held.len() - 1;
            let chains: Vec<Taken> = device.held.drain(..).collect();
            chains[..given].iter().for_each(|chain| device.give(chain, 1));
            if !packed {
                let gone = u32::from(lap * ENTRIES) + u32::try_from(given).unwrap();
                assert_eq!(bound.base().unwrap(), gone, "all but the last are done");
            } else {
                assert!(bound.base().is_err(), "a packed ring keeps no index");
            }
            device.give(&chains[given], 1);
            let mut left = ENTRIES;
            while left > 0 {
                let n = pending(&mut bound, left);
                bound.take_back(n).unwrap();
                left -= n;
            }
        }
    }
}
