//! The table as its writer changes it: with the lengths of the prefixes that own what is in it.

use std::ops::Range;
use std::sync::Arc;

use super::room::Room;
use super::runs::{Run, Runs};
use super::table::{parts_of, Table, ENTRIES, PARTS};
use crate::epoch::Epochs;
use crate::memory::Zeroed;
use crate::EXTENDED;

/// A table, and what only its writer knows of it.
pub(crate) struct Store {
    pub table: Arc<Table>,
    room: Room,
    /// How long the prefix is that owns an entry without runs; the default route owns none.
    owners: Zeroed<u8>,
    /// The same for each run: as far behind the first as its value is.
    run_owners: Zeroed<u8>,
}

impl Store {
    /// Without routes, for so many blocks, with values of `bits` bits.
    pub fn new(bits: u32, blocks: usize) -> rustix::io::Result<Store> {
        let entries = ENTRIES + blocks * PARTS;
        let room = Room::new(bits, entries);
        Ok(Store {
            table: Arc::new(Table::new(bits, blocks, room.words())?),
            owners: Zeroed::new(entries)?,
            run_owners: Zeroed::new(room.words() * each(bits))?,
            room,
        })
    }

    /// Bytes that readers may touch beside entries, and those that owners take beside theirs.
    pub fn runs_bytes(&self) -> (usize, usize) {
        (self.room.used() * size_of::<u64>(), self.room.touched() * each(self.table.bits()))
    }

    /// The runs of an entry.
    pub fn runs(&self, at: usize) -> Runs {
        let (entry, mut runs) = (self.table.entry(at), Runs::NONE);
        if entry & EXTENDED == 0 {
            runs.push(0, self.owners.get(at).copied().unwrap_or(0), entry);
            return runs;
        }
        let place = entry ^ EXTENDED;
        let mut starts = self.table.starts(place);
        let owners = self.run_owners.get(self.owners_at(place)..).unwrap_or_default();
        for (run, owner) in (0..starts.count_ones()).zip(owners) {
            runs.push(starts.trailing_zeros(), *owner, self.table.value(place, run));
            starts &= starts - 1;
        }
        runs
    }

    /// Has an entry lead to `runs`.
    pub fn put(&mut self, at: usize, runs: &Runs, epochs: &Epochs) {
        let before = self.table.entry(at);
        let before = (before & EXTENDED != 0).then_some(before ^ EXTENDED);
        let old = before.map(|place| (place, self.table.starts(place)));
        match (old, runs.values()) {
            (_, [value]) => {
                if let (Some(its), Some(owner)) = (self.owners.get_mut(at), runs.owners().first()) {
                    *its = *owner;
                }
                self.table.set_entry(at, *value);
            }
            // The same cells begin runs.
            (Some((place, starts)), values) if starts == runs.starts() => {
                self.own(place, runs.owners());
                for (run, value) in (0..).zip(values) {
                    if self.table.value(place, run) != *value {
                        self.table.set_value(place, run, *value);
                    }
                }
                return;
            }
            (_, values) => {
                let place = self.room.take(values.len(), epochs);
                self.own(place, runs.owners());
                self.table.write(place, runs.starts(), values);
                self.table.set_entry(at, place | EXTENDED);
            }
        }
        if let Some((place, starts)) = old {
            self.room.leave(place, starts.count_ones() as usize, epochs);
        }
    }

    /// Gives those of an entry's `cells` whose owner is as `ours` says to a prefix of `owner` bits that leads to `group`.
    pub fn paint(
        &mut self,
        at: usize,
        cells: &Range<u32>,
        ours: impl Fn(u8) -> bool + Copy,
        (owner, group): (u8, u32),
        epochs: &Epochs,
    ) {
        let runs = self.runs(at);
        let is_ours = |run: &Run| run.value & EXTENDED == 0 && ours(run.owner);
        self.put(at, &runs.painted(cells, is_ours, owner, group), epochs);
        let blocks = runs.iter().filter(|run| run.value & EXTENDED != 0 && cells.contains(&run.cells.start));
        for block in blocks {
            self.repaint_block(block.value ^ EXTENDED, ours, (owner, group));
        }
    }

    /// The same for all cells of an entry and a prefix that owns no part of them, but all or none except for those that longer
    /// ones own. No run becomes longer or shorter.
    pub fn repaint(&mut self, at: usize, ours: impl Fn(u8) -> bool + Copy, (owner, group): (u8, u32)) {
        let entry = self.table.entry(at);
        if entry & EXTENDED == 0 {
            if let Some(its) = self.owners.get_mut(at).filter(|its| ours(**its)) {
                *its = owner;
                self.table.set_entry(at, group);
            }
            return;
        }
        let place = entry ^ EXTENDED;
        let (runs, first) = (self.table.starts(place).count_ones(), self.owners_at(place));
        for run in 0..runs {
            let value = self.table.value(place, run);
            if value & EXTENDED != 0 {
                self.repaint_block(value ^ EXTENDED, ours, (owner, group));
            } else if let Some(its) = self.run_owners.get_mut(first + run as usize).filter(|its| ours(**its))
            {
                *its = owner;
                self.table.set_value(place, run, group);
            }
        }
    }

    fn repaint_block(&mut self, block: u32, ours: impl Fn(u8) -> bool + Copy, to: (u8, u32)) {
        let parts = parts_of(block);
        // Blocks are not in blocks: this ends here.
        (parts..parts + PARTS).for_each(|part| self.repaint(part, ours, to));
    }

    fn own(&mut self, place: u32, owners: &[u8]) {
        let first = self.owners_at(place);
        if let Some(its) = self.run_owners.get_mut(first..first + owners.len()) {
            its.copy_from_slice(owners);
        }
    }

    fn owners_at(&self, place: u32) -> usize {
        place as usize * each(self.table.bits())
    }
}

/// Values in a word.
fn each(bits: u32) -> usize {
    (u64::BITS / bits) as usize
}
