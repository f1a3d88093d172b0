//! Limits on what a router does for the ports that send to it: errors, requests for neighbours' addresses,
//! frames for its control plane.
//!
//! One bucket (`util::bucket`), shared by all cores, in microseconds.
//!
//! Several ports may send for one limit: those of a gateway's switch, and all ports from which a neighbour is
//! looked for. Without more a flood from one of them would leave the others nothing. So a [`Fair`] limit has
//! a part for each sender, which no other can use up, and one for all, for which they race. A sender has a
//! place in the limit's table only until its part is whole again: then there is nothing to remember of it,
//! and whoever needs a place takes it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::port::PortId;
use crate::util::bucket::{paid, Bucket};

/// When a batch is decided on, and whose it is.
pub struct Now {
    /// Seconds since the engine started, from 1 on.
    pub seconds: u32,
    /// When that was.
    pub epoch: Instant,
    /// The core, for its counters.
    pub core: usize,
    /// The port that sent it, however many switches and routers it has passed since.
    pub sender: PortId,
}

impl Now {
    /// Microseconds since the engine started.
    pub(super) fn micros(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A rate with a burst: microseconds that one costs, and that all cost which may pass at once.
#[derive(Clone, Copy, Debug)]
struct Rate {
    price: u64,
    burst: u64,
}

impl Rate {
    const fn new(rate: u64, burst: u64) -> Rate {
        let price = 1_000_000 / rate;
        Rate { price, burst: price * burst }
    }
}

/// The part of a sender is this fraction of the whole. One sender alone has the whole.
const PART: u64 = 8;
/// Senders that may use parts of their own at one time. Those beyond have only what is for all.
const SENDERS: usize = 64;
/// A sender's place is one word: its number plus one, above the microsecond until which its part is paid for.
/// That is nine years.
const CLOCK: u32 = 48;
const TIME: u64 = (1 << CLOCK) - 1;

/// A limit that several ports share.
pub(super) struct Fair {
    own: Rate,
    all: Rate,
    /// What senders have had of their own, and what all have had of the rest.
    paid: [AtomicU64; SENDERS],
    rest: Bucket,
}

impl Fair {
    /// A rate for one sender, and a burst at once: each [`PART`] at least.
    pub const fn new(rate: u64, burst: u64) -> Fair {
        let (own, few) = (rate / PART, burst.div_ceil(PART));
        Fair {
            own: Rate::new(own, few),
            all: Rate::new(rate - own, burst - few),
            paid: [const { AtomicU64::new(0) }; SENDERS],
            rest: Bucket::new(),
        }
    }

    /// Whether one more of `sender`'s may pass at `now`, in microseconds.
    pub fn take(&self, sender: PortId, now: u64) -> bool {
        // The rest first: who takes little finds its own part whole when others have taken the rest.
        self.rest.take(self.all.price, self.all.burst, now) || self.take_own(sender, now)
    }

    /// Whether one more may pass out of the sender's own part.
    #[cold]
    fn take_own(&self, sender: PortId, now: u64) -> bool {
        let mark = (u64::from(sender.0) + 1) << CLOCK;
        let is_own = |word: u64| word & !TIME == mark;
        let Rate { price, burst } = self.own;
        let pay = |word: u64| paid(word & TIME, price, burst, now).map(|paid| mark | paid & TIME);
        let (before, from) = self.paid.split_at(usize::from(sender.0) % SENDERS);
        let places = || from.iter().chain(before);
        for place in places().filter(|place| is_own(place.load(Ordering::Relaxed))) {
            let next = |word: u64| is_own(word).then(|| pay(word)).flatten();
            match place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
                Ok(_) => return true,
                Err(word) if is_own(word) => return false,
                // It was whole again, and somebody else has taken the place.
                Err(_) => {}
            }
        }
        places().any(|place| {
            let word = place.load(Ordering::Relaxed);
            let Some(paid) = pay(0).filter(|_| word & TIME <= now) else { return false };
            place.compare_exchange(word, paid, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
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

    #[test]
    fn no_number_shares_the_part_of_another() {
        let limit = Fair::new(1000, 100);
        let port = |n: usize| PortId(u16::try_from(n).unwrap());
        for now in (1_000_000..2_000_000).step_by(1000) {
            // All but one place is a flood's, and the last sender's number is at none that is free.
            (0..SENDERS - 1).for_each(|n| _ = pass(&limit, port(n), now));
            if now % 10_000 == 0 {
                assert!(limit.take(port(16 * SENDERS), now), "its own part, at {now}");
            }
        }
        // One flood more: no sender loses the part that it has, and the next has it when a flood is over.
        let now = 2_000_000;
        (0..SENDERS).for_each(|n| _ = pass(&limit, port(n), now));
        assert!(!limit.take(port(SENDERS), now));
        let rest = (1..SENDERS).map(|n| pass(&limit, port(n), now + 500_000)).sum::<usize>();
        assert_eq!(rest, 87 + (SENDERS - 1) * 13);
        assert_eq!(pass(&limit, port(SENDERS), now + 500_000), 13);
    }
}
