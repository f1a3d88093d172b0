//! The MAC table: bounded, shared by all I/O cores, without locks.
//!
//! Theory of operation. The table is an array of buckets, each one cache line of eight entries. An address is
//! in the bucket that its hash names, in any of the eight entries. An entry is one 64-bit word, so that it is
//! read and replaced whole: a tag, the port, and what holds the entry, which is never zero; a word of zero is
//! empty. The time of the last sighting, in seconds, is in a second array, written only when it changes, so a
//! busy address dirties its line once a second.
//!
//! **What is looked up** is an address with its VLAN (0: none): 60 bits, and only 51 are left in the word.
//! The hash is a permutation of these 60 bits. Its highest bits name the bucket, its lower ones are the tag,
//! and both together tell the address again. So no two addresses are ever taken for each other, and a table
//! has at least 512 buckets.
//!
//! **The hash has a key**, drawn for each table, so no guest can tell which addresses share a bucket. If
//! buckets overflow all the same while most of the table is empty, a guest has found out
//! ([`MacTable::pressed`]). Then the switch gets a new table, which has another key.
//!
//! **The port that fills a bucket pays for it.** A new address takes a free entry; else the one that has aged
//! longest; else the oldest entry of the port with most entries in the bucket (if all have one, of the port
//! with most in the whole table). If its own port has more than that one, the address is not learned: its
//! frames pass, and frames for it are flooded.
//!
//! **An address has a home**, the port where it was learned. A frame from it at another port is a *claim*
//! (`claim`). From then on both ports get the frames for the address, until the home uses it again (the claim
//! was wrong), or loses its link or ages (the claim was right). So a station that moves is reached at once,
//! and a station whose address is forged still gets its frames, even if it never sends. If the home refutes
//! more than `claim::MOVES` claims within a second, the address is *held* at its home for `claim::HOLD`
//! seconds. The home itself may be the thief, so all ports that use the address meanwhile are its *rivals*
//! and get its frames. Where an address *moves* by the first frame from another port (802.1Q §8.7), that is
//! no claim. A *pinned* entry can neither be claimed nor move while its port has a carrier, a *static* one
//! never; neither ages or makes room.
//!
//! **Counts.** Each entry and each claim counts for its port. A core raises a count before it exchanges the
//! word for which the count stands, and lowers it after the exchange that removed one, if it won that
//! exchange. So a count is never less than the number of entries, and equal whenever no core is at work.
//!
//! Two cores that learn one address at the same time may each place it; both look again, and the entry
//! further behind goes.
//!
//! This file is what I/O cores do for each frame: look up and learn. `upkeep` is what the control plane does,
//! and `answers` what the table is told and tells.

mod answers;
mod upkeep;

pub use answers::{Dispute, Entry, Found, Kind, Learned, Rivals, Teller};

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::claim::Claim;
use super::sizes::{KEY_BITS, PORTS, WAYS};
use crate::mem::prefetch_read;
use crate::port::PortId;

/// An address: the low bits of what is looked up. Its VLAN stands above.
const MAC: u64 = (1 << 48) - 1;
const KEY: u64 = (1 << KEY_BITS) - 1;
const PORT_BITS: u32 = PORTS.trailing_zeros();
/// Bits of the permuted key that an entry keeps.
const TAG_BITS: u32 = u64::BITS - 3 - PORT_BITS;
const TAG: u64 = (1 << TAG_BITS) - 1;
const PORT: u64 = (PORTS as u64 - 1) << TAG_BITS;
/// What holds the entry in its place.
const KIND: u64 = 3 << 61;
const LEARNED: u64 = 1 << 61;
/// The entry stays while its port has a carrier.
const PINNED: u64 = 2 << 61;
/// The entry is the operator's: it stays whatever happens to its port.
const STATIC: u64 = 3 << 61;
/// Pinned or static.
const FIXED: u64 = PINNED & STATIC;
/// Another port claims the address, too.
const DISPUTED: u64 = 1 << 63;
/// The buckets name the bits of the key that a tag lacks.
const LEAST_BUCKETS: usize = 1 << KEY_BITS.saturating_sub(TAG_BITS);
/// How often an exchange is tried again that lost against another core's.
const TRIES: usize = 4;
/// Places of a bucket that stations of which a control plane tells do not fill for good.
const FREE_WAYS: usize = 2;
/// Entries that had to make room within a second, from which on a table that is mostly empty is under attack.
const PRESSURE: u32 = 64;

const _: () = assert!(PORTS.is_power_of_two() && PORT & (KIND | DISPUTED) == 0 && KEY_BITS % 2 == 0);

#[repr(C, align(64))]
struct Bucket([AtomicU64; WAYS]);

#[repr(C, align(64))]
struct Apart(AtomicU32);

/// Addresses and the ports behind which they live.
pub struct MacTable {
    buckets: Box<[Bucket]>,
    seen: Box<[[AtomicU32; WAYS]]>,
    claims: Box<[[AtomicU64; WAYS]]>,
    /// Ports that claimed the address in the second of the last claim, or while it was held.
    rivals: Box<[[AtomicU64; WAYS]]>,
    /// Entries and claims of each port.
    counts: Box<[AtomicU32]>,
    key: [u64; 2],
    /// What undoes a multiplication by the second half of the key.
    inverse: u64,
    shift: u32,
    /// Entries that had to make room before they had aged.
    evicted: Apart,
    /// How often an address came, went or moved.
    changes: Apart,
}

/// A place in the table.
#[derive(Clone, Copy)]
struct At {
    bucket: usize,
    way: usize,
}

impl MacTable {
    /// A table for about `capacity` addresses, rounded up to a power of two of 4096 at least, whose hash has
    /// this key.
    pub fn new(capacity: usize, key: [u64; 2]) -> MacTable {
        let buckets = (capacity / WAYS).max(LEAST_BUCKETS).next_power_of_two();
        let factor = key[1] | 1;
        // Each step doubles the bits that are right: an odd number is its own inverse modulo 8.
        let better = |inverse: u64, _| inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse)));
        MacTable {
            buckets: (0..buckets).map(|_| Bucket(std::array::from_fn(|_| AtomicU64::new(0)))).collect(),
            seen: (0..buckets).map(|_| std::array::from_fn(|_| AtomicU32::new(0))).collect(),
            claims: (0..buckets).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            rivals: (0..buckets).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            counts: (0..PORTS).map(|_| AtomicU32::new(0)).collect(),
            key: [key[0] & KEY, factor],
            inverse: (0..5).fold(factor, better),
            shift: KEY_BITS - buckets.trailing_zeros(),
            evicted: Apart(AtomicU32::new(0)),
            changes: Apart(AtomicU32::new(0)),
        }
    }

    fn changed(&self) {
        self.changes.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Grows when an address comes, goes or moves.
    pub fn changes(&self) -> u32 {
        self.changes.0.load(Ordering::Relaxed)
    }

    /// How many addresses fit.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// The bucket of `mac`, and its tag there.
    #[inline]
    pub(super) fn place_of(&self, mac: u64) -> (usize, u64) {
        // Multiplied, folded onto itself and multiplied again: unlike the high bits of one product it is not
        // linear, so two addresses that share a bucket say nothing about a third. Each step can be undone
        // (`mac_at`).
        let [mask, factor] = self.key;
        let product = (mac ^ mask).wrapping_mul(factor) & KEY;
        let hash = (product ^ product >> (KEY_BITS / 2)).wrapping_mul(factor) & KEY;
        ((hash >> (self.shift & 63)) as usize & (self.buckets.len() - 1), hash & TAG)
    }

    /// The address of `entry`, which is in `bucket`, and above it its VLAN.
    fn mac_at(&self, bucket: usize, entry: u64) -> u64 {
        let hash = (bucket as u64) << (self.shift & 63) | entry & TAG;
        let product = hash.wrapping_mul(self.inverse) & KEY;
        let product = product ^ product >> (KEY_BITS / 2);
        (product.wrapping_mul(self.inverse) & KEY) ^ self.key[0]
    }

    /// Asks the cache for the line that a lookup of `mac` will read.
    pub fn prefetch(&self, mac: u64) {
        prefetch_read(std::ptr::from_ref(&self.buckets[self.place_of(mac).0]).cast());
    }

    /// Where `mac` lives.
    #[inline]
    pub fn lookup(&self, mac: u64) -> Option<Found> {
        let (index, tag) = self.place_of(mac);
        for (way, entry) in self.buckets[index].0.iter().enumerate() {
            let word = entry.load(Ordering::Relaxed);
            if word & TAG == tag && word != 0 {
                let (claimant, rivals) = match word & DISPUTED {
                    0 => (None, Rivals::NONE),
                    _ => self.contenders(index, way),
                };
                return Some(Found { port: port_of(word), kind: kind_in(word), claimant, rivals });
            }
        }
        None
    }

    /// The ports that have the address besides its home.
    #[cold]
    fn contenders(&self, bucket: usize, way: usize) -> (Option<PortId>, Rivals) {
        let claim = Claim::from_word(self.claims[bucket][way].load(Ordering::Relaxed));
        let rivals = if claim.was_held() { self.rivals[bucket][way].load(Ordering::Relaxed) } else { 0 };
        (claim.claimant(), Rivals(rivals))
    }

    /// Notes that `mac` was seen at a port. `alive` tells whether a port has a carrier.
    #[inline]
    pub fn learn(&self, mac: u64, by: &Teller, alive: impl Fn(PortId) -> bool) -> Learned {
        if mac & MAC == 0 {
            return Learned::Full;
        }
        let (index, tag) = self.place_of(mac);
        let word = tag | u64::from(by.port.0) << TAG_BITS;
        for way in 0..WAYS {
            let entry = self.buckets[index].0[way].load(Ordering::Relaxed);
            if entry & TAG == tag && entry != 0 {
                let at = At { bucket: index, way };
                if entry & !KIND == word && (entry & FIXED != 0 || !by.owns) {
                    self.touch(at, by.now);
                    return Learned::Known;
                }
                return self.contend(at, entry, by, alive);
            }
        }
        self.place(mac, by, kind_of(by))
    }

    #[inline]
    fn touch(&self, at: At, now: u32) {
        let seen = &self.seen[at.bucket][at.way];
        if seen.load(Ordering::Relaxed) != now {
            seen.store(now, Ordering::Relaxed);
        }
    }

    /// The address of `entry` is seen where it does not live, or where it does while another port claims it.
    #[cold]
    fn contend(&self, at: At, entry: u64, by: &Teller, alive: impl Fn(PortId) -> bool) -> Learned {
        let home = port_of(entry);
        if home == by.port {
            self.touch(at, by.now);
            if self.refute(at, by.now) && !by.owns {
                return Learned::Known;
            }
            let kind = if entry & FIXED != 0 { entry & KIND } else { kind_of(by) };
            self.exchange(at, entry, (entry & !(DISPUTED | KIND)) | kind);
            return Learned::Known;
        }
        if entry & KIND == STATIC || entry & FIXED != 0 && alive(home) {
            return Learned::Pinned(home);
        }
        let age = by.now.saturating_sub(self.seen[at.bucket][at.way].load(Ordering::Relaxed));
        if !by.owns && !by.moves && age < by.ageing && alive(home) {
            return self.claim(at, entry, by);
        }
        self.take_over(at, entry, by, kind_of(by))
    }

    /// The address of `entry` lives at `by.port` from now on.
    fn take_over(&self, at: At, entry: u64, by: &Teller, kind: u64) -> Learned {
        if !self.add(by.port, by.limit) {
            return Learned::Limit;
        }
        let word = (entry & TAG) | u64::from(by.port.0) << TAG_BITS | kind;
        if !self.exchange(at, entry, word) {
            // Another core was faster; the next frame sees what came of it.
            self.sub(by.port);
            return Learned::Known;
        }
        self.touch(at, by.now);
        let home = port_of(entry);
        self.sub(home);
        let claim = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
        // How often it moves is counted.
        self.set_claim(at, if by.moves { claim.next(home, by.now).refuted() } else { Claim::NONE });
        self.changed();
        Learned::Moved(home)
    }

    /// `by.port` claims the address of `entry`.
    fn claim(&self, at: At, entry: u64, by: &Teller) -> Learned {
        let home = port_of(entry);
        let word = &self.claims[at.bucket][at.way];
        for _ in 0..TRIES {
            let old = Claim::from_word(word.load(Ordering::Relaxed));
            if old.is_held(by.now) {
                self.add_rival(at, by.port);
                return Learned::Held(home);
            }
            if old.claimant() == Some(by.port) {
                if old.heard() != Claim::clock(by.now) {
                    // A core that changes it meanwhile has newer knowledge.
                    let _ = self.exchange_claim(at, old, old.heard_at(by.now));
                }
                if entry & DISPUTED == 0 {
                    self.exchange(at, entry, entry | DISPUTED);
                }
                return Learned::Known;
            }
            let new = old.claimed_by(by.port, by.now);
            if new.claimant().is_some() && !self.add(by.port, by.limit) {
                return Learned::Limit;
            }
            if !self.exchange_claim(at, old, new) {
                new.claimant().iter().for_each(|port| self.sub(*port));
                continue;
            }
            if new.is_first() {
                self.rivals[at.bucket][at.way].store(0, Ordering::Relaxed);
            }
            self.add_rival(at, by.port);
            if new.claimant().is_none() {
                self.exchange(at, entry, entry | DISPUTED);
                return Learned::Held(home);
            }
            if !self.exchange(at, entry, entry | DISPUTED) && !self.is_of(at, entry) {
                // The entry made room for another address meanwhile: the claim goes with it.
                self.set_claim(at, Claim::NONE);
            }
            return Learned::Claimed(home);
        }
        Learned::Known
    }

    fn add_rival(&self, at: At, port: PortId) {
        let (rivals, one) = (&self.rivals[at.bucket][at.way], Rivals::of(port).0);
        if rivals.load(Ordering::Relaxed) & one == 0 {
            rivals.fetch_or(one, Ordering::Relaxed);
        }
    }

    /// Whether the place has still an entry of the same address and port.
    fn is_of(&self, at: At, entry: u64) -> bool {
        self.word(at).load(Ordering::Relaxed) & (TAG | PORT) == entry & (TAG | PORT)
    }

    /// The home has spoken: the port that claimed its address was wrong. That it was tried is remembered.
    /// True if the address is held: then its home's word does not count for more than that of others.
    fn refute(&self, at: At, now: u32) -> bool {
        let old = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
        if old.claimant().is_some() {
            self.exchange_claim(at, old, old.refuted());
        }
        old.is_held(now)
    }

    /// A place for an address that has none.
    #[cold]
    fn place(&self, mac: u64, by: &Teller, kind: u64) -> Learned {
        if !self.add(by.port, by.limit) {
            return Learned::Limit;
        }
        let (bucket, tag) = self.place_of(mac);
        let word = tag | u64::from(by.port.0) << TAG_BITS | kind;
        for _ in 0..TRIES {
            let Some((way, old)) = self.room(bucket, by) else { break };
            let at = At { bucket, way };
            let age = by.now.saturating_sub(self.seen[bucket][way].load(Ordering::Relaxed));
            if !self.exchange(at, old, word) {
                continue;
            }
            self.seen[bucket][way].store(by.now, Ordering::Relaxed);
            if old != 0 {
                self.sub(port_of(old));
                if age < by.ageing {
                    self.evicted.0.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.set_claim(at, Claim::NONE);
            self.settle(at, word);
            self.changed();
            return Learned::New;
        }
        self.sub(by.port);
        Learned::Full
    }

    /// The place in `bucket` that a newcomer gets, and what is there.
    fn room(&self, bucket: usize, by: &Teller) -> Option<(usize, u64)> {
        let words: [u64; WAYS] =
            std::array::from_fn(|way| self.buckets[bucket].0[way].load(Ordering::Relaxed));
        let age = |way: usize| by.now.saturating_sub(self.seen[bucket][way].load(Ordering::Relaxed));
        if let Some(way) = words.iter().position(|word| *word == 0) {
            return Some((way, 0));
        }
        let loose = || (0..WAYS).filter(|way| words[*way] & FIXED == 0);
        let of_same = |way: usize| words.iter().filter(|word| *word & PORT == words[way] & PORT).count();
        let aged = loose().filter(|way| age(*way) >= by.ageing).max_by_key(|way| age(*way));
        let all_of = |way: usize| self.count(port_of(words[way]));
        let way = aged.or_else(|| loose().max_by_key(|way| (of_same(*way), all_of(*way), age(*way))))?;
        // Several ports that fill the table together have few entries in each bucket. The newcomer is counted
        // already.
        let robs = age(way) < by.ageing && of_same(way) == 1 && self.count(by.port) > all_of(way) + 1;
        (!robs).then_some((way, words[way]))
    }

    /// Another core may have placed this address at the same time: the entry further behind goes.
    fn settle(&self, at: At, word: u64) {
        let mut first = true;
        for way in 0..WAYS {
            let place = At { way, ..at };
            let other = self.word(place).load(Ordering::SeqCst);
            if other & TAG != word & TAG || other == 0 {
                continue;
            }
            if !first && other & FIXED == 0 {
                self.remove(place, other);
            }
            first = false;
        }
    }

    /// Removes `entry` if it is still there, and the claim on it.
    fn remove(&self, at: At, entry: u64) -> bool {
        let done = self.exchange(at, entry, 0);
        if done {
            self.sub(port_of(entry));
            self.set_claim(at, Claim::NONE);
            self.changed();
        }
        done
    }

    /// Removes `entry`, or gives it to the port that claims it and was heard less than `ageing` seconds ago.
    fn give_up(&self, at: At, entry: u64, now: u32, ageing: u32) {
        let claim = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
        match claim.claimant().filter(|port| *port != port_of(entry) && claim.age(now) < ageing) {
            Some(port) => {
                let now = now.saturating_sub(claim.age(now));
                let by = Teller { port, limit: 0, owns: false, moves: false, now, ageing };
                self.take_over(at, entry, &by, LEARNED);
            }
            None => {
                self.remove(at, entry);
            }
        }
    }

    fn word(&self, at: At) -> &AtomicU64 {
        &self.buckets[at.bucket].0[at.way]
    }

    /// The one way in which an entry changes. Sequentially consistent for `settle`: of two cores that place
    /// one address, one sees the other's.
    fn exchange(&self, at: At, old: u64, new: u64) -> bool {
        self.word(at).compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The one way in which a claim changes. The core that wins the exchange takes the old claim off its
    /// port's count.
    fn exchange_claim(&self, at: At, old: Claim, new: Claim) -> bool {
        let word = &self.claims[at.bucket][at.way];
        let done = word.compare_exchange(old.word(), new.word(), Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if done && old.claimant() != new.claimant() {
            old.claimant().iter().for_each(|port| self.sub(*port));
        }
        done
    }

    /// Makes the claim `new`, which is counted for no port.
    fn set_claim(&self, at: At, new: Claim) {
        loop {
            let old = Claim::from_word(self.claims[at.bucket][at.way].load(Ordering::Relaxed));
            if old == new || self.exchange_claim(at, old, new) {
                return;
            }
        }
    }

    fn add(&self, port: PortId, limit: u32) -> bool {
        let Some(count) = self.counts.get(usize::from(port.0)) else { return false };
        let more = |n: u32| (limit == 0 || n < limit).then(|| n.saturating_add(1));
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn sub(&self, port: PortId) {
        if let Some(count) = self.counts.get(usize::from(port.0)) {
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a count below zero");
        }
    }

    /// Addresses that live at `port`, and those that it claims.
    pub fn count(&self, port: PortId) -> u32 {
        self.counts.get(usize::from(port.0)).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// What holds an entry that `by` makes.
fn kind_of(by: &Teller) -> u64 {
    if by.owns {
        PINNED
    } else {
        LEARNED
    }
}

#[inline]
fn kind_in(word: u64) -> Kind {
    match word & KIND {
        STATIC => Kind::Static,
        PINNED => Kind::Pinned,
        _ => Kind::Learned,
    }
}

fn port_of(word: u64) -> PortId {
    PortId(((word & PORT) >> TAG_BITS) as u16)
}
