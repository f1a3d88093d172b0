//! Register accesses without messages, for a client in the device's own process.
//!
//! A benchmark that says what a trap costs must not pay for a socket and two wake-ups as well. Everything
//! else of the conversation stays as it is.

use std::fmt;

/// The device, reached directly. A call stands for one trapped access.
pub trait Shortcut: Send {
    /// Reads a region.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]);

    /// Writes a region; what the guest's write would have done has been done when this returns.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);

    /// The guest ends an interrupt of the pin.
    fn end_of_interrupt(&mut self);
}

impl fmt::Debug for dyn Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Shortcut")
    }
}
