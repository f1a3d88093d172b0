//! What readers of IPv4 routes see.
//!
//! Entries: one for each /18, then four for each block. An entry is a group, or [`EXTENDED`] and the place of its runs among the
//! words. Runs: a word whose bits are the cells at which runs begin, the first cell always; behind it the runs' values in
//! order, four or two to a word. A value is a group, or a mark and the number of a block.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::memory::Zeroed;
use crate::sizes::FIRST;
use crate::{EXTENDED, NO_ROUTE};

/// Cells of an entry: /24s, or addresses in a block.
pub(crate) const CELLS: u32 = 1 << CELL;
/// Entries of a block.
pub(crate) const PARTS: usize = 1 << PART;
/// Entries for addresses, before those of blocks.
pub(crate) const ENTRIES: usize = 1 << FIRST;
/// Bits of an address within a /24.
pub(crate) const BLOCK: u32 = PART + CELL;
/// Bits of a narrow value and of a wide one.
pub(crate) const NARROW: u32 = 16;
pub(crate) const WIDE: u32 = 32;

const CELL: u32 = 6;
const PART: u32 = 2;
/// Addresses that are looked up side by side.
const ABREAST: usize = 64;

/// The entry of an address.
#[inline]
pub(crate) const fn entry_of(address: u32) -> usize {
    (address >> (CELL + BLOCK)) as usize
}

/// Those of a block: the first one.
#[inline]
pub(crate) const fn parts_of(block: u32) -> usize {
    ENTRIES + block as usize * PARTS
}

/// The part of its block that an address is in.
#[inline]
pub(crate) const fn part_of(address: u32) -> usize {
    (address >> CELL) as usize & (PARTS - 1)
}

/// The cell of its /24 or, in a block, of an address.
#[inline]
pub(crate) const fn cell_of(address: u32) -> u32 {
    address & (CELLS - 1)
}

/// The table.
pub(crate) struct Table {
    /// Bits of a value.
    bits: u32,
    entries: Zeroed<AtomicU32>,
    words: Zeroed<AtomicU64>,
    /// What the default route leads to.
    default: AtomicU32,
}

/// Those of up to [`ABREAST`] addresses that need another access.
struct Further {
    places: [u8; ABREAST],
    len: usize,
}

impl Further {
    const NONE: Further = Further { places: [0; ABREAST], len: 0 };

    /// Takes the address at `place`, if `so`: without a branch, which the processor would guess wrong too often.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked, and known to the compiler")]
    fn note(&mut self, place: u8, so: bool) {
        self.places[self.len & (ABREAST - 1)] = place;
        self.len += usize::from(so);
    }

    #[inline]
    fn places(&self) -> impl Iterator<Item = u8> + '_ {
        self.places.iter().take(self.len).copied()
    }
}

impl Table {
    #[inline]
    pub fn lookup(&self, addresses: &[u32], groups: &mut [u32]) {
        let default = self.default.load(Ordering::Acquire);
        for (addresses, groups) in addresses.chunks(ABREAST).zip(groups.chunks_mut(ABREAST)) {
            match self.bits {
                NARROW => self.abreast::<NARROW>(addresses, groups),
                _ => self.abreast::<WIDE>(addresses, groups),
            }
            for group in groups {
                *group = if *group == NO_ROUTE { default } else { *group };
            }
        }
    }

    /// Looks [`ABREAST`] addresses up. The first accesses of all of them wait for memory together, then the next ones do.
    #[inline]
    fn abreast<const BITS: u32>(&self, addresses: &[u32], groups: &mut [u32]) {
        let mut further = Further::NONE;
        for ((place, address), group) in (0..).zip(addresses).zip(&mut *groups) {
            *group = self.entry(entry_of(*address));
            further.note(place, *group & EXTENDED != 0);
        }
        let blocks = self.follow::<BITS>(&further, addresses, groups, BLOCK);
        if blocks.len > 0 {
            self.in_blocks::<BITS>(&blocks, addresses, groups);
        }
    }

    /// Of addresses whose entries lead to runs: what their cells lead to, and which of that is a block. `below`: bits of an
    /// address below its cell.
    #[inline]
    fn follow<const BITS: u32>(
        &self,
        further: &Further,
        addresses: &[u32],
        groups: &mut [u32],
        below: u32,
    ) -> Further {
        let mut starts = [0; ABREAST];
        for (place, starts) in further.places().zip(&mut starts) {
            *starts = self.starts(groups.get(usize::from(place)).map_or(0, |entry| *entry ^ EXTENDED));
        }
        let mut blocks = Further::NONE;
        for (place, starts) in further.places().zip(starts) {
            let at = usize::from(place);
            let (Some(address), Some(group)) = (addresses.get(at), groups.get_mut(at)) else { break };
            // The runs that begin up to its cell: it is in the last one of them.
            let upto = (starts << (CELLS - 1 - cell_of(address >> below))).count_ones();
            *group = self.coded::<BITS>(*group ^ EXTENDED, upto.wrapping_sub(1));
            blocks.note(place, *group & mark(BITS) != 0);
        }
        blocks
    }

    /// Of addresses in blocks: what they lead to.
    #[inline(never)]
    fn in_blocks<const BITS: u32>(&self, blocks: &Further, addresses: &[u32], groups: &mut [u32]) {
        let mut further = Further::NONE;
        for place in blocks.places() {
            let at = usize::from(place);
            let (Some(address), Some(group)) = (addresses.get(at), groups.get_mut(at)) else { break };
            *group = self.entry(parts_of(*group ^ mark(BITS)) + part_of(*address));
            further.note(place, *group & EXTENDED != 0);
        }
        self.follow::<BITS>(&further, addresses, groups, 0);
    }

    #[inline]
    fn coded<const BITS: u32>(&self, place: u32, run: u32) -> u32 {
        let each = u64::BITS / BITS;
        let word = self.words.get((place + 1 + run / each) as usize);
        let word = word.map_or(0, |word| word.load(Ordering::Acquire)) >> (run % each * BITS);
        #[expect(clippy::cast_possible_truncation, reason = "a value's bits")]
        let value = word as u32 & (u32::MAX >> (u32::BITS - BITS));
        value
    }
}

/// What the writer does.
impl Table {
    /// With values of `bits` bits, for so many blocks and words of runs.
    pub fn new(bits: u32, blocks: usize, words: usize) -> rustix::io::Result<Table> {
        let entries = Zeroed::new(ENTRIES + blocks * PARTS)?;
        Ok(Table { bits, entries, words: Zeroed::new(words)?, default: AtomicU32::new(NO_ROUTE) })
    }

    /// Bits of a value.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Groups have to be below.
    pub fn groups(&self) -> u32 {
        mark(self.bits)
    }

    pub fn blocks(&self) -> usize {
        (self.entries.len() - ENTRIES) / PARTS
    }

    /// A group, or [`EXTENDED`] and the place of runs.
    #[inline]
    pub fn entry(&self, at: usize) -> u32 {
        self.entries.get(at).map_or(NO_ROUTE, |entry| entry.load(Ordering::Acquire))
    }

    /// All that it leads to has to be there.
    #[inline]
    pub fn set_entry(&self, at: usize, entry: u32) {
        if let Some(there) = self.entries.get(at) {
            there.store(entry, Ordering::Release);
        }
    }

    /// The cells at which the runs at `place` begin.
    #[inline]
    pub fn starts(&self, place: u32) -> u64 {
        self.words.get(place as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// What a run leads to: a group, or [`EXTENDED`] and the number of a block, whatever the width.
    #[inline]
    pub fn value(&self, place: u32, run: u32) -> u32 {
        let coded = match self.bits {
            NARROW => self.coded::<NARROW>(place, run),
            _ => self.coded::<WIDE>(place, run),
        };
        let mark = mark(self.bits);
        if coded & mark == 0 {
            coded
        } else {
            coded ^ mark | EXTENDED
        }
    }

    /// Readers may be there: they find the value before or this one.
    #[inline]
    pub fn set_value(&self, place: u32, run: u32, value: u32) {
        let each = u64::BITS / self.bits;
        let Some(word) = self.words.get((place + 1 + run / each) as usize) else { return };
        let shift = run % each * self.bits;
        let others = word.load(Ordering::Relaxed) & !(u64::MAX >> (u64::BITS - self.bits) << shift);
        // No other thread writes here.
        word.store(others | self.code(value) << shift, Ordering::Release);
    }

    /// Writes runs to a place that no reader can be in.
    pub fn write(&self, place: u32, starts: u64, values: &[u32]) {
        let each = (u64::BITS / self.bits) as usize;
        let Some((first, behind)) = self.words.get(place as usize..).and_then(<[_]>::split_first) else {
            return;
        };
        first.store(starts, Ordering::Relaxed);
        for (word, values) in behind.iter().zip(values.chunks(each)) {
            let all = values.iter().rev().fold(0, |word, value| word << self.bits | self.code(*value));
            word.store(all, Ordering::Relaxed);
        }
    }

    pub fn set_default(&self, group: u32) {
        self.default.store(group, Ordering::Release);
    }

    #[inline]
    fn code(&self, value: u32) -> u64 {
        u64::from(if value & EXTENDED == 0 { value } else { value ^ EXTENDED | mark(self.bits) })
    }
}

/// In a value: the rest is the number of a block.
#[inline]
const fn mark(bits: u32) -> u32 {
    1 << (bits - 1)
}
