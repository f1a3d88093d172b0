//! What readers of IPv4 routes see.

use crate::atomic::{AtomicU16, AtomicU32, Ordering};
use crate::memory::Zeroed;
use crate::sizes::{BLOCK, DIRECT, NARROW_BLOCKS, WIDE_BLOCKS};
use crate::{EXTENDED, NO_ROUTE};

/// Entries of a block.
pub(crate) const BLOCK_LEN: usize = 1 << BLOCK;

/// An entry: a group, or the number of a block below a mark.
pub(crate) trait Entry {
    /// The mark of a block, and what groups and blocks are below.
    const MARK: u32;
    fn get(&self) -> u32;
    fn set(&self, value: u32);
}

impl Entry for AtomicU16 {
    const MARK: u32 = 1 << 15;

    #[inline]
    fn get(&self) -> u32 {
        self.load(Ordering::Acquire).into()
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the writer puts what is too large into wide entries"
    )]
    fn set(&self, value: u32) {
        self.store(value as u16, Ordering::Release);
    }
}

impl Entry for AtomicU32 {
    const MARK: u32 = EXTENDED;

    #[inline]
    fn get(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn set(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// Entries of one width.
pub(crate) struct Entries<E: crate::memory::Zeroable> {
    direct: Zeroed<E>,
    blocks: Zeroed<E>,
    /// What the default route leads to.
    default: AtomicU32,
}

impl<E: Entry + crate::memory::Zeroable> Entries<E> {
    fn new(blocks: usize) -> rustix::io::Result<Entries<E>> {
        Ok(Entries {
            direct: Zeroed::new(1 << DIRECT)?,
            blocks: Zeroed::new(blocks << BLOCK)?,
            default: AtomicU32::new(NO_ROUTE),
        })
    }

    #[inline]
    fn lookup(&self, addresses: &[u32], groups: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        // The first accesses of all addresses wait for memory together, then the second ones do.
        for (address, group) in addresses.iter().zip(&mut *groups) {
            *group = self.direct.get((address >> BLOCK) as usize).map_or(NO_ROUTE, Entry::get);
        }
        for (address, group) in addresses.iter().zip(groups) {
            if *group & E::MARK != 0 {
                let at = ((*group ^ E::MARK) << BLOCK) as usize | *address as usize & (BLOCK_LEN - 1);
                *group = self.blocks.get(at).map_or(NO_ROUTE, Entry::get);
            }
            *group = if *group == NO_ROUTE { default } else { *group };
        }
    }

    /// An entry as its writer knows it: the mark of a block is [`EXTENDED`], whatever its width.
    fn value(entry: &E) -> u32 {
        let value = entry.get();
        if value & E::MARK == 0 {
            value
        } else {
            value ^ E::MARK | EXTENDED
        }
    }

    fn change(entry: Option<&E>, value: u32) {
        let Some(entry) = entry else { return };
        entry.set(if value & EXTENDED == 0 { value } else { value ^ EXTENDED | E::MARK });
    }
}

/// The table, with entries of either width.
pub(crate) enum Table {
    Narrow(Entries<AtomicU16>),
    Wide(Entries<AtomicU32>),
}

impl Table {
    pub fn narrow() -> rustix::io::Result<Table> {
        Ok(Table::Narrow(Entries::new(NARROW_BLOCKS)?))
    }

    pub fn wide() -> rustix::io::Result<Table> {
        Ok(Table::Wide(Entries::new(WIDE_BLOCKS)?))
    }

    /// Groups have to be below.
    pub fn groups(&self) -> u32 {
        match self {
            Table::Narrow(_) => <AtomicU16 as Entry>::MARK,
            Table::Wide(_) => EXTENDED,
        }
    }

    pub fn blocks(&self) -> usize {
        match self {
            Table::Narrow(entries) => entries.blocks.len() >> BLOCK,
            Table::Wide(entries) => entries.blocks.len() >> BLOCK,
        }
    }

    /// Bytes of an entry.
    pub fn width(&self) -> usize {
        match self {
            Table::Narrow(_) => size_of::<u16>(),
            Table::Wide(_) => size_of::<u32>(),
        }
    }

    #[inline]
    pub fn lookup(&self, addresses: &[u32], groups: &mut [u32]) {
        match self {
            Table::Narrow(entries) => entries.lookup(addresses, groups),
            Table::Wide(entries) => entries.lookup(addresses, groups),
        }
    }
}

/// For the writer: entries of /24s, and of blocks.
impl Table {
    pub fn direct(&self, at: usize) -> u32 {
        match self {
            Table::Narrow(entries) => entries.direct.get(at).map_or(NO_ROUTE, Entries::value),
            Table::Wide(entries) => entries.direct.get(at).map_or(NO_ROUTE, Entries::value),
        }
    }

    pub fn set_direct(&self, at: usize, value: u32) {
        match self {
            Table::Narrow(entries) => Entries::change(entries.direct.get(at), value),
            Table::Wide(entries) => Entries::change(entries.direct.get(at), value),
        }
    }

    pub fn block(&self, at: usize) -> u32 {
        match self {
            Table::Narrow(entries) => entries.blocks.get(at).map_or(NO_ROUTE, Entries::value),
            Table::Wide(entries) => entries.blocks.get(at).map_or(NO_ROUTE, Entries::value),
        }
    }

    pub fn set_block(&self, at: usize, group: u32) {
        match self {
            Table::Narrow(entries) => Entries::change(entries.blocks.get(at), group),
            Table::Wide(entries) => Entries::change(entries.blocks.get(at), group),
        }
    }

    pub fn set_default(&self, group: u32) {
        match self {
            Table::Narrow(entries) => entries.default.store(group, Ordering::Release),
            Table::Wide(entries) => entries.default.store(group, Ordering::Release),
        }
    }
}
