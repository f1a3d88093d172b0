//! `sidecore bench tap`: TCP between two network namespaces, through our switch and TAPs beside a Linux
//! bridge and veth pairs.
//!
//! Theory of operation. Both contestants stand ready all the time, each with two namespaces of its own that
//! hold nothing but an address; the runs alternate. iperf3 sends for some seconds in one namespace and
//! receives in the other, wherever the scheduler puts it; the receiver's figure counts. For ours the share of
//! time in which the I/O core was busy is told, too. The distance of a run is that of the I/O core's
//! processor and the first other one, where iperf3 is on a machine with two. Needs root, iperf3 and iproute2.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use sidecore_engine::core::CoreStatus;
use sidecore_engine::graph::{Attach, CoreOptions};
use sidecore_engine::host::tap::{Tap, TapConfig, TapSource};
use sidecore_engine::port::DEFAULT_MTU;
use sidecore_engine::switch::{Switch, SwitchOptions};

use super::engine::Engine;
use super::modes;
use super::net::missing;
use crate::prelude::*;

/// `bench tap`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Alternations between the candidates.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Length of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// TCP connections at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub streams: u32,
    /// Processor for the I/O core.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub io_core: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Figures of one contestant, in Gbit/s.
fn figures(runs: &[(Mode, f64)], beside: Option<&[(Mode, f64)]>) -> impl Serialize {
    let modes = |runs: &[(Mode, f64)]| Modes::of(runs, |run| *run);
    fields! {
        /// Each run.
        gbits: runs.iter().map(|run| run.1).collect::<Vec<_>>(),
        #[serde(flatten)]
        range: Range::of(runs.iter().map(|run| run.1)),
        /// By the distance of the two processors.
        modes: match beside {
            Some(theirs) => modes(runs).over("ratio_to_bridge", &modes(theirs)),
            None => modes(runs),
        },
    }
}

/// `bench tap`.
pub fn run(args: &Args) -> Result<()> {
    let ours = Ours::new(args)?;
    let theirs = Bridge::new()?;
    let (mut a, mut b, mut busy, mut all) = (Vec::new(), Vec::new(), 0, 0);
    let cpus = modes::anywhere(Some(args.io_core));
    let run = |nets: &[Net; 2]| -> Result<(Mode, f64)> {
        let distance = Distance::before(&cpus);
        let gbits = iperf(nets, args.seconds, args.streams)?;
        Ok((distance.after(), gbits))
    };
    for _ in 0..args.rounds {
        let before = ours.status();
        a.push(run(&ours.nets)?);
        let after = ours.status();
        let spent = after.busy_ns - before.busy_ns;
        busy += spent;
        all += spent + (after.idle_ns - before.idle_ns) + (after.sleep_ns - before.sleep_ns);
        b.push(run(&theirs.nets)?);
    }
    let middles = [&a, &b].map(|runs| middle(runs, |run| run.1));
    let (frames, bytes) = ours.passed();
    Results::new(
        "tap",
        "TCP, Gbit/s; core_busy: part of the time of our runs; offloads: what the kernel lets cross undone",
    )
    .with("ratio", &(middles[0] / middles[1]))?
    .with("sidecore", &figures(&a, Some(&b)))?
    .with("bridge", &figures(&b, None))?
    .with("core_busy", &share(busy, all))?
    .with("bytes_per_frame", &share(bytes, frames))?
    .with("offloads", &ours.taps[0].accepts.to_string())?
    .print(args.json)
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / (whole as f64).max(1.0)
}

/// Two TAPs on a learning switch of this process.
struct Ours {
    // In this order: the TAPs take their queues back from the cores.
    taps: [Tap; 2],
    engine: Engine,
    nets: [Net; 2],
}

impl Ours {
    fn new(options: &Args) -> Result<Ours> {
        let nets = [Net::new()?, Net::new()?];
        let cpus = vec![options.io_core];
        let mut engine = Engine::start(&CoreOptions { cpus, ..CoreOptions::default() })?;
        let ports = [engine.port(DEFAULT_MTU, |port| port)?.0, engine.port(DEFAULT_MTU, |port| port)?.0];
        let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
        engine.join(|_| Attach::Switch(Arc::clone(&switch)));
        let start = |i: usize| {
            let config = TapConfig { source: TapSource::Name("tap0".to_owned()), queues: 1, mtu: None };
            let (port, cores) = (Arc::clone(&ports[i]), engine.scheduler());
            let tap = nets[i].enter(|| Tap::start(config, port, cores).map_err(text))?;
            address(&nets[i], i, "tap0")?;
            Ok::<_, String>(tap)
        };
        let taps = [start(0)?, start(1)?];
        Ok(Ours { taps, engine, nets })
    }

    fn status(&self) -> CoreStatus {
        self.engine.graph.status().swap_remove(0)
    }

    /// Frames and bytes that came in at both ports.
    fn passed(&self) -> (u64, u64) {
        let totals = || self.engine.ports.iter().map(|port| port.counters.totals());
        (totals().map(|it| it.in_frames).sum(), totals().map(|it| it.in_bytes).sum())
    }
}

/// Two veth pairs on a Linux bridge.
struct Bridge {
    nets: [Net; 2],
    _between: Net,
}

impl Bridge {
    fn new() -> Result<Bridge> {
        let nets = [Net::new()?, Net::new()?];
        let between = Net::new()?;
        between.ip("link add br0 type bridge")?;
        between.ip("link set br0 up")?;
        for (i, net) in nets.iter().enumerate() {
            between.ip(&format!("link add v{i} type veth peer name eth0 netns {}", net.id()))?;
            between.ip(&format!("link set v{i} master br0 up"))?;
            net.ip("link set eth0 up")?;
            address(net, i, "eth0")?;
        }
        Ok(Bridge { nets, _between: between })
    }
}

/// Gives `interface` the address of side `i`.
pub fn address(net: &Net, i: usize, interface: &str) -> Result<()> {
    net.ip(&format!("addr add 10.8.0.{}/24 dev {interface}", i + 1))
}

/// One run from the first namespace to the second; Gbit/s at the receiver.
pub fn iperf(nets: &[Net; 2], seconds: u32, streams: u32) -> Result<f64> {
    let mut server = nets[1].enter(Server::start)?;
    let output = nets[0].enter(|| {
        let (seconds, streams) = (seconds.to_string(), streams.to_string());
        let mut client = Command::new("iperf3");
        client.args(["-J", "-c", "10.8.0.2", "-t", &seconds, "-P", &streams]);
        client.output().map_err(missing("iperf3"))
    })?;
    // A one-off server ends with its client.
    server.0.wait().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("iperf3: {e}: {text}"))?;
    json["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .map(|bits| bits / 1e9)
        .ok_or_else(|| format!("iperf3: {}", json["error"]))
}

/// An iperf3 server for one client; killed if its client never comes.
struct Server(Child);

impl Server {
    /// Returns when it listens.
    fn start() -> Result<Server> {
        let mut command = Command::new("iperf3");
        command.args(["-s", "-1", "--forceflush", "-B", "10.8.0.2"]);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(missing("iperf3"))?;
        let out = child.stdout.take();
        let server = Server(child);
        let mut lines = BufReader::new(out.ok_or("iperf3: no output")?).lines();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains("listening") => break,
                Some(Ok(_)) => {}
                _ => return Err("iperf3: the server ended before it listened".to_owned()),
            }
        }
        // It goes on printing: a thread has to read that.
        thread::spawn(move || lines.for_each(drop));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
