//! A native program as an end of a pipe between ports (`slots::pipe`): its queues carry no frames, they move
//! slots.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};

use super::queues::{wake_pipe, RingPortSettings};
use crate::mem::{Act, Signal};
use crate::observe::account::Outcome;
use crate::observe::PortCounters;
use crate::packet::Batch;
use crate::port::{DropReason, EgressQueue, IngressQueue, Port, Tally};
use crate::ring::RingStats;
use crate::slots::pipe::{End, Far, Receiving, Sending};
use crate::util::fault::Fault;

/// While slots wait for the other end, which does not tell when it releases some, the core looks so often:
/// for a while after the last frame, and later.
const BUSY: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(10);

/// Both directions of one pair of rings, and what its program needs for them.
pub struct PipePair {
    /// Into the pipe.
    pub ingress: PipeIngress,
    /// Out of it.
    pub egress: PipeEgress,
    /// The pipe that tells the program of slots it may send with.
    pub wake_tx: OwnedFd,
    /// The pipe that tells the program of slots it received.
    pub wake_rx: OwnedFd,
}

impl PipePair {
    /// The halves of ring `ring` of `end` for the program behind `port`, which begins where they are.
    ///
    /// # Errors
    /// There is no such ring; or what the system says of making descriptors.
    pub fn new(
        end: &End,
        ring: usize,
        port: &Arc<Port>,
        settings: &Arc<RingPortSettings>,
    ) -> io::Result<PipePair> {
        let (sending, receiving) =
            end.sending(ring).zip(end.receiving(ring)).ok_or(io::ErrorKind::NotFound)?;
        let (mut sending, mut receiving) = (sending, receiving);
        let (tx, wake_tx) = wake_pipe(&port.overrun)?;
        let (rx, wake_rx) = wake_pipe(&port.overrun)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        sending.set_program();
        receiving.set_program();
        let program = Arc::new(ProgramEnd { port: Arc::clone(port), wake: rx });
        let ingress = PipeIngress {
            sending,
            port: Arc::clone(port),
            settings: Arc::clone(settings),
            kick,
            wake: tx,
            out: None,
            stopped: false,
            last_work: Instant::now(),
            worked: false,
        };
        Ok(PipePair { ingress, egress: PipeEgress { receiving, program }, wake_tx, wake_rx })
    }

    /// What went wrong on the two so far: ingress, egress.
    pub fn stats(&self) -> (Arc<RingStats>, Arc<RingStats>) {
        (self.ingress.sending.stats(), self.egress.receiving.stats())
    }

    /// The eventfd by which the program kicks.
    pub fn kick(&self) -> BorrowedFd<'_> {
        self.ingress.kick.as_fd()
    }
}

/// A ring on which the program sends.
pub struct PipeIngress {
    sending: Sending,
    port: Arc<Port>,
    settings: Arc<RingPortSettings>,
    kick: OwnedFd,
    wake: Signal,
    /// What the last fetch brought to the other end.
    out: Option<(PortCounters, Outcome)>,
    /// A fault was found: the program has to attach again.
    stopped: bool,
    last_work: Instant,
    worked: bool,
}

impl IngressQueue for PipeIngress {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        // With the link down nothing is lost: it waits.
        if self.stopped || self.settings.is_down() {
            return;
        }
        let moved = self.port.overrun.timed(Act::Touch, || self.sending.pass(batch.room()));
        batch.passed(moved.frames);
        tally.frames += moved.frames as u64;
        tally.bytes += moved.bytes;
        self.worked |= moved.frames > 0;
        if moved.bad > 0 {
            tally.drops.add(DropReason::BadBuffer, moved.bad);
        }
        if moved.room {
            self.wake.raise();
            tally.interrupts += 1;
        }
        self.out = moved.out;
        if self.sending.is_lost() {
            self.stopped = true;
            self.port.fault.set(Fault::BadHead);
        }
    }

    fn has_frames(&mut self) -> bool {
        !self.stopped && !self.settings.is_down() && self.sending.has_news()
    }

    fn passed(&mut self) -> Option<(PortCounters, Outcome)> {
        self.out.take()
    }

    fn release(&mut self, tally: &mut Tally) {
        tally.occasions += 1;
    }

    fn want_kicks(&mut self, on: bool) -> bool {
        if std::mem::take(&mut self.worked) {
            self.last_work = Instant::now();
        }
        !self.stopped && self.sending.want_kicks(on) && !self.settings.is_down()
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let waits = !self.stopped && self.sending.waits();
        waits.then(|| if self.last_work.elapsed() < BUSY { NAP } else { LONG_NAP })
    }
}

/// A ring on which the program receives.
pub struct PipeEgress {
    receiving: Receiving,
    program: Arc<ProgramEnd>,
}

impl PipeEgress {
    /// The other end may use it from now on.
    pub fn show(&mut self) {
        self.receiving.show(Arc::clone(&self.program) as Arc<dyn Far>);
    }
}

impl EgressQueue for PipeEgress {
    fn send(&mut self, _: &Batch, picks: &[u16], outcome: &mut Outcome) {
        // Nothing is joined to a pipe's end.
        outcome.dropped_all(picks, DropReason::LinkDown);
    }

    /// The other end uses it no more.
    fn unplugged(&mut self) {
        self.receiving.hide();
    }
}

/// The program, as the other end tells it of frames.
struct ProgramEnd {
    port: Arc<Port>,
    wake: Signal,
}

impl Far for ProgramEnd {
    fn port(&self) -> &Port {
        &self.port
    }

    fn raise(&self) -> u64 {
        self.wake.raise();
        1
    }
}
