//! The memory of a ring port's clients, and the holders of the ends of its pipes.
//!
//! Frames in a pipe pass from end to end without us. What we do: give each end the memory and the descriptors
//! by which the two wake each other, keep one holder from an end that another has, and put a pipe's rings
//! back to their start when its last end has gone. Several may have an end if none of them wants it alone:
//! they share its rings, as netmap's programs do. An end that goes and comes again goes on where it was.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use sidecore_abi::ring::{End, PIPE_NAME};

use super::common::Common;
use super::host::HostRings;
use super::taps::{self, Tapped};
use crate::host::ring::Monitor;
use crate::ring::{pipe_end, Region, SharedMemory};

/// Most that share an end of a pipe: each costs the daemon a connection.
const MAX_USERS: u32 = 16;

/// The memory, for as long as a client or an end of a pipe uses it.
pub(super) struct LentMemory {
    pub(super) region: Arc<Region>,
    /// What serves its host rings, if it has some.
    pub(super) host: Option<Arc<HostRings>>,
    /// Whether a client has had the port's rings.
    pub(super) used: bool,
    /// What it is a part of.
    shared: Option<Arc<SharedMemory>>,
    pipes: Vec<Option<Pipe>>,
    /// The holder of the extra buffers, and the interface that lists them.
    extra: (Option<Holder>, u64),
}

/// What may have a memory's extra buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The port's client.
    Client,
    /// An end of a pipe.
    End(OpenEnd),
}

/// A pipe of which at least one end is open, or monitored.
struct Pipe {
    name: [u8; PIPE_NAME],
    open: [Users; 2],
    /// What wakes the owner of each of the four rings. The daemon itself raises them for monitors only, and
    /// never waits.
    wakes: [OwnedFd; 4],
    /// Rings that I/O cores follow for monitors.
    taps: [Option<Tapped>; 4],
    monitors: u32,
}

impl Pipe {
    fn is_idle(&self) -> bool {
        self.monitors == 0 && self.open.iter().all(|end| end.count == 0)
    }
}

/// The users of an end.
#[derive(Clone, Copy, Default)]
struct Users {
    count: u32,
    /// The one that has it wants no other.
    exclusive: bool,
}

/// An open end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenEnd {
    pub(super) pipe: u32,
    pub(super) end: End,
}

impl LentMemory {
    pub(super) fn new(region: Region, host: Option<Arc<HostRings>>) -> LentMemory {
        let pipes = (0..region.info().pipes).map(|_| None).collect();
        let extra = (None, region.info().interface);
        LentMemory { region: Arc::new(region), host, used: false, shared: None, pipes, extra }
    }

    /// No client uses it any more. What other ports' clients have, too, stays.
    pub(super) fn give_up(&self) {
        if self.shared.is_none() {
            self.region.give_up();
        }
    }

    /// A part of a shared memory, which a client had before or not.
    pub(super) fn part(region: Region, shared: Arc<SharedMemory>, used: bool) -> LentMemory {
        LentMemory { used, shared: Some(shared), ..LentMemory::new(region, None) }
    }

    /// The place of the pipe `name`, which is made if no client has one of its ends. `None`: there is no room
    /// for one more.
    fn find(&mut self, name: [u8; PIPE_NAME]) -> io::Result<Option<usize>> {
        let named = |pipe: &Option<Pipe>| pipe.as_ref().is_some_and(|pipe| pipe.name == name);
        let there = self.pipes.iter().position(named);
        let Some(place) = there.or_else(|| self.pipes.iter().position(Option::is_none)) else {
            return Ok(None);
        };
        if self.pipes[place].is_none() {
            let number = u32::try_from(place).unwrap_or(u32::MAX);
            let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let wakes = [event()?, event()?, event()?, event()?];
            self.region.restart_pipe(number);
            let (open, taps) = (Default::default(), Default::default());
            self.pipes[place] = Some(Pipe { name, open, wakes, taps, monitors: 0 });
        }
        Ok(Some(place))
    }

    /// Opens an end of the pipe `name`, which is made if no client has one of its ends, and tells how many
    /// others have that end. `None`: there is no room for one more.
    pub(super) fn open(
        &mut self,
        name: [u8; PIPE_NAME],
        end: End,
        exclusive: bool,
    ) -> io::Result<Option<(OpenEnd, u32)>> {
        let Some(place) = self.find(name)? else { return Ok(None) };
        let number = u32::try_from(place).unwrap_or(u32::MAX);
        let Some(pipe) = &mut self.pipes[place] else { return Ok(None) };
        let users = &mut pipe.open[end as usize - 1];
        if users.count > 0 && (exclusive || users.exclusive) {
            return Err(Errno::BUSY.into());
        }
        if users.count == MAX_USERS {
            return Err(Errno::USERS.into());
        }
        *users = Users { count: users.count + 1, exclusive };
        Ok(Some((OpenEnd { pipe: number, end }, users.count - 1)))
    }

    /// Has `monitor` see what passes its end of the pipe `name`; the pipe's number, or `None`: there is no
    /// room for one more.
    pub(super) fn monitor(
        &mut self,
        common: &Arc<Common>,
        name: [u8; PIPE_NAME],
        monitor: &Arc<Monitor>,
    ) -> io::Result<Option<u32>> {
        let Some(place) = self.find(name)? else { return Ok(None) };
        let number = u32::try_from(place).unwrap_or(u32::MAX);
        let Some(pipe) = &mut self.pipes[place] else { return Ok(None) };
        pipe.monitors += 1;
        let shown = taps::show_pipe(common, &self.region, number, &pipe.wakes, &mut pipe.taps, monitor);
        if let Err(error) = shown {
            self.unmonitor(number, monitor);
            return Err(error);
        }
        Ok(Some(number))
    }

    /// The monitor of pipe `number` has gone.
    pub(super) fn unmonitor(&mut self, number: u32, monitor: &Arc<Monitor>) {
        let place = &mut self.pipes[number as usize];
        if let Some(pipe) = place {
            taps::hide(&mut pipe.taps, monitor);
            pipe.monitors -= 1;
            if pipe.is_idle() {
                *place = None;
            }
        }
    }

    /// The descriptors of an open end: what wakes its own two rings' owner, then the other end's.
    pub(super) fn wakes(&self, open: OpenEnd) -> Vec<&OwnedFd> {
        let other = if open.end == End::Master { End::Slave } else { End::Master };
        let rings = open.end.rings().into_iter().chain(other.rings());
        let pipe = self.pipes[open.pipe as usize].as_ref();
        pipe.map_or_else(Vec::new, |pipe| rings.map(|ring| &pipe.wakes[ring as usize]).collect())
    }

    /// Gives `holder` the extra buffers if it wants some and they have no holder; how many it has now.
    pub(super) fn take_extra(&mut self, holder: Holder, wants: u32) -> u32 {
        let info = *self.region.info();
        if wants == 0 || self.extra.0.is_some() || info.extra_bufs == 0 {
            return 0;
        }
        let to = match holder {
            Holder::Client => info.interface,
            Holder::End(open) => pipe_end(&info, open.pipe, open.end).interface,
        };
        self.region.move_extra(self.extra.1, to);
        self.extra = (Some(holder), to);
        info.extra_bufs
    }

    /// `holder` has gone: the next holder may have what it left in its list.
    pub(super) fn leave_extra(&mut self, holder: Holder) {
        if self.extra.0 == Some(holder) {
            self.extra.0 = None;
        }
    }

    /// An end has gone.
    pub(super) fn close(&mut self, open: OpenEnd) {
        let place = &mut self.pipes[open.pipe as usize];
        if let Some(pipe) = place {
            pipe.open[open.end as usize - 1].count -= 1;
            if pipe.is_idle() {
                *place = None;
            }
        }
    }
}
