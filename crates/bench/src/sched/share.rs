//! `sidecore bench share`: total rate and latency of 1 to 14 guests on one I/O core, as Figures 4 and 5 of
//! the ELVIS paper have them.
//!
//! The baseline is a thread for each device on the same processor. *Of linear* is the rate against that of
//! one guest times the number of guests, which is what guests with devices of their own would have. Fairness
//! is Jain's index over the guests of one run, which do all the same. Samples are compared with samples of
//! the same distance (`modes`).

use super::cores::{Way, OURS, PER_DEVICE};
use super::guest::{Report, Work};
use super::stage::Stage;
use super::FULL;
use crate::prelude::*;

/// `bench share`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of guests.
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,7,8,9,10,11,12,13,14"
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=14))]
    pub guests: Vec<u16>,
    /// What guests do.
    #[arg(long = "work", value_name = "WORK,…", value_delimiter = ',')]
    #[arg(default_value = "request-response,stream,memcached,flood")]
    pub works: Vec<Work>,
    #[command(flatten)]
    pub common: Common,
}

/// Work whose rate is bounded by the guests, so that it can grow with their number.
fn is_bounded(work: Work) -> bool {
    work != Work::Flood
}

/// What Figure 4 says of seven guests is said of this.
const COMPARED: u16 = 7;
/// A rate is linear if it is that much of what one guest has, times their number.
const LINEAR: f64 = 0.9;

figures! {
    /// One measurement, or medians of them.
    struct Figures {
        /// Answers or frames a second, of all guests.
        rate, p50_us, p99_us, jain, io_busy, load_busy, kicks_per_second, interrupts_per_second;
        /// Frames of streams that are missing.
        lost,
    }
}

/// What is measured in one go: on so many I/O cores, with so many guests.
type Case = (usize, u16, Way);
type Sample = (Figures, Mode);

fn sample(report: &Report, cores: usize) -> Sample {
    let all = || 0..report.guests.len();
    let [kicks_per_second, interrupts_per_second] = report.notifications();
    let figures = Figures {
        rate: report.rate(all()),
        p50_us: report.latency(all(), 50.0),
        p99_us: report.latency(all(), 99.0),
        jain: jain(report.guests.iter().map(|guest| guest.done as f64)),
        io_busy: report.io_busy(cores),
        load_busy: report.load_busy,
        kicks_per_second,
        interrupts_per_second,
        lost: report.lost,
    };
    (figures, report.mode)
}

/// Jain's fairness index: 1 if all have the same, 1/n if one has everything.
fn jain(shares: impl Iterator<Item = f64>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    shares.for_each(|share| (n, sum, squares) = (n + 1.0, sum + share, squares + share * share));
    if squares > 0.0 {
        sum * sum / (n * squares)
    } else {
        f64::NAN
    }
}

/// `bench share`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let guests = if common.quick { vec![1, 2, COMPARED] } else { args.guests.clone() };
    let of_cores = |cores| guests.iter().flat_map(move |&n| [OURS, PER_DEVICE].map(|way| (cores, n, way)));
    let cases: Vec<Case> = (1..=common.io_cores.len()).flat_map(of_cores).collect();
    let samples = in_parts(common.repeat.rounds, &cases, |round, case| measure(args, &common, round, *case))?;
    let mut rows = Vec::new();
    for (part, &work) in args.works.iter().enumerate() {
        let of_case =
            |wanted: Case| cases.iter().position(|case| *case == wanted).map(|at| &*samples[at][part]);
        rows.extend(
            cases.iter().zip(&samples).map(|(case, samples)| row(*case, work, &samples[part], of_case)),
        );
    }
    rows.sort_by_key(|row| row.io_cores);
    let summary = summary(&rows);
    let note = format!(
        "guests on I/O cores, {}; rate: answers or frames; a thread per device: busy processors",
        common.repeat
    );
    Results::new("share", &note)
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

/// All kinds of work, one after the other, on one stage.
fn measure(args: &Args, common: &Common, round: Round, (cores, guests, way): Case) -> Result<Vec<Sample>> {
    let stage = Stage::start(way, &common.io_cores[..cores], guests.into())?;
    stage.play(common.load_core, |players| {
        let one = |work: &Work| {
            let (name, what) = (way.name, work.name());
            let report = players.measure(|_| *work, common.repeat.window);
            let sample = sample(&report.map_err(|e| format!("{name}, {what}: {e}"))?, cores);
            let (rate, mode) = (sample.0.rate / 1e3, sample.1.name());
            eprintln!("{round}: {guests} guests, {what}, {name}: {rate:.1} k/s, {mode}");
            Ok(sample)
        };
        args.works.iter().map(one).collect()
    })
}

row! {
    fn row<'s>(
        case: Case,
        work: Work,
        samples: &[Sample],
        of_case: impl Fn(Case) -> Option<&'s [Sample]>,
    ) -> Row {
        let (io_cores, guests, way) = case;
        let one = of_case((io_cores, 1, OURS)).filter(|_| is_bounded(work));
        let base = of_case((io_cores, guests, PER_DEVICE)).filter(|_| way == OURS);
        let by_mode = |samples: &[Sample]| Modes::of(samples, |(it, mode)| (*mode, it.rate / 1e3));
        let figures = Figures::of(samples.iter().map(|it| &it.0));
    }

    /// A row of the table: medians.
    #[derive(Deserialize)]
    pub struct Row {
        io_cores: usize = io_cores,
        work: Work = work,
        guests: u16 = guests,
        way: String = way.name.to_owned(),
        /// Answers or frames a second, of all guests, in each round.
        samples: Vec<f64> = samples.iter().map(|it| it.0.rate).collect(),
        /// Against our rate with one guest times the number of guests.
        of_linear: Option<f64> =
            one.map(|one| figures.rate / (middle(one, |it| it.0.rate) * f64::from(guests))),
        /// Against a thread per device: the median of the rounds' ratios.
        ratio: Option<f64> =
            base.map(|base| median(samples.iter().zip(base).map(|(it, base)| it.0.rate / base.0.rate))),
        #[serde(flatten)]
        figures: Figures = figures,
        /// Thousand answers or frames a second by the distance of the two processors, and the median over
        /// that of a thread per device at the same distance.
        #[serde(skip_deserializing)]
        modes: Modes = by_mode(samples).over("ratio_to_threads", &base.map(by_mode).unwrap_or_default()),
    }
}

fn summary(rows: &[Row]) -> impl Serialize {
    let ours = || rows.iter().filter(|row| row.way == OURS.name);
    let one_core = || ours().filter(|row| row.io_cores == 1);
    let compared = one_core().filter(|row| row.guests == COMPARED && is_bounded(row.work));
    // A row that is not linear although the core had time left, and those with as many guests or more, do not
    // count.
    let bent = one_core()
        .filter(|row| row.figures.io_busy < FULL && row.of_linear.is_some_and(|of| of < LINEAR))
        .map(|row| row.guests)
        .min();
    let straight = one_core().filter(|row| row.of_linear.is_some_and(|of| of >= LINEAR));
    let until = straight.map(|row| row.guests).filter(|n| bent.is_none_or(|bent| *n < bent)).max();
    fields! {
        /// Our rate against that of a thread per device at seven guests on one I/O core: the greatest of the
        /// kinds of work that grow with the number of guests, as the paper has "up to 3 ×".
        ratio_at_7: compared.filter_map(|row| row.ratio).fold(f64::NAN, f64::max),
        /// The least over all our rows.
        jain: ours().map(|row| row.figures.jain).fold(f64::NAN, f64::min),
        /// The number of guests up to which every kind of work grows with it, as long as the core is not busy
        /// all the time.
        linear_until: until.unwrap_or(0),
    }
}

/// Rates as shares of linear, and latencies below.
pub fn draw(rows: &[Row]) -> String {
    let lines = |works: &mut dyn Iterator<Item = Work>, value: fn(&Row) -> Option<f64>| {
        let mut lines = Vec::new();
        for work in works {
            let line = |way: Way, short: &str| {
                let its =
                    rows.iter().filter(|row| row.io_cores == 1 && row.work == work && row.way == way.name);
                let points = its.filter_map(|row| Some((f64::from(row.guests), value(row)?))).collect();
                Line::new(format!("{}, {short}", work.name()), points)
            };
            lines.extend([line(OURS, "sidecore"), line(PER_DEVICE, "threads").dashed()]);
        }
        lines
    };
    let works = distinct(rows.iter().map(|row| row.work));
    let bounded = || works.iter().copied().filter(|work| is_bounded(*work));
    let note =
        "sidecore bench share --svg FILE; one I/O core; threads: one for each device, on the same processor";
    let rates = chart(
        "Rate of guests on one I/O core, as a share of linear",
        note,
        Axis::linear("guests"),
        Axis::linear("share of linear"),
        &lines(&mut bounded(), |row| row.of_linear),
    );
    let latencies = chart(
        "Median latency of guests on one I/O core",
        note,
        Axis::linear("guests"),
        Axis::log("median in µs"),
        &lines(&mut bounded(), |row| Some(row.figures.p50_us)),
    );
    stack(&[rates, latencies])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_s_index_is_one_among_equals() {
        assert_eq!(jain([3.0; 7].into_iter()), 1.0);
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        assert!(jain(std::iter::empty()).is_nan());
    }
}
