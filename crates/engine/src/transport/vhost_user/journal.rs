//! Where the journals of packed rings are kept, so that they outlive the conversation or the daemon.
//!
//! A [`Journal`] is a slot of a shared file: of the inflight region that the front end keeps for us
//! (INFLIGHT_SHMFD, vhost-user "Inflight I/O tracking", the packed layout), else of a file of our own.
//! What it says goes before what the front end says: after a broken connection VMMs replay whatever they
//! were told last (QEMU: the base that it sent at the last start).

use std::fs::File;
use std::io;

use crate::mem::{self, memory_file, BadFile, Terms, MAX_BATCH};
use crate::virtq::Journal;

/// The slots of a device's rings.
pub(super) struct Slots(mem::Slots);

impl Slots {
    /// An inflight region for `count` queues of `size` entries: the file, its bytes.
    pub(super) fn create(count: u16, size: u16) -> io::Result<(File, u64)> {
        let bytes = Journal::bytes(size.into()) * usize::from(count);
        Ok((memory_file(c"sidecore-inflight", bytes)?, bytes as u64))
    }

    /// The region of `bytes` from `offset` on in `file`, which the front end gives on `terms`, divided as `create` does.
    pub(super) fn adopt(
        file: &File,
        offset: u64,
        bytes: u64,
        count: u16,
        size: u16,
        terms: &Terms,
    ) -> Result<Slots, BadFile> {
        mem::Slots::lent((file, offset, bytes), Journal::bytes(size.into()), count.into(), terms).map(Slots)
    }

    /// Slots in `file`, which is made long enough for the largest batch of each ring, and has room for all of it from now
    /// on: a file system that is full later shall not be found out by a write to the mapping.
    pub(super) fn open(file: &File, count: usize) -> io::Result<Slots> {
        let slot = Journal::bytes(MAX_BATCH);
        crate::open::allocate(file, (slot * count) as u64)?;
        mem::Slots::open(file, slot, count).map(Slots)
    }

    /// Slots that live as long as this process.
    pub(super) fn anonymous(count: usize) -> io::Result<Slots> {
        let slot = Journal::bytes(MAX_BATCH);
        mem::Slots::open(&memory_file(c"sidecore-positions", slot * count)?, slot, count).map(Slots)
    }

    /// The journal of ring `index`, if there is one.
    pub(super) fn slot(&self, index: usize) -> Option<Journal> {
        self.0.slot(index).map(Journal::new)
    }
}
