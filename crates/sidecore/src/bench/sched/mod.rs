//! `sidecore bench share`, `mix`, `parts`, `budget` and `move`: what I/O cores do for many guests. The first three stand beside a
//! thread for each device on the same processor.
//!
//! All of them have the stage of `stage` and the players of `guest`: one thread is all guests and the network behind them,
//! so two processors are enough. Each round starts every way of doing I/O anew, in alternation; figures are medians of rounds,
//! a ratio is the median of the rounds' ratios. How busy the load was stands beside each figure: it must not be what limits.

pub mod budget;
pub mod guest;
pub mod mix;
pub mod moves;
pub mod parts;
pub mod share;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

pub use super::vale::median;

type Result<T> = std::result::Result<T, String>;

/// A core that is busy for so much of the time has no more to give.
const FULL: f64 = 0.95;

/// What all of them can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Alternations.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "0.2", value_parser = super::seconds)]
    window: Duration,
    /// A short look: one round of a few milliseconds with few guests. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Processor for the guests.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    load_core: usize,
    /// Processors for the I/O cores.
    #[arg(long = "io-core", value_name = "CPU,…", value_delimiter = ',', default_value = "1")]
    io_cores: Vec<usize>,
    /// Draw the result into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Common {
    /// What it says, or why that cannot be.
    fn settle(&self) -> Result<Common> {
        if self.io_cores.contains(&self.load_core) {
            return Err(format!(
                "guests and I/O core both on processor {}: they need one each",
                self.load_core
            ));
        }
        let mut settled = self.clone();
        if self.quick {
            (settled.rounds, settled.window) = (1, Duration::from_millis(20));
        }
        Ok(settled)
    }

    /// Draws, if asked to.
    fn draw(&self, picture: impl FnOnce() -> String) -> Result<()> {
        let Some(path) = &self.svg else { return Ok(()) };
        std::fs::write(path, picture()).map_err(|e| format!("cannot write {}: {e}", path.display()))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The middle of what each sample says.
fn middle<T>(samples: &[T], value: impl Fn(&T) -> f64) -> f64 {
    median(samples.iter().map(value))
}
