//! A driver that lies on purpose.
//!
//! Each [`Lie`] is one way to break the rules, told to a backend that is otherwise set up honestly.
//! What a backend owes to a liar: it stops the liar's port with a named error, or ignores the lie
//! harmlessly; it never crashes, never spins, never touches memory that it was not given, and no other
//! port loses a frame. A lie only tells itself and reports what could be seen from here
//! ([`Outcome`]); the judgement is the test's.
//!
//! [`messages`] lies in the conversation, [`rings`] in shared memory, [`requests`] to a block device.

pub mod messages;
pub mod requests;
pub mod rings;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags};
use sidecore_abi::virtio::features as f;

use crate::error::{Error, Result};
use crate::frontend::Frontend;
use crate::memory::{Memory, Page};
use crate::packed::Cursor;
use crate::queue::Parts;
use crate::raw::{self, Message};
use crate::session::{Config, Kind, Session, Setup, Want};

/// How long a lie waits for a reaction that is not owed.
const PATIENCE: Duration = Duration::from_millis(200);

/// What a lie is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Split rings.
    Split,
    /// Packed rings; the backend must offer them.
    Packed,
}

/// One way to break the rules.
pub struct Lie {
    /// Short and unique, for test output.
    pub name: &'static str,
    /// What is done, in a sentence.
    pub what: &'static str,
    /// Which ring format it needs; `None`: it does not get as far as a ring.
    pub format: Option<Format>,
    /// Does it.
    pub run: fn(&mut Liar) -> Result<Outcome>,
}

impl fmt::Debug for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.what)
    }
}

/// What could be seen of the backend's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It closed the connection.
    Closed,
    /// It gave descriptors back.
    Used,
    /// It signalled the error eventfd of the ring.
    Signalled,
    /// It answered a message.
    Answered,
    /// Nothing within the time given.
    Silent,
}

/// All lies that a network device is told.
pub fn all() -> impl Iterator<Item = &'static Lie> {
    messages::LIES.iter().chain(rings::LIES)
}

/// Makes connections to the backend that is lied to.
pub struct Liar {
    connect: Box<dyn FnMut() -> Result<Frontend>>,
    /// Connections of lies that were told; they stay open until [`Liar::release`].
    kept: Vec<Kept>,
}

/// Something that must outlive the lie, so that a test can look at the port first.
enum Kept {
    Talk(#[allow(dead_code)] Frontend),
    Rig(#[allow(dead_code)] Box<Rig>),
}

impl Liar {
    /// `connect` makes one more connection, in whichever role the backend needs.
    pub fn new(connect: impl FnMut() -> Result<Frontend> + 'static) -> Self {
        Self { connect: Box::new(connect), kept: Vec::new() }
    }

    /// Ends the connections of all lies told so far.
    pub fn release(&mut self) {
        self.kept.clear();
    }

    /// A connection on which nothing was said.
    pub fn talk(&mut self) -> Result<Frontend> {
        (self.connect)()
    }

    /// Keeps a connection open after the lie.
    pub fn keep(&mut self, frontend: Frontend) {
        self.kept.push(Kept::Talk(frontend));
    }

    /// A device that is set up honestly, with raw access to its rings.
    pub fn rig(&mut self, format: Format) -> Result<Rig> {
        let want = Want::default()
            .or(f::INDIRECT_DESC | f::EVENT_IDX | f::NET_MRG_RXBUF | f::NET_CSUM | f::NET_HOST_TSO4)
            .and_if(format == Format::Packed, f::RING_PACKED);
        let config = Config { want, entries: 64, ..Config::default() };
        Rig::start(Session::new(self.talk()?, config)?, format)
    }

    /// A disk that is set up honestly, with raw access to its ring of requests.
    pub fn disk(&mut self, format: Format) -> Result<Rig> {
        let want = Want::default()
            .or(f::INDIRECT_DESC | f::EVENT_IDX)
            .and_if(format == Format::Packed, f::RING_PACKED);
        let setup =
            Setup { kind: Kind::Block, want, queues: 1, entries: 64, page: Page::Small, room: 64 << 10 };
        Rig::start(Session::open(self.talk()?, setup)?, format)
    }

    /// Sends well- or ill-formed messages on a fresh connection, then looks.
    pub fn say(&mut self, messages: &[Message]) -> Result<Outcome> {
        let frontend = self.talk()?;
        let outcome = say(&frontend, messages)?;
        self.keep(frontend);
        Ok(outcome)
    }

    /// Sends any bytes with any descriptors on a fresh connection, then looks.
    pub fn say_bytes(&mut self, bytes: &[u8], fds: &[OwnedFd]) -> Result<Outcome> {
        let frontend = self.talk()?;
        raw::send_bytes(frontend.socket(), bytes, fds).map_err(|e| Error::io("sending", e))?;
        let outcome = look(&frontend)?;
        self.keep(frontend);
        Ok(outcome)
    }

    /// Tells a lie in the rings of an honest device, then looks.
    pub fn rings(&mut self, format: Format, lie: impl FnOnce(&mut Rig) -> Result<()>) -> Result<Outcome> {
        let rig = self.rig(format)?;
        self.lie_in(rig, lie)
    }

    /// Tells a lie in an honest device, then looks.
    fn lie_in(&mut self, mut rig: Rig, lie: impl FnOnce(&mut Rig) -> Result<()>) -> Result<Outcome> {
        lie(&mut rig)?;
        let outcome = rig.outcome()?;
        self.kept.push(Kept::Rig(Box::new(rig)));
        Ok(outcome)
    }
}

/// Sends messages; a backend that hangs up meanwhile has given its answer.
pub fn say(frontend: &Frontend, messages: &[Message]) -> Result<Outcome> {
    for message in messages {
        if message.send(frontend.socket()).is_err() {
            return Ok(Outcome::Closed);
        }
    }
    look(frontend)
}

/// Has the backend closed the connection, or said something?
fn look(frontend: &Frontend) -> Result<Outcome> {
    let limit = rustix::time::Timespec::try_from(PATIENCE).map_err(|_| Error::Config("timeout".into()))?;
    let mut fds = [PollFd::new(frontend.socket(), PollFlags::IN)];
    if poll(&mut fds, Some(&limit)).map_err(|e| Error::io("poll", e))? == 0 {
        return Ok(Outcome::Silent);
    }
    Ok(match Message::receive(frontend.socket()) {
        Ok(_) => Outcome::Answered,
        Err(_) => Outcome::Closed,
    })
}

/// One raw descriptor, without the packed ring's two phase bits.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// Address.
    pub addr: u64,
    /// Length.
    pub len: u32,
    /// Flags.
    pub flags: u16,
    /// Split: next. Packed: id.
    pub next: u16,
}

/// A device with raw rings. Of a network device queue 0 receives and queue 1 transmits; a disk has queue 0.
pub struct Rig {
    /// Negotiated connection, memory, eventfds.
    pub session: Session,
    /// Split or packed.
    pub format: Format,
    /// Offset of 16 KiB of honest buffer space.
    pub space: usize,
    /// The rings can no longer be read from here either: their file was cut.
    pub blind: bool,
    errors: Vec<OwnedFd>,
    cursors: Vec<Cursor>,
    avail: Vec<u16>,
}

impl Rig {
    fn start(mut session: Session, format: Format) -> Result<Self> {
        let space = session.memory.alloc(16 << 10, 4096)?;
        let bases = vec![session.first_base(); session.vrings.len()];
        session.start(&bases)?;
        let mut errors = Vec::new();
        for queue in (0u64..).take(bases.len()) {
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            let fd = rustix::event::eventfd(0, flags).map_err(|e| Error::io("eventfd", e))?;
            let message = Message::words(raw::request::SET_VRING_ERR, &[queue]).with_fd(&fd);
            session.frontend.set(message.map_err(|e| Error::io("duplicating an eventfd", e))?)?;
            errors.push(fd);
        }
        let start = Cursor { at: 0, wrap: true };
        let (cursors, avail) = (vec![start; bases.len()], vec![0; bases.len()]);
        Ok(Self { session, format, space, blind: false, errors, cursors, avail })
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.session.memory
    }

    /// A ring's parts.
    pub fn parts(&self, queue: u16) -> &Parts {
        &self.session.vrings[usize::from(queue)].parts
    }

    /// Guest physical address of honest buffer space.
    pub fn gpa(&self) -> u64 {
        self.memory().gpa(self.space)
    }

    /// One honest descriptor for this queue.
    pub fn honest(&self, queue: u16) -> Raw {
        Raw { addr: self.gpa(), len: if queue == 0 { 2048 } else { 72 }, flags: 2 * (1 - queue), next: 0 }
    }

    /// Writes any descriptor anywhere in the split table, or in any table in memory.
    pub fn table(&self, at: usize, index: usize, raw: Raw) {
        let (flags, next) = match self.format {
            Format::Split => (u64::from(raw.flags) << 32, u64::from(raw.next) << 48),
            Format::Packed => (u64::from(raw.flags) << 48, u64::from(raw.next) << 32),
        };
        self.memory().write(at + 16 * index, &raw.addr.to_le_bytes());
        self.memory().write(at + 16 * index + 8, &(u64::from(raw.len) | flags | next).to_le_bytes());
    }

    /// Split: offers a head, whatever stands there.
    pub fn head(&mut self, queue: u16, head: u16) {
        let q = usize::from(queue);
        let slot = usize::from(self.avail[q] % self.session.options().entries);
        let avail = &self.parts(queue).avail;
        avail.store16(2 + slot, head, Ordering::Relaxed);
        avail.store16(1, self.avail[q].wrapping_add(1), Ordering::Release);
        self.avail[q] = self.avail[q].wrapping_add(1);
    }

    /// Split: sets the index, whatever it means.
    pub fn index(&mut self, queue: u16, index: u16) {
        self.parts(queue).avail.store16(1, index, Ordering::Release);
        self.avail[usize::from(queue)] = index;
    }

    /// Offers a chain as written: from split descriptor 0 on, or at the packed ring's next descriptors.
    pub fn offer(&mut self, queue: u16, chain: &[Raw]) {
        let q = usize::from(queue);
        let desc = self.parts(queue).desc.clone();
        match self.format {
            Format::Split => {
                for (index, raw) in chain.iter().enumerate() {
                    self.table(desc.offset(), index, *raw);
                }
                self.head(queue, 0);
            }
            Format::Packed => {
                let entries = self.session.options().entries;
                let start = self.cursors[q];
                let mut cursor = start;
                let mut first = 0;
                for (index, raw) in chain.iter().enumerate() {
                    let flags = raw.flags | cursor.available();
                    let word = u64::from(raw.len) | u64::from(raw.next) << 32 | u64::from(flags) << 48;
                    let at = 2 * usize::from(cursor.at);
                    desc.store64(at, raw.addr, Ordering::Relaxed);
                    if index == 0 {
                        first = word;
                    } else {
                        desc.store64(at + 1, word, Ordering::Relaxed);
                    }
                    cursor = cursor.plus(1, entries);
                }
                desc.store64(2 * usize::from(start.at) + 1, first, Ordering::Release);
                self.cursors[q] = cursor;
            }
        }
        self.kick(queue);
    }

    /// Kicks, whatever the device wishes.
    pub fn kick(&self, queue: u16) {
        let _ = rustix::io::write(&self.session.vrings[usize::from(queue)].kick, &1u64.to_ne_bytes());
    }

    /// Has the device given back anything?
    fn used(&self, parts: &Parts) -> bool {
        match self.format {
            Format::Split => parts.used.load16(1, Ordering::Acquire) != 0,
            Format::Packed => {
                let start = Cursor { at: 0, wrap: true };
                start.is_used((parts.desc.load64(1, Ordering::Acquire) >> 48) as u16)
            }
        }
    }

    /// Looks for a reaction until there is one or patience ends.
    pub fn outcome(&self) -> Result<Outcome> {
        let start = Instant::now();
        let mut silent = Outcome::Silent;
        while start.elapsed() < PATIENCE {
            let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let mut fds = vec![PollFd::new(self.session.frontend.socket(), PollFlags::IN)];
            fds.extend(self.errors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            poll(&mut fds, Some(&limit)).map_err(|e| Error::io("poll", e))?;
            if !fds[0].revents().is_empty() {
                return Ok(Outcome::Closed);
            }
            if fds[1..].iter().any(|fd| !fd.revents().is_empty()) {
                return Ok(Outcome::Signalled);
            }
            // A device may give the buffer back first and end the connection then.
            if !self.blind && self.session.vrings.iter().any(|vring| self.used(&vring.parts)) {
                silent = Outcome::Used;
            }
        }
        Ok(silent)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique() {
        let lies = super::all().chain(super::requests::LIES);
        let mut names: Vec<_> = lies.map(|lie| lie.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
