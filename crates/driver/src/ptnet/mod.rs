//! A native driver for ptnet over vfio-user: what the published drivers do, without a kernel.
//!
//! [`Ptnet::open`] finds both functions, maps the memory, and learns where the rings are from the `netmap_if`
//! that lies in it; [`Ptnet::start`] begins (`CREATE`) and takes over the indices that the device has
//! written; [`Ptnet::send`] and [`Ptnet::receive`] move frames, with one publication a batch. A kick is a
//! trap, and happens only if the device asks for it: [`Ptnet::kicks`].

mod ring;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_abi::netmap::{If, RingHead, SlotWord, MAX_FRAGS, NS_BUF_CHANGED, NS_MOREFRAG};
use sidecore_abi::pci::command;
use sidecore_abi::ptnet::{
    memdev, reg, BLOCK, CREATE, DELETE, DEVICE, MEMORY_DEVICE, VENDOR, VNET_HDR, VNET_HDR_LEN,
};

use self::ring::{RingLayout, SlotRing};
use crate::error::{Error, Result};
use crate::memory::{Memory, Page, View};
use crate::vfio::{Client, Event, Traps, Window};

/// BAR of the registers of both functions.
const BAR: u32 = 0;
/// The BAR of the memory device that is the memory: [`memdev::MEMORY_BAR`].
const MEMORY: u32 = 1;
/// Bytes of each half of the blocks, and what they are aligned to.
const PAGE: usize = 4096;
/// Slots ahead of which buffers are asked for.
const AHEAD: u32 = 16;

/// What can be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Frames begin with a virtio-net header.
    pub header: bool,
    /// Kind of memory behind the blocks.
    pub page: Page,
}

impl Default for Config {
    fn default() -> Config {
        Config { header: true, page: Page::Small }
    }
}

/// A pair of rings.
struct Pair {
    tx: SlotRing,
    rx: SlotRing,
}

/// A ptnet device and its memory.
pub struct Ptnet {
    nic: Client,
    window: Arc<Window>,
    /// Its conversation lasts as long as the memory is used.
    memory_device: Client,
    memory: Arc<Memory>,
    blocks: [usize; 2],
    mac: [u8; 6],
    header: usize,
    pairs: Vec<Pair>,
    /// The pair that is meant.
    pair: usize,
    events: Vec<Event>,
    kicks: u64,
    /// What the last one took.
    last_kick: Duration,
    /// A frame that came in several buffers.
    whole: Vec<u8>,
}

/// The path at which the memory device of the one at `path` is.
fn beside(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".mem");
    name.into()
}

impl Ptnet {
    /// Connects to the device at `path` and to its memory, and begins.
    ///
    /// # Errors
    /// No server listens there, it is another device, or it does not behave like this one.
    pub fn open(path: &Path, config: &Config) -> Result<Ptnet> {
        let mut nic = connect(path, DEVICE)?;
        let mut memory_device = connect(&beside(path), MEMORY_DEVICE)?;
        nic.reset()?;
        nic.enable(command::IO | command::MEMORY | command::MASTER)?;
        memory_device.enable(command::IO | command::MEMORY)?;
        if nic.read32(BAR, reg::HOSTMEMID)? != memory_device.read32(BAR, memdev::MEMID)? {
            return Err(Error::Device("the memory is not this NIC's".to_owned()));
        }
        let window = memory_device.window(MEMORY)?;
        let window = Arc::new(window.ok_or_else(|| Error::Missing("memory that can be mapped".to_owned()))?);
        nic.write32(BAR, reg::PTFEAT, if config.header { VNET_HDR } else { 0 })?;
        let header = if nic.read32(BAR, reg::PTFEAT)? & VNET_HDR != 0 { VNET_HDR_LEN } else { 0 };
        let memory = Memory::new(3 * PAGE, config.page)?;
        nic.map_memory(&memory)?;
        let blocks = [memory.alloc(PAGE, PAGE)?, memory.alloc(PAGE, PAGE)?];
        let (low, high) = (nic.read32(BAR, reg::MAC_LO)?.to_be_bytes(), nic.read32(BAR, reg::MAC_HI)?);
        let [_, _, a, b] = high.to_be_bytes();
        let [c, d, e, f] = low;
        let events = nic.enable_msix()?;
        let mut driver = Ptnet {
            nic,
            window,
            memory_device,
            memory,
            blocks,
            mac: [a, b, c, d, e, f],
            header: 0,
            pairs: Vec::new(),
            pair: 0,
            events,
            kicks: 0,
            last_kick: Duration::ZERO,
            whole: Vec::new(),
        };
        driver.find_rings()?;
        driver.start_with(header)?;
        Ok(driver)
    }

    /// Learns where the rings are.
    fn find_rings(&mut self) -> Result<()> {
        let interface = u64::from(self.nic.read32(BAR, reg::NIFP_OFS)?);
        let count = self.nic.read32(BAR, reg::NUM_TX_RINGS)?;
        if self.nic.read32(BAR, reg::NUM_RX_RINGS)? != count || count == 0 {
            return Err(Error::Device(format!("{count} rings to send on, and others to receive on")));
        }
        let buf_count = self.memory_device.read32(BAR, memdev::BUF_POOL + 4)?;
        // Host rings stand behind the others of their direction.
        let host = u64::from(self.word(interface + 36)?);
        self.pairs.clear();
        for number in 0..count {
            let tx = self.ring(interface, number.into(), number, buf_count)?;
            let place = u64::from(count) + host + u64::from(number);
            let rx = self.ring(interface, place, count + number, buf_count)?;
            self.pairs.push(Pair { tx, rx });
        }
        Ok(())
    }

    /// The ring at place `place` of the interface's list, whose block is the one with this number.
    fn ring(&self, interface: u64, place: u64, number: u32, buf_count: u32) -> Result<SlotRing> {
        let entry = interface + size_of::<If>() as u64 + 8 * place;
        let offset = u64::from(self.word(entry)?) | u64::from(self.word(entry + 4)?) << 32;
        let ring = interface.wrapping_add(offset);
        let bufs = u64::from(self.word(ring)?) | u64::from(self.word(ring + 4)?) << 32;
        let layout = RingLayout {
            slots: (ring + size_of::<RingHead>() as u64, self.word(ring + 8)?),
            bufs: ring.wrapping_add(bufs),
            buf_count,
            buf_size: self.word(ring + 12)? as usize,
        };
        let block = |half: usize| {
            self.memory.view(self.blocks[half] + number as usize * BLOCK as usize, BLOCK as usize)
        };
        SlotRing::new(&self.window, &layout, block(0), block(1))
    }

    fn word(&self, offset: u64) -> Result<u32> {
        let outside = || Error::Device(format!("byte {offset:#x} is not inside the memory"));
        self.window.read32(offset).ok_or_else(outside)
    }

    /// Says where the blocks are, and begins.
    ///
    /// # Errors
    /// The device refuses.
    pub fn start(&mut self) -> Result<()> {
        let header = if self.nic.read32(BAR, reg::PTFEAT)? & VNET_HDR != 0 { VNET_HDR_LEN } else { 0 };
        self.start_with(header)
    }

    fn start_with(&mut self, header: u32) -> Result<()> {
        for (half, high, low) in
            [(0, reg::CSB_GH_BAH, reg::CSB_GH_BAL), (1, reg::CSB_HG_BAH, reg::CSB_HG_BAL)]
        {
            let address = self.memory.gpa(self.blocks[half]);
            #[allow(clippy::cast_possible_truncation)] // halves
            self.nic.write32(BAR, high, (address >> 32) as u32)?;
            #[allow(clippy::cast_possible_truncation)] // halves
            self.nic.write32(BAR, low, address as u32)?;
        }
        self.nic.write32(BAR, reg::VNET_HDR_LEN, header)?;
        self.header = self.nic.read32(BAR, reg::VNET_HDR_LEN)? as usize;
        for pair in &self.pairs {
            pair.tx.prepare(false);
            pair.rx.prepare(true);
        }
        self.command(CREATE)?;
        for pair in &mut self.pairs {
            pair.tx.adopt()?;
            pair.rx.adopt()?;
            // The device asks for interrupts in the guest's name.
            pair.tx.want_interrupts(false);
            pair.rx.want_interrupts(false);
        }
        Ok(())
    }

    /// Ends: the device touches the blocks no more.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn stop(&mut self) -> Result<()> {
        self.command(DELETE)
    }

    /// Writes a command, and learns how it ended.
    ///
    /// # Errors
    /// What the device says.
    pub fn command(&mut self, command: u32) -> Result<()> {
        self.nic.write32(BAR, reg::PTCTL, command)?;
        match self.nic.read32(BAR, reg::PTCTL)? {
            0 => Ok(()),
            errno => Err(Error::Device(format!("command {command} ended with errno {errno}"))),
        }
    }

    /// The station's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Pairs of rings.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Means pair `pair` from now on.
    ///
    /// # Errors
    /// There is none.
    pub fn select(&mut self, pair: usize) -> Result<()> {
        if pair >= self.pairs.len() {
            return Err(Error::Config(format!("pair {pair} of {}", self.pairs.len())));
        }
        self.pair = pair;
        Ok(())
    }

    /// Bytes of header before each frame.
    pub fn header(&self) -> usize {
        self.header
    }

    /// Accesses so far that would have left a guest.
    pub fn traps(&self) -> Traps {
        self.nic.traps()
    }

    /// Those of them that were kicks.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// How long the last kick of a ring on which is sent took, until the device had answered.
    pub fn last_kick(&self) -> Duration {
        self.last_kick
    }

    /// The conversation below, for what this driver does not do.
    pub fn client(&mut self) -> &mut Client {
        &mut self.nic
    }

    /// The memory device's conversation.
    pub fn memory_device(&mut self) -> &mut Client {
        &mut self.memory_device
    }

    /// The memory that the blocks lie in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The memory of rings and buffers, as it is mapped.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// The guest's half of the block of the ring that sends, or that receives, to be lied in.
    pub fn block(&self, sends: bool) -> &View {
        let pair = &self.pairs[self.pair];
        if sends { &pair.tx } else { &pair.rx }.block()
    }

    /// Sends as many of `frames` as there is room for, and publishes them once; returns how many.
    ///
    /// # Errors
    /// The kick is not answered.
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<usize> {
        let mut done = 0;
        while done < frames.len() && self.queue(&[0; 12], frames[done])? {
            done += 1;
        }
        self.publish()?;
        Ok(done)
    }

    /// Puts one frame behind `header`, of which the first bytes count, into as many slots as it takes. False:
    /// there is no room. [`Ptnet::publish`] tells the device.
    ///
    /// # Errors
    /// It takes more slots than a frame may have.
    pub fn queue(&mut self, header: &[u8; 12], frame: &[u8]) -> Result<bool> {
        let ring = &mut self.pairs[self.pair].tx;
        let (header, size) = (&header[..self.header], ring.buf_size().min(0xffff));
        let total = header.len() + frame.len();
        let slots = total.div_ceil(size).max(1);
        if slots > MAX_FRAGS {
            return Err(Error::Config(format!("a frame of {total} bytes takes {slots} slots")));
        }
        if (ring.space() as usize) < slots && (ring.look() as usize) < slots {
            return Ok(false);
        }
        let mut rest = [header, frame];
        for slot in 1..=slots {
            let word = ring.next();
            let buffer = ring.buffer(word)?;
            let len = if slots == 1 {
                // The usual case, in two copies.
                buffer[..header.len()].copy_from_slice(header);
                buffer[header.len()..total].copy_from_slice(frame);
                total
            } else {
                take(&mut rest, &mut buffer[..size])
            };
            let more = if slot < slots { NS_MOREFRAG } else { 0 };
            #[allow(clippy::cast_possible_truncation)] // below 0x10000
            ring.give(word, SlotWord::new(word.buf_idx(), len as u16, more));
        }
        Ok(true)
    }

    /// Sends at most `count` frames of one slot without header, each written by `fill` into its buffer; it
    /// returns the frame's length. Publishes once; returns how many there was room for.
    ///
    /// # Errors
    /// The kick is not answered.
    #[inline]
    pub fn send_with(
        &mut self,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> Result<usize> {
        let (header, ring) = (self.header, &mut self.pairs[self.pair].tx);
        let wanted = u32::try_from(count).unwrap_or(u32::MAX);
        let space = if ring.space() < wanted { ring.look() } else { wanted };
        let room = space.min(wanted) as usize;
        ring.prefetch_block();
        for done in 0..room {
            ring.prefetch(AHEAD, true);
            let word = ring.next();
            let buffer = ring.buffer(word)?;
            if header > 0 {
                buffer[..header].fill(0);
            }
            let len = header + fill(done, &mut buffer[header..]);
            #[allow(clippy::cast_possible_truncation)] // no longer than a buffer, of 65535 bytes at most
            ring.give(word, SlotWord::new(word.buf_idx(), len as u16, 0));
        }
        self.publish()?;
        Ok(room)
    }

    /// Gives the next `count` slots of the ring up as they are; returns how many were ours. Publishes once.
    ///
    /// # Errors
    /// The kick is not answered.
    pub fn send_again(&mut self, count: usize) -> Result<usize> {
        let ring = &mut self.pairs[self.pair].tx;
        let wanted = u32::try_from(count).unwrap_or(u32::MAX);
        let room = if ring.space() < wanted { ring.look().min(wanted) } else { wanted };
        (0..room).for_each(|_| ring.release());
        self.publish()?;
        Ok(room as usize)
    }

    /// Writes `word` into the next slot and gives it up, whatever it says; false: there is no room.
    pub fn queue_word(&mut self, word: SlotWord) -> bool {
        let ring = &mut self.pairs[self.pair].tx;
        let room = ring.space() > 0 || ring.look() > 0;
        if room {
            ring.give(ring.next(), word);
        }
        room
    }

    /// The next slot on which is sent.
    pub fn next_word(&self) -> SlotWord {
        self.pairs[self.pair].tx.next()
    }

    /// The next slot on which is received, if something came.
    pub fn received_word(&mut self) -> Option<SlotWord> {
        let ring = &mut self.pairs[self.pair].rx;
        (ring.look() > 0).then(|| ring.next())
    }

    /// Puts buffer `index` into the next slot on which is received, whose frame is done with, and gives that
    /// up: what was there is ours. Returns that buffer. The release goes out with the next
    /// [`Ptnet::receive`].
    pub fn exchange(&mut self, index: u32) -> u32 {
        let ring = &mut self.pairs[self.pair].rx;
        let word = ring.next();
        ring.give(word, SlotWord::new(index, word.len(), NS_BUF_CHANGED));
        word.buf_idx()
    }

    /// Tells the device of everything queued, and kicks it if it asks for that.
    ///
    /// # Errors
    /// The kick is not answered.
    #[inline]
    pub fn publish(&mut self) -> Result<()> {
        if self.pairs[self.pair].tx.publish() {
            self.kick()?;
        }
        Ok(())
    }

    /// Kicks the ring on which is sent.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn kick(&mut self) -> Result<()> {
        self.kicks += 1;
        let start = Instant::now();
        self.nic.write32(BAR, reg::KICKS + 4 * self.pair as u64, 0)?;
        self.last_kick = start.elapsed();
        Ok(())
    }

    /// Sends one frame and does not kick, whatever the device asks for. False: there is no room.
    ///
    /// # Errors
    /// It takes more slots than a frame may have.
    pub fn send_unheard(&mut self, frame: &[u8]) -> Result<bool> {
        let sent = self.queue(&[0; 12], frame)?;
        self.pairs[self.pair].tx.publish();
        Ok(sent)
    }

    /// Whether the device has dealt with all that was sent.
    pub fn is_clean(&self) -> bool {
        self.pairs[self.pair].tx.is_clean()
    }

    /// Shows up to `limit` received frames to `see` and gives their slots back; returns how many there were.
    ///
    /// # Errors
    /// The device filled in what cannot be, or does not answer a kick.
    #[inline]
    pub fn receive(&mut self, limit: usize, mut see: impl FnMut(&[u8])) -> Result<usize> {
        self.receive_with(limit, |_, frame| see(frame))
    }

    /// As [`receive`](Ptnet::receive), with the header of each.
    ///
    /// # Errors
    /// As above.
    #[inline]
    pub fn receive_with(&mut self, limit: usize, mut see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let (header, ring) = (self.header, &mut self.pairs[self.pair].rx);
        let mut left = ring.look();
        if left > 0 {
            ring.prefetch_block();
        }
        let mut done = 0;
        while done < limit && left > 0 {
            if left > AHEAD {
                ring.prefetch(AHEAD, false);
            }
            let word = ring.next();
            if word.flags() & NS_MOREFRAG != 0 {
                left -= gather(ring, left, &mut self.whole)?;
                let (head, frame) = self.whole.split_at_checked(header).ok_or_else(too_short)?;
                see(head, frame);
                done += 1;
                continue;
            }
            let bytes = ring.buffer(word)?;
            let bytes = bytes.get(..usize::from(word.len())).ok_or_else(too_short)?;
            // Slots without bytes are passed over, as netmap has it.
            if !bytes.is_empty() {
                let (head, frame) = bytes.split_at_checked(header).ok_or_else(too_short)?;
                see(head, frame);
                done += 1;
            }
            ring.release();
            left -= 1;
        }
        if ring.publish() {
            self.kicks += 1;
            let ring = (self.pairs.len() + self.pair) as u64;
            self.nic.write32(BAR, reg::KICKS + 4 * ring, 0)?;
        }
        Ok(done)
    }

    /// Wants an interrupt when frames come. True: some have come already.
    pub fn arm(&mut self, on: bool) -> bool {
        self.pairs[self.pair].rx.want_interrupts(on)
    }

    /// Wants an interrupt when there is room to send again. True: there is already.
    pub fn arm_sending(&mut self, on: bool) -> bool {
        self.pairs[self.pair].tx.want_interrupts(on)
    }

    /// Waits for the interrupt of the ring on which is received, or sent, `limit` at most. 0: none came.
    ///
    /// # Errors
    /// The system refuses.
    pub fn wait(&self, sends: bool, limit: Duration) -> Result<u64> {
        let vector = if sends { self.pair } else { self.pairs.len() + self.pair };
        let event = self.events.get(vector);
        event.ok_or_else(|| Error::Missing(format!("message {vector}")))?.wait(limit)
    }
}

/// Moves what comes first in `rest` into `to`, as much as it holds; how much that was.
fn take(rest: &mut [&[u8]; 2], to: &mut [u8]) -> usize {
    let mut done = 0;
    for part in rest {
        let (now, later) = part.split_at(part.len().min(to.len() - done));
        to[done..done + now.len()].copy_from_slice(now);
        done += now.len();
        *part = later;
    }
    done
}

fn too_short() -> Error {
    Error::Device("a received slot holds less than a header, or more than a buffer".to_owned())
}

/// Joins the slots of one frame in `whole`; how many there were, of `left`.
fn gather(ring: &mut SlotRing, left: u32, whole: &mut Vec<u8>) -> Result<u32> {
    whole.clear();
    for slots in 1..=left {
        let word = ring.next();
        let bytes = ring.buffer(word)?;
        whole.extend_from_slice(bytes.get(..usize::from(word.len())).ok_or_else(too_short)?);
        ring.release();
        if word.flags() & NS_MOREFRAG == 0 {
            return Ok(slots);
        }
    }
    Err(Error::Device("a frame whose last slot is missing".to_owned()))
}

fn connect(path: &Path, device: u16) -> Result<Client> {
    let mut client = Client::connect(path)?;
    match (client.config16(0)?, client.config16(2)?) {
        (VENDOR, found) if found == device => Ok(client),
        (vendor, found) => {
            Err(Error::Config(format!("{vendor:04x}:{found:04x} is not {VENDOR:04x}:{device:04x}")))
        }
    }
}
