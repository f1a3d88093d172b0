//! `sidecore pkt-gen`: sends, receives and measures, with the options and the output of netmap's pkt-gen.
//!
//! Theory of operation. `plan` turns flags into a plan and refuses what would have no effect. `end` opens the
//! port, which gives a lane (a queue each way) for each thread. Each thread runs one loop (`send`, `receive`,
//! `ping`), compiled for its kind of lane: batches, no allocation, frames that are all the same are written
//! into each buffer once and sent again and again. It counts in a `ThreadCounters`; the main thread reads
//! them for its progress lines and stops the threads when a signal comes. A thread that finds nothing to do
//! yields for a while, so that a receiver and a sender on one processor take turns, and then sleeps (`pace`).
//!
//! | file | what |
//! |---|---|
//! | `args`, `plan` | flags |
//! | `address`, `units` | what is written on the command line |
//! | `end` | kinds of ports |
//! | `frame`, `verify`, `replay` | what is sent |
//! | `send`, `receive`, `ping` | the loops |
//! | `pace`, `counters` | when, and how much |
//! | `report` | what is printed |

pub mod address;
pub mod args;
mod counters;
mod dump;
pub mod end;
pub mod frame;
mod pace;
mod ping;
mod plan;
mod receive;
pub mod replay;
mod report;
mod send;
mod units;
mod verify;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::Notify;

use args::{Function, PktGenArgs};
use counters::{Count, Job, ThreadCounters};
use dump::Dump;
use end::{Lane, Opened, PortAddress};
use frame::Maker;
use plan::Plan;
use replay::{Recording, Replay};
use report::{ping_lines, Intervals, Report, Style, Times};
use verify::{Checker, Numbered};

/// What a command ends with: an error is one text for people.
pub type Outcome = Result<(), String>;

/// Writes to standard output. A reader that has gone is no failure: `sidecore show ports | head` is no fault.
///
/// # Errors
/// The text cannot be written.
pub fn print(text: &str) -> Outcome {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot write: {e}")),
        _ => Ok(()),
    }
}

/// `pkt-gen`.
///
/// # Errors
/// A flag would have no effect, the port cannot be opened, or what was asked for was not done.
pub fn run(args: &PktGenArgs) -> Outcome {
    let mut plan = Plan::new(args)?;
    plan.recording = args.replay.as_deref().map(Recording::read).transpose()?;
    if let Some(Recording { cut: cut @ 1.., .. }) = plan.recording {
        eprintln!(
            "sidecore: {cut} packets of the file were cut short by its capture and are sent as they are"
        );
    }
    let threads = usize::from(args.threads);
    let longest = plan.recording.as_ref().map_or(plan.form.length[1], |recording| recording.longest);
    match &plan.port {
        PortAddress::VhostUser { path, server } => {
            drive(end::vhost::open(path, *server, threads, longest)?, args, &plan)
        }
        PortAddress::Ring(name) => drive(end::ring::open(name, threads, plan.header, longest)?, args, &plan),
        PortAddress::Host { kind, interface } => {
            drive(end::host::open(*kind, interface, threads, longest)?, args, &plan)
        }
    }
}

/// What all threads and the main thread share.
struct RunState {
    stop: AtomicBool,
    /// Threads that have not ended.
    running: AtomicUsize,
    /// Told at the end of each.
    ended: Notify,
    counters: Vec<ThreadCounters>,
}

/// Tells the main thread that a thread ends, however it does.
struct Ending<'a>(&'a RunState);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Ordering::Relaxed);
        }
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.ended.notify_one();
    }
}

fn drive<L: Lane>(opened: Opened<L>, args: &PktGenArgs, plan: &Plan) -> Outcome {
    let Opened { lanes, queues, keep: _keep } = opened;
    let threads = lanes.len();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("cannot start: {e}"))?;
    // Before any output, so that its reader may send a signal.
    let signals = Signals::listen(&runtime)?;
    if !args.json {
        print(&start_text(args, plan, queues, threads))?;
    }
    let state = RunState {
        stop: AtomicBool::new(false),
        running: AtomicUsize::new(threads),
        ended: Notify::new(),
        counters: (0..threads).map(|_| ThreadCounters::new()).collect(),
    };
    let (results, watched) = std::thread::scope(|scope| {
        let work = |(number, lane)| {
            let state = &state;
            scope.spawn(move || {
                let _ending = Ending(state);
                let result = thread(lane, number, args, plan, state);
                if result.is_err() {
                    // One that fails ends all.
                    state.stop.store(true, Ordering::Relaxed);
                }
                result
            })
        };
        let handles: Vec<_> = lanes.into_iter().enumerate().map(work).collect();
        let watched = runtime.block_on(watch(args, &state, signals));
        state.stop.store(true, Ordering::Relaxed);
        let join = |handle: std::thread::ScopedJoinHandle<'_, Outcome>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        (handles.into_iter().map(join).collect::<Vec<Outcome>>(), watched)
    });
    let (intervals, interrupted) = watched;
    let report = report(args, &state.counters, &intervals)?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        print(&format!("{text}\n"))?;
    } else {
        print(&report.text(style(args)))?;
    }
    results.into_iter().collect::<Outcome>()?;
    verdict(args, &report, interrupted)
}

/// Whether what was asked for was done.
fn verdict(args: &PktGenArgs, report: &Report, interrupted: bool) -> Outcome {
    if let Some(lost) = report.rtt_ns.as_ref().map(|rtt| rtt.lost).filter(|lost| *lost > 0) {
        return Err(format!("{lost} pings were not answered"));
    }
    if report.verify.is_some_and(|found| !found.is_clean()) {
        return Err("the packets did not arrive as they were sent".to_owned());
    }
    let (wanted, done) = (args.count.0, report.packets);
    if wanted > 0 && done < wanted {
        let why = if interrupted { "was interrupted" } else { "ended" };
        return Err(format!("{why} after {done} of {wanted} packets"));
    }
    Ok(())
}

fn style(args: &PktGenArgs) -> Style {
    Style { plain: args.plain, framing: args.framing, average: args.average }
}

fn start_text(args: &PktGenArgs, plan: &Plan, queues: usize, threads: usize) -> String {
    let verb = match args.function {
        Function::Tx => "Sending on",
        Function::Rx => "Receiving from",
        Function::Ping | Function::Pong => "Working on",
    };
    let interface = &args.interface;
    let cpus = args.cpus.map_or(threads, usize::from);
    let mut text = format!("{verb} {interface}: {queues} queues, {threads} threads and {cpus} cpus.\n");
    if args.function == Function::Tx && args.replay.is_none() {
        let form = &plan.form;
        let ([from, to], [src, dst]) = (form.endpoints, form.mac);
        text.push_str(&format!("{from} -> {to} ({src} -> {dst})\n"));
    }
    text
}

/// One thread's work.
fn thread<L: Lane>(mut lane: L, number: usize, args: &PktGenArgs, plan: &Plan, state: &RunState) -> Outcome {
    if let Some(first) = args.affinity {
        let turn = args.cpus.map_or(number, |cpus| number % usize::from(cpus));
        sidecore_engine::util::place::pin(first + turn).map_err(|e| format!("-a {first}: {e}"))?;
    }
    let job = Job {
        count: plan.counts[number],
        burst: plan.burst,
        rate: plan.rate,
        busy: args.busy,
        counters: &state.counters[number],
        stop: &state.stop,
        all: &state.counters,
    };
    let end = Instant::now() + Duration::from_secs(args.wait.into());
    while Instant::now() < end && !job.is_over() {
        std::thread::sleep(Duration::from_millis(20).min(end.saturating_duration_since(Instant::now())));
    }
    let maker = Maker::new(plan.form, number as u64);
    let result = work(&mut lane, maker, args, plan, &job);
    // Acknowledgements and pongs, too, are out before the port goes.
    let result = result.and_then(|()| send::drain(&mut lane, &job).map(drop));
    if result.is_err() {
        job.ended(Instant::now());
    }
    result
}

fn work<L: Lane>(lane: &mut L, mut maker: Maker, args: &PktGenArgs, plan: &Plan, job: &Job<'_>) -> Outcome {
    let [own, _] = plan.form.mac;
    match args.function {
        Function::Tx if args.verify => {
            let adopt = args.destination_mac.is_none();
            send::verified(lane, &mut Numbered::new(maker), job, plan.window, adopt)
        }
        Function::Tx => match (&plan.recording, args.dump) {
            (None, false) => send::plain(lane, &mut maker, job),
            (None, true) => send::plain(lane, &mut Dump(maker), job),
            (Some(recording), false) => send::plain(lane, &mut Replay::new(recording.clone()), job),
            (Some(recording), true) => send::plain(lane, &mut Dump(Replay::new(recording.clone())), job),
        },
        Function::Rx => {
            if args.announce {
                receive::say(lane, &mut maker)?;
            }
            if args.verify {
                receive::verified(lane, &mut Checker::new(own), job)
            } else if args.dump {
                receive::plain(lane, &mut Dump(()), job, args.until_silence)
            } else {
                receive::plain(lane, &mut end::Blind, job, args.until_silence)
            }
        }
        Function::Ping => ping::ping(lane, &mut maker, own, job),
        Function::Pong => ping::pong(lane, own, job),
    }
}

/// The signals that end a run.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen(runtime: &Runtime) -> Result<Signals, String> {
        let _entered = runtime.enter();
        let listen = |kind| signal(kind).map_err(|e| format!("cannot listen for signals: {e}"));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }
}

/// Prints progress until all threads have ended or a signal comes; true: a signal.
async fn watch(args: &PktGenArgs, state: &RunState, mut signals: Signals) -> (Intervals, bool) {
    let mut intervals = Intervals::default();
    let period = Duration::from_millis(args.interval.into());
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut before, mut since) = (Count::default(), Instant::now());
    while state.running.load(Ordering::Relaxed) > 0 {
        tokio::select! {
            () = state.ended.notified() => {}
            _ = signals.interrupt.recv() => return (intervals, true),
            _ = signals.terminate.recv() => return (intervals, true),
            _ = ticks.tick() => {
                let (now, count) = (Instant::now(), total(&state.counters));
                let room = state.counters.iter().filter_map(ThreadCounters::take_least_room).min();
                let line = intervals.line(count - before, now - since, room, style(args));
                let pings = if args.function == Function::Ping { ping_interval(&state.counters) } else { String::new() };
                // A closed output ends it, as a signal would.
                if diagnose(line!(), &line, &pings).is_err() {
                    return (intervals, true);
                }
                (before, since) = (count, now);
            }
        }
    }
    (intervals, false)
}

/// A line in the form of netmap's diagnostics, and what comes below it.
fn diagnose(line: u32, text: &str, below: &str) -> std::io::Result<()> {
    use std::io::Write;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (seconds, us) = (now.as_secs() % 1000, now.subsec_micros());
    write!(std::io::stderr().lock(), "{seconds:03}.{us:06} main_thread [{line}] {text}\n{below}")
}

fn total(all: &[ThreadCounters]) -> Count {
    all.iter().map(ThreadCounters::count).fold(Count::default(), |a, b| a + b)
}

/// The pings since the last time.
fn ping_interval(all: &[ThreadCounters]) -> String {
    let rtt = all.first().and_then(|counters| counters.rtt.lock().ok());
    let Some(mut rtt) = rtt else { return String::new() };
    let Some(rtt) = rtt.as_mut() else { return String::new() };
    let text = ping_lines(&rtt.interval);
    rtt.interval.reset();
    text
}

fn report(args: &PktGenArgs, all: &[ThreadCounters], intervals: &Intervals) -> Result<Report, String> {
    let mut span: Option<(Instant, Instant)> = None;
    for counters in all {
        if let Some((first, last)) = *counters.times.lock().map_err(|e| e.to_string())? {
            span = Some(span.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
        }
    }
    let time = span.map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first));
    let mut report = Report::new(args.function, &args.interface, all.len(), total(all), time);
    report.spread = intervals.spread();
    if let Some(counters) = all.first() {
        let rtt = counters.rtt.lock().map_err(|e| e.to_string())?;
        report.rtt_ns = rtt.as_ref().map(|rtt| Times::of(&rtt.all, rtt.lost));
        report.verify = *counters.findings.lock().map_err(|e| e.to_string())?;
    }
    Ok(report)
}
