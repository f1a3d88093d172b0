//! `bench`: from flags to measurements.

use std::time::Duration;

use sidecore_engine::device::e1000::Model;

use crate::bench::e1000;
use crate::bench::echo::Amount;
use crate::bench::many;
use crate::bench::matrix;
use crate::bench::pvp::{self, Candidate};
use crate::bench::tap;
use crate::bench::vale;
use crate::bench::virtio_user;
use crate::cli::{Benchmark, E1000Args, IdleArgs, PortsArgs, PvpArgs, TapArgs, VirtioUserArgs};
use crate::Outcome;

/// `bench`.
pub fn run(benchmark: &Benchmark) -> Outcome {
    match benchmark {
        Benchmark::Pvp(args) => pvp::run(&pvp_args(args)?).map_err(|e| e.to_string()),
        Benchmark::Tap(args) => tap::run(&tap_args(args)),
        Benchmark::Matrix(args) => matrix::run(args),
        Benchmark::Ports(args) => many::ports(&ports_args(args)?),
        Benchmark::E1000(args) => e1000::run(&e1000_args(args)?),
        Benchmark::Idle(args) => many::idle(&idle_args(args)?),
        Benchmark::Vale(args) => vale::run(args),
        Benchmark::Limit(args) => vale::run_limit(args),
        Benchmark::VirtioUser(args) => virtio_user::run(&virtio_user_args(args)?),
    }
}

fn e1000_args(args: &E1000Args) -> Result<e1000::Args, String> {
    let model = |word: &String| if word == "e1000" { Model::E1000 } else { Model::E1000e };
    let cost = |us: &f64| {
        let ns =
            Duration::try_from_secs_f64(us / 1e6).ok().and_then(|cost| u32::try_from(cost.as_nanos()).ok());
        ns.filter(|ns| *ns <= 1_000_000)
            .ok_or_else(|| format!("--trap {us}: allowed: microseconds from 0 to 1000"))
    };
    Ok(e1000::Args {
        rounds: args.rounds,
        window: window(args.seconds)?,
        models: args.devices.iter().map(model).collect(),
        costs: args.traps.iter().map(cost).collect::<Result<_, _>>()?,
        full: !args.no_full_speed,
        load_core: args.load_core,
        io_core: args.io_core,
        figures: args.figures.clone(),
        json: args.json,
    })
}

fn virtio_user_args(args: &VirtioUserArgs) -> Result<virtio_user::Args, String> {
    let chosen = |words: &[String], yes: &str| words.iter().map(|word| word == yes).collect();
    let time = window(args.seconds)?;
    Ok(virtio_user::Args {
        server: chosen(&args.role, "server"),
        packed: chosen(&args.ring, "packed"),
        mergeable: chosen(&args.mergeable, "on"),
        queues: args.queues.clone(),
        size: usize::from(args.size),
        window: time,
        half: args.frames.map_or(Amount::Time(time), Amount::Frames),
        load_core: args.load_core,
        peer_core: args.peer_core,
        io_core: args.io_core,
        json: args.json,
    })
}

fn tap_args(args: &TapArgs) -> tap::Args {
    let &TapArgs { rounds, seconds, streams, io_core, json } = args;
    tap::Args { rounds, seconds, streams, io_core, json }
}

fn ports_args(args: &PortsArgs) -> Result<many::Args, String> {
    Ok(many::Args {
        ports: args.ports.clone(),
        rounds: args.rounds,
        window: window(args.seconds)?,
        load_core: args.load_core,
        io_core: args.io_core,
        json: args.json,
    })
}

fn idle_args(args: &IdleArgs) -> Result<many::Args, String> {
    Ok(many::Args {
        ports: vec![args.ports],
        rounds: args.frames,
        window: window(args.seconds)?,
        load_core: 0,
        io_core: args.io_core,
        json: args.json,
    })
}

fn window(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|e| format!("--seconds {seconds}: {e}"))
}

fn pvp_args(args: &PvpArgs) -> Result<pvp::Args, String> {
    let wanted = |candidate: &Candidate| {
        *candidate == Candidate::Sidecore
            || args.peers.is_empty()
            || args.peers.iter().any(|peer| peer == candidate.name())
    };
    let mut run =
        pvp::Args { candidates: Candidate::ALL.into_iter().filter(wanted).collect(), ..pvp::Args::default() };
    if !args.sizes.is_empty() {
        run.sizes = args.sizes.iter().map(|&size| usize::from(size)).collect();
    }
    run.rounds = usize::from(args.rounds);
    run.io_core = args.io_core;
    run.fifo = args.fifo;
    run.json = args.json;
    run.load.core = args.load_core;
    run.load.window = window(args.seconds)?;
    run.load.rate = args.rate.map(f64::from);
    run.load = run.load.entries(args.ring.parse().map_err(|e| format!("--ring: {e}"))?);
    run.load.packed = args.packed;
    run.load.in_order = args.in_order;
    run.load.mergeable = !args.no_mergeable;
    run.load.touch = !args.fixed;
    Ok(run)
}
