//! A guest's processor, as far as a NIC can tell: a driver of one of the paper's kinds, and the time that its
//! traps take.
//!
//! Theory of operation. A guest does one thing at a time: queue a frame, or serve an interrupt. Each register
//! access that traps stops it for the cost of a trap, and so does the end of an interrupt of the pin; until
//! then it does nothing. Several guests take turns on one thread, so that while one is stopped another goes
//! on, as on processors of their own. There is no network stack: a frame costs what the driver and the traps
//! cost.

use crate::prelude::*;

use super::nic::Nic;

/// Received frames that Linux's NAPI takes at once.
const BUDGET: usize = 64;
/// How often a guest looks whether it was interrupted: each look is a system call of ours, not of the
/// guest's.
const LOOK: u64 = 1_000;

/// How the driver behaves: the rows of the paper's Figure 4, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As it is, every doorbell a trap.
    Trapping,
    /// The doorbell waits for the transmit interrupt while one is due (§3.2).
    Combining,
    /// Tails and wishes in a status block (§3.5).
    Csb,
    /// As it is, on a device whose doorbells do not trap.
    Exitless,
}

/// Time since the benchmark began.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Begins.
    pub fn new() -> Clock {
        Clock(Instant::now())
    }

    /// Nanoseconds.
    pub fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

pub struct Guest {
    nic: Nic,
    mode: Mode,
    /// Nanoseconds that a trap takes.
    trap: u64,
    /// When it goes on.
    until: u64,
    /// When it looks for interrupts again.
    look_at: u64,
    /// More was received than one poll takes.
    polling: bool,
    /// What has happened so far.
    pub seen: Seen,
}

/// Counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Frames queued.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Interrupts served.
    pub interrupts: u64,
    /// Traps, ends of interrupts among them.
    pub traps: u64,
}

impl Seen {
    /// What came since `before`.
    pub fn since(self, before: Seen) -> Seen {
        Seen {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            interrupts: self.interrupts - before.interrupts,
            traps: self.traps - before.traps,
        }
    }
}

impl Guest {
    /// A guest behind `nic`, every trap of which takes `trap`.
    pub fn new(mut nic: Nic, mode: Mode, trap: Duration) -> Result<Guest, String> {
        nic.arm_all().map_err(super::text)?;
        let trap = u64::try_from(trap.as_nanos()).unwrap_or(u64::MAX);
        Ok(Guest { nic, mode, trap, until: 0, look_at: 0, polling: false, seen: Seen::default() })
    }

    /// Goes on if it can at `now`: serves an interrupt, or queues `frame` if there is one. `see` gets what is
    /// received.
    pub fn step(
        &mut self,
        now: u64,
        frame: Option<&[u8]>,
        mut see: impl FnMut(&[u8]),
    ) -> Result<(), sidecore_driver::Error> {
        if now < self.until {
            return Ok(());
        }
        let before = self.nic.traps();
        let mut ends = 0;
        if self.polling || now >= self.look_at {
            self.look_at = now + LOOK;
            let was_polling = std::mem::take(&mut self.polling);
            if let Some(received) = self.nic.service(BUDGET, &mut see)? {
                self.seen.received += received as u64;
                self.seen.interrupts += u64::from(!was_polling);
                self.polling = self.nic.is_polling();
                ends = u64::from(!self.polling && self.nic.ends_trap());
                // What was combined goes out with the interrupt.
                self.nic.doorbell()?;
            }
        }
        if let Some(frame) = frame.filter(|_| !self.polling) {
            let due = !self.nic.is_clean();
            let queued = self.nic.queue_with(|buffer| {
                // Frames differ in nothing: what a stack would do with their bytes is not measured.
                buffer[..frame.len()].copy_from_slice(frame);
                frame.len()
            })?;
            self.seen.sent += u64::from(queued);
            if self.mode == Mode::Csb {
                if !queued {
                    self.nic.want_room();
                } else if self.seen.sent % 64 == 0 {
                    self.nic.reclaim();
                }
            }
            if self.mode != Mode::Combining || !due {
                self.nic.doorbell()?;
            }
        }
        let traps = self.nic.traps() - before + ends;
        self.seen.traps += traps;
        self.until = now + traps * self.trap;
        Ok(())
    }
}
