//! `sidecore bench virtio-user`: DPDK as the guest. Does every frame come back, whatever was negotiated?
//!
//! Theory of operation. For each combination of socket role, ring format, mergeable buffers and number of
//! queues our daemon is started with two ports on its learning switch. One is the load's. The other one is
//! driven by `dpdk-testpmd` over `net_virtio_user`, which sends every frame back to where it came from
//! (macswap). The load first finds out how fast frames come back when it does not pace itself, then sends
//! at half of that rate and accounts for every frame. What is lost must be among our named drops, or
//! it was lost by testpmd; both are told. Any loss is a failure of the command.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use sidecore_abi::virtio::features as f;
use sidecore_driver::{Config, Want};

use super::echo::{Account, Amount, Echo};
use super::peers::{self, Testpmd, VirtioUser};
use crate::prelude::*;

/// Entries of all rings. Half of it is the most that is on the way at once.
const ENTRIES: u16 = 1024;
const LOAD_MAC: [u8; 6] = [2, 0x73, 0x63, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0x73, 0x63, 0, 0, 2];

/// `bench virtio-user`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What testpmd does with the socket.
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',', default_value = "client,server")]
    #[arg(value_parser = PossibleValuesParser::new(["client", "server"]).map(|word| word == "server"))]
    pub role: Vec<bool>,
    /// Ring formats.
    #[arg(long, value_name = "FORMAT,…", value_delimiter = ',', default_value = "split,packed")]
    #[arg(value_parser = PossibleValuesParser::new(["split", "packed"]).map(|word| word == "packed"))]
    pub ring: Vec<bool>,
    /// Mergeable receive buffers.
    #[arg(long, value_name = "ON,…", value_delimiter = ',', default_value = "on,off")]
    #[arg(value_parser = PossibleValuesParser::new(["on", "off"]).map(|word| word == "on"))]
    pub mergeable: Vec<bool>,
    /// Numbers of queue pairs.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=8))]
    pub queues: Vec<u16>,
    /// Frame size in bytes, without frame check sequence.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub size: u16,
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "1", value_parser = super::seconds)]
    pub window: Duration,
    /// Frames to send at half load, instead of a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,
    /// Processor for the load.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub load_core: usize,
    /// Processor for testpmd; the load sleeps between two looks and can share one.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub peer_core: usize,
    /// Processor for the I/O core.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub io_core: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), String> {
    let mut rows = Vec::new();
    for &server in &args.role {
        for &packed in &args.ring {
            for &mergeable in &args.mergeable {
                for &queues in &args.queues {
                    rows.push(measure(args, server, packed, mergeable, queues)?);
                }
            }
        }
    }
    let note = format!(
        "frames through the learning switch to testpmd (macswap) and back; at most {} on the way; dropped: by us",
        ENTRIES / 2
    );
    Results::new("virtio-user", &note)
        .with("size", &args.size)?
        .with("rows", &rows.iter().map(|(row, _)| row).collect::<Vec<_>>())?
        .print(args.json)?;
    let sum = |value: fn(&Account) -> u64| rows.iter().map(|(_, half)| value(half)).sum::<u64>();
    match (sum(|half| half.lost), sum(|half| half.wrong)) {
        (0, 0) => Ok(()),
        (lost, wrong) => Err(format!("at half load {lost} frames were lost and {wrong} came back wrong")),
    }
}

fn measure(
    args: &Args,
    server: bool,
    packed: bool,
    mergeable: bool,
    queues: u16,
) -> Result<(impl Serialize, Account), String> {
    let role = if server { "client" } else { "server" };
    let ports = [
        format!("vhost-user:@/load,queues={queues}"),
        format!("vhost-user:@/peer,queues={queues},role={role}"),
    ];
    let switch = Switch::start(args.io_core, &ports, &[])?;
    let [load, peer] = ["load", "peer"].map(|name| switch.file(name));
    let port = VirtioUser { path: peer, server, packed, mergeable, queues, entries: ENTRIES, mac: PEER_MAC };
    let testpmd = Testpmd::echo(args.peer_core, &port)?;
    let words = |e: String| {
        format!("{e}\nsidecore's words:\n{}\ntestpmd's words:\n{}", switch.process.output(), testpmd.output())
    };
    // The load has the same kind of rings as testpmd; a thread of its own, since pinning stays with it.
    let want = Want::default().and_if(packed, f::RING_PACKED).and_if(mergeable, f::NET_MRG_RXBUF);
    let config = Config { want, pairs: queues, entries: ENTRIES, ..Config::default() };
    let run = || {
        sidecore_driver::load::pin(args.load_core).map_err(text)?;
        // The ticks are meant (prctl(2), timer slack).
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        // Awake at once, though testpmd polls on the same processor: the load sleeps most of the time.
        if let Err(e) = peers::prioritize(this_thread()) {
            eprintln!("the load has no real-time priority, so rates are lower: {e}");
        }
        let driver = guest(&load, config)?;
        let mut echo = Echo::new(driver, LOAD_MAC, PEER_MAC, args.size.into(), u64::from(ENTRIES) / 2);
        echo.warm_up(START)?;
        negotiated(&switch, packed, mergeable, queues)?;
        let before = switch.daemon.drops()?;
        let probe = || Distance::before(&[args.io_core, args.load_core, args.peer_core]);
        let distance = probe();
        let full = echo.measure(Amount::Time(args.window), None)?;
        let (full_mode, distance) = (distance.after(), probe());
        let half = echo.measure(
            args.frames.map_or(Amount::Time(args.window), Amount::Frames),
            Some(full.mpps * 1e6 / 2.0),
        )?;
        let modes = [full_mode, distance.after()];
        let now = switch.daemon.drops()?.into_iter();
        let since = now.map(|(reason, frames)| {
            let frames = frames - before.get(&reason).unwrap_or(&0);
            (reason, frames)
        });
        let dropped: Vec<(String, u64)> = since.filter(|(_, frames)| *frames > 0).collect();
        Ok((full, half, modes, dropped))
    };
    let (full, half, [full_mode, half_mode], dropped) = apart(run).map_err(words)?;
    let role = if server { "server" } else { "client" };
    let ring = if packed { "packed" } else { "split" };
    let Account { received, sent, .. } = half;
    eprintln!("{role}, {ring}, mergeable: {mergeable}, {queues} queues: {received} of {sent} came back");
    let row = fields! {
        /// What testpmd does with the socket.
        role,
        ring,
        mergeable,
        queues,
        /// Without pacing.
        full,
        full_mode,
        /// At half of that rate.
        half,
        half_mode,
        /// Frames that the daemon dropped in both, by reason.
        dropped,
    };
    Ok((row, half))
}

/// Fails unless testpmd's port has become what was asked for.
fn negotiated(switch: &Switch, packed: bool, mergeable: bool, queues: u16) -> Result<(), String> {
    let answer = switch.daemon.show("ports")?;
    let ports = answer["ports"].as_array();
    let port = ports.and_then(|ports| ports.iter().find(|port| port["name"] == "p1"));
    let state = &port.ok_or("the daemon does not know testpmd's port")?["state"];
    let features: Vec<&str> =
        state["features"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
    let is = (features.contains(&"packed"), features.contains(&"mrg_rxbuf"), &state["queues"]);
    if is.0 == packed && is.1 == mergeable && is.2.as_u64() == Some(queues.into()) {
        return Ok(());
    }
    Err(format!("testpmd did not take what was asked for: {} queues with {}", is.2, features.join(", ")))
}
