//! What the fuzz targets share: a guest's memory, a port, and rings on them.

pub mod nic;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use sidecore_engine::mem::{GuestMap, RegionSpec};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Port, PortId};
use sidecore_engine::virtq::{Notifier, Position, Queue, RingConfig};

/// Bytes of guest memory.
pub const MEMORY: u64 = 64 << 10;
/// Where it starts in the guest.
pub const GPA: u64 = 0x10_0000;
/// Entries of the rings.
pub const ENTRIES: u16 = 16;
/// Where the three parts of a ring lie in guest memory.
pub const PARTS: [u64; 3] = [0x0, 0x400, 0x800];

/// A guest's memory, reachable from both sides.
pub struct Guest {
    file: File,
    /// As the engine sees it.
    pub map: Arc<GuestMap>,
}

impl Guest {
    /// Zeroed memory.
    pub fn new() -> Guest {
        let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, MEMORY).unwrap();
        let file: File = fd.into();
        let spec =
            RegionSpec { gpa: GPA, size: MEMORY, user_addr: GPA, offset: 0, file: file.try_clone().unwrap() };
        Guest { file, map: Arc::new(GuestMap::new(&[spec]).unwrap()) }
    }

    /// The memory file, as the VMM passes it.
    pub fn fd(&self) -> File {
        self.file.try_clone().unwrap()
    }

    /// Writes as the guest does.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let room = MEMORY.saturating_sub(offset) as usize;
        self.file.write_all_at(&bytes[..bytes.len().min(room)], offset).unwrap();
    }

    /// Reads as the guest does.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.file.read_exact_at(bytes, offset).unwrap();
    }

    /// A ring at `PARTS`, from its first entry on.
    pub fn ring(&self, features: u64, packed: bool) -> Queue {
        let position =
            if packed { Position::Packed { avail: 0x8000, used: 0x8000 } } else { Position::Split(0) };
        Queue::new(self.config(features, position)).unwrap()
    }

    /// What a ring at `PARTS` needs to run.
    pub fn config(&self, features: u64, position: Position) -> RingConfig {
        let sizes = RingConfig::part_sizes(ENTRIES, features);
        let part = |i: usize| {
            self.map.translate(GPA + PARTS[i], sizes[i].next_multiple_of(8) as u32, &mut 0).unwrap()
        };
        RingConfig {
            size: ENTRIES,
            desc: part(0),
            driver: part(1),
            device: part(2),
            used_log: None,
            map: Arc::clone(&self.map),
            features,
            position,
            notifier: Arc::new(Notifier::default()),
            log: None,
            journal: None,
            region: None,
        }
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

/// A port that belongs to nobody.
pub fn port() -> Arc<Port> {
    let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "fuzz");
    Arc::new(Port::new(PortId(0), "fuzz", counters, 1500).unwrap())
}
