//! Where it is kept what rings were in the middle of, so that it outlives the conversation or the daemon.
//!
//! Packed rings of frames have a [`PackedJournal`], rings of requests a [`Region`]. Either is a slot of a
//! shared file: of the inflight region that the front end keeps for us (INFLIGHT_SHMFD, vhost-user "Inflight
//! I/O tracking"), else of a file of our own. What it says goes before what the front end says: after a
//! broken connection VMMs replay whatever they were told last (QEMU: the base that it sent at the last
//! start).

use std::fs::File;
use std::io;

use crate::mem::{self, sparse_file, BadFile, Terms, MAX_BATCH};
use crate::virtq::{PackedJournal, Region, Whose};

/// Entries of the largest ring of requests that a file of our own has room for: the most that QEMU makes.
pub(super) const OUR_ENTRIES: usize = 1024;
/// The last word of a slot is behind its last entry (`last_word`).
const _: () = assert!(PackedJournal::bytes(OUR_ENTRIES) > PackedJournal::bytes(OUR_ENTRIES - 1) + 32);

/// The slots of a device's rings.
pub(super) struct RingSlots {
    slots: mem::JournalSlots,
    whose: Whose,
    /// Entries of the largest ring of requests that fits.
    pub(super) entries: usize,
}

impl RingSlots {
    /// Entries for a ring in a file of our own: as many as the largest batch of frames, or ring of requests.
    pub(super) fn ours(in_order: bool) -> usize {
        if in_order {
            MAX_BATCH
        } else {
            OUR_ENTRIES
        }
    }

    /// An inflight region for `count` queues of `size` entries: the file, its bytes.
    pub(super) fn create(count: u16, size: u16) -> io::Result<(File, u64)> {
        let bytes = PackedJournal::bytes(size.into()) * usize::from(count);
        Ok((sparse_file(c"sidecore-inflight", bytes)?, bytes as u64))
    }

    /// The region of `bytes` from `offset` on in `file`, which the front end gives on `terms`, divided as
    /// `create` does.
    pub(super) fn adopt(
        file: &File,
        offset: u64,
        bytes: u64,
        count: u16,
        size: u16,
        terms: &Terms,
    ) -> Result<RingSlots, BadFile> {
        let entries = usize::from(size);
        let slots = mem::JournalSlots::lent(
            (file, offset, bytes),
            PackedJournal::bytes(entries),
            count.into(),
            terms,
        )?;
        Ok(RingSlots { slots, whose: Whose::FrontEnds, entries })
    }

    /// Slots of `entries` entries in `file`, which is made long enough and has room for all of them from now
    /// on: a file system that is full later shall not be found out by a write to the mapping.
    pub(super) fn open(file: &File, count: usize, entries: usize) -> io::Result<RingSlots> {
        crate::sandbox::open::allocate(file, (PackedJournal::bytes(entries) * count) as u64)?;
        let slots = mem::JournalSlots::open(file, PackedJournal::bytes(entries), count)?;
        Ok(RingSlots { slots, whose: Whose::Ours, entries })
    }

    /// Slots that live as long as this process.
    pub(super) fn anonymous(count: usize, entries: usize) -> io::Result<RingSlots> {
        RingSlots::open(&sparse_file(c"sidecore-positions", 0)?, count, entries)
    }

    /// The journal of ring `index`, if there is one.
    pub(super) fn slot(&self, index: usize) -> Option<PackedJournal> {
        self.slots.slot(index).map(PackedJournal::new)
    }

    /// The in-flight region of ring `index`, if there is one.
    pub(super) fn region(&self, index: usize) -> Option<Region> {
        self.slots.slot(index).map(|slot| Region::new(slot, self.whose))
    }

    /// The first slot, and the word of it that no ring has: zero, unless a disk writes something there
    /// (`disk::keep`).
    pub(super) fn last_word(&self) -> Option<(mem::JournalSlot, usize)> {
        let slot = self.slots.slot(0)?;
        Some((slot, PackedJournal::bytes(self.entries) / 8 - 1))
    }
}
