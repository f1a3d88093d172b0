//! Figure 12: what a router forwards by the part of a processor that was reserved.
//!
//! Two parts are reserved by two schedulers. The kernel's `SCHED_DEADLINE` reserves processor time for the guest's thread, which
//! shares a processor with the I/O thread, as in the paper. The I/O core's own budget reserves the time of I/O: there the guest is on
//! the load's processor, frames are large, so that copying them fills the I/O core, and one tenant pays for all ports. (A frame
//! is charged to its sender: what comes in is paid by the port outside.) What a whole core moves changes with the machine, so it
//! is measured before and after each part, and rates are corrected by it.

use std::sync::Arc;
use std::time::Duration;

use sidecore_engine::core::{CpuBudget, Service};
use sidecore_engine::port::Tenant;

use super::super::common::{median, Result};
use super::curves::PERIOD;
use super::report::{Row, RESERVED};
use super::stage::{play, Sample, Setup, SHARED_CORE};
use super::threads::Class;
use super::turns::Turns;
use super::{Plan, JOINS};

/// The paper's parts.
const SHARES: [f64; 7] = [0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95];
/// Periods: one that a ring's frames bridge, and the paper's.
pub const PERIODS: [Duration; 2] = [Duration::from_millis(10), PERIOD];
/// The load, in rates that the guest would have if it did nothing but route.
const LOAD: f64 = 1.2;
/// Periods of a measurement: few, so that the machine stays the same for as long.
const COUNTED: u32 = 2;
/// The pictures.
pub const BUDGET: &str = "a budget of its tenant";

/// Of each reserved part, its samples.
type Points = Vec<(f64, Vec<Sample>)>;

/// What the line of a period is called.
pub fn name(period: Duration) -> String {
    format!("{} ms", period.as_millis())
}

/// Figure 12.
pub fn shares(plan: &Plan) -> Result<Vec<Row>> {
    let shares = if plan.quick { &SHARES[..2] } else { &SHARES[..] };
    let mut lines: Vec<(&str, String, Points)> = Vec::new();
    let empty = || shares.iter().map(|share| (*share, Vec::new())).collect::<Points>();
    for round in 1..=plan.rounds {
        let mut all = Vec::new();
        for period in PERIODS {
            for (switched, picture) in JOINS {
                all.push((picture, period, deadline(plan, switched, period, shares)?));
            }
            all.push((BUDGET, period, budget(plan, period, shares)?));
        }
        for (number, (picture, period, samples)) in all.into_iter().enumerate() {
            let rates: Vec<String> =
                samples.iter().map(|sample| format!("{:.3}", sample.forwarded)).collect();
            eprintln!("round {round}/{}: {picture}, {period:?}: {} Mpps", plan.rounds, rates.join(" "));
            if lines.len() <= number {
                lines.push((picture, name(period), empty()));
            }
            lines[number].2.iter_mut().zip(samples).for_each(|((_, of), sample)| of.push(sample));
        }
    }
    let row = |(picture, line, points): &(&str, String, Points)| {
        Row::of([RESERVED, picture, line], points, plan.full)
    };
    Ok(lines.iter().map(row).collect())
}

/// By the kernel: the guest's thread has these parts of the processor that it shares with I/O.
fn deadline(plan: &Plan, switched: bool, period: Duration, shares: &[f64]) -> Result<Vec<Sample>> {
    let setup = Setup { switched, ..Setup::new(SHARED_CORE, plan.cost_ns) };
    let window = plan.whole(period, COUNTED).window;
    play(&setup, plan.cpus, |bench| {
        let one = |share: &f64| {
            bench.together(Class::reserved(*share, period), Class::Fair)?;
            bench.offer(LOAD * 1e3 / plan.cost_ns, window)
        };
        shares.iter().map(one).collect()
    })
}

/// By the I/O core: all frames of the router have these parts of it.
fn budget(plan: &Plan, period: Duration, shares: &[f64]) -> Result<Vec<Sample>> {
    let window = plan.whole(period, COUNTED).window;
    let tenant = Arc::new(Tenant::new("router"));
    let grant = |share: Option<f64>| {
        let runtime = share.map(|share| period.mul_f64(share));
        let budget = runtime.map(|runtime| CpuBudget { runtime, period, reclaim: false });
        tenant.set(Service { budget, ..Service::default() });
    };
    Turns::jumbo(&tenant, plan.cpus, |turns| {
        let mut whole = turns.measure(plan.window)?;
        let (mut samples, mut wholes) = (Vec::new(), Vec::new());
        for share in shares {
            grant(Some(*share));
            let sample = turns.measure(window)?;
            grant(None);
            let before = std::mem::replace(&mut whole, turns.measure(plan.window)?);
            let around = (before.forwarded + whole.forwarded) / 2.0;
            let mode = before.mode.and(sample.mode).and(whole.mode);
            samples.push(Sample { forwarded: sample.forwarded / around, mode, ..sample });
            wholes.push(around);
        }
        let usual = median(wholes);
        Ok(samples.into_iter().map(|it| Sample { forwarded: it.forwarded * usual, ..it }).collect())
    })
}
