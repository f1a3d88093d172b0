//! What the repetitions come to: figures with their intervals, as JSON and as a table.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::common::merged;
use super::super::distance::Mode;
use super::super::modes::Modes;
use super::super::runner::fields;
use super::loss::Stages;
use super::measure::{OwnLimit, Repetition, LOADS};
use super::search::Found;
use super::stats::{deviation, rule_of_three, Figure, Ratio};
use super::traffic::Traffic;

/// A rate that a search has found.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Million frames a second: the lower bounds of the repetitions.
    pub mpps: Figure,
    /// Gigabits a second of frames with check sequence, as the mean.
    pub gbits: f64,
    /// What of that arrives, as the mean of conditional throughputs.
    pub conditional_mpps: f64,
    /// Frames offered at the lower bounds, and the greatest loss ratio that they leave possible if none was
    /// lost (95 %).
    pub frames: f64,
    pub no_loss_bound: Option<f64>,
    /// Repetitions without a lower or an upper bound: the least load is beyond the goal, or the greatest
    /// within it.
    pub without_lower: usize,
    pub without_upper: usize,
}

/// Latency at one part of the NDR.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRow {
    pub percent_of_ndr: u32,
    pub mpps: f64,
    /// Latency of all frames of all repetitions, in microseconds.
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    pub frames: u64,
    pub lost: u64,
    /// Least and greatest of the repetitions' own.
    pub p50_us_range: [f64; 2],
    pub p99_us_range: [f64; 2],
    /// The repetitions' own 99th percentiles in microseconds, by the distance of tester and target.
    pub modes: Modes,
}

/// A point of the loss curve.
#[derive(Clone, Debug, Serialize)]
pub struct CurveRow {
    pub percent_of_pdr: u32,
    /// Asked for, offered (all but what the tester was late with), and delivered.
    pub asked_mpps: f64,
    pub offered_mpps: f64,
    pub delivered_mpps: f64,
    pub loss_ratio: Figure,
    pub stages: Stages,
}

/// Bursts (RFC 9004).
#[derive(Clone, Debug, Serialize)]
pub struct Bursts {
    pub mpps: f64,
    pub frames: Figure,
    pub deviation: f64,
    /// Microseconds for which the target stores what it cannot pass on: of the burst, and less what it passes
    /// on meanwhile.
    pub implied_buffer_us: f64,
    pub corrected_buffer_us: f64,
}

/// A candidate at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub candidate: &'static str,
    pub size: String,
    pub ndr: Rate,
    pub pdr: Rate,
    /// Lower bounds of the NDR by the distance of tester and target, in million frames a second. That of a
    /// repetition is the one that three quarters of its search had.
    pub modes: Modes,
    /// The distance of each repetition, and how many trials there were at each.
    pub repetition_modes: Vec<Mode>,
    pub trials_by_mode: BTreeMap<Mode, u64>,
    /// Where frames were lost at the upper bounds of the NDR.
    pub lost_beyond_ndr: Stages,
    pub latency: Vec<LatencyRow>,
    pub curve: Vec<CurveRow>,
    pub back_to_back: Option<Bursts>,
    pub recovery_ms: Option<Figure>,
    pub reset_ms: Option<Figure>,
    pub reordered: u64,
    pub duplicated: u64,
    pub trials: u64,
    /// Trials that were made again since tester or target had waited for its processor, or frames were late.
    pub repeated_trials: u64,
    /// The tester was the limit, or its own limit is less than 1.25 times as far: the rates are at least
    /// these.
    pub generator_limited: bool,
}

/// Microseconds of units of 16 ticks.
fn us(units: u64, per_ns: f64) -> f64 {
    16.0 * units as f64 / per_ns / 1e3
}

fn rate(found: &[Found], bytes: f64, goal_is_zero: bool) -> Option<Rate> {
    let mpps = Figure::of(found.iter().map(|it| it.lower.unwrap_or(0) as f64 / 1e6))?;
    let frames = found.iter().map(|it| it.frames).sum();
    let whole = found.iter().all(|it| it.lower.is_none_or(|load| it.conditional >= load as f64));
    Some(Rate {
        gbits: mpps.mean * bytes * 8.0 / 1e3,
        conditional_mpps: found.iter().map(|it| it.conditional).sum::<f64>() / found.len() as f64 / 1e6,
        frames,
        no_loss_bound: (goal_is_zero && whole && frames > 0.0).then(|| rule_of_three(frames)),
        without_lower: found.iter().filter(|it| it.lower.is_none()).count(),
        without_upper: found.iter().filter(|it| it.upper.is_none()).count(),
        mpps,
    })
}

fn latency(repetitions: &[Repetition], percent: u32) -> Option<LatencyRow> {
    let of = || {
        repetitions
            .iter()
            .flat_map(move |r| r.latency.iter().filter(move |l| l.percent == percent).map(move |l| (r, l)))
    };
    let all = merged(of().map(|(_, l)| l.delays.clone()))?;
    let per_ns = repetitions.first()?.per_ns;
    let at = |quantile: f64| us(all.value_at_quantile(quantile), per_ns);
    let range = |quantile: f64| {
        let each = of().map(|(_, l)| us(l.delays.value_at_quantile(quantile), per_ns));
        each.fold([f64::MAX, 0.0], |[least, most], value| [value.min(least), value.max(most)])
    };
    Some(LatencyRow {
        percent_of_ndr: percent,
        mpps: Figure::of(of().map(|(_, l)| l.rate / 1e6))?.mean,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: us(all.max(), per_ns),
        frames: all.len(),
        lost: of().map(|(_, l)| l.lost).sum(),
        p50_us_range: range(0.5),
        p99_us_range: range(0.99),
        modes: Modes::of(&of().collect::<Vec<_>>(), |(_, l)| {
            (l.mode, us(l.delays.value_at_quantile(0.99), per_ns))
        }),
    })
}

fn curve(repetitions: &[Repetition]) -> Vec<CurveRow> {
    let percents: std::collections::BTreeSet<u32> =
        repetitions.iter().flat_map(|r| r.curve.iter().map(|point| point.percent)).collect();
    let row = |percent: u32| {
        let points: Vec<_> = repetitions
            .iter()
            .flat_map(|r| r.curve.iter().filter(|point| point.percent == percent))
            .collect();
        let mean = |value: fn(&super::measure::Point) -> f64| {
            points.iter().map(|point| value(point)).sum::<f64>() / points.len().max(1) as f64
        };
        let mut stages = Stages::default();
        points.iter().for_each(|point| stages.add(&point.stages));
        Some(CurveRow {
            percent_of_pdr: percent,
            asked_mpps: mean(|point| point.asked) / 1e6,
            offered_mpps: mean(|point| point.offered) / 1e6,
            delivered_mpps: mean(|point| point.delivered) / 1e6,
            loss_ratio: Figure::of(points.iter().map(|point| point.loss_ratio))?,
            stages,
        })
    };
    percents.into_iter().filter_map(row).collect()
}

fn bursts(repetitions: &[Repetition], throughput: f64) -> Option<Bursts> {
    let samples: Vec<f64> =
        repetitions.iter().flat_map(|r| r.bursts.iter().map(|frames| *frames as f64)).collect();
    let rate = repetitions.iter().map(|r| r.burst_rate).sum::<f64>() / repetitions.len().max(1) as f64;
    let frames = Figure::of(samples.iter().copied())?;
    let implied = frames.mean / rate * 1e6;
    Some(Bursts {
        mpps: rate / 1e6,
        deviation: deviation(&samples),
        implied_buffer_us: implied,
        corrected_buffer_us: implied * (1.0 - throughput * 1e6 / rate).max(0.0),
        frames,
    })
}

impl Row {
    /// What the repetitions say. None: there is none.
    pub fn of(
        candidate: &'static str,
        size: &str,
        traffic: &Traffic,
        own: &OwnLimit,
        repetitions: &[Repetition],
    ) -> Option<Row> {
        let bytes = traffic.mean_size();
        let found = |which: fn(&Repetition) -> Found| repetitions.iter().map(which).collect::<Vec<_>>();
        let ndr = rate(&found(|r| r.ndr), bytes, true)?;
        let pdr = rate(&found(|r| r.pdr), bytes, false)?;
        let mut lost_beyond_ndr = Stages::default();
        repetitions.iter().for_each(|r| lost_beyond_ndr.add(&r.beyond));
        let mut trials_by_mode = BTreeMap::new();
        for (mode, trials) in repetitions.iter().flat_map(|r| &r.trials_by_mode) {
            *trials_by_mode.entry(*mode).or_default() += trials;
        }
        let count = |value: fn(&Repetition) -> u64| repetitions.iter().map(value).sum();
        let near = pdr.mpps.mean * 1e6 > 0.8 * own.rate;
        Some(Row {
            candidate,
            size: size.to_owned(),
            modes: Modes::of(repetitions, |r| (r.mode, r.ndr.lower.unwrap_or(0) as f64 / 1e6)),
            repetition_modes: repetitions.iter().map(|r| r.mode).collect(),
            trials_by_mode,
            lost_beyond_ndr,
            latency: LOADS.iter().filter_map(|percent| latency(repetitions, *percent)).collect(),
            curve: curve(repetitions),
            back_to_back: bursts(repetitions, ndr.mpps.mean),
            recovery_ms: Figure::of(repetitions.iter().filter_map(|r| r.recovery_ms)),
            reset_ms: Figure::of(repetitions.iter().filter_map(|r| r.reset_ms)),
            reordered: count(|r| r.reordered),
            duplicated: count(|r| r.twice),
            trials: count(|r| r.trials),
            repeated_trials: count(|r| r.repeated),
            generator_limited: near || repetitions.iter().any(|r| r.limited),
            ndr,
            pdr,
        })
    }
}

impl Row {
    /// Its NDRs in repetitions of this mode.
    fn ndr_in(&self, mode: Mode) -> impl Iterator<Item = f64> + '_ {
        let all = self.repetition_modes.iter().zip(&self.ndr.mpps.samples);
        all.filter(move |(of, _)| **of == mode).map(|(_, ndr)| *ndr)
    }
}

/// The first candidate at the first size, and its NDR against others'. What was not measured is null.
pub fn summary(rows: &[Row]) -> Option<impl Serialize> {
    let first = rows.first()?;
    let of = |candidate: &str| rows.iter().find(|row| row.candidate == candidate && row.size == first.size);
    // By pairs of repetitions, with 99 % intervals.
    let beside = |candidate: &str| {
        let pairs = first.ndr.mpps.samples.iter().zip(&of(candidate)?.ndr.mpps.samples);
        Ratio::of(pairs.map(|(ours, theirs)| (*ours, *theirs)))
    };
    let of_mode = |mode: Mode| {
        let beside = |candidate: &str| Ratio::of(first.ndr_in(mode).zip(of(candidate)?.ndr_in(mode)));
        let [ratio_bridge, ratio_testpmd, ratio_ovs] = ["bridge", "testpmd", "ovs"].map(beside);
        let any = [ratio_bridge, ratio_testpmd, ratio_ovs].iter().any(Option::is_some);
        any.then_some((mode, fields! { ratio_bridge, ratio_testpmd, ratio_ovs }))
    };
    let half = first.latency.iter().find(|row| row.percent_of_ndr == 50);
    Some(fields! {
        candidate: first.candidate,
        size: first.size.clone(),
        ndr_mpps: first.ndr.mpps.mean,
        pdr_mpps: first.pdr.mpps.mean,
        p99_us_at_50: half.map(|row| row.p99_us),
        reset_ms: first.reset_ms.as_ref().map(|figure| figure.mean),
        ratio_bridge: beside("bridge"),
        ratio_testpmd: beside("testpmd"),
        ratio_ovs: beside("ovs"),
        /// By pairs of repetitions with the same distance of tester and target, where there are some.
        modes: [Mode::Near, Mode::Far].into_iter().filter_map(of_mode).collect::<BTreeMap<_, _>>(),
    })
}

/// What the tester can do without a target.
#[derive(Clone, Debug, Serialize)]
pub struct Own {
    pub ends: &'static str,
    pub size: String,
    pub mpps: f64,
    /// At half of that rate, in microseconds.
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Own {
    /// Between ends of this kind.
    pub fn of(ends: &'static str, size: &str, own: &OwnLimit) -> Own {
        let at = |quantile: f64| us(own.delays.value_at_quantile(quantile), own.per_ns);
        Own { ends, size: size.to_owned(), mpps: own.rate / 1e6, p50_us: at(0.5), p99_us: at(0.99) }
    }
}
