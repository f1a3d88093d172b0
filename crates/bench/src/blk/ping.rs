//! A guest that waits for answers, beside a disk that streams, on one I/O core: what the disk does to the guest's latency.
//!
//! The guest has one request of 64 bytes under way to the other end of a wire, where it is held for 20 µs, as a network and a
//! remote host would hold it. The disk's guest reads 128 KiB one after the other, eight at a time. One thread plays all of them,
//! and looks at the one that waits between any two turns of the other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use sidecore_driver::load::pin;
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::Config;
use sidecore_driver::Frontend;

use super::image::{Images, Medium};
use super::player::{Part, Players, Work};
use super::EIGHT;
use crate::common::{middle, text, Common, Result};
use crate::distance::{Distance, Mode};
use crate::modes::Modes;
use crate::ours::{Switch, START};
use crate::peers::Scratch;

/// The other end holds a request for so long.
const REMOTE: Duration = Duration::from_micros(20);
/// An answer that takes as long is lost, and the request is sent again.
const LOST: Duration = Duration::from_millis(100);
/// Longest time without any.
const STUCK: Duration = Duration::from_secs(10);
/// A frame: destination, source, a type for experiments.
const FRAME: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
const LEN: usize = 64;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Median and 99th percentile in µs, alone and beside the disk.
    alone: [f64; 2],
    beside: [f64; 2],
    /// Bytes a second of the disk.
    rate: f64,
    /// Alone and beside the disk.
    modes: [Mode; 2],
}

/// Medians.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub medium: Medium,
    p50_alone_us: f64,
    p99_alone_us: f64,
    p50_us: f64,
    p99_us: f64,
    /// The median of the rounds' ratios.
    pub p99_vs_alone: f64,
    disk_mb_per_second: f64,
    /// The 99th percentile in µs beside the disk.
    pub modes: Modes,
}

impl Row {
    /// Of the samples of a medium.
    pub fn new(medium: Medium, samples: &[Sample]) -> Row {
        let by_mode =
            |part: usize, value: fn(&Sample) -> f64| Modes::of(samples, |s| (s.modes[part], value(s)));
        Row {
            modes: by_mode(1, |s| s.beside[1]).over("ratio_to_alone", &by_mode(0, |s| s.alone[1])),
            medium,
            p50_alone_us: middle(samples, |s| s.alone[0]),
            p99_alone_us: middle(samples, |s| s.alone[1]),
            p50_us: middle(samples, |s| s.beside[0]),
            p99_us: middle(samples, |s| s.beside[1]),
            p99_vs_alone: middle(samples, |s| s.beside[1] / s.alone[1]),
            disk_mb_per_second: middle(samples, |s| s.rate / 1e6),
        }
    }
}

/// Measures once with a disk on `medium`.
pub fn measure(common: &Common, core: usize, images: &Images, medium: Medium) -> Result<Sample> {
    let scratch = Scratch::new("sc-ping").map_err(text)?;
    let [disk, guest, peer] = ["d", "g", "n"].map(|name| scratch.file(name));
    let specs = [
        format!("blk:{},file={}", disk.display(), images.ours(medium, 0)?),
        format!("vhost-user:{},wire=w,queues=1", guest.display()),
        format!("vhost-user:{},wire=w,queues=1", peer.display()),
    ];
    let switch = Switch::start_with(core, &scratch, &specs, &[]).map_err(text)?;
    // On a thread of its own: this one starts processes, which go wherever they like.
    let seen = std::thread::scope(|scope| {
        let load = || -> Result<Sample> {
            pin(common.load_core).map_err(text)?;
            let mut ping = Ping::connect(&guest, &peer)?;
            let part = Part { work: Work::SequentialRead, depth: EIGHT, rate: 0.0 };
            let mut players = Players::connect(&[disk], part, images.size())?;
            let probe = || Distance::before(&[common.load_core, core]);
            let distance = probe();
            ping.play(None, common.repeat.window / 2)?;
            let (alone, _) = ping.play(None, common.repeat.window)?;
            let (mode_alone, distance) = (distance.after(), probe());
            ping.play(Some(&mut players), common.repeat.window / 2)?;
            let (beside, answers) = ping.play(Some(&mut players), common.repeat.window)?;
            players.finish()?;
            let modes = [mode_alone, distance.after()];
            let rate =
                (answers * Work::SequentialRead.bytes() as u64) as f64 / common.repeat.window.as_secs_f64();
            Ok(Sample { alone, beside, rate, modes })
        };
        scope.spawn(load).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    seen.map_err(|e| format!("{e}\n{}", switch.process.output()))
}

/// The guest that waits, and the other end of its wire.
struct Ping {
    guest: NetDriver,
    peer: NetDriver,
    /// When the request under way was sent.
    sent: Option<Instant>,
    /// Until when it is held.
    held: Option<Instant>,
}

impl Ping {
    fn connect(guest: &PathBuf, peer: &PathBuf) -> Result<Ping> {
        let connect = |path: &PathBuf| {
            NetDriver::start(Frontend::connect(path, START).map_err(text)?, Config::default()).map_err(text)
        };
        Ok(Ping { guest: connect(guest)?, peer: connect(peer)?, sent: None, held: None })
    }

    /// Plays for so long, beside `players` if there are any: median and 99th percentile in µs, and the players' answers.
    fn play(&mut self, mut players: Option<&mut Players>, window: Duration) -> Result<([f64; 2], u64)> {
        let mut latency = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).map_err(text)?;
        let (mut answers, start) = (0, Instant::now());
        while start.elapsed() < window || latency.is_empty() {
            if start.elapsed() > window + STUCK {
                return Err(format!("a guest that waits has no answer for {STUCK:?}"));
            }
            self.turn(&mut latency)?;
            if let Some(players) = &mut players {
                answers += players.turn()?;
            }
        }
        Ok(([50.0, 99.0].map(|percent| latency.value_at_percentile(percent) as f64 / 1e3), answers))
    }

    fn turn(&mut self, latency: &mut Histogram<u64>) -> Result<()> {
        let now = Instant::now();
        if let Some(sent) = self.sent {
            let took = now.saturating_duration_since(sent);
            if receives(&mut self.guest)? || took > LOST {
                latency.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                self.sent = None;
            }
        }
        if self.sent.is_none() && sends(&mut self.guest)? {
            self.sent = Some(now);
        }
        if receives(&mut self.peer)? {
            self.held = Some(now + REMOTE);
        }
        if self.held.is_some_and(|until| until <= now) && sends(&mut self.peer)? {
            self.held = None;
        }
        Ok(())
    }
}

/// Sends one frame, if there is room.
fn sends(driver: &mut NetDriver) -> Result<bool> {
    let put = |_, bytes: &mut [u8]| {
        bytes[..FRAME.len()].copy_from_slice(&FRAME);
        LEN
    };
    Ok(driver.send_with(0, 1, put).map_err(text)? == 1)
}

/// Takes frames of ours, if any have come.
fn receives(driver: &mut NetDriver) -> Result<bool> {
    let mut ours = false;
    driver.receive(0, |_, bytes| ours |= bytes.len() == LEN).map_err(text)?;
    Ok(ours)
}
