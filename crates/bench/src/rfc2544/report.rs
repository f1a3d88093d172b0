//! What the repetitions come to: figures with their intervals, as JSON and as a table.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::loss::Stages;
use super::measure::{Latency, OwnLimit, Point, Repetition, Tally, LOADS};
use super::search::Found;
use super::stats::{deviation, rule_of_three, Figure, Ratio};
use super::traffic::Traffic;
use crate::prelude::*;

/// Microseconds of units of 16 ticks.
fn us(units: u64, per_ns: f64) -> f64 {
    16.0 * units as f64 / per_ns / 1e3
}

row! {
    fn rate(found: &[Found], bytes: f64, goal_is_zero: bool) -> Option<Rate> {
        let mpps = Figure::of(found.iter().map(|it| it.lower.unwrap_or(0) as f64 / 1e6))?;
        let frames = found.iter().map(|it| it.frames).sum();
        let whole = found.iter().all(|it| it.lower.is_none_or(|load| it.conditional >= load as f64));
        let gbits = mpps.mean * bytes * 8.0 / 1e3;
        let conditional = found.iter().map(|it| it.conditional).sum::<f64>() / found.len() as f64;
    }

    /// A rate that a search has found.
    pub struct Rate {
        /// Million frames a second: the lower bounds of the repetitions.
        pub mpps: Figure = mpps,
        /// Gigabits a second of frames with check sequence, as the mean.
        pub gbits: f64 = gbits,
        /// What of that arrives, as the mean of conditional throughputs.
        pub conditional_mpps: f64 = conditional / 1e6,
        /// Frames offered at the lower bounds, and the greatest loss ratio that they leave possible if none
        /// was lost (95 %).
        pub frames: f64 = frames,
        pub no_loss_bound: Option<f64> =
            (goal_is_zero && whole && frames > 0.0).then(|| rule_of_three(frames)),
        /// Repetitions without a lower or an upper bound: the least load is beyond the goal, or the greatest
        /// within it.
        pub without_lower: usize = found.iter().filter(|it| it.lower.is_none()).count(),
        pub without_upper: usize = found.iter().filter(|it| it.upper.is_none()).count(),
    }
}

row! {
    fn latency(repetitions: &[Repetition], percent: u32) -> Option<LatencyRow> {
        let each = repetitions.iter().flat_map(|r| r.latency.iter().filter(|l| l.percent == percent));
        let each: Vec<&Latency> = each.collect();
        let all = merged(each.iter().map(|it| it.delays.clone()))?;
        let per_ns = repetitions.first()?.per_ns;
        let of = |delays: &Histogram<u64>, quantile: f64| us(delays.value_at_quantile(quantile), per_ns);
        let range = |quantile: f64| {
            let each = each.iter().map(|it| of(&it.delays, quantile));
            each.fold([f64::MAX, 0.0], |[least, most], value| [value.min(least), value.max(most)])
        };
        let mpps = Figure::of(each.iter().map(|it| it.rate / 1e6))?.mean;
    }

    /// Latency at one part of the NDR.
    pub struct LatencyRow {
        pub percent_of_ndr: u32 = percent,
        pub mpps: f64 = mpps,
        /// Latency of all frames of all repetitions, in microseconds.
        pub p50_us: f64 = of(&all, 0.5),
        pub p90_us: f64 = of(&all, 0.9),
        pub p99_us: f64 = of(&all, 0.99),
        pub p999_us: f64 = of(&all, 0.999),
        pub max_us: f64 = us(all.max(), per_ns),
        pub frames: u64 = all.len(),
        pub lost: u64 = each.iter().map(|it| it.lost).sum(),
        /// Least and greatest of the repetitions' own.
        pub p50_us_range: [f64; 2] = range(0.5),
        pub p99_us_range: [f64; 2] = range(0.99),
        /// The repetitions' own 99th percentiles in microseconds, by the distance of tester and target.
        pub modes: Modes = Modes::of(&each, |it| (it.mode, of(&it.delays, 0.99))),
    }
}

row! {
    fn point(repetitions: &[Repetition], percent: u32) -> Option<CurveRow> {
        let of = |r: &'_ Repetition| r.curve.iter().find(|point| point.percent == percent).cloned();
        let points: Vec<Point> = repetitions.iter().filter_map(of).collect();
        let mean = |value: fn(&Point) -> f64| {
            points.iter().map(value).sum::<f64>() / points.len().max(1) as f64
        };
        let loss_ratio = Figure::of(points.iter().map(|point| point.loss_ratio))?;
        let mut stages = Stages::default();
        points.iter().for_each(|point| stages.add(&point.stages));
    }

    /// A point of the loss curve.
    pub struct CurveRow {
        pub percent_of_pdr: u32 = percent,
        /// Asked for, offered (all but what the tester was late with), and delivered.
        pub asked_mpps: f64 = mean(|point| point.asked) / 1e6,
        pub offered_mpps: f64 = mean(|point| point.offered) / 1e6,
        pub delivered_mpps: f64 = mean(|point| point.delivered) / 1e6,
        pub loss_ratio: Figure = loss_ratio,
        pub stages: Stages = stages,
    }
}

fn curve(repetitions: &[Repetition]) -> Vec<CurveRow> {
    let percents: std::collections::BTreeSet<u32> =
        repetitions.iter().flat_map(|r| r.curve.iter().map(|point| point.percent)).collect();
    percents.into_iter().filter_map(|percent| point(repetitions, percent)).collect()
}

row! {
    fn bursts(repetitions: &[Repetition], throughput: f64) -> Option<Bursts> {
        let samples = repetitions.iter().flat_map(|r| r.bursts.iter().map(|frames| *frames as f64));
        let samples: Vec<f64> = samples.collect();
        let rate = repetitions.iter().map(|r| r.burst_rate).sum::<f64>() / repetitions.len().max(1) as f64;
        let frames = Figure::of(samples.iter().copied())?;
        let implied = frames.mean / rate * 1e6;
    }

    /// Bursts (RFC 9004).
    pub struct Bursts {
        pub mpps: f64 = rate / 1e6,
        pub frames: Figure = frames,
        pub deviation: f64 = deviation(&samples),
        /// Microseconds for which the target stores what it cannot pass on: of the burst, and less what it
        /// passes on meanwhile.
        pub implied_buffer_us: f64 = implied,
        pub corrected_buffer_us: f64 = implied * (1.0 - throughput * 1e6 / rate).max(0.0),
    }
}

row! {
    /// What the repetitions say. None: there is none.
    pub fn row(
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
        let back_to_back = bursts(repetitions, ndr.mpps.mean);
        let mut lost_beyond_ndr = Stages::default();
        repetitions.iter().for_each(|r| lost_beyond_ndr.add(&r.beyond));
        let mut trials_by_mode = BTreeMap::new();
        for (mode, trials) in repetitions.iter().flat_map(|r| &r.tally.by_mode) {
            *trials_by_mode.entry(*mode).or_default() += trials;
        }
        let count = |value: fn(&Tally) -> u64| repetitions.iter().map(|r| value(&r.tally)).sum();
        let near = pdr.mpps.mean * 1e6 > 0.8 * own.rate;
    }

    /// A candidate at one size.
    pub struct Row {
        pub candidate: &'static str = candidate,
        pub size: String = size.to_owned(),
        pub ndr: Rate = ndr,
        pub pdr: Rate = pdr,
        /// Lower bounds of the NDR by the distance of tester and target, in million frames a second. That of
        /// a repetition is the one that three quarters of its search had.
        pub modes: Modes = Modes::of(repetitions, |r| (r.mode, r.ndr.lower.unwrap_or(0) as f64 / 1e6)),
        /// The distance of each repetition, and how many trials there were at each.
        pub repetition_modes: Vec<Mode> = repetitions.iter().map(|r| r.mode).collect(),
        pub trials_by_mode: BTreeMap<Mode, u64> = trials_by_mode,
        /// Where frames were lost at the upper bounds of the NDR.
        pub lost_beyond_ndr: Stages = lost_beyond_ndr,
        pub latency: Vec<LatencyRow> =
            LOADS.iter().filter_map(|percent| latency(repetitions, *percent)).collect(),
        pub curve: Vec<CurveRow> = curve(repetitions),
        pub back_to_back: Option<Bursts> = back_to_back,
        pub recovery_ms: Option<Figure> = Figure::of(repetitions.iter().filter_map(|r| r.recovery_ms)),
        pub reset_ms: Option<Figure> = Figure::of(repetitions.iter().filter_map(|r| r.reset_ms)),
        pub reordered: u64 = count(|of| of.reordered),
        pub duplicated: u64 = count(|of| of.twice),
        pub trials: u64 = count(|of| of.trials),
        /// Trials that were made again since tester or target had waited for its processor, or frames were
        /// late.
        pub repeated_trials: u64 = count(|of| of.repeated),
        /// The tester was the limit, or its own limit is less than 1.25 times as far: the rates are at least
        /// these.
        pub generator_limited: bool = near || repetitions.iter().any(|r| r.limited),
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

row! {
    /// Between ends of this kind.
    pub fn alone(ends: &'static str, size: &str, own: &OwnLimit) -> Own {
        let at = |quantile: f64| us(own.delays.value_at_quantile(quantile), own.per_ns);
    }

    /// What the tester can do without a target.
    pub struct Own {
        pub ends: &'static str = ends,
        pub size: String = size.to_owned(),
        pub mpps: f64 = own.rate / 1e6,
        /// At half of that rate, in microseconds.
        pub p50_us: f64 = at(0.5),
        pub p99_us: f64 = at(0.99),
    }
}
