//! Time by the processor's time stamp counter: a few nanoseconds a look.
//!
//! Invariant kept by the `unsafe` here: the instruction only reads a counter.

use std::time::{Duration, Instant};

/// The time stamp counter and its rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    per_ns: f64,
}

impl Clock {
    /// Measures the counter's rate.
    pub(super) fn new() -> Self {
        let (start, from) = (Instant::now(), ticks());
        // A measurement of the counter itself: 20 ms give 0.01 %.
        while start.elapsed() < Duration::from_millis(20) {}
        let elapsed = start.elapsed();
        Self { per_ns: (ticks() - from) as f64 / elapsed.as_nanos() as f64 }
    }

    /// Ticks in a time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Hours at most, and positive.
    pub(super) fn ticks(self, time: Duration) -> u64 {
        (time.as_nanos() as f64 * self.per_ns) as u64
    }

    /// Whole nanoseconds of `ticks`, rounded.
    #[inline]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Hours at most, and positive.
    pub(super) fn whole_ns(self, ticks: u64) -> u64 {
        self.ns(ticks).round() as u64
    }

    /// Nanoseconds in a number of ticks.
    #[inline]
    pub(super) fn ns(self, ticks: u64) -> f64 {
        ticks as f64 / self.per_ns
    }
}

#[inline(always)]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    compile_error!("the load needs a time stamp counter");
}

/// The counter when all earlier loads are done (Intel SDM volume 2, RDTSCP; AMD64 volume 3).
#[inline(always)]
pub(super) fn ticks_after() -> u64 {
    let mut cpu = 0;
    // SAFETY: reads a counter, and the processor's number into `cpu`.
    unsafe { std::arch::x86_64::__rdtscp(&raw mut cpu) }
}
