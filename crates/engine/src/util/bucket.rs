//! A token bucket that several threads share: one word.
//!
//! Theory of operation. The generic cell rate algorithm (ITU-T I.371, annex A): the word is the *theoretical
//! arrival time*, the time at which all that was taken would have come at its rate. It may be ahead of the
//! clock by the burst at most. Nothing has to be refilled, and no remainder of a division is lost. What is
//! taken is told by the time that it takes to come back. The unit of time is the caller's; one bucket has
//! one.
//!
//! A thread may also look first, and add what it took afterwards: one reading and one writing for a whole
//! batch. Two that do so at once may take a burst too many together. It is paid back, because all that was
//! taken is added.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

/// Nanoseconds of `time`.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds up to `at`, for buckets of those who have no clock but the system's.
pub fn nanos_at(at: Instant) -> u64 {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    nanos(at.saturating_duration_since(*EPOCH))
}

/// What the word `at` is when `cost` more has been taken at `now`; `None`: it would be ahead by more than
/// `burst`.
pub fn paid(at: u64, cost: u64, burst: u64, now: u64) -> Option<u64> {
    let at = at.max(now).saturating_add(cost);
    (at <= now.saturating_add(burst)).then_some(at)
}

impl Bucket {
    /// A full one.
    pub const fn new() -> Bucket {
        Bucket(AtomicU64::new(0))
    }

    /// How long until it is full, if nothing is taken.
    pub fn ahead(&self, now: u64) -> u64 {
        self.0.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// Takes `cost` if it is there: a full one has `burst`.
    pub fn take(&self, cost: u64, burst: u64, now: u64) -> bool {
        let next = |at| paid(at, cost, burst, now);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Takes `cost`, whether it is there or not. How long until it would be full; what is beyond `most` of
    /// that is forgiven.
    #[inline]
    pub fn add(&self, cost: u64, most: u64, now: u64) -> u64 {
        let after = |at: u64| at.max(now).saturating_add(cost);
        let next = |at| Some(after(at).min(now.saturating_add(most)));
        // It never fails: `next` always has a value.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        after(before.unwrap_or_else(|at| at)) - now
    }

    /// Nothing that was taken so far counts.
    pub fn forgive(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The unit of time where a rate is given, which may be more than one in a nanosecond: 64ths of that.
const PARTS: u64 = 64;
const SECOND: u64 = 1_000_000_000 * PARTS;

/// Nanoseconds in that unit.
pub fn parts(ns: u64) -> u64 {
    ns.saturating_mul(PARTS)
}

/// How long `units` take to come back at `rate` a second.
pub fn time_of(units: u64, rate: u64) -> u64 {
    let time = u128::from(units) * u128::from(SECOND) / u128::from(rate.max(1));
    u64::try_from(time).unwrap_or(u64::MAX)
}

/// What a bucket allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// This many units.
    Now(u64),
    /// One at this time, in nanoseconds of the clock.
    At(u64),
}

impl Bucket {
    /// How much may be taken at `now` (nanoseconds) of `rate` units a second, of which a burst has `least`
    /// and `saved` nanoseconds' worth. It is [added](Bucket::add) afterwards.
    pub fn allowed(&self, rate: u64, least: u64, saved: u64, now: u64) -> Allowed {
        let burst = parts(saved).max(time_of(least, rate));
        let ahead = self.ahead(parts(now));
        let left = burst.saturating_sub(ahead);
        let units = u128::from(left) * u128::from(rate.max(1)) / u128::from(SECOND);
        if units > 0 {
            return Allowed::Now(u64::try_from(units).unwrap_or(u64::MAX));
        }
        let due = parts(now).saturating_add(ahead + SECOND.div_ceil(rate.max(1)) - burst);
        Allowed::At(due.div_ceil(PARTS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 32;
    const SAVED: u64 = 2_000_000;

    /// Takes what is allowed, at most `visit` units at a time, until `end`; how much that was.
    fn run(rate: u64, visit: u64, step: u64, end: u64) -> u64 {
        let (bucket, mut now, mut all) = (Bucket::new(), 0, 0);
        while now < end {
            match bucket.allowed(rate, LEAST, SAVED, now) {
                Allowed::Now(units) => {
                    bucket.add(time_of(units.min(visit), rate), u64::MAX, parts(now));
                    all += units.min(visit);
                    now += step;
                }
                Allowed::At(at) => {
                    assert!(at > now, "it would be asked for ever");
                    now = at;
                }
            }
        }
        all
    }

    #[test]
    fn the_rate_holds_to_the_unit_after_a_burst() {
        for rate in [1, 3, 999, 1_000_000, 14_880_952, 148_809_523] {
            let seconds = if rate < 1000 { 100 } else { 2 };
            let burst = (rate / 500).max(LEAST);
            let got = run(rate, 256, 100, seconds * 1_000_000_000);
            let due = rate * seconds;
            // One 64th of a nanosecond in each unit is what is rounded.
            assert!((due..=due + burst + due / 500 + 2).contains(&got), "{rate}: {got} for {due}");
        }
    }

    #[test]
    fn a_unit_beyond_the_burst_passes_once_and_is_paid_for() {
        let bucket = Bucket::new();
        bucket.add(time_of(10_000, 1_000), u64::MAX, 0);
        let Allowed::At(at) = bucket.allowed(1_000, 32, SAVED, 0) else { panic!("nothing is left") };
        assert!((9_900_000_000..10_100_000_000).contains(&at), "{at}");
        assert!(matches!(bucket.allowed(1_000, 32, SAVED, at), Allowed::Now(1)));
        bucket.forgive();
        assert_eq!(bucket.allowed(1_000, 32, SAVED, 0), Allowed::Now(32));
    }

    #[test]
    fn silence_is_not_saved_up() {
        let bucket = Bucket::new();
        let hour = 3_600_000_000_000;
        assert_eq!(bucket.allowed(1_000_000, 32, SAVED, hour), Allowed::Now(2_000));
        assert_eq!((0..100).filter(|_| bucket.take(10, 50, hour)).count(), 5);
    }

    #[test]
    fn what_is_not_there_is_not_taken() {
        let bucket = Bucket::new();
        assert!((0..5).all(|_| bucket.take(10, 50, 100)) && !bucket.take(10, 50, 100));
        assert_eq!(bucket.ahead(100), 50);
        assert!(!bucket.take(10, 50, 109) && bucket.take(10, 50, 110) && !bucket.take(1, 50, 110));
    }

    #[test]
    fn debts_are_no_larger_than_they_may_be() {
        let bucket = Bucket::new();
        assert_eq!((bucket.add(30, 100, 7), bucket.add(90, 100, 7)), (30, 120));
        assert_eq!((bucket.ahead(7), bucket.add(0, 100, 57), bucket.ahead(200)), (100, 50, 0));
        // Nothing at all happens at the end of time.
        assert_eq!(bucket.add(u64::MAX, u64::MAX, u64::MAX), 0);
    }
}
