//! `sidecore bench mix`: streams and guests that wait for answers on one I/O core, as Figure 7 of the ELVIS
//! paper has them.
//!
//! M of N guests send frames of 1,500 bytes as fast as a guest can make them, the others one request after
//! the other. On each stage the latter are measured alone, then the streams, then all together, so each
//! figure has what it is compared with beside it. Guests poll, so that no interrupt is written, as the
//! paper's replies take no exit. Beside it stand the same without the rule that serves stuck queues early,
//! the same with interrupts, and a thread per device. A latency is what the guest sees: from request to
//! answer, with 20 µs for the network and the remote host.

use super::cores::{Way, OURS, PER_DEVICE, POLLED};
use super::guest::{Report, Work};
use super::stage::Stage;
use crate::prelude::*;

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

figures! {
    /// One measurement, or medians of them: percentiles and rates in the mix, and without the other kind of
    /// guests.
    struct Figures {
        p50_us, p99_us, p50_alone_us, p99_alone_us, p50_vs_alone, p99_vs_alone, answers_per_second,
        stream_mpps, stream_alone_mpps, stream_loss, io_busy, load_busy,
    }
}

/// A measurement, with the distances while guests waited alone, streams were alone, and in the mix.
type Sample = (Figures, [Mode; 3]);

/// A row of the table: medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    way: String,
    streams: u16,
    waiting: u16,
    #[serde(flatten)]
    figures: Figures,
    /// The 99th percentile in µs, and million frames a second of the streams, in the mix.
    #[serde(skip_deserializing)]
    modes: Modes,
    #[serde(skip_deserializing)]
    stream_modes: Modes,
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
    let samples = by_turns(common.repeat.rounds, &cases, |round, &(way, streams)| {
        let sample = measure(args, &common, way, streams.into())?;
        let Figures { p99_us, p99_alone_us, stream_mpps, stream_alone_mpps, .. } = sample.0;
        eprintln!(
            "{round}: {streams} streams of {} guests, {}: p99 {p99_us:.0} µs ({p99_alone_us:.0} alone), \
             {stream_mpps:.2} Mpps ({stream_alone_mpps:.2} alone)",
            args.guests, way.name
        );
        Ok(sample)
    })?;
    let rows: Vec<Row> = cases
        .iter()
        .zip(&samples)
        .map(|(&(way, streams), samples)| row(way, streams, args.guests - streams, samples))
        .collect();
    let worst = |value: fn(&Figures) -> f64| {
        let ours = rows.iter().filter(|row| row.way == WAYS[0].name);
        ours.map(|row| value(&row.figures)).fold(f64::NAN, f64::max)
    };
    // The worst of all numbers of streams.
    let summary =
        fields! { p99_vs_alone: worst(|it| it.p99_vs_alone), stream_loss: worst(|it| it.stream_loss) };
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
        let latency = |report: &Report, percent: f64| report.latency(streams..guests, percent);
        let [p50_us, p99_us] = [50.0, 99.0].map(|percent| latency(&mix, percent));
        let [p50_alone_us, p99_alone_us] = [50.0, 99.0].map(|percent| latency(&waiting, percent));
        let [stream_mpps, stream_alone_mpps] = [&mix, &alone].map(|report| report.rate(0..streams) / 1e6);
        let figures = Figures {
            p50_us,
            p99_us,
            p50_alone_us,
            p99_alone_us,
            p50_vs_alone: p50_us / p50_alone_us,
            p99_vs_alone: p99_us / p99_alone_us,
            answers_per_second: mix.rate(streams..guests),
            stream_mpps,
            stream_alone_mpps,
            stream_loss: 1.0 - stream_mpps / stream_alone_mpps,
            io_busy: mix.io_busy(common.io_cores.len()),
            load_busy: mix.load_busy,
        };
        Ok((figures, [waiting.mode, alone.mode, mix.mode]))
    })
}

fn row(way: Way, streams: u16, waiting: u16, samples: &[Sample]) -> Row {
    let by_mode =
        |part: usize, value: fn(&Figures) -> f64| Modes::of(samples, |(it, modes)| (modes[part], value(it)));
    let alone = (by_mode(0, |it| it.p99_alone_us), by_mode(1, |it| it.stream_alone_mpps));
    Row {
        way: way.name.to_owned(),
        streams,
        waiting,
        figures: Figures::of(samples.iter().map(|it| &it.0)),
        modes: by_mode(2, |it| it.p99_us).over("ratio_to_alone", &alone.0),
        stream_modes: by_mode(2, |it| it.stream_mpps).over("ratio_to_alone", &alone.1),
    }
}

/// Figure 7: latencies of guests that wait, and rates of streams.
pub fn draw(rows: &[Row]) -> String {
    let lines = |value: fn(&Figures) -> f64, alone: fn(&Figures) -> f64| {
        let mut lines = Vec::new();
        for way in WAYS {
            let its = || rows.iter().filter(|row| row.way == way.name);
            let line = |name: String, value: fn(&Figures) -> f64| {
                Line::new(name, its().map(|row| (f64::from(row.streams), value(&row.figures))).collect())
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
        &lines(|it| it.p99_us, |it| it.p99_alone_us),
    );
    let rate = chart(
        "Rate of the streams",
        note,
        Axis::linear("streams"),
        Axis::linear("Mpps, all streams"),
        &lines(|it| it.stream_mpps, |it| it.stream_alone_mpps),
    );
    stack(&[latency, rate])
}
