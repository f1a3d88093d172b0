//! `sidecore bench routes`: how long it takes until a router forwards by what FRR says.
//!
//! Theory of operation. FRR as Debian packages it runs in a namespace as the control plane of a router
//! (`stage`). A BGP speaker of our own (`speaker`) in another namespace, behind a port of the router,
//! announces as many prefixes as are wanted, changes single ones and withdraws all of them. bgpd, zebra and
//! the kernel do what they do with any neighbour's routes, and take their time. What is measured is ours:
//! from the moment at which zebra has said the last of it, which a relay between zebra and the daemon notes
//! (`relay`), until the router's forwarding tables have it. The router counts its routes and keeps a digest
//! of them, which is shown when they are in force; the benchmark works out the digest of what it has
//! announced by itself. Equal digests: the tables mean the same.
//!
//! Neither FRR nor the daemon's control plane has a processor of its own. The distance of a sample is that of
//! the first two that may be used.
//!
//! A change is one prefix that gets another gateway, that goes, or that comes back. Its time begins with the
//! first that zebra says of it.

pub mod back_ends;
mod relay;
mod speaker;
mod stage;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use rustix::process::Signal;
use sidecore_engine::router::{digest, Led, Net};

use super::modes;
use crate::prelude::*;
use back_ends::{BackEnd, BACK_ENDS};
use speaker::Prefix;
use stage::{Stage, GATEWAYS, NETWORK, PORT};

/// How long FRR may take for all routes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long for one.
const LITTLE: Duration = Duration::from_secs(20);

/// `bench routes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prefixes that the neighbour announces.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub routes: u32,
    /// Rounds: in each all routes come and go.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Changes of single routes in each round.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    pub changes: u16,
    /// A short look: one round with few routes and changes. Its figures mean little.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// All routes come, or all go.
#[derive(Clone, Debug, Serialize)]
struct Row {
    round: u16,
    /// `announce` or `withdraw`.
    what: &'static str,
    routes: usize,
    /// Seconds from the last that zebra said until the digests are equal.
    consistent_s: f64,
    /// Seconds from the neighbour's first message until then: FRR's time, most of it.
    whole_s: f64,
    /// Bytes that zebra said.
    bytes: u64,
    mode: Mode,
}

/// One route changes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Change {
    /// Milliseconds from the first that zebra said of it until the digests are equal.
    ms: f64,
    /// Milliseconds from the neighbour's message on.
    whole_ms: f64,
    mode: Mode,
}

/// The routes that are to be, and the number of their table.
struct Table {
    routes: BTreeMap<Prefix, usize>,
    connected: (Net, Led),
    ways: [Led; GATEWAYS.len()],
}

impl Table {
    fn new() -> Table {
        let by = |gateway: Option<Ipv4Addr>| Led::Hops(vec![((PORT.to_owned(), gateway.map(Into::into)), 1)]);
        let connected = (Net { address: NETWORK.into(), len: 24 }, by(None));
        Table { routes: BTreeMap::new(), connected, ways: GATEWAYS.map(|gateway| by(Some(gateway))) }
    }

    /// How many routes the router is to have, and their digest.
    fn expected(&self) -> (u64, String) {
        let net = |prefix: &Prefix| Net { address: prefix.network().into(), len: Prefix::LEN };
        let all = self.routes.iter().map(|(prefix, way)| (net(prefix), &self.ways[*way]));
        let all = all.chain(std::iter::once((self.connected.0, &self.connected.1)));
        (self.routes.len() as u64 + 1, format!("{:016x}", digest(all)))
    }
}

/// `bench routes`.
pub fn run(args: &Args) -> Result<()> {
    let (rounds, routes, changes) = match args.quick {
        true => (1, args.routes.min(1000), args.changes.min(6)),
        false => (args.rounds, args.routes, args.changes),
    };
    let mut stage = Stage::start(0)?;
    let mut table = Table::new();
    stage.reach(&table.expected(), PATIENCE)?;
    let (mut rows, mut single) = (Vec::new(), Vec::new());
    let all: Vec<Prefix> = (0..routes).map(Prefix).collect();
    for round in Round::all(rounds) {
        table.routes = all.iter().map(|prefix| (*prefix, 0)).collect();
        let announced =
            whole(&mut stage, &table, round, "announce", |stage| stage.speaker.announce(&all, GATEWAYS[0]))?;
        for number in 0..changes {
            single.push(change(&mut stage, &mut table, number)?);
        }
        let them: Vec<Prefix> = std::mem::take(&mut table.routes).into_keys().collect();
        let withdrawn = whole(&mut stage, &table, round, "withdraw", |stage| stage.speaker.withdraw(&them))?;
        eprintln!(
            "{round}: {routes} routes in force {:.3} s behind zebra's last word, withdrawn {:.3} s behind it",
            announced.consistent_s, withdrawn.consistent_s
        );
        rows.extend([announced, withdrawn]);
    }
    let note = "from zebra's last word until the router's tables mean the same as what was announced; whole: from the neighbour's first";
    Results::new("routes", note)
        .with("rows", &rows)?
        .with("changes", &single)?
        .with("modes", &by_mode(&rows, &single))?
        .with("summary", &summary(&rows, &single, routes))?
        .print(args.json)
}

fn of<'r>(rows: &'r [Row], what: &str) -> Vec<&'r Row> {
    rows.iter().filter(|row| row.what == what).collect()
}

/// Samples by the distance of two processors: seconds of rows, milliseconds of changes.
fn by_mode(rows: &[Row], changes: &[Change]) -> impl Serialize {
    let modes = |what: &str| Modes::of(&of(rows, what), |row| (row.mode, row.consistent_s));
    let change = Modes::of(changes, |change| (change.mode, change.ms));
    fields! { announce: modes("announce"), withdraw: modes("withdraw"), change }
}

fn summary(rows: &[Row], changes: &[Change], routes: u32) -> impl Serialize {
    let (announced, withdrawn) = (of(rows, "announce"), of(rows, "withdraw"));
    fields! {
        routes,
        /// Medians of the rounds, and the longest.
        consistent_s: middle(&announced, |row| row.consistent_s),
        consistent_s_max: announced.iter().map(|row| row.consistent_s).fold(0.0, f64::max),
        withdrawn_s: middle(&withdrawn, |row| row.consistent_s),
        change_median_ms: middle(changes, |change| change.ms),
        change_p99_ms: percentile(changes.iter().map(|change| change.ms), 99),
        /// From the neighbour's messages on: with what FRR takes.
        whole_s: middle(&announced, |row| row.whole_s),
        whole_change_ms: middle(changes, |change| change.whole_ms),
    }
}

/// Has the neighbour say a lot, and waits until the router has it.
fn whole(
    stage: &mut Stage,
    table: &Table,
    round: Round,
    what: &'static str,
    say: impl FnOnce(&mut Stage) -> Result<()>,
) -> Result<Row> {
    let expected = table.expected();
    let distance = Distance::before(&modes::anywhere(None));
    let begun = Instant::now();
    stage.relay.clear();
    say(stage)?;
    let reached = stage.reach(&expected, PATIENCE)?;
    let said = stage.relay.said().ok_or("zebra has said nothing")?;
    Ok(Row {
        round: round.number,
        what,
        routes: table.routes.len(),
        consistent_s: reached.saturating_duration_since(said.last).as_secs_f64(),
        whole_s: (reached - begun).as_secs_f64(),
        bytes: said.bytes,
        mode: distance.after(),
    })
}

/// One prefix gets the other gateway, goes, or comes back.
fn change(stage: &mut Stage, table: &mut Table, number: u16) -> Result<Change> {
    // Anywhere in the table, each time elsewhere.
    let place = usize::from(number) * 7919 % table.routes.len().max(1);
    let (prefix, way) =
        table.routes.iter().nth(place).map_or((Prefix(0), 0), |(prefix, way)| (*prefix, *way));
    let gone = |table: &Table| (0..).map(Prefix).find(|prefix| !table.routes.contains_key(prefix));
    let (prefix, way) = match number % 3 {
        0 => (prefix, Some((way + 1) % GATEWAYS.len())),
        1 => (prefix, None),
        _ => (gone(table).unwrap_or(prefix), Some(0)),
    };
    match way {
        Some(way) => drop(table.routes.insert(prefix, way)),
        None => drop(table.routes.remove(&prefix)),
    }
    let expected = table.expected();
    let distance = Distance::before(&modes::anywhere(None));
    let begun = Instant::now();
    stage.relay.clear();
    match way {
        Some(way) => stage.speaker.announce(&[prefix], GATEWAYS[way])?,
        None => stage.speaker.withdraw(&[prefix])?,
    }
    let reached = stage.reach(&expected, LITTLE)?;
    let said = stage.relay.said().ok_or("zebra has said nothing")?;
    let ms = |from: Instant| reached.saturating_duration_since(from).as_secs_f64() * 1e3;
    Ok(Change { ms: ms(said.first), whole_ms: ms(begun), mode: distance.after() })
}

/// What back-ends do with routes.
pub struct RouteTimes {
    /// Milliseconds from zebra's first word of a change until the last kernel has it.
    pub median_ms: f64,
    pub p99_ms: f64,
    /// Seconds from zebra's last word of all routes until all agents have confirmed them.
    pub whole_s: f64,
    /// Milliseconds until an agent that stood still is consistent, after it went on.
    pub resync_ms: f64,
}

/// `routes` come, `changes` of them change, and more while one agent stands still for so long.
///
/// # Errors
/// FRR or the agent is not there, or routes do not arrive.
pub fn to_back_ends(routes: u32, changes: u16, stands: Duration) -> Result<RouteTimes> {
    let mut stage = Stage::start(BACK_ENDS)?;
    let mut table = Table::new();
    stage.reach(&table.expected(), PATIENCE)?;
    let all: Vec<Prefix> = (0..routes).map(Prefix).collect();
    table.routes = all.iter().map(|prefix| (*prefix, 0)).collect();
    stage.relay.clear();
    stage.speaker.announce(&all, GATEWAYS[0])?;
    stage.reach(&table.expected(), PATIENCE)?;
    let whole = stage.all_consistent(PATIENCE)?;
    let said = stage.relay.said().ok_or("zebra has said nothing")?;
    let whole_s = whole.saturating_duration_since(said.last).as_secs_f64();
    let mut times = Vec::new();
    for number in 0..changes {
        stage.back_ends.iter().for_each(BackEnd::forget);
        stage.relay.clear();
        let prefix = all[usize::from(number / 2) * 7919 % all.len()];
        match number % 2 {
            0 => stage.speaker.withdraw(&[prefix])?,
            _ => stage.speaker.announce(&[prefix], GATEWAYS[0])?,
        }
        let heard = stage.back_ends.iter().map(|it| it.hear(prefix)).collect::<Result<Vec<_>>>()?;
        let last = heard.into_iter().max().unwrap_or_else(Instant::now);
        let said = stage.relay.said().ok_or("zebra has said nothing")?;
        times.push(last.saturating_duration_since(said.first).as_secs_f64() * 1e3);
    }
    stage.all_consistent(LITTLE)?;
    // It stands still while a tenth of all routes goes.
    let (still, gone) = (&stage.back_ends[0], &all[..all.len().div_ceil(10)]);
    still.signal(Signal::STOP)?;
    stage.speaker.withdraw(gone)?;
    table.routes.retain(|prefix, _| !gone.contains(prefix));
    stage.reach(&table.expected(), PATIENCE)?;
    std::thread::sleep(stands);
    stage.back_ends[0].signal(Signal::CONT)?;
    let begun = Instant::now();
    let resync_ms = (stage.all_consistent(PATIENCE)? - begun).as_secs_f64() * 1e3;
    Ok(RouteTimes {
        median_ms: median(times.iter().copied()),
        p99_ms: percentile(times, 99),
        whole_s,
        resync_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_all_rounds_and_changes() {
        let row = |what, seconds| Row {
            round: 1,
            what,
            routes: 9,
            consistent_s: seconds,
            whole_s: 9.0,
            bytes: 1,
            mode: Mode::Near,
        };
        let rows = [row("announce", 0.1), row("withdraw", 7.0), row("announce", 0.3), row("announce", 0.2)];
        let changes: Vec<Change> =
            (1..=200).map(|ms| Change { ms: f64::from(ms), whole_ms: 300.0, mode: Mode::Far }).collect();
        let it = serde_json::to_value(summary(&rows, &changes, 9)).unwrap();
        let keys = ["consistent_s", "consistent_s_max", "withdrawn_s", "change_p99_ms", "whole_change_ms"];
        assert_eq!(keys.map(|key| it[key].as_f64().unwrap()), [0.2, 0.3, 7.0, 198.0, 300.0]);
    }

    #[test]
    fn a_table_with_other_gateways_has_another_digest() {
        let mut table = Table::new();
        table.routes = [(Prefix(0), 0), (Prefix(1), 1)].into();
        let (count, one) = table.expected();
        table.routes = [(Prefix(0), 1), (Prefix(1), 0)].into();
        assert_eq!(count, 3);
        assert_ne!(table.expected().1, one);
    }
}
