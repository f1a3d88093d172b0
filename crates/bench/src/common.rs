//! What benchmarks of several ways to do the same are told, and what they do with the samples of their rounds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::distance::{by_mode, Mode, Spread};
use super::vale::median;

/// An error is a text for people.
pub type Result<T> = std::result::Result<T, String>;

/// What all of them can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Alternations.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "0.2", value_parser = super::seconds)]
    pub window: Duration,
    /// A short look: one round of a few milliseconds with few guests. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    /// Processor for the guests.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub load_core: usize,
    /// Processors for the I/O cores.
    #[arg(long = "io-core", value_name = "CPU,…", value_delimiter = ',', default_value = "1")]
    pub io_cores: Vec<usize>,
    /// Draw the result into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// What it says, or why that cannot be.
    pub fn settle(&self) -> Result<Common> {
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
    pub fn draw(&self, picture: impl FnOnce() -> String) -> Result<()> {
        draw(self.svg.as_deref(), picture)
    }
}

/// Writes the picture into this file, if there is to be one.
pub fn draw(path: Option<&Path>, picture: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, picture()).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// A row's rates by the distance of the two processors, for JSON: an object for each mode that has samples.
pub fn modes_json(modes: &[(Mode, Spread)]) -> serde_json::Value {
    let one = |(mode, of): &(Mode, Spread)| {
        let Spread { samples, decile, quartile, median } = of;
        let of = serde_json::json!({ "samples": samples, "decile": decile, "quartile": quartile, "median": median });
        (mode.name().to_owned(), of)
    };
    serde_json::Value::Object(modes.iter().map(one).collect())
}

/// The same with a ratio in each of them.
pub fn modes_json_with(modes: &[(Mode, Spread)], key: &str, ratios: &[Option<f64>]) -> serde_json::Value {
    let mut all = modes_json(modes);
    for ((mode, _), ratio) in modes.iter().zip(ratios) {
        all[mode.name()][key] = (*ratio).into();
    }
    all
}

/// The same of samples that say their mode and rate.
pub fn modes_of<T>(samples: &[T], sample: impl Fn(&T) -> (Mode, f64)) -> Vec<(Mode, Spread)> {
    by_mode(samples.iter().map(sample))
}

/// An error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The middle of what each sample says.
pub fn middle<T>(samples: &[T], value: impl Fn(&T) -> f64) -> f64 {
    median(samples.iter().map(value))
}
