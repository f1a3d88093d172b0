//! Forwarding tables given arbitrary changes of routes: lookups give the answer of a plain list of them, and
//! a table without routes needs no block. Tables stay from input to input, without routes: to make one takes
//! longer than most inputs.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::cell::RefCell;

use sidecore_fib::{v4, v6, NO_ROUTE};
use sidecore_fuzz::fuzz_target;

/// Routes, searched from end to end.
#[derive(Default)]
struct Plain(Vec<(u128, u8, u32)>);

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl Plain {
    fn place(&self, address: u128, len: u8) -> Option<usize> {
        self.0.iter().position(|(there, its, _)| (*there, *its) == (address & mask(len), len))
    }

    fn put(&mut self, address: u128, len: u8, group: Option<u32>) -> Option<u32> {
        let old = self.place(address, len).map(|at| self.0.swap_remove(at).2);
        self.0.extend(group.map(|group| (address & mask(len), len, group)));
        old
    }

    fn lookup(&self, address: u128) -> u32 {
        let covers = self.0.iter().filter(|(prefix, len, _)| address & mask(*len) == *prefix);
        covers.max_by_key(|(_, len, _)| *len).map_or(NO_ROUTE, |(_, _, group)| *group)
    }

    /// The ends of all prefixes, and their neighbours.
    fn probes(&self) -> Vec<u128> {
        let ends = |(prefix, len, _): &(u128, u8, u32)| {
            let last = prefix | !mask(*len);
            [*prefix, last, prefix.wrapping_sub(1), last.wrapping_add(1)]
        };
        self.0.iter().flat_map(ends).collect()
    }
}

/// IPv4 addresses are the upper bits of 128.
fn upper(address: u128) -> u32 {
    (address >> 96) as u32
}

struct Tables {
    four: v4::Writer,
    six: v6::Writer,
    read_four: v4::Reader,
    read_six: v6::Reader,
}

impl Tables {
    fn new() -> Tables {
        let (four, six) = (v4::Writer::new().unwrap(), v6::Writer::new().unwrap());
        let (read_four, read_six) = (four.reader(), six.reader());
        Tables { four, six, read_four, read_six }
    }
}

thread_local!(static TABLES: RefCell<Tables> = RefCell::new(Tables::new()));

fuzz_target!(|data: &[u8]| TABLES.with_borrow_mut(|tables| run(tables, data)));

fn run(tables: &mut Tables, data: &[u8]) {
    let Tables { four, six, read_four, read_six } = tables;
    let (mut plain_four, mut plain_six) = (Plain::default(), Plain::default());
    for (at, change) in data.chunks_exact(6).take(400).enumerate() {
        let [kind, len, group, a, b, c] = *change else { break };
        // Few of the upper bits and few of the lower ones, so that prefixes lie in each other.
        let address = (u128::from(a & 3) << 126) | u128::from(b) << 104 | u128::from(c) << 96;
        let address = address | u128::from(kind & 0x30) << 106 | (u128::from(a >> 2) << 64 | u128::from(c));
        let group =
            Some(1 + u32::from(group) * if kind & 8 == 0 { 1 } else { 200 }).filter(|_| kind & 1 == 0);
        if kind & 4 == 0 {
            // A short prefix covers millions of entries of the first array, one by one: a few of those are
            // enough.
            let len = if kind < 0xf0 { 10 + len % 23 } else { len % 33 };
            let address = address & mask(32);
            let was = match group {
                Some(group) => four.insert(upper(address), len, group).unwrap(),
                None => four.remove(upper(address), len),
            };
            assert_eq!(was, plain_four.put(address, len, group));
        } else {
            let len = len % 129;
            let was = match group {
                Some(group) => six.insert(address, len, group).unwrap(),
                None => six.remove(address, len),
            };
            assert_eq!(was, plain_six.put(address, len, group));
        }
        if at % 16 == usize::from(kind >> 4) {
            compare(read_four, &plain_four);
            six.commit().unwrap();
            let probes = plain_six.probes();
            let mut groups = vec![7; probes.len()];
            read_six.lookup(&probes, &mut groups);
            probes
                .iter()
                .zip(groups)
                .for_each(|(it, group)| assert_eq!(plain_six.lookup(*it), group, "{it:x}"));
        }
    }
    compare(read_four, &plain_four);
    for (address, len, group) in std::mem::take(&mut plain_four.0) {
        assert_eq!(four.remove(upper(address), len), Some(group));
    }
    let usage = four.usage();
    assert_eq!((usage.routes, usage.blocks), (0, 0));
    for (address, len, group) in std::mem::take(&mut plain_six.0) {
        assert_eq!(six.remove(address, len), Some(group));
    }
    six.commit().unwrap();
    assert_eq!(six.usage().routes, 0);
}

fn compare(reader: &mut v4::Reader, plain: &Plain) {
    let probes = plain.probes();
    let addresses: Vec<u32> = probes.iter().map(|it| upper(*it)).collect();
    let mut groups = vec![7; probes.len()];
    reader.lookup(&addresses, &mut groups);
    for (address, group) in addresses.iter().zip(groups) {
        assert_eq!(plain.lookup(u128::from(*address) << 96), group, "{address:x}");
    }
}
