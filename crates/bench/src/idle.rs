//! `sidecore bench idle`: what silent ports cost, and how soon one that speaks is heard.
//!
//! Theory of operation. Each round starts a daemon with one pair of ports, and one with many silent ports
//! beside the pair, on one switch and one I/O core. On both the pair talks as fast as it can; the cost of a
//! frame among silent ports against its cost alone is what silence costs the others. Then all are silent, and
//! the processor time of the daemon is what silence costs by itself.
//!
//! A silent queue is *cold*: the I/O core does not poll it. Its promotion is the time from the kick of a
//! first burst until the burst's first frame is seen at another port. It is measured with the core asleep, by
//! turns with a bare thread that sleeps in `epoll_wait` on the same processor: what the machine itself takes.
//! And it is measured with the core at work for the pair: there nothing has to be woken, and what counts is
//! how often the core looks for events. Silent ports take turns with their bursts, so that each has been cold
//! again before its next one; the daemon's own count of wake-ups says whether they were.

use serde_json::Value;
use sidecore_driver::load::LoadConfig;
use sidecore_driver::session::Config;

use super::many::Stage;
use super::wake::Sleeper;
use crate::prelude::*;

/// `bench idle`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Connected, silent ports beside the pair that talks.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub ports: u16,
    /// Bursts to a core that sleeps, and to one at work, in each round.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    pub bursts: u16,
    #[command(flatten)]
    pub repeat: Repeat<1000>,
    /// A short look: one round with few ports. Its figures mean nothing.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub cpus: Processors,
    #[command(flatten)]
    pub output: Output,
}

/// Frames that a silent port sends at once, and that the pair does.
const BURST: usize = 32;
/// A port is silent for so long before its next burst: longer than a core polls a silent queue
/// (docs/scheduling.md).
const SILENT: Duration = Duration::from_millis(30);
/// From one burst to the next, at least: the core sleeps by then if all are silent.
const EVERY: Duration = Duration::from_millis(2);
/// Bytes of each frame.
const LEN: usize = 64;

/// What one round measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Nanoseconds of the I/O core for each frame of the pair, alone and among silent ports.
    ns_alone: f64,
    ns_among: f64,
    ratio: f64,
    /// Share of a processor that the daemon used while all were silent.
    share: f64,
    /// Microseconds from the kick of a burst until its first frame was seen, in their order: the core slept,
    /// or was at work.
    asleep_us: Vec<f64>,
    at_work_us: Vec<f64>,
    /// Microseconds until a thread ran that slept in `epoll_wait`, by turns with `asleep_us`.
    bare_thread_us: Vec<f64>,
    /// How many of the bursts to a core at work woke a queue that was cold.
    woken: u64,
    /// The distances while frames of the pair were counted, alone and among silent ports, and at the bursts
    /// to a core at work.
    #[serde(skip)]
    modes: Option<[Mode; 3]>,
}

/// Figures of rounds by the distance of the two processors; of bursts to a core at work a round's median.
fn by_mode(rounds: &[Sample]) -> impl Serialize {
    let of = |part: usize, value: fn(&Sample) -> f64| {
        Modes::of(rounds, |round| (round.modes.map_or(Mode::Unknown, |modes| modes[part]), value(round)))
    };
    let ns_alone = of(0, |round| round.ns_alone);
    let ns_among = of(1, |round| round.ns_among).over("ratio_to_alone", &ns_alone);
    fields! { ns_alone, ns_among, at_work_us: of(2, |round| median(round.at_work_us.iter().copied())) }
}

/// `bench idle`.
pub fn run(args: &Args) -> Result<()> {
    args.cpus.differ()?;
    let mut args = args.clone();
    if args.quick {
        (args.repeat.rounds, args.ports, args.bursts, args.repeat.window) =
            (1, 8, 8, Duration::from_millis(50));
    }
    let mut rounds = Vec::new();
    for number in Round::all(args.repeat.rounds) {
        let it = measure(&args)?;
        let (share, first) = (100.0 * it.share, median(it.at_work_us.iter().copied()));
        eprintln!(
            "{number}: {} silent ports: {share:.2} % of a processor, a frame {:.1} ns ({:.1} alone), first frame at work {first:.0} µs",
            args.ports, it.ns_among, it.ns_alone
        );
        rounds.push(it);
    }
    let all = &rounds;
    let [at_work, asleep, bare] =
        LATENCIES.map(|(_, value)| move |percent| percentile(all.iter().flat_map(value).copied(), percent));
    // Medians of rounds; percentiles of all bursts.
    let summary = fields! {
        idle_share: middle(&rounds, |it| it.share),
        frame_cost_ratio: middle(&rounds, |it| it.ratio),
        at_work_p50_us: at_work(50),
        at_work_p99_us: at_work(99),
        asleep_p50_us: asleep(50),
        asleep_p99_us: asleep(99),
        bare_thread_p50_us: bare(50),
        bare_thread_p99_us: bare(99),
    };
    let note = format!("connected, silent ports beside a pair that talks, {}", args.repeat);
    Results::new("idle", &note)
        .with("ports", &args.ports)?
        .with("rows", &rounds)?
        .with("modes", &by_mode(&rounds))?
        .with("summary", &summary)?
        .give(&args.output, || draw(&rounds))
}

/// µs of a round's bursts, or of a bare thread.
type Latency = fn(&Sample) -> &Vec<f64>;

const LATENCIES: [(&str, Latency); 3] = [
    ("core at work", |round| &round.at_work_us),
    ("core asleep", |round| &round.asleep_us),
    ("bare thread", |round| &round.bare_thread_us),
];

/// How soon the first frame of a burst is seen, by percentile of the bursts.
pub fn draw(rounds: &[Sample]) -> String {
    let line = |(name, value): (&str, Latency)| {
        let at = |percent| (percent as f64, percentile(rounds.iter().flat_map(value).copied(), percent));
        Line::new(name.to_owned(), (0..20).map(|n| 5 * n).chain([99]).map(at).collect())
    };
    chart(
        "How soon a cold queue is served: first frame of a burst",
        "sidecore bench idle --svg FILE; one I/O core; bare thread: one that sleeps in epoll_wait on the same processor",
        Axis::linear("percentile of bursts"),
        Axis::log("from the kick to the first frame, µs"),
        &LATENCIES.map(line),
    )
}

fn measure(args: &Args) -> Result<Sample> {
    let config =
        LoadConfig { core: args.cpus.load_core, window: args.repeat.window, ..LoadConfig::default() };
    // One daemon at a time: two would share the I/O core.
    let alone = Stage::start(args.cpus.io_core, 2)?.measure(config)?;
    let mut stage = Stage::start(args.cpus.io_core, args.ports + 2)?;
    let among = stage.measure(config)?;
    let mut scene = Scene::new(&mut stage)?;
    let share = scene.silence(args.repeat.window);
    // A thread of its own, because pinning must not pass to the daemon of the next round.
    apart(move || {
        // On the daemon's own processor, this thread would keep it from running.
        pin(args.cpus.load_core).map_err(text)?;
        let (asleep_us, bare_thread_us) = scene.asleep(args)?;
        let distance = Distance::before(&args.cpus.pair());
        let (at_work_us, woken) = scene.at_work(args)?;
        let modes = Some([alone.mode, among.mode, distance.after()]);
        let (ns_alone, ns_among, ratio) = (alone.ns, among.ns, among.ns / alone.ns);
        Ok(Sample { ns_alone, ns_among, ratio, share, asleep_us, at_work_us, bare_thread_us, woken, modes })
    })
}

/// The pair, and the ports that are silent but for a burst now and then.
struct Scene<'a> {
    stage: &'a mut Stage,
    pair: [NetDriver; 2],
    /// Whose turn it is to send a burst; the one behind it receives it.
    next: usize,
}

impl Scene<'_> {
    fn new(stage: &mut Stage) -> Result<Scene<'_>> {
        let pair = [guest(&stage.paths[0], Config::default())?, guest(&stage.paths[1], Config::default())?];
        let mut scene = Scene { stage, pair, next: 0 };
        // All addresses are learned, so that nothing that counts is flooded.
        let [a, b] = &mut scene.pair;
        send(b, 1, 0, 1)?;
        received(a, 1)?;
        for number in 0..scene.stage.silent.len() {
            send(&mut scene.stage.silent[number], station(number), 0, 1)?;
            received(a, 1)?;
        }
        send(a, 0, 1, 1)?;
        received(b, 1)?;
        std::thread::sleep(SILENT);
        Ok(scene)
    }

    /// The share of a processor that the daemon uses while all are silent.
    fn silence(&self, window: Duration) -> f64 {
        let (before, start) = (self.stage.processor(), Instant::now());
        std::thread::sleep(window);
        (self.stage.processor() - before).as_secs_f64() / start.elapsed().as_secs_f64()
    }

    /// From one burst to the next: each port has been silent for long enough.
    fn spacing(&self) -> Duration {
        let ports = u32::try_from(self.stage.silent.len()).unwrap_or(u32::MAX);
        EVERY.max(SILENT / ports)
    }

    /// The next silent port sends a burst; which one receives it, and since when it is on its way.
    fn burst(&mut self) -> Result<(usize, Instant)> {
        let ports = self.stage.silent.len();
        let (from, to) = (self.next, (self.next + 1) % ports);
        self.next = to;
        let start = Instant::now();
        send(&mut self.stage.silent[from], station(from), station(to), BURST)?;
        Ok((to, start))
    }

    /// Bursts to a core that sleeps, by turns with a bare thread: µs of either.
    fn asleep(&mut self, args: &Args) -> Result<(Vec<f64>, Vec<f64>)> {
        let mut sleeper = Sleeper::start(args.cpus.io_core)?;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..args.bursts {
            std::thread::sleep(self.spacing());
            let (to, start) = self.burst()?;
            let first = received(&mut self.stage.silent[to], BURST)?;
            ours.push(us(first - start));
            std::thread::sleep(EVERY);
            bare.push(us(sleeper.wake(START)?));
        }
        Ok((ours, bare))
    }

    /// Bursts while the pair keeps the core at work: µs, and how many of them found their queue cold.
    fn at_work(&mut self, args: &Args) -> Result<(Vec<f64>, u64)> {
        let before = self.woken()?;
        let spacing = self.spacing();
        let mut latencies = Vec::new();
        let mut last = Instant::now();
        for _ in 0..args.bursts {
            while last.elapsed() < spacing {
                self.talk()?;
            }
            let (to, start) = self.burst()?;
            let (mut came, mut first) = (0, None);
            while came < BURST {
                let now = take(&mut self.stage.silent[to])?;
                if now > 0 {
                    first.get_or_insert_with(Instant::now);
                }
                came += now;
                self.talk()?;
                if start.elapsed() > START {
                    return Err("a burst was lost beside the pair that talks".to_owned());
                }
            }
            latencies.extend(first.map(|first| us(first - start)));
            last = Instant::now();
        }
        Ok((latencies, self.woken()? - before))
    }

    /// The pair has a turn: it keeps one ring full.
    fn talk(&mut self) -> Result<()> {
        let [a, b] = &mut self.pair;
        send(a, 0, 1, BURST)?;
        take(b)?;
        Ok(())
    }

    /// How often events woke the core for a queue of the silent ports.
    fn woken(&self) -> Result<u64> {
        let answer = self.stage.switch.daemon.show("queues")?;
        let queues = answer["queues"].as_array().ok_or("show queues --json has no queues")?;
        let silent = |queue: &&Value| queue["port"] != "p0" && queue["port"] != "p1";
        Ok(queues.iter().filter(silent).filter_map(|queue| queue["served"]["wakes"].as_u64()).sum())
    }
}

/// The number of a silent port's station: those of the pair are 0 and 1.
fn station(silent: usize) -> usize {
    silent + 2
}

/// Sends as many frames from one station to another as find room, `most` at most.
fn send(driver: &mut NetDriver, from: usize, to: usize, most: usize) -> Result<usize> {
    let mac = |station: usize| {
        let [.., high, low] = station.to_be_bytes();
        [2, 0x1d, 0, 0, high, low]
    };
    let sent = driver.send_with(0, most, |_, bytes| {
        bytes[..6].copy_from_slice(&mac(to));
        bytes[6..12].copy_from_slice(&mac(from));
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        LEN
    });
    sent.map_err(text)
}

/// Takes what has arrived.
fn take(driver: &mut NetDriver) -> Result<usize> {
    driver.receive(0, |_, _| {}).map_err(text)
}

/// Waits for so many frames; when the first one was seen.
fn received(driver: &mut NetDriver, count: usize) -> Result<Instant> {
    let (mut came, mut first) = (0, None);
    until("all frames of a burst arrive", START, Duration::ZERO, || {
        came += take(driver)?;
        first = first.or((came > 0).then(Instant::now));
        Ok(first.filter(|_| came >= count))
    })
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
