//! Storm limits: how many copies a second a port's floods may make.
//!
//! Theory of operation. A flooded frame costs as many copies as there are other ports on the switch, so the
//! limit counts copies. Each kind of flood has a bucket of tokens (`util::bucket`), filled at the rate that
//! the operator chose, with at most a tenth of a second's worth. A frame passes while there is a token, and
//! may take more tokens than there are; the next frame waits until the excess is paid back. So a lone
//! broadcast passes on a switch of any size.
//!
//! A batch that floods reads the buckets once, and writes once to those that it took from; at ports with a
//! limit only.

use std::time::Instant;

use crate::packet::is_group;
use crate::port::DropReason;
use crate::util::bucket::{nanos_at, parts, time_of, Bucket};

/// Nanoseconds for which tokens are saved.
const SAVED: u64 = 100_000_000;

/// Kinds of floods, in the order of a port's limits.
const REASONS: [DropReason; 3] =
    [DropReason::StormBroadcast, DropReason::StormMulticast, DropReason::StormUnicast];

/// Copies a second; 0: any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormLimits {
    /// By frames to the broadcast address.
    pub broadcast: u32,
    /// By frames to other group addresses.
    pub multicast: u32,
    /// By frames to addresses that are not known.
    pub unicast: u32,
}

/// One kind's limit, with what is left.
#[derive(Debug)]
struct Limit {
    /// The time that one copy takes, and that of all copies that are saved up. No time: there is no limit.
    price: u64,
    burst: u64,
    bucket: Bucket,
}

/// The limits of one port.
#[derive(Debug)]
pub struct Storm([Limit; 3]);

/// What is left, for one batch.
pub struct StormAllowance<'s> {
    limits: &'s [Limit; 3],
    /// Time that was taken: before, and by this batch.
    ahead: [u64; 3],
    taken: [u64; 3],
    now: u64,
    spends: bool,
}

impl Storm {
    /// `None` if nothing is limited.
    pub fn new(limits: StormLimits) -> Option<Storm> {
        let limit = |rate: u32| {
            let price = if rate == 0 { 0 } else { time_of(1, rate.into()) };
            Limit { price, burst: parts(SAVED).max(price), bucket: Bucket::new() }
        };
        let StormLimits { broadcast, multicast, unicast } = limits;
        (limits != StormLimits::default()).then(|| Storm([broadcast, multicast, unicast].map(limit)))
    }

    /// What may pass at time `now`. What passes is taken from the limits, unless that is only asked.
    pub fn open(&self, now: Instant, spends: bool) -> StormAllowance<'_> {
        let (limits, now) = (&self.0, parts(nanos_at(now)));
        let ahead = limits.each_ref().map(|it| it.bucket.ahead(now));
        StormAllowance { limits, ahead, taken: [0; 3], now, spends }
    }
}

impl StormAllowance<'_> {
    /// Whether a frame to `dst` may make `copies`; if not, why not.
    pub fn admit(&mut self, dst: u64, copies: usize) -> Result<(), DropReason> {
        let kind = match dst {
            0xffff_ffff_ffff => 0,
            dst if is_group(dst) => 1,
            _ => 2,
        };
        let &Limit { price, burst, .. } = &self.limits[kind];
        if price > 0 && self.ahead[kind].saturating_add(self.taken[kind]).saturating_add(price) > burst {
            return Err(REASONS[kind]);
        }
        let copies = u64::try_from(copies).unwrap_or(u64::MAX);
        self.taken[kind] = self.taken[kind].saturating_add(price.saturating_mul(copies));
        Ok(())
    }
}

impl Drop for StormAllowance<'_> {
    fn drop(&mut self) {
        for (limit, taken) in
            self.limits.iter().zip(self.taken).filter(|(_, taken)| self.spends && *taken > 0)
        {
            limit.bucket.add(taken, u64::MAX, self.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const BROADCAST: u64 = 0xffff_ffff_ffff;

    fn admitted(storm: &Storm, now: Instant, dst: u64, copies: usize) -> usize {
        let mut gate = storm.open(now, true);
        (0..100_000).take_while(|_| gate.admit(dst, copies).is_ok()).count()
    }

    #[test]
    fn copies_are_what_is_limited() {
        assert!(Storm::new(StormLimits::default()).is_none());
        let storm =
            Storm::new(StormLimits { broadcast: 1000, unicast: 10, ..StormLimits::default() }).unwrap();
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(admitted(&storm, start, BROADCAST, 10), 10, "a tenth of a second's worth");
        assert_eq!(admitted(&storm, after(10), BROADCAST, 10), 1);
        // In each later second as many copies as were chosen, however often it is asked.
        let frames: usize = (1..=1000).map(|ms| admitted(&storm, after(10 + ms), BROADCAST, 10)).sum();
        assert!((99..=101).contains(&frames), "{frames}");
        // One frame passes, however many copies it makes, and is paid for afterwards.
        assert_eq!(admitted(&storm, after(2000), 2, 30), 1);
        assert_eq!(admitted(&storm, after(4000), 2, 30), 0);
        assert_eq!(admitted(&storm, after(6000), 2, 30), 1);
        assert_eq!(storm.open(after(6000), true).admit(2, 1), Err(DropReason::StormUnicast));
        // What has no limit has none.
        assert_eq!(admitted(&storm, after(6000), 0x0100_5e00_0001, 1000), 100_000);
        // Hours without a frame save no more than a tenth of a second.
        assert_eq!(admitted(&storm, after(60_000_000), BROADCAST, 1), 100);
    }
}
