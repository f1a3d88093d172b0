//! `sidecore bench vsr`: a router in a guest, as sections 3 to 5 of the paper on virtual routers measure it.
//!
//! Theory of operation. The guest is a native driver of two cards that does what a kernel does that forwards
//! (`guest_router` of the driver), on a thread that is its vCPU. What the paper's vhost-net is, is an I/O
//! core or a thread for each device; what its physical cards are, is a load that sends at one port and
//! receives at another one, on a processor to itself (`stage`). A frame is offered by the clock; one that
//! finds the queue outside full is lost there.
//!
//! A figure is a table of lines: how router and I/O are set up, and in which class their threads are. In each
//! round every line is measured on a stage of its own, at all loads. Loads are absolute: parts of the rate
//! that the guest would have if it did nothing but route.
//!
//! | file | figures |
//! |---|---|
//! | `curves` | 3, 13 to 15: rate forwarded by rate offered |
//! | `reserved` | 10 to 12: rate forwarded by the part of a processor that is reserved |
//! | `interconnects` | 8 and 9: rate forwarded by rate offered, with other things than our switch between |
//! | `model` | 2, 5 and 9: more processors than two, reckoned from what a frame costs, beside what two show |
//! | `groups` | 18 and 19: several routers that act as one |
//! | `passes`, `turns` | what a frame costs, beside testpmd and a thread for each device |
//! | `stage`, `threads` | what is measured, and its threads' classes |
//! | `report` | rows, numbers and pictures |

mod curves;
mod groups;
mod interconnects;
mod model;
mod passes;
pub mod report;
mod reserved;
mod stage;
mod threads;
mod turns;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::common::{Common, Result};
use super::results::Results;
use super::runner::{in_parts, Round, Samples};
use super::sched::cores::Card;
use report::Row;
use reserved::Part;
use stage::{Cpus, Sample};

/// How pairs of ports are joined: whether by switches, and what that is called.
const JOINS: [(bool, &str); 2] = [(false, "wires"), (true, "switches")];
/// Nanoseconds of a guest's time for a frame: about what a Linux guest takes, as the paper has it, and what
/// one on DPDK does.
const KERNEL_NS: f64 = 1000.0;
/// One that is no limit beside what is between, and one beside which I/O on the same processor is little.
const LITTLE_NS: f64 = 200.0;
const MUCH_NS: f64 = 2000.0;
const DPDK_NS: f64 = 50.0;
/// Repetitions of the paper, and how much longer than else each measurement is.
const REPETITIONS: u16 = 10;
const LONGER: u32 = 5;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shown {
    /// More processors: partly a model.
    #[value(name = "2")]
    Processors,
    /// Priorities of guest and I/O on one processor, and separate processors.
    #[value(name = "3")]
    Priorities,
    /// More threads: partly a model.
    #[value(name = "5")]
    Threads,
    /// What is between the network's cards and the guest's.
    #[value(name = "8")]
    Interconnects,
    /// Ports of virtio and of netmap's kind, and more processors: partly a model.
    #[value(name = "9")]
    Netmap,
    /// By the part of its processor that is reserved for I/O.
    #[value(name = "10")]
    ReservedIo,
    /// By the part of its processor that is reserved for the guest.
    #[value(name = "11")]
    ReservedGuest,
    /// By the part of a processor that is reserved for the guest, or for its I/O, which share it.
    #[value(name = "12")]
    Reserved,
    /// Lengths of queues.
    #[value(name = "13")]
    Queues,
    /// Lengths of queues, with 85 % of the processor for the guest.
    #[value(name = "14")]
    QueuesReserved,
    /// Lengths of queues, with 45 % of the processor for the guest.
    #[value(name = "15")]
    QueuesHalf,
    /// A group of routers, by their number.
    #[value(name = "18")]
    Parallel,
    /// A stage that balances load, alone and with back-ends.
    #[value(name = "19")]
    Multistage,
    /// What a frame costs, beside testpmd and a thread for each device.
    Router,
}

/// `bench vsr`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The paper's figure.
    #[arg(long, value_name = "N")]
    pub figure: Shown,
    /// Nanoseconds of the guest's processor for a frame [default: 1000; 12: 2000; 8: 200; router: 50].
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub cost: Option<u32>,
    /// The guest's cards: with Figures 3 and 11.
    #[arg(long, value_name = "CARD", default_value = "virtio")]
    pub card: Card,
    /// The paper's method: ten repetitions, means with their 99 % intervals.
    #[arg(long, conflicts_with = "quick")]
    pub full: bool,
    #[command(flatten)]
    pub common: Common,
}

/// How it is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: u16,
    window: Duration,
    full: bool,
    quick: bool,
    cost_ns: f64,
    card: Card,
    cpus: Cpus,
}

impl Plan {
    fn of(args: &Args) -> Result<Plan> {
        if args.card != Card::Virtio && !matches!(args.figure, Shown::Priorities | Shown::ReservedGuest) {
            return Err(
                "--card: only with --figure 3 and --figure 11; the others have virtio cards".to_owned()
            );
        }
        let common = args.common.settle()?;
        let io = *common.io_cores.first().ok_or("no processor for I/O")?;
        let repeat = common.repeat;
        let (rounds, window) = match args.full {
            true => (REPETITIONS, repeat.window * LONGER),
            false => (repeat.rounds, repeat.window),
        };
        let usual = match args.figure {
            Shown::Router => DPDK_NS,
            Shown::Interconnects => LITTLE_NS,
            Shown::Reserved => MUCH_NS,
            _ => KERNEL_NS,
        };
        let cpus = Cpus { load: common.load_core, io };
        let (full, quick, cost_ns) = (args.full, common.quick, args.cost.map_or(usual, f64::from));
        Ok(Plan { rounds, window, full, quick, cost_ns, card: args.card, cpus })
    }

    /// With measurements of a whole number of these periods: `least` or more.
    fn whole(&self, period: Duration, least: u32) -> Plan {
        let periods = self.window.as_nanos().div_ceil(period.as_nanos().max(1));
        let periods = u32::try_from(periods).unwrap_or(u32::MAX).max(if self.quick { 1 } else { least });
        Plan { window: period * periods, ..*self }
    }
}

/// Samples of each point of these lines: in each round every line is measured on a stage of its own, at all
/// its points.
fn lines<C>(
    plan: &Plan,
    cases: &[C],
    name: impl Fn(&C) -> String,
    measure: impl Fn(&C) -> Result<Vec<Sample>>,
) -> Result<Samples<Sample>> {
    in_parts(plan.rounds, cases, |round, case| {
        let name = name(case);
        let samples = measure(case).map_err(|e| format!("{name}: {e}"))?;
        tell(round, &name, &samples);
        Ok(samples)
    })
}

fn tell(round: Round, name: &str, samples: &[Sample]) {
    let rates: Vec<String> = samples.iter().map(|it| format!("{:.3}", it.forwarded)).collect();
    eprintln!("{round}: {name}: {} Mpps", rates.join(" "));
}

/// `bench vsr`.
pub fn run(args: &Args) -> Result<()> {
    let plan = Plan::of(args)?;
    let mut notes = Vec::new();
    let mut model = None;
    let rows = match args.figure {
        Shown::Processors | Shown::Threads | Shown::Netmap => {
            let figure = match args.figure {
                Shown::Processors => model::processors(&plan)?,
                Shown::Threads => model::threads(&plan)?,
                _ => model::netmap(&plan)?,
            };
            notes = [vec![model::NOTE.to_owned()], figure.missing].concat();
            model = Some((figure.costs, figure.calibration));
            figure.rows
        }
        Shown::Interconnects => {
            let (rows, missing) = interconnects::all(&plan, "8", &interconnects::Way::ALL)?;
            notes = missing;
            rows
        }
        Shown::Priorities => curves::priorities(&plan)?,
        Shown::ReservedIo => reserved::shares(&plan, Part::Io)?,
        Shown::ReservedGuest => reserved::shares(&plan, Part::Guest)?,
        Shown::Reserved => reserved::shares(&plan, Part::Shared)?,
        Shown::Queues => curves::queues(&plan, "13", None)?,
        Shown::QueuesReserved => curves::queues(&plan, "14", Some(0.85))?,
        Shown::QueuesHalf => curves::queues(&plan, "15", Some(0.45))?,
        Shown::Parallel => groups::parallel(&plan, &mut notes)?,
        Shown::Multistage => groups::multistage(&plan, &mut notes)?,
        Shown::Router => return router(args, &plan),
    };
    let how = if args.full { "means and 99 % intervals" } else { "medians" };
    let note = format!(
        "a guest of {} ns a frame, {how} of {} rounds of {:?}; parts of a processor, of frames",
        plan.cost_ns, plan.rounds, plan.window
    );
    let mut results = Results::new("vsr", &note)
        .with("cost_ns", &plan.cost_ns)?
        .with("card", &plan.card)?
        .with("rows", &rows)?
        .with("notes", &notes)?;
    let mut summary = summary(args.figure, &rows);
    if let Some((costs, calibration)) = model {
        // The ratio of a model to what was measured that is most off.
        let worst =
            calibration.iter().map(|it| it.ratio).max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()));
        summary.extend(worst.map(|worst| ("calibration_worst".to_owned(), worst.into())));
        results = results.with("costs", &costs)?.with("calibration", &calibration)?;
    }
    results.with("summary", &summary)?.give(&args.common.output, || report::draw(&rows))
}

fn router(args: &Args, plan: &Plan) -> Result<()> {
    if args.common.output.svg.is_some() {
        return Err("--svg: --figure router is a table".to_owned());
    }
    let (rows, summary, notes) = passes::measure(plan)?;
    let note = format!(
        "a guest of {} ns a frame between two virtio ports, medians of {} rounds of {:?}; cycles: of the I/O processor a frame",
        plan.cost_ns, plan.rounds, plan.window
    );
    Results::new("vsr", &note)
        .with("cost_ns", &plan.cost_ns)?
        .with("rows", &rows)?
        .with("notes", &notes)?
        .with("summary", &summary)?
        .give(&args.common.output, String::new)
}

/// What figures have more than rows.
fn summary(figure: Shown, rows: &[Row]) -> BTreeMap<String, Value> {
    let of_kernel = || rows.iter().filter(|row| row.picture != reserved::BUDGET);
    let served = |by: &'static str| rows.iter().filter(move |row| row.picture.starts_with(by));
    let there = |key: &str, value: Option<f64>| Some((key.to_owned(), Value::from(value?)));
    match figure {
        Shown::ReservedIo | Shown::ReservedGuest | Shown::Reserved => {
            let period = |of: Duration| move |row: &&Row| row.line == reserved::name(of);
            let [short, papers] =
                reserved::PERIODS.map(|of| report::least_r2(of_kernel().filter(period(of))));
            let budget = report::least_r2(rows.iter().filter(|row| row.picture == reserved::BUDGET));
            // Straightness by the kernel's reservations with the paper's period and a shorter one, and by a
            // tenant's budget.
            let all = [there("r2", papers), there("r2_short", short), there("r2_budget", budget)];
            all.into_iter().flatten().collect()
        }
        Shown::Queues | Shown::QueuesReserved | Shown::QueuesHalf => {
            let best = report::best(served(stage::SHARED_CORE.name));
            let longest = curves::QUEUES[curves::QUEUES.len() - 1].to_string();
            let threads = served(stage::THREADS.name).filter(|row| row.line == longest);
            let ratios = [
                there("overload_ratio", best.as_ref().map(|(ratio, _)| *ratio)),
                there("overload_ratio_threads", report::worst(threads)),
            ];
            // The line of which it is.
            let line = best.map(|(_, line)| ("best".to_owned(), line.into()));
            ratios.into_iter().chain([line]).flatten().collect()
        }
        Shown::Parallel | Shown::Multistage => {
            groups::summary(rows).into_iter().map(|(key, ratio)| (key, ratio.into())).collect()
        }
        _ => BTreeMap::new(),
    }
}
