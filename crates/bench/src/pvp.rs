//! `sidecore bench pvp`: frames from one virtio port to another, both ways at once, through sidecore's
//! learning switch, testpmd's io mode and Open vSwitch (as a learning switch and as a wire).
//!
//! Two cores: the load's and the one that the candidate gets. In each round every candidate is started,
//! measured at every frame size and stopped, so that slow drift of the machine meets all alike; a ratio is
//! the median of the rounds' ratios, not the ratio of medians. How far the two cores were from each other is probed before and after
//! each sample (`distance`), and what the samples of one mode say is compared with testpmd's in the same mode. What else can spoil a round is printed: how
//! busy the load was (it must not be the limit) and how long either thread was kept from its core.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use sidecore_driver::load::{Load, LoadConfig, LoadReport};
use sidecore_driver::memory::Page;
use sidecore_driver::{Frontend, Listener};

use super::distance::{Distance, Mode};
use super::modes::{self, Modes};
use super::ours::{Cycles, Switch, START};
use super::peers::{self, Flows, Ovs, OvsPort, PeerError, Scratch, Testpmd, VhostPort};

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

/// What to measure.
#[derive(Clone, Debug)]
pub struct Args {
    /// Whom.
    pub candidates: Vec<Candidate>,
    /// Frame sizes in bytes, without frame check sequence.
    pub sizes: Vec<usize>,
    /// Alternations.
    pub rounds: usize,
    /// Load: cores, rings, window. `frame` and `page` are set here.
    pub load: LoadConfig,
    /// The candidate's core.
    pub io_core: usize,
    /// The `sidecore` program.
    pub program: PathBuf,
    /// Real-time priority for the load's and the candidates' polling threads.
    pub fifo: bool,
    /// JSON instead of a table.
    pub json: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            candidates: Candidate::ALL.to_vec(),
            sizes: vec![64, 1500],
            rounds: 5,
            load: LoadConfig { core: 0, ..LoadConfig::default() },
            io_core: 1,
            program: std::env::current_exe().unwrap_or_else(|_| "sidecore".into()),
            fifo: false,
            json: false,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A candidate.
    #[error("{candidate}: {source}")]
    Peer {
        /// Which.
        candidate: &'static str,
        /// What it said.
        source: PeerError,
    },
    /// The load.
    #[error("load on {candidate}: {source}")]
    Load {
        /// Which candidate it drove.
        candidate: &'static str,
        /// What went wrong.
        source: sidecore_driver::Error,
    },
    /// The arguments.
    #[error("{0}")]
    Args(String),
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
    fn start(candidate: Candidate, args: &Args) -> Result<Self, Error> {
        let peer = |source| Error::Peer { candidate: candidate.name(), source };
        let load = |source| Error::Load { candidate: candidate.name(), source };
        let scratch = Scratch::new("sc-pvp").map_err(peer)?;
        let paths = [scratch.file("a"), scratch.file("b")];
        let mut listeners = None;
        let running = match candidate {
            Candidate::Testpmd => {
                let ports = paths.each_ref().map(|path| VhostPort { path: path.clone(), client: false });
                Running::Testpmd(Testpmd::start(args.io_core, &ports, 1).map_err(peer)?)
            }
            Candidate::OvsNormal | Candidate::OvsWire => {
                let [a, b] = paths.each_ref().map(Listener::new);
                listeners = Some([a.map_err(load)?, b.map_err(load)?]);
                let flows = if candidate == Candidate::OvsNormal { Flows::Normal } else { Flows::Wire };
                let ports = paths.each_ref().map(|path| OvsPort::Vhost(path.clone()));
                Running::Ovs(Ovs::start(args.io_core, &ports, flows).map_err(peer)?)
            }
            Candidate::Sidecore => {
                Running::Sidecore(Switch::start(&args.program, args.io_core, &scratch, &paths).map_err(peer)?)
            }
        };
        Ok(Self { running, paths, listeners, _scratch: scratch })
    }

    fn id(&self) -> u32 {
        match &self.running {
            Running::Sidecore(switch) => switch.id(),
            Running::Testpmd(testpmd) => testpmd.id(),
            Running::Ovs(ovs) => ovs.id(),
        }
    }

    fn connect(&self) -> sidecore_driver::Result<[Frontend; 2]> {
        Ok(match &self.listeners {
            Some([a, b]) => [a.accept(START)?, b.accept(START)?],
            None => [Frontend::connect(&self.paths[0], START)?, Frontend::connect(&self.paths[1], START)?],
        })
    }

    /// The load runs on a thread of its own: pinning and priority must not pass to candidates that are
    /// started later.
    fn measure(&self, candidate: Candidate, config: LoadConfig, args: &Args) -> Result<Sample, Error> {
        std::thread::scope(|scope| {
            let load = scope.spawn(|| self.measure_here(candidate, config, args));
            load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn measure_here(&self, candidate: Candidate, config: LoadConfig, args: &Args) -> Result<Sample, Error> {
        let load_error = |source| Error::Load { candidate: candidate.name(), source };
        let peer = |source| Error::Peer { candidate: candidate.name(), source };
        let [a, b] = self.connect().map_err(load_error)?;
        let mut load = Load::new(a, b, config).map_err(load_error)?;
        let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut threads = vec![(own, thread)];
        threads.extend(peers::polling_thread(self.id(), args.io_core).map(|t| (self.id(), t)));
        if args.fifo {
            threads.iter().try_for_each(|(_, thread)| peers::prioritize(*thread)).map_err(peer)?;
        }
        let distance = Distance::before(&[config.core, args.io_core]);
        load.warm_up().map_err(load_error)?;
        let waited = || threads.iter().map(|(p, t)| peers::waited(*p, *t)).sum::<u64>();
        let (waited_before, cycles_before) = (waited(), self.cycles().map_err(peer)?);
        let report = load.measure().map_err(load_error)?;
        let waited = (waited() - waited_before) as f64 / 1e9 / report.seconds;
        let cycles =
            self.cycles().map_err(peer)?.zip(cycles_before).map(|(after, before)| after.since(before));
        Ok(Sample { report, cycles, waited, mode: distance.after() })
    }

    /// The candidate's own account of its core so far, if it keeps one.
    fn cycles(&self) -> Result<Option<Cycles>, PeerError> {
        match &self.running {
            Running::Ovs(ovs) => ovs.cycles().map(|(busy, idle, frames)| Some(Cycles { busy, idle, frames })),
            Running::Testpmd(_) => Ok(None),
            Running::Sidecore(switch) => switch.cycles().map(Some),
        }
    }
}

type Key = (usize, Candidate);

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), Error> {
    if args.rounds == 0 || args.candidates.is_empty() || args.sizes.is_empty() {
        return Err(Error::Args("nothing to measure: give at least one round, candidate and size".into()));
    }
    if args.load.core == args.io_core {
        return Err(Error::Args(format!(
            "load and candidate both on core {}: they need one each",
            args.io_core
        )));
    }
    let page = if peers::free_huge_pages() >= peers::HUGE_PAGES { Page::Huge } else { Page::Small };
    let mut samples: BTreeMap<Key, Vec<Sample>> = BTreeMap::new();
    let mut missing: BTreeMap<Candidate, String> = BTreeMap::new();
    for round in 0..args.rounds {
        for candidate in &args.candidates {
            if missing.contains_key(candidate) {
                continue;
            }
            let measured = Stage::start(*candidate, args).and_then(|stage| {
                let of_size = |size: &usize| {
                    let config = LoadConfig { frame: *size, page, ..args.load };
                    let sample = stage.measure(*candidate, config, args)?;
                    let (name, mpps, mode) = (candidate.name(), sample.report.mpps(), sample.mode.name());
                    eprintln!("round {}/{}: {name} {size} B: {mpps:.2} Mpps, {mode}", round + 1, args.rounds);
                    Ok((*size, sample))
                };
                args.sizes.iter().map(of_size).collect::<Result<Vec<_>, Error>>()
            });
            match measured {
                Err(e) if *candidate != Candidate::Sidecore => {
                    eprintln!("{e}");
                    // What it printed itself stays out of the table.
                    missing.insert(*candidate, e.to_string().lines().next().unwrap_or_default().to_owned());
                }
                measured => measured?
                    .into_iter()
                    .for_each(|(size, sample)| samples.entry((size, *candidate)).or_default().push(sample)),
            }
        }
    }
    // Rounds of others would be compared with what it had in fewer.
    samples.retain(|(_, candidate), _| !missing.contains_key(candidate));
    let table = Table { args, page, samples, missing };
    if args.json {
        println!("{}", table.json());
    } else {
        println!("{table}");
    }
    Ok(())
}

/// Median, least and greatest.
fn spread(values: impl IntoIterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 { at(middle) } else { (at(middle - 1) + at(middle)) / 2.0 };
    [median, at(0), at(values.len() - 1)]
}

struct Table<'a> {
    args: &'a Args,
    page: Page,
    samples: BTreeMap<Key, Vec<Sample>>,
    /// Peers that cannot be measured here, and why.
    missing: BTreeMap<Candidate, String>,
}

/// One line of the table.
struct Line {
    mpps: [f64; 3],
    ratio: Option<[f64; 3]>,
    load_busy: f64,
    waited: f64,
    lost: u64,
    /// Reordered and corrupt frames: none are ever expected.
    wrong: u64,
    cycles: Option<(f64, f64)>,
    latency: Option<[u64; 3]>,
    /// Rates by the distance of the two cores, and the medians over testpmd's in the same mode.
    modes: Modes,
}

impl Table<'_> {
    fn line(&self, key: Key) -> Option<Line> {
        let samples = self.samples.get(&key)?;
        let mpps = |sample: &Sample| sample.report.mpps();
        let reference =
            self.samples.get(&(key.0, Candidate::Testpmd)).filter(|_| key.1 != Candidate::Testpmd);
        let median = |value: fn(&Sample) -> f64| spread(samples.iter().map(value))[0];
        let sum = |value: fn(&LoadReport) -> u64| samples.iter().map(|s| value(&s.report)).sum();
        let cycles = samples.iter().all(|s| s.cycles.is_some()).then(|| {
            (
                median(|s| s.cycles.map_or(0.0, Cycles::share)),
                median(|s| s.cycles.map_or(0.0, Cycles::per_frame)),
            )
        });
        let mut latency: Option<hdrhistogram::Histogram<u64>> = None;
        for each in samples.iter().filter_map(|s| s.report.latency.as_ref()) {
            match &mut latency {
                // Same bounds: adding cannot fail.
                Some(all) => drop(all.add(each)),
                None => latency = Some(each.clone()),
            }
        }
        let rate = |sample: &Sample| (sample.mode, mpps(sample));
        let theirs = reference.map(|samples| Modes::of(samples, rate)).unwrap_or_default();
        Some(Line {
            modes: Modes::of(samples, rate).over("ratio_to_testpmd", &theirs),
            mpps: spread(samples.iter().map(mpps)),
            ratio: reference.map(|r| spread(samples.iter().zip(r).map(|(s, r)| mpps(s) / mpps(r)))),
            load_busy: median(|s| s.report.busy),
            waited: median(|s| s.waited),
            lost: sum(|r| r.lost),
            wrong: sum(|r| r.reordered + r.corrupt),
            cycles,
            latency: latency.map(|all| [0.5, 0.99, 0.999].map(|q| all.value_at_quantile(q))),
        })
    }

    fn json(&self) -> serde_json::Value {
        let load = &self.args.load;
        let results: Vec<_> = self
            .samples
            .keys()
            .filter_map(|key| {
                let line = self.line(*key)?;
                let three = |[median, min, max]: [f64; 3]| serde_json::json!({"median": median, "min": min, "max": max});
                Some(serde_json::json!({
                    "modes": line.modes,
                    "size": key.0,
                    "candidate": key.1.name(),
                    "mpps": three(line.mpps),
                    "ratio_to_testpmd": line.ratio.map(three),
                    "load_busy": line.load_busy,
                    "waited": line.waited,
                    "lost": line.lost,
                    "reordered_or_corrupt": line.wrong,
                    "io_busy": line.cycles.map(|c| c.0),
                    "io_cycles_per_frame": line.cycles.map(|c| c.1),
                    "latency_ns": line.latency.map(|[p50, p99, p999]| {
                        serde_json::json!({"p50": p50, "p99": p99, "p99.9": p999})
                    }),
                }))
            })
            .chain(self.missing.iter().map(|(candidate, why)| {
                serde_json::json!({"candidate": candidate.name(), "missing": why})
            }))
            .collect();
        serde_json::json!({
            "version": 1,
            "bench": "pvp",
            "rounds": self.args.rounds,
            "window_s": load.window.as_secs_f64(),
            "huge_pages": self.page == Page::Huge,
            "ring": load.entries,
            "packed": load.packed,
            "in_order": load.in_order,
            "mergeable": load.mergeable,
            "rewritten": load.touch,
            "rate": load.rate,
            "results": results,
        })
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Args { rounds, load, .. } = self.args;
        let ring = if load.packed { "packed" } else { "split" };
        let pages = if self.page == Page::Huge { "2 MiB" } else { "4 KiB" };
        write!(
            f,
            "pvp: {rounds} rounds of {:?}, {ring} rings of {}, {pages} pages",
            load.window, load.entries
        )?;
        if self.page == Page::Small {
            write!(f, " (2 MiB: sysctl vm.nr_hugepages={})", peers::HUGE_PAGES + 200)?;
        }
        writeln!(f, ", both directions added")?;
        match load.rate {
            Some(rate) => writeln!(f, "one-way latency in µs at {rate} frames/s each way")?,
            None => writeln!(f, "Mpps: median (min – max); ratio: median of the rounds' ratios")?,
        }
        let head = ["size", "candidate", "Mpps", "× testpmd", "load busy", "waited", "lost", "I/O core"];
        let [size, candidate, mpps, ratio, busy, waited, lost, io] = head;
        writeln!(
            f,
            "{size:>5} {candidate:<11} {mpps:<24} {ratio:<20} {busy:>9} {waited:>7} {lost:>7}  {io}"
        )?;
        for key in self.samples.keys() {
            let Some(line) = self.line(*key) else { continue };
            let three = |[median, min, max]: [f64; 3]| format!("{median:.2} ({min:.2} – {max:.2})");
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            let mpps = match line.latency {
                Some(ns) => {
                    let [p50, p99, p999] = ns.map(|ns| ns as f64 / 1000.0);
                    format!("{p50:.2} / {p99:.2} / {p999:.2}")
                }
                None => three(line.mpps),
            };
            let ratio = line.ratio.map_or_else(|| "1".into(), three);
            let io = line.cycles.map_or_else(
                || "polls always".into(),
                |(busy, cycles)| format!("{} busy, {cycles:.0} cycles/frame", percent(busy)),
            );
            write!(f, "{:>5} {:<11} {mpps:<24} {ratio:<20}", key.0, key.1.name())?;
            write!(f, " {:>9} {:>7} {:>7}  {io}", percent(line.load_busy), percent(line.waited), line.lost)?;
            if line.wrong > 0 {
                write!(f, "  {} REORDERED OR CORRUPT", line.wrong)?;
            }
            writeln!(f)?;
        }
        for (candidate, why) in &self.missing {
            writeln!(f, "{:>5} {:<11} missing: {why}", "-", candidate.name())?;
        }
        if load.rate.is_some() {
            return Ok(());
        }
        let line = |key: &Key| Some((format!("{:>5} {:<11}", key.0, key.1.name()), self.line(*key)?.modes));
        let lines: Vec<(String, Modes)> = self.samples.keys().filter_map(line).collect();
        write!(f, "{}", modes::table("Mpps", lines.iter().map(|(start, modes)| (start.clone(), modes))))
    }
}
