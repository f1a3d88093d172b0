//! `sidecore bench e1000`: the paper's Figure 4 with native drivers, and how fast the device goes without a
//! guest.
//!
//! Two settings. *Cost model*: a driver of each of the paper's kinds, every trap of which takes 1.2 or 3.7 µs
//! (what the paper measured for an access that the kernel or a process emulates); interrupts are served as
//! Linux does, and there is no network stack, so a row shows what traps and interrupts alone allow. The
//! paper's own number stands beside it: real guests, with a stack, on its machine. *Full speed*: drivers that
//! poll, no traps, no interrupts, nothing modelled.
//!
//! Beside Intel's cards goes the RTL8169, whose doorbells cannot but trap, without and with a status block.
//!
//! One processor has the I/O core, the other all drivers.

pub mod ends;
mod figures;
mod full;
mod guest;
mod model;
mod nic;
pub mod stage;
mod summary;

use std::path::PathBuf;

use self::nic::Part;
use super::peers;
use crate::prelude::*;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// `bench e1000`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices.
    #[arg(
        long = "device",
        value_name = "DEVICE",
        value_delimiter = ',',
        default_value = "e1000,e1000e,rtl8169"
    )]
    #[arg(value_parser = PossibleValuesParser::new(Part::ALL.map(Part::name)).map(|word| Part::named(&word)))]
    pub parts: Vec<Part>,
    /// What a trap takes in the cost model: the paper's figures for one that the kernel and a process
    /// emulates.
    #[arg(long = "trap", value_name = "MICROSECONDS,…", value_delimiter = ',', default_value = "1.2,3.7")]
    #[arg(value_parser = nanoseconds)]
    pub costs: Vec<u32>,
    /// Only the cost model.
    #[arg(long)]
    pub no_full_speed: bool,
    /// Draw the figures of moderation and receive livelock into this directory, and do nothing else.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "no_full_speed"])]
    pub figures: Option<PathBuf>,
    /// Alternations at full speed.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Length of each measurement at full speed; a row of the cost model takes a quarter of it.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "1", value_parser = crate::seconds)]
    pub window: Duration,
    #[command(flatten)]
    pub cpus: Processors,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A price in nanoseconds, given in microseconds.
fn nanoseconds(text: &str) -> Result<u32, String> {
    let us = text.parse::<f64>().ok().filter(|us| (0.0..=1000.0).contains(us));
    let time = us.and_then(|us| Duration::try_from_secs_f64(us / 1e6).ok());
    let ns = time.and_then(|time| u32::try_from(time.as_nanos()).ok());
    ns.ok_or_else(|| "allowed: microseconds from 0 to 1000".to_owned())
}

/// Huge pages that the drivers' memory takes.
const HUGE_PAGES: u64 = 16;

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), String> {
    args.cpus.differ()?;
    let (rows, full) = on(args.cpus.load_core, || measure(args))?;
    if args.figures.is_some() {
        return Ok(());
    }
    Results::new("e1000", NOTE)
        .with("full_speed", &full)?
        .with("cost_model", &rows)?
        .with("summary", &summary::of(&rows, &full))?
        .print(args.json)
}

/// What the tables are about. The paper's best is of FreeBSD, netmap's pkt-gen over CSB and VALE.
const NOTE: &str = "native drivers through the learning switch. full_speed: both poll; the paper's best: 5.0 Mpps of 64 B, 22.7 \
    Gbit/s of 1500 B. cost_model: without a network stack, a price for each trap; traps and interrupts: the sender's, the \
    receiver's for each frame; paper_kpps: Figure 4";

fn measure(args: &Args) -> Result<(Vec<model::Row>, Vec<full::Row>), String> {
    if let Some(dir) = &args.figures {
        figures::draw(args, dir)?;
        return Ok((Vec::new(), Vec::new()));
    }
    let page = if peers::free_huge_pages() >= HUGE_PAGES { Page::Huge } else { Page::Small };
    let full = if !args.no_full_speed { full::measure(args, page)? } else { Vec::new() };
    Ok((model::measure(args)?, full))
}
