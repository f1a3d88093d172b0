//! `sidecore bench away`: what guests bear while the daemon is away. Guests are the lab's, whose program
//! measures.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::prelude::*;

/// `bench away`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long the daemon is away; each killed, and unable to start, under pings and TCP.
    #[arg(long, value_name = "S,…", default_value = "1,8,30")]
    pub seconds: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Becomes the lab's program.
///
/// # Errors
/// It is not beside this one.
pub fn run(args: &Args) -> Result<()> {
    let program = std::env::current_exe().map_err(|e| format!("/proc/self/exe: {e}"))?;
    let program = program.with_file_name("sidecore-lab");
    let json = args.json.then_some("--json");
    let error = Command::new(&program).args(["bench-away", &args.seconds]).args(json).exec();
    Err(format!("cannot start {}: {error}; `cargo build -p sidecore-lab` builds it", program.display()))
}
