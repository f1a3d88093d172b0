//! How long things took: a histogram of nanoseconds with four steps to each doubling, so that a quantile is
//! told within a quarter of itself.
//!
//! One thread writes it, any thread reads it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Steps: four to each doubling, from [`FIRST`] on.
const STEPS: usize = 96;
/// Nanoseconds below which all times are alike, as a power of two.
const FIRST: u32 = 6;

/// Times, counted by their size.
#[derive(Debug)]
pub struct Histogram([AtomicU32; STEPS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([const { AtomicU32::new(0) }; STEPS])
    }
}

impl Histogram {
    /// Counts a time of `ns`. One writer: a load and a store are enough.
    pub fn add(&self, ns: u64) {
        let step = &self.0[step(ns)];
        step.store(step.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Nanoseconds that `percents` percent of what was counted are within; zero where nothing was.
    pub fn quantiles<const N: usize>(&self, percents: [u64; N]) -> [u64; N] {
        Histogram::quantiles_of([self], percents)
    }

    /// Nanoseconds that `percents` percent of what several histograms counted together are within.
    pub fn quantiles_of<'h, const N: usize>(
        all: impl IntoIterator<Item = &'h Histogram>,
        percents: [u64; N],
    ) -> [u64; N] {
        let mut steps = [0u64; STEPS];
        for histogram in all {
            let counts = histogram.0.iter().map(|step| u64::from(step.load(Ordering::Relaxed)));
            steps.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
        percents.map(|percent| quantile(&steps, percent))
    }
}

/// The step of a time of `ns`: the place of its highest bit, and the two bits below.
#[inline]
fn step(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST);
    let octave = 63 - ns.leading_zeros();
    let quarter = (ns >> (octave - 2)) & 3;
    (((octave - FIRST) as usize) * 4 + quarter as usize).min(STEPS - 1)
}

/// The end of a step.
fn upper(step: usize) -> u64 {
    let octave = step / 4 + FIRST as usize;
    let quarter = (step % 4 + 1) as u64;
    (1 << octave) + (quarter << (octave - 2))
}

/// Nanoseconds that `percent` percent of what was counted are within.
fn quantile(steps: &[u64], percent: u64) -> u64 {
    let all: u64 = steps.iter().sum();
    let mut rest = (all * percent).div_ceil(100);
    for (place, count) in steps.iter().enumerate() {
        if rest <= *count && rest > 0 {
            return upper(place);
        }
        rest -= (*count).min(rest);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_within_a_quarter() {
        for ns in [64u64, 65, 100, 1_000, 12_345, 999_999, 1 << 29] {
            let told = upper(step(ns));
            assert!(told > ns && told <= ns + ns / 4 + 16, "{ns}: {told}");
        }
        assert_eq!((step(0), step(u64::MAX)), (0, STEPS - 1));
        let (a, b) = (Histogram::default(), Histogram::default());
        (0..98).for_each(|_| a.add(1_000));
        (0..2).for_each(|_| b.add(50_000));
        let [p50, p99] = Histogram::quantiles_of([&a, &b], [50, 99]);
        assert!((1_000..1_300).contains(&p50) && (50_000..65_000).contains(&p99), "{p50} {p99}");
        assert_eq!(Histogram::default().quantiles([99]), [0]);
    }
}
