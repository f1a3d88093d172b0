//! Figures 10 to 12: what a router forwards by the part of a processor that was reserved.
//!
//! Parts are reserved by two schedulers. The kernel's `SCHED_DEADLINE` reserves processor time for one
//! thread, as in the paper: in Figure 12 for the guest's, which shares a processor with the I/O thread; in
//! Figure 11 for the guest's, which has a processor of its own, as I/O is on the load's and has what that
//! leaves; in Figure 10 for that of the I/O core. The I/O core's own budget reserves the time of I/O, too
//! (Figure 12): one tenant pays for all ports. (A frame is charged to its sender: what comes in is paid by
//! the port outside.)
//!
//! Where it is I/O that has a part, load and guest take turns on the load's processor, and frames are large,
//! so that copying them fills the I/O core. What a whole core moves changes with the machine, so it is
//! measured before and after each part, and rates are corrected by it.

use std::sync::Arc;

use sidecore_engine::core::{CpuBudget, Service};
use sidecore_engine::port::Tenant;

use super::super::sched::cores::{cores_ran, io_cores, Way, JUMBO};
use super::super::sched::stage::Stage;
use super::curves::PERIOD;
use super::report;
use super::stage::{play, Placement, Sample, Setup, SHARED_CORE};
use super::threads::{self, Class, Pinned};
use super::turns::{Turns, JUMBOS};
use super::{lines, number, Found, Plan, JOINS};
use crate::prelude::*;

/// The paper's parts.
const SHARES: [f64; 7] = [0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95];
/// Periods: one that a ring's frames bridge, and the paper's.
const PERIODS: [Duration; 2] = [Duration::from_millis(10), PERIOD];
/// The load, in rates that the guest would have if it did nothing but route.
const LOAD: f64 = 1.2;
/// Periods of a measurement: few, so that the machine stays the same for as long.
const COUNTED: u32 = 2;
/// Pictures in which I/O has a part: by its tenant's budget, and by the kernel.
const BUDGET: &str = "a budget of its tenant";
const KERNEL: &str = "large frames";

/// What the line of a period is called.
fn name(period: Duration) -> String {
    format!("{} ms", period.as_millis())
}

/// A figure: whose part it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// 10: the I/O core's, which has a processor to itself.
    Io,
    /// 11: the guest's, which has one to itself.
    Guest,
    /// 12: the guest's, of a processor that it shares with I/O.
    Shared,
}

impl Part {
    fn placement(self, class: Class) -> Placement {
        match self {
            Part::Io => Placement::IoAlone(class),
            Part::Guest => Placement::GuestAlone(class),
            Part::Shared => Placement::Together(class, Class::Fair),
        }
    }
}

/// Figures 10 to 12.
pub fn shares(plan: &Plan, part: Part) -> Result<Found> {
    let shares = if plan.quick { &SHARES[..2] } else { &SHARES[..] };
    let joins = JOINS.map(|(_, picture)| picture);
    let pictures = match part {
        Part::Io => vec![KERNEL],
        Part::Guest => joins.to_vec(),
        Part::Shared => [&joins[..], &[BUDGET]].concat(),
    };
    let cases: Vec<(&str, Duration)> =
        PERIODS.iter().flat_map(|period| pictures.iter().map(move |picture| (*picture, *period))).collect();
    let named = |(picture, period): &(&str, Duration)| [(*picture).to_owned(), name(*period)];
    let measure = |&(picture, period): &(&str, Duration), shares: &[f64]| match picture {
        KERNEL => io_core(plan, period, shares),
        BUDGET => budget(plan, period, shares),
        _ => guest(plan, part, JOINS.contains(&(true, picture)), period, shares),
    };
    let rows = lines(plan, &cases, named, |_| shares.to_vec(), measure)?;
    let of_kernel = |of: Duration| {
        report::least_r2(rows.iter().filter(|row| row.picture != BUDGET && row.line == name(of)))
    };
    let [short, papers] = PERIODS.map(of_kernel);
    let budget = report::least_r2(rows.iter().filter(|row| row.picture == BUDGET));
    // Straightness by the kernel's reservations with the paper's period and a shorter one, and by a tenant's
    // budget.
    let all = [number("r2", papers), number("r2_short", short), number("r2_budget", budget)];
    let summary = all.into_iter().flatten().collect();
    Ok(Found { summary, ..rows.into() })
}

/// By the kernel: the guest's thread has these parts.
fn guest(plan: &Plan, part: Part, switched: bool, period: Duration, shares: &[f64]) -> Result<Vec<Sample>> {
    let way = Way { card: plan.card, ..SHARED_CORE };
    let setup = Setup { switched, ..Setup::new(way, plan.cost_ns) };
    let window = plan.whole(period, COUNTED).window;
    play(&setup, plan.cpus, |bench| {
        let one = |share: &f64| {
            bench.place(part.placement(Class::reserved(*share, period)))?;
            bench.offer(LOAD * 1e3 / plan.cost_ns, window)
        };
        shares.iter().map(one).collect()
    })
}

/// By the kernel: the I/O core's thread has these parts.
fn io_core(plan: &Plan, period: Duration, shares: &[f64]) -> Result<Vec<Sample>> {
    let _pinned = Pinned::new()?;
    large(plan, period, shares, &Arc::new(Tenant::new("router")), |share| {
        let class = share.map_or(Class::Fair, |share| Class::reserved(share, period));
        io_cores().iter().try_for_each(|core| threads::place(*core, class, &[plan.cpus.io_core]))
    })
}

/// By the I/O core: all frames of the router have these parts of it.
fn budget(plan: &Plan, period: Duration, shares: &[f64]) -> Result<Vec<Sample>> {
    let tenant = Arc::new(Tenant::new("router"));
    large(plan, period, shares, &tenant, |share| {
        let runtime = share.map(|share| period.mul_f64(share));
        let budget = runtime.map(|runtime| CpuBudget { runtime, period, reclaim: false });
        tenant.set(Service { budget, ..Service::default() });
        Ok(())
    })
}

/// Large frames, where `grant` gives I/O these parts, or all of its processor; this tenant pays.
fn large(
    plan: &Plan,
    period: Duration,
    shares: &[f64],
    tenant: &Arc<Tenant>,
    grant: impl Fn(Option<f64>) -> Result<()> + Sync,
) -> Result<Vec<Sample>> {
    let window = plan.whole(period, COUNTED).window;
    let grant = &grant;
    let io = Stage::open(&JUMBO.options(&[plan.cpus.io_core], 2), JUMBO, 2, Some(tenant))?;
    // The I/O core has more to copy of large frames than the guest has.
    Turns::on(&io, plan.cpus, JUMBOS, |turns| {
        let mut whole = turns.measure(plan.window)?;
        let (mut samples, mut wholes) = (Vec::new(), Vec::new());
        for share in shares {
            grant(Some(*share))?;
            let (had, start) = (cores_ran(), Instant::now());
            let sample = turns.measure(window)?;
            let had = (cores_ran() - had) as f64 / 1e9 / start.elapsed().as_secs_f64();
            grant(None)?;
            let before = std::mem::replace(&mut whole, turns.measure(plan.window)?);
            let around = (before.forwarded + whole.forwarded) / 2.0;
            let mode = before.mode.and(sample.mode).and(whole.mode);
            // By its own account a core is busy while the kernel has it wait, too.
            let io = sample.io.min(had);
            samples.push(Sample { forwarded: sample.forwarded / around, io, mode, ..sample });
            wholes.push(around);
        }
        let usual = median(wholes);
        Ok(samples.into_iter().map(|it| Sample { forwarded: it.forwarded * usual, ..it }).collect())
    })
}
