//! `sidecore bench grants`: what a rate, a weight, `reclaim` and a class do to the port that has them.
//!
//! One row a setting. *rate*: one guest floods and is limited; frames that arrive are counted, not the I/O
//! core's account, so this does not trust what it tests. *weight* and *reclaim* (`shares`): parts of the
//! core's time, and of its frames. *class*: one guest waits for answers beside floods, as class `latency`, as
//! class `throughput`, and as the latter where the rule that serves stuck queues early is off. `bench budget`
//! has budgets.

mod figure;
mod shares;

use sidecore_engine::core::{Class, Rate, Service};

pub use self::figure::draw;
use super::cores::{Way, OURS, POLLED};
use super::guest::Work;
use super::stage::Stage;
use crate::prelude::*;

/// `bench grants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
}

/// Frames a second.
const RATES: [u32; 5] = [50_000, 100_000, 200_000, 300_000, 400_000];
const FLOODS: [u16; 6] = [1, 2, 3, 4, 5, 6];

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "lowercase")]
pub enum Setting {
    Rate {
        rate: u32,
    },
    Weight {
        weight: u16,
    },
    /// A budget, and whether the rest of the core is busy.
    Reclaim {
        reclaim: bool,
        busy: bool,
    },
    Class {
        rule: Rule,
        floods: u16,
    },
}

named! {
    /// How a guest that waits for answers is served.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Rule {
        Latency = "class=latency",
        Throughput = "class=throughput",
        InTurn = "no stuck rule",
    }
}

impl Rule {
    fn way(self) -> Way {
        Way { urgent: self != Rule::InTurn, ..POLLED }
    }

    fn class(self) -> Class {
        match self {
            Rule::Latency => Class::Latency,
            Rule::Throughput | Rule::InTurn => Class::Throughput,
        }
    }
}

impl Setting {
    fn name(self) -> String {
        match self {
            Setting::Rate { rate } => format!("rate={rate}"),
            Setting::Weight { weight } => format!("weight={weight} beside one of 100"),
            Setting::Reclaim { reclaim, busy } => {
                format!("{}, else {}", if reclaim { "on" } else { "off" }, if busy { "busy" } else { "idle" })
            }
            Setting::Class { rule, floods } => format!("{}, floods: {floods}", rule.name()),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    granted: Option<f64>,
    measured: f64,
    frames: Option<f64>,
    core_ran: Option<f64>,
    mode: Mode,
}

impl Sample {
    /// One of which that is all there is.
    fn of(granted: Option<f64>, measured: f64, mode: Mode) -> Sample {
        Sample { granted, measured, frames: None, core_ran: None, mode }
    }
}

/// What was measured with a setting.
type Measured = (Setting, Sample);

/// A row of the table: medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    setting: Setting,
    /// What the setting promises, in the unit of what is measured.
    granted: Option<f64>,
    /// Rate: frames a second; weight and reclaim: part of the core's time, by its own account; class: the
    /// 99th percentile from request to answer, in µs.
    measured: f64,
    /// Weight and reclaim: the same by the frames that arrived.
    #[serde(default)]
    frames: Option<f64>,
    /// Part of the time in which the I/O core's thread had its processor: other programs had it for the rest.
    #[serde(default)]
    core_ran: Option<f64>,
    /// What was measured.
    #[serde(skip_deserializing)]
    modes: Modes,
}

impl Row {
    /// The greater distance from what was granted, by time and by frames.
    fn error(&self) -> Option<f64> {
        let granted = self.granted?;
        let frames = self.frames.map_or(0.0, |frames| (frames - granted).abs());
        Some(frames.max((self.measured - granted).abs()))
    }
}

/// `bench grants`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let samples = in_parts(common.repeat.rounds, &[()], |round, ()| {
        let mut all = measure_rates(&common, few(&RATES, common.quick))?;
        all.extend(shares::measure_weights(&common)?);
        all.extend(shares::measure_reclaims(&common)?);
        for rule in Rule::ALL {
            all.extend(measure_class(&common, rule, few(&FLOODS, common.quick))?);
        }
        for (setting, sample) in &all {
            eprintln!("{round}: {}: {:.3}", setting.name(), sample.measured);
        }
        Ok(all)
    })?;
    let rows: Vec<Row> = samples[0].iter().map(|of| row(of)).collect();
    let summary = summary(&rows);
    let note =
        format!("what a setting does, {}; frames a second, parts of an I/O core, p99 in µs", common.repeat);
    Results::new("grants", &note)
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

/// The first of them, for a short look.
fn few<T>(all: &[T], quick: bool) -> &[T] {
    &all[..if quick { 1 } else { all.len() }]
}

/// One guest floods under each of these limits: frames a second.
fn measure_rates(common: &Common, limits: &[u32]) -> Result<Vec<Measured>> {
    let stage = Stage::start(OURS, &common.io_cores[..1], 1)?;
    let port = stage.guest(0);
    stage.play(common.load_core, |players| {
        let one = |&limit: &u32| {
            let rate = Rate { items: Some(limit.into()), bits: None };
            port.tenant.set(Service { rate, ..Service::default() });
            let report = players.measure(|_| Work::Flood, common.repeat.window)?;
            let sample = Sample::of(Some(limit.into()), report.rate(0..1), report.mode);
            Ok((Setting::Rate { rate: limit }, sample))
        };
        limits.iter().map(one).collect()
    })
}

/// One guest waits for answers beside so many floods: the 99th percentile.
fn measure_class(common: &Common, rule: Rule, numbers: &[u16]) -> Result<Vec<Measured>> {
    let most = numbers.iter().copied().max().unwrap_or(0);
    let stage = Stage::start(rule.way(), &common.io_cores[..1], usize::from(1 + most))?;
    stage.guest(0).tenant.set(Service { class: rule.class(), ..Service::default() });
    stage.play(common.load_core, |players| {
        let one = |&floods: &u16| {
            let work = |guest: usize| match guest {
                0 => Work::RequestResponse,
                n if n <= usize::from(floods) => Work::Flood,
                _ => Work::Nothing,
            };
            let report = players.measure(work, common.repeat.window)?;
            let sample = Sample::of(None, report.latency(0..1, 99.0), report.mode);
            Ok((Setting::Class { rule, floods }, sample))
        };
        numbers.iter().map(one).collect()
    })
}

fn row(samples: &[Measured]) -> Row {
    let of = |value: fn(&Sample) -> Option<f64>| {
        let all = samples.iter().all(|(_, sample)| value(sample).is_some());
        all.then(|| middle(samples, |(_, sample)| value(sample).unwrap_or(f64::NAN)))
    };
    Row {
        setting: samples[0].0,
        granted: of(|sample| sample.granted),
        measured: middle(samples, |(_, sample)| sample.measured),
        frames: of(|sample| sample.frames),
        core_ran: of(|sample| sample.core_ran),
        modes: Modes::of(samples, |(_, sample)| (sample.mode, sample.measured)),
    }
}

fn summary(rows: &[Row]) -> impl Serialize {
    let worst = |is_its: fn(&Setting) -> bool, part: fn(&Row) -> f64| {
        let its = rows.iter().filter(|row| is_its(&row.setting));
        its.filter_map(|row| Some(row.error()? / part(row))).fold(f64::NAN, f64::max)
    };
    let last = |wanted: Rule| {
        let is_its = |row: &&Row| matches!(row.setting, Setting::Class { rule, .. } if rule == wanted);
        rows.iter().rfind(is_its).map_or(f64::NAN, |row| row.measured)
    };
    fields! {
        /// The greatest distance of a rate from its limit, as a part of it.
        rate_error: worst(|it| matches!(it, Setting::Rate { .. }), |row| row.granted.unwrap_or(1.0)),
        /// The greatest distance of a share from what weights say, and from a budget and what may be had
        /// beyond it: parts of a core.
        weight_worst_error: worst(|it| matches!(it, Setting::Weight { .. }), |_| 1.0),
        reclaim_worst_error: worst(|it| matches!(it, Setting::Reclaim { .. }), |_| 1.0),
        /// The 99th percentile of class `latency` against `throughput`, beside most floods.
        p99_ratio: last(Rule::Latency) / last(Rule::Throughput),
    }
}
