//! `sidecore bench matrix`: frames one way through the learning switch, from each kind of port to each,
//! beside what else can do the pair.
//!
//! Theory of operation. In each round every candidate of every pair is started, measured at every frame size
//! and stopped, all in one network namespace of their own. One thread on one processor is both ends (`ends`),
//! the candidate has another processor; the kernel's part of a host interface is done by its caller. What
//! arrives at the receiving end counts. Between ends that lose nothing by themselves at most [`WINDOW`]
//! frames are under way, so a loss is the switch's; into a host interface as many are sent as the host takes.
//! The rate is what one I/O core can do unless the load cannot keep up, which the share of time in which the
//! core was busy tells.
//!
//! The Linux bridge has two veth pairs; Open vSwitch has its own kinds of port, as a learning switch
//! (`NORMAL`): those without DPDK (`tap`) its main thread serves, not the polling one.

use super::ends::{Kind, Side};
use super::peers::Flows;
use super::target::{Setting, Target, Who};
use crate::prelude::*;

/// `bench matrix`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kinds of ports.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', default_value = "ring,vhost-user,tap,xdp")]
    pub kinds: Vec<Kind>,
    /// Frame sizes in bytes, without frame check sequence.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "60,1500")]
    #[arg(value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub sizes: Vec<u16>,
    /// Candidates beside sidecore [default: both].
    #[arg(long = "peer", value_name = "PEER", value_delimiter = ',')]
    pub peers: Option<Vec<Peer>>,
    #[command(flatten)]
    pub repeat: Repeat<300>,
    #[command(flatten)]
    pub cpus: Processors,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The switches that we are measured beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// A Linux bridge.
    Bridge,
    /// Open vSwitch with DPDK.
    Ovs,
    /// No other.
    None,
}

/// Frames under way at most, where nothing but the switch can lose them.
const WINDOW: u64 = 512;

/// Something to be measured, and its name in tables and JSON.
type Candidate = (&'static str, Who);

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    mpps: f64,
    /// Share of the time in which the I/O core was busy.
    busy: Option<f64>,
    lost: u64,
    /// How far the two processors were from each other.
    mode: Mode,
}

/// `bench matrix`.
pub fn run(args: &Args) -> Result<()> {
    let cases = cases(args);
    let samples = in_parts(args.repeat.rounds, &cases, |round, ((name, who), pair)| {
        let [from, to] = pair.map(Kind::name);
        let measured = measure(args, who, *pair);
        let measured = measured.map_err(|e| format!("{name}, {from} to {to}: {e}"))?;
        for (size, sample) in args.sizes.iter().zip(&measured) {
            eprintln!("{round}: {name} {from} to {to} {size} B: {:.3} Mpps", sample.mpps);
        }
        Ok(measured)
    })?;
    let mut rows = Vec::new();
    for (at, &size) in args.sizes.iter().enumerate() {
        for (((candidate, _), [from, to]), of_case) in cases.iter().zip(&samples) {
            let of = &of_case[at];
            let mpps = middle(of, |it| it.mpps);
            let all_busy: Option<Vec<f64>> = of.iter().map(|it| it.busy).collect();
            rows.push(fields! {
                from: from.name(),
                to: to.name(),
                size,
                candidate: *candidate,
                /// Million frames a second, of every round.
                samples: of.iter().map(|it| it.mpps).collect::<Vec<_>>(),
                mpps,
                gbits: mpps * f64::from(size) * 8.0 / 1e3,
                /// Median share of the time in which the I/O core was busy; none of the others.
                busy: all_busy.map(median),
                /// Frames lost between ends that lose none themselves, over all rounds.
                lost: of.iter().map(|it| it.lost).sum::<u64>(),
                modes: Modes::of(of, |it| (it.mode, it.mpps)),
            });
        }
    }
    let note = format!("one way, {}; busy: the I/O core", args.repeat);
    Results::new("matrix", &note).with("rows", &rows)?.print(args.json)
}

/// Every pair of ours, and the other switches that can join it.
fn cases(args: &Args) -> Vec<(Candidate, [Kind; 2])> {
    let asked = |peer: Peer| args.peers.as_ref().is_none_or(|peers| peers.contains(&peer));
    let mut cases = Vec::new();
    for &from in &args.kinds {
        for &to in &args.kinds {
            cases.push((("sidecore", Who::Switch), [from, to]));
            if asked(Peer::Ovs) && [from, to].iter().all(|kind| matches!(kind, Kind::VhostUser | Kind::Tap)) {
                cases.push((("ovs-normal", Who::Ovs(Flows::Normal)), [from, to]));
            }
        }
    }
    // Whatever the port of ours is, the bridge's is one end of a veth pair.
    if asked(Peer::Bridge) && args.kinds.iter().any(|kind| kind.is_host()) {
        cases.push((("bridge", Who::Bridge), [Kind::Veth; 2]));
    }
    cases
}

/// Starts a candidate and measures all sizes.
fn measure(args: &Args, who: &Who, pair: [Kind; 2]) -> Result<Vec<Sample>> {
    let setting = Setting { cpus: args.cpus, longest: 1514, page: Page::Small, daemon: None, fifo: false };
    let paced = !pair.into_iter().any(Kind::is_host);
    Net::quiet()?.enter(|| {
        let mut target = Target::between(who, pair, None, setting)?;
        target.play(|target| args.sizes.iter().map(|&size| one(args, target, paced, size.into())).collect())
    })
}

/// Connects both ends, makes their addresses known, and measures.
fn one(args: &Args, target: &Target<'_>, paced: bool, size: usize) -> Result<Sample> {
    let [mut from, mut to] = target.sides(size)?;
    let time = args.repeat.window;
    // Others keep no account, or one of another kind.
    let cycles = || if target.is_ours() { target.cycles() } else { Ok(None) };
    // Until the switch knows the receiver and its frames come: links and ports take their time to come up.
    let first = to.received()?;
    until("a frame arrives", START, Duration::from_millis(1), || {
        to.send()?;
        from.receive()?;
        from.send()?;
        to.receive()?;
        Ok((to.received()? != first).then_some(()))
    })?;
    let distance = Distance::before(&target.cpus());
    push(&mut from, &mut to, paced, time / 2)?;
    let (before, lost) = (to.received()?, to.lost_and_wrong().0);
    let before_ns = cycles()?;
    let start = Instant::now();
    push(&mut from, &mut to, paced, time)?;
    let seconds = start.elapsed().as_secs_f64();
    let (after, mode) = (to.received()?, distance.after());
    let busy = cycles()?.zip(before_ns).map(|(now, then)| now.since(then).share());
    let (all_lost, wrong) = to.lost_and_wrong();
    if paced && wrong > 0 {
        return Err(format!("{wrong} frames came out of order or had changed"));
    }
    let lost = if paced { all_lost - lost } else { 0 };
    Ok(Sample { mpps: (after - before) as f64 / seconds / 1e6, busy, lost, mode })
}

/// Fills one end and empties the other for as long as `time`; if `paced`, with no more than [`WINDOW`] frames
/// under way.
fn push(from: &mut Side, to: &mut Side, paced: bool, time: Duration) -> Result<()> {
    let came = || {
        to.receive()?;
        Ok(to.gone())
    };
    from.run(if paced { WINDOW } else { u64::MAX }, time, came).map(drop)
}
