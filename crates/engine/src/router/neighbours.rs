//! Which station has which address: ARP (RFC 826) and Neighbor Discovery (RFC 4861 §7), as one table.
//!
//! Theory of operation. The table has a fixed number of entries in buckets, chosen by a keyed hash of port
//! and address. Any core reads an entry without a lock: a sequence number around each change tells a reader
//! that it has met one, and then it takes the address for unknown. Changes take a lock; an I/O core only
//! tries to, since whatever it could not note comes again.
//!
//! Readers do not depend on who fills the table: the router's own ARP and Neighbor Discovery, and the kernel
//! that stands before a control plane ([`Neighbours::learn_from_kernel`]). What an operator has written there
//! holds until it is taken back.
//!
//! An address is believed for [`REACHABLE`] seconds after it was heard, then used while it is asked for
//! again, and given up after [`TRIES`] questions without an answer. A newcomer replaces one that was never
//! found, or has not been heard of for long, so a scan of a network costs no neighbour of its port that is in
//! use its entry. The gateways of routes are pinned and keep theirs, [`PINNED`] in a bucket at most; further
//! ones are neighbours like others.
//!
//! Ports share the table. A station behind one can claim as many addresses as its network has, and every
//! port's network has all link-local ones. So in a bucket that is full the port with most entries gives one
//! to a newcomer of a port that has two fewer, and what one port claims, or is asked for, does not take an
//! entry where another port's neighbour may still answer ([`ANSWER`]). A scan of a network costs other ports
//! [`WAITING`] entries of a bucket at most.
//!
//! Several guests may stand behind one port of the router: behind a gateway, all those of its switch. So an
//! entry counts for the port that said it, which is one of the switch there. One that is only looked for
//! counts for the router's own port.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::net::address;
use crate::port::PortId;

/// Seconds for which an address is believed without being heard again (RFC 4861 §10, REACHABLE_TIME).
pub(super) const REACHABLE: u32 = 30;
/// Questions before an address counts as not there (RFC 4861 §10, MAX_MULTICAST_SOLICIT).
pub(super) const TRIES: u32 = 3;
/// Entries of a bucket.
const BUCKET: usize = 8;
/// Buckets.
const BUCKETS: usize = 1024;
/// Seconds after which a neighbour that was not heard may lose its entry.
const OLD: u32 = 2 * REACHABLE;

/// Seconds that the first question gets for its answer before newcomers of other ports take the entry.
const ANSWER: u32 = 2;
/// Entries of a bucket that gateways may keep. A routing daemon's peers say what they are, and may name ever
/// new ones: the rest is for neighbours, and for those gateways that found no entry to keep.
const PINNED: usize = BUCKET / 2;
/// Entries of a bucket in which neighbours of one port may wait for that, where other ports have to give them
/// up.
const WAITING: usize = 3;

/// When that was heard which always holds.
const FIXED: u32 = u32::MAX;

/// Odd, with bits everywhere: 2^64 by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The port of a free entry.
const FREE: u32 = u32::MAX;

/// An entry of the table.
#[derive(Default)]
#[repr(align(64))]
struct NeighbourEntry {
    /// Odd while the key changes.
    sequence: AtomicU32,
    port: AtomicU32,
    /// The port for which it counts: that of the guest that said it, or its own.
    by: AtomicU32,
    address: [AtomicU64; 2],
    /// The station's address as the low 48 bits of a little-endian word, or zero while it is not known.
    mac: AtomicU64,
    /// Second at which it was heard last.
    heard: AtomicU32,
    /// Second at which it was asked for last, and how often since it was heard.
    asked: AtomicU32,
    tries: AtomicU32,
    /// How many hops lead through it.
    pins: AtomicU32,
}

impl NeighbourEntry {
    fn free() -> NeighbourEntry {
        NeighbourEntry { port: FREE.into(), by: FREE.into(), ..NeighbourEntry::default() }
    }

    /// What `read` finds. `None`: the entry has got another key meanwhile.
    #[inline]
    fn read<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.sequence.load(Ordering::Acquire);
        let found = read()?;
        fence(Ordering::Acquire);
        (before % 2 == 0 && self.sequence.load(Ordering::Relaxed) == before).then_some(found)
    }

    #[inline]
    fn key(&self) -> (u32, u128) {
        let [low, high] = &self.address;
        let number = u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low.load(Ordering::Relaxed));
        (self.port.load(Ordering::Relaxed), number)
    }

    /// Gives the entry to another key, or to none; it counts for port `by`. Under the lock.
    fn give(&self, port: u32, by: u32, number: u128) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.port.store(port, Ordering::Relaxed);
        self.by.store(by, Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        self.address[0].store(number as u64, Ordering::Relaxed);
        self.address[1].store((number >> 64) as u64, Ordering::Relaxed);
        self.mac.store(0, Ordering::Relaxed);
        self.heard.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.tries.store(0, Ordering::Relaxed);
        self.sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It is there.
    Known(u64),
    /// It was there, and is to be asked for.
    Stale(u64),
    /// It is asked for.
    Unknown,
    /// It did not answer.
    Silent,
}

/// One entry, for status reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub port: PortId,
    pub address: IpAddr,
    pub mac: Option<u64>,
    pub reach: Reach,
    /// Seconds since it was heard.
    pub age: Option<u32>,
    pub gateway: bool,
}

/// The neighbours of one router.
pub(super) struct Neighbours {
    entries: Box<[NeighbourEntry]>,
    keys: [u64; 2],
    changing: Mutex<()>,
}

impl Neighbours {
    pub fn new() -> Neighbours {
        Neighbours {
            entries: (0..BUCKETS * BUCKET).map(|_| NeighbourEntry::free()).collect(),
            // The standard library's hasher is seeded by the system.
            keys: [0u8, 1].map(|half| RandomState::new().hash_one(half)),
            changing: Mutex::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        crate::lock(&self.changing)
    }

    /// The lock for an I/O core, which does not wait for it.
    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.changing.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn bucket(&self, port: PortId, number: u128) -> usize {
        let [low, high] = self.keys;
        #[expect(clippy::cast_possible_truncation, reason = "halves, and a number below BUCKETS")]
        {
            let (a, b) = (number as u64 ^ low, (number >> 64) as u64 ^ u64::from(port.0) << 48 ^ high);
            // Twice: a key whose low bits are zero leaves few buckets to numbers that are near each other.
            let fold = |a: u64, b: u64| {
                let product = u128::from(a) * u128::from(b);
                product as u64 ^ (product >> 64) as u64
            };
            (fold(fold(a, b) ^ low, GOLDEN) % BUCKETS as u64) as usize * BUCKET
        }
    }

    /// The entry of `number` at `port`.
    pub fn find(&self, port: PortId, number: u128) -> Option<usize> {
        let first = self.bucket(port, number);
        let mut entries = self.entries.iter().enumerate().skip(first).take(BUCKET);
        entries
            .find_map(|(at, entry)| entry.read(|| (entry.key() == (u32::from(port.0), number)).then_some(at)))
    }

    /// What is known of the neighbour at a pinned entry, or at one that was just found.
    #[inline]
    pub fn reach(&self, at: usize, now: u32) -> Reach {
        let Some(entry) = self.entries.get(at) else { return Reach::Unknown };
        let mac = entry.mac.load(Ordering::Relaxed);
        if mac == 0 {
            return match entry.tries.load(Ordering::Relaxed) {
                ..TRIES => Reach::Unknown,
                TRIES.. => Reach::Silent,
            };
        }
        if now.saturating_sub(entry.heard.load(Ordering::Relaxed)) <= REACHABLE {
            return Reach::Known(mac);
        }
        // The last question gets as long for its answer as the others.
        let since = now.saturating_sub(entry.asked.load(Ordering::Relaxed));
        match entry.tries.load(Ordering::Relaxed) {
            tries if tries < TRIES || tries == TRIES && since == 0 => Reach::Stale(mac),
            _ => Reach::Silent,
        }
    }

    /// The entry of `number` at `port`, and what is known of its station.
    #[inline]
    pub fn look(&self, port: PortId, number: u128, now: u32) -> Option<(usize, Reach)> {
        let at = self.find(port, number)?;
        let entry = self.entries.get(at)?;
        entry.read(|| {
            let reach = self.reach(at, now);
            // The entry may have got another owner since it was found.
            (entry.key() == (u32::from(port.0), number)).then_some((at, reach))
        })
    }

    /// Whether the caller is to ask for the neighbour at this entry now: one core, once a second.
    pub fn ask(&self, at: usize, now: u32) -> bool {
        let Some(entry) = self.entries.get(at) else { return false };
        let last = entry.asked.load(Ordering::Relaxed);
        if last == now {
            return false;
        }
        let mine = entry.asked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine {
            let tries = entry.tries.load(Ordering::Relaxed);
            entry.tries.store(tries.saturating_add(1), Ordering::Relaxed);
        }
        mine
    }

    /// An entry for a neighbour that nothing is known of yet; the entry that it has, if it has one.
    pub fn enter(&self, port: PortId, number: u128, now: u32) -> Option<usize> {
        let _lock = self.try_lock()?;
        self.find(port, number).or_else(|| self.take(port, port, number, now))
    }

    /// Gives the best entry of its bucket to a newcomer, which counts for port `by`. Under the lock.
    fn take(&self, port: PortId, by: PortId, number: u128, now: u32) -> Option<usize> {
        let first = self.bucket(port, number);
        let bucket = self.entries.get(first..first + BUCKET)?;
        let own = u32::from(by.0);
        let owner = |entry: &NeighbourEntry| entry.by.load(Ordering::Relaxed);
        let held = |port: u32| bucket.iter().filter(|entry| owner(entry) == port).count();
        let waits = |entry: &NeighbourEntry| {
            let asked = entry.asked.load(Ordering::Relaxed);
            entry.mac.load(Ordering::Relaxed) == 0 && now.saturating_sub(asked) < ANSWER
        };
        let gives = held(own) + 2;
        let wait = bucket.iter().filter(|entry| owner(entry) == own && waits(entry)).count();
        let worth = |entry: &NeighbourEntry| {
            let (heard, asked) = (entry.heard.load(Ordering::Relaxed), entry.asked.load(Ordering::Relaxed));
            let (of, is_known) = (owner(entry), entry.mac.load(Ordering::Relaxed) != 0);
            if of == FREE {
                return Some((0, 0, 0));
            }
            if entry.pins.load(Ordering::Relaxed) > 0 {
                return None;
            }
            if !is_known && (!waits(entry) || of == own && wait >= WAITING) {
                return Some((1, 0, asked));
            }
            if is_known && now.saturating_sub(heard) > OLD {
                return Some((2, 0, heard));
            }
            // The port with most of all comes first.
            let of_theirs = held(of);
            if of != own && of_theirs >= gives {
                return Some((3, BUCKET - of_theirs, heard));
            }
            (of == own && !is_known).then_some((4, 0, asked))
        };
        let best = bucket.iter().enumerate().filter_map(|(at, entry)| Some((worth(entry)?, at))).min()?;
        let at = first + best.1;
        self.entries.get(at)?.give(port.0.into(), own, number);
        Some(at)
    }

    /// Station `mac` says at `port` that it has `number`, in a frame that was sent `by` another port or this
    /// one. It is noted where that is asked for or known, and, if it is `for_us` that this was said, in any
    /// case. What was heard less than a second ago stays: two that claim one address by turns get one change
    /// a second.
    pub fn heard(&self, (port, by): (PortId, PortId), number: u128, mac: u64, for_us: bool, now: u32) {
        let Some(_lock) = self.try_lock() else { return };
        let known = self.find(port, number);
        let at = if for_us { known.or_else(|| self.take(port, by, number, now)) } else { known };
        let Some(entry) = at.and_then(|at| self.entries.get(at)) else { return };
        let (old, last) = (entry.mac.load(Ordering::Relaxed), entry.heard.load(Ordering::Relaxed));
        if last == FIXED || old != 0 && old != mac && last == now {
            return;
        }
        entry.by.store(by.0.into(), Ordering::Relaxed);
        entry.heard.store(now, Ordering::Relaxed);
        entry.tries.store(0, Ordering::Relaxed);
        entry.mac.store(mac, Ordering::Relaxed);
    }

    /// The control plane's kernel says that station `mac` has `number`; for ever, if `fixed`. `None`: it has
    /// said so for ever, and does not any more.
    pub fn learn_from_kernel(&self, port: PortId, number: u128, mac: Option<u64>, fixed: bool, now: u32) {
        let _lock = self.lock();
        let known = self.find(port, number);
        let at = if mac.is_some() { known.or_else(|| self.take(port, port, number, now)) } else { known };
        let Some(entry) = at.and_then(|at| self.entries.get(at)) else { return };
        let was_fixed = entry.heard.load(Ordering::Relaxed) == FIXED;
        match mac {
            Some(mac) if fixed || !was_fixed => {
                entry.heard.store(if fixed { FIXED } else { now }, Ordering::Relaxed);
                entry.tries.store(0, Ordering::Relaxed);
                entry.mac.store(mac, Ordering::Relaxed);
            }
            // Asked for when it is needed.
            None if was_fixed => {
                entry.mac.store(0, Ordering::Relaxed);
                entry.heard.store(0, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// An entry that `number` keeps until it is unpinned as often as it was pinned. `None`: its bucket has
    /// [`PINNED`] such.
    pub fn pin(&self, port: PortId, number: u128, now: u32) -> Option<usize> {
        let _lock = self.lock();
        let first = self.bucket(port, number);
        let is_pinned = |entry: &NeighbourEntry| entry.pins.load(Ordering::Relaxed) > 0;
        let known = self.find(port, number);
        let again = known.and_then(|at| self.entries.get(at)).is_some_and(is_pinned);
        let pinned = self.entries.iter().skip(first).take(BUCKET).filter(|entry| is_pinned(entry)).count();
        if !again && pinned >= PINNED {
            return None;
        }
        let at = known.or_else(|| self.take(port, port, number, now)).or_else(|| {
            // Better a neighbour that is asked for again than a gateway that is.
            let mut entries = self.entries.iter().enumerate().skip(first).take(BUCKET);
            let (at, entry) = entries.find(|(_, entry)| !is_pinned(entry))?;
            entry.give(port.0.into(), port.0.into(), number);
            Some(at)
        })?;
        self.entries.get(at)?.pins.fetch_add(1, Ordering::Relaxed);
        Some(at)
    }

    /// One hop less leads through it.
    pub fn unpin(&self, at: usize) {
        let _lock = self.lock();
        if let Some(entry) = self.entries.get(at) {
            let pins = entry.pins.load(Ordering::Relaxed);
            entry.pins.store(pins.saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// Forgets the neighbours at ports of which `stays` is false, but for gateways.
    pub fn retain(&self, stays: impl Fn(PortId) -> bool) {
        let _lock = self.lock();
        for entry in &self.entries {
            let port = entry.port.load(Ordering::Relaxed);
            let gone = port != FREE && !u16::try_from(port).is_ok_and(|port| stays(PortId(port)));
            if gone && entry.pins.load(Ordering::Relaxed) == 0 {
                entry.give(FREE, FREE, 0);
            }
        }
    }

    /// All that is known. Read as I/O cores read: a report that took the lock would cost them the answers
    /// that came meanwhile. An entry that is given away while it is read is left out.
    pub fn all(&self, now: u32) -> Vec<Known> {
        let known = |(at, entry): (usize, &NeighbourEntry)| {
            entry.read(|| {
                let (port, number) = entry.key();
                let port = PortId(u16::try_from(port).ok()?);
                let mac = Some(entry.mac.load(Ordering::Relaxed)).filter(|mac| *mac != 0);
                let heard = entry.heard.load(Ordering::Relaxed);
                let age = mac.filter(|_| heard != FIXED).map(|_| now.saturating_sub(heard));
                let gateway = entry.pins.load(Ordering::Relaxed) > 0;
                let reach = self.reach(at, now);
                Some(Known { port, address: address(number), mac, reach, age, gateway })
            })
        };
        self.entries.iter().enumerate().filter_map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(3);
    const B: PortId = PortId(4);

    #[test]
    fn a_neighbour_is_asked_for_found_stale_and_silent() {
        let table = Neighbours::new();
        assert_eq!(table.look(A, 7, 10), None);
        let at = table.enter(A, 7, 10).unwrap();
        assert_eq!(table.enter(A, 7, 10), Some(at), "it has an entry");
        assert_eq!(table.reach(at, 10), Reach::Unknown);
        assert!(table.ask(at, 10) && !table.ask(at, 10), "once a second");
        // An answer of a station that was not asked for is not believed, unless it was sent to us.
        table.heard((A, A), 8, 0x22, false, 10);
        assert_eq!(table.look(A, 8, 10), None);
        table.heard((A, A), 8, 0x22, true, 10);
        assert_eq!(table.look(A, 8, 10).unwrap().1, Reach::Known(0x22));
        table.heard((A, A), 7, 0x11, false, 11);
        assert_eq!(table.look(A, 7, 11 + REACHABLE), Some((at, Reach::Known(0x11))));
        let late = 12 + REACHABLE;
        assert_eq!(table.reach(at, late), Reach::Stale(0x11));
        for second in late..late + TRIES {
            assert_eq!(table.reach(at, second), Reach::Stale(0x11));
            assert!(table.ask(at, second));
        }
        assert_eq!(table.reach(at, late + TRIES), Reach::Silent);
        table.heard((A, A), 7, 0x12, false, 99);
        assert_eq!(table.reach(at, 99), Reach::Known(0x12));
    }

    /// An answer that comes while someone looks at the table is noted: nothing asks again before the next
    /// packet.
    #[test]
    fn a_report_costs_no_answer() {
        let (table, reports) = (&Neighbours::new(), &AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    table.all(10);
                    reports.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut second = 10;
            while reports.load(Ordering::Relaxed) < 50 {
                second += 1;
                table.heard((A, A), 7, second.into(), true, second);
                assert_eq!(table.look(A, 7, second).unwrap().1, Reach::Known(second.into()));
            }
        });
    }

    #[test]
    fn what_an_operator_has_written_holds_until_it_is_taken_back() {
        let table = Neighbours::new();
        table.learn_from_kernel(A, 7, Some(0x11), true, 5);
        table.heard((A, A), 7, 0x66, true, 9);
        table.learn_from_kernel(A, 7, Some(0x66), false, 9);
        assert_eq!(table.look(A, 7, 9 * OLD).unwrap().1, Reach::Known(0x11));
        assert_eq!(table.all(9 * OLD)[0].age, None);
        table.learn_from_kernel(A, 7, None, false, 9 * OLD);
        assert_eq!(table.look(A, 7, 9 * OLD).unwrap().1, Reach::Unknown);
        table.learn_from_kernel(A, 7, Some(0x12), false, 9 * OLD);
        assert_eq!(table.look(A, 7, 9 * OLD).unwrap().1, Reach::Known(0x12));
        assert_eq!(table.look(A, 7, 9 * OLD + REACHABLE + 1).unwrap().1, Reach::Stale(0x12));
    }

    #[test]
    fn two_that_claim_one_address_change_it_once_a_second() {
        let table = Neighbours::new();
        table.heard((A, A), 7, 0x11, true, 5);
        table.heard((A, A), 7, 0x66, true, 5);
        assert_eq!(table.look(A, 7, 5).unwrap().1, Reach::Known(0x11));
        table.heard((A, A), 7, 0x66, true, 6);
        assert_eq!(table.look(A, 7, 6).unwrap().1, Reach::Known(0x66));
    }

    #[test]
    fn a_scan_costs_nobody_who_is_in_use_a_place() {
        let table = Neighbours::new();
        for it in 0..200 {
            table.heard((A, A), it, u64::try_from(it).unwrap() + 1, true, 100);
        }
        let pinned = table.pin(A, 5_000, 100).unwrap();
        for it in 0..100_000 {
            if let Some(at) = table.enter(A, (1 << 64) + it, 101) {
                table.ask(at, 101);
            }
        }
        assert_eq!(table.all(101).len(), BUCKET * BUCKETS, "bounded");
        assert_eq!(table.find(A, 5_000), Some(pinned));
        for it in 0..200 {
            assert_eq!(table.look(A, it, 101).unwrap().1, Reach::Known(u64::try_from(it).unwrap() + 1));
        }
        // Neighbours that were not heard for long make room, the gateway does not.
        (0..100_000).for_each(|it| table.heard((A, A), (2 << 64) + it, 9, true, 102 + OLD));
        assert_eq!(table.find(A, 5_000), Some(pinned));
        table.unpin(pinned);
        table.retain(|_| false);
        assert!(table.all(103 + OLD).is_empty());
    }

    /// A routing daemon's peers name as many gateways as there are.
    #[test]
    fn gateways_leave_room_for_neighbours() {
        let table = Neighbours::new();
        let pinned: Vec<_> = (0..60_000).filter_map(|n| table.pin(A, n, 100)).collect();
        assert_eq!(pinned.len(), BUCKETS * PINNED);
        // One that has its entry is pinned again where there is room for no other one.
        let (_, number) = table.entries[pinned[0]].key();
        assert_eq!(table.pin(A, number, 100), Some(pinned[0]));
        // Neighbours of another port, and gateways that found no entry to keep. So few that no more than a
        // bucket's free entries come together, whatever the hash's key.
        for number in 100_000..100_050 {
            table.heard((B, B), number, 7, true, 100);
            assert!(table.find(B, number).is_some());
        }
        let (left, now) = ((0..60_000).find(|n| table.find(A, *n).is_none()).unwrap(), 200);
        table.heard((A, A), left, 7, true, now);
        assert_eq!(table.look(A, left, now).map(|(_, reach)| reach), Some(Reach::Known(7)));
    }

    /// A station behind one port can claim as many addresses as there are.
    #[test]
    fn claims_at_one_port_cost_the_others_no_place() {
        let table = Neighbours::new();
        let (mut next, mut second) = (1u128 << 64, 100);
        let mut claim = |second| {
            for _ in 0..100_000 {
                next += 1;
                table.heard((A, A), next, 9, true, second);
            }
        };
        let know = |it: u128, second: u32| {
            let at = table.enter(B, it, second).expect("no entry for one that is asked for");
            assert!(table.ask(at, second));
            at
        };
        claim(second);
        let most = table.all(second).len();
        assert!(most > BUCKET * BUCKETS * 9 / 10, "{most}");
        for it in 0..20 {
            know(it, second);
        }
        // While it is asked for, and when it has answered.
        claim(second);
        claim(second + 1);
        second += 1;
        for it in 0..20 {
            table.heard((B, B), it, 7, false, second);
            assert_eq!(table.look(B, it, second).unwrap().1, Reach::Known(7), "{it} lost its entry");
        }
        claim(second + OLD);
        (0..20).for_each(|it| assert_eq!(table.look(B, it, second + OLD).unwrap().1, Reach::Stale(7)));
        // One that never answers is no reason to keep an entry, and one that comes back finds one.
        know(5_000, second);
        claim(second + OLD + 1);
        assert_eq!((0..20).filter(|it| table.find(B, *it).is_some()).count(), 0);
        assert_eq!(table.find(B, 5_000), None);
        (0..20).for_each(|it| assert!(table.enter(B, it, second + OLD + 2).is_some()));
    }

    /// Behind a gateway stands a switch with several guests.
    #[test]
    fn claims_of_one_guest_cost_those_of_the_same_switch_no_place() {
        let (table, gateway, third) = (Neighbours::new(), A, PortId(9));
        let mut next = 1u128 << 64;
        let mut claim = |second| {
            for _ in 0..100_000 {
                next += 1;
                table.heard((gateway, B), next, 9, true, second);
            }
        };
        claim(100);
        // A guest that comes then, and one that is looked for from elsewhere.
        for it in 0..20 {
            table.heard((gateway, third), it, 7, true, 100);
            assert!(table.find(gateway, it).is_some(), "{it} found no entry");
            let at = table.enter(gateway, 100 + it, 100).expect("no entry for one that is asked for");
            assert!(table.ask(at, 100));
        }
        claim(100);
        for it in 0..20 {
            table.heard((gateway, third), 100 + it, 7, true, 101);
            let known = |number| table.look(gateway, number, 101).map(|(_, reach)| reach);
            assert_eq!((known(it), known(100 + it)), (Some(Reach::Known(7)), Some(Reach::Known(7))));
        }
    }

    /// What one port has does not go below what another one has there: no two ports' neighbours take entries
    /// from each other for ever.
    #[test]
    fn ports_share_a_bucket() {
        let table = Neighbours::new();
        let (table, bucket) = (&table, table.bucket(A, 0));
        let of = |port, count| -> Vec<u128> {
            (0..).filter(|it| table.bucket(port, *it) == bucket).take(count).collect()
        };
        let (a, b) = (of(A, 20), of(B, 20));
        let held = |port| table.all(10).iter().filter(|known| known.port == port).count();
        a.iter().for_each(|it| table.heard((A, A), *it, 1, true, 10));
        assert_eq!(held(A), BUCKET);
        b.iter().for_each(|it| table.heard((B, B), *it, 2, true, 10));
        assert_eq!((held(A), held(B)), (BUCKET / 2, BUCKET / 2));
        a.iter().for_each(|it| table.heard((A, A), *it, 1, true, 11));
        assert_eq!((held(A), held(B)), (BUCKET / 2, BUCKET / 2));
        // A scan of one port's network takes an entry of the other's, and goes on with that.
        let third = PortId(5);
        for it in of(third, 40) {
            if let Some(at) = table.enter(third, it, 11) {
                table.ask(at, 11);
            }
        }
        assert_eq!((held(A), held(B), held(third)), (3, 3, 2));
        // It takes some entries of a port that has much more.
        let table = &Neighbours::new();
        let bucket = table.bucket(A, 0);
        let of = |port, count| -> Vec<u128> {
            (0..).filter(|it| table.bucket(port, *it) == bucket).take(count).collect()
        };
        of(A, 20).iter().for_each(|it| table.heard((A, A), *it, 1, true, 10));
        for it in of(third, 40) {
            let at = table.enter(third, it, 11).unwrap();
            table.ask(at, 11);
        }
        assert_eq!(table.all(11).iter().filter(|known| known.port == third).count(), WAITING);
    }
}
