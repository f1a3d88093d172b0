//! `sidecore bench blk`: disks on one I/O core, as Figure 6 of the ELVIS paper has them, and more closely
//! with one guest.
//!
//! Three ways serve the same requests of the same native drivers on the same processor, by turns: we,
//! `qemu-storage-daemon`, and, as the limit, fio with io_uring on the host, without a guest between. One
//! thread plays all guests (`player`). With one guest the depths are compared; with 1 to 14 guests of bounded
//! pace, whether each has what it has alone.
//!
//! Each round starts both daemons anew for each medium, with a disk for each guest there may be. The one that
//! is not asked sleeps.

mod image;
mod ping;
mod player;
mod way;

use std::collections::BTreeMap;
use std::path::PathBuf;

use sidecore_driver::load::ticks_per_ns;

use self::image::{Images, Medium};
use self::player::{Part, Players, Work};
use self::way::{host, Server, Way};
use crate::prelude::*;

/// `bench blk`. All of it five times would take more than four minutes.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub struct Args {
    /// What is behind the disks.
    #[arg(long = "medium", value_name = "MEDIUM,…", value_delimiter = ',', default_value = "ram,tmpfs,disk")]
    media: Vec<Medium>,
    /// What guests do.
    #[arg(long = "work", value_name = "WORK,…", value_delimiter = ',')]
    #[arg(default_value = "read,write,sequential-read,sequential-write,paced")]
    works: Vec<Work>,
    /// Requests in flight of each guest.
    #[arg(long = "depth", value_name = "N,…", value_delimiter = ',', default_value = "1,8,32")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    depths: Vec<u16>,
    /// Numbers of paced guests.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    #[arg(default_value = "1,2,4,6,8,10,12,14", value_parser = clap::value_parser!(u16).range(1..=14))]
    guests: Vec<u16>,
    /// Numbers of guests that read or write anywhere as fast as they can.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,14")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=14))]
    random_guests: Vec<u16>,
    /// Requests a second of a paced guest; the paper's guests could do so many.
    #[arg(long, value_name = "N", default_value_t = 21_613, value_parser = clap::value_parser!(u32).range(1..))]
    pace: u32,
    /// Size of each disk.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = image::size)]
    size: u64,
    /// A folder on a disk of this machine.
    #[arg(long, value_name = "FOLDER", default_value = "/var/tmp")]
    folder: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Requests in flight of sequential and of paced work: four readers and four writers had the paper's guests.
const EIGHT: u16 = 8;

/// What is measured in one go, in each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    medium: Medium,
    work: Work,
    depth: u16,
    guests: u16,
}

figures! {
    /// One measurement, or medians of them.
    struct Figures {
        /// Requests a second, of all guests, and of each.
        iops, iops_per_guest,
        /// The guest that had least, against the mean of all.
        least, p50_us, p99_us, cycles_per_request,
        /// Share of the time in which the processor was busy with it.
        busy,
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    figures: Figures,
    load_busy: Option<f64>,
    /// None: there is no load on another processor.
    mode: Option<Mode>,
}

/// `bench blk`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let &[core] = &common.io_cores[..] else {
        return Err("bench blk has one I/O core: name one with --io-core".to_owned());
    };
    let ways = [Way::Sidecore, Way::Storage, Way::Host];
    let missing: BTreeMap<&str, &str> =
        ways.into_iter().filter_map(|way| Some((way.name(), way.missing()?))).collect();
    missing.iter().for_each(|(way, why)| eprintln!("{way} is left out: {why}"));
    let ways: Vec<Way> = ways.into_iter().filter(|way| !missing.contains_key(way.name())).collect();
    let images = Images::new(if common.quick { 4 << 20 } else { args.size }, &args.folder)?;
    let media: Vec<Medium> =
        args.media.iter().copied().filter(|medium| !common.quick || *medium == Medium::Tmpfs).collect();
    let cells = cells(args, &media, common.quick);
    let mut samples: Vec<Vec<(Way, Vec<Sample>)>> =
        vec![ways.iter().map(|way| (*way, Vec::new())).collect(); cells.len()];
    let mut pings: Vec<Vec<ping::Sample>> = vec![Vec::new(); media.len()];
    for round in Round::all(common.repeat.rounds) {
        for (medium, pings) in media.iter().zip(&mut pings) {
            let of_round = format!("{round}: {}", medium.name());
            eprintln!("{of_round}, a guest that waits beside a stream");
            let ping = ping::measure(&common, core, &images, *medium);
            pings.push(ping.map_err(|e| format!("{}, beside a guest that waits: {e}", medium.name()))?);
            let of_medium = || cells.iter().filter(|cell| cell.medium == *medium);
            let guests = of_medium().map(|cell| cell.guests).max().unwrap_or(0);
            let start =
                |way: &Way| -> Result<_> { Ok((*way, Server::start(*way, core, &images, *medium, guests)?)) };
            let servers = ways.iter().map(start).collect::<Result<Vec<_>>>()?;
            for (cell, of_cell) in cells.iter().zip(&mut samples).filter(|(cell, _)| cell.medium == *medium) {
                let what = format!("{} depth {}, {} guests", cell.work.name(), cell.depth, cell.guests);
                for ((way, server), (_, of_way)) in servers.iter().zip(of_cell) {
                    let sample = match server {
                        Some(server) => measure(args, &common, *cell, server, images.size()).map(Some),
                        None => limit(&common, core, &images, *cell),
                    };
                    let sample =
                        sample.map_err(|e| format!("{}, {what}, {}: {e}", medium.name(), way.name()))?;
                    let Some(sample) = sample else { continue };
                    eprintln!("{of_round}, {what}, {}: {:.1} k/s", way.name(), sample.figures.iops / 1e3);
                    of_way.push(sample);
                }
            }
        }
    }
    let rows: Vec<Row> =
        cells.iter().zip(&samples).flat_map(|(cell, of_cell)| rows(*cell, of_cell)).collect();
    if rows.is_empty() {
        return Err("nothing of this can be measured here".to_owned());
    }
    let pings: Vec<ping::Row> =
        media.iter().zip(&pings).map(|(medium, samples)| ping::Row::new(*medium, samples)).collect();
    let summary = summary(&rows, &pings);
    let note = format!(
        "disks on one I/O core, {}; busy: the processor that serves them (of the host: fio's); pings: a guest that waits for answers",
        common.repeat
    );
    Results::new("blk", &note)
        .with("rows", &rows)?
        .with("missing", &missing)?
        .with("pings", &pings)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

/// Everything to be measured, in the order of the table.
fn cells(args: &Args, media: &[Medium], quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    let (depths, random, paced) = match quick {
        true => (&[1, 32][..], &[1, 3][..], &[1, 3][..]),
        false => (&args.depths[..], &args.random_guests[..], &args.guests[..]),
    };
    for &medium in media {
        for &work in &args.works {
            let cell = |depth, guests| Cell { medium, work, depth, guests };
            match work {
                Work::Paced => cells.extend(paced.iter().map(|guests| cell(EIGHT, *guests))),
                _ if work.is_sequential() => cells.push(cell(EIGHT, 1)),
                _ => {
                    for guests in random {
                        cells.extend(depths.iter().map(|depth| cell(*depth, *guests)));
                    }
                }
            }
        }
    }
    cells
}

/// One cell on the host alone; `None`: there is no such thing.
fn limit(common: &Common, core: usize, images: &Images, cell: Cell) -> Result<Option<Sample>> {
    let Cell { medium, work, depth, guests } = cell;
    let Some(file) = images.host(medium)?.filter(|_| work != Work::Paced && guests == 1) else {
        return Ok(None);
    };
    // Anything shorter is its start.
    let window = common.repeat.window.max(Duration::from_millis(100));
    let way::Host { iops, p50_us, p99_us, cpu_ns, busy } =
        host(core, &file, work, depth, window, images.size())?;
    let cycles_per_request = cpu_ns * ticks_per_ns();
    let figures =
        Figures { iops, iops_per_guest: iops, least: 1.0, p50_us, p99_us, cycles_per_request, busy };
    Ok(Some(Sample { figures, load_busy: None, mode: None }))
}

/// One cell with a daemon.
fn measure(args: &Args, common: &Common, cell: Cell, server: &Server, size: u64) -> Result<Sample> {
    let Cell { work, depth, guests, .. } = cell;
    let (running, sockets) = (&server.running, server.sockets.get(..guests.into()).unwrap_or(&[]));
    let part = Part { work, depth, rate: f64::from(args.pace) };
    let seen = on(common.load_core, || {
        let mut players = Players::connect(sockets, part, size)?;
        let distance = Distance::before(&[&[common.load_core], &common.io_cores[..]].concat());
        players.play(common.repeat.window / 2)?;
        let (before, begun) = (running.busy_ns()?, Instant::now());
        let seen = players.play(common.repeat.window)?;
        let seconds = begun.elapsed().as_secs_f64();
        // Asking takes its time, too, and the account goes on meanwhile.
        let (after, accounted) = (running.busy_ns()?, begun.elapsed().as_secs_f64());
        players.finish()?;
        let mode = Some(distance.after());
        let all = seen.answers.iter().sum::<u64>() as f64;
        let least = seen.answers.iter().copied().min().unwrap_or(0);
        let [p50_us, p99_us] = [50.0, 99.0].map(|at| seen.latency.value_at_percentile(at) as f64 / 1e3);
        let figures = Figures {
            iops: all / seconds,
            iops_per_guest: all / seconds / f64::from(guests),
            least: least as f64 * f64::from(guests) / all,
            p50_us,
            p99_us,
            cycles_per_request: (after - before) / all * ticks_per_ns(),
            busy: (after - before) / (accounted * 1e9),
        };
        Ok(Sample { figures, load_busy: Some(seen.load_busy), mode })
    });
    seen.map_err(|e| format!("{e}\n{}", running.output()))
}

fn rows(cell: Cell, of_cell: &[(Way, Vec<Sample>)]) -> Vec<Row> {
    let measured = of_cell.iter().filter(|(_, samples)| !samples.is_empty());
    measured.map(|of_way| row(cell, of_cell, of_way)).collect()
}

row! {
    fn row(cell: Cell, of_cell: &[(Way, Vec<Sample>)], of_way: &(Way, Vec<Sample>)) -> Row {
        let (way, samples) = of_way;
        let of = |wanted: Way| of_cell.iter().find(|(way, of)| *way == wanted && !of.is_empty());
        let ratio = |other: Way, value: fn(&Figures) -> f64| {
            let (_, others) = of(other).filter(|_| *way == Way::Sidecore)?;
            let both = samples.iter().zip(others);
            Some(median(both.map(|(ours, other)| value(&ours.figures) / value(&other.figures))))
        };
        let by_mode = |samples: &[Sample]| {
            let labelled = samples.iter().filter_map(|s| Some((s.mode?, s.figures.iops / 1e3)));
            Modes::of(&labelled.collect::<Vec<_>>(), |sample| *sample)
        };
        let storage = of(Way::Storage).map(|(_, samples)| by_mode(samples)).unwrap_or_default();
    }

    /// A row of the table: medians.
    #[derive(Deserialize)]
    pub struct Row {
        medium: Medium = cell.medium,
        work: Work = cell.work,
        depth: u16 = cell.depth,
        guests: u16 = cell.guests,
        way: String = way.name().to_owned(),
        /// Requests a second, in each round.
        samples: Vec<f64> = samples.iter().map(|s| s.figures.iops).collect(),
        #[serde(flatten)]
        figures: Figures = Figures::of(samples.iter().map(|s| &s.figures)),
        /// Share of the looks of the thread that plays guests that found answers.
        load_busy: Option<f64> =
            samples.iter().map(|s| s.load_busy).collect::<Option<Vec<_>>>().map(median),
        /// Ours against qemu-storage-daemon's: medians of the rounds' ratios.
        iops_ratio: Option<f64> = ratio(Way::Storage, |s| s.iops),
        latency_ratio: Option<f64> = ratio(Way::Storage, |s| s.p50_us),
        /// Against the host's own rate.
        of_host: Option<f64> = ratio(Way::Host, |s| s.iops),
        /// Thousand requests a second; empty for the host, whose requests take no other processor.
        #[serde(skip_deserializing)]
        modes: Modes = match way {
            Way::Sidecore => by_mode(samples).over("ratio_to_storage_daemon", &storage),
            _ => by_mode(samples),
        },
    }
}

/// Keys without a value could not be measured here.
fn summary(rows: &[Row], pings: &[ping::Row]) -> impl Serialize {
    let all = || rows.iter().filter(|row| row.way == Way::Sidecore.name());
    let tmpfs = all().any(|row| row.medium == Medium::Tmpfs).then_some(Medium::Tmpfs);
    let medium = tmpfs.or_else(|| all().map(|row| row.medium).next());
    let ours =
        |works: [Work; 2]| all().filter(move |row| Some(row.medium) == medium && works.contains(&row.work));
    let random = || ours([Work::Read, Work::Write]).filter(|row| row.guests == 1);
    let deep = random().map(|row| row.depth).max();
    let shallow = random().map(|row| row.depth).min();
    // Both, or there is no worse one.
    let worse = |values: Vec<Option<f64>>, pick: fn(f64, f64) -> f64| {
        let values: Vec<f64> = values.into_iter().collect::<Option<_>>()?;
        if values.len() == 2 {
            values.into_iter().reduce(pick)
        } else {
            None
        }
    };
    let at = |depth: Option<u16>, value: fn(&Row) -> Option<f64>| -> Vec<Option<f64>> {
        random().filter(|row| Some(row.depth) == depth).map(value).collect()
    };
    let sequential = ours([Work::SequentialRead, Work::SequentialWrite]).map(|row| row.of_host).collect();
    let ping = pings.iter().find(|row| Some(row.medium) == medium);
    fields! {
        /// Random requests of one guest at the greatest depth on a file in tmpfs (or what was measured
        /// instead): our rate against qemu-storage-daemon's, the worse of reads and writes.
        iops_ratio_qd32: worse(at(deep, |row| row.iops_ratio), f64::min),
        /// Our median latency against its at the least depth.
        latency_ratio_qd1: worse(at(shallow, |row| row.latency_ratio), f64::max),
        /// Our rate against the host's own at the greatest depth, the worse of reads and writes.
        of_host_io_uring: worse(at(deep, |row| row.of_host), f64::min),
        /// Our rate against the host's for 128 KiB, one after the other.
        sequential_of_host: worse(sequential, f64::min),
        /// The 99th percentile of a guest that waits for answers, beside a disk that streams, against what it
        /// is alone, on the same medium.
        ping_p99_vs_alone: ping.map(|row| row.figures.p99_vs_alone),
    }
}

/// Figure 6: rate and latency of a guest by the number of guests.
pub fn draw(rows: &[Row]) -> String {
    let lines = |value: fn(&Row) -> f64| {
        Line::all(rows.iter().filter(|row| row.work == Work::Paced).map(|row| {
            let way = row.way.replace("qemu-storage-daemon", "qsd");
            (format!("{way}, {}", row.medium.name()), (f64::from(row.guests), value(row)))
        }))
    };
    let note =
        "sidecore bench blk --svg FILE; one I/O core, 4 KiB, half reads, depth 8; qsd: qemu-storage-daemon";
    let rate = chart(
        "Requests a second of each guest",
        note,
        Axis::linear("guests"),
        Axis::linear("requests/s"),
        &lines(|row| row.figures.iops_per_guest),
    );
    let latency = chart(
        "Median latency",
        note,
        Axis::linear("guests"),
        Axis::log("µs"),
        &lines(|row| row.figures.p50_us),
    );
    stack(&[rate, latency])
}
