//! A native driver for the RTL8169 over vfio-user: what Linux's r8169 does, without Linux, in the order in
//! which one would explain it.
//!
//! [`Rtl8169::open`] probes (which chip, its EEPROM), [`Rtl8169::start`] resets it and sets up rings and
//! interrupts, [`Rtl8169::send`] and [`Rtl8169::receive`] move frames in batches of one doorbell. Every
//! doorbell is a trap; [`Rtl8169::traps`] tells how many there were.
//!
//! Limits: a frame is one descriptor; no offloads; frames up to the size of a buffer.

mod eeprom;
#[allow(missing_docs)] // names and numbers out of a manual
mod regs;
mod ring;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sidecore_abi::csb;
use sidecore_abi::pci::{command, SUBSYSTEM};

use self::regs::BAR;
use self::ring::DescriptorRing;
use crate::csb::Block;
use crate::error::{Error, Result};
use crate::memory::{Memory, Page, View};
use crate::vfio::{Client, Event, Traps};

/// Bytes of a buffer.
const BUFFER: usize = 2048;
const FCS: usize = 4;
/// Reads of `CR` until a reset must be over.
const PATIENCE: u32 = 100;

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Config {
    /// Descriptors of each ring: 1 to 1024.
    pub ring: u16,
    /// Kind of memory behind rings and buffers.
    pub page: Page,
    /// Use a communication status block, which not every device has.
    pub csb: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { ring: 256, page: Page::Small, csb: false }
    }
}

/// An RTL8169 and its rings.
pub struct Rtl8169 {
    client: Client,
    memory: Arc<Memory>,
    mac: [u8; 6],
    tx: DescriptorRing,
    rx: DescriptorRing,
    /// Frames were queued that the device was not told of.
    untold: bool,
    /// The pin, and the event that tells of its end.
    pin: (Event, Event),
    block: Option<Block>,
    /// In the middle of [`Rtl8169::service`]: interrupts are masked.
    polling: bool,
}

impl Rtl8169 {
    /// Connects to the device at `path`, finds out what it is and starts it.
    ///
    /// # Errors
    /// No server listens there, it is another device, or it does not behave like this one.
    pub fn open(path: &Path, config: &Config) -> Result<Rtl8169> {
        let mut client = Client::connect(path)?;
        match (client.config16(0)?, client.config16(2)?) {
            (0x10ec, 0x8169) => {}
            (vendor, device) => {
                return Err(Error::Config(format!("{vendor:04x}:{device:04x} is no RTL8169")))
            }
        }
        client.reset()?;
        client.enable(command::IO | command::MEMORY | command::MASTER)?;
        let version = client.read32(BAR, regs::TCR)? & regs::TCR_VERSION;
        if version != regs::TCR_SB {
            return Err(Error::Config(format!("chip version {version:#x} is not known")));
        }
        let mac = eeprom::read_mac(&mut client)?;
        if config.csb && client.config16(SUBSYSTEM)? != csb::SUBSYSTEM {
            return Err(Error::Missing("a communication status block".to_owned()));
        }
        let rings = 2 * DescriptorRing::size(config.ring, BUFFER);
        let memory = Memory::new(rings + 4096 + Block::ROOM, config.page)?;
        client.map_memory(&memory)?;
        let block = if config.csb { Some(Block::new(&memory)?) } else { None };
        let pin = (Event::new()?, Event::new()?);
        client.wire_pin(&pin.0, Some(&pin.1))?;
        let tx = DescriptorRing::new(&memory, config.ring, BUFFER)?;
        let rx = DescriptorRing::new(&memory, config.ring, BUFFER)?;
        let mut driver = Rtl8169 { client, memory, mac, tx, rx, untold: false, pin, block, polling: false };
        driver.start()?;
        Ok(driver)
    }

    /// Resets the device and sets it up anew; frames under way are lost.
    ///
    /// # Errors
    /// The device does not answer, or comes out of the reset with another address than its EEPROM's.
    pub fn start(&mut self) -> Result<()> {
        self.write(regs::IMR, &0u16.to_le_bytes())?;
        self.write(regs::CR, &[regs::CR_RST])?;
        let mut reads = 0;
        while self.read8(regs::CR)? & regs::CR_RST != 0 {
            reads += 1;
            if reads == PATIENCE {
                return Err(Error::Device("the reset does not end".to_owned()));
            }
        }
        let (low, high) = (self.client.read32(BAR, regs::IDR)?, self.client.read32(BAR, regs::IDR + 4)?);
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        if [a, b, c, d, e, f] != self.mac {
            return Err(Error::Device("IDR does not hold the EEPROM's address".to_owned()));
        }
        (self.polling, self.untold) = (false, false);
        if let Some(block) = &self.block {
            // Before the block begins anew the reset has made the device forget it.
            block.restart();
            let address = block.address();
            #[allow(clippy::cast_possible_truncation)] // the halves
            for (at, half) in [(regs::CSBAH, (address >> 32) as u32), (regs::CSBAL, address as u32)] {
                self.client.write32(BAR, at, half)?;
            }
        }
        self.tx.restart();
        self.rx.restart();
        while self.rx.room().is_some() {
            self.rx.give(BUFFER as u64);
        }
        for (register, base) in [(regs::TNPDS, self.tx.address()), (regs::RDSAR, self.rx.address())] {
            #[allow(clippy::cast_possible_truncation)] // the halves
            for (at, half) in [(4, (base >> 32) as u32), (0, base as u32)] {
                self.client.write32(BAR, register + at, half)?;
            }
        }
        if let Some(block) = &self.block {
            block.turn_on();
        }
        self.write(regs::RMS, &0x3fffu16.to_le_bytes())?;
        self.write(regs::CPCR, &0u32.to_le_bytes())?;
        self.write(regs::CR, &[regs::CR_RE | regs::CR_TE])?;
        self.client.write32(BAR, regs::TCR, regs::TCR_BURST)?;
        // Both halves of the hash table: every group.
        self.client.write32(BAR, 0x08, u32::MAX)?;
        self.client.write32(BAR, 0x0c, u32::MAX)?;
        self.client.write32(BAR, regs::RCR, regs::RCR_ALL)
    }

    /// The station's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
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

    /// The descriptors of the transmit and the receive ring, for a driver that lies.
    pub fn descriptors(&self) -> [&View; 2] {
        [self.tx.words(), self.rx.words()]
    }

    /// Asks for an interrupt when frames have been sent, if the ring has no room; with a status block the
    /// device says nothing of itself.
    pub fn want_room(&mut self) {
        if let Some(block) = self.block.as_ref().filter(|_| self.tx.room().is_none()) {
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

    /// Register `register` of the PHY.
    ///
    /// # Errors
    /// The device does not answer, or not at once.
    pub fn phy(&mut self, register: u32) -> Result<u16> {
        self.client.write32(BAR, regs::PHYAR, register << 16)?;
        let value = self.client.read32(BAR, regs::PHYAR)?;
        if value >> 31 == 0 {
            return Err(Error::Device("the PHY does not answer".to_owned()));
        }
        #[allow(clippy::cast_possible_truncation)] // the data field
        Ok(value as u16)
    }

    /// Whether the link is up.
    ///
    /// # Errors
    /// As for [`phy`](Rtl8169::phy).
    pub fn link(&mut self) -> Result<bool> {
        Ok(self.phy(1)? & 1 << 2 != 0)
    }

    /// Queues as many of `frames` as the ring has room for and rings the doorbell once; returns how many.
    ///
    /// # Errors
    /// A frame is longer than a buffer, or the device does not answer.
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<usize> {
        self.send_with(frames.len(), |i, buffer| {
            let frame = frames[i];
            // One that is too long is refused by its length.
            if let Some(to) = buffer.get_mut(..frame.len()) {
                to.copy_from_slice(frame);
            }
            frame.len()
        })
    }

    /// Sends `count` frames that `fill` writes into their buffers; it returns each one's length.
    ///
    /// # Errors
    /// As [`send`](Rtl8169::send).
    pub fn send_with(
        &mut self,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> Result<usize> {
        self.reclaim();
        let mut done = 0;
        while done < count && self.queue_with(|buffer| fill(done, buffer))? {
            done += 1;
        }
        self.doorbell()?;
        Ok(done)
    }

    /// Queues one frame that `fill` writes, without telling the device, which may find it all the same.
    /// False: the ring has no room.
    ///
    /// # Errors
    /// The frame is longer than a buffer.
    pub fn queue_with(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<bool> {
        let Some(place) = self.tx.room() else { return Ok(false) };
        // SAFETY: the buffer's descriptor belongs to the driver until it is given, below.
        let len = fill(unsafe { self.memory.bytes_mut(self.tx.buffers.offset(place), BUFFER) });
        if len > BUFFER {
            return Err(Error::Config(format!("a frame of {len} bytes, in buffers of {BUFFER}")));
        }
        self.tx.give(len as u64 | regs::FS | regs::LS);
        self.untold = true;
        Ok(true)
    }

    /// Tells the device of everything queued, if it does not know.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn doorbell(&mut self) -> Result<()> {
        if std::mem::take(&mut self.untold) {
            if self.block.as_ref().is_some_and(|block| !block.set_tx_tail(self.tx.tail())) {
                return Ok(());
            }
            self.client.post(BAR, regs::TPPOLL, &[regs::NPQ])?;
        }
        Ok(())
    }

    /// Takes the descriptors of sent frames back; true if all frames have been sent.
    pub fn reclaim(&mut self) -> bool {
        while self.tx.oldest().is_some() {
            self.tx.take();
        }
        self.tx.is_clean()
    }

    /// Whether the device has nothing to send, as far as the driver has looked.
    pub fn is_clean(&self) -> bool {
        self.tx.is_clean()
    }

    /// Whether the last [`service`](Rtl8169::service) was not the end of it.
    pub fn is_polling(&self) -> bool {
        self.polling
    }

    /// Shows up to `limit` received frames to `see` and gives their buffers back; returns how many there
    /// were.
    ///
    /// # Errors
    /// The device filled in what cannot be.
    pub fn receive(&mut self, limit: usize, mut see: impl FnMut(&[u8])) -> Result<usize> {
        let mut done = 0;
        while done < limit {
            let Some((place, word)) = self.rx.oldest() else { break };
            let len = usize::try_from(word & regs::RX_LEN).unwrap_or(usize::MAX);
            let whole = word & (regs::FS | regs::LS) == regs::FS | regs::LS;
            if !whole || !(FCS..=BUFFER).contains(&len) {
                return Err(Error::Device(format!("a frame of {len} bytes in a buffer of {BUFFER}")));
            }
            // SAFETY: done: the buffer belongs to the driver until it is given again, below.
            see(unsafe { self.memory.bytes_mut(self.rx.buffers.offset(place), len - FCS) });
            self.rx.take();
            self.rx.give(BUFFER as u64);
            done += 1;
        }
        Ok(done)
    }

    /// Asks for an interrupt at every frame received and sent.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn arm_all(&mut self) -> Result<()> {
        if let Some(block) = &self.block {
            block.want_receive(true);
        }
        self.set_mask(regs::ROK | regs::TOK | regs::LINK)
    }

    fn set_mask(&mut self, mask: u16) -> Result<()> {
        self.client.post(BAR, regs::IMR, &mask.to_le_bytes())
    }

    /// Waits for an interrupt, `limit` at most, and acknowledges it. False: none came.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn wait(&mut self, limit: Duration) -> Result<bool> {
        if self.pin.0.wait(limit)? == 0 {
            return Ok(false);
        }
        self.acknowledge()?;
        self.end_of_interrupt()?;
        Ok(true)
    }

    /// If there was an interrupt, does what Linux's driver does then, register accesses in its order: it
    /// reads `ISR`, clears `IMR`, acknowledges, polls, and writes `IMR`. A poll takes sent frames back and
    /// shows at most `budget` received ones to `see`; after a full one the next call goes on without an
    /// interrupt. Returns how many frames were received; `None`: no interrupt.
    ///
    /// # Errors
    /// As [`receive`](Rtl8169::receive).
    pub fn service(&mut self, budget: usize, see: impl FnMut(&[u8])) -> Result<Option<usize>> {
        if !self.polling {
            if self.pin.0.take() == 0 {
                return Ok(None);
            }
            let causes = self.read16(regs::ISR)?;
            self.set_mask(0)?;
            self.client.post(BAR, regs::ISR, &causes.to_le_bytes())?;
            self.end_of_interrupt()?;
        }
        self.reclaim();
        if let Some(block) = &self.block {
            block.has_room();
            block.want_receive(false);
        }
        let done = self.receive(budget, see)?;
        self.polling = done == budget;
        if !self.polling {
            self.arm_all()?;
            // What came before the wish was heard is served without an interrupt.
            self.polling = self.block.is_some() && self.rx.oldest().is_some();
        }
        Ok(Some(done))
    }

    /// Clears all causes.
    fn acknowledge(&mut self) -> Result<()> {
        let causes = self.read16(regs::ISR)?;
        self.write(regs::ISR, &causes.to_le_bytes())
    }

    fn end_of_interrupt(&mut self) -> Result<()> {
        if self.client.end_of_interrupt() {
            Ok(())
        } else {
            self.pin.1.signal()
        }
    }

    fn read8(&mut self, register: u64) -> Result<u8> {
        let mut byte = [0];
        self.client.read(BAR, register, &mut byte)?;
        Ok(byte[0])
    }

    fn read16(&mut self, register: u64) -> Result<u16> {
        let mut bytes = [0; 2];
        self.client.read(BAR, register, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn write(&mut self, register: u64, bytes: &[u8]) -> Result<()> {
        self.client.write(BAR, register, bytes)
    }
}
