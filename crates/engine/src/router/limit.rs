//! A limit on what a router makes of itself: errors, and requests for neighbours' addresses.
//!
//! One word, shared by all cores: when all that was let through will have been paid for. So much may be ahead of the clock as
//! the burst costs.

use std::sync::atomic::{AtomicU64, Ordering};

/// A rate with a burst.
#[derive(Debug)]
pub(super) struct Limit {
    /// Microseconds that one costs.
    price: u64,
    burst: u64,
    paid: AtomicU64,
}

impl Limit {
    /// So many a second, and a burst of so many at once.
    pub const fn new(rate: u64, burst: u64) -> Limit {
        Limit { price: 1_000_000 / rate, burst, paid: AtomicU64::new(0) }
    }

    /// Whether one more may pass at `now`, in microseconds.
    pub fn take(&self, now: u64) -> bool {
        let next = |paid: u64| {
            let paid = paid.max(now) + self.price;
            (paid <= now + self.burst * self.price).then_some(paid)
        };
        self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let limit = Limit::new(100, 5);
        let pass = |now| (0..1000).take_while(|_| limit.take(now)).count();
        assert_eq!(pass(1_000_000), 5);
        assert_eq!((pass(1_009_999), pass(1_010_000)), (0, 1));
        assert_eq!((1..=1000).map(|i| pass(1_010_000 + i * 1000)).sum::<usize>(), 100);
        assert_eq!(pass(9_000_000), 5, "what was not used is not saved beyond the burst");
    }
}
