//! How many items of a task fit into a turn.
//!
//! Theory of operation. A visit cannot be cut short, so its bound is a number of items, by what they cost of
//! late: a mean of visits with several items, and beside it the *dear* ones. A visit that took longer than
//! its turn (an item went to many receivers; pages of a guest had to be found or cleared; a frame was cut
//! into hundreds) is remembered: a guest whose items are dear now and then is not believed to be cheap in
//! between. Signals are not among what items cost: a visit of one frame has as many as one of a hundred, so
//! where a signal takes longer than a turn, short visits would stay short.
//!
//! What can be chosen about an I/O core's loop, and the bounds of a visit, which cannot.

use std::time::Duration;

/// For so long a dear visit is remembered, in nanoseconds: the core may have been kept from running by
/// others, and a task that is seldom visited would be cheap again only after minutes.
const MEMORY: u64 = 100_000_000;

/// What one item costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Nanoseconds of an item of late: a mean, of which each visit changes an eighth. Zero: not known.
    each: u32,
    /// Nanoseconds of an item in the dearest visit of late, less a 64th with each cheaper one. Zero: none was
    /// dear.
    dear: u32,
    /// When that was.
    since: u64,
}

impl Pace {
    /// Items of a `turn`, in nanoseconds.
    #[inline]
    pub(super) fn items(&self, turn: u64) -> usize {
        let each = self.each.max(self.dear).max(1);
        let items = usize::try_from(turn / u64::from(each)).unwrap_or(TURN);
        let least = if self.dear > 0 { 1 } else { MIN_WORK };
        items.clamp(least, TURN)
    }

    /// Whether visits are short since one was dear.
    pub(super) fn is_dear(&self) -> bool {
        self.dear > 0
    }

    /// A visit of `items` that ended at `now` took `ns`; it should have taken no more than `turn`.
    #[inline]
    pub(super) fn took(&mut self, items: usize, ns: u64, turn: u64, now: u64) {
        // Where a visit only ended what an earlier one began, nothing is known of items.
        if items == 0 {
            return;
        }
        if ns > turn || self.dear > 0 {
            self.took_long(items, ns, turn, now);
        }
        let each = i64::try_from(ns / items as u64).unwrap_or(i64::MAX).min(1 << 30);
        let before = i64::from(self.each);
        if items >= MIN_WORK || each < before {
            let each = if before == 0 { each } else { before + (each - before) / 8 };
            self.each = u32::try_from(each).unwrap_or(0);
        }
    }

    #[cold]
    fn took_long(&mut self, items: usize, ns: u64, turn: u64, now: u64) {
        let each = u32::try_from(ns / items as u64).unwrap_or(u32::MAX).max(1);
        let remembers = now.saturating_sub(self.since) < MEMORY;
        let kept = if remembers { self.dear - self.dear.div_ceil(64) } else { 0 };
        if each >= kept && ns > turn {
            self.since = now;
        }
        let dear = each.max(kept);
        // Below this a batch fits into the turn whole.
        self.dear = if u64::from(dear) * TURN as u64 > turn { dear } else { 0 };
    }
}

/// Most items of a visit.
pub(crate) const TURN: usize = 256;
/// Items that a visit may take however long they take, unless they are dear.
pub(super) const MIN_WORK: usize = 8;
/// Most bytes of a visit: some 0.1 ms of copying.
pub(super) const TURN_BYTES: u64 = 768 * 1024;
/// Nanoseconds of a visit where no other owner has work.
pub(super) const LONGEST_TURN: u64 = 100_000;
/// A turn where many tasks have work: below this what a visit costs besides its items begins to count.
pub(super) const LEAST_TURN: u64 = 10_000;
/// A turn where tasks wait that must not.
pub(super) const URGENT_TURN: u64 = 10_000;

/// What can be chosen about the loop of a core.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// How long a core polls without finding anything before it sleeps.
    pub spin: Duration,
    /// Longest sleep: events and messages wake a core, this only bounds the damage of a lost one.
    pub longest_sleep: Duration,
    /// Queues that are stuck, urgent or have a budget are looked at between two visits of others.
    pub urgent: bool,
    /// Tasks that have been silent are not polled any more.
    pub cold: bool,
    /// Cores that are active at the start, and are at least; more become so as they are needed.
    pub least_cores: usize,
    /// Tasks move between cores, and cores come and go, by what they have to do.
    pub balance: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        let (spin, longest_sleep) = (Duration::from_micros(50), Duration::from_secs(1));
        Tuning { spin, longest_sleep, urgent: true, cold: true, least_cores: usize::MAX, balance: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_as_many_items_as_fit() {
        let mut pace = Pace::default();
        assert_eq!(pace.items(50_000), TURN);
        (0..100).for_each(|_| pace.took(100, 40_000, 50_000, 0));
        assert_eq!((pace.items(50_000), pace.items(10_000), pace.items(1)), (125, 25, MIN_WORK));
        // Single items, with all that a visit costs beside them, say little of many.
        (0..100).for_each(|_| pace.took(1, 900, 10_000, 0));
        assert_eq!(pace.items(10_000), 25);
        (0..100).for_each(|_| pace.took(256, 7_680, 50_000, 0));
        assert!(pace.items(10_000) == TURN, "{}", pace.items(10_000));
    }

    #[test]
    fn a_dear_visit_is_believed_at_once_and_forgotten_slowly() {
        let mut pace = Pace::default();
        pace.took(256, 4_000_000, 50_000, 1_000);
        assert_eq!(pace.items(50_000), 3);
        // One that ends an earlier visit says nothing of items.
        pace.took(0, 300_000, 50_000, 2_000);
        assert_eq!(pace.items(50_000), 3);
        let cheap = (0..100_000).take_while(|_| {
            let items = pace.items(50_000);
            pace.took(items, 30 * items as u64, 50_000, 3_000);
            items < 200
        });
        assert!((100..2_000).contains(&cheap.count()));
        pace.took(2, 4_000_000, 50_000, 4_000);
        assert_eq!(pace.items(50_000), 1);
        pace.took(1, 30, 50_000, 4_000 + MEMORY);
        assert_eq!(pace.items(50_000), TURN);
    }
}
