//! Whoever changes IPv4 routes.

use std::ops::Range;
use std::sync::Arc;

use prefix_trie::PrefixMap;

use super::runs::Runs;
use super::store::Store;
use super::table::{cell_of, entry_of, part_of, parts_of, Table, BLOCK, CELLS, ENTRIES, NARROW, PARTS, WIDE};
use super::Reader;
use crate::leaving::Leaving;
use crate::publish::{Published, Replaced, View};
use crate::sizes::{FIRST, NARROW_BLOCKS, WIDE_BLOCKS};
use crate::{Error, EXTENDED, MAX_GROUP, NO_ROUTE};

/// Bits of an address.
const BITS: u8 = 32;
/// The longest prefix that needs no block.
const SHORT: u8 = 24;
/// The longest prefixes that own all cells of an entry, but for those of longer ones: outside of blocks and in them.
const WHOLE: u8 = 18;
const WHOLE_PART: u8 = 26;

const _: () = assert!(SHORT as u32 + BLOCK == BITS as u32);
const _: () = assert!(WHOLE as u32 == FIRST && 1 << (SHORT - WHOLE) == CELLS);
const _: () = assert!(1 << (WHOLE_PART - SHORT) == PARTS && 1 << (BITS - WHOLE_PART) == CELLS);

/// What a table takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Routes, the default route among them.
    pub routes: usize,
    /// Blocks for prefixes longer than /24.
    pub blocks: usize,
    /// Bytes of a run's value: 2, or 4 when groups or blocks are more than 32,767.
    pub width: usize,
    /// Bytes that readers may touch.
    pub table: usize,
    /// Bytes that the writer has beside that and the RIB.
    pub owners: usize,
}

/// The routes, and the one way to change the table.
pub struct Writer {
    shared: Arc<Published<Table>>,
    store: Store,
    rib: PrefixMap<(u32, u8), u32>,
    /// Prefixes longer than /24 in each block: without them it is not needed.
    longer: Vec<u32>,
    free: Vec<u32>,
    leaving: Leaving<u32>,
    replaced: Replaced<Table>,
}

impl Writer {
    /// A table without routes: 1 MiB for readers, and more as routes need it.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn new() -> std::io::Result<Writer> {
        let store = Store::new(NARROW, NARROW_BLOCKS)?;
        Ok(Writer {
            shared: Arc::new(Published::new(Arc::clone(&store.table))),
            store,
            rib: PrefixMap::new(),
            longer: Vec::new(),
            free: Vec::new(),
            leaving: Leaving::new(),
            replaced: Replaced::new(),
        })
    }

    /// One more reader.
    pub fn reader(&self) -> Reader {
        Reader(View::new(&self.shared))
    }

    /// Routes `address/len` to `group`; bits behind `len` count for nothing. What it led to before, if it was there.
    ///
    /// # Errors
    /// The prefix or the group is not possible, or there is no block left. Then nothing has changed.
    pub fn insert(&mut self, address: u32, len: u8, group: u32) -> Result<Option<u32>, Error> {
        if len > BITS {
            return Err(Error::Length(len));
        }
        if group == NO_ROUTE || group > MAX_GROUP {
            return Err(Error::Group(group));
        }
        let address = address & mask(len);
        if group >= self.store.table.groups() {
            self.widen()?;
        }
        let block = if len > SHORT { Some(self.block_for(address)?) } else { None };
        let old = self.rib.insert((address, len), group);
        if let (Some(block), None) = (block, old) {
            self.longer.iter_mut().skip(block as usize).take(1).for_each(|longer| *longer += 1);
        }
        match len {
            0 => self.store.table.set_default(group),
            _ => self.paint((address, len), block, |owner| owner <= len, (len, group)),
        }
        Ok(old)
    }

    /// Removes the route of `address/len`: what it led to, if it was there.
    pub fn remove(&mut self, address: u32, len: u8) -> Option<u32> {
        if len > BITS {
            return None;
        }
        let address = address & mask(len);
        let old = self.rib.remove(&(address, len))?;
        if len == 0 {
            self.store.table.set_default(NO_ROUTE);
            return Some(old);
        }
        let around = match self.rib.get_lpm(&(address, len)) {
            Some(((_, parent), group)) if parent > 0 => (parent, *group),
            _ => (0, NO_ROUTE),
        };
        let block = (len > SHORT).then(|| self.block_of(address)).flatten();
        self.paint((address, len), block, |owner| owner == len, around);
        if let Some(block) = block {
            self.leave_block(block, address);
        }
        Some(old)
    }

    /// What `address/len` leads to, where it is a route.
    pub fn get(&self, address: u32, len: u8) -> Option<u32> {
        (len <= BITS).then(|| self.rib.get(&(address & mask(len), len)).copied()).flatten()
    }

    /// The longest prefix of `address` and its group.
    pub fn explain(&self, address: u32) -> Option<((u32, u8), u32)> {
        self.rib.get_lpm(&(address, BITS)).map(|(prefix, group)| (prefix, *group))
    }

    /// All routes in the order of their prefixes.
    pub fn routes(&self) -> impl Iterator<Item = ((u32, u8), u32)> + '_ {
        self.rib.iter().map(|(prefix, group)| (prefix, *group))
    }

    /// What the table takes.
    pub fn usage(&self) -> Usage {
        let blocks = self.longer.len() - self.free.len() - self.leaving.len();
        let (runs, owners) = self.store.runs_bytes();
        Usage {
            routes: self.rib.len(),
            blocks,
            width: (self.store.table.bits() / u8::BITS) as usize,
            table: (ENTRIES + blocks * PARTS) * size_of::<u32>() + runs,
            owners: ENTRIES + self.longer.len() * (PARTS + size_of::<u32>()) + owners,
        }
    }

    /// Gives the cells of a prefix, whose owner is as `ours` says, to a prefix that is so long and leads to that group. `block`: the
    /// block that it is in.
    fn paint(
        &mut self,
        (address, len): (u32, u8),
        block: Option<u32>,
        ours: impl Fn(u8) -> bool + Copy,
        to: (u8, u32),
    ) {
        let (first, whole, cell) = match block {
            Some(block) => (parts_of(block) + part_of(address), WHOLE_PART, address),
            None => (entry_of(address), WHOLE, address >> BLOCK),
        };
        if len <= whole {
            (first..first + (1 << (whole - len))).for_each(|at| self.store.repaint(at, ours, to));
            return;
        }
        let cell = cell_of(cell);
        let cells = cell..cell + (CELLS >> (len - whole));
        self.store.paint(first, &cells, ours, to, &self.shared.epochs);
    }

    /// The block for the addresses of `address`'s /24.
    fn block_of(&self, address: u32) -> Option<u32> {
        let value = self.store.runs(entry_of(address)).at(cell_of(address >> BLOCK))?.value;
        (value & EXTENDED != 0).then_some(value ^ EXTENDED)
    }

    /// The same, made if there is none.
    fn block_for(&mut self, address: u32) -> Result<u32, Error> {
        if let Some(block) = self.block_of(address) {
            return Ok(block);
        }
        let block = self.free_block()?;
        let cell = cell_of(address >> BLOCK);
        let run = self.store.runs(entry_of(address)).at(cell);
        let (owner, value) = run.map_or((0, NO_ROUTE), |run| (run.owner, run.value));
        let mut all = Runs::NONE;
        all.push(0, owner, value);
        let parts = parts_of(block);
        (parts..parts + PARTS).for_each(|part| self.store.put(part, &all, &self.shared.epochs));
        // All of it is there before readers are led to it.
        self.lead(address, owner, block | EXTENDED);
        Ok(block)
    }

    /// Has the cell of `address`'s /24 lead to `value`, whatever it is.
    fn lead(&mut self, address: u32, owner: u8, value: u32) {
        let (at, cell) = (entry_of(address), cell_of(address >> BLOCK));
        let cells = Range { start: cell, end: cell + 1 };
        let runs = self.store.runs(at).painted(&cells, |_| true, owner, value);
        self.store.put(at, &runs, &self.shared.epochs);
    }

    fn free_block(&mut self) -> Result<u32, Error> {
        if self.free.is_empty() && self.leaving.len() > 0 {
            self.free.extend(self.leaving.gone(&self.shared.epochs));
        }
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        let next = self.longer.len();
        if next == self.store.table.blocks() {
            self.widen()?;
            if let Some(block) = self.free.pop() {
                return Ok(block);
            }
            if next == self.store.table.blocks() {
                return Err(Error::Full(next));
            }
        }
        self.longer.push(0);
        u32::try_from(next).map_err(|_| Error::Full(next))
    }

    /// A prefix longer than /24 is gone from the block; the last one takes the block with it.
    fn leave_block(&mut self, block: u32, address: u32) {
        let Some(longer) = self.longer.get_mut(block as usize) else { return };
        *longer -= 1;
        if *longer > 0 {
            return;
        }
        // All its cells have one owner now, a prefix of /24 or shorter, or none.
        let Some(run) = self.store.runs(parts_of(block)).at(0) else { return };
        self.lead(address, run.owner, run.value);
        self.leaving.push(block);
    }

    /// Replaces the table by one with wide values, unless it has them.
    #[cold]
    fn widen(&mut self) -> Result<(), Error> {
        if self.store.table.bits() == WIDE {
            return Ok(());
        }
        let full = |_| Error::Full(self.store.table.blocks());
        let mut wide = Store::new(WIDE, WIDE_BLOCKS).map_err(full)?;
        for at in 0..ENTRIES + self.longer.len() * PARTS {
            // What is zero already takes no memory.
            if self.store.table.entry(at) != NO_ROUTE {
                wide.put(at, &self.store.runs(at), &self.shared.epochs);
            }
        }
        wide.table.set_default(self.rib.get(&(0, 0)).copied().unwrap_or(NO_ROUTE));
        self.store = wide;
        // No reader of the new table has been in a block that was left in the old one.
        self.free.extend(self.leaving.all());
        self.replaced.keep(self.shared.replace(Arc::clone(&self.store.table)));
        Ok(())
    }
}

/// The bits of an address that a prefix of `len` bits decides on.
fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(u32::from(BITS - len)).unwrap_or(0)
}
