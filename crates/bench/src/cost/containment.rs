//! `sidecore bench containment`: the cost of sandbox, address guard and storm limits for each frame.
//!
//! Each set has two daemons that run at the same time, one with the sandbox and one without, of which one
//! moves frames while the other one's I/O core sleeps. Guard and limits are turned on and off in the running
//! daemon. How it is measured: [`super`].

use std::collections::BTreeMap;

use super::{Kind, Measure, Method, Row, Traffic, SIZE};
use crate::prelude::*;

/// `bench containment`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kinds of ports.
    #[arg(
        long = "port",
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "ring,vhost-user,e1000e"
    )]
    pub ports: Vec<Kind>,
    /// Pairs of daemons, one after the other.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    pub sets: u16,
    #[command(flatten)]
    pub repeat: Repeat<20>,
    #[command(flatten)]
    pub cpus: Processors,
    /// A short look: one round of a few milliseconds with one pair of daemons. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Sandbox, guard and storm limits, on or off.
fn measure(name: &'static str, sandbox: bool, guard: bool, storm: bool) -> Measure {
    let guard = format!("mac-guard={}", if guard { "strict" } else { "off" });
    // Far above what the flow has of them, which is none.
    let limit = if storm { "1000" } else { "" };
    let storm = ["broadcast", "multicast", "unicast"].map(|what| format!("storm-{what}={limit}"));
    let words = [&[guard][..], &storm].concat();
    let options = vec![("p0", words.clone()), ("p1", words)];
    Measure { name, daemon: usize::from(sandbox), options, traffic: Traffic::One, against: None }
}

/// `bench containment`.
///
/// # Errors
/// A daemon does not start, or frames are lost.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let (sets, rounds, window) = match args.quick {
        true => (1, 1, Duration::from_millis(10)),
        false => (args.sets, args.repeat.rounds, args.repeat.window),
    };
    let measures = vec![
        measure("plain", false, false, false),
        measure("again", false, false, false),
        measure("sandbox", true, false, false),
        measure("guard", false, true, false),
        measure("storm", false, false, true),
        measure("all", true, true, true),
    ];
    let daemons: [&[&str]; 2] = [&["--sandbox", "off"], &["--sandbox", "on"]];
    let method =
        Method { measures, daemons: &daemons, ports: 2, list: None, cpus: args.cpus, sets, rounds, window };
    let rows: Vec<Vec<Row>> = args.ports.iter().map(|kind| method.rows(*kind)).collect::<Result<_>>()?;
    let rows = rows.concat();
    let key = |row: &Row| format!("{}_{}", row.port.name().replace('-', "_"), row.measure);
    let summary: BTreeMap<String, f64> = rows.iter().map(|row| (key(row), row.ratio)).collect();
    let note = format!(
        "time of the I/O core for a frame of {SIZE} B, with against without; {sets} sets of {rounds} rounds"
    );
    Results::new("containment", &note).with("rows", &rows)?.with("summary", &summary)?.print(args.json)
}
