//! A token bucket that several cores share: one word.
//!
//! Theory of operation. The generic cell rate algorithm (ITU-T I.371, annex A): the word is the *theoretical arrival
//! time*, the time at which the items taken so far would have come at the given rate. It may be ahead of the clock by
//! the burst at most. Nothing has to be refilled, and no remainder of a division is lost: times are in 64ths of a
//! nanosecond, and a visit's items are one division.
//!
//! Cores read it before a visit and add to it afterwards. Two cores that do so at once may take a burst too many
//! together. It is paid back, because every item taken is added.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a nanosecond.
const PARTS: u128 = 64;
const SECOND: u128 = 1_000_000_000 * PARTS;
/// Time at the rate that may be taken at once after a while of silence, in nanoseconds.
const BURST: u64 = 2_000_000;
/// And what may be at least: a batch of the usual size.
pub(super) const LEAST_ITEMS: u64 = 32;
/// The same in bits: a frame of 64 KiB.
pub(super) const LEAST_BITS: u64 = 8 * 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Bucket(AtomicU64);

/// What a bucket allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// So many units.
    Now(u64),
    /// One at this time, in nanoseconds of the clock.
    At(u64),
}

impl Bucket {
    /// How much may be taken at `now` (nanoseconds) of `rate` units a second; a burst has `least` units at least.
    pub(super) fn allowed(&self, rate: u64, least: u64, now: u64) -> Allowed {
        let rate = u128::from(rate.max(1));
        let burst = (u128::from(BURST) * PARTS).max(u128::from(least) * SECOND / rate);
        let (at, now) = (u128::from(self.0.load(Ordering::Relaxed)), u128::from(now) * PARTS);
        let left = (now + burst).saturating_sub(at.max(now));
        let units = left * rate / SECOND;
        if units > 0 {
            return Allowed::Now(u64::try_from(units).unwrap_or(u64::MAX));
        }
        let one = SECOND.div_ceil(rate);
        let due = (at.max(now) + one - burst).div_ceil(PARTS);
        Allowed::At(u64::try_from(due).unwrap_or(u64::MAX))
    }

    /// So many units were taken at `now`.
    pub(super) fn take(&self, rate: u64, units: u64, now: u64) {
        let time = u128::from(units) * SECOND / u128::from(rate.max(1));
        let (time, now) = (u64::try_from(time).unwrap_or(u64::MAX), now.saturating_mul(64));
        let next = |at: u64| Some(at.max(now).saturating_add(time));
        // It never fails: `next` always has a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Nothing that was taken so far counts.
    pub(super) fn forgive(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what is allowed, at most `visit` units at a time, until `end`; how much that was.
    fn run(rate: u64, visit: u64, step: u64, end: u64) -> u64 {
        let (bucket, mut now, mut all) = (Bucket::default(), 0, 0);
        while now < end {
            match bucket.allowed(rate, LEAST_ITEMS, now) {
                Allowed::Now(units) => {
                    bucket.take(rate, units.min(visit), now);
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
            let burst = (rate / 500).max(LEAST_ITEMS);
            let got = run(rate, 256, 100, seconds * 1_000_000_000);
            let due = rate * seconds;
            // One 64th of a nanosecond in each unit is what is rounded.
            assert!((due..=due + burst + due / 500 + 2).contains(&got), "{rate}: {got} for {due}");
        }
    }

    #[test]
    fn a_unit_beyond_the_burst_passes_once_and_is_paid_for() {
        let bucket = Bucket::default();
        bucket.take(1_000, 10_000, 0);
        let Allowed::At(at) = bucket.allowed(1_000, 32, 0) else { panic!("nothing is left") };
        assert!((9_900_000_000..10_100_000_000).contains(&at), "{at}");
        assert!(matches!(bucket.allowed(1_000, 32, at), Allowed::Now(1)));
    }

    #[test]
    fn silence_is_not_saved_up() {
        let bucket = Bucket::default();
        let hour = 3_600_000_000_000;
        assert_eq!(bucket.allowed(1_000_000, 32, hour), Allowed::Now(2_000));
    }
}
