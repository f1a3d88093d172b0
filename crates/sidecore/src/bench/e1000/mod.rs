//! `sidecore bench e1000`: the paper's Figure 4 with native drivers, and how fast the device goes without a guest.
//!
//! Two settings. *Cost model*: a driver of each of the paper's kinds, every trap of which takes 1.2 or 3.7 µs (what
//! the paper measured for an access that the kernel or a process emulates); interrupts are served as Linux does,
//! and there is no network stack, so a row shows what traps and interrupts alone allow. The paper's own number
//! stands beside it: real guests, with a stack, on its machine. *Full speed*: drivers that poll, no traps, no
//! interrupts, nothing modelled.
//!
//! One processor has the I/O core, the other all drivers.

mod figures;
mod full;
mod guest;
mod model;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use sidecore_driver::memory::Page;
use sidecore_engine::device::e1000::Model;

use super::peers;

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Args {
    /// Alternations at full speed.
    pub rounds: u16,
    /// Length of a measurement at full speed; the cost model takes a quarter of it for a row.
    pub window: Duration,
    /// Parts.
    pub models: Vec<Model>,
    /// What a trap costs, in nanoseconds, for each part of the cost model.
    pub costs: Vec<u32>,
    /// Measure full speed.
    pub full: bool,
    /// Processor of the drivers.
    pub load_core: usize,
    /// Processor of the I/O core.
    pub io_core: usize,
    /// Where to draw the figures; then nothing else is measured.
    pub figures: Option<PathBuf>,
    /// Print JSON.
    pub json: bool,
}

/// Huge pages that the drivers' memory takes.
const HUGE_PAGES: u64 = 16;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn name(model: Model) -> &'static str {
    match model {
        Model::E1000 => "e1000",
        Model::E1000e => "e1000e",
    }
}

/// Measures and prints.
///
/// # Errors
/// What could not be started or measured.
pub fn run(args: &Args) -> Result<(), String> {
    if args.load_core == args.io_core {
        return Err(format!("drivers and I/O core both on processor {}: they need one each", args.io_core));
    }
    // On a thread of its own: that it is pinned must not pass to threads which are started later.
    let (rows, full) = std::thread::scope(|scope| {
        let work = scope.spawn(|| measure(args));
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    if args.figures.is_some() {
        return Ok(());
    }
    if args.json {
        println!(
            "{}",
            serde_json::json!({ "version": 1, "bench": "e1000", "cost_model": rows, "full_speed": full })
        );
        return Ok(());
    }
    if !full.is_empty() {
        print!("{}", full::table(&full));
    }
    if !rows.is_empty() {
        print!("{}", model::table(&rows));
    }
    Ok(())
}

fn measure(args: &Args) -> Result<(Vec<model::Row>, Vec<full::Row>), String> {
    sidecore_engine::place::pin(args.load_core).map_err(text)?;
    if let Some(dir) = &args.figures {
        figures::draw(args, dir)?;
        return Ok((Vec::new(), Vec::new()));
    }
    let page = if peers::free_huge_pages() >= HUGE_PAGES { Page::Huge } else { Page::Small };
    let full = if args.full { full::measure(args, page)? } else { Vec::new() };
    Ok((model::measure(args)?, full))
}
