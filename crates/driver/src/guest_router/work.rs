//! Work that takes a processor a known time, and nothing else: what a network stack does with a frame.
//!
//! It is a chain of multiplications, each of which waits for the one before it, not a look at the clock: a
//! thread that loses its processor in the middle has the rest of its work still to do, as a kernel has.

use std::hint::black_box;

use crate::load::{now, ticks_per_ns};

/// Steps of a stretch that is timed.
const STEPS: u32 = 20_000;
/// Stretches: the shortest is the one that nothing disturbed.
const STRETCHES: usize = 50;

/// Work of a length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    steps: u32,
}

impl Work {
    /// Work that takes so many nanoseconds, by this processor's speed now.
    pub(super) fn of_ns(ns: f64) -> Work {
        if ns <= 0.0 {
            return Work::default();
        }
        let stretch = Work { steps: STEPS };
        let time = || {
            let start = now();
            stretch.spend();
            now() - start
        };
        let least = (0..STRETCHES).map(|_| time()).min().unwrap_or(1).max(1);
        let per_step = least as f64 / ticks_per_ns() / f64::from(STEPS);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates, and is positive.
        Work { steps: (ns / per_step).round() as u32 }
    }

    /// Does it.
    #[inline]
    pub(super) fn spend(self) {
        let mut word = 1u64;
        for _ in 0..self.steps {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        black_box(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_its_time() {
        let work = Work::of_ns(2_000.0);
        let per_ns = ticks_per_ns();
        let one = || {
            let start = now();
            work.spend();
            (now() - start) as f64 / per_ns
        };
        let least = (0..200).map(|_| one()).fold(f64::INFINITY, f64::min);
        assert!((1_500.0..3_000.0).contains(&least), "{least} ns");
        assert_eq!(Work::of_ns(0.0).steps, 0);
    }
}
