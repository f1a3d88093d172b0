//! `sidecore bench ports` and `sidecore bench idle`: what a port costs when it does nothing.
//!
//! Theory of operation. Both start our daemon as a user would and connect native drivers to all of its
//! ports. `ports` lets one pair talk while the number of silent ports grows, and compares the busy time of
//! the I/O core for each frame with that at two ports, in alternation; it also tells the daemon's own memory
//! (guest memory is shared and not counted). `idle` lets nobody talk and reads the daemon's processor time;
//! then it lets the daemon fall asleep again and again and measures how long the next frame takes, in turns
//! with a bare thread that is woken on the same processor.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use sidecore_driver::load::{pin, Load, LoadConfig};
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::{Config, Want};
use sidecore_driver::Frontend;

use super::ours::{Switch, START};
use super::peers::Scratch;
use super::wake::Sleeper;

/// `bench ports`.
#[derive(Debug, clap::Args)]
pub struct PortsArgs {
    /// Numbers of ports; the first is what the others are compared with.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "2,8,16,32,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub ports: Vec<u16>,
    /// Alternations.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "1", value_parser = super::seconds)]
    pub window: Duration,
    /// Processor for the load.
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub load_core: usize,
    /// Processor for the I/O core.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub io_core: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench idle`.
#[derive(Debug, clap::Args)]
pub struct IdleArgs {
    /// Connected, silent ports.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub ports: u16,
    /// Frames sent to a sleeping daemon.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
    pub frames: u16,
    /// Time over which processor time is counted.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "5", value_parser = super::seconds)]
    pub window: Duration,
    /// Processor for the I/O core.
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub io_core: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What was measured at one number of ports.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub ports: u16,
    /// Nanoseconds of the I/O core for each frame: every round.
    pub ns_per_frame: Vec<f64>,
    pub median: f64,
    /// The median of the rounds' ratios to the first row.
    pub ratio: f64,
    /// Million frames a second, median.
    pub mpps: f64,
    /// KiB of anonymous memory of the daemon.
    pub memory_kib: u64,
}

/// What idling costs.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// Connected, silent ports.
    pub ports: u16,
    /// Share of one processor that the daemon used.
    pub share: f64,
    /// Microseconds from offering a frame to seeing it at the other port, the daemon asleep before: sorted.
    pub first_frame_us: Vec<f64>,
    /// Microseconds until a thread runs that slept in `read`, on the same processor in the same rounds: sorted. What the
    /// machine itself takes.
    pub bare_thread_us: Vec<f64>,
}

/// A daemon with silent drivers on all ports from number `2` on.
struct Stage {
    switch: Switch,
    paths: Vec<PathBuf>,
    _silent: Vec<NetDriver>,
    _scratch: Scratch,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Stage {
    fn start(io_core: usize, ports: u16) -> Result<Stage, String> {
        let scratch = Scratch::new("sc-ports").map_err(text)?;
        let paths: Vec<PathBuf> = (0..ports).map(|n| scratch.file(format!("p{n}"))).collect();
        let program = std::env::current_exe().map_err(text)?;
        let switch = Switch::start(&program, io_core, &scratch, &paths).map_err(text)?;
        let silent = paths[2..].iter().map(driver).collect::<Result<Vec<_>, String>>()?;
        Ok(Stage { switch, paths, _silent: silent, _scratch: scratch })
    }

    fn measure(&self, config: LoadConfig) -> Result<(f64, f64), String> {
        let connect = |path: &PathBuf| Frontend::connect(path, START).map_err(text);
        let (a, b) = (connect(&self.paths[0])?, connect(&self.paths[1])?);
        // Only the switch goes along: the silent drivers stay with this thread.
        let switch = &self.switch;
        std::thread::scope(|scope| {
            let load = scope.spawn(move || {
                let mut load = Load::new(a, b, config).map_err(text)?;
                load.warm_up().map_err(text)?;
                let before = switch.cycles().map_err(text)?;
                let report = load.measure().map_err(text)?;
                let spent = switch.cycles().map_err(text)?.since(before);
                Ok((spent.per_frame() / sidecore_driver::load::ticks_per_ns(), report.mpps()))
            });
            load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// KiB of memory that is the daemon's own.
    fn memory(&self) -> Result<u64, String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.switch.id())).map_err(text)?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
        kib.ok_or_else(|| "no RssAnon in /proc/PID/status".to_owned())
    }

    /// Processor time that the daemon has used.
    fn processor(&self) -> Result<Duration, String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.switch.id())).map_err(text)?;
        // proc(5): fields 14 and 15 behind the name in parentheses, in ticks of 1/100 s.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        Ok(Duration::from_millis(10 * ticks))
    }
}

/// A connected driver that says nothing.
fn driver(path: &PathBuf) -> Result<NetDriver, String> {
    let frontend = Frontend::connect(path, START).map_err(text)?;
    NetDriver::start(frontend, Config { want: Want::default(), ..Config::default() }).map_err(text)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// `bench ports`.
pub fn ports(args: &PortsArgs) -> Result<(), String> {
    let config = LoadConfig { core: args.load_core, window: args.window, ..LoadConfig::default() };
    let mut ns = vec![Vec::new(); args.ports.len()];
    let mut mpps = vec![Vec::new(); args.ports.len()];
    let mut memory = vec![0; args.ports.len()];
    for round in 0..args.rounds {
        for (i, &ports) in args.ports.iter().enumerate() {
            // One daemon at a time: two would share the I/O core.
            let stage = Stage::start(args.io_core, ports)?;
            let (spent, rate) = stage.measure(config)?;
            ns[i].push(spent);
            mpps[i].push(rate);
            memory[i] = stage.memory()?;
            eprintln!(
                "round {}/{}: {ports} ports: {spent:.1} ns a frame, {rate:.2} Mpps",
                round + 1,
                args.rounds
            );
        }
    }
    let ratio = |i: usize| median(&ns[i].iter().zip(&ns[0]).map(|(x, first)| x / first).collect::<Vec<_>>());
    let rows: Vec<Row> = (0..args.ports.len())
        .map(|i| Row {
            ports: args.ports[i],
            median: median(&ns[i]),
            ratio: ratio(i),
            mpps: median(&mpps[i]),
            memory_kib: memory[i],
            ns_per_frame: ns[i].clone(),
        })
        .collect();
    let per_port = match (&rows[0], rows.last()) {
        (first, Some(last)) if last.ports > first.ports => {
            last.memory_kib.saturating_sub(first.memory_kib) / u64::from(last.ports - first.ports)
        }
        _ => 0,
    };
    if args.json {
        println!("{}", serde_json::json!({ "version": 1, "rows": rows, "kib_per_port": per_port }));
        return Ok(());
    }
    println!(
        "ports: one pair talks (64 B, both ways), the others are connected and silent; {} rounds",
        args.rounds
    );
    println!("ports  ns a frame  × first   Mpps  memory");
    for row in &rows {
        println!(
            "{:5}  {:10.1}  {:7.2}  {:5.2}  {:4} MiB",
            row.ports,
            row.median,
            row.ratio,
            row.mpps,
            row.memory_kib / 1024
        );
    }
    println!("memory for each further port: {per_port} KiB");
    Ok(())
}

/// `bench idle`.
pub fn idle(args: &IdleArgs) -> Result<(), String> {
    let ports = args.ports;
    let stage = Stage::start(args.io_core, ports)?;
    let (mut a, mut b) = (driver(&stage.paths[0])?, driver(&stage.paths[1])?);
    let mut frame = [0u8; 64];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let back: Vec<u8> = [&frame[6..12], &frame[..6], &frame[12..]].concat();
    // Both addresses are learned, so that the measured frames are not flooded.
    exchange(&mut b, &mut a, &back)?;
    exchange(&mut a, &mut b, &frame)?;
    std::thread::sleep(Duration::from_millis(200));
    let (before, start) = (stage.processor()?, Instant::now());
    std::thread::sleep(args.window);
    let share = (stage.processor()? - before).as_secs_f64() / start.elapsed().as_secs_f64();
    let mut latencies = Vec::new();
    // On the daemon's own processor, this thread would keep it from running.
    pin(0).map_err(text)?;
    let mut sleeper = Sleeper::start(args.io_core)?;
    let mut bare = Vec::new();
    for _ in 0..args.frames {
        // Long enough for the daemon to be asleep: it polls for 50 µs after the last frame.
        std::thread::sleep(Duration::from_millis(2));
        latencies.push(exchange(&mut a, &mut b, &frame)?.as_secs_f64() * 1e6);
        std::thread::sleep(Duration::from_millis(2));
        bare.push(sleeper.wake(START)?.as_secs_f64() * 1e6);
    }
    latencies.sort_by(f64::total_cmp);
    bare.sort_by(f64::total_cmp);
    let result = Idle { ports, share, first_frame_us: latencies, bare_thread_us: bare };
    if args.json {
        println!("{}", serde_json::json!({ "version": 1, "idle": result }));
        return Ok(());
    }
    println!("idle: {ports} connected, silent ports use {:.2} % of a processor", 100.0 * result.share);
    let rows = [("first frame", &result.first_frame_us), ("bare thread", &result.bare_thread_us)];
    for (what, sorted) in rows {
        let at = |share| quantile(sorted, share);
        println!(
            "{what} after a sleep, {} times: p50 {:.0} µs, p99 {:.0} µs, longest {:.0} µs",
            sorted.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    Ok(())
}

/// The value below which `share` of a sorted list lies.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len().saturating_sub(1) as f64).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the list")]
    sorted.get(place as usize).copied().unwrap_or(0.0)
}

/// Sends one frame and waits for it at the other port; how long that took.
fn exchange(from: &mut NetDriver, to: &mut NetDriver, frame: &[u8]) -> Result<Duration, String> {
    let start = Instant::now();
    if from.send(0, &[frame]).map_err(text)? != 1 {
        return Err("the transmit ring is full".to_owned());
    }
    let mut seen = false;
    while !seen {
        to.receive(0, |_, bytes| seen |= bytes == frame).map_err(text)?;
        if start.elapsed() > START {
            return Err("a frame was lost".to_owned());
        }
    }
    Ok(start.elapsed())
}
