//! Limits on what a router does for the ports that send to it: errors, requests for neighbours' addresses, frames for its control
//! plane.
//!
//! One word, shared by all cores: when all that was let through will have been paid for. So much may be ahead of the clock as
//! the burst costs.
//!
//! Several ports may send for one limit: those of a gateway's switch, and all ports from which a neighbour is looked for. Without more a
//! flood from one of them would leave the others nothing. So a [`Fair`] limit has a part for each sender, which nobody else can
//! use up, and one for all, for which they race.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::PortId;

/// A rate with a burst: so many a second, and at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Microseconds that one costs.
    price: u64,
    burst: u64,
}

impl Rate {
    pub const fn new(rate: u64, burst: u64) -> Rate {
        Rate { price: 1_000_000 / rate, burst }
    }

    /// Whether one more may pass at `now`, in microseconds, of those that `paid` counts.
    fn take(self, paid: &AtomicU64, now: u64) -> bool {
        let next = |paid: u64| {
            let paid = paid.max(now) + self.price;
            (paid <= now + self.burst * self.price).then_some(paid)
        };
        paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// The part of a sender is one of so many of the whole. One sender alone has the whole.
const PART: u64 = 8;
/// Senders with parts of their own. Where there are more, those whose numbers are the same but for multiples of this share one.
const SENDERS: usize = 64;

/// A limit that several ports share.
#[derive(Debug)]
pub(super) struct Fair {
    own: Rate,
    all: Rate,
    /// What each sender has had of its own, and what all have had of the rest.
    paid: [AtomicU64; SENDERS],
    rest: AtomicU64,
}

impl Fair {
    /// So many a second for one sender, and a burst of so many at once: each [`PART`] at least.
    pub const fn new(rate: u64, burst: u64) -> Fair {
        let (own, few) = (rate / PART, burst.div_ceil(PART));
        Fair {
            own: Rate::new(own, few),
            all: Rate::new(rate - own, burst - few),
            paid: [const { AtomicU64::new(0) }; SENDERS],
            rest: AtomicU64::new(0),
        }
    }

    /// Whether one more of `sender`'s may pass at `now`, in microseconds.
    pub fn take(&self, sender: PortId, now: u64) -> bool {
        let own = self.paid.get(usize::from(sender.0) % SENDERS);
        // The rest first: who takes little finds its own part whole when others have taken the rest.
        self.all.take(&self.rest, now) || own.is_some_and(|paid| self.own.take(paid, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(3);
    const B: PortId = PortId(4);

    fn pass(limit: &Fair, sender: PortId, now: u64) -> usize {
        (0..10_000).take_while(|_| limit.take(sender, now)).count()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let limit = Fair::new(1000, 100);
        assert_eq!(pass(&limit, A, 1_000_000), 100);
        assert_eq!(pass(&limit, A, 1_000_000), 0);
        let second = (1..=1000).map(|i| pass(&limit, A, 1_000_000 + i * 1000)).sum::<usize>();
        assert!((985..=1005).contains(&second), "{second}");
        assert_eq!(pass(&limit, A, 9_000_000), 100, "what was not used is not saved beyond the burst");
    }

    #[test]
    fn a_flood_leaves_others_their_part() {
        let limit = Fair::new(1000, 100);
        let mut passed = [0; 2];
        for now in (1_000_000..2_000_000).step_by(500) {
            passed[0] += pass(&limit, A, now);
            // A frame each 10 ms.
            passed[1] += usize::from(now % 10_000 == 0 && limit.take(B, now));
        }
        assert!(passed[1] == 100 && passed[0] > 900, "{passed:?}");
        // One that floods, too, takes no more of it than the first one did.
        let all: usize = (0..10).map(|sender| pass(&limit, PortId(sender), 3_000_000)).sum();
        assert_eq!(all, 87 + 10 * 13);
    }
}
