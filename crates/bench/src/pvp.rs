//! `sidecore bench pvp`: frames from one virtio port to another, both ways at once, through sidecore's
//! learning switch, testpmd's io mode and Open vSwitch (as a learning switch and as a wire).
//!
//! Two cores: the load's and the one that the candidate gets. In each round every candidate is started,
//! measured at every frame size and stopped, so that slow drift of the machine meets all alike; a ratio is
//! the median of the rounds' ratios, not the ratio of medians. How far the two cores were from each other is probed before and after
//! each sample (`distance`), and what the samples of one mode say is compared with testpmd's in the same mode. What else can spoil a round is printed: how
//! busy the load was (it must not be the limit) and how long either thread was kept from its core.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use sidecore_driver::load::{Load, LoadConfig, LoadReport};
use sidecore_driver::memory::Page;
use sidecore_driver::{Frontend, Listener};

use super::common::{apart, merged, middle, page, text, Processors, Range, Repeat, Result};
use super::distance::{Distance, Mode};
use super::modes::Modes;
use super::ours::{Cycles, Switch, START};
use super::peers::{self, Flows, Ovs, OvsPort, Scratch, Testpmd, VhostPort};
use super::results::Results;

/// Something to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Candidate {
    /// sidecore's learning switch.
    Sidecore,
    /// DPDK's testpmd, io mode: a wire.
    Testpmd,
    /// Open vSwitch with DPDK, action NORMAL.
    OvsNormal,
    /// Open vSwitch with DPDK, in_port flows: a wire.
    OvsWire,
}

impl Candidate {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Sidecore, Self::Testpmd, Self::OvsNormal, Self::OvsWire];

    /// Name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sidecore => "sidecore",
            Self::Testpmd => "testpmd",
            Self::OvsNormal => "ovs-normal",
            Self::OvsWire => "ovs-wire",
        }
    }
}

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
    cycles: Option<Cycles>,
    /// Share of the window in which load or candidate waited for its core.
    waited: f64,
    /// How far the two cores were from each other.
    mode: Mode,
}

enum Running {
    Sidecore(Switch),
    Testpmd(Testpmd),
    Ovs(Ovs),
}

/// A started candidate and the way to its two ports.
struct Stage {
    running: Running,
    paths: [PathBuf; 2],
    listeners: Option<[Listener; 2]>,
    _scratch: Scratch,
}

impl Stage {
    fn start(candidate: Candidate, args: &Args) -> Result<Self> {
        let core = args.cpus.io_core;
        let scratch = Scratch::new("sc-pvp").map_err(text)?;
        let paths = [scratch.file("a"), scratch.file("b")];
        let mut listeners = None;
        let running = match candidate {
            Candidate::Testpmd => {
                let ports = paths.each_ref().map(|path| VhostPort { path: path.clone(), client: false });
                Running::Testpmd(Testpmd::start(core, &ports, 1).map_err(text)?)
            }
            Candidate::OvsNormal | Candidate::OvsWire => {
                let [a, b] = paths.each_ref().map(Listener::new);
                listeners = Some([a.map_err(text)?, b.map_err(text)?]);
                let flows = if candidate == Candidate::OvsNormal { Flows::Normal } else { Flows::Wire };
                let ports = paths.each_ref().map(|path| OvsPort::Vhost(path.clone()));
                Running::Ovs(Ovs::start(core, &ports, flows).map_err(text)?)
            }
            Candidate::Sidecore => Running::Sidecore(Switch::start(core, &scratch, &paths).map_err(text)?),
        };
        Ok(Self { running, paths, listeners, _scratch: scratch })
    }

    fn id(&self) -> u32 {
        match &self.running {
            Running::Sidecore(switch) => switch.process.id(),
            Running::Testpmd(testpmd) => testpmd.id(),
            Running::Ovs(ovs) => ovs.daemon.id(),
        }
    }

    fn connect(&self) -> sidecore_driver::Result<[Frontend; 2]> {
        Ok(match &self.listeners {
            Some([a, b]) => [a.accept(START)?, b.accept(START)?],
            None => [Frontend::connect(&self.paths[0], START)?, Frontend::connect(&self.paths[1], START)?],
        })
    }

    fn measure(&self, config: LoadConfig, args: &Args) -> Result<Sample> {
        let [a, b] = self.connect().map_err(text)?;
        let mut load = Load::new(a, b, config).map_err(text)?;
        let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut threads = vec![(own, thread)];
        threads.extend(peers::polling_thread(self.id(), args.cpus.io_core).map(|t| (self.id(), t)));
        if args.fifo {
            threads.iter().try_for_each(|(_, thread)| peers::prioritize(*thread)).map_err(text)?;
        }
        let distance = Distance::before(&args.cpus.pair());
        load.warm_up().map_err(text)?;
        let waited = || threads.iter().map(|(p, t)| peers::waited(*p, *t)).sum::<u64>();
        let (waited_before, cycles_before) = (waited(), self.cycles()?);
        let report = load.measure().map_err(text)?;
        let waited = (waited() - waited_before) as f64 / 1e9 / report.seconds;
        let cycles = self.cycles()?.zip(cycles_before).map(|(after, before)| after.since(before));
        Ok(Sample { report, cycles, waited, mode: distance.after() })
    }

    /// The candidate's own account of its core so far, if it keeps one.
    fn cycles(&self) -> Result<Option<Cycles>> {
        let cycles = match &self.running {
            Running::Ovs(ovs) => ovs.cycles().map(|(busy, idle, frames)| Some(Cycles { busy, idle, frames })),
            Running::Testpmd(_) => Ok(None),
            Running::Sidecore(switch) => switch.cycles().map(Some),
        };
        cycles.map_err(text)
    }
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let wanted = |candidate: &Candidate| {
        *candidate == Candidate::Sidecore
            || args.peers.is_empty()
            || args.peers.iter().any(|peer| peer == candidate.name())
    };
    let candidates: Vec<Candidate> = Candidate::ALL.into_iter().filter(wanted).collect();
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
    let mut samples: BTreeMap<(u16, Candidate), Vec<Sample>> = BTreeMap::new();
    // Peers that cannot be measured here, and why.
    let mut missing: BTreeMap<&str, String> = BTreeMap::new();
    for round in 1..=args.repeat.rounds {
        for &candidate in &candidates {
            let name = candidate.name();
            if missing.contains_key(name) {
                continue;
            }
            let measured = Stage::start(candidate, args).and_then(|stage| {
                let of_size = |&size: &u16| {
                    let config = LoadConfig { frame: size.into(), ..load };
                    // Where the load is pinned, and its priority, must not pass to candidates that are started later.
                    let sample = apart(|| stage.measure(config, args))?;
                    let (mpps, mode, rounds) = (sample.report.mpps(), sample.mode.name(), args.repeat.rounds);
                    eprintln!("round {round}/{rounds}: {name} {size} B: {mpps:.2} Mpps, {mode}");
                    Ok((size, sample))
                };
                sizes.iter().map(of_size).collect::<Result<Vec<_>>>()
            });
            match measured.map_err(|why| format!("{name}: {why}")) {
                Err(why) if candidate != Candidate::Sidecore => {
                    eprintln!("{why}");
                    // What it printed itself stays out of the table.
                    missing.insert(name, why.lines().next().unwrap_or_default().to_owned());
                }
                measured => measured?
                    .into_iter()
                    .for_each(|(size, sample)| samples.entry((size, candidate)).or_default().push(sample)),
            }
        }
    }
    // Rounds of others would be compared with what it had in fewer.
    samples.retain(|(_, candidate), _| !missing.contains_key(candidate.name()));
    let rows: Vec<Row> = samples
        .iter()
        .map(|(&(size, candidate), of)| {
            let testpmd = samples.get(&(size, Candidate::Testpmd));
            Row::new(size, candidate, of, testpmd.filter(|_| candidate != Candidate::Testpmd))
        })
        .collect();
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
#[derive(Clone, Debug, Serialize)]
struct Row {
    size: u16,
    candidate: &'static str,
    mpps: Range,
    /// Of the rounds' ratios.
    ratio_to_testpmd: Option<Range>,
    load_busy: f64,
    waited: f64,
    lost: u64,
    /// None are ever expected.
    reordered_or_corrupt: u64,
    io_busy: Option<f64>,
    io_cycles_per_frame: Option<f64>,
    latency_ns: Option<BTreeMap<&'static str, u64>>,
    /// Rates by the distance of the two cores, and the medians over testpmd's in the same mode.
    modes: Modes,
}

impl Row {
    fn new(size: u16, candidate: Candidate, samples: &[Sample], testpmd: Option<&Vec<Sample>>) -> Row {
        let mpps = |sample: &Sample| sample.report.mpps();
        let by_mode = |samples: &[Sample]| Modes::of(samples, |sample| (sample.mode, mpps(sample)));
        let sum = |value: fn(&LoadReport) -> u64| samples.iter().map(|s| value(&s.report)).sum();
        let cycles: Option<Vec<Cycles>> = samples.iter().map(|s| s.cycles).collect();
        let latency = merged(samples.iter().filter_map(|s| s.report.latency.clone()));
        Row {
            size,
            candidate: candidate.name(),
            mpps: Range::of(samples.iter().map(mpps)),
            ratio_to_testpmd: testpmd
                .map(|theirs| Range::of(samples.iter().zip(theirs).map(|(s, r)| mpps(s) / mpps(r)))),
            load_busy: middle(samples, |s| s.report.busy),
            waited: middle(samples, |s| s.waited),
            lost: sum(|r| r.lost),
            reordered_or_corrupt: sum(|r| r.reordered + r.corrupt),
            io_busy: cycles.as_ref().map(|cycles| middle(cycles, |c| c.share())),
            io_cycles_per_frame: cycles.as_ref().map(|cycles| middle(cycles, |c| c.per_frame())),
            latency_ns: latency.map(|all| {
                let quantiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
                quantiles.map(|(name, at)| (name, all.value_at_quantile(at))).into()
            }),
            modes: by_mode(samples)
                .over("ratio_to_testpmd", &testpmd.map(|them| by_mode(them)).unwrap_or_default()),
        }
    }
}
