//! A router in a guest: what a kernel does that forwards between two network cards, without the kernel.
//!
//! Theory of operation. A card interrupts when frames come. From then on the router polls it (NAPI, as Linux
//! calls it): a *turn* polls each card that has frames, in each poll at most a *budget* of them. Each frame
//! takes the time that a network stack would ([`Config::cost_ns`]), loses one hop of its life, gets new
//! station addresses, and is put into the other card's ring; behind the poll they are sent together. A poll
//! that has not used its budget up asks for interrupts again, and when no card has frames left the router
//! sleeps, as an idle guest's processor does.
//!
//! So it has the two phases of a virtual router under load: what it receives it routes first, and a frame
//! that finds the other ring full then is dropped *after* it has cost its time ([`Counts::no_room`]). If
//! nothing else takes frames out of that ring meanwhile, because the thread that does has a lower priority,
//! or shares its processor, more load means less throughput.
//!
//! [`GuestRouter::start`] gives it a thread, the guest's virtual processor (vCPU): with a number, so that it
//! can be given a scheduling class and processors, and a name by which programs know a vCPU. Where it has no
//! thread of its own a caller makes [`GuestRouter::turn`]s of it.

mod header;
mod nic;
mod vcpu;
mod work;

pub use header::Hop;
pub use nic::Nic;
pub use vcpu::Vcpu;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use self::work::Work;
use crate::error::{Error, Result};

/// Frames of a poll, as Linux has it (`net.core.dev_weight`).
pub const BUDGET: u16 = 64;

/// How a router forwards.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What frames get that leave by either port.
    pub hops: [Hop; 2],
    /// Nanoseconds of a processor's time for each frame, beside what the cards' drivers take.
    pub cost_ns: f64,
    /// Frames of a poll at most.
    pub budget: u16,
}

/// What a router did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that came.
    pub received: u64,
    /// Frames that went out at the other port.
    pub forwarded: u64,
    /// Frames without a way: for other stations, no IPv4, or at the end of their life.
    pub unroutable: u64,
    /// Frames that were routed, and found the other port's ring full.
    pub no_room: u64,
    /// Polls that used their budget up.
    pub full_polls: u64,
    /// Other polls.
    pub short_polls: u64,
    /// Interrupts.
    pub interrupts: u64,
}

impl Counts {
    /// Frames that came and did not go out.
    pub fn dropped(&self) -> u64 {
        self.unroutable + self.no_room
    }

    /// What came since `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            received: self.received - before.received,
            forwarded: self.forwarded - before.forwarded,
            unroutable: self.unroutable - before.unroutable,
            no_room: self.no_room - before.no_room,
            full_polls: self.full_polls - before.full_polls,
            short_polls: self.short_polls - before.short_polls,
            interrupts: self.interrupts - before.interrupts,
        }
    }

    fn fields(&self) -> [u64; FIELDS] {
        let &Counts { received, forwarded, unroutable, no_room, full_polls, short_polls, interrupts } = self;
        [received, forwarded, unroutable, no_room, full_polls, short_polls, interrupts]
    }
}

const FIELDS: usize = 7;

/// [`Counts`] that other threads can read: those at the end of the last turn.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; FIELDS]);

impl Counters {
    fn store(&self, counts: &Counts) {
        for (field, value) in self.0.iter().zip(counts.fields()) {
            field.store(value, Ordering::Relaxed);
        }
    }

    /// What the router did so far.
    pub fn load(&self) -> Counts {
        let [received, forwarded, unroutable, no_room, full_polls, short_polls, interrupts] =
            self.0.each_ref().map(|field| field.load(Ordering::Relaxed));
        Counts { received, forwarded, unroutable, no_room, full_polls, short_polls, interrupts }
    }
}

/// A router between two cards.
#[derive(Debug)]
pub struct GuestRouter<N> {
    ports: [N; 2],
    /// Ports that are polled; the others interrupt.
    polled: [bool; 2],
    hops: [Hop; 2],
    work: Work,
    budget: u16,
    counts: Counts,
    counters: Arc<Counters>,
}

impl<N: Nic> GuestRouter<N> {
    /// Between these cards.
    ///
    /// # Errors
    /// A budget of no frames.
    pub fn new(ports: [N; 2], config: &Config) -> Result<GuestRouter<N>> {
        if config.budget == 0 {
            return Err(Error::Config("a router that polls 0 frames at a time".into()));
        }
        Ok(GuestRouter {
            ports,
            polled: [true; 2],
            hops: config.hops,
            work: Work::of_ns(config.cost_ns),
            budget: config.budget,
            counts: Counts::default(),
            counters: Arc::default(),
        })
    }

    /// Its counters, for other threads.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Polls each port that has frames once. False: none had, and all interrupt when some come.
    ///
    /// # Errors
    /// A device is gone, or says what cannot be.
    pub fn turn(&mut self) -> Result<bool> {
        for port in 0..2 {
            // An interrupt of a card would come between two frames of the other one; it is seen here behind
            // the poll.
            if !self.polled[port] && self.ports[port].has_frames()? {
                self.interrupted(port)?;
            }
            if self.polled[port] {
                self.poll(port)?;
            }
        }
        self.counters.store(&self.counts);
        Ok(self.polled != [false; 2])
    }

    /// Sleeps until a port interrupts, `limit` at most.
    ///
    /// # Errors
    /// The system says why not.
    pub fn sleep(&mut self, limit: Duration) -> Result<()> {
        let limit = Timespec::try_from(limit).map_err(|_| Error::Config("timeout out of range".into()))?;
        let mut events =
            self.ports.each_ref().map(|port| PollFd::from_borrowed_fd(port.interrupt(), PollFlags::IN));
        match poll(&mut events, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for an interrupt", error)),
        }
        let came = events.each_ref().map(|event| !event.revents().is_empty());
        (0..2).filter(|port| came[*port]).try_for_each(|port| self.interrupted(port))
    }

    fn interrupted(&mut self, port: usize) -> Result<()> {
        self.counts.interrupts += u64::from(self.ports[port].disarm()?);
        self.polled[port] = true;
        Ok(())
    }

    /// Routes at most a budget of the frames that have come to `port`, and sends them.
    #[inline]
    fn poll(&mut self, port: usize) -> Result<()> {
        let [a, b] = &mut self.ports;
        let (from, to) = if port == 0 { (a, b) } else { (b, a) };
        let (work, own, hop) = (self.work, self.hops[port].from, &self.hops[1 - port]);
        let counts = &mut self.counts;
        let mut failed = Ok(());
        let frames = from.receive(self.budget, |frame| {
            work.spend();
            if !header::is_routable(frame, own) {
                counts.unroutable += 1;
                return;
            }
            let sent = to.put(|buffer| {
                let Some(copy) = buffer.get_mut(..frame.len()) else { return 0 };
                copy.copy_from_slice(frame);
                header::rewrite(copy, hop);
                frame.len()
            });
            match sent {
                Ok(true) => counts.forwarded += 1,
                Ok(false) => counts.no_room += 1,
                Err(error) => failed = Err(error),
            }
        })?;
        failed?;
        to.publish()?;
        counts.received += u64::from(frames);
        if frames == self.budget {
            counts.full_polls += 1;
            return Ok(());
        }
        counts.short_polls += 1;
        self.polled[port] = from.arm()?;
        if self.polled[port] {
            counts.interrupts += u64::from(from.disarm()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
