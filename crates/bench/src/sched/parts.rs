//! `sidecore bench parts`: what each part of the design contributes, as Figure 8 of the ELVIS paper has it.
//!
//! From a thread per device on: one thread that schedules all queues, but sleeps and is kicked; one that
//! polls; and guests that poll as well while they have work, so that no interrupt is written. Notifications
//! are kicks of the guests and interrupts to them: what exits were in the paper.

use super::cores::{Way, OURS, PER_DEVICE, POLLED};
use super::guest::Work;
use super::stage::Stage;
use crate::prelude::*;

/// `bench parts`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of guests.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,3,4,5,6,7")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=14))]
    pub guests: Vec<u16>,
    /// What guests do.
    #[arg(
        long = "work",
        value_name = "WORK,…",
        value_delimiter = ',',
        default_value = "stream,request-response"
    )]
    pub works: Vec<Work>,
    #[command(flatten)]
    pub common: Common,
}

/// One part after the other.
const WAYS: [Way; 4] = [
    PER_DEVICE,
    Way { name: "scheduling only", polls: false, ..OURS },
    Way { name: "+ polling", ..OURS },
    Way { name: "+ saved interrupts", ..POLLED },
];

figures! {
    /// One measurement, or medians of them.
    struct Figures {
        /// Answers or frames a second, of all guests.
        rate, p50_us, kicks_per_second, interrupts_per_second,
        /// Both, of all guests.
        notifications_per_second,
        /// Nanoseconds of the I/O core for each answer or frame.
        io_ns, load_busy,
    }
}

type Sample = (Figures, Mode);

/// A row of the table: medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    work: Work,
    guests: u16,
    way: String,
    /// Against a thread per device: the median of the rounds' ratios.
    ratio: f64,
    #[serde(flatten)]
    figures: Figures,
    /// Thousand answers or frames a second.
    #[serde(skip_deserializing)]
    modes: Modes,
}

/// `bench parts`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let guests = if common.quick { vec![1, 3] } else { args.guests.clone() };
    let cases: Vec<(u16, Way)> = guests.iter().flat_map(|&n| WAYS.map(|way| (n, way))).collect();
    let samples =
        in_parts(common.repeat.rounds, &cases, |round, case| measure(&common, &args.works, round, *case))?;
    let mut rows = Vec::new();
    for (place, &work) in args.works.iter().enumerate() {
        for (of_cases, of_number) in cases.chunks(WAYS.len()).zip(samples.chunks(WAYS.len())) {
            for (&(guests, way), of_case) in of_cases.iter().zip(of_number) {
                rows.push(row(work, guests, way, &of_case[place], &of_number[0][place]));
            }
        }
    }
    let of_way = |way: usize| rows.get(way).map_or(f64::NAN, |row| row.figures.notifications_per_second);
    // Notifications a second of the least number of guests, at the first kind of work.
    let summary = fields! {
        thread_per_device: of_way(0),
        scheduling_only: of_way(1),
        polling: of_way(2),
        saved_interrupts: of_way(3),
    };
    let note = format!("what each part contributes, {}; rate: answers or frames", common.repeat);
    Results::new("parts", &note)
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

/// All kinds of work, one after the other, on one stage.
fn measure(common: &Common, works: &[Work], round: Round, (guests, way): (u16, Way)) -> Result<Vec<Sample>> {
    let stage = Stage::start(way, &common.io_cores, guests.into())?;
    stage.play(common.load_core, |players| {
        let one = |work: &Work| {
            let report = players.measure(|_| *work, common.repeat.window)?;
            let rate = report.rate(0..guests.into());
            let [kicks_per_second, interrupts_per_second] = report.notifications();
            let both = kicks_per_second + interrupts_per_second;
            let (what, name, thousands) = (work.name(), way.name, rate / 1e3);
            eprintln!(
                "{round}: {guests} guests, {what}, {name}: {thousands:.1} k/s, {both:.0} notifications/s"
            );
            let figures = Figures {
                rate,
                p50_us: report.latency(0..guests.into(), 50.0),
                kicks_per_second,
                interrupts_per_second,
                notifications_per_second: both,
                io_ns: report.io_ns as f64 / report.seconds / rate,
                load_busy: report.load_busy,
            };
            Ok((figures, report.mode))
        };
        works.iter().map(one).collect()
    })
}

fn row(work: Work, guests: u16, way: Way, samples: &[Sample], base: &[Sample]) -> Row {
    let by_mode = |samples: &[Sample]| Modes::of(samples, |(it, mode)| (*mode, it.rate / 1e3));
    Row {
        work,
        guests,
        way: way.name.to_owned(),
        ratio: median(samples.iter().zip(base).map(|(it, base)| it.0.rate / base.0.rate)),
        figures: Figures::of(samples.iter().map(|it| &it.0)),
        modes: by_mode(samples).over("ratio_to_threads", &by_mode(base)),
    }
}

/// Figure 8: the rate that each part adds, for each kind of work, and how many notifications are left.
pub fn draw(rows: &[Row]) -> String {
    let note = "sidecore bench parts --svg FILE; one I/O core";
    let one = |work: Work, title: String, y: Axis, value: fn(&Row) -> f64| {
        let numbers = distinct(rows.iter().map(|row| row.guests));
        let of_way = |way: &Way| {
            let its = |&guests: &u16| {
                let mut row = rows.iter().filter(|row| row.work == work && row.way == way.name);
                row.find(|row| row.guests == guests).map_or(f64::NAN, value)
            };
            Bars { name: way.name.to_owned(), values: numbers.iter().map(its).collect() }
        };
        let groups: Vec<String> = numbers.iter().map(u16::to_string).collect();
        bars(&title, note, "guests", &groups, y, &WAYS.iter().map(of_way).collect::<Vec<_>>())
    };
    let of_work = |work: Work| {
        let name = work.name();
        let rate = Axis::linear("thousands a second, all guests");
        let left = Axis::log("thousand kicks and interrupts a second, all guests");
        [
            one(work, format!("What each part contributes: {name}"), rate, |row| row.figures.rate / 1e3),
            one(work, format!("Notifications, where there are any: {name}"), left, |row| {
                row.figures.notifications_per_second / 1e3
            }),
        ]
    };
    let works = distinct(rows.iter().map(|row| row.work));
    stack(&works.into_iter().flat_map(of_work).collect::<Vec<_>>())
}
