//! `sidecore bench`: measurements against real peers, in the same run.
//!
//! Every benchmark starts what it compares, loads all of it with the same load, alternates between
//! them, and prints medians with their spread and ratios. Nothing is compared with a stored number.
//!
//! The switch under test is the program `sidecore` in the folder of the program that measures (`ours`);
//! `sidecore bench` becomes `sidecore-bench` of its own folder.
//!
//! [`main`] is all that this library offers. It is a library to be compiled beside the engine.

mod away;
mod blk;
mod commands;
mod common;
mod cost;
mod distance;
mod draw;
mod e1000;
mod echo;
mod ends;
mod engine;
mod fib;
mod frr;
mod group;
mod idle;
mod lane;
mod many;
mod matrix;
mod modes;
mod net;
mod ours;
#[allow(dead_code, reason = "tests of the driver use more of the peers than the benchmarks do")]
mod peers;
mod prelude;
mod ptnet;
mod pvp;
mod results;
mod rfc2544;
mod router;
mod routes;
mod runner;
mod saved;
mod sched;
#[allow(dead_code, reason = "tests of the driver use more of it")]
mod storage;
mod tap;
mod target;
mod vale;
mod virtio_user;
mod vsr;
mod vxlan;
mod wake;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// Runs the benchmark that the process's arguments name, and returns the exit code of the process.
pub fn main() -> ExitCode {
    match commands::run(&commands::Cli::parse().benchmark) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("sidecore: {text}");
            ExitCode::FAILURE
        }
    }
}

/// The length of a measurement, from seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|e| e.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}
