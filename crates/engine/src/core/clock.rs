//! The time that I/O cores go by: nanoseconds since the engine's cores were started, one reading some 10 ns.

use std::time::{Duration, Instant};

use super::task::Visit;
use crate::mem::{ticks, ticks_are_steady, ticks_in, time_of, Effort};

/// What a core reads.
pub(super) trait Clock {
    /// Nanoseconds since the start. Never less than what it said before.
    fn now(&mut self) -> u64;

    /// What is lost from now on is known: called in every round.
    #[inline]
    fn mark(&mut self) {}

    /// Of the last `ns` nanoseconds those, at most, in which others had the processor, and this thread waited for nothing. Not for
    /// what happens often.
    fn lost(&mut self, ns: u64) -> u64 {
        let _ = ns;
        0
    }

    /// The same after `visit`.
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
    /// Where its thread stood some time ago, and how old that may be: ticks.
    mark: Option<Effort>,
    oldest: u64,
}

/// How often it is noted where the thread stands, which takes two system calls: a thousandth of the time.
const MARK_EVERY: Duration = Duration::from_millis(1);

impl CoreClock {
    /// The clock of several cores: its copies agree.
    pub(super) fn new() -> CoreClock {
        // Long enough for the rate to have no error that shows.
        let measure = std::time::Duration::from_secs(1);
        let rate = (1_000_000_000u128 << 32) / u128::from(ticks_in(measure).max(1));
        let rate = u64::try_from(rate).ok().filter(|_| ticks_are_steady());
        let counter = rate.map(|rate| (ticks(), rate));
        CoreClock { start: Instant::now(), counter, last: 0, mark: None, oldest: ticks_in(MARK_EVERY) }
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

    #[inline]
    fn mark(&mut self) {
        if self.mark.as_ref().is_none_or(|mark| mark.age() > self.oldest) {
            self.mark = Some(Effort::now());
        }
    }

    #[cold]
    fn lost(&mut self, ns: u64) -> u64 {
        let lost = self.mark.as_ref().map_or(0, Effort::kept);
        // It is counted once.
        self.mark = Some(Effort::now());
        ns.min(u64::try_from(time_of(lost).as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// What a task waits for is its own time.
    #[test]
    fn time_of_a_wait_is_not_others() {
        let mut clock = CoreClock::new();
        assert_eq!(clock.lost(1_000_000), 0, "without a mark nothing is known");
        clock.mark();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(clock.lost(10_000_000), 0);
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
