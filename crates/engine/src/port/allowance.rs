//! Times that may be used: so much at once, and a part of the time that passes.

use std::time::Duration;

use crate::mem::ticks_in;

/// So much at once, and one part in so many of the time that passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    pub all: Duration,
    pub part: u64,
}

impl Allowance {
    /// One part in `parts` of it.
    pub fn divided(self, parts: u32) -> Allowance {
        Allowance { all: self.all / parts, part: self.part * u64::from(parts) }
    }
}

/// What was used of something that comes back with time: ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leak {
    used: u64,
    at: u64,
}

impl Leak {
    /// Uses `took` more of what is `allowed`; what is beyond it.
    pub fn add(&mut self, took: u64, allowed: Allowance, now: u64) -> u64 {
        let back = now.saturating_sub(self.at) / allowed.part;
        let (used, all) = (self.used.saturating_sub(back).saturating_add(took), ticks_in(allowed.all));
        *self = Leak { used: used.min(all), at: now };
        used.saturating_sub(all)
    }
}

/// A time that ends: ticks. Clocks of two processors may differ a little; where they differ by more, it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub since: u64,
    pub long: u64,
}

impl Span {
    pub fn left(self, now: u64) -> u64 {
        self.long.saturating_sub(now.abs_diff(self.since))
    }
}
