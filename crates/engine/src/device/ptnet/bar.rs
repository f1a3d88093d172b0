//! The memory that both functions of a device have.
//!
//! Theory of operation. A VMM may keep a mapping of its region for ever, so each region is for one VMM: for
//! one conversation of either function. Two connections do not tell whether they are of one VMM. So when a
//! VMM connects to a function, the function gets a new region ([`Current::join`]) if it has had a VMM with
//! this one, or if the other function has lost its own. The function that comes second finds the region of
//! the first. If a VMM connects while another one's connection still exists, the two functions may have
//! different regions. That harms only that VMM: its guest cannot begin ([`Current::is_joined`]) until the VMM
//! has connected both again.
//!
//! Memory that a former VMM keeps counts as the daemon's. So a region that is replaced is emptied
//! ([`Region::give_up`]): at once, or when the function that still has a VMM with it loses that.
//!
//! A region changes, too, when the NIC is taken over from another process, with its memory; the memory device
//! follows.
//!
//! The region of a pipe's end is the pipe's (`slots::pipe`). Each VMM that comes while the other end is there
//! gets the same one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::fstat;

use crate::mem::SharedPages;
use crate::ring::{Geometry, Region, Side as EndSide};
use crate::slots::pipe::End;

/// A region, and the same memory as what a VMM maps.
pub(super) struct Bar {
    pub(super) region: Arc<Region>,
    pub(super) pages: Arc<SharedPages>,
    /// By which a driver finds it.
    pub(super) id: u16,
}

impl Bar {
    fn of(region: Arc<Region>, id: u16) -> io::Result<Arc<Bar>> {
        let size = usize::try_from(region.info().total).map_err(io::Error::other)?;
        let pages = Arc::new(SharedPages::adopt(region.file().try_clone_to_owned()?, size)?);
        Ok(Arc::new(Bar { region, pages, id }))
    }

    /// Whether `file` is this memory.
    pub(super) fn is(&self, file: &OwnedFd) -> bool {
        let name = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let ours = fstat(self.region.file()).map(name);
        ours.is_ok() && ours == fstat(file).map(name)
    }
}

/// Where regions come from.
#[derive(Clone)]
pub(super) enum RegionSource {
    /// Each is made for the port of this name alone.
    Own(Geometry, String),
    /// They are a pipe's.
    Pipe(Arc<End>),
}

impl RegionSource {
    /// The first one.
    pub(super) fn first(&self, id: u16) -> io::Result<Arc<Bar>> {
        match self {
            RegionSource::Own(..) => self.next(id),
            RegionSource::Pipe(end) => Bar::of(end.region(), id),
        }
    }

    /// That for the next VMM.
    fn next(&self, id: u16) -> io::Result<Arc<Bar>> {
        let region = match self {
            RegionSource::Own(geometry, name) => Arc::new(Region::for_guest(geometry, name)?),
            RegionSource::Pipe(end) => end.enter()?,
        };
        Bar::of(region, id)
    }

    /// Memory that another process made, as it left it; of a pipe what the end `side` has.
    pub(super) fn adopt(&self, file: OwnedFd, id: u16, side: EndSide) -> io::Result<Arc<Bar>> {
        let region = match self {
            RegionSource::Own(geometry, _) => Arc::new(Region::adopt(geometry, file)?),
            RegionSource::Pipe(end) => end.adopt(file, side)?,
        };
        Bar::of(region, id)
    }
}

/// Which of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PtnetFunction {
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

struct CurrentBar {
    bar: Arc<Bar>,
    had: [Had; 2],
}

/// Which one it is now.
#[derive(Clone)]
pub(super) struct Current {
    state: Arc<Mutex<CurrentBar>>,
    source: RegionSource,
}

impl Current {
    /// The first one of `source`, which drivers find by `id`.
    pub(super) fn new(source: RegionSource, id: u16) -> io::Result<Current> {
        let state = CurrentBar { bar: source.first(id)?, had: [Had::Nothing; 2] };
        Ok(Current { state: Arc::new(Mutex::new(state)), source })
    }

    /// For a function that stands alone, in its holder's process: memory that nobody has, until it adopts its
    /// own.
    pub(super) fn alone(source: RegionSource, id: u16) -> io::Result<Current> {
        let bar = match &source {
            RegionSource::Own(geometry, _) => Bar::of(Arc::new(Region::empty(geometry)?), id)?,
            RegionSource::Pipe(_) => source.first(id)?,
        };
        Ok(Current { state: Arc::new(Mutex::new(CurrentBar { bar, had: [Had::Nothing; 2] })), source })
    }

    /// Where regions come from.
    pub(super) fn source(&self) -> &RegionSource {
        &self.source
    }

    pub(super) fn get(&self) -> Arc<Bar> {
        Arc::clone(&crate::lock(&self.state).bar)
    }

    /// A VMM comes to `side`: the region for it, which is another one where this one has been another VMM's.
    pub(super) fn join(&self, side: PtnetFunction) -> io::Result<Arc<Bar>> {
        let mut state = crate::lock(&self.state);
        let (own, other) = (state.had[side as usize], state.had[1 - side as usize]);
        // Others may have had something of a pipe's memory, too: it knows.
        let first = matches!(self.source, RegionSource::Pipe(_)) && other != Had::Here;
        let mut left = None;
        if own != Had::Nothing || other == Had::Gone || first {
            let next = self.source.next(state.bar.id)?;
            let old = std::mem::replace(&mut *state, CurrentBar { bar: next, had: [Had::Nothing; 2] });
            // A pipe itself gives up memory that no VMM has any more.
            left = matches!(self.source, RegionSource::Own(..))
                .then_some(old.bar)
                .filter(|_| other != Had::Here);
        }
        state.had[side as usize] = Had::Here;
        let bar = Arc::clone(&state.bar);
        drop(state);
        // If a VMM keeps it, only this conversation waits.
        left.iter().for_each(|left| left.region.give_up());
        Ok(bar)
    }

    /// The VMM of `side` comes from another process, as the NIC's did, with this memory.
    pub(super) fn stay(&self, side: PtnetFunction) {
        crate::lock(&self.state).had[side as usize] = Had::Here;
    }

    /// The VMM of `side`, which had `bar`, has left.
    pub(super) fn leave(&self, side: PtnetFunction, bar: &Arc<Bar>) {
        let mut state = crate::lock(&self.state);
        if !Arc::ptr_eq(&state.bar, bar) {
            drop(state);
            // It was replaced while this VMM had it, by one that came to the other function.
            if matches!(self.source, RegionSource::Own(..)) {
                bar.region.give_up();
            }
        } else if state.had[side as usize] == Had::Here {
            state.had[side as usize] = Had::Gone;
            if let (RegionSource::Pipe(end), false) = (&self.source, state.had.contains(&Had::Here)) {
                end.leave();
            }
        }
    }

    /// Whether a VMM has got `bar`, the NIC's, from the memory device, and none has got another one since.
    pub(super) fn is_joined(&self, bar: &Arc<Bar>) -> bool {
        let state = crate::lock(&self.state);
        Arc::ptr_eq(&state.bar, bar) && state.had[PtnetFunction::Memory as usize] != Had::Nothing
    }

    /// `bar` came with the VMM of the NIC, from another process.
    pub(super) fn take_over(&self, bar: &Arc<Bar>) {
        *crate::lock(&self.state) = CurrentBar { bar: Arc::clone(bar), had: [Had::Here, Had::Nothing] };
    }
}
