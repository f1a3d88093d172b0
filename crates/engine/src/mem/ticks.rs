//! A clock that costs next to nothing to read: the processor's time stamp counter (Intel SDM vol. 3B §19.17), where there is
//! one. For bounds, not for accounts: its rate is measured once, and nothing is said about other processors' counters.
//!
//! Invariant of the `unsafe` here: reading the counter touches no memory.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// For so long the counter's rate is measured.
const MEASURE: Duration = Duration::from_millis(1);

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Ticks a microsecond.
static RATE: LazyLock<u64> = LazyLock::new(|| {
    let (start, first) = (Instant::now(), ticks());
    while start.elapsed() < MEASURE {
        std::hint::spin_loop();
    }
    let (ticks, time) = (ticks().wrapping_sub(first), start.elapsed());
    (ticks / u64::try_from(time.as_micros()).unwrap_or(1).max(1)).max(1)
});

/// The counter now.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the counter, and no user is kept from reading it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// How far the counter goes in `time`. Measures its rate when it is called first: not for hot paths.
pub fn ticks_in(time: Duration) -> u64 {
    LazyLock::force(&EPOCH);
    RATE.saturating_mul(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// The time in which the counter goes so far; the reverse of [`ticks_in`].
pub fn time_of(ticks: u64) -> Duration {
    LazyLock::force(&EPOCH);
    Duration::from_nanos(u64::try_from(u128::from(ticks) * 1_000 / u128::from(*RATE)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_pass_as_time_does() {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let passed = ticks().wrapping_sub(first);
        // Nobody else may have run meanwhile on a loaded machine; the rate is no secret.
        assert!(passed >= ticks_in(Duration::from_millis(10)), "{passed}");
    }
}
