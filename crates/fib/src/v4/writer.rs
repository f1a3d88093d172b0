//! The writer of IPv4 routes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use prefix_trie::PrefixMap;

use super::table::{Table, BLOCK_LEN};
use super::Reader;
use crate::memory::Zeroed;
use crate::publish::{Published, Replaced, View};
use crate::sizes::{BLOCK, DIRECT};
use crate::{Error, EXTENDED, MAX_GROUP, NO_ROUTE};

/// Bits of an address.
const BITS: u8 = 32;
/// The longest prefix that needs no block.
const SHORT: u8 = 24;

const _: () = assert!(DIRECT == SHORT as u32 && DIRECT + BLOCK == BITS as u32);

/// How long the owners of a block's entries are, and what else only the writer knows of it.
#[derive(Clone)]
struct Block {
    owners: [u8; BLOCK_LEN],
    /// Prefixes longer than /24 in it: without them it is not needed.
    longer: u32,
}

impl Block {
    const BLANK: Block = Block { owners: [0; BLOCK_LEN], longer: 0 };
}

/// What a table takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Routes, the default route among them.
    pub routes: usize,
    /// Blocks for prefixes longer than /24.
    pub blocks: usize,
    /// Bytes of an entry: 2, or 4 when groups or blocks are more than 32,767.
    pub width: usize,
    /// Bytes that readers may touch.
    pub table: usize,
    /// Bytes that the writer has beside that and the RIB.
    pub owners: usize,
}

/// The routes, and the one way to change the table.
pub struct Writer {
    shared: Arc<Published<Table>>,
    table: Arc<Table>,
    rib: PrefixMap<(u32, u8), u32>,
    /// How long the prefix is that owns the entry of a /24; the default route owns none.
    owners: Zeroed<u8>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Blocks that are unreachable, and from which epoch on no reader is in them.
    retired: VecDeque<(u64, u32)>,
    replaced: Replaced<Table>,
}

impl Writer {
    /// A table without routes: 32 MiB for readers and 16 MiB beside, taken as routes touch them.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn new() -> std::io::Result<Writer> {
        let table = Arc::new(Table::narrow()?);
        Ok(Writer {
            shared: Arc::new(Published::new(Arc::clone(&table))),
            table,
            rib: PrefixMap::new(),
            owners: Zeroed::new(1 << DIRECT)?,
            blocks: Vec::new(),
            free: Vec::new(),
            retired: VecDeque::new(),
            replaced: Replaced::new(),
        })
    }

    /// One more reader.
    pub fn reader(&self) -> Reader {
        Reader(View::new(&self.shared))
    }

    /// Routes `address/len` to `group`; bits behind `len` count for nothing. What it led to before, if it was
    /// there.
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
        if group >= self.table.groups() {
            self.widen()?;
        }
        let block = if len > SHORT { Some(self.block_of(address)?) } else { None };
        let old = self.rib.insert((address, len), group);
        match block {
            Some(block) => {
                if let (None, Some(known)) = (old, self.blocks.get_mut(block as usize)) {
                    known.longer += 1;
                }
                self.paint_block(block, within(address, len), group, |owner| *owner <= len, len);
            }
            None if len == 0 => self.table.set_default(group),
            None => self.paint(address, len, group, |owner| *owner <= len, len),
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
            self.table.set_default(NO_ROUTE);
            return Some(old);
        }
        let (parent, group) = match self.rib.get_lpm(&(address, len)) {
            Some(((_, parent), group)) if parent > 0 => (parent, *group),
            _ => (0, NO_ROUTE),
        };
        if len <= SHORT {
            self.paint(address, len, group, |owner| *owner == len, parent);
            return Some(old);
        }
        let entry = self.table.direct((address >> BLOCK) as usize);
        if entry & EXTENDED != 0 {
            let block = entry ^ EXTENDED;
            self.paint_block(block, within(address, len), group, |owner| *owner == len, parent);
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
        let blocks = self.blocks.len() - self.free.len() - self.retired.len();
        Usage {
            routes: self.rib.len(),
            blocks,
            width: self.table.width(),
            table: ((1 << DIRECT) + blocks * BLOCK_LEN) * self.table.width(),
            owners: (1 << DIRECT) + self.blocks.len() * size_of::<Block>(),
        }
    }

    /// Gives the entries of a prefix of /24 or shorter, whose owner is as `ours` says, to a prefix of `len`
    /// bits that leads to `group`.
    fn paint(&mut self, address: u32, prefix: u8, group: u32, ours: impl Fn(&u8) -> bool + Copy, len: u8) {
        let first = (address >> BLOCK) as usize;
        for at in first..first + (1 << (SHORT - prefix)) {
            let entry = self.table.direct(at);
            if entry & EXTENDED != 0 {
                self.paint_block(entry ^ EXTENDED, 0..BLOCK_LEN, group, ours, len);
            } else if let Some(owner) = self.owners.get_mut(at).filter(|owner| ours(owner)) {
                *owner = len;
                self.table.set_direct(at, group);
            }
        }
    }

    fn paint_block(
        &mut self,
        block: u32,
        places: Range<usize>,
        group: u32,
        ours: impl Fn(&u8) -> bool,
        len: u8,
    ) {
        let Some(known) = self.blocks.get_mut(block as usize) else { return };
        for (place, owner) in known.owners.iter_mut().enumerate().take(places.end).skip(places.start) {
            if ours(owner) {
                *owner = len;
                self.table.set_block((block as usize) << BLOCK | place, group);
            }
        }
    }

    /// The block for the addresses of `address`'s /24, made if there is none.
    fn block_of(&mut self, address: u32) -> Result<u32, Error> {
        let at = (address >> BLOCK) as usize;
        let entry = self.table.direct(at);
        if entry & EXTENDED != 0 {
            return Ok(entry ^ EXTENDED);
        }
        let block = self.free_block()?;
        let owner = self.owners.get(at).copied().unwrap_or(0);
        if let Some(known) = self.blocks.get_mut(block as usize) {
            *known = Block { owners: [owner; BLOCK_LEN], longer: 0 };
        }
        (0..BLOCK_LEN).for_each(|place| self.table.set_block((block as usize) << BLOCK | place, entry));
        // All of it is there before readers are led to it.
        self.table.set_direct(at, block | EXTENDED);
        Ok(block)
    }

    fn free_block(&mut self) -> Result<u32, Error> {
        if !self.retired.is_empty() {
            let reached = self.shared.epochs.reached();
            let done = self.retired.iter().take_while(|(epoch, _)| *epoch <= reached).count();
            self.free.extend(self.retired.drain(..done).map(|(_, block)| block));
        }
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        let next = self.blocks.len();
        if next == self.table.blocks() {
            self.widen()?;
            if let Some(block) = self.free.pop() {
                return Ok(block);
            }
            if next == self.table.blocks() {
                return Err(Error::Full(next));
            }
        }
        self.blocks.push(Block::BLANK);
        u32::try_from(next).map_err(|_| Error::Full(next))
    }

    /// A prefix longer than /24 is gone from the block; the last one takes the block with it.
    fn leave_block(&mut self, block: u32, address: u32) {
        let Some(known) = self.blocks.get_mut(block as usize) else { return };
        known.longer -= 1;
        if known.longer > 0 {
            return;
        }
        // All its entries have one owner now, a prefix of /24 or shorter, or none.
        let at = (address >> BLOCK) as usize;
        if let (Some(owner), Some(of_block)) = (self.owners.get_mut(at), known.owners.first()) {
            *owner = *of_block;
        }
        self.table.set_direct(at, self.table.block((block as usize) << BLOCK));
        self.retired.push_back((self.shared.epochs.begin(), block));
    }

    /// Replaces the table by one with wide entries, unless it has them.
    #[cold]
    fn widen(&mut self) -> Result<(), Error> {
        if let Table::Wide(_) = *self.table {
            return Ok(());
        }
        let wide = Table::wide().map_err(|_| Error::Full(self.table.blocks()))?;
        for at in 0..1 << DIRECT {
            let entry = self.table.direct(at);
            // What is zero already takes no memory.
            if entry != NO_ROUTE {
                wide.set_direct(at, entry);
            }
        }
        for at in 0..self.blocks.len() << BLOCK {
            wide.set_block(at, self.table.block(at));
        }
        wide.set_default(self.rib.get(&(0, 0)).copied().unwrap_or(NO_ROUTE));
        self.table = Arc::new(wide);
        // No reader of the new table has been in a block that the old one retired.
        self.free.extend(self.retired.drain(..).map(|(_, block)| block));
        self.replaced.keep(self.shared.replace(Arc::clone(&self.table)));
        Ok(())
    }
}

/// The bits of an address that a prefix of `len` bits decides on.
fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(u32::from(BITS - len)).unwrap_or(0)
}

/// The entries of a block that a prefix longer than /24 has.
fn within(address: u32, len: u8) -> Range<usize> {
    let first = address as usize & (BLOCK_LEN - 1);
    first..first + (1 << (BITS - len))
}
