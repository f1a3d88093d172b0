//! The memory that both functions of a device have.
//!
//! Theory of operation. A VMM may keep a mapping of its region for ever, so each region is for one VMM: for one conversation of
//! either function. Two connections say nothing of whose they are. So a function whose VMM comes gets a new region ([`Current::join`])
//! if it has had a VMM with this one, or if the other function has lost its own; the function that comes second finds the region of the
//! first. Where a VMM comes while another one's connection is still there, the two functions may have different regions, which harms that VMM
//! alone: its guest cannot begin ([`Current::is_joined`]) until the VMM has connected both again.
//!
//! A region changes, too, when the NIC is taken over from another process, with its memory; the memory device follows.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Which of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Nic,
    Memory,
}

/// What VMMs have had of a region by way of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    Nothing,
    /// It has it now.
    Here,
    /// It has left.
    Gone,
}

struct State {
    bar: Arc<Bar>,
    had: [Had; 2],
}

/// Which one it is now.
#[derive(Clone)]
pub(super) struct Current(Arc<Mutex<State>>);

impl Current {
    /// `bar`, which is new.
    pub(super) fn new(bar: Arc<Bar>) -> Current {
        Current(Arc::new(Mutex::new(State { bar, had: [Had::Nothing; 2] })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Bar and users change with one step each.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Arc<Bar> {
        Arc::clone(&self.lock().bar)
    }

    /// A VMM comes to `side`: the region for it, which is made by `new` where this one has been another VMM's.
    pub(super) fn join(
        &self,
        side: Side,
        new: impl FnOnce(&Bar) -> io::Result<Arc<Bar>>,
    ) -> io::Result<Arc<Bar>> {
        let mut state = self.lock();
        let (own, other) = (state.had[side as usize], state.had[1 - side as usize]);
        if own != Had::Nothing || other == Had::Gone {
            *state = State { bar: new(&state.bar)?, had: [Had::Nothing; 2] };
        }
        state.had[side as usize] = Had::Here;
        Ok(Arc::clone(&state.bar))
    }

    /// The VMM of `side`, which had `bar`, has left.
    pub(super) fn leave(&self, side: Side, bar: &Arc<Bar>) {
        let mut state = self.lock();
        if Arc::ptr_eq(&state.bar, bar) && state.had[side as usize] == Had::Here {
            state.had[side as usize] = Had::Gone;
        }
    }

    /// Whether a VMM has got `bar`, the NIC's, from the memory device, and none has got another one since.
    pub(super) fn is_joined(&self, bar: &Arc<Bar>) -> bool {
        let state = self.lock();
        Arc::ptr_eq(&state.bar, bar) && state.had[Side::Memory as usize] != Had::Nothing
    }

    /// `bar` came with the VMM of the NIC, from another process.
    pub(super) fn take_over(&self, bar: &Arc<Bar>) {
        *self.lock() = State { bar: Arc::clone(bar), had: [Had::Here, Had::Nothing] };
    }
}
