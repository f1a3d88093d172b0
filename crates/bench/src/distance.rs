//! How far the load's processor and the I/O core's are from each other, for each sample of a benchmark.
//!
//! Theory of operation. Frames go from one processor to another in cache lines, so their rate depends on how
//! long a line takes. That is not constant: a virtual machine's processors may share a physical core's caches
//! now, and lie in different complexes a second later. So two threads pass one line to and fro before each
//! sample and after it, for about a millisecond. The sample is *near* if both round trips are below
//! [`NEAR_NS`], *far* if neither is, and *mixed* otherwise. Samples are compared with samples of the same
//! mode. Of more than two processors the first is probed with each of the others.
//!
//! A benchmark probes around its samples ([`Distance`]) and hands them in with their modes; what they come to
//! in tables and JSON is the same for all (`modes`).
//!
//! Both processors poll while this happens. Where it may, the probe has real-time priority above all that a
//! benchmark starts, and preempts it. Elsewhere the scheduler lets it in for some milliseconds at a time, and
//! the median over short stretches ignores those in which one of the two threads waited.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::thread::{scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// A round trip in nanoseconds below which two processors are near each other.
pub const NEAR_NS: f64 = 250.0;
/// Round trips of one stretch, and stretches of a probe.
const TRIPS: u64 = 100;
const STRETCHES: u64 = 30;
/// The part of a long sample's time that its mode has to hold.
const MOST: f64 = 0.75;
/// How long a probe may take before it is given up.
const PATIENCE: Duration = Duration::from_millis(200);
/// The probe's real-time priority; that of what a benchmark starts is 10.
const PRIORITY: &str = "20";

/// How far the two processors were from each other during a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Near before and after it.
    Near,
    /// Far before and after it.
    Far,
    /// It changed.
    Mixed,
    /// There is one processor only, or the probe did not end in time.
    Unknown,
}

impl Mode {
    /// Name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Near => "near",
            Mode::Far => "far",
            Mode::Mixed => "mixed",
            Mode::Unknown => "unknown",
        }
    }

    /// What these round trips say together.
    fn of(round_trips: impl IntoIterator<Item = Option<f64>>) -> Mode {
        let one = |trip: Option<f64>| match trip {
            Some(ns) if ns < NEAR_NS => Mode::Near,
            Some(_) => Mode::Far,
            None => Mode::Unknown,
        };
        round_trips.into_iter().map(one).reduce(Mode::and).unwrap_or(Mode::Unknown)
    }

    /// The mode of a sample that consists of this one's and another one.
    pub fn and(self, other: Mode) -> Mode {
        match (self, other) {
            (Mode::Unknown, _) | (_, Mode::Unknown) => Mode::Unknown,
            _ if self == other => self,
            _ => Mode::Mixed,
        }
    }

    /// The mode of a long sample that consists of parts, each with its length: that of [`MOST`] of the time,
    /// or mixed.
    pub fn most(parts: impl IntoIterator<Item = (Mode, f64)>) -> Mode {
        let parts: Vec<(Mode, f64)> = parts.into_iter().collect();
        let of = |mode: Mode| parts.iter().filter(|part| part.0 == mode).map(|part| part.1).sum::<f64>();
        let all: f64 = parts.iter().map(|part| part.1).sum();
        let known = [Mode::Near, Mode::Far, Mode::Unknown].into_iter();
        known.filter(|_| all > 0.0).find(|mode| of(*mode) >= MOST * all).unwrap_or(Mode::Mixed)
    }
}

/// A sample under way.
#[derive(Debug)]
pub struct Distance {
    cpus: Vec<usize>,
    before: Vec<Option<f64>>,
}

impl Distance {
    /// Probes before a sample: the first of `cpus` with each of the others, each once.
    pub fn before(cpus: &[usize]) -> Distance {
        let mut different = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            if !different.contains(cpu) {
                different.push(*cpu);
            }
        }
        Distance { before: round_trips(&different), cpus: different }
    }

    /// Probes after it: how far the processors were.
    pub fn after(self) -> Mode {
        Mode::of(self.before.into_iter().chain(round_trips(&self.cpus)))
    }
}

/// From the first to each of the others and back.
fn round_trips(cpus: &[usize]) -> Vec<Option<f64>> {
    let Some((first, others)) = cpus.split_first() else { return Vec::new() };
    others.iter().map(|other| round_trip([*first, *other])).collect()
}

/// The word that is passed to and fro, on a line of its own (and on the one that is prefetched with it).
#[repr(align(128))]
#[derive(Default)]
struct Line {
    turn: AtomicU64,
    over: AtomicBool,
}

impl Line {
    /// Waits until it is `turn`'s turn; false when that takes too long. Without a pause instruction, which
    /// takes longer than a line.
    fn wait(&self, turn: u64, end: Instant) -> bool {
        let mut looks = 0_u32;
        while self.turn.load(Ordering::Acquire) != turn {
            looks = looks.wrapping_add(1);
            if looks % 4096 == 0 && (self.over.load(Ordering::Relaxed) || Instant::now() > end) {
                self.over.store(true, Ordering::Relaxed);
                return false;
            }
        }
        true
    }
}

/// Nanoseconds that a cache line takes from the first processor to the second and back; nothing if they are
/// the same, may not be used, or the line does not come back in time.
pub fn round_trip(cpus: [usize; 2]) -> Option<f64> {
    if cpus[0] == cpus[1] {
        return None;
    }
    let (line, ready) = (Line::default(), Barrier::new(3));
    let at = |cpu: usize| {
        // In this order: with a poller of real-time priority on its processor, `chrt` would not get to run.
        prioritize();
        let pinned = sidecore_engine::util::place::pin(cpu).is_ok();
        ready.wait();
        pinned.then(|| Instant::now() + PATIENCE)
    };
    scope(|scope| {
        let here = scope.spawn(|| {
            let end = at(cpus[0])?;
            let mut stretches = Vec::new();
            for stretch in 0..STRETCHES {
                let start = Instant::now();
                for trip in 0..TRIPS {
                    let turn = 2 * (stretch * TRIPS + trip);
                    line.turn.store(turn + 1, Ordering::Release);
                    if !line.wait(turn + 2, end) {
                        return None;
                    }
                }
                stretches.push(start.elapsed().as_nanos() as f64 / TRIPS as f64);
            }
            stretches.sort_by(f64::total_cmp);
            stretches.get(stretches.len() / 2).copied()
        });
        let there = scope.spawn(|| {
            let end = at(cpus[1])?;
            for trip in 0..STRETCHES * TRIPS {
                if !line.wait(2 * trip + 1, end) {
                    return None;
                }
                line.turn.store(2 * trip + 2, Ordering::Release);
            }
            Some(())
        });
        ready.wait();
        let joined = |thread: ScopedJoinHandle<'_, Option<()>>| thread.join().ok().flatten();
        let trip = here.join().ok().flatten();
        joined(there).and(trip)
    })
}

/// Puts the calling thread above what polls on its processor, if that is allowed.
fn prioritize() {
    let Some(thread) = std::fs::read_link("/proc/thread-self")
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
    else {
        return;
    };
    let mut command = Command::new("chrt");
    command.args(["-f", "-p", PRIORITY, &thread]).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = command.status();
}

/// What the samples of one mode say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// How many there are.
    pub samples: usize,
    /// A tenth of them is below this,
    pub decile: f64,
    /// a quarter below this,
    pub quartile: f64,
    /// and half below this.
    pub median: f64,
}

/// The samples' rates, by mode; modes without samples are left out.
pub fn by_mode(samples: impl IntoIterator<Item = (Mode, f64)>) -> Vec<(Mode, Spread)> {
    let mut samples: Vec<(Mode, f64)> = samples.into_iter().collect();
    samples.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    samples
        .chunk_by(|a, b| a.0 == b.0)
        .filter_map(|of_mode| {
            // In hundredths of a place; between two places, between their rates.
            let at = |percent: usize| {
                let place = percent * (of_mode.len() - 1);
                let [low, high] = [place / 100, place.div_ceil(100)].map(|place| of_mode[place].1);
                low + (high - low) * (place % 100) as f64 / 100.0
            };
            let (mode, _) = of_mode.first()?;
            let [decile, quartile, median] = [10, 25, 50].map(at);
            Some((*mode, Spread { samples: of_mode.len(), decile, quartile, median }))
        })
        .collect()
}

/// What a spread says, for the head of a column.
pub const HEAD: &str = "lower decile / quartile / median (samples) by the distance of the two processors";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_a_mode_only_if_both_probes_agree() {
        let mode = |before, after| Mode::of([before, after]);
        assert_eq!(Mode::of([]), Mode::Unknown);
        assert_eq!(mode(Some(90.0), Some(110.0)), Mode::Near);
        assert_eq!(mode(Some(470.0), Some(460.0)), Mode::Far);
        assert_eq!(mode(Some(90.0), Some(460.0)), Mode::Mixed);
        assert_eq!(mode(Some(90.0), None), Mode::Unknown);
        assert_eq!(
            Mode::of([Some(90.0), Some(95.0), Some(460.0), Some(450.0)]),
            Mode::Mixed,
            "one is near, the other far"
        );
    }

    #[test]
    fn a_long_sample_has_the_mode_of_most_of_its_time() {
        use Mode::{Far, Mixed, Near, Unknown};
        assert_eq!(Mode::most([(Near, 3.0), (Far, 1.0)]), Near);
        assert_eq!(Mode::most([(Near, 2.9), (Far, 0.6), (Mixed, 0.5)]), Mixed);
        assert_eq!(Mode::most([(Mixed, 4.0)]), Mixed);
        assert_eq!(Mode::most([(Unknown, 4.0), (Near, 0.5)]), Unknown);
        assert_eq!(Mode::most([]), Mixed);
    }

    #[test]
    fn samples_are_summed_up_by_mode() {
        let rates = (1..=11).map(|n| (Mode::Near, f64::from(n))).chain([(Mode::Far, 7.0)]);
        let modes = by_mode(rates);
        let near = Spread { samples: 11, decile: 2.0, quartile: 3.5, median: 6.0 };
        let far = Spread { samples: 1, decile: 7.0, quartile: 7.0, median: 7.0 };
        assert_eq!(modes, [(Mode::Near, near), (Mode::Far, far)]);
        assert_eq!(by_mode([]), []);
    }

    #[test]
    fn a_line_comes_back_from_another_processor_and_none_from_the_same() {
        assert_eq!(round_trip([0, 0]), None);
        if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            // On a busy machine a try may not end in time.
            let trip = (0..20).find_map(|_| round_trip([0, 1]));
            assert!(trip.is_some_and(|ns| (1.0..100_000.0).contains(&ns)), "{trip:?}");
        }
        assert_eq!(round_trip([0, 4000]), None, "there is no such processor");
        assert_eq!(Distance::before(&[0, 0]).after(), Mode::Unknown, "one processor has no distance");
    }
}
