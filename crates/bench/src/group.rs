//! `sidecore bench group`: flows that come and go through a group of four, while a member drains, comes back
//! and is killed.
//!
//! Theory of operation. A daemon with ring ports on one I/O core; one thread on another processor is the
//! sender and all members in turns. It knows which member had the last frame of each flow, and its number: so
//! what it counts owes nothing to the daemon's buckets. It sends half of what a wire carries here. What a
//! frame costs with a group of one is measured beside a switch and a wire without it, as busy time of the I/O
//! core, by turns. Commands are given by a thread that is not pinned: a sender that waited for them would
//! make its flows idle.

use std::net::Ipv4Addr;
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};

use sidecore_port::Port;

use super::fib::tables::Random;
use super::lane::{udp, SIZE};
use super::ours::Daemon;
use super::routes::{back_ends::BACK_ENDS, to_back_ends};
use crate::prelude::*;

/// `bench group`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Flows at any time.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub flows: u32,
    /// Routes of a control plane that eight back-ends get by agents; this part needs root and FRR.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub routes: u32,
    /// Alternations.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// A short look: one round with flows that live for a tenth of a second. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub cpus: Processors,
    #[command(flatten)]
    pub output: Output,
}

const MEMBERS: usize = 4;
const SLOTS: u16 = 1024;
/// Frames that a turn sends at most: they fit into any member's ring.
const BATCH: u64 = 256;
/// More flows than these for the second figure of balance.
const MANY: u32 = 100_000;
const GROUP: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];

figures! {
    /// What a round found; in a summary the medians, and of what may never be the most.
    pub struct Found {
        /// The part of a draining member's buckets that it had left after five mean lives.
        drained_in_5_lives,
        /// Milliseconds from a kill until the last of the dead member's flows arrived elsewhere.
        outage_ms,
        /// Flows of the member with the most by the mean.
        balance, balance_100k,
        /// What a frame costs with a group of one by what it costs without.
        stage_cost_switch, stage_cost_wire,
        /// Frames a second, in millions.
        mpps;
        /// Flows that changed their member though it lived and they went on.
        moved_live,
        /// Frames that did not arrive, but for those of the kill; frames of a flow that came after a later
        /// one.
        lost, reordered,
    }
}

/// Where sender and receiver meet.
const JOINTS: [&str; 2] = ["switch=lan", "wire=w"];

/// A daemon, its sender's port and those that receive.
struct Stage {
    from: Port,
    to: Vec<Option<Port>>,
    switch: Switch,
}

impl Stage {
    /// With a group of `members` on `joint`; without a group if there are none.
    fn start(io_core: usize, joint: &str, members: usize) -> Result<Stage> {
        let ring = |n: usize, what: &str| format!("ring:@/r{n},slots={SLOTS},{what}");
        let mut ports = vec![ring(0, joint)];
        let mut more = Vec::new();
        if members == 0 {
            ports.push(ring(1, joint));
        } else {
            ports.extend((1..=members).map(|n| ring(n, &format!("group=g,member=m{n},interface=0"))));
            ports.push(format!("group:g,interface=0,mac=02:00:00:00:00:02,{joint}"));
            more.extend(["--group", "g,force-after=never"]);
        }
        let switch = Switch::start(io_core, &ports, &more)?;
        let attach = |n: usize| Port::attach(&switch.file(format!("r{n}")).to_string_lossy()).map_err(text);
        let from = attach(0)?;
        let to = (1..=members.max(1)).map(|n| attach(n).map(Some)).collect::<Result<Vec<_>>>()?;
        let mut stage = Stage { from, to, switch };
        for number in 0..stage.to.len() {
            stage.introduce(number)?;
        }
        if members > 0 {
            until_active(&stage.switch.daemon)?;
        }
        Ok(stage)
    }

    /// Has a receiver send a frame.
    fn introduce(&mut self, number: usize) -> Result<()> {
        let Some(port) = &mut self.to[number] else { return Ok(()) };
        let mut frame = [0; SIZE];
        frame[..6].copy_from_slice(&SENDER);
        frame[6..12].copy_from_slice(&GROUP);
        port.tx[0].push(&frame);
        port.tx[0].sync().map_err(text)
    }

    /// Nanoseconds of the I/O core for a frame, and frames a second in millions, as fast as possible.
    fn cost(&mut self, time: Duration) -> Result<(f64, f64)> {
        let before = self.switch.spent()?;
        let (start, mut sent) = (Instant::now(), 0u32);
        while start.elapsed() < time {
            for _ in 0..BATCH.min(self.from.tx[0].space() as u64) {
                self.from.tx[0].push(&frame(sent % 1000, 0, 0));
                sent += 1;
            }
            self.from.tx[0].sync().map_err(text)?;
            for port in self.to.iter_mut().flatten() {
                port.rx[0].sync().map_err(text)?;
                port.rx[0].skip(usize::MAX);
            }
        }
        let mpps = f64::from(sent) / start.elapsed().as_secs_f64() / 1e6;
        let spent = self.switch.spent()?.since(before);
        Ok((spent.per_frame(), mpps))
    }
}

/// A datagram of flow `id`: who sends it is all that differs.
fn frame(id: u32, place: u32, number: u32) -> [u8; SIZE] {
    let [a, b, c, d] = id.to_be_bytes();
    let addresses = [[10, a, b, c], [10, 9, 0, 1]].map(Ipv4Addr::from);
    let mut frame = udp([GROUP, SENDER], addresses, [256 + u16::from(d), 9]);
    for (at, word) in [(42, id), (46, place), (50, number)] {
        frame[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    frame
}

/// State and buckets of each member.
type States = Result<Vec<(String, u64)>>;

fn states(daemon: &Daemon) -> States {
    let answer = daemon.show("groups")?;
    let members = answer["groups"][0]["members"].as_array().cloned().unwrap_or_default();
    let state = |it: &serde_json::Value| it["state"].as_str().unwrap_or_default().to_owned();
    Ok(members.iter().map(|it| (state(it), it["buckets"].as_u64().unwrap_or(0))).collect())
}

/// Waits until all members have flows.
///
/// # Errors
/// They do not get any.
pub fn until_active(daemon: &Daemon) -> Result<()> {
    let is_active = |it: &(String, u64)| it.0 == "active" && it.1 > 0;
    let all = || Ok(states(daemon)?.iter().all(is_active).then_some(()));
    until("members of a group are active", START, Duration::ZERO, all)
}

/// A flow of now.
#[derive(Clone, Copy, Default)]
struct Flow {
    id: u32,
    ends: f64,
    sent: u32,
    got: u32,
    /// The member that had its last frame.
    member: Option<usize>,
}

/// All flows, and what was counted of them.
struct Flows {
    flows: Vec<Flow>,
    life: f64,
    ids: u32,
    random: Random,
    next: usize,
    start: Instant,
    rate: f64,
    /// Up to when frames were sent, in seconds.
    due: f64,
    sent: u64,
    got: u64,
    reordered: u64,
    moved: u64,
    /// Flows that may move: those of this member.
    free: Option<usize>,
    /// When the last of those arrived at another one.
    last: f64,
}

impl Flows {
    fn new(flows: u32, life: Duration, rate: f64) -> Flows {
        let mut all = Flows {
            flows: vec![Flow::default(); flows as usize],
            life: life.as_secs_f64(),
            ids: 0,
            random: Random::new(0x9e37_79b9_7f4a_7c15),
            next: 0,
            start: Instant::now(),
            rate,
            due: 0.0,
            sent: 0,
            got: 0,
            reordered: 0,
            moved: 0,
            free: None,
            last: 0.0,
        };
        (0..all.flows.len()).for_each(|place| all.renew(place, 0.0));
        all
    }

    fn renew(&mut self, place: usize, now: f64) {
        // The life's length is exponential.
        let part = ((self.random.next() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        self.ids = self.ids.wrapping_add(1);
        self.flows[place] = Flow { id: self.ids, ends: now - part.ln() * self.life, ..Flow::default() };
    }

    /// Sends what is due, and takes what has come.
    fn turn(&mut self, stage: &mut Stage, sends: bool) -> Result<()> {
        let now = self.start.elapsed().as_secs_f64();
        let due = whole((now - self.due) * self.rate);
        let space = stage.from.tx[0].space() as u64;
        if sends && due >= 32 {
            // What could not be sent in time is not sent late: a burst would be a load of its own.
            self.due = now;
            for _ in 0..due.min(BATCH).min(space) {
                self.next = (self.next + 1) % self.flows.len();
                if self.flows[self.next].ends < now {
                    self.renew(self.next, now);
                }
                let flow = &mut self.flows[self.next];
                flow.sent += 1;
                let place = u32::try_from(self.next).unwrap_or(u32::MAX);
                stage.from.tx[0].push(&frame(flow.id, place, flow.sent));
                self.sent += 1;
            }
        }
        stage.from.tx[0].sync().map_err(text)?;
        for (number, port) in stage.to.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            port.rx[0].sync().map_err(text)?;
            while let Some(received) = port.rx[0].take() {
                self.came(number, &received.bytes(), now);
            }
        }
        Ok(())
    }

    fn came(&mut self, member: usize, bytes: &[u8], now: f64) {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (id, place, number) = (word(42), word(46) as usize, word(50));
        self.got += 1;
        let Some(flow) = self.flows.get_mut(place).filter(|flow| flow.id == id) else { return };
        self.reordered += u64::from(number <= flow.got);
        if let Some(before) = flow.member.filter(|before| *before != member) {
            match self.free == Some(before) {
                true => self.last = now,
                false => self.moved += 1,
            }
        }
        (flow.got, flow.member) = (number, Some(member));
    }

    fn go_on(&mut self, stage: &mut Stage, time: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            self.turn(stage, true)?;
        }
        Ok(())
    }

    /// Goes on until `answer` has come.
    fn until<T>(&mut self, stage: &mut Stage, answer: &Receiver<Result<T>>) -> Result<T> {
        loop {
            self.turn(stage, true)?;
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err("the thread for commands has ended".to_owned()),
            }
        }
    }

    /// Frames that have not come when nothing moves any more.
    fn lost(&mut self, stage: &mut Stage) -> Result<u64> {
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(20) && self.got < self.sent {
            let before = self.got;
            self.turn(stage, false)?;
            if self.got > before {
                quiet = Instant::now();
            }
        }
        Ok(self.sent - self.got)
    }

    /// Flows of the member with the most by the mean.
    fn balance(&self) -> f64 {
        let of = |member: usize| self.flows.iter().filter(|flow| flow.member == Some(member)).count();
        let each: Vec<usize> = (0..MEMBERS).map(of).collect();
        let most = each.iter().copied().max().unwrap_or(0) as f64;
        most * MEMBERS as f64 / each.iter().sum::<usize>().max(1) as f64
    }
}

/// A command for the daemon, and where its answer goes.
type Order = (Vec<&'static str>, Sender<States>);

/// Has the daemon do what `words` say, if any; then the state of its members.
fn order(orders: &Sender<Order>, words: &[&'static str]) -> Result<Receiver<States>> {
    let (done, answer) = channel();
    orders.send((words.to_vec(), done)).map_err(text)?;
    Ok(answer)
}

/// Drain, comeback and kill of members, with flows of this mean life.
fn changes(args: &Args, rate: f64, life: Duration, round: &mut Found) -> Result<()> {
    let mut stage = Stage::start(args.cpus.io_core, JOINTS[0], MEMBERS)?;
    let (orders, ordered) = channel::<Order>();
    let daemon = Daemon { socket: stage.switch.daemon.socket.clone() };
    let commands = std::thread::spawn(move || {
        for (words, done) in ordered {
            let did = if words.is_empty() { Ok(Vec::new()) } else { daemon.command(&words) };
            // A benchmark that has failed does not wait for it.
            let _ = done.send(did.and_then(|_| states(&daemon)));
        }
    });
    pin(args.cpus.load_core).map_err(text)?;
    let stage = &mut stage;
    let mut flows = Flows::new(args.flows, life, rate);
    flows.go_on(stage, life)?;
    round.balance = flows.balance();
    let before = flows.until(stage, &order(&orders, &["drain", "g/m1"])?)?[0].1;
    flows.go_on(stage, 5 * life)?;
    let left = flows.until(stage, &order(&orders, &[])?)?[0].1;
    round.drained_in_5_lives = 1.0 - left as f64 / before.max(1) as f64;
    flows.until(stage, &order(&orders, &["undrain", "g/m1"])?)?;
    flows.go_on(stage, 2 * life)?;
    round.lost = flows.lost(stage)?;
    round.reordered = flows.reordered;
    // Its frames that were under way are lost with it; only its flows may move.
    flows.go_on(stage, life / 10)?;
    let killed = flows.start.elapsed().as_secs_f64();
    (flows.free, flows.last) = (Some(1), killed);
    stage.to[1] = None;
    flows.go_on(stage, life / 2)?;
    round.outage_ms = (flows.last - killed) * 1e3;
    round.moved_live = flows.moved;
    drop(orders);
    commands.join().map_err(|_| "the thread for commands panicked".to_owned())
}

/// How evenly many flows are shared.
fn many(args: &Args, rate: f64, life: Duration) -> Result<f64> {
    let mut stage = Stage::start(args.cpus.io_core, JOINTS[0], MEMBERS)?;
    pin(args.cpus.load_core).map_err(text)?;
    let mut flows = Flows::new(if args.quick { 10_000 } else { MANY }, life * 100, rate);
    flows.go_on(&mut stage, life)?;
    Ok(flows.balance())
}

/// What a frame costs with a group of one by what it costs without, and the rate without.
fn stage_cost(args: &Args, joint: &str, time: Duration) -> Result<(f64, f64)> {
    let mut stages = [Stage::start(args.cpus.io_core, joint, 1)?, Stage::start(args.cpus.io_core, joint, 0)?];
    pin(args.cpus.load_core).map_err(text)?;
    let (mut ratios, mut rate) = (Vec::new(), 0.0f64);
    for _ in 0..3 {
        let [group, plain] = &mut stages;
        let ((with, _), (without, mpps)) = (group.cost(time)?, plain.cost(time)?);
        ratios.push(with / without);
        rate = rate.max(mpps);
    }
    Ok((median(ratios), rate))
}

/// `bench group`.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let (rounds, life, time) = match args.quick {
        true => (1, Duration::from_millis(200), Duration::from_millis(20)),
        false => (args.rounds, Duration::from_secs(1), Duration::from_millis(200)),
    };
    let mut all = Vec::new();
    for number in Round::all(rounds) {
        let mut found = Found::default();
        (found.stage_cost_switch, _) = apart(|| stage_cost(args, JOINTS[0], time))?;
        let (wire, carried) = apart(|| stage_cost(args, JOINTS[1], time))?;
        found.stage_cost_wire = wire;
        found.mpps = carried / 2.0;
        let rate = found.mpps * 1e6;
        apart(|| changes(args, rate, life, &mut found))?;
        found.balance_100k = apart(|| many(args, rate, life))?;
        eprintln!("{number}: {}", serde_json::to_string(&found).map_err(text)?);
        all.push(found);
    }
    let worst = |value: fn(&Found) -> u64| all.iter().map(value).max().unwrap_or(0);
    let of_rounds = Found {
        moved_live: worst(|it| it.moved_live),
        lost: worst(|it| it.lost),
        reordered: worst(|it| it.reordered),
        ..Found::of(all.iter())
    };
    let (changes, stands) =
        if args.quick { (20, Duration::from_millis(100)) } else { (200, Duration::from_secs(10)) };
    let routes = if args.quick { args.routes.min(1000) } else { args.routes };
    let times = apart(|| to_back_ends(routes, changes, stands))?;
    let summary = fields! {
        #[serde(flatten)]
        of_rounds,
        /// Milliseconds from zebra's word of a change until the last of eight kernels has it.
        route_median_ms: times.median_ms,
        route_p99_ms: times.p99_ms,
        /// Seconds until all eight have all routes.
        route_whole_s: times.whole_s,
        /// Milliseconds until one that stood still for ten seconds is consistent again.
        route_resync_ms: times.resync_ms,
    };
    let note = format!(
        "{} flows with a mean life of {life:?} through {MEMBERS} members, half of what a wire carries; {rounds} rounds; {changes} changes of {routes} \
         routes at {} back-ends",
        args.flows,
        BACK_ENDS
    );
    let results = Results::new("group", &note).with("summary", &summary)?.with("rows", &all)?;
    results.give(&args.output, || draw(&all))
}

/// What a group of one costs, by rounds.
pub fn draw(rounds: &[Found]) -> String {
    let line = |name: &str, value: fn(&Found) -> f64| {
        Line::new(name.to_owned(), (1..).map(f64::from).zip(rounds.iter().map(value)).collect())
    };
    chart(
        "Cost of a frame with a group of one, by the cost without",
        "sidecore bench group --svg FILE",
        Axis::linear("round"),
        Axis::linear("ratio"),
        &[line("on a switch", |it| it.stage_cost_switch), line("on a wire", |it| it.stage_cost_wire)],
    )
}
