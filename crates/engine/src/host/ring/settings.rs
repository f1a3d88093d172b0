//! What the queues of a ring port have in common: settings, and the way to wake the program.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::pipe::{pipe_with, PipeFlags};

use crate::mem::{Overrun, Signal};
use crate::port::Port;
use crate::wire::Offloads;

/// What a program that has a header before its frames may ask of us and is given: netmap's headers know these.
pub(super) const OFFLOADS: Offloads = Offloads::from_bits(
    Offloads::CSUM.bits()
        | Offloads::TSO4.bits()
        | Offloads::TSO6.bits()
        | Offloads::ECN.bits()
        | Offloads::UFO.bits(),
);

/// What all queues of a port have in common.
#[derive(Debug, Default)]
pub struct RingPortSettings {
    header: AtomicU32,
    down: AtomicBool,
}

impl RingPortSettings {
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12.
    #[inline]
    pub fn header(&self) -> u32 {
        self.header.load(Ordering::Relaxed)
    }

    /// Whether the operator has put the link down: frames are dropped in both directions.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Puts the link up or down, from the next batch on.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Frames of `port` have a header of `bytes` bytes from the next batch on; false if there is no such header.
    pub fn set_header(&self, bytes: u32, port: &Port) -> bool {
        if !matches!(bytes, 0 | 10 | 12) {
            return false;
        }
        self.header.store(bytes, Ordering::Relaxed);
        port.set_accepts(if bytes == 0 { Offloads::NONE } else { OFFLOADS });
        true
    }
}

/// The way to wake a client: a pipe, of which this is our end.
///
/// Not an eventfd: its two ends are one open file, so a client could make it blocking, fill its counter, and
/// with that stop the I/O core that writes to it. A pipe's ends are two, and ours stays as we made it. A full
/// pipe is readable already, so a write that fails loses nothing. When the client's process ends, writes
/// fail too; when ours does, the client's end says so.
///
/// A write does not wait, but it walks the list of waiters at the other end, and the client makes that as long as it
/// likes. So it is timed as interrupts of VMMs are (`mem::Signal`).
pub(super) struct Wake(Signal);

impl Wake {
    /// A pipe: our end, of the port that has this overrun, and the client's.
    pub(super) fn new(overrun: &Overrun) -> io::Result<(Wake, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let signal = Signal::new(overrun);
        signal.set_pipe(write);
        Ok((Wake(signal), read))
    }

    /// Wakes no client.
    pub(super) fn nobody() -> Wake {
        Wake(Signal::default())
    }

    /// Wakes the client.
    pub(super) fn wake(&self) {
        self.0.raise();
    }
}
