//! The memory that the VMM lets the device reach.
//!
//! Theory of operation. A table of address ranges, and beside it the [`GuestMap`] of those that we can reach.
//! Each change makes the next map, which shares with its predecessor all that stays. The device swaps maps
//! under its queues before the change is acknowledged, so the memory of an unmapped range is gone from our
//! address space when the VMM hears that it is.
//!
//! Some ranges cannot be reached: those without a file (a VMM's ROMs, other devices' registers, and guest
//! memory that is not shared) and those that may not be both read and written. They are remembered, because
//! the VMM unmaps them again, and a buffer there is an error of its own: see [`DmaTable::is_unshared`].
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use sidecore_abi::vfio_user::{dma, DmaMap, DmaUnmap};

use super::messages::Refusal;
use crate::device::pci::Image;
use crate::mem::{BadFile, GuestMap, MapError, RegionSpec, Terms};

/// Most ranges at a time. A PC has about ten; a virtual IOMMU makes one for every page in use.
pub(super) const MAX_MAPS: usize = 1024;

struct Range {
    size: u64,
    reached: bool,
    /// Where it starts in its file, and the name of that file for its keeper.
    offset: u64,
    file: u32,
}

/// The ranges.
pub(super) struct DmaTable {
    ranges: BTreeMap<u64, Range>,
    /// The memory that can be reached.
    pub(super) map: Arc<GuestMap>,
    /// Nothing is mapped: the next daemon will map it.
    still: bool,
    /// The terms on which the client gives its memory.
    pub(super) terms: Terms,
    /// The name of the file of the range that is added next.
    pub(super) next: u32,
    /// Since the last save.
    changed: bool,
}

/// Words that a table takes when it is saved: a head, and four for each range.
pub(super) const SAVED: usize = 8 + 4 * MAX_MAPS;

impl DmaTable {
    /// No ranges; memory is given on `terms`.
    pub(super) fn new(terms: &Terms) -> DmaTable {
        let map = Arc::new(GuestMap::empty(terms));
        DmaTable { ranges: BTreeMap::new(), map, still: false, terms: terms.clone(), next: 0, changed: false }
    }

    /// Adds a range. Whether it is one that we reach: then the map has changed.
    pub(super) fn add(&mut self, ask: &DmaMap, file: Option<OwnedFd>) -> Result<bool, Refusal> {
        let DmaMap { flags, offset, address, size, .. } = *ask;
        let both = dma::READ | dma::WRITE;
        if flags & !both != 0 || flags == 0 {
            return Err(Refusal::invalid(format!("flags {flags:#x} are not those of a mapping")));
        }
        let Some(end) = address.checked_add(size).filter(|_| size > 0) else {
            return Err(Refusal::invalid(format!("range {address:#x} of {size:#x} bytes is empty or wraps")));
        };
        // The last range that starts below our end is the only one that can reach into us.
        if let Some((other, range)) = self.ranges.range(..end).next_back() {
            if other + range.size > address {
                return Err(Refusal::new(
                    Errno::EXIST,
                    format!("range {address:#x} of {size:#x} bytes overlaps the one at {other:#x}"),
                ));
            }
        }
        if self.ranges.len() == MAX_MAPS {
            return Err(Refusal::new(
                Errno::NOSPC,
                format!("more than {MAX_MAPS} memory ranges; is there a virtual IOMMU? We cannot follow one"),
            ));
        }
        let file = file.filter(|_| flags == both);
        let reached = file.is_some();
        if let Some(file) = file.filter(|_| !self.still) {
            let spec = RegionSpec { gpa: address, size, user_addr: address, offset, file: file.into() };
            let map = self.map.with(&spec).map_err(|e| Refusal::new(errno(&e), e.to_string()))?;
            self.map = Arc::new(map);
        }
        self.ranges.insert(address, Range { size, reached, offset, file: self.next });
        self.next = self.next.wrapping_add(1);
        self.changed = true;
        Ok(reached)
    }

    /// Removes what `ask` describes: exactly one range. The old and the new map, if it has changed.
    pub(super) fn remove(&mut self, ask: &DmaUnmap) -> Result<Option<[Arc<GuestMap>; 2]>, Refusal> {
        let DmaUnmap { address, size, flags, .. } = *ask;
        let all = flags == dma::UNMAP_ALL;
        if flags != 0 && !all {
            return Err(Refusal::invalid(format!("flags {flags:#x} are not those of an unmapping")));
        }
        let before = Arc::clone(&self.map);
        self.changed = true;
        let changed = if all {
            self.map = Arc::new(GuestMap::empty(&self.terms));
            std::mem::take(&mut self.ranges).values().any(|range| range.reached)
        } else {
            match self.ranges.get(&address) {
                Some(range) if range.size == size => {}
                Some(range) => {
                    let is = range.size;
                    return Err(Refusal::invalid(format!(
                        "the range at {address:#x} has {is:#x} bytes, not {size:#x}"
                    )));
                }
                None => {
                    return Err(Refusal::new(Errno::NOENT, format!("no range starts at {address:#x}")));
                }
            }
            let reached = self.ranges.remove(&address).is_some_and(|range| range.reached);
            if reached {
                self.map = Arc::new(self.map.without(address));
            }
            reached
        };
        Ok(changed.then(|| [before, Arc::clone(&self.map)]))
    }

    /// The names of the files of all ranges that we reach.
    pub(super) fn files(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.values().filter(|range| range.reached).map(|range| range.file)
    }

    /// Writes the table into `image` from word `at` on, if it has changed.
    pub(super) fn save(&mut self, image: &mut Image, at: usize) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        image.put(at, self.ranges.len() as u64);
        image.put(at + 1, self.next.into());
        for (index, (address, range)) in self.ranges.iter().enumerate() {
            let at = at + 8 + 4 * index;
            let words =
                [*address, range.size, range.offset, u64::from(range.reached) << 32 | u64::from(range.file)];
            words.into_iter().enumerate().for_each(|(word, value)| image.put(at + word, value));
        }
    }

    /// The table that was saved there; `file` gives the file of a name. `still`: nothing is mapped. An error
    /// says what cannot be had any more.
    pub(super) fn restore(
        image: &Image,
        at: usize,
        terms: &Terms,
        still: bool,
        mut file: impl FnMut(u32) -> Option<OwnedFd>,
    ) -> Result<DmaTable, String> {
        let mut table = DmaTable { still, ..DmaTable::new(terms) };
        let count = usize::try_from(image.get(at)).unwrap_or(usize::MAX);
        if count > MAX_MAPS {
            return Err(format!("{count} memory ranges are more than there can be"));
        }
        for range in (0..count).map(|index| at + 8 + 4 * index) {
            let [address, size, offset, facts] = [0, 1, 2, 3].map(|word| image.get(range + word));
            let name = u32::try_from(facts & 0xffff_ffff).unwrap_or(0);
            let reached = facts >> 32 != 0;
            let gone = || format!("the memory at {address:#x} is missing");
            let file = if reached { Some(file(name).ok_or_else(gone)?) } else { None };
            table.next = name;
            let ask = DmaMap { argsz: 0, flags: dma::READ | dma::WRITE, offset, address, size };
            table.add(&ask, file).map_err(|refusal| refusal.why)?;
        }
        table.next = u32::try_from(image.get(at + 1)).unwrap_or(0);
        Ok(table)
    }

    /// Whether there is memory, and none of it can be reached.
    pub(super) fn is_unshared(&self) -> bool {
        !self.ranges.is_empty() && !self.ranges.values().any(|range| range.reached)
    }
}

fn errno(error: &MapError) -> Errno {
    match error {
        MapError::TooMany | MapError::File { source: BadFile::Watch(_), .. } => Errno::NOSPC,
        _ => Errno::INVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    const PAGE: u64 = 0x1000;

    fn file() -> OwnedFd {
        let fd = memfd_create(c"range", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 8 * PAGE).unwrap();
        fd
    }

    proptest! {
        /// Against a list of pages, each owned by the range that covers it.
        #[test]
        fn the_table_is_what_was_mapped(
            steps in prop::collection::vec((any::<bool>(), 0usize..24, 1usize..6, any::<bool>(), 1u32..4), 1..60)
        ) {
            let mut table = DmaTable::new(&Terms::default());
            let mut pages: [Option<(usize, usize, bool)>; 32] = [None; 32];
            for (add, page, count, with_file, flags) in steps {
                let (address, size) = (page as u64 * PAGE, count as u64 * PAGE);
                let covered = page..page + count;
                if add {
                    let ask = DmaMap { argsz: 32, flags, offset: PAGE, address, size };
                    let free = pages[covered.clone()].iter().all(Option::is_none);
                    let reached = with_file && flags == dma::READ | dma::WRITE;
                    let result = table.add(&ask, with_file.then(file));
                    if free {
                        prop_assert_eq!(result.unwrap(), reached);
                        pages[covered].fill(Some((page, count, reached)));
                    } else {
                        prop_assert_eq!(result.unwrap_err().errno, Errno::EXIST);
                    }
                } else {
                    let result = table.remove(&DmaUnmap { argsz: 24, flags: 0, address, size });
                    match pages[page] {
                        Some((first, length, reached)) if (first, length) == (page, count) => {
                            prop_assert_eq!(result.unwrap().is_some(), reached);
                            pages[covered].fill(None);
                        }
                        Some((first, ..)) if first == page => {
                            prop_assert_eq!(result.unwrap_err().errno, Errno::INVAL);
                        }
                        _ => prop_assert_eq!(result.unwrap_err().errno, Errno::NOENT),
                    }
                }
                for (page, owner) in pages.iter().enumerate() {
                    let reached = owner.is_some_and(|(.., reached)| reached);
                    let found = table.map.translate(page as u64 * PAGE, 0x1000, &mut 0);
                    prop_assert_eq!(found.is_some(), reached);
                }
                let (some, reached) = (pages.iter().any(Option::is_some), pages.iter().flatten().any(|p| p.2));
                prop_assert_eq!(table.is_unshared(), some && !reached);
            }
        }
    }
}
