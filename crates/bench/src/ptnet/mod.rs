//! `sidecore bench ptnet`: native ptnet drivers as guests, through the learning switch and through a pipe,
//! beside native virtio-net drivers.
//!
//! *Full speed*: both ends poll, and so does the I/O core. *Batches*: the same with 1 to 256 frames at a time
//! (the ptnet paper's Figure 5). In a pipe the frames stay in their buffers, where the sender writes a number
//! and the receiver reads it. *Kicks*: frames that are sent evenly, at rates at which an I/O core has time to
//! sleep; how often the sender has to kick, and how long it then waits. There, register accesses are messages
//! on the card's socket, as a VMM sends them for a guest's trap; the time that the VMM adds is not included.
//!
//! One processor has the I/O core, the other both drivers.

mod ends;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use self::ends::{room, Kind};
use super::e1000::ends::{Driver, End, Flow, Flown};
use super::e1000::stage::Stage;
use crate::prelude::*;

/// `bench ptnet`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// What the guests have: all of it, with batches and kicks, if nothing is said; else full speed with
    /// these alone.
    #[arg(long = "device", value_name = "DEVICE,…", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)).map(|word| kind(&word)))]
    pub devices: Vec<Kind>,
    /// Bytes of a buffer of ptnet, a multiple of 64: of a power of two the first lines of all buffers share
    /// few places of a cache.
    #[arg(long, value_name = "BYTES", default_value_t = 2048)]
    pub buf_size: u32,
}

/// Frames of a publication, unless it is said otherwise, and frames under way at most.
const BURST: usize = 64;
const WINDOW: u64 = 512;
/// Bytes of a large frame, which no side cuts into segments of the usual size.
const LARGE: usize = 64 * 1024 - 512;
/// Rates at which kicks are counted, in frames a second.
const RATES: [u32; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
/// The one that the summary has.
const SUMMARY_RATE: u32 = 100_000;
/// The ptnet paper's figure for 60 bytes through VALE, without a header.
const PAPER: f64 = 21.0;
/// What its authors published for 60 bytes through a pipe.
const PUBLISHED_PIPE: f64 = 46.0;

fn kind(name: &str) -> Kind {
    Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Kind::Plain)
}

/// What batches are swept for.
const SWEPT: [Kind; 2] = [Kind::Plain, Kind::Pipe];

figures! {
    /// One measurement, or medians of them.
    struct Figures {
        /// Million frames a second, and the same in Gbit/s of frames.
        mpps, gbps,
        /// Nanoseconds of the I/O core for each frame.
        ns_per_frame;
        /// Frames that did not come, or not in their place.
        lost,
    }
}

type Sample = (Figures, Mode);

/// What the guests have, bytes of a frame, and frames of a publication.
type Setting = (Kind, usize, usize);

/// One setting.
#[derive(Clone, Debug, Serialize)]
struct Row {
    device: &'static str,
    size: usize,
    burst: usize,
    /// Million frames a second: every round.
    rounds: Vec<f64>,
    #[serde(flatten)]
    figures: Figures,
    /// Million frames a second, by the distance of the two processors.
    modes: Modes,
}

/// Frames that came evenly.
#[derive(Clone, Debug, Serialize)]
struct Kicks {
    /// Frames a second that were offered.
    rate: u32,
    frames: u64,
    /// Every round, and their median.
    rounds: Vec<f64>,
    kicks_per_packet: f64,
    /// Microseconds until a kick is answered: median and 99th percentile. Nothing if none was needed.
    kick_us: Option<f64>,
    kick_p99_us: Option<f64>,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let (rows, sweep, kicks) = on(common.load_core, || measure(&common, args))?;
    let small = |kind: Kind| {
        let row = rows.iter().find(|row| row.device == kind.name() && row.size == 60);
        row.map_or(f64::NAN, |row| row.figures.mpps)
    };
    let kicked = kicks.iter().find(|row| row.rate == SUMMARY_RATE);
    // What programs look at first.
    let summary = fields! {
        switch_60_mpps: small(Kind::Plain),
        pipe_60_mpps: small(Kind::Pipe),
        kicks_per_packet: kicked.map_or(f64::NAN, |row| row.kicks_per_packet),
        kick_us: kicks.first().and_then(|row| row.kick_us),
        lost: rows.iter().chain(&sweep).map(|row| row.figures.lost).sum::<u64>(),
    };
    let note = format!(
        "two native guests through the learning switch, one way; the paper's ptnet through VALE: {PAPER} Mpps of 60 B; through a \
         pipe (ptnet+pipe): {PUBLISHED_PIPE} published"
    );
    Results::new("ptnet", &note)
        .with("rows", &rows)?
        .with("batches", &sweep)?
        .with("kicks", &kicks)?
        .with("summary", &summary)?
        .give(&common.output, || picture(&sweep))
}

type Measured = (Vec<Row>, Vec<Row>, Vec<Kicks>);

fn measure(common: &Common, args: &Args) -> Result<Measured> {
    let (all, buf_size) = (args.devices.is_empty(), args.buf_size);
    let wanted = |kind: &Kind| all || args.devices.contains(kind);
    let bursts: Vec<usize> = match (all, common.quick) {
        (false, _) => Vec::new(),
        (_, true) => vec![1, 16],
        (_, false) => (0..=8).map(|n| 1 << n).collect(),
    };
    let settings = [60, 1500]
        .into_iter()
        .flat_map(|size| Kind::ALL.map(|kind| (kind, size)))
        .chain([(Kind::Header, LARGE), (Kind::Virtio, LARGE)])
        .filter(|(kind, _)| wanted(kind))
        .map(|(kind, size)| (kind, size, if size == LARGE { 1 } else { BURST }));
    let sweeps = SWEPT.into_iter().flat_map(|kind| bursts.iter().map(move |burst| (kind, 60, *burst)));
    let settings: Vec<_> = settings.chain(sweeps).collect();
    let rates = if all { &RATES[..] } else { &[] };
    let mut kicks = vec![(Vec::new(), Vec::new(), 0); rates.len()];
    let samples = in_parts(common.repeat.rounds, &[()], |round, ()| {
        let samples =
            settings.iter().map(|setting| one(common, *setting, buf_size)).collect::<Result<_>>()?;
        for (rate, (rounds, times, frames)) in rates.iter().zip(&mut kicks) {
            let (kicks, sent) = paced(common, *rate, buf_size)?;
            rounds.push(kicks.len() as f64 / sent.max(1) as f64);
            times.extend(kicks);
            *frames += sent;
        }
        eprintln!("{round}: done");
        Ok(samples)
    })?;
    let mut rows: Vec<Row> =
        settings.iter().zip(samples.iter().flatten()).map(|(setting, of)| row(*setting, of)).collect();
    let sweep = rows.split_off(rows.len() - SWEPT.len() * bursts.len());
    let kicks = rates.iter().zip(kicks).map(|(rate, (rounds, times, frames))| {
        let of_kicks = |percent| (!times.is_empty()).then(|| percentile(times.iter().copied(), percent));
        Kicks {
            rate: *rate,
            frames,
            kicks_per_packet: median(rounds.iter().copied()),
            rounds,
            kick_us: of_kicks(50),
            kick_p99_us: of_kicks(99),
        }
    });
    Ok((rows, sweep, kicks.collect()))
}

fn row((kind, size, burst): Setting, samples: &[Sample]) -> Row {
    Row {
        device: kind.name(),
        size,
        burst,
        rounds: samples.iter().map(|it| it.0.mpps).collect(),
        figures: Figures::of(samples.iter().map(|it| &it.0)),
        modes: Modes::of(samples, |(it, mode)| (*mode, it.mpps)),
    }
}

/// One round of one setting.
fn one(common: &Common, (kind, size, burst): Setting, buf_size: u32) -> Result<Sample> {
    let mut stage = Stage::new(common.io_cores[0])?;
    let mut end = || ends::end(&mut stage, kind, size, buf_size, false);
    let mut ends = [end()?, end()?];
    // Both stations are known before anything counts.
    let [a, b] = &mut ends;
    b.greet(a)?;
    let flow = Flow { burst, window: WINDOW.max(2 * burst as u64).min(room(size)), both_ways: false };
    flow.run(&mut ends, common.repeat.window / 10)?;
    let distance = Distance::before(&[common.load_core, common.io_cores[0]]);
    let Flown { mpps, gbps, ns_per_frame, .. } =
        flow.measure(&stage.engine, &mut ends, common.repeat.window)?;
    Ok((Figures { mpps, gbps, ns_per_frame, lost: ends[1].wrong }, distance.after()))
}

/// What each kick took in microseconds, and frames that were sent evenly at `rate` through an I/O core that
/// may sleep.
fn paced(common: &Common, rate: u32, buf_size: u32) -> Result<(Vec<f64>, u64)> {
    let mut stage = Stage::that_sleeps(common.io_cores[0])?;
    let mut end = || ends::end(&mut stage, Kind::Plain, 60, buf_size, true);
    let (mut a, mut b) = (end()?, end()?);
    b.greet(&mut a)?;
    let (gap, before, start) = (Duration::from_secs(1) / rate, a.sent, Instant::now());
    let (mut next, mut times) = (start, Vec::new());
    while start.elapsed() < common.repeat.window {
        if Instant::now() >= next {
            let before = kicks(&a);
            a.send(1)?;
            next += gap;
            if kicks(&a).0 > before.0 {
                times.push(kicks(&a).1.as_secs_f64() * 1e6);
            }
        }
        b.receive()?;
    }
    Ok((times, a.sent - before))
}

/// Kicks of a ptnet guest so far, and how long the last one took.
fn kicks(end: &End) -> (u64, Duration) {
    match &end.driver {
        Driver::Ptnet(driver) => (driver.kicks(), driver.last_kick()),
        _ => (0, Duration::ZERO),
    }
}

fn picture(sweep: &[Row]) -> String {
    let line = |kind: Kind, name: &str| {
        let rows = sweep.iter().filter(|row| row.device == kind.name());
        Line::new(name.to_owned(), rows.map(|row| (row.burst as f64, row.figures.mpps)).collect())
    };
    let lines = [line(Kind::Plain, "through the switch, 60 B"), line(Kind::Pipe, "through a pipe, 60 B")];
    chart(
        "From a ptnet guest to another",
        "native ptnet drivers that poll; sidecore bench ptnet --svg FILE",
        Axis::log("frames of a publication"),
        Axis::linear("million frames a second"),
        &lines,
    )
}
