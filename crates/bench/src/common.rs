//! What benchmarks of several ways to do the same are told, and what they do with the samples of their
//! rounds.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sidecore_driver::load::pin;
use sidecore_driver::memory::Page;
use sidecore_driver::session::Config;
use sidecore_driver::{Frontend, NetDriver};

use super::peers::{free_huge_pages, HUGE_PAGES};

/// Longest wait for a start.
pub const START: Duration = Duration::from_secs(20);

/// An error is a text for people.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// What all of them can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub repeat: Repeat<200>,
    /// A short look: one round of a few milliseconds with few guests. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    /// Processor for the guests.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub load_core: usize,
    /// Processors for the I/O cores.
    #[arg(long = "io-core", value_name = "CPU,…", value_delimiter = ',', default_value = "1")]
    pub io_cores: Vec<usize>,
    #[command(flatten)]
    pub output: Output,
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
            settled.repeat = Repeat { rounds: 1, window: Duration::from_millis(100) };
        }
        Ok(settled)
    }
}

/// How often something is measured, and for how long: `MILLIS` milliseconds unless said otherwise.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Repeat<const MILLIS: u64> {
    /// Alternations.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", value_parser = super::seconds)]
    #[arg(default_value = (MILLIS as f64 / 1e3).to_string())]
    pub window: Duration,
}

impl<const MILLIS: u64> fmt::Display for Repeat<MILLIS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "medians of {} rounds of {:?}", self.rounds, self.window)
    }
}

/// The two processors of a benchmark with one I/O core.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Processors {
    /// Processor for the load.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub load_core: usize,
    /// Processor for the I/O core, or for the candidate beside it.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub io_core: usize,
}

impl Processors {
    /// Both.
    pub fn pair(&self) -> [usize; 2] {
        [self.load_core, self.io_core]
    }

    /// Fails if they are the same.
    pub fn differ(&self) -> Result<()> {
        match self.load_core == self.io_core {
            true => Err(format!("load and I/O core both on processor {}: they need one each", self.io_core)),
            false => Ok(()),
        }
    }
}

/// Where the result goes, beside the table.
#[derive(Clone, Debug, clap::Args)]
pub struct Output {
    /// Draw the result into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// An error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Asks again and again, with `pause` between, until there is an answer; it is told of as `what`.
///
/// # Errors
/// Asking fails, or there is no answer within `limit`.
pub fn until<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begun.elapsed() > limit {
            return Err(format!("it takes more than {limit:?} until {what}"));
        }
        // Others' progress, of which nothing tells.
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

/// The calling thread's number.
pub fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Does `what` on a thread of its own: where that is pinned does not pass to threads and processes that are
/// started later.
pub fn apart<R: Send>(what: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        scope.spawn(what).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does `what` on a thread of its own on processor `core`.
pub fn on<R: Send>(core: usize, what: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    apart(|| {
        pin(core).map_err(text)?;
        what()
    })
}

/// A guest behind the socket at `path`.
pub fn guest(path: &Path, config: Config) -> Result<NetDriver> {
    NetDriver::start(Frontend::connect(path, START).map_err(text)?, config).map_err(text)
}

/// A whole number of frames or ticks, without what is beyond it; of less than none it is zero.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub fn whole(it: f64) -> u64 {
    it as u64
}

/// The value at a place of the sorted ones, which depends on how many there are.
fn at(values: impl IntoIterator<Item = f64>, place: impl Fn(usize) -> usize) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(place(sorted.len())).copied().unwrap_or(f64::NAN)
}

/// The least value that so many of each hundred do not exceed.
pub fn percentile(values: impl IntoIterator<Item = f64>, percent: usize) -> f64 {
    at(values, |count| (count * percent).div_ceil(100).saturating_sub(1))
}

/// The middle one.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    at(values, |count| count / 2)
}

/// Median, least and greatest of rounds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Range {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Range {
    /// The range of the values of all rounds.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Range {
        let [min, max] = [0, 100].map(|percent| percentile(values.clone(), percent));
        Range { median: median(values), min, max }
    }
}

/// All of them in one, if there are any.
pub fn merged(all: impl Iterator<Item = Histogram<u64>>) -> Option<Histogram<u64>> {
    all.reduce(|mut sum, next| {
        // Same bounds: adding cannot fail.
        let _ = sum.add(&next);
        sum
    })
}

/// Pages for what drivers and guests share: huge ones, if there are enough.
pub fn page() -> Page {
    match free_huge_pages() >= HUGE_PAGES {
        true => Page::Huge,
        false => Page::Small,
    }
}

/// The middle of what each sample says.
pub fn middle<T>(samples: &[T], value: impl Fn(&T) -> f64) -> f64 {
    median(samples.iter().map(value))
}
