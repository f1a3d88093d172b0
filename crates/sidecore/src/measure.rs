//! `bench`: from flags to measurements.

use crate::bench::pvp::{self, Candidate};
use crate::bench::{
    blk, draw, e1000, fib, idle, many, matrix, ptnet, rfc2544, router, routes, sched, tap, vale, virtio_user,
};
use crate::cli::{Benchmark, PvpArgs};
use crate::Outcome;

/// `bench`.
pub fn run(benchmark: &Benchmark) -> Outcome {
    match benchmark {
        Benchmark::Pvp(args) => pvp::run(&pvp_args(args)?).map_err(|e| e.to_string()),
        Benchmark::Tap(args) => tap::run(args),
        Benchmark::Matrix(args) => matrix::run(args),
        Benchmark::Ports(args) => many::ports(args),
        Benchmark::E1000(args) => e1000::run(args),
        Benchmark::Ptnet(args) => ptnet::run(args),
        Benchmark::Idle(args) => idle::run(args),
        Benchmark::Vale(args) => vale::run(args),
        Benchmark::Fib(args) => fib::run(args),
        Benchmark::Router(args) => router::run(args),
        Benchmark::Routes(args) => routes::run(args),
        Benchmark::Rfc2544(args) => rfc2544::run(args),
        Benchmark::Limit(args) => vale::run_limit(args),
        Benchmark::Share(args) => sched::share::run(args),
        Benchmark::Mix(args) => sched::mix::run(args),
        Benchmark::Parts(args) => sched::parts::run(args),
        Benchmark::Budget(args) => sched::budget::run(args),
        Benchmark::Grants(args) => sched::grants::run(args),
        Benchmark::Move(args) => sched::moves::run(args),
        Benchmark::Blk(args) => blk::run(args),
        Benchmark::Draw(args) => draw::saved::run(args),
        Benchmark::VirtioUser(args) => virtio_user::run(args),
    }
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
    run.load.window = args.window;
    run.load.rate = args.rate.map(f64::from);
    run.load = run.load.entries(args.ring.parse().map_err(|e| format!("--ring: {e}"))?);
    run.load.packed = args.packed;
    run.load.in_order = args.in_order;
    run.load.mergeable = !args.no_mergeable;
    run.load.touch = !args.fixed;
    Ok(run)
}
