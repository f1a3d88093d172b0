//! Moderation of interrupts, as all emulated NICs have it: how often they are let through
//! ([`InterruptGate`]), and when what had to wait is looked at again ([`Alarm`]). Gates are arithmetic on
//! times in nanoseconds, without a clock.
//!
//! Causes that I/O cores raise, at most once a batch, and the driver's trapped accesses meet under one lock
//! ([`Irq`]), which is held for some tens of nanoseconds (and for the write of one eventfd). What stands
//! behind it, and what may be sent of it, is the card's ([`Causes`]).

mod alarm;

#[cfg(test)]
pub(super) use alarm::Clock;
pub(super) use alarm::{Alarm, NEVER};

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::pci::Interrupts;
use crate::port::InterruptCount;

/// The floor is doubled this many times at most, once for a number of interrupts in a row that had to wait.
const FLOOR_SHIFTS: u32 = 2;
const FLOOR_GROWS_AFTER: u32 = 16;
/// Interrupts that a quiet gate lets through without delay.
pub(super) const BURST: u64 = 4;

/// A gap between interrupts, as gates have it.
pub(super) fn gap(gap: Duration) -> u64 {
    u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX >> 16)
}

/// Lets interrupts through one gap apart on the average: a leaky bucket of `BURST`.
#[derive(Clone, Copy, Default)]
pub(super) struct InterruptGate {
    /// When the interrupt after the last one was due if all had come evenly.
    even: u64,
    /// Interrupts in a row that had to wait.
    waited: u32,
    waiting: bool,
    /// The pin's level, of the gate that is the pin's.
    pub(super) level: bool,
    /// The guest has its time for other things until then.
    pub(super) not_before: u64,
    pub(super) passed: InterruptCount,
}

impl InterruptGate {
    /// Passes the gate, or tells when it opens. `driver` and `floor` are gaps in nanoseconds; `news`:
    /// something has happened since the last try.
    pub(super) fn pass(&mut self, now: u64, driver: u64, floor: u64, news: bool) -> Result<(), u64> {
        let gap = driver.max(floor << (self.waited / FLOOR_GROWS_AFTER).min(FLOOR_SHIFTS));
        let opens = self.even.saturating_sub((BURST - 1) * gap).max(self.not_before);
        if now < opens {
            self.waiting = true;
            self.passed.held_back += u64::from(news);
            return Err(opens);
        }
        self.passed.raised += 1;
        self.waited = if self.waiting { self.waited.saturating_add(1) } else { 0 };
        self.waiting = false;
        self.even = self.even.max(now) + gap;
        Ok(())
    }
}

/// A cause that is delayed: until a while after the last packet, and never longer after the first.
#[derive(Clone, Copy)]
pub(super) struct Delayed {
    pub(super) last: u64,
    pub(super) first: u64,
}

impl Default for Delayed {
    fn default() -> Delayed {
        Delayed { last: NEVER, first: NEVER }
    }
}

impl Delayed {
    pub(super) fn due(&self) -> u64 {
        self.last.min(self.first)
    }
}

/// What a card has behind the lock; its default is as after reset.
pub trait Causes: Default {
    /// What it has beside it, without the lock.
    type Beside;

    /// Sends what may be sent now and notes when to look again; returns how many interrupts were sent.
    /// `news`: causes were raised.
    fn settle(&mut self, irq: &Irq<Self>, now: u64, news: bool) -> u64;
}

/// A card's interrupts.
pub struct Irq<S: Causes> {
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) state: Mutex<S>,
    /// The operator's gap.
    pub(super) floor: u64,
    /// How often the driver has taken back what it sent by each queue, as far as we can tell.
    pub(super) taken_back: [AtomicU64; 2],
    pub(super) alarm: Alarm,
    pub(super) beside: S::Beside,
}

impl<S: Causes> Irq<S> {
    pub(super) fn with(
        interrupts: Arc<Interrupts>,
        floor: Duration,
        beside: S::Beside,
    ) -> io::Result<Irq<S>> {
        let (floor, alarm) = (gap(floor), Alarm::new()?);
        Ok(Irq { interrupts, state: Mutex::default(), floor, taken_back: Default::default(), alarm, beside })
    }

    /// Sends what has become due. Cheap when nothing has.
    #[inline]
    pub(super) fn poll(&self) -> u64 {
        if !self.alarm.is_due() {
            return 0;
        }
        let mut state = crate::lock(&self.state);
        state.settle(self, self.alarm.now(), false)
    }

    /// The driver has changed something: sends what may be sent now. The next I/O core to look counts it.
    pub(super) fn changed(&self, state: &mut S) {
        self.alarm.note(state.settle(self, self.alarm.now(), false));
    }

    /// Changes when the driver has taken back what it sent by transmit queue `queue`.
    pub(super) fn taken_back(&self, queue: usize) -> u64 {
        self.taken_back[queue].load(Ordering::Relaxed)
    }

    /// Has the pin's level, which is `gate`'s, follow whether a cause is `pending`. True: it rises now.
    /// `driver` is the driver's gap; what has to wait is looked at again before `next`.
    pub(super) fn pin(
        &self,
        gate: &mut InterruptGate,
        pending: bool,
        driver: u64,
        (now, news): (u64, bool),
        next: &mut u64,
    ) -> bool {
        if pending == gate.level {
            return false;
        }
        if !pending {
            gate.level = false;
            self.interrupts.set_level(false);
            return false;
        }
        match gate.pass(now, driver, self.floor, news) {
            Ok(()) => gate.level = true,
            Err(opens) => *next = opens.min(*next),
        }
        gate.level
    }
}
