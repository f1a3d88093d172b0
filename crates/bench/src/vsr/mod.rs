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

use serde_json::Value;

use super::sched::cores::Card;
use crate::prelude::*;
use report::Row;
use reserved::Part;
use stage::Sample;

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

/// What a figure says: its lines, what the output says of them, numbers, and of a model what it is made from.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    notes: Vec<String>,
    summary: BTreeMap<String, Value>,
    model: Option<(model::Costs, Vec<model::Calibration>)>,
}

impl From<Vec<Row>> for Found {
    fn from(rows: Vec<Row>) -> Found {
        Found { rows, ..Found::default() }
    }
}

/// The table of figures: the paper's number of each, nanoseconds of the guest's time for a frame unless it is
/// said otherwise, and how it is measured.
macro_rules! figures_of_the_paper {
    ($($(#[$about:meta])* $number:literal $name:ident($cost_ns:expr) => |$plan:ident| $measure:expr,)*) => {
        /// What can be measured.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
        pub enum Shown {
            $($(#[$about])* #[value(name = $number)] $name,)*
            /// What a frame costs, beside testpmd and a thread for each device.
            Router,
        }

        impl Shown {
            fn number(self) -> &'static str {
                match self {
                    $(Shown::$name => $number,)*
                    Shown::Router => "router",
                }
            }

            fn cost_ns(self) -> f64 {
                match self {
                    $(Shown::$name => $cost_ns,)*
                    Shown::Router => DPDK_NS,
                }
            }

            /// None: it is no figure, but a table.
            fn measure(self, plan: &Plan) -> Result<Option<Found>> {
                match self {
                    $(Shown::$name => {
                        let $plan = plan;
                        Ok(Some(Found::from($measure?)))
                    })*
                    Shown::Router => Ok(None),
                }
            }
        }
    };
}

figures_of_the_paper! {
    /// More processors: partly a model.
    "2" Processors(KERNEL_NS) => |plan| model::processors(plan),
    /// Priorities of guest and I/O on one processor, and separate processors.
    "3" Priorities(KERNEL_NS) => |plan| curves::priorities(plan),
    /// More threads: partly a model.
    "5" Threads(KERNEL_NS) => |plan| model::threads(plan),
    /// What is between the network's cards and the guest's.
    "8" Interconnects(LITTLE_NS) => |plan| interconnects::all(plan, &interconnects::Way::ALL),
    /// Ports of virtio and of netmap's kind, and more processors: partly a model.
    "9" Netmap(KERNEL_NS) => |plan| model::netmap(plan),
    /// By the part of its processor that is reserved for I/O.
    "10" ReservedIo(KERNEL_NS) => |plan| reserved::shares(plan, Part::Io),
    /// By the part of its processor that is reserved for the guest.
    "11" ReservedGuest(KERNEL_NS) => |plan| reserved::shares(plan, Part::Guest),
    /// By the part of a processor that is reserved for the guest, or for its I/O, which share it.
    "12" Reserved(MUCH_NS) => |plan| reserved::shares(plan, Part::Shared),
    /// Lengths of queues.
    "13" Queues(KERNEL_NS) => |plan| curves::queues(plan, None),
    /// Lengths of queues, with 85 % of the processor for the guest.
    "14" QueuesReserved(KERNEL_NS) => |plan| curves::queues(plan, Some(0.85)),
    /// Lengths of queues, with 45 % of the processor for the guest.
    "15" QueuesHalf(KERNEL_NS) => |plan| curves::queues(plan, Some(0.45)),
    /// A group of routers, by their number.
    "18" Parallel(KERNEL_NS) => |plan| groups::parallel(plan),
    /// A stage that balances load, alone and with back-ends.
    "19" Multistage(KERNEL_NS) => |plan| groups::multistage(plan),
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
    figure: Shown,
    rounds: u16,
    window: Duration,
    full: bool,
    quick: bool,
    cost_ns: f64,
    card: Card,
    cpus: Processors,
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
        let cpus = Processors { load_core: common.load_core, io_core: io };
        let (full, quick, cost_ns) =
            (args.full, common.quick, args.cost.map_or(args.figure.cost_ns(), f64::from));
        Ok(Plan { figure: args.figure, rounds, window, full, quick, cost_ns, card: args.card, cpus })
    }

    /// The row of a line with the samples of each point.
    fn row(&self, [picture, line]: [String; 2], points: &[(f64, Vec<Sample>)]) -> Row {
        report::row([self.figure.number(), &picture, &line], points, self.full)
    }

    /// With measurements of a whole number of these periods: `least` or more.
    fn whole(&self, period: Duration, least: u32) -> Plan {
        let periods = self.window.as_nanos().div_ceil(period.as_nanos().max(1));
        let periods = u32::try_from(periods).unwrap_or(u32::MAX).max(if self.quick { 1 } else { least });
        Plan { window: period * periods, ..*self }
    }
}

/// The rows of these lines, each of which has a picture and a name, and points: in each round every line is
/// measured on a stage of its own, at all its points.
fn lines<C>(
    plan: &Plan,
    cases: &[C],
    name: impl Fn(&C) -> [String; 2],
    points: impl Fn(&C) -> Vec<f64>,
    measure: impl Fn(&C, &[f64]) -> Result<Vec<Sample>>,
) -> Result<Vec<Row>> {
    let samples = in_parts(plan.rounds, cases, |round, case| {
        let name = name(case).join(", ");
        let samples = measure(case, &points(case)).map_err(|e| format!("{name}: {e}"))?;
        tell(round, &name, &samples);
        Ok(samples)
    })?;
    let row = |(case, of): (&C, Vec<Vec<Sample>>)| {
        let points: Vec<_> = points(case).into_iter().zip(of).collect();
        plan.row(name(case), &points)
    };
    Ok(cases.iter().zip(samples).map(row).collect())
}

/// A number of a summary, if there is one.
fn number(key: &str, value: Option<f64>) -> Option<(String, Value)> {
    Some((key.to_owned(), value?.into()))
}

fn tell(round: Round, name: &str, samples: &[Sample]) {
    let rates: Vec<String> = samples.iter().map(|it| format!("{:.3}", it.forwarded)).collect();
    eprintln!("{round}: {name}: {} Mpps", rates.join(" "));
}

/// `bench vsr`.
pub fn run(args: &Args) -> Result<()> {
    let plan = Plan::of(args)?;
    let Some(Found { rows, notes, mut summary, model }) = args.figure.measure(&plan)? else {
        return router(args, &plan);
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
