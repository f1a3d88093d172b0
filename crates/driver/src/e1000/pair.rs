//! A queue pair: a transmit and a receive ring; and what spreads flows over two of them.

use std::sync::Arc;

use super::regs::{self, BAH, BAL, HEAD, LEN, RX, SECOND, TAIL, TX};
use super::ring::DescriptorRing;
use super::{Interrupt, BUFFER, E1000};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::vfio::Event;

/// The key of receive side scaling: that of Microsoft's verification suite, so that hashes can be looked up.
pub const RSS_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// One of the 82574L's two, or the 82540EM's only one.
pub(super) struct Pair {
    pub(super) queue: usize,
    pub(super) tx: DescriptorRing,
    pub(super) rx: DescriptorRing,
    /// The tails that the device knows: transmit, receive.
    pub(super) rung: u16,
    pub(super) offered: u16,
}

impl Pair {
    pub(super) fn new(queue: usize, memory: &Arc<Memory>, count: u16) -> Result<Pair> {
        let (tx, rx) =
            (DescriptorRing::new(memory, count, BUFFER)?, DescriptorRing::new(memory, count, BUFFER)?);
        Ok(Pair { queue, tx, rx, rung: 0, offered: 0 })
    }

    /// Bytes of memory that one takes.
    pub(super) fn size(count: u16, buffer: usize) -> usize {
        2 * DescriptorRing::size(count, buffer)
    }

    pub(super) fn restart(&mut self) {
        self.tx.restart();
        self.rx.restart();
        (self.rung, self.offered) = (0, 0);
    }

    /// Where the registers of its ring in the direction of `first` begin.
    #[inline]
    pub(super) fn at(&self, first: u64) -> u64 {
        first + if self.queue == 0 { 0 } else { SECOND }
    }

    /// The messages that its queues send: receive, transmit.
    pub(super) fn messages(&self) -> [usize; 2] {
        if self.queue == 0 {
            [0, 1]
        } else {
            [3, 4]
        }
    }

    /// The registers that describe its rings, and their values.
    pub(super) fn registers(&self) -> impl Iterator<Item = (u64, u32)> + use<> {
        let rings = [(self.at(TX), &self.tx), (self.at(RX), &self.rx)];
        let words = rings.map(|(at, ring)| {
            let address = ring.address();
            #[allow(clippy::cast_possible_truncation)] // the low half
            let low = address as u32;
            let words =
                [(BAL, low), (BAH, (address >> 32) as u32), (LEN, ring.bytes()), (HEAD, 0), (TAIL, 0)];
            words.map(|(register, value)| (at + register, value))
        });
        words.into_iter().flatten()
    }
}

impl E1000 {
    /// From now on calls mean queue pair `queue`: what is sent, received, armed and waited for.
    ///
    /// # Errors
    /// It was not asked for.
    pub fn select(&mut self, queue: usize) -> Result<()> {
        if self.pair.queue == queue {
            return Ok(());
        }
        match &mut self.other {
            Some(other) if other.queue == queue => {
                std::mem::swap(&mut self.pair, other);
                Ok(())
            }
            _ => Err(Error::Config(format!("queue {queue} of a driver with one"))),
        }
    }

    /// Whether its transmit ring has room, as far as the driver has looked.
    pub fn has_room(&self) -> bool {
        self.pair.tx.has_room()
    }

    /// Whether a frame has come that was not received yet.
    pub fn has_frames(&self) -> bool {
        self.pair.rx.oldest().is_some_and(|(_, word)| word != 0)
    }

    /// What tells of received frames: a message of its own, or the pin.
    pub fn receive_interrupt(&self) -> &Event {
        match &self.interrupt {
            Interrupt::Messages(events) => &events[self.pair.messages()[0]],
            Interrupt::Pin(trigger, _) => trigger,
        }
    }

    /// Receive side scaling: every second entry of the table is the second queue's.
    pub(super) fn scale(&mut self) -> Result<()> {
        for (at, bytes) in (0..).step_by(4).zip(RSS_KEY.chunks_exact(4)) {
            let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            self.write(regs::RSSRK + at, word)?;
        }
        for at in (0..128).step_by(4) {
            self.write(regs::RETA + at, 0x8000_8000)?;
        }
        let rxcsum = self.read(regs::RXCSUM)?;
        self.write(regs::RXCSUM, rxcsum | regs::RXCSUM_PCSD)?;
        self.write(regs::MRQC, regs::MRQC_RSS)
    }
}
