//! Where the journals of packed rings are kept, so that they outlive the conversation or the daemon.
//!
//! A [`Journal`] is a slot of a shared file: of the inflight region that the front end keeps for us
//! (INFLIGHT_SHMFD, vhost-user "Inflight I/O tracking", the packed layout), else of a file of our own.
//! What it says goes before what the front end says: after a broken connection VMMs replay whatever they
//! were told last (QEMU: the base that it sent at the last start).

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

use crate::mem::{BadFile, SharedFile, Terms, MAX_BATCH};
use crate::virtq::Journal;

/// The slots of a device's rings.
pub(super) struct Slots {
    shared: Arc<SharedFile>,
    slot: usize,
    count: usize,
}

impl Slots {
    /// An inflight region for `count` queues of `size` entries: the file, its bytes.
    pub(super) fn create(count: u16, size: u16) -> io::Result<(File, u64)> {
        let bytes = (Journal::bytes(usize::from(size)) * usize::from(count)) as u64;
        let fd = memfd_create(c"sidecore-inflight", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, bytes)?;
        Ok((fd.into(), bytes))
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
        let slot = Journal::bytes(usize::from(size));
        let count = usize::from(count);
        if bytes < (slot * count) as u64 || offset % 8 != 0 {
            let why =
                format!("{count} queues of {size} entries need {slot} bytes each, it has {bytes} in all");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        Ok(Slots { shared: Arc::new(SharedFile::lent(file, offset, bytes, terms)?), slot, count })
    }

    /// Slots in `file`, which is made long enough for the largest batch of each ring, and has room for all of it from now
    /// on: a file system that is full later shall not be found out by a write to the mapping.
    pub(super) fn open(file: &File, count: usize) -> io::Result<Slots> {
        let slot = Journal::bytes(MAX_BATCH);
        let bytes = (slot * count) as u64;
        crate::open::allocate(file, bytes)?;
        Ok(Slots { shared: Arc::new(SharedFile::map(file, 0, bytes)?), slot, count })
    }

    /// Slots that live as long as this process.
    pub(super) fn anonymous(count: usize) -> io::Result<Slots> {
        let slot = Journal::bytes(MAX_BATCH);
        let bytes = (slot * count) as u64;
        let fd = memfd_create(c"sidecore-positions", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, bytes)?;
        Ok(Slots { shared: Arc::new(SharedFile::map(&fd.into(), 0, bytes)?), slot, count })
    }

    /// The journal of ring `index`, if there is one.
    pub(super) fn slot(&self, index: usize) -> Option<Journal> {
        let at = self.slot.checked_mul(index)?;
        (index < self.count).then(|| Journal::at(&self.shared, at))
    }
}
