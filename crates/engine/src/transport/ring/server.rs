//! The thread of a ring port: conversations, one of which may be attached, others ends of its pipes or
//! monitors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use sidecore_abi::ring::{Answer, Ask, End, Info, Request, EXCLUSIVE, MESSAGE};

use super::super::server::connection::Connection;
use super::super::server::many::{ClientConnection, Requests};
use super::common::{copies, Common, Piped};
use super::host::{self, HostRings};
use super::pipes::{Holder, LentMemory, OpenEnd};
use super::taps::{self, Tapped};
use crate::graph::Pairs;
use crate::host::ring::{Monitor, RingEgress, RingIngress, RingPair, RingPortSettings, Sees, SentOnly};
use crate::observe::capture::Watcher;
use crate::ring::{pipe_end, Geometry, Region, ReleaseGate};
use crate::sandbox::open::passing;
use crate::util::has_left;

/// Conversations at a time; one more replaces the oldest that is not attached.
const CONVERSATIONS: usize = 8;
/// Monitors at a time: each costs a copy of every frame.
pub const MONITORS: usize = 8;
/// The first number of a monitor's memory: far from those of ports.
const MONITOR_MEMORY: u32 = 1 << 15;
pub(super) struct Server {
    common: Arc<Common>,
    conversations: Vec<Conversation>,
    /// There while a client is attached, or has an end of a pipe.
    memory: Option<LentMemory>,
    /// Number of the next monitor's memory.
    next_memory: u32,
}

type Conversation = ClientConnection<Role>;
/// What a client gets: its rings, and the descriptors that belong to them.
type Granted = (Info, Vec<OwnedFd>);

/// What a conversation has.
pub(super) enum Role {
    /// Nothing: it asked something.
    None,
    /// The port's rings.
    Client(Client),
    /// An end of a pipe.
    End(OpenEnd),
    /// The rings of an end of a pipe between ports.
    Piped(Piped),
    /// A monitor's rings.
    Monitor(Watching),
}

impl Role {
    /// Whether the port's memory stays for it.
    fn keeps(&self) -> bool {
        match self {
            Role::Client(_) | Role::End(_) => true,
            Role::Monitor(watching) => watching.pipe.is_some(),
            Role::None | Role::Piped(_) => false,
        }
    }
}

/// A monitor, in the hands of the port.
pub(super) struct Watching {
    common: Arc<Common>,
    monitor: Arc<Monitor>,
    /// What of it looks at the port, where captures do.
    at_port: Option<Arc<dyn Watcher>>,
    /// The pipe that it looks at.
    pipe: Option<u32>,
    /// Its memory.
    region: Arc<Region>,
    /// It is still there while the port goes.
    stays: bool,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.at_port.iter().for_each(|watcher| self.common.port.capture.unwatch(watcher));
        crate::lock(&self.common.state).monitors.retain(|other| !Arc::ptr_eq(other, &self.monitor));
        if !self.stays {
            self.region.give_up();
        }
    }
}

/// An attached client: its queues, in the hands of cores and port.
pub(super) struct Client {
    common: Arc<Common>,
    lent: Pairs<RingIngress, RingEgress>,
    host: Option<Arc<HostRings>>,
    region: Arc<Region>,
    /// For each ring on which it receives, what keeps slots that it has released, and the monitors that read
    /// them.
    gates: Vec<Arc<ReleaseGate>>,
    taps: Vec<Option<Tapped>>,
}

impl Client {
    /// Has `monitor`, if it is one of those, see what the client releases.
    fn show(&mut self, monitor: &Arc<Monitor>) -> io::Result<()> {
        match monitor.sees {
            Sees { received: true, released: true, end: None, .. } => {
                taps::show_released(&self.common, &self.region, &self.gates, &mut self.taps, monitor)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.taps.clear();
        if let Some(host) = &self.host {
            host.take_back();
        }
        self.lent.take_back();
        crate::lock(&self.common.state).rings.clear();
    }
}

impl Requests for Server {
    type Role = Role;
    const SIZE: usize = MESSAGE;
    const PATIENCE: Option<Duration> = None;

    fn connections(&mut self) -> &mut Vec<Conversation> {
        &mut self.conversations
    }

    fn admit(&mut self, socket: Connection) {
        let idle = |c: &Conversation| matches!(c.role, Role::None);
        if self.conversations.iter().filter(|c| idle(c)).count() == CONVERSATIONS {
            if let Some(oldest) = self.conversations.iter().position(idle) {
                self.conversations.remove(oldest);
            }
        }
        self.conversations.push(ClientConnection::new(socket, Role::None));
    }

    /// As a VMM's conversation: clients that ask for more than the port may take wait for each other.
    fn hold(&self) -> Option<Duration> {
        self.common.port.messages.hold()
    }

    fn turned_away(&mut self, count: u64) {
        self.common.port.messages.note(|counts| counts.refused += count);
    }

    fn answer(&mut self, index: usize, request: &[u8]) -> bool {
        let request = Request::from_bytes(request);
        let Some((ask, request)) = request.and_then(|r| Some((Ask::from_code(r.ask)?, r))) else {
            tracing::warn!(port = %self.common.port.name, "a client speaks another language or version");
            // It may be gone.
            let _ = self.reply(index, Err(Errno::PROTO));
            return false;
        };
        let (is_piped, was_idle) = (self.common.end.is_some(), self.is_idle(index));
        let granted = match ask {
            Ask::Pipe | Ask::Monitor if is_piped => Err(Errno::OPNOTSUPP),
            Ask::SetHeader if is_piped && request.value != 0 => Err(Errno::INVAL),
            Ask::Info => Ok(self.info()),
            Ask::SetHeader => {
                let possible = self.common.settings.set_header(request.value, &self.common.port);
                possible.then(|| self.info()).ok_or(Errno::INVAL)
            }
            _ if !was_idle => Err(Errno::BUSY),
            Ask::Attach if is_piped => self.attach_end(index),
            Ask::Attach => self.attach(index, request.extra_bufs),
            Ask::Pipe => self.open_end(index, &request),
            Ask::Monitor => self.watch(index, &request),
        };
        // A client that has got something of which it cannot be told ends.
        let is_lost = granted.is_err() && was_idle && !self.is_idle(index);
        self.reply(index, granted).is_ok() && !is_lost
    }

    fn gone(&mut self, role: Role) {
        match role {
            Role::None => {}
            Role::Monitor(watching) => {
                if let (Some(memory), Some(pipe)) = (&mut self.memory, watching.pipe) {
                    memory.unmonitor(pipe, &watching.monitor);
                }
                for conversation in &mut self.conversations {
                    if let Role::Client(client) = &mut conversation.role {
                        taps::hide(&mut client.taps, &watching.monitor);
                    }
                }
            }
            Role::Client(client) => {
                drop(client);
                self.memory.iter_mut().for_each(|memory| memory.leave_extra(Holder::Client));
                tracing::info!(event = "peer", port = %self.common.port.name, "its client is gone");
            }
            Role::Piped(piped) => {
                drop(piped);
                tracing::info!(event = "peer", port = %self.common.port.name, "its client is gone");
            }
            Role::End(end) => {
                if let Some(memory) = &mut self.memory {
                    memory.leave_extra(Holder::End(end));
                    memory.close(end);
                }
                crate::lock(&self.common.state).ends -= 1;
            }
        }
    }

    fn answered(&mut self) {
        if !self.conversations.iter().any(|c| c.role.keeps()) {
            self.memory.take().iter().for_each(LentMemory::give_up);
        }
    }

    fn name(&self) -> String {
        format!("ring port {}", self.common.port.name)
    }
}

impl Drop for Server {
    /// The port goes. What clients that have left keep is not to count as ours. Those that are there may
    /// still read their memory, which would mean nothing if it were empty; but another user could have port
    /// after port made, and keep all their memory so.
    fn drop(&mut self) {
        let others = self.common.config.owner.0.is_some();
        self.conversations.retain(|c| !others && !has_left(&c.socket));
        for conversation in &mut self.conversations {
            if let Role::Monitor(watching) = &mut conversation.role {
                watching.stays = true;
            }
        }
        let kept = self.conversations.iter().any(|c| c.role.keeps());
        self.conversations.clear();
        self.memory.take().iter().filter(|_| !kept).for_each(LentMemory::give_up);
    }
}

impl Server {
    pub(super) fn new(common: Arc<Common>) -> Server {
        Server { common, conversations: Vec::new(), memory: None, next_memory: MONITOR_MEMORY }
    }

    fn is_idle(&self, index: usize) -> bool {
        matches!(self.conversations[index].role, Role::None)
    }

    /// What a client is told of an error that the log has.
    fn failed(&self, what: &str, error: &io::Error) -> Errno {
        tracing::warn!(port = %self.common.port.name, "cannot make {what}: {error}");
        Errno::NOMEM
    }

    fn attach(&mut self, index: usize, extra_bufs: u32) -> Result<Granted, Errno> {
        if self.conversations.iter().any(|c| matches!(c.role, Role::Client(_))) {
            return Err(Errno::BUSY);
        }
        let (region, mut pairs) = self.make(extra_bufs).map_err(|e| self.failed("rings", &e))?;
        // Our copies of what the client gets; the queues go live, and then it is told.
        let mut fds =
            copies(&region, pairs.iter().map(RingPair::kick)).map_err(|e| self.failed("rings", &e))?;
        fds.extend(pairs.iter_mut().filter_map(|pair| pair.wake_tx.take()));
        fds.extend(pairs.iter_mut().filter_map(|pair| pair.wake_rx.take()));
        let for_host = pairs.split_off(self.common.info.rx_rings as usize);
        let host = self.memory.as_ref().and_then(|memory| memory.host.clone());
        let mut client = Client {
            common: Arc::clone(&self.common),
            lent: Pairs::default(),
            host,
            region: Arc::clone(&region),
            gates: pairs.iter().map(RingPair::gate).collect(),
            taps: Vec::new(),
        };
        {
            let mut state = crate::lock(&self.common.state);
            state.rings = pairs.iter().map(RingPair::stats).collect();
            state.attaches += 1;
        }
        for pair in pairs {
            client.lent.receive(&self.common.port, pair.egress);
            client.lent.send(&self.common.port, &self.common.scheduler, pair.ingress);
        }
        if let Some(host) = &client.host {
            host.serve(for_host, region.info().tx_slots);
        }
        let monitors = crate::lock(&self.common.state).monitors.clone();
        let shown = monitors.iter().try_for_each(|monitor| client.show(monitor));
        shown.map_err(|e| self.failed("a monitor", &e))?;
        self.conversations[index].role = Role::Client(client);
        tracing::debug!(event = "peer", port = %self.common.port.name, "a client has connected");
        let wants = extra_bufs.max(self.common.info.extra_bufs);
        let extra_bufs = self.memory.as_mut().map_or(0, |memory| memory.take_extra(Holder::Client, wants));
        let info = Info { header: self.common.settings.header(), extra_bufs, ..*region.info() };
        Ok((info, fds))
    }

    /// Attaches a client to the port's end of a pipe between ports.
    fn attach_end(&mut self, index: usize) -> Result<Granted, Errno> {
        let end = self.common.end.clone().ok_or(Errno::NOTSUP)?;
        if self.conversations.iter().any(|c| matches!(c.role, Role::Piped(_))) {
            return Err(Errno::BUSY);
        }
        let attached = Piped::attach(&self.common, &end);
        let (piped, info, fds) = attached.map_err(|e| self.failed("its end of a pipe", &e))?;
        self.conversations[index].role = Role::Piped(piped);
        Ok((info, fds))
    }

    /// The memory, made if no client has it yet, and then with this many extra buffers at least.
    fn memory(&mut self, extra_bufs: u32) -> io::Result<&mut LentMemory> {
        if self.memory.is_none() {
            let (config, name) = (&self.common.config, &self.common.port.name);
            if let Some(member) = &self.common.member {
                let (region, shared, used) = member.region(name)?;
                return Ok(self.memory.insert(LentMemory::part(region, shared, used)));
            }
            let host = host::of(&config.path);
            let geometry = Geometry {
                host_rings: host.as_ref().map_or(0, |host| host.rings),
                extra_bufs: config.geometry.extra_bufs.max(extra_bufs.min(config.extra_limit)),
                ..config.geometry
            };
            self.memory = Some(LentMemory::new(Region::new(&geometry, name)?, host));
        }
        self.memory.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The port's rings, and then its host rings.
    fn make(&mut self, extra_bufs: u32) -> io::Result<(Arc<Region>, Vec<RingPair>)> {
        let memory = self.memory(extra_bufs)?;
        let used = std::mem::replace(&mut memory.used, true);
        let (region, host) = (Arc::clone(&memory.region), memory.host.clone());
        if used {
            region.restart();
        }
        let own = self.common.info.tx_rings;
        let pairs = (0..region.info().tx_rings)
            .map(|index| {
                let settings =
                    host.as_ref().filter(|_| index >= own).map_or(&self.common.settings, |h| &h.settings);
                RingPair::new(&region, index, settings, &self.common.port.overrun)
            })
            .collect::<io::Result<_>>()?;
        Ok((region, pairs))
    }

    /// Makes the conversation an end of a pipe.
    fn open_end(&mut self, index: usize, request: &Request) -> Result<Granted, Errno> {
        let end = End::from_code(request.value).ok_or(Errno::INVAL)?;
        let said = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::NOMEM);
        let memory = self.memory(request.extra_bufs).map_err(said)?;
        let opened = memory.open(request.pipe, end, request.flags & EXCLUSIVE != 0).map_err(said)?;
        let (open, users) = opened.ok_or(Errno::NOSPC)?;
        let extra_bufs = memory.take_extra(Holder::End(open), request.extra_bufs);
        let fds = copies(&memory.region, memory.wakes(open).into_iter().map(AsFd::as_fd));
        let info = Info { extra_bufs, users, ..pipe_end(memory.region.info(), open.pipe, open.end) };
        self.conversations[index].role = Role::End(open);
        crate::lock(&self.common.state).ends += 1;
        Ok((info, fds.map_err(said)?))
    }

    /// Makes the conversation a monitor of what is asked for.
    fn watch(&mut self, index: usize, request: &Request) -> Result<Granted, Errno> {
        let sees = Sees::from_value(request.value).ok_or(Errno::INVAL)?;
        if crate::lock(&self.common.state).monitors.len() == MONITORS {
            return Err(Errno::NOSPC);
        }
        let base = self.common.config.geometry;
        let rings = if sees.end.is_some() { 1 } else { base.rings };
        let geometry = Geometry { rings, extra_bufs: 0, pipes: 0, sends: false, ..base };
        // What is in a pipe is the ends' affair, headers and all.
        let settings = if sees.end.is_some() {
            Arc::new(RingPortSettings::default())
        } else {
            Arc::clone(&self.common.settings)
        };
        let made = Region::new(&geometry, &self.common.port.name).and_then(|region| {
            let region = Arc::new(region);
            let (monitor, wakes) = Monitor::new(&region, &settings, sees, &self.common.port.overrun)?;
            let fds = copies(&region, wakes.iter().map(AsFd::as_fd))?;
            Ok((self.look(&Arc::new(monitor), &region, request)?, *region.info(), fds))
        });
        let (watching, info, fds) = made.map_err(|e| self.failed("a monitor", &e))?;
        let watching = watching.ok_or(Errno::NOSPC)?;
        crate::lock(&self.common.state).monitors.push(Arc::clone(&watching.monitor));
        self.conversations[index].role = Role::Monitor(watching);
        let info = Info { header: settings.header(), mem_id: self.next_memory, ..info };
        self.next_memory =
            if self.next_memory == u32::from(u16::MAX) { MONITOR_MEMORY } else { self.next_memory + 1 };
        Ok((info, fds))
    }

    /// Has `monitor` see what it is made for: a pipe of the port, or the port and what its client releases.
    /// `None`: there is no room for that pipe.
    fn look(
        &mut self,
        monitor: &Arc<Monitor>,
        region: &Arc<Region>,
        request: &Request,
    ) -> io::Result<Option<Watching>> {
        let common = Arc::clone(&self.common);
        let sees = monitor.sees;
        let mut watching = Watching {
            common: Arc::clone(&common),
            monitor: Arc::clone(monitor),
            at_port: None,
            pipe: None,
            region: Arc::clone(region),
            stays: false,
        };
        if sees.end.is_some() {
            watching.pipe = self.memory(0)?.monitor(&common, request.pipe, monitor)?;
            return Ok(watching.pipe.is_some().then_some(watching));
        }
        let at_port: Arc<dyn Watcher> = match sees.released {
            true => Arc::new(SentOnly(Arc::clone(monitor))),
            false => Arc::clone(monitor) as _,
        };
        common.port.capture.watch(Arc::clone(&at_port));
        watching.at_port = Some(at_port);
        for conversation in &mut self.conversations {
            if let Role::Client(client) = &mut conversation.role {
                client.show(monitor)?;
            }
        }
        Ok(Some(watching))
    }

    /// What there is without a role.
    fn info(&self) -> Granted {
        let info = self.memory.as_ref().map_or(&self.common.info, |memory| memory.region.info());
        (Info { header: self.common.settings.header(), ..*info }, Vec::new())
    }

    fn reply(&self, index: usize, granted: Result<Granted, Errno>) -> io::Result<()> {
        let errno = granted.as_ref().err().map_or(0, |errno| errno.raw_os_error().unsigned_abs());
        let (mut info, fds) = granted.unwrap_or_else(|_| self.info());
        info.mtu = self.common.port.mtu();
        // Memory of its own for each port: 1 is netmap's global allocator.
        if info.mem_id == 0 {
            info.mem_id = match &self.common.member {
                Some(member) => member.mem_id(),
                None => u32::from(self.common.port.id.0) + 2,
            };
        }
        let (bytes, fds) =
            (Answer { errno, info }.to_bytes(), fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        let sent = passing::send(&self.conversations[index].socket, &bytes, &fds, SendFlags::DONTWAIT)?;
        if sent == MESSAGE {
            Ok(())
        } else {
            Err(io::Error::other("the client reads no answers"))
        }
    }
}
