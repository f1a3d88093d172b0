//! `sidecore bench fib`: how many addresses a second the forwarding tables look up, what a change of a route
//! takes, and what changes cost the lookups.
//!
//! One processor looks addresses up in batches of 64, as many as frames come together. Tables are synthetic:
//! lengths of prefixes as in the Internet's core, close together as they are there, the same each time. A
//! change is the removal of a route or its return, and its time ends when readers see it. Lookups are
//! measured with and without changes, by turns; a second processor makes the changes. Lookups alone take one
//! processor, so the distance of two does not apply to them; those beside changes have it.

pub mod family;
pub mod tables;

use crate::prelude::*;
use family::{Family, Loaded, V4, V6};
use tables::Keys;

/// `bench fib`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Numbers of IPv4 prefixes.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10000,200000,1000000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub v4: Vec<u32>,
    /// Numbers of IPv6 prefixes.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10000,200000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub v6: Vec<u32>,
    /// Changes a second beside the lookups.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub changes: u32,
    #[command(flatten)]
    pub repeat: Repeat<200>,
    /// A short look: one round of a few milliseconds with small tables. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    /// Processor that looks up.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub core: usize,
    /// Processor that changes routes.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub change_core: usize,
    #[command(flatten)]
    pub output: Output,
}

/// Lookups of one kind of addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rate {
    keys: String,
    /// Million lookups a second: the median of the rounds, and all of them.
    mlookups: f64,
    samples: Vec<f64>,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    family: String,
    routes: usize,
    /// Seconds to load the table, route by route.
    load_seconds: f64,
    /// Bytes that lookups may touch.
    bytes: usize,
    rates: Vec<Rate>,
    /// Microseconds of a change until readers see it.
    update_us_median: f64,
    update_us_p99: f64,
    /// Changes a second that were made beside the lookups, and the part of the lookups of routed addresses
    /// that was lost to them.
    changes: f64,
    lost: f64,
    /// Million lookups a second beside the changes.
    #[serde(skip_deserializing)]
    modes: Modes,
}

/// `bench fib`.
pub fn run(args: &Args) -> Result<()> {
    if args.core == args.change_core {
        return Err(format!("lookups and changes both on processor {}: they need one each", args.core));
    }
    let mut args = args.clone();
    if args.quick {
        (args.v4, args.v6) = (vec![1000], vec![1000]);
        args.repeat = Repeat { rounds: 1, window: Duration::from_millis(10) };
    }
    let mut rows = Vec::new();
    for &routes in &args.v4 {
        rows.push(args.row::<V4>(routes as usize)?);
    }
    for &routes in &args.v6 {
        rows.push(args.row::<V6>(routes as usize)?);
    }
    let of_v4 = rows.iter().filter(|row| row.family == V4::NAME).max_by_key(|row| row.routes);
    let random = of_v4.and_then(|row| row.rates.iter().find(|rate| rate.keys == Keys::Random.name()));
    let summary = fields! {
        /// Random IPv4 addresses in the greatest table that was asked for, a million routes without options.
        mlookups_1m: random.map_or(f64::NAN, |rate| rate.mlookups),
        update_us_median: of_v4.map_or(f64::NAN, |row| row.update_us_median),
    };
    let note = format!(
        "on one processor, in batches of {}, rounds of {:?}; modes: million lookups a second beside changes",
        family::BATCH,
        args.repeat.window
    );
    Results::new("fib", &note)
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&args.output, || draw(&rows))
}

impl Args {
    fn row<F: Family>(&self, routes: usize) -> Result<Row> {
        let mut loaded = Loaded::<F>::new(routes)?;
        let mut samples = [const { Vec::new() }; Keys::ALL.len()];
        let (mut quiet, mut beside) = (Vec::new(), Vec::<(f64, f64, Mode)>::new());
        for round in Round::all(self.repeat.rounds) {
            for (keys, samples) in Keys::ALL.iter().zip(&mut samples) {
                samples.push(loaded.rate(*keys, self)?);
            }
            quiet.push(loaded.rate(Keys::Routed, self)?);
            let distance = Distance::before(&[self.core, self.change_core]);
            let (rate, changes) = loaded.rate_beside_changes(self)?;
            beside.push((rate, changes, distance.after()));
            let last = |(all, keys): (&Vec<f64>, Keys)| {
                format!("{:.0} {}", all.last().copied().unwrap_or(f64::NAN), keys.name())
            };
            let last: Vec<String> = samples.iter().zip(Keys::ALL).map(last).collect();
            eprintln!("{round}: {}, {routes} routes: {} M/s", F::NAME, last.join(", "));
        }
        let updates = loaded.updates(self)?;
        let lost = 1.0 - middle(&beside, |(rate, ..)| *rate) / middle(&quiet, |rate| *rate);
        let rates = Keys::ALL.iter().zip(samples).map(|(keys, samples)| Rate {
            keys: keys.name().to_owned(),
            mlookups: middle(&samples, |rate| *rate),
            samples,
        });
        Ok(Row {
            family: F::NAME.to_owned(),
            routes,
            load_seconds: loaded.load_seconds,
            bytes: loaded.bytes(),
            rates: rates.collect(),
            update_us_median: updates.0,
            update_us_p99: updates.1,
            changes: middle(&beside, |(_, changes, _)| *changes),
            lost,
            modes: Modes::of(&beside, |(rate, _, mode)| (*mode, *rate)),
        })
    }
}

/// Lookups a second by the number of routes.
pub fn draw(rows: &[Row]) -> String {
    let line = |family: &str, keys: Keys| {
        let its = rows.iter().filter(|row| row.family == family);
        let point = |row: &Row| {
            let rate = row.rates.iter().find(|rate| rate.keys == keys.name());
            rate.map(|rate| (row.routes as f64, rate.mlookups))
        };
        Line::new(format!("{family}, {}", keys.name()), its.filter_map(point).collect())
    };
    let lines: Vec<Line> =
        [V4::NAME, V6::NAME].iter().flat_map(|family| Keys::ALL.map(|keys| line(family, keys))).collect();
    chart(
        "Lookups in the forwarding tables, one processor",
        "sidecore bench fib --svg FILE",
        Axis::log("routes"),
        Axis::linear("million lookups a second"),
        &lines,
    )
}
