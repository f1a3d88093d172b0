//! `sidecore bench move`: a flow of numbered frames whose queue moves between two I/O cores, and what it
//! notices.
//!
//! One thread sends and receives the flow. It looks at the number of each frame, and at the longest time
//! without one, for each move of its own and for as many spells without any, which is what the machine itself
//! does. Another thread moves the queue, or adds a core, has it serve the queue and takes it away again. In
//! the end all frames that the ring took must have arrived, each behind the one before.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sidecore_engine::core::Tuning;
use sidecore_engine::graph::{CoreOptions, Graph};

use super::cores::OURS;
use super::guest::{receive, write};
use super::stage::Stage;
use crate::prelude::*;

/// `bench move`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Moves of the queue in each round.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub moves: u32,
    /// Times that a core is added and removed in each round.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub changes: u32,
    /// Frames a second.
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    #[command(flatten)]
    pub common: Common,
}

/// From one move to the next.
const SPELL: Duration = Duration::from_millis(1);
/// Frames sent at once at most, and bytes of each.
const BURST: usize = 32;
const LEN: usize = 64;
/// After so much silence what has not come is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

named! {
    /// What happens to the flow's queue.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Event {
        /// Nothing.
        None = "nothing",
        /// It moves to the other core.
        Moves = "moves",
        /// A core is added and gets it, and is removed.
        Cores = "cores come and go",
    }
}

/// What the flow noticed.
#[derive(Clone, Debug, Default)]
struct Seen {
    sent: u64,
    received: u64,
    /// Frames that came behind a later one, or twice.
    reordered: u64,
    /// The longest time without a frame in each spell, in µs.
    gaps: Vec<f64>,
    seconds: f64,
}

/// `bench move`.
pub fn run(args: &Args) -> Result<()> {
    let common = args.common.settle()?;
    // Where there is one processor for them, both cores have it.
    let cpus = [0, 1].map(|n| common.io_cores[n % common.io_cores.len()]);
    let samples = by_turns(common.repeat.rounds, &Event::ALL, |round, event| {
        let (seen, mode) = measure(args, &common, cpus, *event)?;
        eprintln!(
            "{round}: {}: {:.2} Mpps, {} of {} frames lost, {} out of order",
            event.name(),
            seen.received as f64 / seen.seconds / 1e6,
            seen.sent.saturating_sub(seen.received),
            seen.sent,
            seen.reordered
        );
        Ok((seen, mode))
    })?;
    let pauses = |of: &[(Seen, Mode)]| Modes::of(of, |(seen, mode)| (*mode, seen.pause(99)));
    let nothing = pauses(&samples[0]);
    let row = |(event, of): (Event, Vec<_>)| {
        let modes =
            if event == Event::None { pauses(&of) } else { pauses(&of).over("ratio_to_nothing", &nothing) };
        let mut seen = Seen::default();
        of.into_iter().for_each(|(it, _)| seen.add(it));
        row(event, &seen, modes)
    };
    let rows: Vec<Row> = Event::ALL.into_iter().zip(samples).map(row).collect();
    // All rows with moves.
    let moved = || rows.iter().filter(|row| row.event != Event::None);
    let summary = fields! {
        lost: moved().map(|row| row.lost).sum::<u64>(),
        reordered: moved().map(|row| row.reordered).sum::<u64>(),
        pause_p99_us: moved().map(|row| row.pause_p99_us).fold(0.0, f64::max),
    };
    let note = format!(
        "one flow of {:.1} Mpps between two I/O cores, {} rounds",
        f64::from(args.rate) / 1e6,
        common.repeat.rounds
    );
    Results::new("move", &note)
        .with("one_processor", &(cpus[0] == cpus[1]))?
        .with("rows", &rows)?
        .with("summary", &summary)?
        .give(&common.output, || draw(&rows))
}

/// One round: a new stage, and a flow to which `event` happens.
fn measure(args: &Args, common: &Common, cpus: [usize; 2], event: Event) -> Result<(Seen, Mode)> {
    let moves = if common.quick { 20 } else { args.moves };
    let times = if event == Event::Cores { args.changes.min(moves) } else { moves };
    // A core that is left must not poll, or it would keep the other one from a processor that they share.
    let tuning = Tuning { least_cores: 1, balance: false, ..Tuning::default() };
    let options = CoreOptions { cpus: cpus.to_vec(), tuning, ..CoreOptions::default() };
    let stage = Stage::open(&options, OURS, 1, None)?;
    let owner = stage.guest(0).id.0;
    // How many of them have begun, whether all are over, and whether the flow is.
    let (spell, over, ended) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let mover = Mover { graph: stage.graph(), owner, ended: &ended };
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            let moved = mover.run(event, times, &spell);
            over.store(true, Ordering::Release);
            moved
        });
        let seen =
            stage.drive(common.load_core, |mut guests, mut peers, cores| match (guests.pop(), peers.pop()) {
                (Some(guest), Some(peer)) => {
                    let distance = cores.distance();
                    let seen = Flow::new(guest, peer, args.rate).run(&spell, &over)?;
                    Ok((seen, distance.after()))
                }
                _ => Err("there is no pair".to_owned()),
            });
        ended.store(true, Ordering::Release);
        let moved = moves.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        seen.and_then(|seen| moved.map(|()| seen))
    })
}

/// Has things happen to the queue.
struct Mover<'a> {
    graph: &'a Graph,
    owner: u16,
    /// There is no flow any more; it says itself why.
    ended: &'a AtomicBool,
}

impl Mover<'_> {
    fn run(&self, event: Event, times: u32, spell: &AtomicU32) -> Result<()> {
        let flows = || spell.load(Ordering::Acquire) > 0 || self.ended.load(Ordering::Acquire);
        until("frames arrive", START, SPELL, || Ok(flows().then_some(())))?;
        let (id, mut core) = self.place()?;
        if event == Event::Moves {
            self.graph.set_active(2);
        }
        for _ in 0..times {
            if self.ended.load(Ordering::Acquire) {
                return Ok(());
            }
            spell.fetch_add(1, Ordering::AcqRel);
            match event {
                Event::None => {}
                Event::Moves => {
                    core = 1 - core;
                    self.send(id, core)?;
                }
                Event::Cores => {
                    self.graph.set_active(2);
                    self.send(id, 1)?;
                    std::thread::sleep(SPELL);
                    self.graph.set_active(1);
                    self.leaves(1)?;
                }
            }
            std::thread::sleep(SPELL);
        }
        Ok(())
    }

    /// The queue's task, and the core that has it.
    fn place(&self) -> Result<(u64, usize)> {
        let task = self.graph.tasks().into_iter().find(|task| task.owner == self.owner);
        task.map(|task| (task.id, task.core)).ok_or_else(|| "no I/O core has the queue".to_owned())
    }

    fn send(&self, id: u64, to: usize) -> Result<()> {
        let moved = self.graph.move_task(id, to);
        moved.then_some(()).ok_or_else(|| format!("the queue does not move to I/O core {to}"))
    }

    /// Waits until another core than `core` has the queue: it is told of by the one that takes it.
    fn leaves(&self, core: usize) -> Result<()> {
        let has_left = || Ok((self.place()?.1 != core).then_some(()));
        until("an I/O core that was removed has no queue", START, SPELL / 10, has_left)
    }
}

/// The flow's two ends.
struct Flow {
    guest: NetDriver,
    peer: NetDriver,
    rate: f64,
    /// The next number that is due.
    next: u64,
    seen: Seen,
}

impl Flow {
    fn new(guest: NetDriver, peer: NetDriver, rate: u32) -> Flow {
        Flow { guest, peer, rate: rate.into(), next: 0, seen: Seen::default() }
    }

    /// Sends and receives until `over`, and then until all has arrived. Says by `spell` that frames arrive;
    /// its later changes begin a new gap.
    fn run(mut self, spell: &AtomicU32, over: &AtomicBool) -> Result<Seen> {
        let start = Instant::now();
        let (mut now, mut heard, mut credit) = (start, start, 0.0f64);
        let (mut longest, mut number) = (Duration::ZERO, 0);
        while !over.load(Ordering::Acquire) {
            let before = std::mem::replace(&mut now, Instant::now());
            credit = (credit + self.rate * (now - before).as_secs_f64()).min(BURST as f64);
            credit -= self.send(credit)? as f64;
            if self.receive()? > 0 {
                longest = longest.max(now - heard);
                heard = now;
                if number == 0 {
                    // The first ones: from here on it counts.
                    spell.store(1, Ordering::Release);
                    (number, longest) = (1, Duration::ZERO);
                }
            }
            let current = spell.load(Ordering::Relaxed);
            if current != number {
                // The gap that began before belongs to what was.
                if number > 1 {
                    self.seen.gaps.push(longest.as_secs_f64() * 1e6);
                }
                (number, longest) = (current, Duration::ZERO);
            }
        }
        if number > 1 {
            self.seen.gaps.push(longest.max(now - heard).as_secs_f64() * 1e6);
        }
        self.seen.seconds = start.elapsed().as_secs_f64();
        let mut heard = Instant::now();
        while self.seen.received < self.seen.sent && heard.elapsed() < LOST_AFTER {
            if self.receive()? > 0 {
                heard = Instant::now();
            }
        }
        Ok(self.seen)
    }

    #[inline]
    fn send(&mut self, credit: f64) -> Result<usize> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a burst at most")]
        let most = credit.max(0.0) as usize;
        if most == 0 {
            return Ok(0);
        }
        let mut number = self.seen.sent;
        let put = |_, bytes: &mut [u8]| {
            number += 1;
            write(bytes, LEN, [0, number - 1])
        };
        let gone = self.guest.send_with(0, most, put).map_err(text)?;
        self.seen.sent = number;
        Ok(gone)
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let (next, seen) = (&mut self.next, &mut self.seen);
        let came = receive(&mut self.peer, |[_, number], _| {
            if number < *next {
                seen.reordered += 1;
            } else {
                *next = number + 1;
            }
        })?;
        seen.received += came;
        Ok(came)
    }
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.sent += other.sent;
        self.received += other.received;
        self.reordered += other.reordered;
        self.seconds += other.seconds;
        self.gaps.extend(other.gaps);
    }

    /// Microseconds below which so many of each hundred pauses are.
    fn pause(&self, percent: usize) -> f64 {
        percentile(self.gaps.iter().copied(), percent)
    }
}

row! {
    fn row(event: Event, seen: &Seen, modes: Modes) -> Row {}

    /// A row of the table: of all rounds.
    #[derive(Deserialize)]
    pub struct Row {
        event: Event = event,
        spells: usize = seen.gaps.len(),
        mpps: f64 = seen.received as f64 / seen.seconds / 1e6,
        sent: u64 = seen.sent,
        lost: u64 = seen.sent.saturating_sub(seen.received),
        reordered: u64 = seen.reordered,
        pause_p50_us: f64 = seen.pause(50),
        pause_p99_us: f64 = seen.pause(99),
        pause_max_us: f64 = seen.pause(100),
        /// The 99th percentile of each round in µs: the load's processor and those of both I/O cores.
        #[serde(skip_deserializing)]
        modes: Modes = modes,
    }
}

/// Pauses by rank.
pub fn draw(rows: &[Row]) -> String {
    let of_event = |row: &Row| Bars {
        name: row.event.name().to_owned(),
        values: vec![row.pause_p50_us, row.pause_p99_us, row.pause_max_us],
    };
    bars(
        "The longest time without a frame, move by move",
        "sidecore bench move --svg FILE; nothing: spells of the same length in which the queue stays where it is",
        "of all moves",
        &["half are shorter", "99 of 100 are shorter", "the longest"].map(str::to_owned),
        Axis::log("pause in µs"),
        &rows.iter().map(of_event).collect::<Vec<_>>(),
    )
}
