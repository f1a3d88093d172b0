//! What a router asks of a network card's driver, and the drivers that do it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::e1000::E1000;
use crate::error::Result;
use crate::load::Lane;

/// A network card with its driver, as a kernel that polls under load has it.
pub trait Nic: Send {
    /// Shows at most `limit` frames that have come to `see`, and offers their buffers again; how many.
    ///
    /// # Errors
    /// The device is gone, or says what cannot be.
    fn receive(&mut self, limit: u16, see: impl FnMut(&[u8])) -> Result<u16>;

    /// Has `write` make a frame in its buffer, which tells its length. False: the ring has no room, and
    /// nothing was made.
    ///
    /// # Errors
    /// The device says what cannot be.
    fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> Result<bool>;

    /// Sends all frames that were made.
    ///
    /// # Errors
    /// The device is gone.
    fn publish(&mut self) -> Result<()>;

    /// Whether frames have come.
    ///
    /// # Errors
    /// The device says what cannot be.
    fn has_frames(&mut self) -> Result<bool>;

    /// Asks for an interrupt at the next frame. True: some have come meanwhile, for which there may be none.
    ///
    /// # Errors
    /// The device is gone.
    fn arm(&mut self) -> Result<bool>;

    /// Takes the interrupt, if there was one, and asks for no further ones. True: there was one.
    ///
    /// # Errors
    /// The device is gone.
    fn disarm(&mut self) -> Result<bool>;

    /// Readable when the device has interrupted.
    fn interrupt(&self) -> BorrowedFd<'_>;
}

impl Nic for Lane {
    #[inline]
    fn receive(&mut self, limit: u16, see: impl FnMut(&[u8])) -> Result<u16> {
        Lane::receive(self, limit, see)
    }

    #[inline]
    fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> Result<bool> {
        Lane::put(self, write)
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        Lane::publish(self)
    }

    #[inline]
    fn has_frames(&mut self) -> Result<bool> {
        Lane::has_frames(self)
    }

    fn arm(&mut self) -> Result<bool> {
        self.set_interrupts(true)
    }

    fn disarm(&mut self) -> Result<bool> {
        self.set_interrupts(false)?;
        Ok(rustix::io::read(self.call(), &mut [0; 8]).is_ok())
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.call().as_fd()
    }
}

impl Nic for E1000 {
    fn receive(&mut self, limit: u16, see: impl FnMut(&[u8])) -> Result<u16> {
        let frames = E1000::receive(self, limit.into(), see)?;
        Ok(u16::try_from(frames).unwrap_or(u16::MAX))
    }

    fn put(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> Result<bool> {
        if !self.has_room() {
            self.reclaim();
        }
        self.queue_with(write)
    }

    fn publish(&mut self) -> Result<()> {
        self.doorbell()
    }

    fn has_frames(&mut self) -> Result<bool> {
        Ok(E1000::has_frames(self))
    }

    fn arm(&mut self) -> Result<bool> {
        // Causes that came while they were masked interrupt now.
        E1000::arm(self)?;
        Ok(false)
    }

    fn disarm(&mut self) -> Result<bool> {
        // Its driver has the device mask a cause that it has told of.
        self.wait(Duration::ZERO)
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.receive_interrupt().as_fd()
    }
}
