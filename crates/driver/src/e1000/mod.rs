//! A native driver for the 82540EM and the 82574L over vfio-user: what Linux's e1000 and e1000e do, without
//! Linux, in the order in which one would explain it.
//!
//! [`E1000::open`] probes (which part, EEPROM and its checksum), [`E1000::start`] resets the device and sets
//! up rings and interrupts, [`E1000::send`] and [`E1000::receive`] move frames in batches of one doorbell. A
//! doorbell is a store to a mapped page if the device offers one, and a trap otherwise; [`E1000::traps`]
//! tells how many there were.
//!
//! The 82574L has a second queue pair, which [`Config::queues`] turns on: receive side scaling then spreads
//! received flows over both, and [`E1000::select`] says which of them is meant.
//!
//! Limits: legacy transmit descriptors (a frame is one descriptor; no offloads), frames up to the size of a
//! buffer.

mod eeprom;
mod pair;
#[allow(missing_docs)] // names and numbers out of a manual
mod regs;
mod ring;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::csb;
use sidecore_abi::pci::command;

use self::pair::Pair;
pub use self::pair::RSS_KEY;
use self::regs::{BAR, RX, TAIL, TX};

use crate::csb::Block;
use crate::error::{Error, Result};
use crate::memory::{Memory, Page, View};
use crate::vfio::{Client, Event, Traps, Window};

/// Bytes of a receive buffer: what `RCTL` says without further bits.
const BUFFER: usize = 2048;

/// Which part the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// 82540EM: an interrupt pin, legacy descriptors.
    E1000,
    /// 82574L: MSI-X, extended receive descriptors.
    E1000e,
}

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Config {
    /// Descriptors of each ring: a multiple of 8.
    pub ring: u16,
    /// Map the pages that the device offers; otherwise every doorbell is a trap.
    pub map: bool,
    /// Kind of memory behind rings and buffers.
    pub page: Page,
    /// Least gap between interrupts that the device is asked for, in 256 ns.
    pub itr: u16,
    /// Use a communication status block, which not every device has.
    pub csb: bool,
    /// Queue pairs: 1, or 2 with an 82574L.
    pub queues: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { ring: 256, map: true, page: Page::Small, itr: 0, csb: false, queues: 1 }
    }
}

/// How the device interrupts.
enum Interrupt {
    /// The pin, and the event that tells of its end.
    Pin(Event, Event),
    /// Messages: receive, transmit, the rest.
    Messages(Vec<Event>),
}

/// An e1000 or e1000e and its rings.
pub struct E1000 {
    client: Client,
    window: Option<Window>,
    memory: Arc<Memory>,
    model: Model,
    mac: [u8; 6],
    /// The one that is meant, and the other if there is one.
    pair: Pair,
    other: Option<Pair>,
    interrupt: Interrupt,
    itr: u16,
    block: Option<Block>,
    /// In the middle of [`E1000::service`]: interrupts are masked.
    polling: bool,
}

impl E1000 {
    /// Connects to the device at `path`, finds out what it is and starts it.
    ///
    /// # Errors
    /// No server listens there, it is another device, or it does not behave like this one.
    pub fn open(path: &Path, config: &Config) -> Result<E1000> {
        let mut client = Client::connect(path)?;
        let model = match (client.config16(0)?, client.config16(2)?) {
            (0x8086, 0x100e) => Model::E1000,
            (0x8086, 0x10d3) => Model::E1000e,
            (vendor, device) => {
                return Err(Error::Config(format!("{vendor:04x}:{device:04x} is neither e1000 nor e1000e")))
            }
        };
        client.reset()?;
        client.enable(command::IO | command::MEMORY | command::MASTER)?;
        let mac = eeprom::read_mac(&mut client, model)?;
        if config.csb && client.config16(sidecore_abi::pci::SUBSYSTEM)? != csb::SUBSYSTEM {
            return Err(Error::Missing("a communication status block".to_owned()));
        }
        if !(1..=2).contains(&config.queues) || config.queues == 2 && model == Model::E1000 {
            return Err(Error::Config(format!(
                "{} queues: there is one, and a second on the 82574L",
                config.queues
            )));
        }
        let rings = config.queues * Pair::size(config.ring, BUFFER);
        let memory = Memory::new(rings + 4096 + Block::ROOM, config.page)?;
        client.map_memory(&memory)?;
        let block = if config.csb { Some(Block::new(&memory)?) } else { None };
        let window = if config.map { client.window(BAR)? } else { None };
        let interrupt = match model {
            Model::E1000 => {
                let (trigger, end) = (Event::new()?, Event::new()?);
                client.wire_pin(&trigger, Some(&end))?;
                Interrupt::Pin(trigger, end)
            }
            Model::E1000e => Interrupt::Messages(client.enable_msix()?),
        };
        let pair = Pair::new(0, &memory, config.ring)?;
        let other = if config.queues == 2 { Some(Pair::new(1, &memory, config.ring)?) } else { None };
        let itr = config.itr;
        let mut driver =
            E1000 { client, window, memory, model, mac, pair, other, interrupt, itr, block, polling: false };
        driver.start()?;
        Ok(driver)
    }

    /// Resets the device and sets it up anew; frames under way are lost, and the first queue pair is meant.
    ///
    /// # Errors
    /// The device does not answer, or comes out of the reset with another address than its EEPROM's.
    pub fn start(&mut self) -> Result<()> {
        self.select(0)?;
        self.write(regs::IMC, u32::MAX)?;
        // Before the block begins anew: a device that still polls would take its tail for the old ring's.
        self.write(regs::CTRL, regs::CTRL_RST)?;
        if let Some(block) = &self.block {
            block.restart();
            let address = block.address();
            #[allow(clippy::cast_possible_truncation)] // the low half
            let halves = [(csb::CSBAH, (address >> 32) as u32), (csb::CSBAL, address as u32)];
            for (register, value) in halves {
                store(&mut self.client, self.window.as_ref(), register.into(), value)?;
            }
        }
        let (low, high) = (self.read(regs::RAL0)?, self.read(regs::RAH0)?);
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        if [a, b, c, d, e, f] != self.mac {
            return Err(Error::Device("RAL and RAH do not hold the EEPROM's address".to_owned()));
        }
        self.polling = false;
        for pair in [Some(&mut self.pair), self.other.as_mut()].into_iter().flatten() {
            pair.restart();
            for (register, value) in pair.registers() {
                store(&mut self.client, self.window.as_ref(), register, value)?;
            }
        }
        if let Some(block) = &self.block {
            block.turn_on();
        }
        let mut rctl = regs::RCTL_EN | regs::RCTL_BAM | regs::RCTL_SECRC | regs::RCTL_LPE;
        rctl |= regs::RCTL_PROMISCUOUS;
        if self.model == Model::E1000e {
            self.write(regs::RFCTL, regs::RFCTL_EXTEN)?;
            // Messages 0, 1 and 2, and 3 and 4 of the second pair, each valid; sending one clears its queue's
            // cause.
            let second = self.other.is_some();
            self.write(regs::IVAR, if second { 0x000a_c9b8 } else { 0x000a_0908 })?;
            let causes = regs::RXQ0 | regs::TXQ0;
            self.write(regs::EIAC, if second { causes | causes << 1 } else { causes })?;
            self.write(regs::CTRL_EXT, regs::CTRL_EXT_IAME)?;
            for vector in [0, 1, 3, 4] {
                self.write(regs::EITR + 4 * vector, self.itr.into())?;
            }
            if second {
                self.scale()?;
            }
        }
        self.write(regs::ITR, self.itr.into())?;
        self.write(regs::TCTL, regs::TCTL_EN | regs::TCTL_PSP)?;
        self.write(regs::RCTL, rctl)?;
        self.refill()?;
        if self.other.is_some() {
            self.select(1)?;
            self.refill()?;
            self.select(0)?;
        }
        // Posted writes have been done when a read that follows them is answered.
        self.read(regs::STATUS).map(drop)
    }

    /// Which part it is.
    pub fn model(&self) -> Model {
        self.model
    }

    /// The station's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Whether doorbells are stores to a mapped page.
    pub fn is_exitless(&self) -> bool {
        self.window.is_some()
    }

    /// Accesses so far that would have left a guest.
    pub fn traps(&self) -> Traps {
        self.client.traps()
    }

    /// The memory that rings and buffers lie in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The conversation below, for what this driver does not do.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Whether the link is up.
    pub fn link(&mut self) -> Result<bool> {
        Ok(self.read(regs::STATUS)? & regs::STATUS_LU != 0)
    }

    /// Queues as many of `frames` as the ring has room for and rings the doorbell once; returns how many.
    ///
    /// # Errors
    /// A frame is longer than a buffer, or the doorbell trapped and the device does not answer.
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<usize> {
        self.send_with(frames.len(), |i, buffer| {
            let frame = frames[i];
            if let Some(to) = buffer.get_mut(..frame.len()) {
                to.copy_from_slice(frame);
            }
            frame.len()
        })
    }

    /// Sends `count` frames that `fill` writes into their buffers; it returns each one's length.
    pub fn send_with(
        &mut self,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> Result<usize> {
        self.reclaim();
        // The device has long read the frames that these places held: their lines can come back meanwhile.
        self.pair.tx.prefetch_next(count);
        let mut done = 0;
        while done < count && self.queue_with(|buffer| fill(done, buffer))? {
            done += 1;
        }
        self.doorbell()?;
        Ok(done)
    }

    /// Queues one frame that `fill` writes, without telling the device. False: the ring has no room.
    ///
    /// # Errors
    /// The frame is longer than a buffer.
    #[inline]
    pub fn queue_with(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<bool> {
        if !self.pair.tx.has_room() {
            return Ok(false);
        }
        let at = self.pair.tx.buffers.offset(self.pair.tx.tail);
        // SAFETY: the buffer's descriptor belongs to the driver until the doorbell.
        let len = fill(unsafe { self.memory.bytes_mut(at, BUFFER) });
        if len > BUFFER {
            return Err(Error::Config(format!("a frame of {len} bytes does not fit a buffer of {BUFFER}")));
        }
        self.pair.tx.give(len as u64 | regs::TX_EOP | regs::TX_RS);
        Ok(true)
    }

    /// Tells the device of everything queued, if it does not know.
    ///
    /// # Errors
    /// The doorbell trapped and the device does not answer.
    pub fn doorbell(&mut self) -> Result<()> {
        if self.pair.rung == self.pair.tx.tail {
            return Ok(());
        }
        self.pair.rung = self.pair.tx.tail;
        if self.block.as_ref().is_some_and(|block| !block.set_tx_tail(self.pair.rung)) {
            return Ok(());
        }
        store(&mut self.client, self.window.as_ref(), self.pair.at(TX) + TAIL, self.pair.rung.into())
    }

    /// Takes the descriptors of sent frames back; true if all frames have been sent.
    pub fn reclaim(&mut self) -> bool {
        while self.pair.tx.oldest().is_some_and(|(_, word)| word & regs::TX_DD != 0) {
            self.pair.tx.take();
        }
        self.pair.tx.is_clean()
    }

    /// Whether the device has nothing to send, as far as the driver has looked.
    pub fn is_clean(&self) -> bool {
        self.pair.tx.is_clean()
    }

    /// Shows up to `limit` received frames to `see` and gives their buffers back; returns how many there
    /// were.
    ///
    /// # Errors
    /// The device filled in what cannot be, or the doorbell trapped and the device does not answer.
    pub fn receive(&mut self, limit: usize, mut see: impl FnMut(&[u8])) -> Result<usize> {
        self.pair.rx.look_ahead(limit);
        let mut done = 0;
        while done < limit {
            let Some((place, word)) = self.pair.rx.oldest() else { break };
            // An extended descriptor's word begins with the status, a legacy one's with the length.
            let (status, len) = match self.model {
                Model::E1000e => (word, word >> 32 & 0xffff),
                Model::E1000 => (word >> 32, word & 0xffff),
            };
            if status & regs::RX_DD == 0 {
                break;
            }
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            if status & regs::RX_EOP == 0 || len > BUFFER {
                return Err(Error::Device(format!("a frame of {len} bytes in a buffer of {BUFFER}")));
            }
            // SAFETY: done: the buffer belongs to the driver until it is given again, below.
            see(unsafe { self.memory.bytes_mut(self.pair.rx.buffers.offset(place), len) });
            self.pair.rx.take();
            done += 1;
        }
        if done > 0 {
            self.refill()?;
        }
        Ok(done)
    }

    /// Gives the device every buffer that it does not have.
    fn refill(&mut self) -> Result<()> {
        while self.pair.rx.has_room() {
            self.pair.rx.give(0);
        }
        let from = std::mem::replace(&mut self.pair.offered, self.pair.rx.tail);
        let known = |block: &Block| !block.set_rx_tail(from, self.pair.rx.tail, self.pair.rx.count);
        if self.block.as_ref().is_some_and(known) {
            return Ok(());
        }
        store(&mut self.client, self.window.as_ref(), self.pair.at(RX) + TAIL, self.pair.rx.tail.into())
    }

    /// Asks for an interrupt at the next frame received (and, with the pin, at the next one sent).
    pub fn arm(&mut self) -> Result<()> {
        let causes = match self.model {
            Model::E1000 => regs::RXT0 | regs::TXDW | regs::LSC,
            Model::E1000e => regs::RXQ0 << self.pair.queue | regs::OTHER | regs::LSC,
        };
        self.write(regs::IMS, causes)
    }

    /// Waits for an interrupt, `limit` at most, and acknowledges it. False: none came.
    pub fn wait(&mut self, limit: Duration) -> Result<bool> {
        match &self.interrupt {
            Interrupt::Messages(_) => Ok(self.receive_interrupt().wait(limit)? > 0),
            Interrupt::Pin(trigger, end) => {
                if trigger.wait(limit)? == 0 {
                    return Ok(false);
                }
                // Reading the causes lowers the pin; ending the interrupt before would bring it again.
                self.client.read32(BAR, regs::ICR)?;
                end.signal()?;
                Ok(true)
            }
        }
    }

    /// Whether the last [`service`](E1000::service) was not the end of it.
    pub fn is_polling(&self) -> bool {
        self.polling
    }

    /// Asks for an interrupt at every frame received and sent.
    pub fn arm_all(&mut self) -> Result<()> {
        if let Some(block) = &self.block {
            block.want_receive(true);
        }
        let causes = match self.model {
            Model::E1000 => regs::RXT0 | regs::TXDW,
            Model::E1000e => (regs::RXQ0 | regs::TXQ0) << self.pair.queue,
        };
        self.write(regs::IMS, causes)
    }

    /// If there was an interrupt, does what Linux's drivers do then, register accesses in their order: the
    /// 82540EM reads ICR, writes IMC, reads STATUS, polls, writes IMS, reads STATUS, ends the interrupt; the
    /// 82574L polls and, if it was the receive queue's message, writes IMS. A poll takes sent frames back and
    /// shows at most `budget` received ones to `see`; after a full one the next call goes on without an
    /// interrupt. Returns how many frames were received; `None`: no interrupt.
    ///
    /// # Errors
    /// As [`receive`](E1000::receive).
    pub fn service(&mut self, budget: usize, see: impl FnMut(&[u8])) -> Result<Option<usize>> {
        let mut receive = true;
        if !self.polling {
            match &self.interrupt {
                Interrupt::Pin(trigger, _) => {
                    if trigger.take() == 0 {
                        return Ok(None);
                    }
                    self.read(regs::ICR)?;
                    self.client.post32(BAR, regs::IMC, u32::MAX)?;
                    self.read(regs::STATUS)?;
                }
                Interrupt::Messages(events) => {
                    let [received, sent] = self.pair.messages();
                    receive = events[received].take() > 0;
                    if events[sent].take() == 0 && !receive {
                        return Ok(None);
                    }
                }
            }
        }
        self.reclaim();
        if let Some(block) = &self.block {
            block.has_room();
            block.want_receive(false);
        }
        if !receive {
            return Ok(Some(0));
        }
        let done = self.receive(budget, see)?;
        self.polling = done == budget;
        if !self.polling {
            match self.model {
                Model::E1000 => {
                    self.client.post32(BAR, regs::IMS, regs::RXT0 | regs::TXDW)?;
                    self.read(regs::STATUS)?;
                    self.end_of_interrupt()?;
                }
                Model::E1000e => self.client.post32(BAR, regs::IMS, regs::RXQ0 << self.pair.queue)?,
            }
            if let Some(block) = &self.block {
                block.want_receive(true);
                // What came before the wish was heard is served without an interrupt.
                self.polling = self.has_frames();
            }
        }
        Ok(Some(done))
    }

    fn end_of_interrupt(&mut self) -> Result<()> {
        match &self.interrupt {
            Interrupt::Pin(_, end) if !self.client.end_of_interrupt() => end.signal(),
            _ => Ok(()),
        }
    }

    fn read(&mut self, register: u64) -> Result<u32> {
        self.client.read32(BAR, register)
    }

    fn write(&mut self, register: u64, value: u32) -> Result<()> {
        self.client.write32(BAR, register, value)
    }
}

/// Writes a register of a ring: into the mapped page, or by a posted write that a guest would trap for.
#[inline]
fn store(client: &mut Client, window: Option<&Window>, register: u64, value: u32) -> Result<()> {
    match window {
        Some(window) if window.write32(register, value) => Ok(()),
        _ => client.post32(BAR, register, value),
    }
}

impl E1000 {
    /// Asks for an interrupt when frames have been sent, if the ring has no room; with a status block the
    /// device says nothing of itself.
    pub fn want_room(&mut self) {
        if let Some(block) = self.block.as_ref().filter(|_| !self.pair.tx.has_room()) {
            block.want_room();
            self.reclaim();
        }
    }

    /// Where the device says in the status block that it is: transmit, receive.
    pub fn heads(&self) -> Option<[u32; 2]> {
        self.block.as_ref().map(Block::heads)
    }

    /// The status block, for a driver that lies.
    pub fn status_block(&self) -> Option<&View> {
        self.block.as_ref().map(Block::words)
    }
}
