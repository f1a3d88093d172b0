//! How often interrupts are let through, and how long causes wait: arithmetic on times in nanoseconds, without a clock.

use crate::port::InterruptCount;

/// No deadline.
pub(in crate::device) const NEVER: u64 = u64::MAX;
/// The floor is doubled this many times at most, once for every so many interrupts in a row that had to wait.
const FLOOR_SHIFTS: u32 = 2;
const FLOOR_GROWS_AFTER: u32 = 16;
/// Interrupts that a quiet gate lets through without delay.
pub(in crate::device) const BURST: u64 = 4;

/// Lets interrupts through one gap apart on the average: a leaky bucket of `BURST`.
#[derive(Clone, Copy, Default)]
pub(in crate::device) struct InterruptGate {
    /// When the interrupt after the last one was due if all had come evenly.
    even: u64,
    /// Interrupts in a row that had to wait.
    waited: u32,
    waiting: bool,
    /// The guest has its time for other things until then.
    pub(in crate::device) not_before: u64,
    pub(in crate::device) passed: InterruptCount,
}

impl InterruptGate {
    /// Passes the gate, or tells when it opens. `driver` and `floor` are gaps in nanoseconds; `news`: something
    /// has happened since the last try.
    pub(in crate::device) fn pass(
        &mut self,
        now: u64,
        driver: u64,
        floor: u64,
        news: bool,
    ) -> Result<(), u64> {
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
pub(in crate::device) struct Delayed {
    pub(in crate::device) last: u64,
    pub(in crate::device) first: u64,
}

impl Delayed {
    pub(in crate::device) const NONE: Delayed = Delayed { last: NEVER, first: NEVER };

    pub(in crate::device) fn due(&self) -> u64 {
        self.last.min(self.first)
    }
}
