//! How long a frame takes through a router that has little to do.
//!
//! Theory of operation. Frames are due at a steady rate, by the time stamp counter, and each carries the
//! moment at which it was due. Its delay ends when the receiver, which is the sender's thread, has it in
//! hand. If that thread was away for a while, the frames that were due meanwhile count as late (no
//! coordinated omission), for all candidates alike. The same ports joined by a wire show what of the delay is
//! not the router's.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use sidecore_driver::load::{now, seen, ticks_per_ns};
use sidecore_pktgen::end::{Lane, Sink, Source};

use super::super::common::{middle, text, whole, Result};
use super::super::distance::{Distance, Mode};
use super::super::lane::{Frames, SIZE};
use super::super::modes::Modes;
use super::ends::{Ends, LOST_AFTER};
use super::report::Case;

/// Frames a second: a core has 10 µs for each.
pub const RATE: f64 = 100_000.0;
/// Where a frame carries the moment at which it was due: behind its UDP header, which has no checksum.
const DUE: std::ops::Range<usize> = 42..50;

/// What one measurement says.
#[derive(Clone, Debug)]
pub struct Delays {
    /// Half of the frames and 99 of 100 took at most so many microseconds.
    p50_us: f64,
    p99_us: f64,
    /// Frames that were sent and did not arrive.
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

/// A row of the table of delays.
#[derive(Clone, Debug, Serialize)]
pub struct DelayRow {
    #[serde(flatten)]
    pub case: Case,
    /// Frames a second.
    rate: f64,
    /// Medians of the rounds, in microseconds, and all of them.
    pub p50_us: f64,
    pub p99_us: f64,
    samples: Vec<[f64; 2]>,
    /// `p50_us` by the distance of the two processors.
    modes: Modes,
    lost: u64,
}

impl DelayRow {
    /// The row of a case's rounds.
    pub fn of(case: Case, samples: &[Delays]) -> DelayRow {
        DelayRow {
            case,
            rate: RATE,
            p50_us: middle(samples, |it| it.p50_us),
            p99_us: middle(samples, |it| it.p99_us),
            samples: samples.iter().map(Delays::of).collect(),
            modes: Modes::of(samples, |it| (it.mode, it.p50_us)),
            lost: samples.iter().map(|it| it.lost).sum(),
        }
    }
}

/// Frames by turns, each with the moment at which it was due.
struct Due<'f> {
    frames: Frames<'f>,
    due: u64,
}

impl Source for Due<'_> {
    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.frames.write(buffer);
        buffer[DUE].copy_from_slice(&self.due.to_le_bytes());
        len
    }
}

/// Takes the delay of each frame of ours.
struct Timed {
    delays: Histogram<u64>,
    begun: u64,
    per_ns: f64,
}

impl Sink for Timed {
    const READS: bool = true;

    #[inline]
    fn frame(&mut self, frame: &[u8]) {
        let Some(due) = frame.get(DUE).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes) else {
            return;
        };
        let now = seen();
        // Others, such as a router's own questions, have no such moment there.
        if (self.begun..=now).contains(&due) {
            self.delays.saturating_record(whole((now - due) as f64 / self.per_ns).max(1));
        }
    }
}

impl Ends<'_> {
    /// Sends [`RATE`] frames a second for as long as `time`.
    pub fn delays(&mut self, frames: &[[u8; SIZE]], time: Duration) -> Result<Delays> {
        // Measured once for all, which takes a while.
        static PER_NS: OnceLock<f64> = OnceLock::new();
        let per_ns = *PER_NS.get_or_init(ticks_per_ns);
        let distance = Distance::before(&self.cpus);
        let gap = whole(1e9 / RATE * per_ns);
        let begun = now();
        let end = begun + whole(time.as_nanos() as f64 * per_ns);
        let mut source = Due { frames: Frames { frames, next: 0 }, due: begun };
        let histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).map_err(text)?;
        let mut sink = Timed { delays: histogram, begun, per_ns };
        let mut sent = 0;
        while source.due < end {
            if now() >= source.due && self.from.room()? > 0 && self.from.send(1, &mut source)?.frames > 0 {
                sent += 1;
                source.due += gap;
            }
            self.to.receive(256, &mut sink)?;
        }
        let waits = Instant::now();
        while sink.delays.len() < sent && waits.elapsed() < LOST_AFTER {
            self.to.receive(256, &mut sink)?;
        }
        self.from.room()?;
        let us = |quantile| sink.delays.value_at_quantile(quantile) as f64 / 1e3;
        let lost = sent.saturating_sub(sink.delays.len());
        Ok(Delays { p50_us: us(0.5), p99_us: us(0.99), lost, mode: distance.after() })
    }
}
