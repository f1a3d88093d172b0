//! The rings of a native program: those on which it sends, and those on which it receives.
//!
//! The way to wake a client ([`wake_pipe`]) is a pipe. Not an eventfd: its two ends are one open file, so a
//! client could make it blocking, fill its counter, and with that stop the I/O core that writes to it. A
//! pipe's ends are two, and ours stays as we made it. A full pipe is readable already, so a write that fails
//! loses nothing. When the client's process ends, writes fail too; when ours does, the client's end says so.
//!
//! A write does not wait, but it walks the list of waiters at the other end, and the client makes that as
//! long as it likes. So it is timed as interrupts of VMMs are (`mem::Signal`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use rustix::pipe::{pipe_with, PipeFlags};

use crate::mem::{Overrun, Signal};
use crate::packet::{Batch, Offloads};
use crate::port::{DropReason, EgressQueue, IngressQueue, Outcome, Port, Room, Tally};
use crate::ring::{ClientRx, ClientTx, Tickets};
use crate::slots::{Drain, Fill, Header};

/// What a program that has a header before its frames may ask of us and is given: netmap's headers know
/// these.
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
    pub fn header(&self) -> u32 {
        self.header.load(Ordering::Relaxed)
    }

    /// Whether the operator has put the link down: frames are dropped in both directions.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Puts the link up or down, from the next batch on.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Frames of `port` have a header of `bytes` bytes from the next batch on; false if there is no such
    /// header.
    pub fn set_header(&self, bytes: u32, port: &Port) -> bool {
        if !matches!(bytes, 0 | 10 | 12) {
            return false;
        }
        self.header.store(bytes, Ordering::Relaxed);
        port.set_accepts(if bytes == 0 { Offloads::NONE } else { OFFLOADS });
        true
    }
}

/// A ring on which the client sends.
pub struct RingIngress {
    pub(super) slots: Drain<Tickets>,
    settings: Arc<RingPortSettings>,
    kick: OwnedFd,
    wake: Signal,
}

impl RingIngress {
    /// The queue of `ring`, which wakes the client by `wake`.
    ///
    /// # Errors
    /// What the system says of making an eventfd.
    pub(super) fn new(
        ring: ClientTx,
        settings: Arc<RingPortSettings>,
        wake: Signal,
    ) -> io::Result<RingIngress> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(RingIngress { slots: Drain::new(ring), settings, kick, wake })
    }

    /// The eventfd by which the client kicks.
    pub(super) fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }
}

impl IngressQueue for RingIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let header = Header { bytes: self.settings.header(), offloads: OFFLOADS };
        self.slots.fetch(header, batch, tally);
        if self.settings.is_down() && !batch.is_empty() {
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BATCH")]
            tally.drops.add(DropReason::LinkDown, batch.len() as u32);
            batch.clear();
        }
    }

    fn has_frames(&mut self) -> bool {
        self.slots.ring.look() > 0
    }

    fn release(&mut self, tally: &mut Tally) {
        tally.occasions += 1;
        if self.slots.release() {
            self.wake.raise();
            tally.interrupts += 1;
        }
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        self.slots.ring.want_kicks(on)
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }
}

/// A ring on which the client receives.
pub struct RingEgress {
    pub(super) slots: Fill<Tickets>,
    settings: Arc<RingPortSettings>,
    wake: Signal,
}

impl RingEgress {
    /// The queue of `ring`, which wakes the client by `wake`.
    pub(super) fn new(ring: ClientRx, settings: Arc<RingPortSettings>, wake: Signal) -> RingEgress {
        RingEgress { slots: Fill::new(ring), settings, wake }
    }
}

impl EgressQueue for RingEgress {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        if self.settings.is_down() {
            return outcome.dropped_all(picks, DropReason::LinkDown);
        }
        if self.slots.send(batch, picks, self.settings.header(), outcome) {
            self.wake.raise();
            outcome.interrupts += 1;
        }
    }

    fn is_full(&mut self) -> bool {
        !self.settings.is_down() && self.slots.room().free == 0
    }

    fn room(&mut self) -> Option<Room> {
        (!self.settings.is_down()).then(|| self.slots.room())
    }
}

/// A pipe: our end, of the port that has this overrun, and the client's.
pub(super) fn wake_pipe(overrun: &Overrun) -> io::Result<(Signal, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let signal = Signal::new(overrun);
    signal.set_pipe(write);
    Ok((signal, read))
}
