//! What readers of IPv6 routes see.

use std::sync::Arc;

use super::lists::List;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::memory::Zeroed;
use crate::{EXTENDED, NO_ROUTE};

/// Intervals of a chunk.
pub(crate) const CHUNK: usize = 256;
/// Addresses that are looked up side by side.
const ABREAST: usize = 16;

/// The chunks: the keys of all, and what they lead to.
pub(crate) struct Chunks {
    keys: Zeroed<AtomicU64>,
    values: Zeroed<AtomicU32>,
}

impl Chunks {
    /// Room for `chunks`; memory is taken as they are used.
    pub fn new(chunks: usize) -> rustix::io::Result<Chunks> {
        Ok(Chunks { keys: Zeroed::new(chunks * CHUNK)?, values: Zeroed::new(chunks * CHUNK)? })
    }

    /// How many there is room for.
    pub fn len(&self) -> usize {
        self.keys.len() / CHUNK
    }

    /// Writes a chunk that no reader can be in: the first key of each interval and what it leads to, in order, [`CHUNK`] at most.
    pub fn fill(&self, chunk: u32, mut intervals: impl Iterator<Item = (u64, u32)>) {
        let first = chunk as usize * CHUNK;
        let (keys, values) = (self.keys.get(first..first + CHUNK), self.values.get(first..first + CHUNK));
        // Keys behind the last interval are the highest one. Only the highest address finds them: it belongs to the last interval.
        let mut last = NO_ROUTE;
        for (key, value) in keys.unwrap_or(&[]).iter().zip(values.unwrap_or(&[])) {
            let (begin, group) = intervals.next().unwrap_or((u64::MAX, last));
            key.store(begin, Ordering::Relaxed);
            value.store(group, Ordering::Relaxed);
            last = group;
        }
    }

    #[inline]
    fn keys(&self, chunk: u32) -> &[AtomicU64; CHUNK] {
        static NONE: [AtomicU64; CHUNK] = [const { AtomicU64::new(u64::MAX) }; CHUNK];
        self.keys.get(chunk as usize * CHUNK..).and_then(|keys| keys.first_chunk()).unwrap_or(&NONE)
    }
}

/// The place in each chunk of the last key that is not above the one that is looked for: binary searches, which all take the
/// same steps, so that their accesses to memory overlap.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a place is below CHUNK: masked, and known to the compiler")]
fn find(chunks: &[&[AtomicU64; CHUNK]; ABREAST], keys: &[u64; ABREAST]) -> [usize; ABREAST] {
    let mut places = [0usize; ABREAST];
    let mut half = CHUNK / 2;
    while half > 0 {
        for ((place, chunk), key) in places.iter_mut().zip(chunks).zip(keys) {
            let there = chunk[(*place | half) & (CHUNK - 1)].load(Ordering::Relaxed);
            *place |= half & all_if(there <= *key);
        }
        half /= 2;
    }
    places
}

/// The table: an index of chunks, and the lists of longer prefixes.
pub(crate) struct Table {
    /// Where each chunk begins; the first one at zero.
    starts: Box<[u64]>,
    index: Box<[AtomicU32]>,
    chunks: Arc<Chunks>,
    lists: Box<[Arc<List>]>,
    /// What the default route leads to.
    default: AtomicU32,
}

impl Table {
    /// A table of these chunks, in order with where they begin.
    pub fn new(chunks: &Arc<Chunks>, index: &[(u64, u32)], lists: &[Arc<List>], default: u32) -> Table {
        Table {
            starts: index.iter().map(|(start, _)| *start).collect(),
            index: index.iter().map(|(_, chunk)| AtomicU32::new(*chunk)).collect(),
            chunks: Arc::clone(chunks),
            lists: lists.into(),
            default: AtomicU32::new(default),
        }
    }

    /// Has the index lead to another chunk, which begins where the one before did.
    pub fn replace(&self, place: usize, chunk: u32) {
        if let Some(at) = self.index.get(place) {
            at.store(chunk, Ordering::Release);
        }
    }

    pub fn set_default(&self, group: u32) {
        self.default.store(group, Ordering::Release);
    }

    #[inline]
    pub fn lookup(&self, addresses: &[u128], groups: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        for (addresses, groups) in addresses.chunks(ABREAST).zip(groups.chunks_mut(ABREAST)) {
            self.abreast(addresses, groups, default);
        }
    }

    /// Looks [`ABREAST`] addresses up, one step for all of them after the other.
    #[inline]
    fn abreast(&self, addresses: &[u128], groups: &mut [u32], default: u32) {
        let mut keys = [0; ABREAST];
        keys.iter_mut().zip(addresses).for_each(|(key, address)| *key = upper(*address));
        let chunks = self.chunks_of(&keys);
        let places = find(&chunks.map(|chunk| self.chunks.keys(chunk)), &keys);
        for (((chunk, place), address), group) in chunks.iter().zip(places).zip(addresses).zip(groups) {
            let at = *chunk as usize * CHUNK + place;
            let value = self.chunks.values.get(at).map_or(NO_ROUTE, |value| value.load(Ordering::Relaxed));
            *group = if value & EXTENDED == 0 { value } else { self.longer(value, *address) };
            *group = if *group == NO_ROUTE { default } else { *group };
        }
    }

    #[inline(never)]
    fn longer(&self, value: u32, address: u128) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let lower = address as u64;
        self.lists.get((value ^ EXTENDED) as usize).map_or(NO_ROUTE, |list| list.lookup(lower))
    }

    /// The chunk of each key: binary searches, which all take the same steps.
    #[inline]
    fn chunks_of(&self, keys: &[u64; ABREAST]) -> [u32; ABREAST] {
        let mut first = [0; ABREAST];
        let mut len = self.starts.len();
        while len > 1 {
            let half = len / 2;
            for (first, key) in first.iter_mut().zip(keys) {
                let middle = self.starts.get(*first + half).copied().unwrap_or(u64::MAX);
                *first = first.wrapping_add(half & all_if(middle <= *key));
            }
            len -= half;
        }
        first.map(|at| self.index.get(at).map_or(0, |chunk| chunk.load(Ordering::Acquire)))
    }
}

/// All bits, or none: what a comparison selects by. The compiler would make a branch of it, which the processor guesses wrong
/// half of the time; what comes out of `black_box` it cannot branch on.
#[inline]
fn all_if(yes: bool) -> usize {
    std::hint::black_box(usize::from(yes).wrapping_neg())
}

#[inline]
fn upper(address: u128) -> u64 {
    (address >> 64) as u64
}
