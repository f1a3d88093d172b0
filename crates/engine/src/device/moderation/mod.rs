//! Moderation of interrupts, as all emulated NICs have it: how often they are let through ([`InterruptGate`]), and when what had to
//! wait is looked at again ([`Alarm`]).
//! Gates are arithmetic on times in nanoseconds, without a clock.

mod alarm;

#[cfg(test)]
pub(super) use alarm::Clock;
pub(super) use alarm::{Alarm, NEVER};

use crate::port::InterruptCount;

/// The floor is doubled this many times at most, once for every so many interrupts in a row that had to wait.
const FLOOR_SHIFTS: u32 = 2;
const FLOOR_GROWS_AFTER: u32 = 16;
/// Interrupts that a quiet gate lets through without delay.
pub(super) const BURST: u64 = 4;

/// Lets interrupts through one gap apart on the average: a leaky bucket of `BURST`.
#[derive(Clone, Copy, Default)]
pub(super) struct InterruptGate {
    /// When the interrupt after the last one was due if all had come evenly.
    even: u64,
    /// Interrupts in a row that had to wait.
    waited: u32,
    waiting: bool,
    /// The guest has its time for other things until then.
    pub(super) not_before: u64,
    pub(super) passed: InterruptCount,
}

impl InterruptGate {
    /// Passes the gate, or tells when it opens. `driver` and `floor` are gaps in nanoseconds; `news`: something
    /// has happened since the last try.
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

impl Delayed {
    pub(super) const NONE: Delayed = Delayed { last: NEVER, first: NEVER };

    pub(super) fn due(&self) -> u64 {
        self.last.min(self.first)
    }
}
