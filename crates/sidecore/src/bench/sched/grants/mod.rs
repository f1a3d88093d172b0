//! `sidecore bench grants`: what each thing that a port can be granted does to it and to the others.
//!
//! One row a setting, of four knobs. *weight*: two guests flood, the other one has the usual weight. *rate*: one guest floods and is
//! limited. *reclaim*: a guest with a budget floods, alone and beside another one. *class*: one guest waits for answers beside
//! floods, as class `latency`, as class `throughput`, and as the latter where the rule that serves stuck queues early is off. Shares
//! are of frames that arrived, not of the I/O core's account, so they do not trust what they test. `bench budget` has budgets.

mod figure;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sidecore_engine::core::{Class, CpuBudget, Rate, Service, DEFAULT_WEIGHT};

pub use self::figure::draw;
use super::guest::Work;
use super::stage::{Stage, Way, OURS, POLLED};
use super::{middle, Common, Result};

/// `bench grants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
}

const WEIGHTS: [u16; 7] = [10, 25, 50, 100, 200, 400, 1000];
/// Frames a second.
const RATES: [u32; 5] = [50_000, 100_000, 200_000, 300_000, 400_000];
const FLOODS: [u16; 6] = [1, 2, 3, 4, 5, 6];
/// The budget of the guest that may reclaim: a fifth of a core.
const BUDGET: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "lowercase")]
pub enum Setting {
    Weight { weight: u16 },
    Rate { rate: u32 },
    Reclaim { reclaim: bool, beside_another: bool },
    Class { rule: Rule, floods: u16 },
}

/// How a guest that waits for answers is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    Latency,
    Throughput,
    InTurn,
}

impl Rule {
    const ALL: [Rule; 3] = [Rule::Latency, Rule::Throughput, Rule::InTurn];

    fn name(self) -> &'static str {
        match self {
            Rule::Latency => "class=latency",
            Rule::Throughput => "class=throughput",
            Rule::InTurn => "no stuck rule",
        }
    }

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
    /// What the setting promises, in the unit of what is measured.
    fn granted(self) -> Option<f64> {
        match self {
            Setting::Weight { weight } => Some(f64::from(weight) / f64::from(weight + DEFAULT_WEIGHT)),
            Setting::Rate { rate } => Some(f64::from(rate)),
            Setting::Reclaim { .. } => Some(BUDGET[0].as_secs_f64() / BUDGET[1].as_secs_f64()),
            Setting::Class { .. } => None,
        }
    }

    fn name(self) -> String {
        let on = |on: bool| if on { "on" } else { "off" };
        match self {
            Setting::Weight { weight } => format!("weight={weight} beside one of {DEFAULT_WEIGHT}"),
            Setting::Rate { rate } => format!("rate={rate}"),
            Setting::Reclaim { reclaim, beside_another } => {
                let beside = if beside_another { "beside a flood" } else { "alone" };
                format!("budget=20% reclaim={}, {beside}", on(reclaim))
            }
            Setting::Class { rule, floods } => format!("{}, floods: {floods}", rule.name()),
        }
    }
}

/// A row of the table: medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    setting: Setting,
    granted: Option<f64>,
    /// Weight: the part of both guests' frames; rate: frames a second; reclaim: the part of the frames of a guest that has the core
    /// alone; class: the 99th percentile from request to answer, in µs.
    measured: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    /// The greatest distance of a share from what weights say, and of a rate from its limit as a part of it.
    weight_error: f64,
    rate_error: f64,
    /// The 99th percentile of class `latency` against `throughput`, beside most floods.
    p99_ratio: f64,
}

/// `bench grants`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let (shares, classes) = settings(common.quick);
    let settings: Vec<Setting> = shares.iter().chain(&classes).copied().collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); settings.len()];
    for round in 1..=common.rounds {
        let mut of_round = measure_shares(&common, &shares)?;
        for rule in Rule::ALL {
            of_round.extend(measure_class(&common, rule, &classes)?);
        }
        for ((setting, sample), all) in settings.iter().zip(of_round).zip(&mut samples) {
            eprintln!("round {round}/{}: {}: {sample:.3}", common.rounds, setting.name());
            all.push(sample);
        }
    }
    let row = |(&setting, samples): (&Setting, &Vec<f64>)| {
        let measured = middle(samples, |sample| *sample);
        Row { setting, granted: setting.granted(), measured }
    };
    let rows: Vec<Row> = settings.iter().zip(&samples).map(row).collect();
    let summary = summary(&rows);
    common.draw(|| draw(&rows))?;
    if common.json {
        let all = serde_json::json!({ "version": 1, "bench": "grants", "rows": rows, "summary": summary });
        println!("{all}");
        return Ok(());
    }
    println!("grants: what a setting does, medians of {} rounds of {:?}", common.rounds, common.window);
    println!("setting                                granted  measured");
    for row in &rows {
        let [granted, measured] = [row.granted, Some(row.measured)].map(|value| match row.setting {
            _ if value.is_none() => "-".to_owned(),
            Setting::Weight { .. } | Setting::Reclaim { .. } => {
                format!("{:.1} %", 100.0 * value.unwrap_or_default())
            }
            Setting::Rate { .. } => format!("{:.1} k/s", value.unwrap_or_default() / 1e3),
            Setting::Class { .. } => format!("p99 {:.1} µs", value.unwrap_or_default()),
        });
        println!("{:<34}  {granted:>10}  {measured}", row.setting.name());
    }
    Ok(())
}

/// What is measured with two guests, and what with one that waits beside floods: in the order of [`Rule::ALL`].
fn settings(quick: bool) -> (Vec<Setting>, Vec<Setting>) {
    let few = |all: usize| if quick { 1 } else { all };
    let mut shares = Vec::new();
    shares.extend(WEIGHTS.iter().rev().take(few(WEIGHTS.len())).map(|&weight| Setting::Weight { weight }));
    shares.extend(RATES.iter().take(few(RATES.len())).map(|&rate| Setting::Rate { rate }));
    for beside_another in [false, true] {
        shares.extend([false, true].map(|reclaim| Setting::Reclaim { reclaim, beside_another }));
    }
    let floods = FLOODS.iter().take(few(FLOODS.len()));
    let of_rule = |rule| floods.clone().map(move |&floods| Setting::Class { rule, floods });
    (shares, Rule::ALL.into_iter().flat_map(of_rule).collect())
}

/// One guest floods under each of these settings, and another one where the setting is about both.
fn measure_shares(common: &Common, settings: &[Setting]) -> Result<Vec<f64>> {
    let stage = Stage::start(OURS, &common.io_cores[..1], 2)?;
    let port = stage.guest(0);
    stage.play(common.load_core, |players| {
        let mut flood = |service: Service, guests: usize| -> Result<[f64; 2]> {
            port.served.set(service);
            let work = |guest: usize| if guest < guests { Work::Flood } else { Work::Nothing };
            let report = players.measure(work, common.window)?;
            Ok([0, 1].map(|guest| report.rate(guest..guest + 1)))
        };
        let [whole, _] = flood(Service::default(), 1)?;
        let one = |setting: &Setting| {
            let usual = Service::default();
            match *setting {
                Setting::Weight { weight } => {
                    flood(Service { weight, ..usual }, 2).map(|[own, other]| own / (own + other))
                }
                Setting::Rate { rate } => {
                    let rate = Rate { items: Some(rate.into()), bits: None };
                    flood(Service { rate, ..usual }, 1).map(|[own, _]| own)
                }
                Setting::Reclaim { reclaim, beside_another } => {
                    let [runtime, period] = BUDGET;
                    let budget = Some(CpuBudget { runtime, period, reclaim });
                    let guests = 1 + usize::from(beside_another);
                    flood(Service { budget, ..usual }, guests).map(|[own, _]| own / whole)
                }
                Setting::Class { .. } => Err("a class has a stage of its own".to_owned()),
            }
        };
        settings.iter().map(one).collect()
    })
}

/// One guest waits for answers beside floods: the 99th percentile for each of the settings of this rule.
fn measure_class(common: &Common, rule: Rule, settings: &[Setting]) -> Result<Vec<f64>> {
    let of_rule = settings.iter().filter_map(|setting| match *setting {
        Setting::Class { rule: of, floods } if of == rule => Some(usize::from(floods)),
        _ => None,
    });
    let numbers: Vec<usize> = of_rule.collect();
    let most = numbers.iter().copied().max().unwrap_or(0);
    let stage = Stage::start(rule.way(), &common.io_cores[..1], 1 + most)?;
    stage.guest(0).served.set(Service { class: rule.class(), ..Service::default() });
    stage.play(common.load_core, |players| {
        let one = |&floods: &usize| {
            let work = |guest: usize| match guest {
                0 => Work::RequestResponse,
                n if n <= floods => Work::Flood,
                _ => Work::Nothing,
            };
            Ok(players.measure(work, common.window)?.latency(0..1, 99.0))
        };
        numbers.iter().map(one).collect()
    })
}

fn summary(rows: &[Row]) -> Summary {
    let error = |of: fn(&Setting) -> bool, part: fn(f64) -> f64| {
        let its = rows.iter().filter(|row| of(&row.setting));
        let errors =
            its.filter_map(|row| row.granted.map(|granted| (row.measured - granted).abs() / part(granted)));
        errors.fold(f64::NAN, f64::max)
    };
    let last = |wanted: Rule| {
        let is_its = |row: &&Row| matches!(row.setting, Setting::Class { rule, .. } if rule == wanted);
        rows.iter().rfind(is_its).map_or(f64::NAN, |row| row.measured)
    };
    Summary {
        weight_error: error(|setting| matches!(setting, Setting::Weight { .. }), |_| 1.0),
        rate_error: error(|setting| matches!(setting, Setting::Rate { .. }), |granted| granted),
        p99_ratio: last(Rule::Latency) / last(Rule::Throughput),
    }
}
