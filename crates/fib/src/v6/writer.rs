//! The writer of IPv6 routes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use prefix_trie::PrefixMap;

use super::intervals::{cut, join, Interval};
use super::lists::List;
use super::table::{Chunks, Order, Table, CHUNK};
use super::Reader;
use crate::publish::{Published, Replaced, View};
use crate::{Error, EXTENDED, MAX_GROUP, NO_ROUTE};

/// Bits of an address.
const BITS: u8 = 128;
/// The longest prefix that is an interval of upper halves.
const SHORT: u8 = 64;
/// Chunks that there is room for at first.
const CHUNKS: usize = 1024;

/// A chunk's intervals, and where readers find them.
struct Chunk {
    intervals: Vec<Interval>,
    place: Option<u32>,
}

impl Chunk {
    fn start(&self) -> u64 {
        self.intervals.first().map_or(0, |interval| interval.start)
    }
}

/// An upper half with prefixes longer than /64.
struct Deep {
    list: u32,
    longer: u32,
}

/// What a table takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Routes, the default route among them.
    pub routes: usize,
    /// Intervals of the upper 64 bits.
    pub intervals: usize,
    /// Their chunks.
    pub chunks: usize,
    /// Upper halves with prefixes longer than /64.
    pub lists: usize,
    /// Bytes that readers may touch.
    pub table: usize,
}

/// The routes, and the one way to change the table.
pub struct Writer {
    shared: Arc<Published<Table>>,
    table: Arc<Table>,
    rib: PrefixMap<(u128, u8), u32>,
    default: u32,
    chunks: Arc<Chunks>,
    /// In the order of their addresses; the first one begins at zero.
    order: Vec<Chunk>,
    /// Places that were never used begin here.
    unused: u32,
    free: Vec<u32>,
    /// Places that are unreachable since an epoch began.
    retired: VecDeque<(u64, u32)>,
    /// Places that are unreachable with the next commit.
    leaving: Vec<u32>,
    deep: BTreeMap<u64, Deep>,
    lists: Vec<Arc<List>>,
    free_lists: Vec<u32>,
    /// Where chunks began that changed since the last commit.
    changed: Vec<u64>,
    /// Upper halves whose lists are to be made anew.
    stale: BTreeSet<u64>,
    /// The index or the lists have changed: readers need another table.
    reshaped: bool,
    /// What it has in common with the one before: none if chunks came or went since then, or lists were made.
    shape: Option<Arc<Order>>,
    shown: Option<Arc<[Arc<List>]>>,
    replaced: Replaced<Table>,
}

impl Writer {
    /// A table without routes.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn new() -> std::io::Result<Writer> {
        let chunks = Arc::new(Chunks::new(CHUNKS)?);
        let interval = Interval { start: 0, group: NO_ROUTE, owner: 0, deep: false };
        chunks.fill(0, std::iter::once((0, NO_ROUTE)));
        let (shape, shown) = (Arc::new(Order::new([0].into())), Arc::default());
        let table = Arc::new(Table::new(&chunks, &shape, std::iter::once(0), &shown, NO_ROUTE));
        Ok(Writer {
            shared: Arc::new(Published::new(Arc::clone(&table))),
            table,
            rib: PrefixMap::new(),
            default: NO_ROUTE,
            chunks,
            order: vec![Chunk { intervals: vec![interval], place: Some(0) }],
            unused: 1,
            free: Vec::new(),
            retired: VecDeque::new(),
            leaving: Vec::new(),
            deep: BTreeMap::new(),
            lists: Vec::new(),
            free_lists: Vec::new(),
            changed: Vec::new(),
            stale: BTreeSet::new(),
            reshaped: false,
            shape: Some(shape),
            shown: Some(shown),
            replaced: Replaced::new(),
        })
    }

    /// One more reader.
    pub fn reader(&self) -> Reader {
        Reader(View::new(&self.shared))
    }

    /// Routes `address/len` to `group` from the next [commit](Writer::commit) on; bits behind `len` count for
    /// nothing. What it led to before, if it was there.
    ///
    /// # Errors
    /// The prefix or the group is not possible. Then nothing has changed.
    pub fn insert(&mut self, address: u128, len: u8, group: u32) -> Result<Option<u32>, Error> {
        if len > BITS {
            return Err(Error::Length(len));
        }
        if group == NO_ROUTE || group > MAX_GROUP {
            return Err(Error::Group(group));
        }
        let address = address & mask(len);
        let old = self.rib.insert((address, len), group);
        match len {
            0 => self.default = group,
            1..=SHORT => self.paint(address, len, group, |owner| owner <= len, len),
            _ => self.deepen(upper(address), old.is_none()),
        }
        Ok(old)
    }

    /// Removes the route of `address/len` with the next commit: what it led to, if it was there.
    pub fn remove(&mut self, address: u128, len: u8) -> Option<u32> {
        if len > BITS {
            return None;
        }
        let address = address & mask(len);
        let old = self.rib.remove(&(address, len))?;
        match len {
            0 => self.default = NO_ROUTE,
            1..=SHORT => {
                let (parent, group) = self.around(address, len);
                self.paint(address, len, group, |owner| owner == len, parent);
            }
            _ => self.flatten(upper(address)),
        }
        Some(old)
    }

    /// What `address/len` leads to, where it is a route.
    pub fn get(&self, address: u128, len: u8) -> Option<u32> {
        (len <= BITS).then(|| self.rib.get(&(address & mask(len), len)).copied()).flatten()
    }

    /// The longest prefix of `address` and its group.
    pub fn explain(&self, address: u128) -> Option<((u128, u8), u32)> {
        self.rib.get_lpm(&(address, BITS)).map(|(prefix, group)| (prefix, *group))
    }

    /// All routes in the order of their prefixes.
    pub fn routes(&self) -> impl Iterator<Item = ((u128, u8), u32)> + '_ {
        self.rib.iter().map(|(prefix, group)| (prefix, *group))
    }

    /// What the table takes.
    pub fn usage(&self) -> Usage {
        let lists: usize = self.lists.iter().map(|list| list.len()).sum();
        Usage {
            routes: self.rib.len(),
            intervals: self.order.iter().map(|chunk| chunk.intervals.len()).sum(),
            chunks: self.order.len(),
            lists: self.deep.len(),
            table: self.order.len() * Chunks::BYTES + self.table.bytes() + lists * 12,
        }
    }

    /// Makes all changes visible.
    ///
    /// # Errors
    /// The kernel has no room for more chunks. Readers go on with what they have, and the changes wait for
    /// the next commit.
    pub fn commit(&mut self) -> std::io::Result<()> {
        self.make_lists();
        let written = self.write_chunks()?;
        if self.reshaped {
            let starts = || Arc::new(Order::new(self.order.iter().map(Chunk::start).collect()));
            let shape = self.shape.get_or_insert_with(starts);
            let shown = self.shown.get_or_insert_with(|| self.lists.as_slice().into());
            let index = self.order.iter().map(|chunk| chunk.place.unwrap_or(0));
            self.table = Arc::new(Table::new(&self.chunks, shape, index, shown, self.default));
            self.replaced.keep(self.shared.replace(Arc::clone(&self.table)));
            self.reshaped = false;
        } else {
            self.table.set_default(self.default);
            written.iter().for_each(|(at, place)| self.table.replace(*at, *place));
            self.replaced.free();
        }
        if !self.leaving.is_empty() {
            let epoch = self.shared.epochs.begin();
            self.retired.extend(self.leaving.drain(..).map(|place| (epoch, place)));
        }
        Ok(())
    }

    /// Writes the chunks that changed at new places; which of the order are where.
    fn write_chunks(&mut self) -> std::io::Result<Vec<(usize, u32)>> {
        self.make_room(self.changed.len())?;
        let mut written = Vec::new();
        for start in std::mem::take(&mut self.changed) {
            let at = self.chunk_of(start);
            let Some(chunk) = self.order.get_mut(at).filter(|chunk| chunk.place.is_none()) else { continue };
            let place = self.free.pop().unwrap_or_else(|| {
                self.unused += 1;
                self.unused - 1
            });
            let (deep, intervals) = (&self.deep, chunk.intervals.iter());
            self.chunks.fill(
                place,
                intervals.map(|interval| {
                    let list = deep.get(&interval.start).filter(|_| interval.deep);
                    (interval.start, list.map_or(interval.group, |deep| deep.list | EXTENDED))
                }),
            );
            chunk.place = Some(place);
            written.push((at, place));
        }
        Ok(written)
    }

    /// Sees to it that `wanted` places are free.
    fn make_room(&mut self, wanted: usize) -> std::io::Result<()> {
        if self.free.len() < wanted && !self.retired.is_empty() {
            let reached = self.shared.epochs.reached();
            let done = self.retired.iter().take_while(|(epoch, _)| *epoch <= reached).count();
            self.free.extend(self.retired.drain(..done).map(|(_, place)| place));
        }
        if self.free.len() + self.chunks.len() - self.unused as usize >= wanted {
            return Ok(());
        }
        // Others, with room for twice as many: all are written anew, and readers of the old ones keep those.
        self.chunks = Arc::new(Chunks::new((2 * self.order.len()).next_power_of_two().max(CHUNKS))?);
        self.order.iter_mut().for_each(|chunk| chunk.place = None);
        self.changed = self.order.iter().map(Chunk::start).collect();
        (self.unused, self.reshaped) = (0, true);
        self.free.clear();
        self.retired.clear();
        self.leaving.clear();
        Ok(())
    }

    /// Makes the lists anew of which prefixes or what is around them changed.
    fn make_lists(&mut self) {
        for upper in std::mem::take(&mut self.stale) {
            let Some(number) = self.deep.get(&upper).map(|deep| deep.list as usize) else { continue };
            let prefix = (u128::from(upper) << 64, SHORT);
            let (_, group) = self.around(prefix.0, SHORT);
            let longer = self.rib.children(&prefix).filter(|((_, len), _)| *len > SHORT);
            #[expect(clippy::cast_possible_truncation, reason = "the lower halves")]
            let prefixes =
                longer.map(|((address, len), group)| (address as u64, (address | !mask(len)) as u64, *group));
            let list = Arc::new(List::new(group, prefixes));
            if let Some(at) = self.lists.get_mut(number) {
                *at = list;
            }
            (self.reshaped, self.shown) = (true, None);
        }
    }

    /// What `address` leads to by prefixes of `len` bits and less, but for the default route; bits of that
    /// prefix.
    fn around(&self, address: u128, len: u8) -> (u8, u32) {
        match self.rib.get_lpm(&(address, len)) {
            Some(((_, parent), group)) if parent > 0 => (parent, *group),
            _ => (0, NO_ROUTE),
        }
    }

    /// Gives the intervals of a prefix of /64 or shorter, whose owner is as `ours` says, to a prefix of `len`
    /// bits that leads to `group`.
    fn paint(&mut self, address: u128, prefix: u8, group: u32, ours: impl Fn(u8) -> bool, len: u8) {
        let (first, last) = (upper(address), upper(address | !mask(prefix)));
        let mut at = self.chunk_of(first);
        while self.order.get(at).is_some_and(|chunk| chunk.start() <= last) {
            let end = self.end_of(at);
            self.change(at, |intervals, stale| {
                cut(intervals, first, end);
                last.checked_add(1).iter().for_each(|next| cut(intervals, *next, end));
                for interval in intervals.iter_mut().filter(|it| (first..=last).contains(&it.start)) {
                    if ours(interval.owner) {
                        (interval.owner, interval.group) = (len, group);
                        if interval.deep {
                            stale.insert(interval.start);
                        }
                    }
                }
            });
            at = self.fit(at) + 1;
        }
    }

    /// `upper` has a prefix longer than /64, one more if it is `new`.
    fn deepen(&mut self, upper: u64, new: bool) {
        self.stale.insert(upper);
        if let Some(deep) = self.deep.get_mut(&upper) {
            deep.longer += u32::from(new);
            return;
        }
        let list = self.free_lists.pop().unwrap_or_else(|| {
            self.lists.push(Arc::new(List::new(NO_ROUTE, std::iter::empty())));
            u32::try_from(self.lists.len() - 1).unwrap_or(0)
        });
        self.deep.insert(upper, Deep { list, longer: 1 });
        let at = self.chunk_of(upper);
        let end = self.end_of(at);
        self.change(at, |intervals, _| {
            cut(intervals, upper, end);
            upper.checked_add(1).iter().for_each(|next| cut(intervals, *next, end));
            intervals.iter_mut().filter(|it| it.start == upper).for_each(|it| it.deep = true);
        });
        self.fit(at);
    }

    /// A prefix longer than /64 is gone; the last one takes the list with it.
    fn flatten(&mut self, upper: u64) {
        self.stale.insert(upper);
        let Some(deep) = self.deep.get_mut(&upper) else { return };
        deep.longer -= 1;
        if deep.longer > 0 {
            return;
        }
        self.free_lists.extend(self.deep.remove(&upper).map(|deep| deep.list));
        self.reshaped = true;
        let at = self.chunk_of(upper);
        self.change(at, |intervals, _| {
            intervals.iter_mut().filter(|it| it.start == upper).for_each(|it| it.deep = false);
        });
        self.fit(at);
    }

    /// The chunk that an upper half is in.
    fn chunk_of(&self, upper: u64) -> usize {
        self.order.partition_point(|chunk| chunk.start() <= upper).saturating_sub(1)
    }

    /// Where the chunk behind that one begins.
    fn end_of(&self, at: usize) -> Option<u64> {
        self.order.get(at + 1).map(Chunk::start)
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut Vec<Interval>, &mut BTreeSet<u64>)) {
        let Some(chunk) = self.order.get_mut(at) else { return };
        change(&mut chunk.intervals, &mut self.stale);
        join(&mut chunk.intervals);
        if let Some(place) = chunk.place.take() {
            self.leaving.push(place);
            self.changed.push(chunk.start());
        }
    }

    /// Makes two chunks of one that is too long, and one of two that are short: where what was in it ends
    /// now.
    fn fit(&mut self, at: usize) -> usize {
        let len = |at: usize| self.order.get(at).map_or(CHUNK, |chunk| chunk.intervals.len());
        if len(at) > CHUNK {
            let Some(chunk) = self.order.get_mut(at) else { return at };
            let intervals = chunk.intervals.split_off(CHUNK / 2);
            let chunk = Chunk { intervals, place: None };
            self.changed.push(chunk.start());
            self.order.insert(at + 1, chunk);
            (self.reshaped, self.shape) = (true, None);
            return at + 1;
        }
        let Some(before) = at.checked_sub(1).filter(|before| len(*before) + len(at) <= CHUNK / 4) else {
            return at;
        };
        let short = self.order.remove(at);
        if let Some(chunk) = self.order.get_mut(before) {
            chunk.intervals.extend(short.intervals);
            self.leaving.extend(chunk.place.take());
            self.changed.push(chunk.start());
        }
        self.leaving.extend(short.place);
        (self.reshaped, self.shape) = (true, None);
        before
    }
}

/// The bits of an address that a prefix of `len` bits decides on.
fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(u32::from(BITS - len)).unwrap_or(0)
}

fn upper(address: u128) -> u64 {
    (address >> 64) as u64
}
