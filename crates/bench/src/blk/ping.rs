//! A guest that waits for answers, beside a disk that streams, on one I/O core: what the disk does to the
//! guest's latency.
//!
//! The guest has one request of 64 bytes under way to the other end of a wire, where it is held for 20 µs, as
//! a network and a remote host would hold it. The disk's guest reads 128 KiB one after the other, eight at a
//! time. One thread plays all of them, and looks at the one that waits between any two turns of the other.

use std::path::Path;

use sidecore_driver::session::Config;

use super::image::{Images, Medium};
use super::player::{Part, Players, Work as DiskWork};
use super::EIGHT;
use crate::prelude::*;
use crate::sched::guest::{Pair, Work};

/// The first answer that takes as long is lost.
const LOST: Duration = Duration::from_millis(100);
/// Longest time without any.
const STUCK: Duration = Duration::from_secs(10);

figures! {
    /// One measurement, or medians of them: alone and beside the disk.
    pub struct Figures {
        p50_alone_us, p99_alone_us, p50_us, p99_us,
        /// The median of the rounds' ratios.
        p99_vs_alone, disk_mb_per_second,
    }
}

/// With the distances alone and beside the disk.
pub type Sample = (Figures, [Mode; 2]);

/// Medians.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub medium: Medium,
    #[serde(flatten)]
    pub figures: Figures,
    /// The 99th percentile in µs beside the disk.
    modes: Modes,
}

impl Row {
    /// The row of a medium's samples.
    pub fn new(medium: Medium, samples: &[Sample]) -> Row {
        let by_mode =
            |part: usize, value: fn(&Figures) -> f64| Modes::of(samples, |it| (it.1[part], value(&it.0)));
        Row {
            modes: by_mode(1, |it| it.p99_us).over("ratio_to_alone", &by_mode(0, |it| it.p99_alone_us)),
            medium,
            figures: Figures::of(samples.iter().map(|it| &it.0)),
        }
    }
}

/// Measures once with a disk on `medium`.
pub fn measure(common: &Common, core: usize, images: &Images, medium: Medium) -> Result<Sample> {
    let disk = format!("blk:@/d,file={}", images.ours(medium, 0)?);
    let ends = ["g", "n"].map(|name| format!("vhost-user:@/{name},wire=w,queues=1"));
    let switch = Switch::start(core, std::iter::once(disk).chain(ends), &[])?;
    let [disk, guest, peer] = ["d", "g", "n"].map(|name| switch.file(name));
    // On a thread of its own: this one starts processes, which go wherever they like.
    let seen = on(common.load_core, || {
        let mut ping = Ping::connect(&guest, &peer)?;
        let part = Part { work: DiskWork::SequentialRead, depth: EIGHT, rate: 0.0 };
        let mut players = Players::connect(&[disk], part, images.size())?;
        let (probe, window) = (|| Distance::before(&[common.load_core, core]), common.repeat.window);
        let distance = probe();
        ping.play(None, window / 2)?;
        let ([p50_alone_us, p99_alone_us], _) = ping.play(None, window)?;
        let (mode_alone, distance) = (distance.after(), probe());
        ping.play(Some(&mut players), window / 2)?;
        let ([p50_us, p99_us], answers) = ping.play(Some(&mut players), window)?;
        players.finish()?;
        let bytes = answers * DiskWork::SequentialRead.bytes() as u64;
        let disk_mb_per_second = bytes as f64 / window.as_secs_f64() / 1e6;
        let p99_vs_alone = p99_us / p99_alone_us;
        let figures =
            Figures { p50_alone_us, p99_alone_us, p50_us, p99_us, p99_vs_alone, disk_mb_per_second };
        Ok((figures, [mode_alone, distance.after()]))
    });
    seen.map_err(|e| format!("{e}\n{}", switch.process.output()))
}

/// The guest that waits, and the other end of its wire.
struct Ping {
    pair: Pair,
    epoch: Instant,
}

impl Ping {
    fn connect(guest: &Path, peer: &Path) -> Result<Ping> {
        let connect = |path: &Path| crate::common::guest(path, Config::default());
        let pair = Pair::new(connect(guest)?, connect(peer)?)?;
        let mut ping = Ping { pair, epoch: Instant::now() };
        // A request may be lost until both carriers are up: then there is another one.
        until("a guest that waits has an answer", STUCK, Duration::ZERO, || {
            ping.pair.set(Work::RequestResponse, ping.now());
            let again = Instant::now() + LOST;
            while ping.pair.done == 0 && Instant::now() < again {
                ping.pair.turn(ping.now())?;
            }
            Ok((ping.pair.done > 0).then_some(()))
        })?;
        Ok(ping)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Plays for so long, beside `players` if there are any: median and 99th percentile in µs, and the
    /// players' answers.
    fn play(&mut self, mut players: Option<&mut Players>, window: Duration) -> Result<([f64; 2], u64)> {
        self.pair.begin()?;
        let (mut answers, start) = (0, Instant::now());
        while start.elapsed() < window || self.pair.done == 0 {
            self.pair.turn(self.now())?;
            if let Some(players) = &mut players {
                answers += players.turn()?;
            }
        }
        let latency = self.pair.end()?.latency;
        Ok(([50.0, 99.0].map(|percent| latency.value_at_percentile(percent) as f64 / 1e3), answers))
    }
}
