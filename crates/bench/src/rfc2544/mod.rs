//! `sidecore bench rfc2544`: what RFC 2544 asks of a device between two ports, with the search of RFC 9971.
//!
//! Theory of operation. A tester on one processor (`trial`) is both ends of a path through a target on
//! another one ([`Target`]): our switch or router, the Linux bridge, testpmd, Open vSwitch, or two ports that
//! are there. First the tester measures itself without a target. Then, for each repetition, each target is
//! started anew and measured whole, by turns, so that slow changes of the machine meet all alike (`measure`):
//! NDR and PDR (`search`, `goal`), latency at parts of the NDR, the loss curve, the longest burst, recovery
//! from an overload, and a reset of the daemon. Repetitions, not trials, are what intervals are of (`stats`,
//! `report`). Each trial has the distance of the two processors; a repetition has that of most of its search,
//! and repetitions of the same distance are compared with each other.
//!
//! | file | what |
//! |---|---|
//! | `goal`, `search` | which load is tried next, and what trials say: pure functions |
//! | `stats` | intervals, ratios of pairs, the rule of three |
//! | `traffic`, `sink` | frames with stamps, and what of them came |
//! | `trial` | one trial, between ends of any kind |
//! | `loss` | where frames were lost |
//! | `measure` | one repetition |
//! | `report`, `figure` | JSON, table, drawing |

mod figure;
mod goal;
mod loss;
mod measure;
mod report;
mod search;
pub mod sink;
pub mod stats;
pub mod traffic;
pub mod trial;

use std::cell::Cell;
use std::path::PathBuf;

use sidecore_pktgen::address::{Endpoints, Mac};
use sidecore_pktgen::end::{host, PortAddress};

use super::lane::End;
use super::ours::Daemon;
use super::peers::Flows;
use super::target::{veths, Setting, Target, Who, STATIONS};
use crate::prelude::*;
use measure::{own_limit, OwnLimit, Plan, Repetition};
use report::{summary, Own, Row};
use traffic::{Lengths, Traffic};
use trial::Tester;

/// `bench rfc2544`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Two ports of a running daemon, named as for pkt-gen: ring:NAME, vhost-user:PATH, packet:IFNAME
    /// [default: a switch of its own between two virtio ports].
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["target", "router", "compare"])]
    pub ports: Option<Vec<String>>,
    /// Two ports of another switch: vhost-user:PATH,PATH, vhost-user-server:PATH,PATH (the switch connects to
    /// us) or interface:NAME,NAME.
    #[arg(long, value_name = "KIND:A,B", conflicts_with_all = ["router", "compare"])]
    pub target: Option<String>,
    /// A router of its own between two virtio ports.
    #[arg(long, conflicts_with = "compare")]
    pub router: bool,
    /// Our switch, the Linux bridge, testpmd and Open vSwitch with DPDK, by turns.
    #[arg(long)]
    pub compare: bool,
    /// Station that frames are sent to, with --ports or --target: a router's [default: the receiver's].
    #[arg(long, value_name = "MAC")]
    pub station: Option<Mac>,
    /// Frame sizes in bytes, with frame check sequence.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64,1518")]
    #[arg(value_parser = clap::value_parser!(u16).range(64..=1518))]
    pub sizes: Vec<u16>,
    /// Seven frames of 64 bytes to four of 594 and one of 1518, instead of --sizes.
    #[arg(long, conflicts_with_all = ["sizes", "pcap"])]
    pub imix: bool,
    /// The frames of a capture, over and over, instead of --sizes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "flows", "src", "dst"])]
    pub pcap: Option<PathBuf>,
    /// Flows: combinations of addresses and ports, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=traffic::MOST_FLOWS))]
    pub flows: u64,
    /// Source addresses and ports: IP, IP:PORT or IP:PORT-IP:PORT [default: 198.18.0.1].
    #[arg(long, value_name = "RANGE")]
    pub src: Option<Endpoints>,
    /// Destination addresses and ports [default: from 198.19.0.1].
    #[arg(long, value_name = "RANGE")]
    pub dst: Option<Endpoints>,
    /// Independent repetitions: each starts its target anew.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// Length of a full-length trial in seconds; RFC 2544 has 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = seconds)]
    pub trial: f64,
    /// Seconds of trials that decide about a load; RFC 2544 has one trial's.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.5, value_parser = seconds)]
    pub sum: f64,
    /// Part of that time in which trials may lose more than their goal; RFC 2544 has 0.
    #[arg(long, value_name = "PART", default_value_t = 0.5, value_parser = part)]
    pub exceed: f64,
    /// Distance of a rate's bounds, as a part of it, that is small enough.
    #[arg(long, value_name = "PART", default_value_t = 0.005, value_parser = part)]
    pub width: f64,
    /// Frames a second that are offered at most [default: what the tester can do].
    #[arg(long, value_name = "N")]
    pub max_rate: Option<u32>,
    /// Searches for the longest burst in each repetition; RFC 2544 has 50 altogether.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub bursts: u32,
    /// Give the tester and the thread that moves frames real-time priority, so that other programs do not
    /// interrupt them. Not for ports that were given.
    #[arg(long, conflicts_with_all = ["ports", "target"])]
    pub fifo: bool,
    /// A short look: one repetition with trials of milliseconds. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub cpus: Processors,
    #[command(flatten)]
    pub output: Output,
    /// Control socket of the daemon that has the ports of --ports [default: as for other commands].
    #[arg(long, value_name = "PATH", requires = "ports")]
    pub socket: Option<PathBuf>,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| e.to_string())?;
    (0.001..=3600.0).contains(&value).then_some(value).ok_or_else(|| "0.001 to 3600 seconds".to_owned())
}

fn part(text: &str) -> std::result::Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| e.to_string())?;
    (0.0..1.0).contains(&value).then_some(value).ok_or_else(|| "0 to less than 1".to_owned())
}

/// One kind of traffic.
struct Load {
    name: String,
    lengths: Lengths,
}

impl Args {
    fn plan(&self) -> Result<Plan> {
        let (trial, sum) = if self.quick { (0.02, 0.1) } else { (self.trial, self.sum) };
        if sum < trial {
            return Err(format!("--sum {sum}: less than a trial of {trial} s"));
        }
        Ok(Plan {
            trial,
            sum,
            exceed: self.exceed,
            width: if self.quick { 0.05 } else { self.width.max(1e-4) },
            most: self.max_rate.map_or(f64::INFINITY, f64::from),
            bursts: if self.quick { 1 } else { self.bursts },
            base: None,
            patient: !self.quick,
        })
    }

    fn loads(&self) -> Result<Vec<Load>> {
        Ok(match (&self.pcap, self.imix) {
            (Some(path), _) => vec![Load { name: "pcap".to_owned(), lengths: traffic::capture(path)? }],
            (None, true) => vec![Load { name: "imix".to_owned(), lengths: Lengths::Imix }],
            (None, false) => {
                let load =
                    |size: &u16| Load { name: size.to_string(), lengths: Lengths::Fixed((*size).into()) };
                self.sizes.iter().map(load).collect()
            }
        })
    }

    fn candidates(&self) -> Result<Vec<Who>> {
        let station = self.station.map(|mac| mac.0);
        if station.is_some() && self.ports.is_none() && self.target.is_none() {
            return Err("--station does not apply, but to --ports and --target".to_owned());
        }
        if let Some(ports) = &self.ports {
            let ports = ports.iter().map(|port| PortAddress::parse(port)).collect::<Result<Vec<_>>>()?;
            let ports = ports.try_into().map_err(|_| "--ports: two ports")?;
            return Ok(vec![Who::Given(ports, station)]);
        }
        if let Some(target) = &self.target {
            return Ok(vec![Who::Given(pair(target)?, station)]);
        }
        Ok(match (self.router, self.compare) {
            (true, _) => vec![Who::Router],
            (_, false) => vec![Who::Switch],
            (_, true) => vec![Who::Switch, Who::Bridge, Who::Testpmd, Who::Ovs(Flows::Normal)],
        })
    }
}

/// `--target`: two ports of one kind.
fn pair(text: &str) -> Result<[PortAddress; 2]> {
    let bad = || {
        format!(
            "--target {text}: write vhost-user:PATH,PATH, vhost-user-server:PATH,PATH or interface:NAME,NAME"
        )
    };
    let (kind, rest) = text.split_once(':').ok_or_else(bad)?;
    let (a, b) =
        rest.split_once(',').filter(|(a, b)| !a.is_empty() && !b.is_empty() && a != b).ok_or_else(bad)?;
    let port = |name: &str| match kind {
        "vhost-user" => Ok(PortAddress::VhostUser { path: name.to_owned(), server: false }),
        "vhost-user-server" => Ok(PortAddress::VhostUser { path: name.to_owned(), server: true }),
        "interface" => Ok(PortAddress::Host { kind: host::Kind::Packet, interface: name.to_owned() }),
        _ => Err(bad()),
    };
    Ok([port(a)?, port(b)?])
}

/// What a tester of these ends can do by itself.
fn alone(who: &Who, args: &Args, lengths: &Lengths, seconds: f64) -> Result<(&'static str, OwnLimit)> {
    let traffic = Traffic::new(lengths, STATIONS, args.flows, [args.src, args.dst])?;
    let host = match who {
        Who::Bridge => true,
        Who::Given(ports, _) => ports.iter().any(|port| matches!(port, PortAddress::Host { .. })),
        _ => false,
    };
    let core = args.cpus.load_core;
    let measured = |from: End, to: Option<End>| own_limit(Tester::new(&traffic, from, to, None), seconds);
    if !host {
        let limit = on(core, || measured(End::Bare(Box::default()), None));
        return Ok(("ring", limit?));
    }
    let net = veths(1, args.cpus.io_core)?;
    let limit = net.enter(|| {
        sidecore_driver::load::pin(core).map_err(text)?;
        let open = |name| End::host(host::Kind::Packet, name, traffic.longest());
        measured(open("near0")?, Some(open("far0")?))
    });
    Ok(("veth", limit?))
}

/// A candidate with one kind of traffic.
struct Case<'a> {
    who: &'a Who,
    load: &'a Load,
    traffic: Traffic,
    own: OwnLimit,
    /// The first repetition's PDR: the loads of the curve are the same in all.
    base: Cell<Option<f64>>,
}

/// `bench rfc2544`.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let (plan, loads, candidates) = (args.plan()?, args.loads()?, args.candidates()?);
    let rounds = if args.quick { 1 } else { args.repeat };
    let daemon = args.ports.as_ref().map(|_| Daemon { socket: args.socket.clone() });
    let mut frames = Vec::new();
    for load in &loads {
        for who in &candidates {
            let stations = Target::stations(who);
            let traffic = Traffic::new(&load.lengths, stations, args.flows, [args.src, args.dst])?;
            Target::look(who, traffic.longest()).map_err(|why| format!("{}: {why}", who.name()))?;
            frames.push((who, load, traffic));
        }
    }
    let (mut cases, mut generator) = (Vec::new(), Vec::<Own>::new());
    for (who, load, traffic) in frames {
        let (ends, own) = alone(who, args, &load.lengths, 0.4 * plan.sum)?;
        if !generator.iter().any(|it| it.ends == ends && it.size == load.name) {
            eprintln!("the tester alone, {} B, {ends}: {:.2} Mpps", load.name, own.rate / 1e6);
            generator.push(report::alone(ends, &load.name, &own));
        }
        cases.push(Case { who, load, traffic, own, base: Cell::new(None) });
    }
    // One of those beside us that is not there leaves the others; without us there is nothing to say.
    let is_peer = |case: &Case<'_>| (case.who.name(), args.compare && *case.who != Who::Switch);
    let (samples, missing) = beside_peers(rounds, &cases, is_peer, |round, case| {
        let (page, daemon, longest) = (page(), daemon.as_ref(), case.traffic.longest());
        let setting = Setting { cpus: args.cpus, longest, page, daemon, fifo: args.fifo };
        let plan = Plan { most: plan.most.min(case.own.rate).max(1e4), base: case.base.get(), ..plan };
        let mut target = Target::start(case.who, setting)?;
        let it = measure::measure(&mut target, &case.traffic, plan)?;
        let [ndr, pdr] = [it.ndr, it.pdr].map(|found| found.lower.map(|load| load as f64));
        if round.number == 1 {
            case.base.set(pdr);
        }
        let [ndr, pdr] = [ndr, pdr].map(|rate| rate.unwrap_or(0.0) / 1e6);
        let (who, size, trials) = (case.who.name(), &case.load.name, it.tally.trials);
        eprintln!("{round}: {who}, {size} B: NDR {ndr:.3} Mpps, PDR {pdr:.3} Mpps, {trials} trials");
        Ok(vec![it])
    })?;
    let row = |(case, of): (&Case<'_>, &Vec<Vec<Repetition>>)| {
        report::row(case.who.name(), &case.load.name, &case.traffic, &case.own, of.first()?)
    };
    let rows: Vec<Row> = cases.iter().zip(&samples).filter_map(row).collect();
    let notes: Vec<String> = missing.into_values().collect();
    Results::new(
        "rfc2544",
        "intervals (ci99) are of the mean, 99 %; rates that are generator_limited are at least these",
    )
    .with("repetitions", &rounds)?
    .with("fifo", &args.fifo)?
    .with("trial_s", &plan.trial)?
    .with("duration_sum_s", &plan.sum)?
    .with("exceed_ratio", &plan.exceed)?
    .with("width", &plan.width)?
    .with("flows", &args.flows)?
    .with("generator", &generator)?
    .with("rows", &rows)?
    .with("notes", &notes)?
    .with("summary", &summary(&rows))?
    .give(&args.output, || figure::draw(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_pairs_of_one_kind() {
        let vhost = |path: &str, server| PortAddress::VhostUser { path: path.to_owned(), server };
        assert_eq!(pair("vhost-user:/a,/b"), Ok([vhost("/a", false), vhost("/b", false)]));
        assert_eq!(pair("vhost-user-server:/a,/b"), Ok([vhost("/a", true), vhost("/b", true)]));
        let interface =
            |name: &str| PortAddress::Host { kind: host::Kind::Packet, interface: name.to_owned() };
        assert_eq!(pair("interface:t0,t1"), Ok([interface("t0"), interface("t1")]));
        for bad in ["", "t0,t1", "interface:t0", "interface:t0,", "interface:t0,t0", "usb:a,b"] {
            assert!(pair(bad).is_err(), "{bad}");
        }
    }
}
