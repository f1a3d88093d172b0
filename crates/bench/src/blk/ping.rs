//! A guest that waits for answers, beside a disk that streams, on one I/O core: what the disk does to the
//! guest's latency.
//!
//! The guest has one request of 64 bytes under way to the other end of a wire, where it is held for 20 µs, as
//! a network and a remote host would hold it. The disk's guest reads 128 KiB one after the other, eight at a
//! time. One thread plays all of them, and looks at the one that waits between any two turns of the other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use sidecore_driver::net::NetDriver;
use sidecore_driver::session::Config;

use super::image::{Images, Medium};
use super::player::{Part, Players, Work};
use super::EIGHT;
use crate::common::{on, text, Common, Result};
use crate::distance::{Distance, Mode};
use crate::modes::Modes;
use crate::ours::Switch;
use crate::peers::Scratch;
use crate::runner::figures;

/// The other end holds a request for so long.
const REMOTE: Duration = Duration::from_micros(20);
/// An answer that takes as long is lost, and the request is sent again.
const LOST: Duration = Duration::from_millis(100);
/// Longest time without any.
const STUCK: Duration = Duration::from_secs(10);
/// A frame: destination, source, a type for experiments.
const FRAME: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
const LEN: usize = 64;

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
    let scratch = Scratch::new("sc-ping").map_err(text)?;
    let [disk, guest, peer] = ["d", "g", "n"].map(|name| scratch.file(name));
    let specs = [
        format!("blk:{},file={}", disk.display(), images.ours(medium, 0)?),
        format!("vhost-user:{},wire=w,queues=1", guest.display()),
        format!("vhost-user:{},wire=w,queues=1", peer.display()),
    ];
    let switch = Switch::start_with(core, &scratch, &specs, &[]).map_err(text)?;
    // On a thread of its own: this one starts processes, which go wherever they like.
    let seen = on(common.load_core, || {
        let mut ping = Ping::connect(&guest, &peer)?;
        let part = Part { work: Work::SequentialRead, depth: EIGHT, rate: 0.0 };
        let mut players = Players::connect(&[disk], part, images.size())?;
        let (probe, window) = (|| Distance::before(&[common.load_core, core]), common.repeat.window);
        let distance = probe();
        ping.play(None, window / 2)?;
        let ([p50_alone_us, p99_alone_us], _) = ping.play(None, window)?;
        let (mode_alone, distance) = (distance.after(), probe());
        ping.play(Some(&mut players), window / 2)?;
        let ([p50_us, p99_us], answers) = ping.play(Some(&mut players), window)?;
        players.finish()?;
        let bytes = answers * Work::SequentialRead.bytes() as u64;
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
    guest: NetDriver,
    peer: NetDriver,
    /// When the request under way was sent.
    sent: Option<Instant>,
    /// Until when it is held.
    held: Option<Instant>,
}

impl Ping {
    fn connect(guest: &PathBuf, peer: &PathBuf) -> Result<Ping> {
        let connect = |path: &PathBuf| crate::common::guest(path, Config::default());
        Ok(Ping { guest: connect(guest)?, peer: connect(peer)?, sent: None, held: None })
    }

    /// Plays for so long, beside `players` if there are any: median and 99th percentile in µs, and the
    /// players' answers.
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
