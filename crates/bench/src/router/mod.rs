//! `sidecore bench router`: frames of 64 bytes through the router, on one core, by the number of routes and
//! of flows.
//!
//! A router in this process is served by one I/O core, between two ring ports, then between two virtio ports;
//! one thread on another processor sends and receives by turns. Tables are those of `bench fib`, with 16
//! gateways. Flows are addresses below random prefixes of the table, one after the other. Peers are the Linux
//! kernel (`kernel`), with the same routes up to 10,000, and DPDK's `l3fwd` over vhost (`l3fwd`), with as
//! many as it has room for: an example that Debian ships as source, so it is built at first use. Where that
//! cannot be, its ratio is null, and the output says why. At last the delays of frames are measured at a low
//! rate (`delay`). Each sample has the distance of the two processors (`distance`); `report` compares like
//! with like.

mod delay;
mod ends;
mod kernel;
mod l3fwd;
mod report;
mod stage;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sidecore_engine::router::Static;

use super::fib::family::{Family, V4, V6};
use super::fib::tables::Keys;
use super::lane::SIZE;
use crate::prelude::*;
use delay::{delay_row, DelayRow, Delays};
use ends::{frame, is_far, Kind, Sample};
use kernel::Kernel;
use l3fwd::L3fwd;
use report::{picture, summary, Case, Row};
use stage::{via, Between, Stage};

/// Flows that are many.
pub const MANY: usize = 100_000;
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

/// Routes, and addresses of one and of many flows.
struct Table {
    family: &'static str,
    routes: Vec<Static>,
    one: Vec<[u8; SIZE]>,
    many: Vec<[u8; SIZE]>,
}

/// With so many routes, and as many flows.
fn table<F: Family>(count: usize, flows: usize, address: fn(F::Address) -> IpAddr) -> Table {
    let all = F::routes(count);
    let routes = all.iter().map(|(it, len, group)| via(address(*it), *len, *group)).collect();
    let addresses = Keys::Routed.addresses(&all, flows, F::any, F::below);
    let frames: Vec<_> = addresses.into_iter().map(address).filter(is_far).map(frame).collect();
    Table { family: F::NAME, routes, one: frames[..1].to_vec(), many: frames }
}

/// `bench router`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    let io_core = *common.io_cores.first().ok_or("no processor for the I/O core")?;
    let few = |numbers: &[u32]| if common.quick { vec![100] } else { numbers.to_vec() };
    let many = if common.quick { 1000 } else { MANY };
    let (mut rows, mut delays) = (Vec::new(), Vec::new());
    let mut greatest: Option<Table> = None;
    for kind in Kind::ALL {
        let stage = Stage::start(io_core, kind)?;
        let v4 = |n: u32| table::<V4>(n as usize, many, |it| Ipv4Addr::from_bits(it).into());
        let v6 = |n: u32| table::<V6>(n as usize, many, |it| Ipv6Addr::from_bits(it).into());
        for table in few(&args.v4).into_iter().map(v4).chain(few(&args.v6).into_iter().map(v6)) {
            rows.extend(ours(&common, &stage, kind, &table)?);
            let is_more = |it: &Table| it.routes.len() < table.routes.len();
            if table.family == "IPv4" && greatest.as_ref().is_none_or(is_more) {
                greatest = Some(table);
            }
        }
        if let Some(table) = &greatest {
            delays.extend(our_delays(&common, &stage, kind, table)?);
        }
    }
    let mut notes = Vec::new();
    match greatest.as_ref().map(|table| beside_l3fwd(&common, io_core, table)) {
        Some(Ok((row, delay))) => {
            rows.push(row);
            delays.push(delay);
        }
        Some(Err(why)) => notes.push(format!("l3fwd: {why}")),
        None => {}
    }
    match greatest.as_ref().map(|table| beside_kernel(&common, table)) {
        Some(Ok(row)) => rows.push(row),
        Some(Err(why)) => notes.push(format!("kernel: {why}")),
        None => {}
    }
    let note = "one core; ns: of the I/O core a frame, of the kernel without what sending costs; delays: one way, µs";
    Results::new("router", note)
        .with("size", &(SIZE + 4))?
        .with("rows", &rows)?
        .with("delays", &delays)?
        .with("notes", &notes)?
        .with("summary", &summary(&rows, &delays))?
        .give(&common.output, || picture(&rows))
}

/// One flow and many through the router with this table.
fn ours(common: &Common, stage: &Stage, kind: Kind, table: &Table) -> Result<Vec<Row>> {
    let load_seconds = stage.routes(&table.routes);
    let (family, ports, routes) = (table.family, kind.name(), table.routes.len());
    let samples = by_turns(common.repeat.rounds, &[&table.one, &table.many], |round, frames| {
        let sample = stage.play(common.load_core, |mut ends| ends.measure(frames, common.repeat.window))?;
        let (flows, mpps, mode) = (frames.len(), sample.mpps, sample.mode.name());
        eprintln!("{round}: {ports} ports, {family}, {routes} routes, {flows} flows: {mpps:.2} Mpps, {mode}");
        Ok(sample)
    })?;
    let row = |(samples, flows): (&Vec<Sample>, usize)| {
        let case = Case { candidate: "sidecore", family, ports, routes, flows };
        report::row(case, samples, Some((load_seconds, stage.bytes())))
    };
    Ok(samples.iter().zip([1, table.many.len()]).map(row).collect())
}

/// Delays of many flows through the router with this table, and of the same frames through a wire between the
/// same ports.
fn our_delays(common: &Common, stage: &Stage, kind: Kind, table: &Table) -> Result<Vec<DelayRow>> {
    stage.routes(&table.routes);
    let samples = by_turns(common.repeat.rounds, &Between::ALL, |round, between| {
        stage.join(*between);
        let sample = stage.play(common.load_core, |mut ends| {
            if *between == Between::Router {
                ends.announce()?;
            }
            ends.delays(&table.many, common.repeat.window)
        })?;
        tell(round, &format!("{} ports, {}", kind.name(), between.name()), &sample);
        Ok(sample)
    })?;
    stage.join(Between::Router);
    let row = |(samples, between): (&Vec<Delays>, Between)| {
        let routes = if between == Between::Router { table.routes.len() } else { 0 };
        let (candidate, flows) = (between.name(), table.many.len());
        delay_row(Case { candidate, family: table.family, ports: kind.name(), routes, flows }, samples)
    };
    Ok(samples.iter().zip(Between::ALL).map(row).collect())
}

/// Says what a round's delays are.
fn tell(round: Round, what: &str, sample: &Delays) {
    let ([p50, p99], mode) = (sample.of(), sample.mode.name());
    eprintln!("{round}: {what}: {p50:.2} and {p99:.2} µs (p50, p99), {mode}");
}

/// DPDK's l3fwd with many flows, and as many of the routes as its table has room for.
fn beside_l3fwd(common: &Common, io_core: usize, table: &Table) -> Result<(Row, DelayRow)> {
    let routes = l3fwd::fitting(&table.routes);
    let frames: Vec<_> = routes.iter().map(|route| frame(route.prefix.address)).collect();
    let first = frames.first().ok_or("no route of the table fits")?;
    let peer = L3fwd::start(io_core, &routes)?;
    let (mut samples, mut delays) = (Vec::new(), Vec::new());
    let (core, window) = (common.load_core, common.repeat.window);
    for round in Round::all(common.repeat.rounds) {
        let sample = peer.play(core, first, |mut ends| ends.measure(&frames, window))?;
        eprintln!("{round}: l3fwd: {:.2} Mpps, {}", sample.mpps, sample.mode.name());
        samples.push(sample);
        let of = peer.play(core, first, |ends| ends.delays(&frames, window))?;
        tell(round, "l3fwd", &of);
        delays.push(of);
    }
    let (routes, flows) = (routes.len(), frames.len());
    let case = Case { candidate: "l3fwd", family: "IPv4", ports: "virtio", routes, flows };
    Ok((report::row(case, &samples, None), delay_row(case, &delays)))
}

/// The kernel with many flows, and as many of the routes as it is given.
fn beside_kernel(common: &Common, table: &Table) -> Result<Row> {
    let routes = &table.routes[..table.routes.len().min(KERNEL_ROUTES)];
    let kernel = Kernel::start(routes)?;
    let addresses = routes.iter().map(|route| route.prefix.address).filter(is_far);
    let addresses: Vec<_> = addresses.map(frame).collect();
    let samples = by_turns(common.repeat.rounds, &[()], |round, ()| {
        let (ns, mpps) = kernel.measure(common.load_core, &addresses, common.repeat.window)?;
        eprintln!("{round}: the kernel: {mpps:.2} Mpps");
        // It forwards on the sender's processor.
        Ok(Sample { mpps, ns, lost: 0, mode: Mode::Unknown })
    })?;
    let (routes, flows) = (routes.len(), addresses.len());
    let case = Case { candidate: "kernel", family: "IPv4", ports: "veth", routes, flows };
    Ok(report::row(case, &samples[0], None))
}
