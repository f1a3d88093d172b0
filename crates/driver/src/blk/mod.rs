//! A virtio-blk driver (virtio 1.2 §5.2): several queues, many requests in flight, answers in any order.
//!
//! [`Disk::submit`] prepares a request and names it, [`Disk::poll`] shows the device what was prepared and
//! hands out the answers that are there. Data are written once, into the request's own buffer, and read where
//! the device wrote them.
//!
//! **When the backend dies** ([`Disk::reconnect`]) no request is lost and none is answered twice. With
//! INFLIGHT_SHMFD the record of what was in flight is ours to keep: the first backend made it, the next one
//! gets it and does what is still open. Without it only we know: rings start anew, and all that was not
//! answered is offered again. Doing so is right for a disk: until a write is answered, its sectors may hold
//! the old or the new.
//!
//! The one `unsafe` here makes a slice of a buffer's bytes. Its invariant: the device has given the buffer
//! back, and the slice is gone before the buffer is used again, because the driver is borrowed mutably
//! meanwhile.

mod config;
mod request;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use sidecore_abi::virtio::blk::config as at;
use sidecore_abi::virtio::features as f;

pub use self::config::Geometry;
pub use self::request::{Range, Request, Shape, Status};

use self::request::{RequestSlot, Room};
use crate::error::{Error, Result};
use crate::frontend::{protocol, Frontend};
use crate::memory::Page;
use crate::raw::Message;
use crate::running::{sleep, Running};
use crate::session::{Kind, Session, Setup, Want};

/// How long a backend may take to appear.
const PATIENCE: Duration = Duration::from_secs(20);
/// The backend's message that the configuration space has changed.
const CONFIG_CHANGED: u32 = 2;

/// What a disk is opened with.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Queues.
    pub queues: u16,
    /// Entries of each ring.
    pub entries: u16,
    /// Requests in flight on each queue.
    pub depth: u16,
    /// Bytes of data of the largest request.
    pub largest: usize,
    /// Packed rings.
    pub packed: bool,
    /// Chains in tables of their own, if the device takes them.
    pub indirect: bool,
    /// EVENT_IDX, if the device has it.
    pub event_idx: bool,
    /// INFLIGHT_SHMFD, if the backend has it.
    pub inflight: bool,
    /// How requests are cut.
    pub shape: Shape,
    /// Pages of the memory.
    pub page: Page,
}

impl Default for DiskOptions {
    /// As a Linux guest has it, with requests of up to 128 KiB.
    fn default() -> Self {
        Self {
            queues: 1,
            entries: 256,
            depth: 64,
            largest: 128 << 10,
            packed: false,
            indirect: true,
            event_idx: true,
            inflight: true,
            shape: Shape::Usual,
            page: Page::Small,
        }
    }
}

impl DiskOptions {
    /// Descriptors of the longest chain.
    fn longest(&self) -> usize {
        match self.shape {
            Shape::Usual => 4,
            Shape::Joined => 2,
            Shape::Pieces(n) => 2 * usize::from(n.max(1)),
        }
    }

    fn room(&self) -> Room {
        Room { largest: self.largest, table: if self.indirect { self.longest() } else { 0 } }
    }

    fn setup(&self) -> Setup {
        let offered = f::BLK_SIZE_MAX
            | f::BLK_SEG_MAX
            | f::BLK_RO
            | f::BLK_BLK_SIZE
            | f::BLK_FLUSH
            | f::BLK_TOPOLOGY
            | f::BLK_CONFIG_WCE
            | f::BLK_MQ
            | f::BLK_DISCARD
            | f::BLK_WRITE_ZEROES;
        let mut want = Want::default().or(offered).and_if(self.packed, f::RING_PACKED);
        for (on, feature) in [(self.indirect, f::INDIRECT_DESC), (self.event_idx, f::EVENT_IDX)] {
            want = want.or(if on { feature } else { 0 });
        }
        want.protocol |= protocol::CONFIG | protocol::BACKEND_REQ;
        if !self.inflight {
            want.protocol &= !protocol::INFLIGHT_SHMFD;
        }
        let room = usize::from(self.queues) * self.room().bytes(self.depth.into());
        let Self { queues, entries, page, .. } = *self;
        Setup { kind: Kind::Block, want, queues, entries, page, room }
    }
}

/// A request's name, never used twice by one disk. Later requests have greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u64);

impl Tag {
    fn new(number: u64, slot: u16) -> Self {
        Self(number << 16 | u64::from(slot))
    }

    /// A number below the queue's depth that no other request in flight on the same queue has.
    pub fn slot(self) -> usize {
        usize::from((self.0 & 0xffff) as u16)
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// There are answers to poll.
    Answers,
    /// The backend is gone: see [`Disk::reconnect`].
    Gone,
    /// The time is over.
    Late,
}

/// What a driver counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests prepared.
    pub submitted: u64,
    /// Requests answered.
    pub answered: u64,
    /// Requests offered once more, after the backend was gone.
    pub again: u64,
    /// Kicks given.
    pub kicks: u64,
    /// Interrupts taken.
    pub interrupts: u64,
}

/// One queue with the requests that it can hold.
#[derive(Debug)]
struct Lane {
    ring: Running,
    slots: Vec<RequestSlot>,
    free: Vec<u16>,
    /// By the ring's name for the chain: the request, and its slot. `None`: no chain of this name is with the
    /// device.
    busy: Vec<Option<(Tag, u16)>>,
}

impl Lane {
    fn offer(&mut self, tag: Tag, slot: u16) -> bool {
        let RequestSlot { chain, .. } = &self.slots[usize::from(slot)];
        let name = match self.slots[usize::from(slot)].table() {
            Some(table) => self.ring.queue.add_indirect(table, chain),
            None => self.ring.queue.add(chain),
        };
        let Some(name) = name else { return false };
        self.busy[usize::from(name)] = Some((tag, slot));
        true
    }
}

/// A block device seen from its driver.
#[derive(Debug)]
pub struct Disk {
    session: Session,
    options: DiskOptions,
    lanes: Vec<Lane>,
    geometry: Geometry,
    channel: Option<UnixStream>,
    next_tag: u64,
    next_lane: usize,
    stats: Stats,
    used: Vec<(u16, u32)>,
}

impl Disk {
    /// Connects to a backend that listens at `path`; waits for it to appear.
    pub fn connect(path: impl AsRef<Path>, options: DiskOptions) -> Result<Self> {
        Self::start(Frontend::connect(path, PATIENCE)?, options)
    }

    /// Negotiates and starts.
    pub fn start(frontend: Frontend, mut options: DiskOptions) -> Result<Self> {
        let session = Session::open(frontend, options.setup())?;
        if session.protocol & protocol::CONFIG == 0 {
            return Err(Error::Backend("no protocol feature CONFIG: nothing tells the disk's size".into()));
        }
        options.indirect = session.has(f::INDIRECT_DESC);
        let mut lanes = Vec::new();
        for number in 0..options.queues {
            lanes.push(Lane {
                ring: Running::new(&session, number)?,
                slots: options.room().slots(&session.memory, options.depth.into())?,
                free: (0..options.depth).rev().collect(),
                busy: vec![None; options.entries.into()],
            });
        }
        let (geometry, stats) = (Geometry::default(), Stats::default());
        let mut disk = Self {
            session,
            options,
            lanes,
            geometry,
            channel: None,
            next_tag: 0,
            next_lane: 0,
            stats,
            used: Vec::new(),
        };
        let first = disk.session.first_base();
        disk.run(&vec![first; options.queues.into()])?;
        Ok(disk)
    }

    /// What follows negotiation, at the start and after each reconnect.
    fn run(&mut self, bases: &[u32]) -> Result<()> {
        self.channel = None;
        if self.session.protocol & protocol::BACKEND_REQ != 0 {
            let channel = self.session.frontend.backend_channel()?;
            channel.set_nonblocking(true).map_err(|e| Error::io("setting up a channel", e))?;
            self.channel = Some(channel);
        }
        self.read_geometry()?;
        self.session.start(bases)
    }

    /// The conversation and what it led to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What the device said of itself when it was asked last.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.lanes.iter().map(|lane| usize::from(self.options.depth) - lane.free.len()).sum()
    }

    /// Asks the device about itself once more.
    pub fn read_geometry(&mut self) -> Result<&Geometry> {
        let bytes = self.session.frontend.config(0, at::LEN)?;
        self.geometry = Geometry::parse(&bytes, self.session.features);
        Ok(&self.geometry)
    }

    /// Has the device said that its configuration space is different now? If so, the geometry was read again.
    pub fn changed(&mut self) -> Result<bool> {
        let Some(channel) = &self.channel else { return Ok(false) };
        if !readable(channel)? {
            return Ok(false);
        }
        let message = Message::receive(channel).map_err(|e| Error::io("the backend's channel", e))?;
        if message.request != CONFIG_CHANGED {
            return Err(Error::Backend(format!("sent request {} on its channel", message.request)));
        }
        self.read_geometry()?;
        Ok(true)
    }

    /// Has writes wait for a flush, or not (§5.2.5): needs CONFIG_WCE.
    pub fn set_writeback(&mut self, on: bool) -> Result<()> {
        if !self.session.has(f::BLK_CONFIG_WCE) {
            return Err(Error::Config(
                "the device does not let its driver change the cache: no CONFIG_WCE".into(),
            ));
        }
        self.session.frontend.set_config(at::WRITEBACK, &[on.into()])?;
        self.read_geometry().map(drop)
    }

    /// Prepares a request on the next queue that has room. `None`: as many as can be are in flight.
    pub fn submit(&mut self, request: Request) -> Result<Option<Tag>> {
        for _ in 0..self.lanes.len() {
            let lane = self.next_lane;
            self.next_lane = (lane + 1) % self.lanes.len();
            let tag = self.submit_to(lane, request)?;
            if tag.is_some() {
                return Ok(tag);
            }
        }
        Ok(None)
    }

    /// Prepares a request on queue `number`.
    pub fn submit_to(&mut self, number: usize, request: Request) -> Result<Option<Tag>> {
        let Some(lane) = self.lanes.get_mut(number) else {
            return Err(Error::Config(format!("there is no queue {number}")));
        };
        let Some(&slot) = lane.free.last() else { return Ok(None) };
        let needed = if self.options.indirect { 1 } else { self.options.longest() };
        if usize::from(lane.ring.queue.room()) < needed {
            return Ok(None);
        }
        let DiskOptions { shape, largest, .. } = self.options;
        lane.slots[usize::from(slot)].write(&self.session.memory, &request, shape, largest)?;
        let tag = Tag::new(self.next_tag, slot);
        if !lane.offer(tag, slot) {
            return Ok(None);
        }
        lane.free.pop();
        self.next_tag += 1;
        self.stats.submitted += 1;
        Ok(Some(tag))
    }

    /// Shows the device all that was prepared.
    pub fn publish(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            self.stats.kicks += u64::from(lane.ring.publish()?);
        }
        Ok(())
    }

    /// Publishes, and hands out the answers that are there: `each(tag, status, what the device wrote)`.
    /// Returns how many.
    pub fn poll(&mut self, mut each: impl FnMut(Tag, Status, &[u8])) -> Result<usize> {
        self.publish()?;
        let memory = &self.session.memory;
        let mut answers = 0;
        for lane in &mut self.lanes {
            self.used.clear();
            lane.ring.queue.reap(usize::MAX, |name, len| self.used.push((name, len)))?;
            for (name, len) in self.used.drain(..) {
                let broken = |what: String| Error::Ring { queue: lane.ring.number, what };
                let Some((tag, slot)) = lane.busy[usize::from(name)].take() else {
                    return Err(broken(format!("gave back {name}, which is no request")));
                };
                let at = &lane.slots[usize::from(slot)];
                let status = at.status(memory);
                // Data are whole only if the device says that it wrote them, and the status behind
                // (§2.7.8.2).
                if status == Status::Ok && len as usize <= at.writable {
                    return Err(broken(format!("answered {} bytes with a length of {len}", at.writable + 1)));
                }
                let written = if status == Status::Ok { at.writable } else { 0 };
                // SAFETY: the device gave the buffer back, and its slot is free only behind this block.
                let data = unsafe { memory.bytes_mut(at.answer(), written) };
                each(tag, status, data);
                lane.free.push(slot);
                answers += 1;
            }
        }
        self.stats.answered += answers as u64;
        Ok(answers)
    }

    /// Sleeps until there are answers. Publishes first.
    pub fn wait(&mut self, timeout: Duration) -> Result<Woken> {
        self.publish()?;
        let end = Instant::now() + timeout;
        loop {
            let mut some = false;
            for lane in &mut self.lanes {
                some |= lane.ring.queue.set_interrupts(true);
            }
            let socket = self.session.frontend.socket();
            if !some {
                let left = end.saturating_duration_since(Instant::now());
                sleep(self.lanes.iter().map(|lane| &lane.ring), Some(socket), left)?;
            }
            for lane in &mut self.lanes {
                some |= lane.ring.queue.set_interrupts(false);
                self.stats.interrupts += u64::from(lane.ring.interrupted());
            }
            if some {
                return Ok(Woken::Answers);
            }
            // Nothing is read from the socket between two questions: it is readable if it was closed.
            if readable(self.session.frontend.socket())? {
                return Ok(Woken::Gone);
            }
            // An interrupt for answers that were taken already wakes as well.
            if Instant::now() >= end {
                return Ok(Woken::Late);
            }
        }
    }

    /// Has answers interrupt from now on, until the next [`Disk::wait`].
    pub fn ask_for_interrupts(&mut self) {
        for lane in &mut self.lanes {
            lane.ring.queue.set_interrupts(true);
        }
    }

    /// Does one request alone and waits for its answer. Answers to others that come meanwhile are an error.
    pub fn ask(&mut self, request: Request, timeout: Duration) -> Result<(Status, Vec<u8>)> {
        let Some(tag) = self.submit(request)? else {
            return Err(Error::Config("no room for one more request".into()));
        };
        loop {
            let mut answer = None;
            let mut other = None;
            self.poll(|its, status, data| {
                if its == tag {
                    answer = Some((status, data.to_vec()));
                } else {
                    other = Some(its);
                }
            })?;
            match (answer, other) {
                (_, Some(other)) => return Err(Error::Config(format!("{other:?} was in flight, too"))),
                (Some(answer), None) => return Ok(answer),
                (None, None) => {}
            }
            match self.wait(timeout)? {
                Woken::Answers => {}
                Woken::Gone => return Err(Error::Backend("the backend is gone".into())),
                Woken::Late => return Err(Error::Device(format!("no answer within {timeout:?}"))),
            }
        }
    }

    /// Stops all rings and starts them where the device was, as pausing a VM does. The device answers what it
    /// has begun first.
    pub fn pause_and_resume(&mut self) -> Result<()> {
        let mut bases = Vec::new();
        for number in 0..self.options.queues {
            bases.push(self.session.stop_vring(number)?);
        }
        for (number, base) in (0..).zip(bases) {
            self.session.resume_vring(number, base)?;
        }
        self.kick_all()
    }

    /// Goes on with another backend. Answers that the old one gave are handed out first, to `each`, as
    /// [`Disk::poll`] does.
    pub fn reconnect(&mut self, frontend: Frontend, each: impl FnMut(Tag, Status, &[u8])) -> Result<()> {
        // Where a packed ring goes on is known only when all answers were taken.
        self.poll(each)?;
        let bases = if self.session.protocol & protocol::INFLIGHT_SHMFD != 0 {
            self.lanes.iter().map(|lane| lane.ring.queue.base()).collect()
        } else {
            self.offer_again()?;
            vec![self.session.first_base(); self.lanes.len()]
        };
        self.session.renegotiate(frontend)?;
        self.run(&bases)?;
        self.kick_all()
    }

    /// Empties all rings and offers what was not answered once more, in the order in which it was submitted.
    fn offer_again(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            let mut open: Vec<_> = lane.busy.iter_mut().filter_map(Option::take).collect();
            open.sort_unstable();
            lane.ring.queue = self.session.fresh_queue(lane.ring.number)?;
            for (tag, slot) in open {
                self.stats.again += 1;
                if !lane.offer(tag, slot) {
                    return Err(Error::Config(format!("no room to offer {tag:?} again")));
                }
            }
            lane.ring.queue.publish();
        }
        Ok(())
    }

    /// Kicks every ring: a backend that comes back cannot know that there is something to do.
    fn kick_all(&mut self) -> Result<()> {
        for lane in &self.lanes {
            lane.ring.kick()?;
            self.stats.kicks += 1;
        }
        Ok(())
    }
}

/// Is there something to read, or was it closed?
fn readable(socket: &UnixStream) -> Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now));
    Ok(ready.map_err(|e| Error::io("poll", e))? > 0)
}
