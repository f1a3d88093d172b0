//! `sidecore bench router`: frames of 64 bytes through the router, on one core, by the number of routes and of flows.
//!
//! A router in this process is served by one I/O core, between two ring ports, then between two virtio ports; one thread on another
//! processor sends and receives by turns. Tables are those of `bench fib`, with 16 gateways. Flows are addresses below random prefixes
//! of the table, one after the other. Peers are the Linux kernel (`kernel`), with the same routes up to 10,000, and DPDK's `l3fwd` over
//! vhost (`l3fwd`), with as many as it has room for: an example that Debian ships as source, so it is built at first use. Where that cannot
//! be, its ratio is null, and the output says why.

mod ends;
mod kernel;
mod l3fwd;
mod stage;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;
use sidecore_engine::router::Static;

use super::common::{middle, Common, Result};
use super::draw::{bars, distinct, Axis, Bars};
use super::fib::tables::{self, Keys, Random, Route};
use ends::{frame, is_far, Kind, Sample, SIZE};
use kernel::Kernel;
use l3fwd::L3fwd;
use stage::{via, Stage};

/// Flows that are many.
const MANY: usize = 100_000;
/// Routes that the kernel is given at most.
const KERNEL_ROUTES: usize = 10_000;

/// `bench router`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of IPv4 prefixes.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10000,1000000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub v4: Vec<u32>,
    /// Numbers of IPv6 prefixes.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "200000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub v6: Vec<u32>,
    #[command(flatten)]
    pub common: Common,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    candidate: &'static str,
    family: &'static str,
    ports: &'static str,
    routes: usize,
    flows: usize,
    /// Million frames that arrived a second: the median of the rounds, and all of them.
    mpps: f64,
    samples: Vec<f64>,
    /// Nanoseconds of a core for a frame.
    ns_per_frame: f64,
    lost: u64,
    /// Seconds to load the table, and bytes that lookups may touch.
    load_seconds: Option<f64>,
    bytes: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
struct Summary {
    /// Many flows in the greatest IPv4 table that was asked for, a million routes without options; between ring ports, and
    /// between virtio ports.
    mpps_1m: f64,
    mpps_1m_virtio: f64,
    /// Between virtio ports against DPDK's l3fwd there; between ring ports against the price of a frame that the kernel forwards.
    ratio_l3fwd: Option<f64>,
    ratio_kernel: Option<f64>,
}

/// Routes, and addresses of one and of many flows.
struct Table {
    family: &'static str,
    routes: Vec<Static>,
    one: Vec<[u8; SIZE]>,
    many: Vec<[u8; SIZE]>,
}

fn table<A: Copy>(
    family: &'static str,
    all: &[Route<A>],
    bits: u8,
    many: usize,
    address: impl Fn(A) -> IpAddr,
    below: impl Fn(&mut Random, Route<A>) -> A,
) -> Table {
    let routes = all.iter().map(|(it, len, group)| via(address(*it), (*len).min(bits), *group)).collect();
    let addresses = Keys::Routed.addresses(all, many, |random| below(random, all[0]), &below);
    let frames: Vec<_> = addresses.into_iter().map(address).filter(is_far).map(frame).collect();
    Table { family, routes, one: frames[..1].to_vec(), many: frames }
}

fn v4(routes: usize, many: usize) -> Table {
    let all = tables::v4(routes);
    let below = |random: &mut Random, (address, len, _): Route<u32>| {
        address | random.word() & u32::MAX.checked_shr(len.into()).unwrap_or(0)
    };
    table("IPv4", &all, 32, many, |it| Ipv4Addr::from_bits(it).into(), below)
}

fn v6(routes: usize, many: usize) -> Table {
    let all = tables::v6(routes);
    let below = |random: &mut Random, (address, len, _): Route<u128>| {
        let low = u128::from(random.next()) << 64 | u128::from(random.next());
        address | low & u128::MAX.checked_shr(len.into()).unwrap_or(0)
    };
    table("IPv6", &all, 128, many, |it| Ipv6Addr::from_bits(it).into(), below)
}

/// `bench router`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let io_core = *common.io_cores.first().ok_or("no processor for the I/O core")?;
    let few = |numbers: &[u32]| if common.quick { vec![100] } else { numbers.to_vec() };
    let many = if common.quick { 1000 } else { MANY };
    let mut rows = Vec::new();
    let mut greatest: Option<Table> = None;
    for kind in Kind::ALL {
        let stage = Stage::start(io_core, kind)?;
        let tables = few(&args.v4).into_iter().map(|n| v4(n as usize, many));
        for table in tables.chain(few(&args.v6).into_iter().map(|n| v6(n as usize, many))) {
            rows.extend(ours(&common, &stage, kind, &table)?);
            let is_more = |it: &Table| it.routes.len() < table.routes.len();
            if table.family == "IPv4" && greatest.as_ref().is_none_or(is_more) {
                greatest = Some(table);
            }
        }
    }
    let mut notes = Vec::new();
    let mut add = |name: &str, peer: Option<Result<Row>>| match peer {
        Some(Ok(row)) => rows.push(row),
        Some(Err(why)) => notes.push(format!("{name}: {why}")),
        None => {}
    };
    add("l3fwd", greatest.as_ref().map(|table| beside_l3fwd(&common, io_core, table)));
    add("kernel", greatest.as_ref().map(|table| beside_kernel(&common, table)));
    let of = |candidate: &str, ports: &str| {
        let all = rows.iter().filter(|row| row.candidate == candidate && row.ports == ports);
        all.filter(|row| row.family == "IPv4" && row.flows > 1).max_by_key(|row| row.routes)
    };
    let (ring, virtio) = (of("sidecore", "ring"), of("sidecore", "virtio"));
    let summary = Summary {
        mpps_1m: ring.map_or(f64::NAN, |row| row.mpps),
        mpps_1m_virtio: virtio.map_or(f64::NAN, |row| row.mpps),
        ratio_l3fwd: virtio.zip(of("l3fwd", "virtio")).map(|(ours, l3fwd)| ours.mpps / l3fwd.mpps),
        ratio_kernel: ring
            .zip(of("kernel", "veth"))
            .map(|(ours, kernel)| kernel.ns_per_frame / ours.ns_per_frame),
    };
    common.draw(|| picture(&rows))?;
    if common.json {
        let all = serde_json::json!({
            "version": 1, "bench": "router", "size": SIZE + 4, "rows": rows, "notes": notes, "summary": summary
        });
        println!("{all}");
        return Ok(());
    }
    print(&rows, &notes, &summary);
    Ok(())
}

/// One flow and many through the router with this table.
fn ours(common: &Common, stage: &Stage, kind: Kind, table: &Table) -> Result<Vec<Row>> {
    let load_seconds = stage.routes(&table.routes);
    let mut samples: [Vec<Sample>; 2] = Default::default();
    for round in 1..=common.rounds {
        for (frames, samples) in [&table.one, &table.many].into_iter().zip(&mut samples) {
            let sample = stage.play(common.load_core, |ends| ends.measure(frames, common.window))?;
            let (rounds, routes, flows) = (common.rounds, table.routes.len(), frames.len());
            let (family, ports, mpps) = (table.family, kind.name(), sample.mpps);
            eprintln!(
                "round {round}/{rounds}: {ports} ports, {family}, {routes} routes, {flows} flows: {mpps:.2} Mpps"
            );
            samples.push(sample);
        }
    }
    let row = |(samples, flows): (&Vec<Sample>, usize)| Row {
        candidate: "sidecore",
        family: table.family,
        ports: kind.name(),
        routes: table.routes.len(),
        flows,
        mpps: middle(samples, |it| it.mpps),
        samples: samples.iter().map(|it| it.mpps).collect(),
        ns_per_frame: middle(samples, |it| it.ns),
        lost: samples.iter().map(|it| it.lost).sum(),
        load_seconds: Some(load_seconds),
        bytes: Some(stage.bytes()),
    };
    Ok(samples.iter().zip([1, table.many.len()]).map(row).collect())
}

/// DPDK's l3fwd with many flows, and as many of the routes as its table has room for.
fn beside_l3fwd(common: &Common, io_core: usize, table: &Table) -> Result<Row> {
    let routes = l3fwd::fitting(&table.routes);
    let frames: Vec<_> = routes.iter().map(|route| frame(route.prefix.address)).collect();
    let first = frames.first().ok_or("no route of the table fits")?;
    let peer = L3fwd::start(io_core, &routes)?;
    let mut samples = Vec::new();
    for round in 1..=common.rounds {
        let sample = peer.play(common.load_core, first, |ends| ends.measure(&frames, common.window))?;
        eprintln!("round {round}/{}: l3fwd: {:.2} Mpps", common.rounds, sample.mpps);
        samples.push(sample);
    }
    Ok(Row {
        candidate: "l3fwd",
        family: "IPv4",
        ports: "virtio",
        routes: routes.len(),
        flows: frames.len(),
        mpps: middle(&samples, |it| it.mpps),
        samples: samples.iter().map(|it| it.mpps).collect(),
        ns_per_frame: middle(&samples, |it| it.ns),
        lost: samples.iter().map(|it| it.lost).sum(),
        load_seconds: None,
        bytes: None,
    })
}

/// The kernel with many flows, and as many of the routes as it is given.
fn beside_kernel(common: &Common, table: &Table) -> Result<Row> {
    let routes = &table.routes[..table.routes.len().min(KERNEL_ROUTES)];
    let kernel = Kernel::start(routes)?;
    let addresses = routes.iter().map(|route| route.prefix.address).filter(is_far);
    let addresses: Vec<_> = addresses.map(frame).collect();
    let mut samples = Vec::new();
    for round in 1..=common.rounds {
        let sample = kernel.measure(common.load_core, &addresses, common.window)?;
        eprintln!("round {round}/{}: the kernel: {:.2} Mpps", common.rounds, sample.1);
        samples.push(sample);
    }
    Ok(Row {
        candidate: "kernel",
        family: "IPv4",
        ports: "veth",
        routes: routes.len(),
        flows: addresses.len(),
        mpps: middle(&samples, |it| it.1),
        samples: samples.iter().map(|it| it.1).collect(),
        ns_per_frame: middle(&samples, |it| it.0),
        lost: 0,
        load_seconds: None,
        bytes: None,
    })
}

/// The rates by table, those of peers in a group of their own.
fn picture(rows: &[Row]) -> String {
    let group = |row: &Row| match row.candidate {
        "sidecore" => format!("{}, {}", row.family, row.routes),
        _ => "peers".to_owned(),
    };
    let kind = |row: &Row| match (row.candidate, row.flows) {
        ("sidecore", 1) => format!("{} ports, one flow", row.ports),
        ("sidecore", _) => format!("{} ports, many flows", row.ports),
        (peer, flows) => format!("{peer}, {} routes, {flows} flows", row.routes),
    };
    let groups = distinct(rows.iter().map(group));
    let bar = |name: String| {
        let value = |of: &String| {
            rows.iter().find(|row| group(row) == *of && kind(row) == name).map_or(0.0, |row| row.mpps)
        };
        Bars { values: groups.iter().map(value).collect(), name }
    };
    let all: Vec<Bars> = distinct(rows.iter().map(kind)).into_iter().map(bar).collect();
    let y = Axis { label: "million frames a second", log: false };
    bars(
        "Routed frames of 64 bytes",
        "sidecore bench router --svg FILE; one core",
        "routes",
        &groups,
        y,
        &all,
    )
}

fn print(rows: &[Row], notes: &[String], summary: &Summary) {
    println!("router: 64 B, one core; ns: of the I/O core a frame, of the kernel without what sending costs");
    println!("candidate  family  ports   routes   flows    Mpps (min – max)          ns a frame  lost");
    for row in rows {
        let (min, max) = row.samples.iter().fold((f64::MAX, 0.0), |(a, b), n| (n.min(a), n.max(b)));
        let spread = format!("{:.2} ({min:.2} – {max:.2})", row.mpps);
        println!(
            "{:<9}  {:<6}  {:<5}  {:>7}  {:>6}    {spread:<24}  {:>10.1}  {:>4}",
            row.candidate, row.family, row.ports, row.routes, row.flows, row.ns_per_frame, row.lost
        );
    }
    notes.iter().for_each(|note| println!("{note}"));
    if let Some(ratio) = summary.ratio_l3fwd {
        println!("between virtio ports against l3fwd: {ratio:.2} times as many frames");
    }
    if let Some(ratio) = summary.ratio_kernel {
        println!("against the kernel: {ratio:.1} times as many frames for the same processor time");
    }
}
