//! `sidecore bench budget`: what part of an I/O core a guest receives that was granted a part of it, as
//! Figures 10 to 12 of the reservation paper have it.
//!
//! One guest keeps its ring full of jumbo frames, so that the core has more to do than the guest. With each
//! budget two things are measured: the time that it had, by the I/O core's own account, and the frames that
//! arrived, against those that a whole core moves. The second does not trust the first, but for the part of
//! the time in which the core was busy when the guest had no budget. What a whole core moves changes with the
//! machine's speed, so it is measured before and after each budget.

use sidecore_engine::core::{CpuBudget, Service};

use super::cores::JUMBO;
use super::guest::{Report, Work};
use super::stage::Stage;
use crate::prelude::*;

/// `bench budget`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Granted shares in percent.
    #[arg(
        long,
        value_name = "PERCENT,…",
        value_delimiter = ',',
        default_value = "5,15,25,35,45,55,65,75,85,95"
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=95))]
    pub shares: Vec<u8>,
    /// Milliseconds of a budget's period.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub period: u8,
    #[command(flatten)]
    pub common: Common,
}

/// Measurements of a whole core before it is given up.
const TRIES: usize = 10;

figures! {
    /// One measurement, or medians of them: parts of a core.
    struct Figures {
        /// What the I/O core says that the guest had, and what its frames are of a whole core's.
        time, frames, load_busy,
    }
}

/// With the distance meanwhile, and while a whole core was measured before and after it.
type Sample = (Figures, Mode);

/// A row of the table: medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The part of a core that was granted, and the greater error of the two.
    granted: f64,
    error: f64,
    #[serde(flatten)]
    figures: Figures,
    /// The part by its frames.
    #[serde(skip_deserializing)]
    modes: Modes,
}

/// `bench budget`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let shares = if common.quick { vec![25, 75] } else { args.shares.clone() };
    let samples = in_parts(common.repeat.rounds, &[()], |round, ()| {
        let samples = measure(args, &common, &shares)?;
        for ((it, _), share) in samples.iter().zip(&shares) {
            let [time, frames] = [it.time, it.frames].map(|part| 100.0 * part);
            eprintln!("{round}: {share} % granted, {time:.1} % by time, {frames:.1} % by frames");
        }
        Ok(samples)
    })?;
    let rows: Vec<Row> = shares.iter().zip(&samples[0]).map(|(share, of)| row(*share, of)).collect();
    let summary = fields! { worst_error: rows.iter().map(|row| row.error).fold(f64::NAN, f64::max) };
    let note = format!("one guest that floods, parts of an I/O core, {}", common.repeat);
    Results::new("budget", &note)
        .with("period_ms", &args.period)?
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

/// All shares, each between two measurements of a whole core.
fn measure(args: &Args, common: &Common, shares: &[u8]) -> Result<Vec<Sample>> {
    let stage = Stage::start(JUMBO, &common.io_cores[..1], 1)?;
    let port = stage.guest(0);
    let period = Duration::from_millis(args.period.into());
    stage.play(common.load_core, |players| {
        let mut take = |share: Option<u8>| -> Result<(Report, u64)> {
            let budget = share.map(|share| CpuBudget {
                runtime: period * u32::from(share) / 100,
                period,
                reclaim: false,
            });
            port.tenant.set(Service { budget, ..Service::default() });
            let (report, [busy]) = players.measure_with(
                |_| Work::Jumbo,
                common.repeat.window,
                || [port.tenant.usage().busy_ns],
            )?;
            Ok((report, busy))
        };
        let mut before = whole(&mut take)?;
        let one = |share: &u8| {
            let (report, busy) = take(Some(*share))?;
            let after = whole(&mut take)?;
            let earlier = std::mem::replace(&mut before, after);
            let around = (earlier.0 + after.0) / 2.0;
            let figures = Figures {
                time: busy as f64 / 1e9 / report.seconds,
                frames: report.rate(0..1) / around,
                load_busy: report.load_busy,
            };
            Ok((figures, earlier.1.and(report.mode).and(after.1)))
        };
        shares.iter().map(one).collect()
    })
}

/// Frames a second of a core that does nothing else. One that had its processor in no part of the time says
/// nothing, and is measured again.
fn whole(take: &mut impl FnMut(Option<u8>) -> Result<(Report, u64)>) -> Result<(f64, Mode)> {
    for _ in 0..TRIES {
        let (all, busy) = take(None)?;
        if busy > 0 {
            return Ok((all.rate(0..1) / (busy as f64 / 1e9 / all.seconds), all.mode));
        }
    }
    Err(format!("other programs kept the I/O core from its processor in {TRIES} measurements"))
}

fn row(share: u8, samples: &[Sample]) -> Row {
    let granted = f64::from(share) / 100.0;
    let figures = Figures::of(samples.iter().map(|it| &it.0));
    let error = (figures.time - granted).abs().max((figures.frames - granted).abs());
    let modes = Modes::of(samples, |(it, mode)| (*mode, it.frames));
    Row { granted, error, figures, modes }
}

/// Figures 10 to 12 of the paper: received against granted.
pub fn draw(rows: &[Row]) -> String {
    let line = |name: &str, value: fn(&Row) -> f64| {
        Line::new(name.to_owned(), rows.iter().map(|row| (100.0 * row.granted, 100.0 * value(row))).collect())
    };
    chart(
        "What a guest with a budget receives of an I/O core",
        "sidecore bench budget --svg FILE; one guest that floods; by time: the I/O core's account, by frames: what arrives",
        Axis::linear("granted, %"),
        Axis::linear("received, %"),
        &[
            line("by time", |row| row.figures.time),
            line("by frames", |row| row.figures.frames),
            line("granted", |row| row.granted),
        ],
    )
}
