//! What the receivers of one core had of it together.
//!
//! Theory of operation. [`Pace`](super::Pace) bounds each receiver by itself. Receivers may be many, and one owner's: so each core notes
//! what it overlooked of all of them, and when those who pay were slow.

use std::time::Duration;

use super::allowance::{Allowance, Leak, Span};
use super::pace::MULTIPLE;
use crate::mem::ticks;

/// What a core overlooks of all receivers together.
const OVERLOOKED: Allowance = Allowance { all: Duration::from_millis(50), part: 5 };

/// What the receivers of one core had of it together.
#[derive(Debug, Default)]
pub struct Crowd {
    overlooked: Leak,
    owes: Span,
}

impl Crowd {
    /// Deliveries took so many ticks more beyond the usual, which are overlooked. Whether that is too much of all receivers.
    #[cold]
    pub fn overlook(&mut self, ticks_more: u64) -> bool {
        self.overlook_at(ticks_more, ticks())
    }

    pub(super) fn overlook_at(&mut self, more: u64, now: u64) -> bool {
        self.overlooked.add(more, OVERLOOKED, now) > 0
    }

    /// A receiver that pays took so many ticks.
    #[cold]
    pub fn was_slow(&mut self, took: u64) {
        self.was_slow_at(took, ticks());
    }

    pub(super) fn was_slow_at(&mut self, took: u64, now: u64) {
        let long = took.saturating_mul(MULTIPLE).saturating_add(self.owes.left(now));
        self.owes = Span { since: now, long };
    }

    /// Whether those who pay get nothing now, because others of them were slow.
    #[cold]
    pub fn rests(&self) -> bool {
        self.rests_at(ticks())
    }

    pub(super) fn rests_at(&self, now: u64) -> bool {
        self.owes.left(now) > 0
    }
}
