//! The cells of an entry as runs of equal ones, as their writer knows them.
//!
//! A run's cells lead to the same by prefixes of the same length. So a change that gives all cells of a length to another
//! prefix makes no run shorter or longer.

use std::ops::Range;

use super::table::CELLS;

/// Cells that lead to the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub cells: Range<u32>,
    /// Bits of the prefix that owns them; none if only the default route has them.
    pub owner: u8,
    /// A group, or [`EXTENDED`](crate::EXTENDED) and the number of a block.
    pub value: u32,
}

/// All runs of an entry, in order.
#[derive(Clone)]
pub(crate) struct Runs {
    /// A bit for each cell at which one begins.
    starts: u64,
    len: usize,
    owners: [u8; CELLS as usize],
    values: [u32; CELLS as usize],
}

impl Runs {
    /// No cell so far.
    pub const NONE: Runs =
        Runs { starts: 0, len: 0, owners: [0; CELLS as usize], values: [0; CELLS as usize] };

    /// The cells from `cell` to the end, or to where the next one begins, belong to a prefix of `owner` bits that leads to
    /// `value`.
    #[inline]
    pub fn push(&mut self, cell: u32, owner: u8, value: u32) {
        if let Some(last) = self.len.checked_sub(1) {
            if self.owners.get(last) == Some(&owner) && self.values.get(last) == Some(&value) {
                return;
            }
        }
        if let (Some(its), Some(to)) = (self.owners.get_mut(self.len), self.values.get_mut(self.len)) {
            (*its, *to) = (owner, value);
            self.starts |= 1 << cell;
            self.len += 1;
        }
    }

    pub fn starts(&self) -> u64 {
        self.starts
    }

    pub fn owners(&self) -> &[u8] {
        self.owners.get(..self.len).unwrap_or_default()
    }

    pub fn values(&self) -> &[u32] {
        self.values.get(..self.len).unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let mut left = self.starts;
        self.owners().iter().zip(self.values()).map(move |(owner, value)| {
            let from = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            Run { cells: from..left.trailing_zeros().min(CELLS), owner: *owner, value: *value }
        })
    }

    /// The run that a cell is in.
    pub fn at(&self, cell: u32) -> Option<Run> {
        self.iter().find(|run| run.cells.contains(&cell))
    }

    /// The same, but those of `cells` that are `ours` by their owner and value belong to a prefix of `owner` bits that leads to
    /// `value`.
    pub fn painted(&self, cells: &Range<u32>, ours: impl Fn(&Run) -> bool, owner: u8, value: u32) -> Runs {
        let mut painted = Runs::NONE;
        for run in self.iter() {
            if !ours(&run) || run.cells.end <= cells.start || cells.end <= run.cells.start {
                painted.push(run.cells.start, run.owner, run.value);
                continue;
            }
            if run.cells.start < cells.start {
                painted.push(run.cells.start, run.owner, run.value);
            }
            painted.push(run.cells.start.max(cells.start), owner, value);
            if cells.end < run.cells.end {
                painted.push(cells.end, run.owner, run.value);
            }
        }
        painted
    }
}
