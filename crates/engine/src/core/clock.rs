//! The time that I/O cores go by: nanoseconds since the engine's cores were started, one reading some 10 ns.

use std::time::Instant;

use super::task::Visit;
use crate::mem::{lost_of, signalled, ticks, ticks_are_steady, ticks_in};

/// What a core reads.
pub(super) trait Clock {
    /// Nanoseconds since the start. Never less than what it said before.
    fn now(&mut self) -> u64;

    /// How many of the last `ns` nanoseconds, at most, others had the processor. System calls.
    fn lost(&mut self, ns: u64) -> u64 {
        let _ = ns;
        0
    }

    /// Nanoseconds that signals took since this was asked last.
    fn signalled(&mut self) -> u64 {
        0
    }

    /// The time after `visit`.
    fn after(&mut self, visit: &Visit) -> u64 {
        let _ = visit;
        self.now()
    }
}

/// Nanoseconds by which processors' counters, and the kernel's clock, may differ.
const APART: u64 = 1_000_000_000;

/// The processor's counter, where it runs at one rate; else the kernel's clock.
#[derive(Clone, Debug)]
pub(super) struct CoreClock {
    start: Instant,
    /// The counter at the start, and nanoseconds of a tick in 2⁻³².
    counter: Option<(u64, u64)>,
    last: u64,
}

impl CoreClock {
    /// The clock of several cores: its copies agree.
    pub(super) fn new() -> CoreClock {
        // Long enough for the rate to have no error that shows.
        let measure = std::time::Duration::from_secs(1);
        let rate = (1_000_000_000u128 << 32) / u128::from(ticks_in(measure).max(1));
        let rate = u64::try_from(rate).ok().filter(|_| ticks_are_steady());
        let counter = rate.map(|rate| (ticks(), rate));
        CoreClock { start: Instant::now(), counter, last: 0 }
    }

    fn kernel(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The counter says that it is `now`, which is less than before. Where it has begun anew, as after the
    /// machine was suspended (Intel SDM vol. 3B §19.17), it counts from the kernel's time on, on which all
    /// copies agree.
    #[cold]
    fn behind(&mut self, now: u64) -> u64 {
        let kernel = self.kernel();
        let Some((start, rate)) = self.counter.as_mut().filter(|_| kernel > now + APART) else { return now };
        let passed = (u128::from(kernel) << 32) / u128::from(*rate).max(1);
        *start = ticks().wrapping_sub(u64::try_from(passed).unwrap_or(0));
        kernel
    }
}

impl Clock for CoreClock {
    #[inline]
    fn now(&mut self) -> u64 {
        let now = match self.counter {
            #[expect(clippy::cast_possible_truncation, reason = "584 years of nanoseconds")]
            Some((start, rate)) => {
                let passed = ticks().wrapping_sub(start);
                // A thread that moves to a processor whose counter is behind reads less than before.
                let passed = if passed > u64::MAX / 2 { 0 } else { passed };
                ((u128::from(passed) * u128::from(rate)) >> 32) as u64
            }
            None => self.kernel(),
        };
        let now = if now == 0 || now + APART < self.last { self.behind(now) } else { now };
        self.last = self.last.max(now);
        self.last
    }

    #[cold]
    fn lost(&mut self, ns: u64) -> u64 {
        lost_of(ns)
    }

    fn signalled(&mut self) -> u64 {
        u64::try_from(signalled().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::CoreTime;
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

    /// A machine that was suspended begins its counter anew: the clock goes on, and all of its copies agree.
    #[test]
    fn a_counter_that_begins_anew_goes_on_from_the_kernels_time() {
        let (second, begun) = (ticks_in(Duration::from_secs(1)), Instant::now());
        for start in [ticks().wrapping_add(90 * second), ticks().wrapping_sub(10 * second)] {
            let mut clock = CoreClock::new();
            let Some((_, rate)) = clock.counter else { panic!("this test needs an invariant counter") };
            (clock.start, clock.last) = (begun - Duration::from_secs(100), 99_000_000_000);
            clock.counter = Some((start, rate));
            let (now, real) = (clock.now(), clock.kernel());
            assert!(now >= 100_000_000_000 && now <= real, "{now} {real}");
            let later = Instant::now();
            while later.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            assert!(clock.now() > now, "it goes on");
        }
    }

    /// As when a VMM's memory makes a visit wait for a page: that is the visit's own time.
    #[test]
    fn what_a_thread_waits_for_by_itself_is_not_lost() {
        let slept = std::thread::spawn(|| {
            let _time = CoreTime::of_this_thread().unwrap();
            let mut clock = CoreClock::new();
            let nap = Duration::from_millis(20);
            // On a machine with much else to do it waits for a processor behind a nap, too.
            (0..50).map(|_| (std::thread::sleep(nap), clock.lost(20_000_000)).1).min()
        });
        assert!(slept.join().unwrap().unwrap() < 10_000_000);
    }
}
