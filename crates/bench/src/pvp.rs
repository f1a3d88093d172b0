//! `sidecore bench pvp`: frames from one virtio port to another, both ways at once, through sidecore's
//! learning switch, testpmd's io mode and Open vSwitch (as a learning switch and as a wire).
//!
//! Two cores: the load's and the one that the candidate gets. In each round every candidate is started,
//! measured at every frame size and stopped, so that slow drift of the machine meets all alike; a ratio is
//! the median of the rounds' ratios, not the ratio of medians. How far the two cores were from each other is
//! probed before and after each sample (`distance`), and what the samples of one mode say is compared with
//! testpmd's in the same mode. What else can spoil a round is printed: how busy the load was (it must not be
//! the limit) and how long either thread was kept from its core.

use std::collections::BTreeMap;

use sidecore_driver::load::{Load, LoadConfig, LoadReport};

use super::ours::Spent;
use super::peers::{self, Flows};
use super::target::{waited, Setting, Target, Who};
use crate::prelude::*;

/// What is measured, in the order of the table, and its name in tables and JSON. Ours is the first.
const CANDIDATES: [(&str, Who); 4] = [
    ("sidecore", Who::Switch),
    ("testpmd", TESTPMD),
    ("ovs-normal", Who::Ovs(Flows::Normal)),
    ("ovs-wire", Who::Ovs(Flows::Wire)),
];
/// The one that others are compared with.
const TESTPMD: Who = Who::Testpmd;

/// `bench pvp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Peers to measure beside sidecore [default: all].
    #[arg(long = "peer", value_name = "PEER", value_delimiter = ',')]
    #[arg(value_parser = ["testpmd", "ovs-normal", "ovs-wire"])]
    pub peers: Vec<String>,
    /// Frame sizes in bytes, without frame check sequence [default: 64,1500].
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub sizes: Vec<u16>,
    #[command(flatten)]
    pub repeat: Repeat<1000>,
    /// Frames per second in each direction, to measure latency [default: as many as possible].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    #[command(flatten)]
    pub cpus: Processors,
    /// Entries of each ring; QEMU's default is 256 too.
    #[arg(long, value_name = "N", default_value = "256", value_parser = ["128", "256", "512", "1024", "2048", "4096"])]
    pub ring: String,
    /// Packed rings.
    #[arg(long)]
    pub packed: bool,
    /// Completion in order.
    #[arg(long)]
    pub in_order: bool,
    /// Without mergeable receive buffers.
    #[arg(long)]
    pub no_mergeable: bool,
    /// Send the same bytes again and again, unlike a real guest.
    #[arg(long)]
    pub fixed: bool,
    /// Real-time priority for the polling threads of load and candidates.
    #[arg(long)]
    pub fifo: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// One measurement.
#[derive(Clone, Debug)]
struct Sample {
    report: LoadReport,
    /// The candidate's own account of its core.
    cycles: Option<Spent>,
    /// Share of the window in which load or candidate waited for its core.
    waited: f64,
    /// How far the two cores were from each other.
    mode: Mode,
}

/// One measurement at one frame size.
fn measure(target: &Target<'_>, config: LoadConfig) -> Result<Sample> {
    let [a, b] = target.frontends()?;
    let mut load = Load::new(a, b, config).map_err(text)?;
    let threads = target.threads()?;
    let distance = Distance::before(&target.cpus());
    load.warm_up().map_err(text)?;
    let (waited_before, cycles_before) = (waited(&threads), target.cycles()?);
    let report = load.measure().map_err(text)?;
    let waited = (waited(&threads) - waited_before) as f64 / 1e9 / report.seconds;
    let cycles = target.cycles()?.zip(cycles_before).map(|(after, before)| after.since(before));
    Ok(Sample { report, cycles, waited, mode: distance.after() })
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let wanted = |(name, who): &&(&str, Who)| {
        *who == Who::Switch || args.peers.is_empty() || args.peers.iter().any(|peer| peer == name)
    };
    let candidates: Vec<(&'static str, Who)> = CANDIDATES.iter().filter(wanted).cloned().collect();
    let sizes = if args.sizes.is_empty() { &[64, 1500][..] } else { &args.sizes };
    let page = page();
    let load = LoadConfig {
        core: args.cpus.load_core,
        window: args.repeat.window,
        rate: args.rate.map(f64::from),
        packed: args.packed,
        in_order: args.in_order,
        mergeable: !args.no_mergeable,
        touch: !args.fixed,
        page,
        ..LoadConfig::default()
    };
    let load = load.entries(args.ring.parse().map_err(|e| format!("--ring: {e}"))?);
    let setting = Setting { cpus: args.cpus, longest: 1514, page, daemon: None, fifo: args.fifo };
    let is_peer = |(name, who): &(&'static str, Who)| (*name, *who != Who::Switch);
    let (samples, missing) = beside_peers(args.repeat.rounds, &candidates, is_peer, |round, (name, who)| {
        let mut target = Target::start(who, setting)?;
        let of_size = |&size: &u16| {
            let config = LoadConfig { frame: size.into(), ..load };
            // Where the load is pinned, and its priority, must not pass to candidates that are started later.
            let sample = target.play(|target| measure(target, config))?;
            let (mpps, mode) = (sample.report.mpps(), sample.mode.name());
            eprintln!("{round}: {name} {size} B: {mpps:.2} Mpps, {mode}");
            Ok(sample)
        };
        sizes.iter().map(of_size).collect()
    })?;
    let there = || candidates.iter().zip(&samples).filter(|(_, of)| !of.is_empty());
    let testpmd = there().find(|((_, who), _)| *who == TESTPMD).map(|(_, of)| of);
    let mut rows = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        rows.extend(there().map(|((name, who), of)| {
            let beside = testpmd.filter(|_| *who != TESTPMD).map(|theirs| &*theirs[at]);
            row(*size, name, &of[at], beside)
        }));
    }
    let more = match page {
        Page::Huge => String::new(),
        Page::Small => format!("; huge pages: sysctl vm.nr_hugepages={}", peers::HUGE_PAGES + 200),
    };
    Results::new("pvp", &format!("both directions added, {}{more}", args.repeat))
        .with("rounds", &args.repeat.rounds)?
        .with("window_s", &load.window.as_secs_f64())?
        .with("huge_pages", &(page == Page::Huge))?
        .with("ring", &load.entries)?
        .with("packed", &load.packed)?
        .with("in_order", &load.in_order)?
        .with("mergeable", &load.mergeable)?
        .with("rewritten", &load.touch)?
        .with("rate", &load.rate)?
        .with("results", &rows)?
        .with("missing", &missing)?
        .print(args.json)
}

/// A row of the table: medians.
fn row(size: u16, candidate: &'static str, samples: &[Sample], testpmd: Option<&[Sample]>) -> impl Serialize {
    let mpps = |sample: &Sample| sample.report.mpps();
    let by_mode = |samples: &[Sample]| Modes::of(samples, |sample| (sample.mode, mpps(sample)));
    let sum = |value: fn(&LoadReport) -> u64| samples.iter().map(|s| value(&s.report)).sum::<u64>();
    let cycles: Option<Vec<Spent>> = samples.iter().map(|s| s.cycles).collect();
    let latency = merged(samples.iter().filter_map(|s| s.report.latency.clone()));
    let ratios = |theirs: &[Sample]| Range::of(samples.iter().zip(theirs).map(|(s, r)| mpps(s) / mpps(r)));
    fields! {
        size,
        candidate,
        mpps: Range::of(samples.iter().map(mpps)),
        /// Medians of the rounds' ratios.
        ratio_to_testpmd: testpmd.map(ratios),
        load_busy: middle(samples, |s| s.report.busy),
        waited: middle(samples, |s| s.waited),
        lost: sum(|r| r.lost),
        /// None are ever expected.
        reordered_or_corrupt: sum(|r| r.reordered + r.corrupt),
        io_busy: cycles.as_ref().map(|cycles| middle(cycles, |c| c.share())),
        io_cycles_per_frame: cycles.as_ref().map(|cycles| middle(cycles, |c| c.per_frame())),
        latency_ns: latency.map(|all| {
            let quantiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
            BTreeMap::from(quantiles.map(|(name, at)| (name, all.value_at_quantile(at))))
        }),
        /// Rates by the distance of the two cores, and the medians over testpmd's in the same mode.
        modes: by_mode(samples).over("ratio_to_testpmd", &testpmd.map(by_mode).unwrap_or_default()),
    }
}
