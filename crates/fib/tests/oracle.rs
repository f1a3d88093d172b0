//! Both tables against a list of routes that is searched from end to end.

#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation, reason = "a test")]

use proptest::prelude::*;
use sidecore_fib::{v4, v6, NO_ROUTE};

/// Routes without any cleverness.
#[derive(Default)]
struct Plain(Vec<((u128, u8), u32)>);

impl Plain {
    fn insert(&mut self, prefix: (u128, u8), group: u32) -> Option<u32> {
        let old = self.remove(prefix);
        self.0.push((prefix, group));
        old
    }

    fn remove(&mut self, prefix: (u128, u8)) -> Option<u32> {
        let at = self.0.iter().position(|(there, _)| *there == prefix)?;
        Some(self.0.swap_remove(at).1)
    }

    fn lookup(&self, address: u128, bits: u8) -> u32 {
        let covers = |(prefix, len): (u128, u8)| address & mask(bits, len) == prefix;
        let found = self.0.iter().filter(|(prefix, _)| covers(*prefix)).max_by_key(|((_, len), _)| *len);
        found.map_or(NO_ROUTE, |(_, group)| *group)
    }
}

fn mask(bits: u8, len: u8) -> u128 {
    let all = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
    all & !(all.checked_shr(len.into()).unwrap_or(0))
}

/// An address of few, so that prefixes lie in each other: its upper and its lower end vary, the middle is all
/// zeros or ones.
fn address(bits: u8) -> impl Strategy<Value = u128> {
    (0u128..8, 0u128..=2, any::<bool>(), 0u128..8).prop_map(move |(top, middle, ones, low)| {
        let all = mask(bits, bits);
        let near = (top << (bits - 3)) | (middle << (bits / 2)) | low;
        if ones {
            all ^ near
        } else {
            near
        }
    })
}

#[derive(Clone, Debug)]
enum Change {
    Insert(u128, u8, u32),
    Remove(u128, u8),
    /// The one at this place of the routes that are there.
    RemoveOne(usize),
}

/// An IPv4 address in one of two /18s: of few /24s there, at either end of them.
fn near() -> impl Strategy<Value = u128> {
    let middle = prop_oneof![0u32..4, 60u32..64, 0u32..64];
    (0u32..2, middle, prop_oneof![0u32..3, 62u32..66, 253u32..256, 0u32..256])
        .prop_map(|(net, middle, low)| u128::from(0x0a40_0000 | net << 14 | middle << 8 | low))
}

/// Changes of prefixes that lie in each other and share blocks.
fn near_changes() -> impl Strategy<Value = Vec<Change>> {
    let len = prop_oneof![4 => 19u8..=24, 3 => 25u8..=32, 2 => 8u8..=18, 1 => 0u8..=1];
    let group = prop_oneof![9 => 1u32..4, 1 => 32_766u32..32_769];
    let change = prop_oneof![
        4 => (near(), len, group).prop_map(|(a, l, g)| Change::Insert(a, l, g)),
        2 => any::<usize>().prop_map(Change::RemoveOne),
    ];
    prop::collection::vec(change, 1..200)
}

fn changes(bits: u8) -> impl Strategy<Value = Vec<Change>> {
    let len = move || prop_oneof![0..=bits, (bits / 2 - 2)..=(bits / 2 + 2), (bits - 10)..=bits];
    let change = prop_oneof![
        4 => (address(bits), len(), prop_oneof![1u32..6, 32_760u32..32_775]).prop_map(|(a, l, g)| Change::Insert(a, l, g)),
        1 => (address(bits), len()).prop_map(|(a, l)| Change::Remove(a, l)),
        2 => any::<usize>().prop_map(Change::RemoveOne),
    ];
    prop::collection::vec(change, 1..120)
}

/// Addresses at the edges of all prefixes, and others.
fn probes(plain: &Plain, bits: u8, more: &[u128]) -> Vec<u128> {
    let all = mask(bits, bits);
    let edges = plain.0.iter().flat_map(|((prefix, len), _)| {
        let last = prefix | (all ^ mask(bits, *len));
        [*prefix, last, prefix.wrapping_sub(1) & all, last.wrapping_add(1) & all]
    });
    edges.chain(more.iter().copied()).chain([0, all]).collect()
}

/// What a change means for the plain list; the prefix and the group that it is about.
fn plainly(plain: &mut Plain, bits: u8, change: &Change) -> ((u128, u8), Option<u32>, Option<u32>) {
    match *change {
        Change::Insert(address, len, group) => {
            let prefix = (address & mask(bits, len), len);
            (prefix, Some(group), plain.insert(prefix, group))
        }
        Change::Remove(address, len) => {
            let prefix = (address & mask(bits, len), len);
            (prefix, None, plain.remove(prefix))
        }
        Change::RemoveOne(at) if plain.0.is_empty() => ((at as u128 & 1, 0), None, plain.remove((0, 77))),
        Change::RemoveOne(at) => {
            let prefix = plain.0[at % plain.0.len()].0;
            (prefix, None, plain.remove(prefix))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn v4_is_the_plain_list(changes in changes(32), more in prop::collection::vec(address(32), 20)) {
        let (mut plain, mut writer) = (Plain::default(), v4::Writer::new().unwrap());
        let mut reader = writer.reader();
        for change in &changes {
            let ((prefix, len), group, old) = plainly(&mut plain, 32, change);
            let prefix = prefix as u32;
            let was = match group {
                Some(group) => writer.insert(prefix, len, group).unwrap(),
                None => writer.remove(prefix, len),
            };
            prop_assert_eq!(was, old);
        }
        let probes = probes(&plain, 32, &more);
        let addresses: Vec<u32> = probes.iter().map(|probe| *probe as u32).collect();
        let mut groups = vec![7; addresses.len()];
        reader.lookup(&addresses, &mut groups);
        for (probe, group) in probes.iter().zip(&groups) {
            prop_assert_eq!(*group, plain.lookup(*probe, 32), "{:x}", probe);
            prop_assert_eq!(writer.explain(*probe as u32).map_or(NO_ROUTE, |(_, group)| group), *group);
        }
        // Without its routes the table is as it was, and needs no block.
        for ((prefix, len), _) in &plain.0 {
            prop_assert!(writer.remove(*prefix as u32, *len).is_some());
        }
        reader.lookup(&addresses, &mut groups);
        prop_assert!(groups.iter().all(|group| *group == NO_ROUTE));
        prop_assert_eq!((writer.usage().routes, writer.usage().blocks), (0, 0));
    }

    #[test]
    fn v4_is_the_plain_list_after_each_change(changes in near_changes(), more in prop::collection::vec(near(), 20)) {
        let (mut plain, mut writer) = (Plain::default(), v4::Writer::new().unwrap());
        let mut reader = writer.reader();
        for change in &changes {
            let ((prefix, len), group, old) = plainly(&mut plain, 32, change);
            let was = match group {
                Some(group) => writer.insert(prefix as u32, len, group).unwrap(),
                None => writer.remove(prefix as u32, len),
            };
            prop_assert_eq!(was, old);
            let probes = probes(&plain, 32, &more);
            let addresses: Vec<u32> = probes.iter().map(|probe| *probe as u32).collect();
            let mut groups = vec![7; addresses.len()];
            reader.lookup(&addresses, &mut groups);
            for (probe, group) in probes.iter().zip(&groups) {
                prop_assert_eq!(*group, plain.lookup(*probe, 32), "{:x} after {:?}", probe, change);
            }
        }
        // Without its routes it needs no block.
        for ((prefix, len), _) in &plain.0 {
            prop_assert!(writer.remove(*prefix as u32, *len).is_some());
        }
        let usage = writer.usage();
        prop_assert_eq!((usage.routes, usage.blocks), (0, 0));
    }

    #[test]
    fn v6_is_the_plain_list(
        changes in changes(128), more in prop::collection::vec(address(128), 20), every in 1usize..20,
    ) {
        let (mut plain, mut writer) = (Plain::default(), v6::Writer::new().unwrap());
        let mut reader = writer.reader();
        for (at, change) in changes.iter().enumerate() {
            let ((prefix, len), group, old) = plainly(&mut plain, 128, change);
            let was = match group {
                Some(group) => writer.insert(prefix, len, group).unwrap(),
                None => writer.remove(prefix, len),
            };
            prop_assert_eq!(was, old);
            if at % every == 0 {
                writer.commit().unwrap();
                let probes = probes(&plain, 128, &more);
                let mut groups = vec![7; probes.len()];
                reader.lookup(&probes, &mut groups);
                for (probe, group) in probes.iter().zip(&groups) {
                    prop_assert_eq!(*group, plain.lookup(*probe, 128), "{:x}", probe);
                }
            }
        }
        for ((prefix, len), _) in &plain.0 {
            prop_assert!(writer.remove(*prefix, *len).is_some());
        }
        writer.commit().unwrap();
        let usage = writer.usage();
        prop_assert_eq!((usage.routes, usage.lists, usage.intervals), (0, 0, 1));
    }
}

/// Numbers that look random, the same each time.
fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Many routes: chunks divide and unite, blocks come and go, and places are used again.
#[test]
fn many_routes_come_and_go() {
    let (mut four, mut six) = (v4::Writer::new().unwrap(), v6::Writer::new().unwrap());
    let (mut read_four, mut read_six) = (four.reader(), six.reader());
    let mut seed = 0x5eed;
    for round in 0..4 {
        let mut all = Vec::new();
        for n in 0..20_000u32 {
            let bits = random(&mut seed);
            // In few /12s, so that longer prefixes lie in shorter ones.
            let address = (bits as u32 & 0x000f_ffff) | (((bits >> 32) as u32 % 9) << 20);
            let len = 12 + (bits >> 40) as u8 % 21;
            let group = 1 + n % 1000;
            let wide = u128::from(address) << 96 | u128::from(bits & 0xff) << 64;
            four.insert(address, len, group).unwrap();
            six.insert(wide, len + 32 * (bits >> 50 & 1) as u8, group).unwrap();
            all.push((address, wide, len, len + 32 * (bits >> 50 & 1) as u8));
            if n % 777 == 0 {
                six.commit().unwrap();
            }
        }
        six.commit().unwrap();
        let addresses: Vec<u32> = all.iter().map(|(address, ..)| *address).collect();
        let wides: Vec<u128> = all.iter().map(|(_, wide, ..)| *wide).collect();
        let mut groups = vec![0; all.len()];
        read_four.lookup(&addresses, &mut groups);
        for (address, group) in addresses.iter().zip(&groups) {
            assert_eq!(four.explain(*address).unwrap().1, *group, "round {round}: {address:x}");
        }
        read_six.lookup(&wides, &mut groups);
        for (wide, group) in wides.iter().zip(&groups) {
            assert_eq!(six.explain(*wide).unwrap().1, *group, "round {round}: {wide:x}");
        }
        assert!(six.usage().chunks > 20);
        for (address, wide, len, wide_len) in all {
            four.remove(address, len);
            six.remove(wide, wide_len);
        }
        six.commit().unwrap();
        assert_eq!(
            (four.usage().blocks, six.usage().chunks, six.usage().intervals),
            (0, 1, 1),
            "round {round}"
        );
    }
}

/// A reader on another thread sees, for each address, a group that it has had, and at last the one that it
/// has.
#[test]
fn readers_see_what_was_or_what_is() {
    let (mut four, mut six) = (v4::Writer::new().unwrap(), v6::Writer::new().unwrap());
    four.insert(0x0a00_0000, 8, 1).unwrap();
    six.insert(0x2001 << 112, 16, 1).unwrap();
    six.commit().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (mut read_four, mut read_six, stop) = (four.reader(), six.reader(), &stop);
            scope.spawn(move || {
                let addresses: Vec<u32> = (0..256).map(|n| 0x0a01_0200 | n).collect();
                let wides: Vec<u128> = (0..256).map(|n| 0x2001 << 112 | n << 70 | n).collect();
                let mut groups = [0; 256];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    read_four.lookup(&addresses, &mut groups);
                    groups
                        .iter()
                        .enumerate()
                        .for_each(|(n, group)| assert!(*group == 1 || *group == 2 + n as u32, "{n} {group}"));
                    read_six.lookup(&wides, &mut groups);
                    groups
                        .iter()
                        .enumerate()
                        .for_each(|(n, group)| assert!(*group == 1 || *group == 2 + n as u32, "{n} {group}"));
                }
            });
        }
        for _ in 0..300 {
            // In other /24s, so that blocks change hands.
            for n in 0..256u32 {
                four.insert(0x0a01_0200 | n, 32, 2 + n).unwrap();
                four.insert(0x0b00_0000 | n << 8, 32, 9999).unwrap();
                six.insert(0x2001 << 112 | u128::from(n) << 70, if n % 2 == 0 { 64 } else { 120 }, 2 + n)
                    .unwrap();
            }
            six.commit().unwrap();
            for n in 0..256u32 {
                four.remove(0x0b00_0000 | n << 8, 32).unwrap();
                four.remove(0x0a01_0200 | n, 32).unwrap();
                six.remove(0x2001 << 112 | u128::from(n) << 70, if n % 2 == 0 { 64 } else { 120 }).unwrap();
            }
            six.commit().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!((four.usage().routes, six.usage().routes), (1, 1));
}

/// Readers see what was or what is of prefixes of all lengths in one /18.
#[test]
fn readers_see_of_neighbours_what_was_or_what_is() {
    let mut writer = v4::Writer::new().unwrap();
    writer.insert(0x0a00_0000, 8, 1).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (mut reader, stop) = (writer.reader(), &stop);
            scope.spawn(move || {
                // Two in each /24: of them the second one has a longer prefix at times.
                let addresses: Vec<u32> =
                    (0..128).map(|n| 0x0a40_0000 | n >> 1 << 8 | (n & 1) << 7).collect();
                let mut groups = [0; 128];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    reader.lookup(&addresses, &mut groups);
                    for (n, group) in (0..128).zip(groups) {
                        let (cell, long) = (n >> 1, n & 1 == 1);
                        let had = [1, 2, 100 + cell / 16, 200 + cell];
                        assert!(had.contains(&group) || long && group == 300 + cell, "{cell}: {group}");
                    }
                }
            });
        }
        let mut seed = 0x0b5e_55ed;
        for round in 0..40_000 {
            let cell = random(&mut seed) as u32 % 64;
            let address = 0x0a40_0000 | cell << 8;
            let (address, len, group) = match random(&mut seed) % 8 {
                0 => (0x0a00_0000, 8, 1 + round % 2),
                1 => (address, 20, 100 + cell / 16),
                2 | 3 => (address | 0x80, 25, 300 + cell),
                _ => (address, 24, 200 + cell),
            };
            if len > 8 && writer.get(address, len).is_some() {
                assert_eq!(writer.remove(address, len), Some(group));
            } else {
                writer.insert(address, len, group).unwrap();
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn what_is_not_possible_is_refused() {
    use sidecore_fib::{Error, MAX_GROUP};
    let (mut four, mut six) = (v4::Writer::new().unwrap(), v6::Writer::new().unwrap());
    assert_eq!(four.insert(0, 33, 1), Err(Error::Length(33)));
    assert_eq!(six.insert(0, 129, 1), Err(Error::Length(129)));
    for group in [NO_ROUTE, MAX_GROUP + 1] {
        assert_eq!(four.insert(0, 8, group), Err(Error::Group(group)));
        assert_eq!(six.insert(0, 8, group), Err(Error::Group(group)));
    }
    assert_eq!(
        (four.remove(0, 33), six.remove(0, 129), four.get(1, 40), six.get(1, 140)),
        (None, None, None, None)
    );
    assert_eq!((four.usage().routes, six.usage().routes), (0, 0));
}

/// More /24s with longer prefixes than narrow entries can tell apart: the table becomes wide, under a reader.
#[test]
fn blocks_beyond_sixteen_bits() {
    let mut writer = v4::Writer::new().unwrap();
    let mut reader = writer.reader();
    assert_eq!(writer.insert(0, 0, 5), Ok(None));
    let addresses: Vec<u32> = (0..40_000).map(|n| n << 8 | 0x80).collect();
    for (n, address) in addresses.iter().enumerate() {
        writer.insert(*address, 25, 1 + n as u32 % 100).unwrap();
    }
    let mut groups = vec![0; addresses.len()];
    reader.lookup(&addresses, &mut groups);
    assert!(groups.iter().enumerate().all(|(n, group)| *group == 1 + n as u32 % 100));
    let below: Vec<u32> = addresses.iter().map(|address| address - 1).collect();
    reader.lookup(&below, &mut groups);
    assert!(groups.iter().all(|group| *group == 5));
    assert_eq!((writer.usage().width, writer.usage().blocks), (4, 40_000));
}
