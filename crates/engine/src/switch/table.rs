//! The MAC table: bounded, shared by all I/O cores, without locks.
//!
//! Theory of operation. The table is an array of buckets, each one cache line of eight entries; an
//! address lives in the bucket that its hash names, in any of the eight. An entry is one 64-bit word:
//! port in the high 16 bits, address in the low 48, so that it is read and replaced whole. Zero is
//! empty (the all-zero address is never learned). The time of the last sighting, in seconds, stands in
//! a second array, touched only when it changes, so a busy address dirties its line once a second.
//!
//! A full bucket gives its oldest entry up if that has aged; otherwise the address is not learned and
//! frames to it are flooded, which is slow but right. Two cores that learn in one bucket at the same
//! time may overwrite each other's entry; the loser learns again at its next frame. Nothing else can go
//! wrong: each lookup reads one word and compares it whole. `tests/loom.rs` models it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::mem::prefetch_read;
use crate::port::PortId;

const WAYS: usize = 8;
const MAC_BITS: u32 = 48;
const MAC: u64 = (1 << MAC_BITS) - 1;

#[repr(C, align(64))]
struct Bucket([AtomicU64; WAYS]);

/// Addresses and the ports behind which they live.
pub struct MacTable {
    buckets: Box<[Bucket]>,
    seen: Box<[[AtomicU32; WAYS]]>,
    shift: u32,
}

/// What learning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was known at this port.
    Known,
    /// The address is new.
    New,
    /// The address has moved here from this port.
    Moved(PortId),
    /// There is no room for it.
    Full,
}

/// One line of the table, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The address, first byte lowest.
    pub mac: u64,
    /// Where it lives.
    pub port: PortId,
    /// When it was last seen, in the clock that `learn` was given.
    pub seen: u32,
}

impl MacTable {
    /// A table for about `capacity` addresses: rounded up to a power of two, at least 64.
    pub fn new(capacity: usize) -> MacTable {
        let buckets = (capacity.max(64) / WAYS).next_power_of_two();
        MacTable {
            buckets: (0..buckets).map(|_| Bucket([const { AtomicU64::new(0) }; WAYS])).collect(),
            seen: (0..buckets).map(|_| [const { AtomicU32::new(0) }; WAYS]).collect(),
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    /// How many addresses fit.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    #[inline]
    fn bucket(&self, mac: u64) -> usize {
        // Multiplicative hashing (Fibonacci): the high bits depend on all bits of the address.
        #[expect(clippy::cast_possible_truncation, reason = "shifted down to the number of buckets")]
        {
            (mac.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (self.shift & 63)) as usize & (self.buckets.len() - 1)
        }
    }

    /// Asks the cache for the line that a lookup of `mac` will read.
    #[inline]
    pub fn prefetch(&self, mac: u64) {
        prefetch_read(std::ptr::from_ref(&self.buckets[self.bucket(mac)]).cast());
    }

    /// The port behind which `mac` lives.
    #[inline]
    pub fn lookup(&self, mac: u64) -> Option<PortId> {
        let bucket = &self.buckets[self.bucket(mac)];
        bucket
            .0
            .iter()
            .map(|entry| entry.load(Ordering::Relaxed))
            .find(|e| e & MAC == mac && *e != 0)
            .map(port_of)
    }

    /// Notes that `mac` was seen at `port` at time `now` (seconds). Entries not seen for `ageing` seconds
    /// may be replaced.
    pub fn learn(&self, mac: u64, port: PortId, now: u32, ageing: u32) -> Learned {
        if mac == 0 {
            return Learned::Full;
        }
        let index = self.bucket(mac);
        let (bucket, seen) = (&self.buckets[index].0, &self.seen[index]);
        let word = mac | u64::from(port.0) << MAC_BITS;
        let mut place = None;
        let mut oldest = 0;
        for way in 0..WAYS {
            let entry = bucket[way].load(Ordering::Relaxed);
            if entry & MAC == mac {
                if seen[way].load(Ordering::Relaxed) != now {
                    seen[way].store(now, Ordering::Relaxed);
                }
                if entry == word {
                    return Learned::Known;
                }
                bucket[way].store(word, Ordering::Relaxed);
                return Learned::Moved(port_of(entry));
            }
            let age = if entry == 0 { u32::MAX } else { now.wrapping_sub(seen[way].load(Ordering::Relaxed)) };
            if age >= ageing && age > oldest {
                oldest = age;
                place = Some(way);
            }
        }
        let Some(way) = place else { return Learned::Full };
        seen[way].store(now, Ordering::Relaxed);
        bucket[way].store(word, Ordering::Relaxed);
        Learned::New
    }

    /// Forgets addresses for which `stale` holds; returns how many.
    pub fn sweep(&self, stale: impl Fn(&Entry) -> bool) -> usize {
        let mut gone = 0;
        for (bucket, seen) in self.buckets.iter().zip(&self.seen) {
            for (word, seen) in bucket.0.iter().zip(seen) {
                let value = word.load(Ordering::Relaxed);
                if value == 0 || !stale(&entry_of(value, seen)) {
                    continue;
                }
                // Only if nobody has replaced it meanwhile.
                let done = word.compare_exchange(value, 0, Ordering::Relaxed, Ordering::Relaxed);
                gone += usize::from(done.is_ok());
            }
        }
        gone
    }

    /// All entries, in no particular order.
    pub fn entries(&self) -> Vec<Entry> {
        let all = self.buckets.iter().zip(&self.seen).flat_map(|(bucket, seen)| bucket.0.iter().zip(seen));
        all.map(|(word, seen)| (word.load(Ordering::Relaxed), seen))
            .filter(|(word, _)| *word != 0)
            .map(|(word, seen)| entry_of(word, seen))
            .collect()
    }
}

#[inline]
fn port_of(word: u64) -> PortId {
    PortId((word >> MAC_BITS) as u16)
}

fn entry_of(word: u64, seen: &AtomicU32) -> Entry {
    Entry { mac: word & MAC, port: port_of(word), seen: seen.load(Ordering::Relaxed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// While the table is not full, it is a map.
        #[test]
        fn it_agrees_with_a_map(ops in prop::collection::vec((1u64..40, 0u16..5), 1..200)) {
            let table = MacTable::new(4096);
            let mut map = HashMap::new();
            for (mac, port) in ops {
                let mac = mac * 0x0100_0001;
                let learned = table.learn(mac, PortId(port), 1, 300);
                let expected = match map.insert(mac, port) {
                    None => Learned::New,
                    Some(old) if old == port => Learned::Known,
                    Some(old) => Learned::Moved(PortId(old)),
                };
                prop_assert_eq!(learned, expected);
                for (mac, port) in &map {
                    prop_assert_eq!(table.lookup(*mac), Some(PortId(*port)));
                }
            }
            prop_assert_eq!(table.entries().len(), map.len());
        }
    }

    #[test]
    fn it_is_bounded_and_replaces_only_aged_entries() {
        let table = MacTable::new(64);
        let learned =
            (1..10_000u64).filter(|m| table.learn(m << 8, PortId(1), 10, 300) == Learned::New).count();
        assert!(learned <= table.capacity());
        assert_eq!(table.entries().len(), learned);
        assert_eq!(table.learn(0xffff << 8, PortId(1), 309, 300), Learned::Full);
        assert_eq!(table.learn(0xffff << 8, PortId(1), 310, 300), Learned::New);
        assert_eq!(table.sweep(|entry| entry.seen == 10), learned - 1);
        assert_eq!(table.lookup(0xffff << 8), Some(PortId(1)));
    }
}
