//! Many ports of which most say nothing: a daemon with silent native drivers, and `sidecore bench ports`.
//!
//! Theory of operation. Our daemon is started as a user would, and native drivers connect to all of its
//! ports. `ports` lets one pair talk while the number of silent ports grows, and compares the busy time of
//! the I/O core for each frame with that at two ports, in alternation; it also tells the daemon's own memory
//! (guest memory is shared and not counted). `idle` has the same stage.

use std::fs;
use std::path::PathBuf;

use sidecore_driver::load::{Load, LoadConfig};
use sidecore_driver::session::Config;

use super::peers;
use crate::prelude::*;

/// `bench ports`.
#[derive(Debug, clap::Args)]
pub struct PortsArgs {
    /// Numbers of ports; the first is what the others are compared with.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,8,16,32,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub ports: Vec<u16>,
    #[command(flatten)]
    pub repeat: Repeat<1000>,
    #[command(flatten)]
    pub cpus: Processors,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What a pair that talks has measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Nanoseconds of the I/O core for a frame.
    pub(super) ns: f64,
    /// Million frames a second.
    pub(super) mpps: f64,
    pub(super) mode: Mode,
}

/// A daemon with silent drivers on all ports from number `2` on.
pub(super) struct Stage {
    pub(super) switch: Switch,
    io_core: usize,
    pub(super) paths: Vec<PathBuf>,
    pub(super) silent: Vec<NetDriver>,
}

impl Stage {
    /// So many ports on one switch, of which the first two have no driver yet.
    pub(super) fn start(io_core: usize, ports: u16) -> Result<Stage, String> {
        let switch = Switch::start(io_core, (0..ports).map(|n| format!("vhost-user:@/p{n}")), &[])?;
        let paths: Vec<PathBuf> = (0..ports).map(|n| switch.file(format!("p{n}"))).collect();
        let silent =
            paths[2..].iter().map(|path| guest(path, Config::default())).collect::<Result<_, String>>()?;
        Ok(Stage { switch, io_core, paths, silent })
    }

    /// Has a pair talk on the first two ports.
    pub(super) fn measure(&self, config: LoadConfig) -> Result<Sample, String> {
        let connect = |path: &PathBuf| Frontend::connect(path, START).map_err(text);
        let (a, b) = (connect(&self.paths[0])?, connect(&self.paths[1])?);
        // Only the switch goes along: the silent drivers stay with this thread.
        let (switch, io_core) = (&self.switch, self.io_core);
        apart(move || {
            let mut load = Load::new(a, b, config).map_err(text)?;
            let distance = Distance::before(&[config.core, io_core]);
            load.warm_up().map_err(text)?;
            let before = switch.spent()?;
            let report = load.measure().map_err(text)?;
            let spent = switch.spent()?.since(before);
            Ok(Sample { ns: spent.per_frame(), mpps: report.mpps(), mode: distance.after() })
        })
    }

    /// KiB of memory that is the daemon's own.
    fn memory(&self) -> Result<u64, String> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.switch.process.id())).map_err(text)?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
        kib.ok_or_else(|| "no RssAnon in /proc/PID/status".to_owned())
    }

    /// Processor time that the daemon has used.
    pub(super) fn processor(&self) -> Duration {
        let process = self.switch.process.id();
        Duration::from_nanos(peers::threads(process).map(|thread| peers::ran(process, thread)).sum())
    }
}

/// `bench ports`.
pub fn ports(args: &PortsArgs) -> Result<(), String> {
    let config =
        LoadConfig { core: args.cpus.load_core, window: args.repeat.window, ..LoadConfig::default() };
    let samples = by_turns(args.repeat.rounds, &args.ports, |round, &ports| {
        // One daemon at a time: two would share the I/O core.
        let stage = Stage::start(args.cpus.io_core, ports)?;
        let Sample { ns, mpps, mode } = stage.measure(config)?;
        eprintln!("{round}: {ports} ports: {ns:.1} ns a frame, {mpps:.2} Mpps, {}", mode.name());
        Ok((Sample { ns, mpps, mode }, stage.memory()?))
    })?;
    let by_mode = |of: &[(Sample, u64)]| Modes::of(of, |(it, _)| (it.mode, it.ns));
    let memory = |of: &[(Sample, u64)]| of.last().map_or(0, |it| it.1);
    let rows = args.ports.iter().zip(&samples).map(|(ports, of)| {
        fields! {
            ports: *ports,
            /// Nanoseconds of the I/O core for each frame: every round.
            ns_per_frame: of.iter().map(|it| it.0.ns).collect::<Vec<_>>(),
            median: middle(of, |it| it.0.ns),
            /// The median of the rounds' ratios to the first row.
            ratio: median(of.iter().zip(&samples[0]).map(|(it, first)| it.0.ns / first.0.ns)),
            mpps: middle(of, |it| it.0.mpps),
            /// KiB of anonymous memory of the daemon.
            memory_kib: memory(of),
            modes: by_mode(of).over("ratio_to_first", &by_mode(&samples[0])),
        }
    });
    let rows: Vec<_> = rows.collect();
    let per_port = match (&rows[0], rows.last()) {
        (first, Some(last)) if last.ports > first.ports => {
            last.memory_kib.saturating_sub(first.memory_kib) / u64::from(last.ports - first.ports)
        }
        _ => 0,
    };
    let note = "one pair talks (64 B, both ways), the others are connected and silent";
    Results::new("ports", note).with("rows", &rows)?.with("kib_per_port", &per_port)?.print(args.json)
}
