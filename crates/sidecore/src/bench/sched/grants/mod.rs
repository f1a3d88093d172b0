//! `sidecore bench grants`: what a rate does to the port that has it, and a class to a port beside floods.
//!
//! One row a setting, of two knobs. *rate*: one guest floods and is limited; frames that arrive are counted, not the I/O core's account, so
//! this does not trust what it tests. *class*: one guest waits for answers beside floods, as class `latency`, as class `throughput`, and
//! as the latter where the rule that serves stuck queues early is off. `bench budget` has budgets. Weights would need a core that is full
//! with guests that one thread plays, which is itself full first; they have tests with a clock of their own (`core/tests.rs`).

mod figure;

use serde::{Deserialize, Serialize};
use sidecore_engine::core::{Class, Rate, Service};

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

/// Frames a second.
const RATES: [u32; 5] = [50_000, 100_000, 200_000, 300_000, 400_000];
const FLOODS: [u16; 6] = [1, 2, 3, 4, 5, 6];

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "lowercase")]
pub enum Setting {
    Rate { rate: u32 },
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
            Setting::Rate { rate } => Some(f64::from(rate)),
            Setting::Class { .. } => None,
        }
    }

    fn name(self) -> String {
        match self {
            Setting::Rate { rate } => format!("rate={rate}"),
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
    /// Rate: frames a second; class: the 99th percentile from request to answer, in µs.
    measured: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    /// The greatest distance of a rate from its limit, as a part of it.
    rate_error: f64,
    /// The 99th percentile of class `latency` against `throughput`, beside most floods.
    p99_ratio: f64,
}

/// `bench grants`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let (rates, classes) = settings(common.quick);
    let settings: Vec<Setting> = rates.iter().chain(&classes).copied().collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); settings.len()];
    for round in 1..=common.rounds {
        let mut of_round = measure_rates(&common, &rates)?;
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
    println!("setting                        granted  measured");
    for row in &rows {
        let granted = row.granted.map_or("-".to_owned(), |rate| format!("{:.1} k/s", rate / 1e3));
        let measured = match row.setting {
            Setting::Rate { .. } => format!("{:.1} k/s", row.measured / 1e3),
            Setting::Class { .. } => format!("p99 {:.1} µs", row.measured),
        };
        println!("{:<26}  {granted:>10}  {measured}", row.setting.name());
    }
    Ok(())
}

/// What is measured with one guest, and what with one that waits beside floods: in the order of [`Rule::ALL`].
fn settings(quick: bool) -> (Vec<Setting>, Vec<Setting>) {
    let few = |all: usize| if quick { 1 } else { all };
    let rates = RATES.iter().take(few(RATES.len())).map(|&rate| Setting::Rate { rate });
    let floods = FLOODS.iter().take(few(FLOODS.len()));
    let of_rule = |rule| floods.clone().map(move |&floods| Setting::Class { rule, floods });
    (rates.collect(), Rule::ALL.into_iter().flat_map(of_rule).collect())
}

/// One guest floods under each of these limits: frames a second.
fn measure_rates(common: &Common, settings: &[Setting]) -> Result<Vec<f64>> {
    let stage = Stage::start(OURS, &common.io_cores[..1], 1)?;
    let port = stage.guest(0);
    let limits = settings.iter().filter_map(|setting| match *setting {
        Setting::Rate { rate } => Some(rate),
        Setting::Class { .. } => None,
    });
    stage.play(common.load_core, |players| {
        let one = |limit: u32| {
            let rate = Rate { items: Some(limit.into()), bits: None };
            port.served.set(Service { rate, ..Service::default() });
            Ok(players.measure(|_| Work::Flood, common.window)?.rate(0..1))
        };
        limits.map(one).collect()
    })
}

/// One guest waits for answers beside floods: the 99th percentile for each of the settings of this rule.
fn measure_class(common: &Common, rule: Rule, settings: &[Setting]) -> Result<Vec<f64>> {
    let of_rule = settings.iter().filter_map(|setting| match *setting {
        Setting::Class { rule: of, floods } if of == rule => Some(usize::from(floods)),
        Setting::Rate { .. } | Setting::Class { .. } => None,
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
    let error = |row: &Row| row.granted.map(|granted| (row.measured - granted).abs() / granted);
    let last = |wanted: Rule| {
        let is_its = |row: &&Row| matches!(row.setting, Setting::Class { rule, .. } if rule == wanted);
        rows.iter().rfind(is_its).map_or(f64::NAN, |row| row.measured)
    };
    Summary {
        rate_error: rows.iter().filter_map(error).fold(f64::NAN, f64::max),
        p99_ratio: last(Rule::Latency) / last(Rule::Throughput),
    }
}
