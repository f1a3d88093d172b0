//! `sidecore bench containment`: the cost of sandbox, address guard and storm limits for each frame.
//!
//! Theory of operation. A flow between two ports goes one way, between ring ports, virtio ports or e1000e cards; one thread is
//! both ends. What is measured is the time in which the I/O core was busy, by its own account, over the frames that it took.
//!
//! The machine is faster in some seconds than in others, and one process is faster than another one of the same program, because
//! its pages lie elsewhere. Both are larger than the 2 % in question. So each *set* has two daemons that run at the same time, one
//! with the sandbox and one without, of which one moves frames while the other one's I/O core sleeps. Guard and limits are turned
//! on and off in the running daemon. Within a set the measures take turns, [`Repeat::window`] long each; a turn's ratio is that
//! of a measure to the mean of both plain turns of its own round. A set says the median of its rounds, and the table the median of
//! the sets.
//!
//! `plain` and `again` are the same: what lies between them is noise. The interval holds the median with 95 %, by its order
//! statistics, so whatever the distribution.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use sidecore_driver::e1000::{Config, E1000};
use sidecore_driver::load::{pin, ticks_per_ns};
use sidecore_driver::memory::Page;
use sidecore_driver::Frontend;
use sidecore_pktgen::end::{Blind, Lane, Source};

use super::common::{apart, median, text, Processors, Repeat, Result};
use super::distance::{Distance, Mode};
use super::modes::Modes;
use super::ours::{Switch, START};
use super::peers::Scratch;
use super::results::Results;
use super::rfc2544::lane::{End, Once};

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

/// Bytes of a frame, entries of a ring, frames sent at once, and frames under way at most.
const SIZE: usize = 60;
const ENTRIES: u16 = 1024;
const BATCH: usize = 128;
const WINDOW: u64 = 512;
/// Frames that have not come after this time are lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// The ends' stations.
const MAC: [[u8; 6]; 2] = [[2, 0x63, 0, 0, 0, 1], [2, 0x63, 0, 0, 0, 2]];

/// Kinds of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Ring ports.
    Ring,
    /// virtio-net over vhost-user.
    VhostUser,
    /// The 82574L over vfio-user.
    E1000e,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Ring => "ring",
            Kind::VhostUser => "vhost-user",
            Kind::E1000e => "e1000e",
        }
    }
}

/// What is turned on.
struct Measure {
    name: &'static str,
    sandbox: bool,
    guard: bool,
    storm: bool,
}

const MEASURES: [Measure; 6] = [
    Measure { name: "plain", sandbox: false, guard: false, storm: false },
    Measure { name: "again", sandbox: false, guard: false, storm: false },
    Measure { name: "sandbox", sandbox: true, guard: false, storm: false },
    Measure { name: "guard", sandbox: false, guard: true, storm: false },
    Measure { name: "storm", sandbox: false, guard: false, storm: true },
    Measure { name: "all", sandbox: true, guard: true, storm: true },
];
/// How many of them, from the first on, are plain.
const PLAIN: usize = 2;

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    port: Kind,
    measure: &'static str,
    /// Nanoseconds of the I/O core for a frame, median of all turns.
    ns_per_frame: f64,
    /// With it against without it: median of the sets, and where it lies with 95 %.
    ratio: f64,
    between: [f64; 2],
    /// Each set's own.
    sets: Vec<f64>,
    /// Nanoseconds of the I/O core for a frame, by the distance of the two processors.
    modes: Modes,
}

/// One turn: nanoseconds of the I/O core for a frame, and how far the two processors were from each other.
type Turn = (Mode, f64);

/// The driver of a port.
enum Driver {
    Lane(End),
    Card(Box<E1000>),
}

impl Driver {
    fn connect(kind: Kind, path: &PathBuf) -> Result<Driver> {
        Ok(match kind {
            Kind::Ring => Driver::Lane(End::ring(&path.to_string_lossy(), SIZE)?),
            Kind::VhostUser => {
                let frontend = Frontend::connect(path, START).map_err(text)?;
                Driver::Lane(End::virtio(frontend, ENTRIES, SIZE, Page::Small)?)
            }
            Kind::E1000e => {
                let config = Config { ring: ENTRIES, ..Config::default() };
                Driver::Card(Box::new(E1000::open(path, &config).map_err(text)?))
            }
        })
    }

    /// Sends at most so many; how many.
    #[inline]
    fn send(&mut self, most: usize, frame: &mut Once<'_>) -> Result<u64> {
        let sent = match self {
            Driver::Lane(end) => {
                let room = end.room()?.min(most);
                end.send(room, frame)?.frames
            }
            Driver::Card(nic) => nic.send_with(most, |_, buffer| frame.write(buffer)).map_err(text)?,
        };
        Ok(sent as u64)
    }

    /// Takes what has come; how many.
    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let got = match self {
            Driver::Lane(end) => end.receive(4 * BATCH, &mut Blind)?.frames,
            Driver::Card(nic) => nic.receive(4 * BATCH, |_| {}).map_err(text)?,
        };
        Ok(got as u64)
    }
}

/// A daemon and both ends.
struct Stage {
    ends: [Driver; 2],
    switch: Switch,
    /// What is turned on: guard, storm limits.
    on: [bool; 2],
    _scratch: Scratch,
}

impl Stage {
    fn start(kind: Kind, io_core: usize, sandbox: bool) -> Result<Stage> {
        let scratch = Scratch::new("sc-cost").map_err(text)?;
        let path = |n: usize| scratch.file(format!("e{n}"));
        let port = |n: usize| {
            let mac = MAC[n].map(|byte| format!("{byte:02x}")).join(":");
            // A program at a ring port has no address of its own.
            let more = match kind {
                Kind::Ring => format!("fdb={mac},slots={ENTRIES}"),
                Kind::VhostUser | Kind::E1000e => format!("mac={mac}"),
            };
            format!("{}:{},mac-guard=off,{more}", kind.name(), path(n).display())
        };
        let sandbox = if sandbox { "on" } else { "off" };
        let switch = Switch::start_with(io_core, &scratch, &[port(0), port(1)], &["--sandbox", sandbox])
            .map_err(text)?;
        let ends = [Driver::connect(kind, &path(0))?, Driver::connect(kind, &path(1))?];
        let mut stage = Stage { ends, switch, on: [false; 2], _scratch: scratch };
        stage.introduce()?;
        Ok(stage)
    }

    /// The receiver says a word, so that frames for it go to it alone.
    fn introduce(&mut self) -> Result<()> {
        let word = frame([0xff; 6], MAC[1]);
        let mut frame = Once(&word);
        let [from, to] = &mut self.ends;
        // A driver may be ready before the port's carrier is; frames until then are dropped.
        let start = Instant::now();
        while start.elapsed() < START {
            to.send(1, &mut frame)?;
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until {
                if from.receive()? > 0 {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        Err(format!("no frame came within {} s", START.as_secs()))
    }

    /// Turns guard and storm limits of both ports on or off.
    fn apply(&mut self, wanted: [bool; 2]) -> Result<()> {
        if self.on == wanted {
            return Ok(());
        }
        let guard = format!("mac-guard={}", if wanted[0] { "strict" } else { "off" });
        // Far above what the flow has of them, which is none.
        let limit = if wanted[1] { "1000" } else { "" };
        let storm = ["broadcast", "multicast", "unicast"].map(|what| format!("storm-{what}={limit}"));
        for port in ["p0", "p1"] {
            let words = ["set", port, &guard, &storm[0], &storm[1], &storm[2]];
            self.switch.daemon.command(&words).map_err(text)?;
        }
        self.on = wanted;
        Ok(())
    }

    /// Frames for so long, until all have come.
    fn flow(&mut self, time: Duration) -> Result<()> {
        self.pass(time).map_err(|missing| match self.switch.daemon.command(&["show", "drops"]) {
            Ok(drops) => format!("{missing}:\n{}", String::from_utf8_lossy(&drops)),
            Err(_) => missing,
        })
    }

    fn pass(&mut self, time: Duration) -> Result<()> {
        let data = frame(MAC[1], MAC[0]);
        let mut frame = Once(&data);
        let [from, to] = &mut self.ends;
        let (mut sent, mut got) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..16 {
                if sent - got <= WINDOW - BATCH as u64 {
                    sent += from.send(BATCH, &mut frame)?;
                }
                got += to.receive()?;
            }
        }
        while got < sent {
            if start.elapsed() > time + PATIENCE {
                return Err(format!("{} of {sent} frames did not arrive", sent - got));
            }
            got += to.receive()?;
        }
        Ok(())
    }

    fn measure(&mut self, measure: &Measure, time: Duration, cpus: [usize; 2]) -> Result<Turn> {
        self.apply([measure.guard, measure.storm])?;
        self.flow(time / 5)?;
        let distance = Distance::before(&cpus);
        let before = self.switch.cycles().map_err(text)?;
        self.flow(time)?;
        let spent = self.switch.cycles().map_err(text)?.since(before);
        Ok((distance.after(), spent.per_frame() / ticks_per_ns()))
    }
}

/// A frame of a local experimental type (IEEE 802).
fn frame(to: [u8; 6], from: [u8; 6]) -> [u8; SIZE] {
    let mut frame = [0x5a; SIZE];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// One pair of daemons: each round's turns.
fn set(args: &Args, kind: Kind, rounds: u16, time: Duration) -> Result<Vec<[Turn; MEASURES.len()]>> {
    apart(|| {
        let mut stages =
            [Stage::start(kind, args.cpus.io_core, false)?, Stage::start(kind, args.cpus.io_core, true)?];
        pin(args.cpus.load_core).map_err(text)?;
        let mut all = Vec::new();
        for round in 0..usize::from(rounds) {
            let mut turns = [(Mode::Unknown, 0.0); MEASURES.len()];
            for turn in 0..MEASURES.len() {
                let at = (round + turn) % MEASURES.len();
                let measure = &MEASURES[at];
                turns[at] = stages[usize::from(measure.sandbox)].measure(measure, time, args.cpus.pair())?;
            }
            all.push(turns);
        }
        Ok(all)
    })
}

/// Where the median lies with 95 %: between two of the values. Fewer than six do not tell: then it is all of them.
fn interval(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // Of a fair coin's throws at most `k` are heads, or at most `k` are tails.
    let (mut ways, mut below, mut at) = (1.0, 0.0, 0);
    for k in 0..count / 2 {
        below += ways;
        if 2.0 * below / 2f64.powi(i32::try_from(count).unwrap_or(i32::MAX)) <= 0.05 {
            at = k;
        }
        ways *= (count - k) as f64 / (k + 1) as f64;
    }
    let of = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
    [of(at), of(count.saturating_sub(at + 1))]
}

/// `bench containment`.
///
/// # Errors
/// A daemon does not start, or frames are lost.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let (sets, rounds, time) = match args.quick {
        true => (1, 1, Duration::from_millis(10)),
        false => (args.sets, args.repeat.rounds, args.repeat.window),
    };
    let mut rows = Vec::new();
    for &kind in &args.ports {
        let (mut ratios, mut samples) =
            (vec![Vec::new(); MEASURES.len()], vec![Vec::<Turn>::new(); MEASURES.len()]);
        for number in 1..=sets {
            let turns = set(args, kind, rounds, time)?;
            for at in 0..MEASURES.len() {
                samples[at].extend(turns.iter().map(|turns| turns[at]));
                let plain = |turns: &[Turn; MEASURES.len()]| match at < PLAIN {
                    true => turns[0].1,
                    false => turns[..PLAIN].iter().map(|turn| turn.1).sum::<f64>() / PLAIN as f64,
                };
                ratios[at].push(median(turns.iter().map(|turns| turns[at].1 / plain(turns))));
            }
            let last: Vec<String> = MEASURES
                .iter()
                .zip(&ratios)
                .map(|(measure, ratios)| {
                    format!("{} {:.3}", measure.name, ratios.last().unwrap_or(&f64::NAN))
                })
                .collect();
            eprintln!("round {number}/{sets}: {}: {}", kind.name(), last.join(", "));
        }
        let plain = Modes::of(&samples[..PLAIN].concat(), |turn| *turn);
        for ((measure, ratios), samples) in MEASURES.iter().zip(ratios).zip(samples) {
            rows.push(Row {
                port: kind,
                measure: measure.name,
                ns_per_frame: median(samples.iter().map(|turn| turn.1)),
                ratio: median(ratios.iter().copied()),
                between: interval(&ratios),
                sets: ratios,
                modes: Modes::of(&samples, |turn| *turn).over("ratio_to_plain", &plain),
            });
        }
    }
    let key = |row: &Row| format!("{}_{}", row.port.name().replace('-', "_"), row.measure);
    let summary: BTreeMap<String, f64> = rows.iter().map(|row| (key(row), row.ratio)).collect();
    let note = format!(
        "time of the I/O core for a frame of {SIZE} B, with against without; {sets} sets of {rounds} rounds"
    );
    Results::new("containment", &note).with("rows", &rows)?.with("summary", &summary)?.print(args.json)
}

#[cfg(test)]
mod tests {
    use super::interval;

    #[test]
    fn the_interval_of_a_median() {
        // Nine values: 2 · (1 + 9) / 512 = 3.9 %; six: 2 / 64 = 3.1 %; five: 2 / 32 = 6.3 %, so all of them.
        let values = |count: u8| (1..=count).rev().map(f64::from).collect::<Vec<f64>>();
        assert_eq!(interval(&values(9)), [2.0, 8.0]);
        assert_eq!(interval(&values(6)), [1.0, 6.0]);
        assert_eq!(interval(&values(5)), [1.0, 5.0]);
        assert_eq!(interval(&values(1)), [1.0, 1.0]);
    }
}
