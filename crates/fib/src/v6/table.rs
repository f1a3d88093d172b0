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
/// Keys of a cache line.
const LINE: usize = 8;
/// Keys that begin a quarter of a chunk.
const QUARTERS: usize = CHUNK / LINE / LINE;
/// Keys that a chunk has: the first ones of its quarters in a line, the first ones of its lines, and all of
/// them. So a search touches three lines, where one among all keys alone would touch five or six.
const KEYS: usize = LINE + CHUNK / LINE + CHUNK;

/// The chunks: the keys of all, and what they lead to.
pub(crate) struct Chunks {
    keys: Zeroed<AtomicU64>,
    values: Zeroed<AtomicU32>,
}

impl Chunks {
    /// Room for `chunks`; memory is taken as they are used.
    pub fn new(chunks: usize) -> rustix::io::Result<Chunks> {
        Ok(Chunks { keys: Zeroed::new(chunks * KEYS)?, values: Zeroed::new(chunks * CHUNK)? })
    }

    /// Bytes of each.
    pub const BYTES: usize = KEYS * size_of::<u64>() + CHUNK * size_of::<u32>();

    /// How many there is room for.
    pub fn len(&self) -> usize {
        self.values.len() / CHUNK
    }

    /// Writes a chunk that no reader can be in: the first key of each interval and what it leads to, in
    /// order, [`CHUNK`] at most.
    pub fn fill(&self, chunk: u32, mut intervals: impl Iterator<Item = (u64, u32)>) {
        let values = self.values.get(chunk as usize * CHUNK..).unwrap_or_default();
        let Some((quarters, rest)) = self.place(chunk).map(|keys| keys.split_at(LINE)) else { return };
        let (lines, keys) = rest.split_at(CHUNK / LINE);
        // Keys behind the last interval are the highest one. Only the highest address finds them: it belongs
        // to the last interval.
        let mut last = NO_ROUTE;
        for (at, (key, value)) in keys.iter().zip(values).enumerate() {
            let (begin, group) = intervals.next().unwrap_or((u64::MAX, last));
            key.store(begin, Ordering::Relaxed);
            value.store(group, Ordering::Relaxed);
            let (line, quarter) = (at / LINE, at / LINE / LINE);
            lines
                .get(line)
                .filter(|_| at % LINE == 0)
                .iter()
                .for_each(|it| it.store(begin, Ordering::Relaxed));
            let quarter = quarters.get(quarter).filter(|_| at % (LINE * LINE) == 0);
            quarter.iter().for_each(|it| it.store(begin, Ordering::Relaxed));
            last = group;
        }
    }

    #[inline]
    fn keys(&self, chunk: u32) -> &[AtomicU64; KEYS] {
        static NONE: [AtomicU64; KEYS] = [const { AtomicU64::new(u64::MAX) }; KEYS];
        self.place(chunk).unwrap_or(&NONE)
    }

    #[inline]
    fn place(&self, chunk: u32) -> Option<&[AtomicU64; KEYS]> {
        self.keys.get(chunk as usize * KEYS..).and_then(|keys| keys.first_chunk())
    }
}

/// The place in each chunk of the last key that is not above the one that is looked for: binary searches in a
/// line of quarters, a line of lines and a line. All take the same steps, so that their accesses to memory
/// overlap.
#[inline]
fn find(chunks: &[&[AtomicU64; KEYS]; ABREAST], keys: &[u64; ABREAST]) -> [usize; ABREAST] {
    let mut places = [0; ABREAST];
    narrow::<0, QUARTERS>(chunks, keys, &mut places);
    narrow::<LINE, LINE>(chunks, keys, &mut places);
    narrow::<{ LINE + CHUNK / LINE }, LINE>(chunks, keys, &mut places);
    places
}

/// Goes on from places in one order of keys to places in the next one, which begins at `FIRST` and has `EACH`
/// keys for each.
#[inline]
#[expect(clippy::indexing_slicing, reason = "below KEYS: masked, and known to the compiler")]
fn narrow<const FIRST: usize, const EACH: usize>(
    chunks: &[&[AtomicU64; KEYS]; ABREAST],
    keys: &[u64; ABREAST],
    places: &mut [usize; ABREAST],
) {
    places.iter_mut().for_each(|place| *place *= EACH);
    let mut half = EACH / 2;
    while half > 0 {
        for ((place, chunk), key) in places.iter_mut().zip(chunks).zip(keys) {
            let there = chunk[FIRST + ((*place | half) & (CHUNK - 1))].load(Ordering::Relaxed);
            *place |= half & all_if(there <= *key);
        }
        half /= 2;
    }
}

/// Where chunks begin, and which of them an address can be in by its first [`ROOT`] bits.
pub(crate) struct Order {
    /// Where each begins; the first one at zero.
    starts: Box<[u64]>,
    /// For each beginning of an address: the chunk that the lowest such address is in. One more at the end.
    roots: Box<[u32]>,
}

/// The regions that registries hand out differ in their first 16 bits.
const ROOT: u32 = 16;

impl Order {
    /// Bytes that readers may touch.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.roots)
    }

    pub fn new(starts: Box<[u64]>) -> Order {
        let mut roots = Vec::with_capacity((1 << ROOT) + 1);
        // One chunk after the other: those addresses that begin in it are behind the start of it.
        let ends = starts.iter().skip(1).copied();
        for (chunk, next) in (0..).zip(ends) {
            let upto = (next.saturating_sub(1) >> (u64::BITS - ROOT)) as usize;
            roots.resize(roots.len().max(upto + 1), chunk);
        }
        let last = u32::try_from(starts.len().saturating_sub(1)).unwrap_or(0);
        roots.resize((1 << ROOT) + 1, last);
        Order { starts, roots: roots.into() }
    }

    /// The place of the chunk that each key is in: binary searches, which all take the same steps.
    #[inline]
    fn find(&self, keys: &[u64; ABREAST]) -> [usize; ABREAST] {
        let (mut places, mut len) = ([0; ABREAST], 1);
        for (place, key) in places.iter_mut().zip(keys) {
            let root = (*key >> (u64::BITS - ROOT)) as usize;
            let at = |root: usize| self.roots.get(root).map_or(0, |chunk| *chunk as usize);
            *place = at(root);
            len = len.max(at(root + 1) + 1 - *place);
        }
        while len > 1 {
            let half = len / 2;
            for (place, key) in places.iter_mut().zip(keys) {
                // Behind its own end a search meets greater keys alone.
                let middle = self.starts.get(*place + half).copied().unwrap_or(u64::MAX);
                *place = place.wrapping_add(half & all_if(middle <= *key));
            }
            len -= half;
        }
        places
    }
}

/// The table: an index of chunks, and the lists of longer prefixes.
pub(crate) struct Table {
    order: Arc<Order>,
    /// The chunks in that order.
    index: Box<[AtomicU32]>,
    chunks: Arc<Chunks>,
    lists: Arc<[Arc<List>]>,
    /// What the default route leads to.
    default: AtomicU32,
}

impl Table {
    /// A table of these chunks in this order.
    pub fn new(
        chunks: &Arc<Chunks>,
        order: &Arc<Order>,
        index: impl Iterator<Item = u32>,
        lists: &Arc<[Arc<List>]>,
        default: u32,
    ) -> Table {
        Table {
            order: Arc::clone(order),
            index: index.map(AtomicU32::new).collect(),
            chunks: Arc::clone(chunks),
            lists: Arc::clone(lists),
            default: AtomicU32::new(default),
        }
    }

    /// Bytes that readers may touch beside chunks and lists.
    pub fn bytes(&self) -> usize {
        self.order.bytes() + size_of_val(&*self.index)
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
        let at = self.order.find(&keys);
        let chunks = at.map(|at| self.index.get(at).map_or(0, |chunk| chunk.load(Ordering::Acquire)));
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
}

/// All bits, or none: what a comparison selects by. The compiler would make a branch of it, which the
/// processor guesses wrong half of the time; what comes out of `black_box` it cannot branch on.
#[inline]
fn all_if(yes: bool) -> usize {
    std::hint::black_box(usize::from(yes).wrapping_neg())
}

#[inline]
fn upper(address: u128) -> u64 {
    (address >> 64) as u64
}
