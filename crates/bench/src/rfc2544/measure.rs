//! One repetition with one target: the searches, and what is measured at the rates that they find.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;
use sidecore_driver::load::now;

use super::super::target::{waited, Target};
use super::goal::{Goal, Seen};
use super::loss::Stages;
use super::search::{Found, Search};
use super::traffic::Traffic;
use super::trial::{Spell, Tester, Trial};
use crate::prelude::*;

/// Loads at which latency is measured, in percent of the NDR.
pub const LOADS: [u32; 4] = [10, 50, 90, 100];
/// Loads of the loss curve in percent of the PDR: down in steps of ten (RFC 2544 §26.3) from half as much
/// again.
const CURVE: std::ops::RangeInclusive<u32> = 1..=15;
/// Part of a trial for which tester or target may have waited for its processor.
const DISTURBED: f64 = 5e-3;
/// Repetitions of a trial that was disturbed, or in which frames were late.
const AGAIN: u32 = 2;
/// The longest burst is this many seconds long (RFC 2544 §26.4 asks for trials of two).
const LONGEST_BURST: f64 = 2.0;
/// Least load of a search, in frames a second.
const LEAST: u64 = 1000;

/// How trials are made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seconds of a full-length trial, and of all that decide about a load.
    pub trial: f64,
    pub sum: f64,
    /// Part of that time in which trials may break a goal.
    pub exceed: f64,
    /// Relative distance of bounds.
    pub width: f64,
    /// Frames a second that are offered at most.
    pub most: f64,
    /// Searches for the longest burst.
    pub bursts: u32,
    /// The loads of the loss curve are parts of this rate; none: of this repetition's PDR.
    pub base: Option<f64>,
    /// Whether disturbed trials are repeated.
    pub patient: bool,
}

impl Plan {
    /// PDR first: it allows more.
    fn goals(&self) -> [Goal; 2] {
        let Plan { trial, sum, exceed, width, .. } = *self;
        let goal = |loss_ratio| Goal { loss_ratio, exceed_ratio: exceed, trial, duration_sum: sum, width };
        [goal(0.005), goal(0.0)]
    }
}

/// Latency at one load.
#[derive(Clone, Debug)]
pub struct Latency {
    pub percent: u32,
    pub rate: f64,
    pub lost: u64,
    pub mode: Mode,
    /// In units of 16 ticks.
    pub delays: Histogram<u64>,
}

/// A point of the loss curve.
#[derive(Clone, Debug)]
pub struct Point {
    pub percent: u32,
    /// Frames a second that were asked for, were offered, and arrived.
    pub asked: f64,
    pub offered: f64,
    pub delivered: f64,
    pub loss_ratio: f64,
    pub stages: Stages,
}

/// What was counted of all trials.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub trials: u64,
    /// Trials by how far tester and target were from each other.
    pub by_mode: BTreeMap<Mode, u64>,
    /// Trials that were made again.
    pub repeated: u64,
    pub reordered: u64,
    pub twice: u64,
}

/// A repetition.
#[derive(Clone, Debug)]
pub struct Repetition {
    pub ndr: Found,
    pub pdr: Found,
    /// How far tester and target were from each other for most of the search.
    pub mode: Mode,
    /// Where frames were lost at the NDR's upper bound.
    pub beyond: Stages,
    pub latency: Vec<Latency>,
    pub curve: Vec<Point>,
    /// Frames of the longest bursts without loss, and the rate within them.
    pub bursts: Vec<u64>,
    pub burst_rate: f64,
    /// Milliseconds from the end of an overload to the last loss.
    pub recovery_ms: Option<f64>,
    /// Milliseconds without frames while the daemon was killed and started again, and frames lost then.
    pub reset_ms: Option<f64>,
    pub tally: Tally,
    /// Whether the tester, not the target, was the limit.
    pub limited: bool,
    pub per_ns: f64,
}

/// The tester of one target.
struct Bench<'b, 't, 's> {
    tester: Tester<'t>,
    target: &'b mut Target<'s>,
    plan: Plan,
    counters: Option<BTreeMap<String, u64>>,
    threads: Vec<(u32, u32)>,
    /// The greatest rate at which no frame was late.
    fastest: f64,
    tally: Tally,
}

/// What a trial was, beside what came of it.
struct Around {
    /// Where its losses were.
    stages: Stages,
    /// How far tester and target were from each other.
    mode: Mode,
}

/// Measures everything.
///
/// # Errors
/// No frame arrives, or the target ends.
pub fn measure(target: &mut Target<'_>, traffic: &Traffic, plan: Plan) -> Result<Repetition> {
    target.play(|target| {
        let [from, to] = target.connect()?;
        let mut tester = Tester::new(traffic, from, Some(to), Some(target.hello()));
        tester.connect(START)?;
        let threads = target.threads()?;
        let counters = target.drops()?;
        Bench { tester, target, plan, counters, threads, fastest: 0.0, tally: Tally::default() }.all()
    })
}

impl Bench<'_, '_, '_> {
    fn all(mut self) -> Result<Repetition> {
        let (search, beyond, limited, mode) = self.search()?;
        let found = |goal| search.found(goal).ok_or("no such goal");
        let (pdr, ndr) = (found(0)?, found(1)?);
        let rate = |found: Found| found.lower.map(|load| load as f64);
        let least = LEAST as f64;
        let base = rate(ndr).or(rate(pdr)).unwrap_or(least);
        let throughput = rate(pdr).unwrap_or(least);
        let latency = self.latency(base)?;
        let curve = self.curve(self.plan.base.unwrap_or(throughput))?;
        // Faster than the target, if the tester is.
        let burst_rate = (2.0 * throughput).min(self.fastest.max(throughput));
        let bursts = self.bursts(burst_rate)?;
        let recovery_ms = self.recovery(throughput)?;
        let reset_ms = if self.target.is_ours() { Some(self.reset(base)?) } else { None };
        Ok(Repetition {
            ndr,
            pdr,
            mode,
            beyond,
            latency,
            curve,
            bursts,
            burst_rate,
            recovery_ms: Some(recovery_ms),
            reset_ms,
            tally: self.tally,
            limited,
            per_ns: self.tester.per_ns(),
        })
    }

    /// A trial, again if it was disturbed.
    fn trial(&mut self, spells: &[Spell], delays: bool) -> Result<(Trial, Around)> {
        let mut left = if self.plan.patient { AGAIN } else { 0 };
        loop {
            // The probes have the processors for themselves, which does not count as waiting.
            let distance = Distance::before(&self.target.cpus());
            let before = waited(&self.threads);
            let trial = self.tester.run(spells, delays)?;
            let share = (waited(&self.threads) - before) as f64 / 1e9 / trial.seconds;
            let mode = distance.after();
            let stages = self.stages(&trial)?;
            self.tally.trials += 1;
            *self.tally.by_mode.entry(mode).or_default() += 1;
            if let ([spell], 0) = (spells, trial.late) {
                self.fastest = self.fastest.max(spell.rate);
            }
            if left == 0 || trial.is_valid() && share <= DISTURBED {
                self.tally.reordered += trial.came.reordered;
                self.tally.twice += trial.came.twice;
                return Ok((trial, Around { stages, mode }));
            }
            left -= 1;
            self.tally.repeated += 1;
        }
    }

    fn stages(&mut self, trial: &Trial) -> Result<Stages> {
        let (late, refused, corrupt, lost) = (trial.late, trial.refused, trial.came.corrupt, trial.lost());
        // Counters only grow: those of a trial without loss need not be asked for.
        if lost == 0 {
            return Ok(Stages { generator_late: late, ..Stages::default() });
        }
        let after = self.target.drops()?;
        let counters = self.counters.as_ref().zip(after.as_ref());
        let stages = Stages::of(late, refused, corrupt, lost, counters);
        self.counters = after;
        Ok(stages)
    }

    /// NDR and PDR, where frames are lost beyond the NDR, whether the tester was the limit, and the mode of
    /// most of the time.
    fn search(&mut self) -> Result<(Search, Stages, bool, Mode)> {
        let mut search = Search::new(&self.plan.goals(), LEAST, whole(self.plan.most.round()));
        let mut stages: BTreeMap<u64, Stages> = BTreeMap::new();
        let (mut limited, mut modes) = (BTreeSet::new(), Vec::new());
        while let Some((load, seconds)) = search.next() {
            let (trial, around) = self.trial(&[Spell::of(load as f64, seconds)], false)?;
            modes.push((around.mode, seconds));
            // What could not be offered did not arrive either: a load is not kept that the tester cannot
            // make.
            let late = if trial.is_valid() { 0 } else { trial.late };
            if late > trial.lost() {
                limited.insert(load);
            }
            let loss_ratio = (trial.lost() + late) as f64 / trial.asked.max(1) as f64;
            stages.entry(load).or_default().add(&around.stages);
            search.add(load, Seen { seconds, loss_ratio });
        }
        let upper = search.found(1).and_then(|found| found.upper);
        let beyond = upper.and_then(|load| stages.remove(&load)).unwrap_or_default();
        let is_limited = upper.is_none_or(|load| limited.contains(&load));
        Ok((search, beyond, is_limited, Mode::most(modes)))
    }

    fn latency(&mut self, base: f64) -> Result<Vec<Latency>> {
        let mut all = Vec::new();
        for percent in LOADS {
            let rate = base * f64::from(percent) / 100.0;
            let (trial, around) = self.trial(&[Spell::of(rate, 2.0 * self.plan.trial)], true)?;
            let lost = trial.lost();
            let delays = trial.delays.ok_or("a trial without delays")?;
            all.push(Latency { percent, rate, lost, mode: around.mode, delays });
        }
        Ok(all)
    }

    /// From the greatest load down, until two in a row lose nothing.
    fn curve(&mut self, base: f64) -> Result<Vec<Point>> {
        let mut points: Vec<Point> = Vec::new();
        for step in CURVE.rev() {
            let percent = 10 * step;
            let asked = (base * f64::from(percent) / 100.0).min(self.plan.most);
            let (trial, Around { stages, .. }) = self.trial(&[Spell::of(asked, self.plan.trial)], false)?;
            let per_second = 1.0 / trial.seconds.max(1e-9);
            points.push(Point {
                percent,
                asked,
                offered: trial.offered() as f64 * per_second,
                delivered: trial.came.frames as f64 * per_second,
                loss_ratio: trial.loss_ratio(),
                stages,
            });
            if points.iter().rev().take_while(|point| point.loss_ratio == 0.0).count() == 2 {
                break;
            }
        }
        Ok(points)
    }

    /// The longest bursts at this rate that lose nothing.
    fn bursts(&mut self, rate: f64) -> Result<Vec<u64>> {
        let seconds = if self.plan.patient { LONGEST_BURST } else { 0.05 };
        let most = whole((rate * seconds).round()).max(128);
        (0..self.plan.bursts).map(|_| self.burst(rate, most)).collect()
    }

    fn burst(&mut self, rate: f64, most: u64) -> Result<u64> {
        let (mut passed, mut lost) = (0u64, None);
        while lost.is_none_or(|lost: u64| lost - passed > (passed / 100).max(1)) {
            let frames = match lost {
                None if passed >= most => break,
                None => (2 * passed).clamp(64, most),
                Some(lost) => (passed + lost) / 2,
            };
            let mut trial = self.tester.run(&[Spell { rate, frames }], false)?;
            for _ in 0..AGAIN {
                // A burst with holes is none.
                if trial.late > 0 {
                    self.tally.repeated += 1;
                    trial = self.tester.run(&[Spell { rate, frames }], false)?;
                }
            }
            self.tally.trials += 1;
            match trial.lost() + trial.late {
                0 => passed = frames,
                _ => lost = Some(frames),
            }
        }
        Ok(passed)
    }

    /// Milliseconds from when 110 % of the throughput become 50 % until the last loss (RFC 2544 §26.5).
    fn recovery(&mut self, throughput: f64) -> Result<f64> {
        let over = Spell::of((1.1 * throughput).min(self.plan.most), self.plan.trial);
        let under = Spell::of(0.5 * throughput, self.plan.trial);
        let (trial, _) = self.trial(&[over, under], false)?;
        Ok(trial.last_loss_ns / 1e6)
    }

    /// Milliseconds without frames when the daemon is killed and started again at half the rate (RFC 2544
    /// §26.6, RFC 6201).
    fn reset(&mut self, rate: f64) -> Result<f64> {
        let spell = Spell::of(rate / 2.0, self.plan.trial);
        let before = self.tester.run(&[spell], false)?;
        if before.came.frames == 0 {
            return Err("no frame arrives before the reset".to_owned());
        }
        let killed = now();
        let paths = self.target.restart()?;
        let (from, to) = self.tester.ends();
        from.reconnect(&paths[0], START)?;
        to.map_or(Ok(()), |to| to.reconnect(&paths[1], START))?;
        self.tester.speak()?;
        // A guest goes on at once; what is lost until the first frame arrives is the outage.
        for _ in 0..100 {
            let after = self.tester.run(&[spell], false)?;
            self.tally.trials += 1;
            if let Some(first) = after.first {
                return Ok(self.tester.ns(first.saturating_sub(killed)) / 1e6);
            }
        }
        Err("no frame arrives after the reset".to_owned())
    }
}

/// What the tester can do by itself.
#[derive(Clone, Debug)]
pub struct OwnLimit {
    /// Frames a second between two ends that nothing is between.
    pub rate: f64,
    /// Delays at half of that, in units of 16 ticks, and ticks of a nanosecond.
    pub delays: Histogram<u64>,
    pub per_ns: f64,
}

/// Measures it for as long as `seconds`.
///
/// # Errors
/// The ends fail.
pub fn own_limit(mut tester: Tester<'_>, seconds: f64) -> Result<OwnLimit> {
    tester.connect(START)?;
    // More than any tester can do: what it passes over does not count.
    let flood = tester.run(&[Spell::of(1e9, seconds)], false)?;
    let rate = flood.came.frames as f64 / flood.seconds;
    let half = tester.run(&[Spell::of((rate / 2.0).max(1.0), seconds)], true)?;
    let delays = half.delays.ok_or_else(|| text("a trial without delays"))?;
    Ok(OwnLimit { rate, delays, per_ns: tester.per_ns() })
}
