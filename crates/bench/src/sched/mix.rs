//! `sidecore bench mix`: streams and guests that wait for answers on one I/O core, as Figure 7 of the ELVIS paper has them.
//!
//! Of N guests M send frames of 1,500 bytes as fast as a guest can make them, the others one request after the other. On each stage
//! the latter are measured alone, then the streams, then all together, so each figure has what it is compared with beside it.
//! Guests poll, so that no interrupt is written, as the paper's replies take no exit. Beside it stand the same without the rule
//! that serves stuck queues early, the same with interrupts, and a thread per device. A latency is what the guest sees: from
//! request to answer, with 20 µs for the network and the remote host.

use serde::{Deserialize, Serialize};

use super::guest::{Report, Work};
use super::stage::{Stage, Way, OURS, PER_DEVICE, POLLED};
use super::{middle, Common, Result, Results};
use crate::distance::Mode;
use crate::draw::{chart, stack, Axis, Line};
use crate::modes::Modes;

/// `bench mix`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of streams.
    #[arg(long, value_name = "M,…", value_delimiter = ',', default_value = "1,2,3,4,5,6")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=13))]
    pub streams: Vec<u16>,
    /// Guests in all.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(2..=14))]
    pub guests: u16,
    /// Streams that send as much as their rings take, so that a single one fills an I/O core.
    #[arg(long)]
    pub flood: bool,
    #[command(flatten)]
    pub common: Common,
}

/// How I/O is done; the first one is what the summary is of.
const WAYS: [Way; 4] = [
    POLLED,
    Way { name: "no stuck rule", urgent: false, ..POLLED },
    Way { name: "interrupts", ..OURS },
    PER_DEVICE,
];

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Median and 99th percentile in µs, alone and in the mix.
    alone: [f64; 2],
    mixed: [f64; 2],
    /// Answers a second in the mix.
    answers: f64,
    /// Frames a second of the streams, alone and in the mix.
    streams: [f64; 2],
    /// Of the mix.
    io_busy: f64,
    load_busy: f64,
    /// While guests waited alone, streams were alone, and in the mix.
    modes: [Mode; 3],
}

/// A row of the table: medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    way: String,
    streams: u16,
    waiting: u16,
    p50_us: f64,
    p99_us: f64,
    p50_alone_us: f64,
    p99_alone_us: f64,
    /// The medians of the rounds' ratios.
    p50_vs_alone: f64,
    p99_vs_alone: f64,
    answers_per_second: f64,
    stream_mpps: f64,
    stream_alone_mpps: f64,
    stream_loss: f64,
    io_busy: f64,
    load_busy: f64,
    /// The 99th percentile in µs, and million frames a second of the streams, in the mix.
    #[serde(skip_deserializing)]
    modes: Modes,
    #[serde(skip_deserializing)]
    stream_modes: Modes,
}

/// The worst of all numbers of streams.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    p99_vs_alone: f64,
    stream_loss: f64,
}

/// `bench mix`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let streams = if common.quick { vec![1, args.guests - 1] } else { args.streams.clone() };
    if let Some(most) = streams.iter().find(|most| **most >= args.guests) {
        return Err(format!("{most} streams of {} guests leave none that waits", args.guests));
    }
    let cases: Vec<(Way, u16)> =
        WAYS.into_iter().flat_map(|way| streams.iter().map(move |&m| (way, m))).collect();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cases.len()];
    for round in 1..=common.repeat.rounds {
        for (&(way, streams), of_case) in cases.iter().zip(&mut samples) {
            let sample = measure(args, &common, way, streams.into())?;
            eprintln!(
                "round {round}/{}: {streams} streams of {} guests, {}: p99 {:.0} µs ({:.0} alone), {:.2} Mpps ({:.2} alone)",
                common.repeat.rounds,
                args.guests,
                way.name,
                sample.mixed[1],
                sample.alone[1],
                sample.streams[1] / 1e6,
                sample.streams[0] / 1e6
            );
            of_case.push(sample);
        }
    }
    let rows: Vec<Row> = cases
        .iter()
        .zip(&samples)
        .map(|(&(way, streams), samples)| row(way, streams, args.guests - streams, samples))
        .collect();
    let worst = |value: fn(&Row) -> f64| {
        rows.iter().filter(|row| row.way == WAYS[0].name).map(value).fold(f64::NAN, f64::max)
    };
    let summary =
        Summary { p99_vs_alone: worst(|row| row.p99_vs_alone), stream_loss: worst(|row| row.stream_loss) };
    let note = format!(
        "streams of 1500 B and guests that wait for answers, {}; latency as the guest sees it, 20 µs of it outside",
        common.repeat
    );
    Results::new("mix", &note)
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

fn measure(args: &Args, common: &Common, way: Way, streams: usize) -> Result<Sample> {
    let guests = usize::from(args.guests);
    let stream = if args.flood { Work::Flood } else { Work::Bulk };
    let stage = Stage::start(way, &common.io_cores, guests)?;
    stage.play(common.load_core, |players| {
        let part = |of_streams: Work, of_others: Work| {
            move |number: usize| if number < streams { of_streams } else { of_others }
        };
        let mut take =
            |of_streams, of_others| players.measure(part(of_streams, of_others), common.repeat.window);
        let waiting = take(Work::Nothing, Work::RequestResponse)?;
        let alone = take(stream, Work::Nothing)?;
        let mix = take(stream, Work::RequestResponse)?;
        let latency = |report: &Report| [50.0, 99.0].map(|percent| report.latency(streams..guests, percent));
        Ok(Sample {
            alone: latency(&waiting),
            mixed: latency(&mix),
            answers: mix.rate(streams..guests),
            streams: [alone.rate(0..streams), mix.rate(0..streams)],
            io_busy: mix.io_busy(common.io_cores.len()),
            load_busy: mix.load_busy,
            modes: [waiting.mode, alone.mode, mix.mode],
        })
    })
}

fn row(way: Way, streams: u16, waiting: u16, samples: &[Sample]) -> Row {
    let by_mode = |part: usize, value: fn(&Sample) -> f64| Modes::of(samples, |s| (s.modes[part], value(s)));
    let (p99_alone, streams_alone) = (by_mode(0, |s| s.alone[1]), by_mode(1, |s| s.streams[0] / 1e6));
    Row {
        way: way.name.to_owned(),
        streams,
        waiting,
        p50_us: middle(samples, |s| s.mixed[0]),
        p99_us: middle(samples, |s| s.mixed[1]),
        p50_alone_us: middle(samples, |s| s.alone[0]),
        p99_alone_us: middle(samples, |s| s.alone[1]),
        p50_vs_alone: middle(samples, |s| s.mixed[0] / s.alone[0]),
        p99_vs_alone: middle(samples, |s| s.mixed[1] / s.alone[1]),
        answers_per_second: middle(samples, |s| s.answers),
        stream_mpps: middle(samples, |s| s.streams[1] / 1e6),
        stream_alone_mpps: middle(samples, |s| s.streams[0] / 1e6),
        stream_loss: middle(samples, |s| 1.0 - s.streams[1] / s.streams[0]),
        io_busy: middle(samples, |s| s.io_busy),
        load_busy: middle(samples, |s| s.load_busy),
        modes: by_mode(2, |s| s.mixed[1]).over("ratio_to_alone", &p99_alone),
        stream_modes: by_mode(2, |s| s.streams[1] / 1e6).over("ratio_to_alone", &streams_alone),
    }
}

/// Figure 7: latencies of guests that wait, and rates of streams.
pub fn draw(rows: &[Row]) -> String {
    let lines = |value: fn(&Row) -> f64, alone: fn(&Row) -> f64| {
        let mut lines = Vec::new();
        for way in WAYS {
            let its = || rows.iter().filter(|row| row.way == way.name);
            let line = |name: String, value: fn(&Row) -> f64| {
                Line::new(name, its().map(|row| (f64::from(row.streams), value(row))).collect())
            };
            lines.push(line(way.name.to_owned(), value));
            lines.push(line(format!("{}, alone", way.name), alone).dashed());
        }
        lines
    };
    let note = "sidecore bench mix --svg FILE; one I/O core; alone: without the other kind of guests";
    let guests = rows.first().map_or(0, |row| row.streams + row.waiting);
    let latency = chart(
        &format!("Latency of guests that wait for answers, beside streams ({guests} guests)"),
        note,
        Axis::linear("streams"),
        Axis::log("p99 in µs"),
        &lines(|row| row.p99_us, |row| row.p99_alone_us),
    );
    let rate = chart(
        "Rate of the streams",
        note,
        Axis::linear("streams"),
        Axis::linear("Mpps, all streams"),
        &lines(|row| row.stream_mpps, |row| row.stream_alone_mpps),
    );
    stack(&[latency, rate])
}
