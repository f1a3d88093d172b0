//! How long a frame takes through a router that has little to do.
//!
//! Theory of operation. It is one trial of `bench rfc2544` (`trial`) at a steady rate. The same ports joined
//! by a wire show what of the delay is not the router's.

use super::super::lane::SIZE;
use super::super::rfc2544::traffic::Traffic;
use super::super::rfc2544::trial::{Spell, Tester};
use super::ends::Ends;
use super::report::Case;
use crate::prelude::*;

/// Frames a second: a core has 10 µs for each.
pub const RATE: f64 = 100_000.0;

/// What one measurement says.
#[derive(Clone, Debug)]
pub struct Delays {
    /// Half of the frames and 99 of 100 took at most so many microseconds.
    p50_us: f64,
    p99_us: f64,
    /// Frames that were offered and did not arrive.
    lost: u64,
    /// How far the two processors were from each other.
    pub mode: Mode,
}

impl Delays {
    /// Half of the frames and 99 of 100 took at most so many microseconds.
    pub fn of(&self) -> [f64; 2] {
        [self.p50_us, self.p99_us]
    }
}

row! {
    /// The row of a case's rounds.
    pub fn delay_row(case: Case, samples: &[Delays]) -> DelayRow {}

    /// A row of the table of delays.
    pub struct DelayRow {
        #[serde(flatten)]
        pub case: Case = case,
        /// Frames a second.
        rate: f64 = RATE,
        /// Medians of the rounds, in microseconds, and all of them.
        pub p50_us: f64 = middle(samples, |it| it.p50_us),
        pub p99_us: f64 = middle(samples, |it| it.p99_us),
        samples: Vec<[f64; 2]> = samples.iter().map(Delays::of).collect(),
        /// `p50_us` by the distance of the two processors.
        modes: Modes = Modes::of(samples, |it| (it.mode, it.p50_us)),
        lost: u64 = samples.iter().map(|it| it.lost).sum(),
    }
}

impl Ends<'_> {
    /// Sends [`RATE`] frames a second for as long as `time`.
    pub fn delays(self, frames: &[[u8; SIZE]], time: Duration) -> Result<Delays> {
        let traffic = Traffic::of(frames);
        let distance = Distance::before(&self.cpus);
        let mut tester = Tester::new(&traffic, self.from, Some(self.to), None);
        let trial = tester.run(&[Spell::of(RATE, time.as_secs_f64())], true)?;
        let delays = trial.delays.as_ref().ok_or("a trial without delays")?;
        let [p50_us, p99_us] = [0.5, 0.99].map(|quantile| tester.us(delays.value_at_quantile(quantile)));
        Ok(Delays { p50_us, p99_us, lost: trial.lost(), mode: distance.after() })
    }
}
