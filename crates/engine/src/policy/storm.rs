//! Storm limits: how many copies a second a port's floods may make.
//!
//! Theory of operation. A flooded frame costs as many copies as there are other ports on the switch, so the limit
//! counts copies. Each kind of flood has a bucket of tokens, filled at the rate that the operator chose, with at most a
//! tenth of a second's worth. A frame passes while there is a token, and may take more tokens than there are; the next
//! frame waits until the excess is paid back. So a lone broadcast passes on a switch of any size.
//!
//! One lock for each batch that floods, at ports with a limit only.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::frame::is_group;
use crate::port::DropReason;

/// Parts of a token, so that microseconds times the rate is a whole number.
const PARTS: i64 = 1_000_000;
/// Microseconds for which tokens are saved.
const SAVED: i64 = 100_000;

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

/// The limits of one port, with what is left.
#[derive(Debug)]
pub struct Storm {
    rates: [i64; 3],
    left: Mutex<Left>,
}

#[derive(Debug)]
struct Left {
    parts: [i64; 3],
    since: Option<Instant>,
}

/// What is left, for one batch.
pub struct StormAllowance<'s> {
    rates: &'s [i64; 3],
    left: MutexGuard<'s, Left>,
}

fn most(rate: i64) -> i64 {
    (rate * SAVED).max(PARTS)
}

impl Storm {
    /// `None` if nothing is limited.
    pub fn new(limits: StormLimits) -> Option<Storm> {
        let rates = [limits.broadcast, limits.multicast, limits.unicast].map(i64::from);
        let left = Left { parts: rates.map(most), since: None };
        (limits != StormLimits::default()).then(|| Storm { rates, left: Mutex::new(left) })
    }

    /// What may pass at time `now`.
    pub fn open(&self, now: Instant) -> StormAllowance<'_> {
        // Numbers: a panic leaves nothing half done.
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = left.since.map_or(0, |since| now.saturating_duration_since(since).as_micros());
        let micros = i64::try_from(passed).unwrap_or(i64::MAX);
        if micros > 0 || left.since.is_none() {
            left.since = Some(now);
        }
        for (parts, rate) in left.parts.iter_mut().zip(self.rates) {
            *parts = parts.saturating_add(micros.saturating_mul(rate)).min(most(rate));
        }
        StormAllowance { rates: &self.rates, left }
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
        if self.rates[kind] == 0 {
            return Ok(());
        }
        if self.left.parts[kind] < PARTS {
            return Err(REASONS[kind]);
        }
        self.left.parts[kind] -= i64::try_from(copies).unwrap_or(i64::MAX / PARTS) * PARTS;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const BROADCAST: u64 = 0xffff_ffff_ffff;

    fn admitted(storm: &Storm, now: Instant, dst: u64, copies: usize) -> usize {
        let mut gate = storm.open(now);
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
        assert_eq!(storm.open(after(6000)).admit(2, 1), Err(DropReason::StormUnicast));
        // What has no limit has none.
        assert_eq!(admitted(&storm, after(6000), 0x0100_5e00_0001, 1000), 100_000);
        // Hours without a frame save no more than a tenth of a second.
        assert_eq!(admitted(&storm, after(60_000_000), BROADCAST, 1), 100);
    }
}
