//! Pipes between two ports: what one sends the other receives, in the same buffers.
//!
//! Theory of operation. The two ends have one memory (`ring::Joined`), and for each ring a
//! [`PipeDirection`](direction) in either direction. An end is a guest's (`device::ptnet`) or a program's
//! (`host::ring`). Each maps all of the memory, so they trust each other with what is in the pipe: its
//! buffers, slots, and the `head` and `tail` that stand in rings. What each believes of its indices it tells
//! elsewhere, and is judged for alone; no number that either writes leads out of the pipe's memory.
//!
//! The memory is new for an end that comes when the other end is not there. Otherwise it gets what is: an end
//! that goes and comes again goes on where it was, and may have seen what it left. A pipe is put back to its
//! start when an end begins anew and the other one is not there.
//!
//! A pipe has a name, and is there while a port names it. Which end is whose is settled when a port comes: a
//! program's is the second one. A guest's that comes from another process ([`End::adopt`]) has its old one.

mod direction;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::fstat;

pub use direction::{Far, Moved, Receiving, Sending};

use self::direction::PipeDirection;
use crate::ring::{Geometry, Joined, Region, Side};

/// The first number of a pipe's memory for programs: far from those of ports, of shared memories and of
/// monitors.
const FIRST_MEMORY: u32 = (1 << 14) + 0x2000;

/// Pipes by their names, and how many ends there have been.
static PIPES: Mutex<(BTreeMap<String, Weak<Pipe>>, u64)> = Mutex::new((BTreeMap::new(), 0));

/// A pipe.
struct Pipe {
    name: String,
    geometry: Geometry,
    mem_id: u32,
    state: Mutex<PipeState>,
}

/// The holder of an end: a port, by a number of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EndHolder {
    owner: Option<u64>,
    program: bool,
    /// A VMM or a program is there.
    used: bool,
}

struct PipeState {
    memory: PipeMemory,
    holders: [EndHolder; 2],
}

impl PipeState {
    fn holder(&mut self, side: Side) -> &mut EndHolder {
        let [first, second] = &mut self.holders;
        match side {
            Side::First => first,
            Side::Second => second,
        }
    }

    /// Where the port of this number is.
    fn side(&self, owner: u64) -> Side {
        let [first, _] = &self.holders;
        if first.owner == Some(owner) {
            Side::First
        } else {
            Side::Second
        }
    }

    fn is_used(&self, side: Side) -> bool {
        side.of(&self.holders).used
    }
}

/// A direction behind its lock.
type SharedDirection = Arc<Mutex<PipeDirection>>;

/// The memory, and the directions from each end's rings to the other.
struct PipeMemory {
    joined: Joined,
    directions: [Vec<SharedDirection>; 2],
    /// An end has had it.
    given: bool,
}

impl PipeMemory {
    fn of(joined: Joined) -> PipeMemory {
        let rings = joined.end(Side::First).info().tx_rings;
        let directions = |from| {
            (0..rings)
                .map(|ring| Arc::new(Mutex::new(PipeDirection::new(joined.direction(from, ring)))))
                .collect()
        };
        PipeMemory { directions: Side::BOTH.map(directions), joined, given: false }
    }

    /// As it was at first, while no end has a half of any direction.
    fn restart(&mut self, name: &str) {
        self.joined.fill(name);
        for (from, directions) in Side::BOTH.into_iter().zip(&self.directions) {
            for (ring, direction) in (0..).zip(directions) {
                *crate::lock(direction) = PipeDirection::new(self.joined.direction(from, ring));
            }
        }
    }

    /// That from ring `ring` of `from`.
    fn direction(&self, from: Side, ring: usize) -> Option<&SharedDirection> {
        from.of(&self.directions).get(ring)
    }
}

/// A port's end of a pipe, for as long as the port is there.
pub struct End {
    pipe: Arc<Pipe>,
    owner: u64,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} end of pipe {}", self.side(), self.pipe.name)
    }
}

impl End {
    /// An end of the pipe `name` for a guest's port with these rings, or a program's.
    ///
    /// # Errors
    /// The pipe has no such end to give, or its rings are others; rings out of range. There is no memory.
    pub fn join(name: &str, geometry: &Geometry, program: bool) -> io::Result<Arc<End>> {
        let invalid =
            |why| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("pipe {name:?} has {why}")));
        let mut pipes = crate::lock(&PIPES);
        let owner = pipes.1;
        pipes.1 += 1;
        let there = pipes.0.get(name).and_then(Weak::upgrade);
        let pipe = match there {
            Some(pipe) if pipe.geometry != *geometry => {
                return invalid(
                    "another end with other rings: queues, slots and buf-size have to be the same",
                );
            }
            Some(pipe) => pipe,
            None => {
                let memory = PipeMemory::of(Joined::new(geometry, name)?);
                // Numbers are used anew after as many pipes as fit below the monitors'.
                let mem_id = FIRST_MEMORY + u32::try_from(owner % 0x2000).unwrap_or(0);
                let pipe = Arc::new(Pipe {
                    name: name.to_owned(),
                    geometry: *geometry,
                    mem_id,
                    state: Mutex::new(PipeState { memory, holders: Default::default() }),
                });
                pipes.0.retain(|_, pipe| pipe.strong_count() > 0);
                pipes.0.insert(name.to_owned(), Arc::downgrade(&pipe));
                pipe
            }
        };
        let mut state = crate::lock(&pipe.state);
        if program && state.holders.iter().any(|holder| holder.program) {
            return invalid(
                "a program's end already: programs open NAME{PIPE and NAME}PIPE of one ring port",
            );
        }
        let wanted = if program { [Side::Second, Side::First] } else { Side::BOTH };
        let free = wanted.into_iter().find(|side| state.holder(*side).owner.is_none());
        let Some(side) = free else { return invalid("two ends already") };
        *state.holder(side) = EndHolder { owner: Some(owner), program, used: false };
        drop(state);
        Ok(Arc::new(End { pipe, owner }))
    }

    /// Which end it is. That may change while neither end is used.
    pub fn side(&self) -> Side {
        crate::lock(&self.pipe.state).side(self.owner)
    }

    /// The pipe's name.
    pub fn name(&self) -> &str {
        &self.pipe.name
    }

    /// The number of the memory, for programs.
    pub fn mem_id(&self) -> u32 {
        self.pipe.mem_id
    }

    /// What it has of the memory as it is now.
    pub fn region(&self) -> Arc<Region> {
        let state = crate::lock(&self.pipe.state);
        Arc::clone(state.memory.joined.end(state.side(self.owner)))
    }

    /// A VMM or a program comes: what it has of the memory, which is new if the other end is not there and an
    /// end has had the old one.
    ///
    /// # Errors
    /// There is no memory.
    pub fn enter(&self) -> io::Result<Arc<Region>> {
        let mut old = None;
        let mut state = crate::lock(&self.pipe.state);
        let side = state.side(self.owner);
        if !state.is_used(side.other()) && state.memory.given {
            let next = PipeMemory::of(Joined::new(&self.pipe.geometry, &self.pipe.name)?);
            old = Some(std::mem::replace(&mut state.memory, next));
        }
        state.memory.given = true;
        let holder = state.holder(side);
        holder.used = true;
        let host = !holder.program;
        state.memory.joined.set_interface(side, &self.pipe.name, host);
        let region = Arc::clone(state.memory.joined.end(side));
        drop(state);
        // If a peer keeps it, only this end waits.
        old.iter().for_each(|old| old.joined.end(side).give_up());
        Ok(region)
    }

    /// It has gone.
    pub fn leave(&self) {
        let mut state = crate::lock(&self.pipe.state);
        let side = state.side(self.owner);
        state.holder(side).used = false;
    }

    /// It comes from another process, as the end `side`, with the memory in `file`. What it has of that.
    ///
    /// # Errors
    /// That is not the pipe's memory, or not its end any more.
    pub fn adopt(&self, file: OwnedFd, side: Side) -> io::Result<Arc<Region>> {
        let mut state = crate::lock(&self.pipe.state);
        let own = state.side(self.owner);
        let others = state.is_used(own.other());
        if side != own && others {
            return Err(io::Error::other("its end of the pipe is another's"));
        }
        let inode = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        if fstat(&file).map(inode) != fstat(state.memory.joined.file()).map(inode) {
            if others {
                return Err(io::Error::other("the other end of its pipe has other memory"));
            }
            state.memory = PipeMemory::of(Joined::adopt(&self.pipe.geometry, file)?);
        }
        if side != own {
            state.holders.reverse();
        }
        state.memory.given = true;
        state.holder(side).used = true;
        Ok(Arc::clone(state.memory.joined.end(side)))
    }

    /// Puts the pipe back to its start, unless the other end is there.
    pub fn restart(&self) {
        let mut state = crate::lock(&self.pipe.state);
        let side = state.side(self.owner);
        if !state.is_used(side.other()) {
            state.memory.restart(&self.pipe.name);
        }
    }

    /// The half of ring `ring` on which it sends, without a user at first; the former one is out. `None`:
    /// there is no such ring.
    pub fn sending(&self, ring: usize) -> Option<Sending> {
        let state = crate::lock(&self.pipe.state);
        state.memory.direction(state.side(self.owner), ring).map(Sending::new)
    }

    /// The half of ring `ring` on which it receives.
    pub fn receiving(&self, ring: usize) -> Option<Receiving> {
        let state = crate::lock(&self.pipe.state);
        state.memory.direction(state.side(self.owner).other(), ring).map(Receiving::new)
    }

    /// Writes where its ring `ring` is, in either direction, for a program that begins.
    pub fn set_position(&self, ring: u32) {
        let state = crate::lock(&self.pipe.state);
        let side = state.side(self.owner);
        let positions = |from: Side| {
            let direction = state.memory.direction(from, usize::try_from(ring).ok()?)?;
            Some(crate::lock(direction).positions())
        };
        if let (Some([sends, _]), Some([_, receives])) = (positions(side), positions(side.other())) {
            state.memory.joined.set_position(side, ring, sends, receives);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = crate::lock(&self.pipe.state);
        let side = state.side(self.owner);
        *state.holder(side) = EndHolder::default();
    }
}
