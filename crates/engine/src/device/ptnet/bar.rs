//! The memory that both functions of a device have. It changes when the NIC is taken over from another process, with its memory;
//! the memory device follows.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::fstat;

use crate::mem::SharedPages;
use crate::ring::{Geometry, Region};

/// A region, and the same memory as what a VMM maps.
pub(super) struct Bar {
    pub(super) region: Arc<Region>,
    pub(super) pages: Arc<SharedPages>,
    /// By which a driver finds it.
    pub(super) id: u16,
}

impl Bar {
    fn of(region: Region, id: u16) -> io::Result<Arc<Bar>> {
        let size = usize::try_from(region.info().total).map_err(io::Error::other)?;
        let pages = Arc::new(SharedPages::adopt(region.file().try_clone_to_owned()?, size)?);
        Ok(Arc::new(Bar { region: Arc::new(region), pages, id }))
    }

    /// New memory, for a port called `name`.
    pub(super) fn new(geometry: &Geometry, name: &str, id: u16) -> io::Result<Arc<Bar>> {
        Bar::of(Region::for_guest(geometry, name)?, id)
    }

    /// Memory that another process made, as it left it.
    pub(super) fn adopt(geometry: &Geometry, file: OwnedFd, id: u16) -> io::Result<Arc<Bar>> {
        Bar::of(Region::adopt(geometry, file)?, id)
    }

    /// Whether `file` is this memory.
    pub(super) fn is(&self, file: &OwnedFd) -> bool {
        let name = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let ours = fstat(self.region.file()).map(name);
        ours.is_ok() && ours == fstat(file).map(name)
    }
}

/// Which one it is now.
#[derive(Clone)]
pub(super) struct Current(Arc<Mutex<Arc<Bar>>>);

impl Current {
    pub(super) fn new(bar: Arc<Bar>) -> Current {
        Current(Arc::new(Mutex::new(bar)))
    }

    pub(super) fn get(&self) -> Arc<Bar> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, bar: Arc<Bar>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bar;
    }
}
