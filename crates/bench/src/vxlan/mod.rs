//! `sidecore bench vxlan`: a switch over two hosts by VXLAN, beside the kernel's.
//!
//! Theory of operation. Each host is a network namespace, and so is the guest on it; a veth pair between the
//! hosts is the cable (`stage`). Ours is a daemon on each host, with an I/O core, whose switch has a VXLAN
//! port with the other host as its peer, and a TAP in the guest's namespace. The kernel has its own VXLAN
//! device on a bridge, and a veth pair to the guest: what a host without us would have. It is measured twice,
//! as it comes (all of a flow's work is done on the sender's processor), and with a second host that receives
//! on the processor of our second I/O core (RPS); ratios are to the better of the two. All stand ready all
//! the time, and runs alternate.
//!
//! TCP is one connection of iperf3, and the receiver's figure counts. Through the kernel's devices its
//! segments of 64 KiB pass as they are: nothing cuts them on a cable that is a veth pair. A card with a wire
//! does; so a third kernel (`kernel-cut`) cuts them by software before the cable. Frames of 64 and 1500 bytes
//! are one flow of UDP (`flow`); the first has its check sequence counted, which no such interface sees, the
//! second its headers left out. At last FRR tells both hosts of stations (`evpn`).
//!
//! Neither sender nor receiver has a processor of its own; the distance of a run is that of the two I/O
//! cores.

mod evpn;
mod flow;
mod stage;

use std::collections::BTreeMap;

use super::tap::iperf;
use crate::prelude::*;
use flow::Flow;
use stage::{Candidate, Stage};

/// `bench vxlan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Alternations between the candidates.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Length of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Processors for the I/O cores of the two daemons.
    #[arg(long = "io-core", value_name = "CPU,CPU", value_delimiter = ',', default_value = "0,1")]
    pub io_cores: Vec<usize>,
    /// A short look: one round. Its figures mean little.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What goes from guest to guest: its name, and the unit of its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    name: &'static str,
    unit: &'static str,
    /// Bytes of its frames, without check sequence; TCP has others.
    frame: Option<usize>,
}

const TCP: Load = Load { name: "tcp", unit: "Gbit/s", frame: None };
const LOADS: [Load; 3] = [
    TCP,
    Load { name: "64", unit: "Mpps", frame: Some(60) },
    Load { name: "1500", unit: "Mpps", frame: Some(1514) },
];

impl Load {
    /// Who carries it: frames are never cut.
    fn candidates(self) -> &'static [Candidate] {
        &Candidate::ALL[..if self == TCP { 4 } else { 3 }]
    }
}

/// One run.
#[derive(Clone, Debug)]
struct Sample {
    figure: f64,
    lost: u64,
    busy: Vec<f64>,
    mode: Mode,
}

/// `bench vxlan`.
///
/// # Errors
/// A program is missing, something does not start, or nothing arrives.
pub fn run(args: &Args) -> Result<()> {
    let io_cores: [usize; 2] =
        args.io_cores.clone().try_into().map_err(|_| "--io-core takes two processors")?;
    let rounds = if args.quick { 1 } else { args.rounds };
    let stages: Vec<Stage> =
        Candidate::ALL.iter().map(|it| Stage::start(*it, io_cores)).collect::<Result<_>>()?;
    let cases = LOADS.iter().flat_map(|load| load.candidates().iter().zip(&stages).map(|it| (*load, it)));
    let cases: Vec<_> = cases.map(|(load, (it, stage))| (load, *it, stage)).collect();
    let samples = by_turns(rounds, &cases, |round, (load, candidate, stage)| {
        let (Load { name, unit, .. }, who) = (load, candidate.name());
        let sample = one(args, stage, *load, io_cores).map_err(|e| format!("{who}, {name}: {e}"))?;
        eprintln!("{round}: {who}, {name}: {:.3} {unit}, {}", sample.figure, sample.mode.name());
        Ok(sample)
    })?;
    let rows: Vec<_> = cases.iter().zip(&samples).map(|((load, it, _), of)| row(*load, *it, of)).collect();
    // The median of a candidate with a load.
    let of = |load: Load, candidate: Candidate| {
        let at = cases.iter().position(|(of, it, _)| (*of, *it) == (load, candidate));
        at.map_or(f64::NAN, |at| middle(&samples[at], |it| it.figure))
    };
    let ratios = ratios(of);
    let note = "one flow between guests of two hosts: ours by TAPs and a daemon on each host, the kernel's by veth pairs, bridge \
        and VXLAN, as it comes, with RPS, or with segments cut before the cable (kernel-cut); busy: I/O cores of sender's and receiver's \
        host; ratios: to the better of the first two kernels, or to kernel-cut; control: FRR, from the first frame of a station that has \
        moved until one arrives there, and from when bgpd has all stations until the switch has";
    // Their processors are FRR's now.
    drop(cases);
    drop(stages);
    let (control, notes) = match evpn::run(args, io_cores) {
        Ok(control) => (control, Vec::new()),
        Err(why) => (Vec::new(), vec![format!("control plane: {why}")]),
    };
    let of_frr = control.first();
    let summary = fields! {
        #[serde(flatten)]
        ratios,
        /// Our figures with FRR, if that is there: medians, and frames of all moves that arrived twice.
        move_ms: of_frr.map(|row| row.move_ms),
        macs_20k_s: of_frr.map(|row| row.macs_s),
        duplicates: of_frr.map(|row| row.duplicates),
    };
    Results::new("vxlan", note)
        .with("rows", &rows)?
        .with("control", &control)?
        .with("notes", &notes)?
        .with("summary", &summary)?
        .print(args.json)
}

/// Ours against the better kernel, and against the one that cuts segments, by the figures of each load and
/// candidate.
fn ratios(of: impl Fn(Load, Candidate) -> f64) -> BTreeMap<&'static str, f64> {
    let ours = |load| of(load, Candidate::Sidecore);
    let ratio = |load| ours(load) / of(load, Candidate::Kernel).max(of(load, Candidate::KernelRps));
    let keys = ["ratio_kernel_tcp", "ratio_kernel_64", "ratio_kernel_1500"];
    let cut = ("ratio_kernel_cut_tcp", ours(TCP) / of(TCP, Candidate::KernelCut));
    keys.into_iter().zip(LOADS.map(ratio)).chain([cut]).collect()
}

fn one(args: &Args, stage: &Stage, load: Load, io_cores: [usize; 2]) -> Result<Sample> {
    let time = Duration::from_secs(args.seconds.into());
    let distance = Distance::before(&io_cores);
    let before = stage.spent()?;
    let (figure, lost) = match load.frame {
        None => (iperf(&stage.guests, args.seconds, 1)?, 0),
        Some(bytes) => Flow::new(&stage.guests, bytes)?.measure(time)?,
    };
    let busy = stage.spent()?.into_iter().zip(before).map(|(after, before)| after.since(before).share());
    let busy = busy.collect();
    Ok(Sample { figure, lost, busy, mode: distance.after() })
}

fn row(load: Load, candidate: Candidate, samples: &[Sample]) -> impl Serialize {
    let cores = samples.first().map_or(0, |it| it.busy.len());
    fields! {
        load: load.name,
        candidate: candidate.name(),
        unit: load.unit,
        /// The median of the runs, and all of them.
        median: middle(samples, |it| it.figure),
        samples: samples.iter().map(|it| it.figure).collect::<Vec<_>>(),
        /// Frames that did not arrive, of all runs; iperf3's are sent again.
        lost: samples.iter().map(|it| it.lost).sum::<u64>(),
        /// The part of the time in which the I/O cores were busy: the sender's host, the receiver's.
        busy: (0..cores).map(|core| middle(samples, |it| it.busy[core])).collect::<Vec<_>>(),
        modes: Modes::of(samples, |it| (it.mode, it.figure)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_kernel_counts() {
        let figures = [(TCP, [8.0, 20.0, 16.0, 4.0]), (LOADS[1], [1.0, 0.25, 0.5, 0.0])];
        let of = |load: Load, candidate: Candidate| {
            let its = figures.iter().find(|(of, _)| *of == load);
            its.map_or(f64::NAN, |(_, figures)| figures[candidate as usize])
        };
        let ratios = ratios(of);
        let known = ["ratio_kernel_tcp", "ratio_kernel_cut_tcp", "ratio_kernel_64"].map(|key| ratios[key]);
        assert_eq!(known, [0.4, 2.0, 2.0]);
        assert!(ratios["ratio_kernel_1500"].is_nan());
    }
}
