//! A virtio-net driver (virtio 1.2 §5.1): queue pairs, headers, mergeable receive buffers.
//!
//! Buffers are bound to the names that the rings hand out, so a frame is written or read where it
//! lies and nothing is copied that the caller does not copy.
//!
//! The one `unsafe` here makes a slice of a buffer's bytes. Its invariant: a buffer is referred to only
//! while the device does not hold it, and only by one slice, because the driver is borrowed mutably.

use std::time::Duration;

use sidecore_abi::virtio::{features as f, net_hdr, NET_HDR_LEN};

use crate::error::{Error, Result};
use crate::frontend::Frontend;
use crate::memory::Buffers;
use crate::queue::{Buf, Queue, Table};
use crate::running::{sleep, Running};
use crate::session::{Config, Session};

/// Most pieces of one chain that this driver makes.
const MAX_PIECES: usize = 64;

/// The network header (§5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHdr {
    /// `net_hdr::F_*`.
    pub flags: u8,
    /// `net_hdr::GSO_*`.
    pub gso_type: u8,
    /// Bytes of the protocol headers, a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the checksum starts.
    pub csum_start: u16,
    /// Where it is stored, counted from there.
    pub csum_offset: u16,
    /// Receive: buffers that the frame takes.
    pub num_buffers: u16,
}

impl NetHdr {
    /// As it lies in memory.
    pub fn to_bytes(self) -> [u8; NET_HDR_LEN] {
        let mut bytes = [0; NET_HDR_LEN];
        bytes[net_hdr::FLAGS] = self.flags;
        bytes[net_hdr::GSO_TYPE] = self.gso_type;
        for (at, value) in [
            (net_hdr::HDR_LEN, self.hdr_len),
            (net_hdr::GSO_SIZE, self.gso_size),
            (net_hdr::CSUM_START, self.csum_start),
            (net_hdr::CSUM_OFFSET, self.csum_offset),
            (net_hdr::NUM_BUFFERS, self.num_buffers),
        ] {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// From memory; `None` if there are fewer than 12 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; NET_HDR_LEN] = bytes.get(..NET_HDR_LEN)?.try_into().ok()?;
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            flags: bytes[net_hdr::FLAGS],
            gso_type: bytes[net_hdr::GSO_TYPE],
            hdr_len: word(net_hdr::HDR_LEN),
            gso_size: word(net_hdr::GSO_SIZE),
            csum_start: word(net_hdr::CSUM_START),
            csum_offset: word(net_hdr::CSUM_OFFSET),
            num_buffers: word(net_hdr::NUM_BUFFERS),
        })
    }
}

/// How a sent frame is cut into descriptors. All are legal (§2.6.4); a device must take each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Header and frame in one descriptor, as Linux does.
    #[default]
    Whole,
    /// The header in a descriptor of its own.
    Split,
    /// Header and frame together cut into this many pieces, each of at least one byte.
    Pieces(u8),
    /// As many descriptors in an indirect table; needs INDIRECT_DESC.
    Indirect(u8),
}

/// What a driver counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames handed to the device.
    pub sent: u64,
    /// Bytes of those, without headers.
    pub sent_bytes: u64,
    /// Frames received.
    pub received: u64,
    /// Bytes of those, without headers.
    pub received_bytes: u64,
    /// Frames that found no room in the ring.
    pub no_room: u64,
    /// Kicks given.
    pub kicks: u64,
    /// Interrupts taken.
    pub interrupts: u64,
}

#[derive(Debug)]
struct Half {
    ring: Running,
    buffers: Buffers,
}

impl Half {
    fn new(session: &Session, config: &Config, number: u16) -> Result<Self> {
        let buffers = session.memory.alloc_buffers(usize::from(config.entries), config.buffer)?;
        Ok(Self { ring: Running::new(session, number)?, buffers })
    }

    fn publish(&mut self, stats: &mut Stats) -> Result<()> {
        stats.kicks += u64::from(self.ring.publish()?);
        Ok(())
    }
}

#[derive(Debug)]
struct Pair {
    rx: Half,
    tx: Half,
    tables: Vec<Table>,
}

/// A network device seen from its driver.
#[derive(Debug)]
pub struct NetDriver {
    session: Session,
    config: Config,
    pairs: Vec<Pair>,
    shape: Shape,
    stats: Stats,
    used: Vec<(u16, u32)>,
    /// A receive chain that is not complete, or that spans buffers.
    frame: Vec<u8>,
}

impl NetDriver {
    /// Negotiates, fills the receive rings and starts.
    pub fn start(frontend: Frontend, config: Config) -> Result<Self> {
        let session = Session::new(frontend, config)?;
        let mut pairs = Vec::new();
        for pair in 0..config.pairs {
            let tables = session.tables(config.table)?;
            pairs.push(Pair {
                rx: Half::new(&session, &config, pair * 2)?,
                tx: Half::new(&session, &config, pair * 2 + 1)?,
                tables,
            });
        }
        let shape = Shape::default();
        let (used, frame) = (Vec::new(), Vec::new());
        let mut driver = Self { session, config, pairs, shape, stats: Stats::default(), used, frame };
        let first = driver.session.first_base();
        for pair in 0..config.pairs {
            driver.fill(pair)?;
        }
        driver.session.start(&vec![first; usize::from(config.pairs) * 2])?;
        Ok(driver)
    }

    /// The conversation and what it led to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Cuts all further frames this way.
    pub fn set_shape(&mut self, shape: Shape) -> Result<()> {
        if matches!(shape, Shape::Indirect(_)) && !self.session.has(f::INDIRECT_DESC) {
            return Err(Error::Config("indirect chains without INDIRECT_DESC".into()));
        }
        self.shape = shape;
        Ok(())
    }

    /// Frames that can be sent now if each fits into one buffer.
    pub fn room(&self, pair: u16) -> u16 {
        self.pairs.get(usize::from(pair)).map_or(0, |p| p.tx.ring.queue.room())
    }

    /// Offers every free receive buffer.
    fn fill(&mut self, pair: u16) -> Result<()> {
        let memory = &self.session.memory;
        let rx = &mut self.pairs[usize::from(pair)].rx;
        while rx.ring.queue.room() > 0 {
            let offset = rx.buffers.offset(rx.ring.queue.next_free(0));
            let len = u32::try_from(rx.buffers.size).unwrap_or(u32::MAX);
            rx.ring.queue.add(&[Buf { addr: memory.gpa(offset), len, write: true }]);
        }
        rx.publish(&mut self.stats)
    }

    /// Takes back buffers that the device has sent.
    pub fn complete(&mut self, pair: u16) -> Result<usize> {
        self.pairs[usize::from(pair)].tx.ring.queue.reap(usize::MAX, |_, _| {})
    }

    /// Sends `frames` in order with an empty header; returns how many found room.
    pub fn send(&mut self, pair: u16, frames: &[&[u8]]) -> Result<usize> {
        self.complete(pair)?;
        let mut sent = 0;
        for frame in frames {
            if !self.prepare(pair, NetHdr::default(), frame)? {
                self.stats.no_room += (frames.len() - sent) as u64;
                break;
            }
            sent += 1;
        }
        self.pairs[usize::from(pair)].tx.publish(&mut self.stats)?;
        Ok(sent)
    }

    /// Sends one frame with its header, over as many buffers as it takes.
    pub fn send_frame(&mut self, pair: u16, hdr: NetHdr, frame: &[u8]) -> Result<bool> {
        self.complete(pair)?;
        let sent = self.prepare(pair, hdr, frame)?;
        self.stats.no_room += u64::from(!sent);
        self.pairs[usize::from(pair)].tx.publish(&mut self.stats)?;
        Ok(sent)
    }

    fn prepare(&mut self, pair: u16, hdr: NetHdr, frame: &[u8]) -> Result<bool> {
        let Pair { tx, tables, .. } = &mut self.pairs[usize::from(pair)];
        let memory = &self.session.memory;
        let (size, total) = (tx.buffers.size, NET_HDR_LEN + frame.len());
        let needed = total.div_ceil(size);
        if needed > MAX_PIECES {
            return Err(Error::Config(format!("a frame of {} bytes takes {needed} buffers", frame.len())));
        }
        if needed > usize::from(tx.ring.queue.room()) {
            return Ok(false);
        }
        // The bytes: header, then frame, through as many buffers as needed.
        let header = hdr.to_bytes();
        let mut rest = frame;
        let mut chain = [Buf { addr: 0, len: 0, write: false }; MAX_PIECES];
        let mut pieces = 0;
        for (place, piece) in (0u16..).zip(chain.iter_mut().take(needed)) {
            let offset = tx.buffers.offset(tx.ring.queue.next_free(place));
            let skip = if place == 0 { NET_HDR_LEN } else { 0 };
            let (now, later) = rest.split_at(rest.len().min(size - skip));
            if place == 0 {
                memory.write(offset, &header);
            }
            memory.write(offset + skip, now);
            *piece = buf(memory.gpa(offset), skip + now.len());
            rest = later;
            pieces += 1;
        }
        // The shape: the first buffer is cut further. Later pieces take names whose buffers stay unused.
        let (cut, indirect) = match self.shape {
            Shape::Whole => (1, false),
            Shape::Split => (2, false),
            Shape::Pieces(n) => (n, false),
            Shape::Indirect(n) => (n, true),
        };
        if needed == 1 && (cut > 1 || indirect) {
            let whole = chain[0];
            let cut = usize::from(cut).clamp(1, total.min(MAX_PIECES));
            let first = if self.shape == Shape::Split { NET_HDR_LEN } else { total.div_ceil(cut) };
            let mut done = 0;
            pieces = 0;
            while done < total {
                let left = cut - pieces;
                let len = if pieces == 0 { first.min(total) } else { (total - done).div_ceil(left) };
                chain[pieces] = buf(whole.addr + done as u64, len);
                (done, pieces) = (done + len, pieces + 1);
            }
        }
        let name = tx.ring.queue.next_free(0);
        let added = match tables.get(usize::from(name)) {
            Some(table) if indirect => tx.ring.queue.add_indirect(table, &chain[..pieces]),
            _ => tx.ring.queue.add(&chain[..pieces]),
        };
        if added.is_some() {
            self.stats.sent += 1;
            self.stats.sent_bytes += frame.len() as u64;
        }
        Ok(added.is_some())
    }

    /// Sends up to `count` frames that `write` makes in place: `write(i, buffer) -> length`. Headers are
    /// empty and every frame is one descriptor. Returns how many found room.
    pub fn send_with(
        &mut self,
        pair: u16,
        count: usize,
        mut write: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> Result<usize> {
        self.complete(pair)?;
        let tx = &mut self.pairs[usize::from(pair)].tx;
        let memory = &self.session.memory;
        let now = count.min(usize::from(tx.ring.queue.room()));
        for i in 0..now {
            let offset = tx.buffers.offset(tx.ring.queue.next_free(0));
            // SAFETY: the name is free, so the device does not hold its buffer; `self` is borrowed mutably.
            let bytes = unsafe { memory.bytes_mut(offset, tx.buffers.size) };
            let (header, frame) = bytes.split_at_mut(NET_HDR_LEN);
            header.fill(0);
            let len = write(i, frame).min(frame.len());
            tx.ring.queue.add(&[buf(memory.gpa(offset), NET_HDR_LEN + len)]);
            self.stats.sent_bytes += len as u64;
        }
        self.stats.sent += now as u64;
        self.stats.no_room += (count - now) as u64;
        tx.publish(&mut self.stats)?;
        Ok(now)
    }

    /// Takes all frames that are there: `each(header, frame)`. Returns how many.
    pub fn receive(&mut self, pair: u16, each: impl FnMut(&NetHdr, &[u8])) -> Result<usize> {
        self.receive_up_to(pair, usize::MAX, each)
    }

    /// Takes at most `limit` frames; all that are there if they may span buffers (MRG_RXBUF).
    pub fn receive_up_to(
        &mut self,
        pair: u16,
        limit: usize,
        mut each: impl FnMut(&NetHdr, &[u8]),
    ) -> Result<usize> {
        let memory = std::sync::Arc::clone(&self.session.memory);
        let mergeable = self.session.has(f::NET_MRG_RXBUF);
        let rx = &mut self.pairs[usize::from(pair)].rx;
        self.used.clear();
        let limit = if mergeable { usize::MAX } else { limit };
        rx.ring.queue.reap(limit, |name, len| self.used.push((name, len)))?;
        let mut used = self.used.iter();
        let mut frames = 0;
        while let Some(&(name, len)) = used.next() {
            let mut bytes = buffer(&memory, rx, name, len)?;
            let broken = |what: String| Error::Ring { queue: rx.ring.number, what };
            let Some(hdr) = NetHdr::from_bytes(bytes) else {
                return Err(broken(format!("delivered {len} bytes, less than a header")));
            };
            if mergeable && hdr.num_buffers != 1 {
                // All buffers of a frame are given back together (§5.1.6.4).
                self.frame.clear();
                self.frame.extend_from_slice(bytes);
                for _ in 1..hdr.num_buffers {
                    let Some(&(name, len)) = used.next() else {
                        return Err(broken(format!("delivered less than {} buffers", hdr.num_buffers)));
                    };
                    self.frame.extend_from_slice(buffer(&memory, rx, name, len)?);
                }
                bytes = &self.frame;
            }
            let frame = bytes.get(NET_HDR_LEN..).unwrap_or_default();
            self.stats.received += 1;
            self.stats.received_bytes += frame.len() as u64;
            frames += 1;
            each(&hdr, frame);
        }
        if frames > 0 {
            self.fill(pair)?;
        }
        Ok(frames)
    }

    /// Sleeps until a frame arrives on any pair, or until the time is over. True: there is something.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let mut some = false;
        for pair in &mut self.pairs {
            some |= pair.rx.ring.queue.set_interrupts(true);
        }
        if !some {
            sleep(self.pairs.iter().map(|pair| &pair.rx.ring), None, timeout)?;
        }
        for pair in &mut self.pairs {
            some |= pair.rx.ring.queue.set_interrupts(false);
            self.stats.interrupts += u64::from(pair.rx.ring.interrupted());
        }
        Ok(some)
    }

    /// Has received frames interrupt from now on, until the next [`NetDriver::wait`].
    pub fn ask_for_interrupts(&mut self) {
        for pair in &mut self.pairs {
            pair.rx.ring.queue.set_interrupts(true);
        }
    }

    /// Runs only the first `pairs` queue pairs, as a guest's `ethtool -L` does.
    pub fn set_pairs(&mut self, pairs: u16) -> Result<()> {
        for number in 0..self.config.pairs * 2 {
            self.session.enable(number, number < pairs * 2)?;
        }
        Ok(())
    }

    /// Stops all rings and starts them where the device was, as pausing a VM does; frames in flight stay.
    pub fn pause_and_resume(&mut self) -> Result<()> {
        let queues = self.config.pairs * 2;
        let mut bases = Vec::new();
        for number in 0..queues {
            self.session.enable(number, false)?;
        }
        for number in 0..queues {
            bases.push(self.session.stop_vring(number)?);
        }
        for (number, base) in (0..).zip(bases) {
            self.session.resume_vring(number, base)?;
        }
        self.kick_all()
    }

    /// Goes on with another connection. Frames that the old backend had not given back are offered
    /// again, in order; transmitted ones may therefore arrive twice.
    pub fn reconnect(&mut self, frontend: Frontend) -> Result<()> {
        let mut bases = Vec::new();
        for pair in &mut self.pairs {
            // Packed rings keep no index in memory: what was given back must be reaped to be known.
            // Received frames among that are lost with the old connection.
            if let Queue::Packed(_) = pair.rx.ring.queue {
                pair.rx.ring.queue.reap(usize::MAX, |_, _| {})?;
                pair.tx.ring.queue.reap(usize::MAX, |_, _| {})?;
            }
            bases.extend([pair.rx.ring.queue.base(), pair.tx.ring.queue.base()]);
        }
        self.reconnect_at(frontend, &bases)
    }

    /// Connects anew with the start index of each ring as the caller says: stale ones, for instance, as VMMs
    /// send them for packed rings after their backend has crashed.
    pub fn reconnect_at(&mut self, frontend: Frontend, bases: &[u32]) -> Result<()> {
        self.session.reconnect(frontend, bases)?;
        for pair in 0..self.config.pairs {
            self.fill(pair)?;
        }
        self.kick_all()
    }

    /// Kicks every ring: a backend that comes back cannot know that there is something to do.
    fn kick_all(&mut self) -> Result<()> {
        for ring in self.pairs.iter().flat_map(|pair| [&pair.rx.ring, &pair.tx.ring]) {
            ring.kick()?;
            self.stats.kicks += 1;
        }
        Ok(())
    }
}

fn buf(addr: u64, len: usize) -> Buf {
    Buf { addr, len: u32::try_from(len).unwrap_or(u32::MAX), write: false }
}

/// The bytes that the device wrote into a receive buffer it gave back.
fn buffer<'a>(memory: &'a crate::memory::Memory, rx: &Half, name: u16, len: u32) -> Result<&'a [u8]> {
    let len = len as usize;
    if len > rx.buffers.size {
        let what = format!("wrote {len} bytes into a buffer of {}", rx.buffers.size);
        return Err(Error::Ring { queue: rx.ring.number, what });
    }
    // SAFETY: the device gave the buffer back and it is offered again only after the slice is gone.
    Ok(unsafe { memory.bytes_mut(rx.buffers.offset(name), len) })
}
