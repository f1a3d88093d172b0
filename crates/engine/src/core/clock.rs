//! The time that I/O cores go by: nanoseconds since the engine's cores were started, one reading some 10 ns.

use std::time::Instant;

use rustix::time::{clock_gettime, ClockId};

use super::task::Visit;
use crate::mem::{lost_of, ticks, ticks_are_steady, ticks_in};

/// What a core reads.
pub(super) trait Clock {
    /// Nanoseconds since the start. Never less than what it said before.
    fn now(&mut self) -> u64;

    /// Of the last `ns` nanoseconds those, at most, in which others had the processor. A system call.
    fn lost(&mut self, ns: u64) -> u64 {
        let _ = ns;
        0
    }

    /// The time after `visit`.
    #[inline]
    fn after(&mut self, visit: &Visit) -> u64 {
        let _ = visit;
        self.now()
    }
}

/// The processor's counter, where it runs at one rate; else the kernel's clock.
#[derive(Clone, Debug)]
pub(super) struct CoreClock {
    start: Instant,
    /// The counter at the start, and nanoseconds of a tick in 2⁻³².
    counter: Option<(u64, u64)>,
    last: u64,
    /// When the thread was asked last what it has had of processors, and what that was.
    asked: (u64, u64),
}

/// What the thread was asked so long ago is near enough to the begin of a visit. In nanoseconds.
const LATELY: u64 = 1_000_000;

impl CoreClock {
    /// The clock of several cores: its copies agree.
    pub(super) fn new() -> CoreClock {
        // Long enough for the rate to have no error that shows.
        let measure = std::time::Duration::from_secs(1);
        let rate = (1_000_000_000u128 << 32) / u128::from(ticks_in(measure).max(1));
        let rate = u64::try_from(rate).ok().filter(|_| ticks_are_steady());
        let counter = rate.map(|rate| (ticks(), rate));
        CoreClock { start: Instant::now(), counter, last: 0, asked: (0, 0) }
    }
}

impl Clock for CoreClock {
    #[inline]
    fn now(&mut self) -> u64 {
        let now = match self.counter {
            #[expect(clippy::cast_possible_truncation, reason = "584 years of nanoseconds")]
            Some((start, rate)) => {
                // A thread that moves to a processor whose counter is behind reads less than before.
                let passed = ticks().wrapping_sub(start);
                let passed = if passed > u64::MAX / 2 { 0 } else { passed };
                ((u128::from(passed) * u128::from(rate)) >> 32) as u64
            }
            None => u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        self.last = self.last.max(now);
        self.last
    }

    #[cold]
    fn lost(&mut self, ns: u64) -> u64 {
        let now = self.now();
        let had = clock_gettime(ClockId::ThreadCPUTime);
        let had = u64::try_from(had.tv_sec * 1_000_000_000 + had.tv_nsec).unwrap_or(0);
        let (asked, before) = std::mem::replace(&mut self.asked, (now, had));
        match now - asked <= ns + LATELY {
            true => (now - asked).saturating_sub(had - before).min(ns),
            // The notes of another thread tell it less exactly.
            false => lost_of(ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_agrees_with_the_kernels() {
        for steady in [true, false] {
            let mut clock = CoreClock::new();
            if !steady {
                clock.counter = None;
            }
            let (start, first) = (Instant::now(), clock.now());
            while start.elapsed() < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            let (passed, real) = (clock.now() - first, start.elapsed());
            // The thread may be kept from running between two readings, which only lengthens one of them.
            assert!(passed > 49_000_000 && passed < 10 * u64::try_from(real.as_nanos()).unwrap(), "{passed}");
        }
    }

    #[test]
    fn a_counter_that_jumps_back_stands_still() {
        let mut clock = CoreClock::new();
        let (start, rate) = clock.counter.unwrap_or((0, 1 << 32));
        clock.counter = Some((start, rate));
        let before = clock.now();
        clock.counter = Some((ticks() + ticks_in(Duration::from_secs(10)), rate));
        assert!(clock.now() >= before && clock.now() < before + 1_000_000_000);
    }
}
