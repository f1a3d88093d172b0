//! The load: one thread that drives two virtio ports of any vhost-user backend, both ways at once.
//!
//! Made for machines with few cores: the backend under test has one to itself and the load must not be
//! what limits it. So the rings are bound ([`crate::bound`]), indices are written once per burst and read
//! only when something depends on them, and of a received frame one cache line is read. Frames are real
//! (IPv4, UDP, two unicast addresses that a learning switch can learn); each carries a tag with its
//! sequence number, by which loss, reordering and foreign frames are noticed.

mod clock;
mod end;
mod lane;
mod limit;
mod port;

pub use end::{End, TAG_MASK};
pub use lane::{Lane, LaneConfig};
pub use limit::copy_limit;
pub use port::{frame, TAG};

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{sched_setaffinity, CpuSet};
use sidecore_abi::virtio::NET_HDR_LEN;

use self::clock::{ticks, Clock};
use self::port::{Counts, Port};
use crate::error::{Error, Result};
use crate::frontend::Frontend;
use crate::memory::Page;

/// Frames offered at once.
const BURST: u16 = 64;
/// Nothing arrives for so long with the window full: what is missing is lost.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// What to send, and how.
#[derive(Clone, Copy, Debug)]
pub struct LoadConfig {
    /// Core that the load's thread is pinned to.
    pub core: usize,
    /// Bytes of each frame, without frame check sequence: 60 to 1514.
    pub frame: usize,
    /// Bursts of 64 in flight in each direction.
    pub bursts: u16,
    /// Entries of each ring.
    pub entries: u16,
    /// Packed rings.
    pub packed: bool,
    /// IN_ORDER.
    pub in_order: bool,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// Writes a new tag into each frame, as a guest that makes its frames would. Without it a frame's tag
    /// is that of its buffer, and the sender's lines stay in the backend's cache.
    pub touch: bool,
    /// Frames per second in each direction; `None`: as many as go. With a rate, each frame is sent
    /// alone, carries its time, and latency is measured.
    pub rate: Option<f64>,
    /// Pages of the memory.
    pub page: Page,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub window: Duration,
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self {
            core: 0,
            frame: 64,
            bursts: 8,
            entries: 1024,
            packed: false,
            in_order: false,
            mergeable: true,
            touch: true,
            rate: None,
            page: Page::Small,
            warm_up: Duration::from_millis(200),
            window: Duration::from_secs(1),
        }
    }
}

impl LoadConfig {
    /// This load with rings of `entries`, and as much in flight as they can hold beside what is being given
    /// back, but no more than before.
    #[must_use]
    pub fn entries(self, entries: u16) -> Self {
        Self { entries, bursts: (entries / BURST / 2).clamp(1, self.bursts), ..self }
    }
}

/// What was measured in the window, both directions added.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// Seconds.
    pub seconds: f64,
    /// Frames received on A and on B.
    pub received: [u64; 2],
    /// Frames sent on A and on B.
    pub sent: [u64; 2],
    /// Frames that never arrived.
    pub lost: u64,
    /// Frames that came after a later one, or twice.
    pub reordered: u64,
    /// Frames of a wrong length or with a wrong beginning.
    pub corrupt: u64,
    /// Share of the time in which the load's thread had something to do, 0 to 1.
    pub busy: f64,
    /// Busy time of the load's thread per received frame, in nanoseconds.
    pub busy_ns: f64,
    /// One-way latency in nanoseconds, if a rate was given.
    pub latency: Option<Histogram<u64>>,
}

impl LoadReport {
    /// Million frames per second received, both directions added.
    pub fn mpps(&self) -> f64 {
        let frames = self.received[0] + self.received[1];
        // Frames of one run are far below 2⁵³.
        frames as f64 / self.seconds / 1e6
    }
}

/// Two connected ports.
pub struct Load {
    ports: [Port; 2],
    config: LoadConfig,
    clock: Clock,
    latency: Histogram<u64>,
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Ticks of the time stamp counter in a nanosecond, measured.
pub fn ticks_per_ns() -> f64 {
    1.0 / Clock::new().ns(1)
}

/// The time stamp counter: processor cycles of a constant rate, [`ticks_per_ns`] of them in a nanosecond.
#[inline]
pub fn now() -> u64 {
    ticks()
}

/// As [`now`], when all that was read before is there: the processor reads that one ahead of what it waits
/// for.
#[inline]
pub fn seen() -> u64 {
    clock::ticks_after()
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| Error::io(format!("pinning the load to core {core}"), e))
}

impl Load {
    /// Connects both ports.
    pub fn new(a: Frontend, b: Frontend, config: LoadConfig) -> Result<Self> {
        if !(60..=1514).contains(&config.frame) || config.bursts == 0 {
            return Err(Error::Config("a load of frames of 60 to 1514 bytes with at least one burst".into()));
        }
        if u32::from(config.bursts) * u32::from(BURST) * 2 > config.entries.into() {
            let most = config.entries / BURST / 2;
            return Err(Error::Config(format!("{} bursts in flight; at most {most}", config.bursts)));
        }
        let latency = Histogram::new_with_max(10_000_000_000, 3).map_err(|e| Error::Config(e.to_string()))?;
        let ports = [Port::new(a, &config, 0)?, Port::new(b, &config, 1)?];
        Ok(Self { ports, config, clock: Clock::new(), latency })
    }

    /// Warms up and measures.
    pub fn run(&mut self) -> Result<LoadReport> {
        self.warm_up()?;
        self.measure()
    }

    /// The time stamp counter: processor cycles of a constant rate, [`ticks_per_ns`] of them in a nanosecond.
    #[inline]
    pub fn now() -> u64 {
        ticks()
    }

    /// Pins the calling thread, waits until frames pass both ways, then drives without counting.
    pub fn warm_up(&mut self) -> Result<()> {
        pin(self.config.core)?;
        self.connect(Duration::from_secs(10))?;
        self.drive(self.config.warm_up).map(drop)
    }

    /// Drives and counts. On the thread that warmed up.
    pub fn measure(&mut self) -> Result<LoadReport> {
        self.latency.reset();
        let before = self.counts();
        let start = Instant::now();
        let busy = self.drive(self.config.window)?;
        let seconds = start.elapsed().as_secs_f64();
        let after = self.counts();
        let each = |value: fn(&Counts) -> u64| [0, 1].map(|p| value(&after[p]) - value(&before[p]));
        let sum = |value: fn(&Counts) -> u64| each(value).iter().sum::<u64>();
        let received = each(|c| c.received);
        let busy_ns = self.clock.ns(busy);
        Ok(LoadReport {
            seconds,
            received,
            sent: each(|c| c.sent),
            lost: sum(|c| c.lost),
            reordered: sum(|c| c.reordered),
            corrupt: sum(|c| c.corrupt),
            busy: busy_ns / 1e9 / seconds,
            busy_ns: busy_ns / (received[0] + received[1]).max(1) as f64,
            latency: self.config.rate.map(|_| self.latency.clone()),
        })
    }

    fn counts(&self) -> [Counts; 2] {
        self.ports.each_ref().map(|port| port.counts)
    }

    /// Tags count modulo this plus one.
    fn mask(&self) -> u64 {
        if self.config.touch || self.config.rate.is_some() {
            0xffff
        } else {
            u64::from(self.config.entries) - 1
        }
    }

    fn frame_len(&self) -> u32 {
        u32::try_from(NET_HDR_LEN + self.config.frame).unwrap_or(u32::MAX)
    }

    /// Sends single frames both ways until both arrive, then lets all of them pass.
    fn connect(&mut self, limit: Duration) -> Result<()> {
        let (mask, len, touch) =
            (self.mask(), self.frame_len(), self.config.touch || self.config.rate.is_some());
        let start = Instant::now();
        let mut seen = [false; 2];
        let mut quiet = Instant::now();
        let mut next = Instant::now();
        while seen != [true; 2] || quiet.elapsed() < Duration::from_millis(10) {
            let send = seen != [true; 2] && next.elapsed() > Duration::from_millis(1);
            if send {
                next = Instant::now();
            }
            for (port, seen) in self.ports.iter_mut().zip(&mut seen) {
                if send && port.make_room(1)? > 0 {
                    port.send(1, touch, mask, 0)?;
                }
                if port.receive(BURST, len, mask, |_| {})? > 0 {
                    *seen = true;
                    quiet = Instant::now();
                }
                port.refill(1)?;
            }
            if start.elapsed() > limit {
                return Err(Error::Backend(format!(
                    "no frame comes through within {limit:?} (A, B: {seen:?})"
                )));
            }
        }
        self.forgive();
        Ok(())
    }

    /// What is on its way is considered lost: both ends agree about the next tag.
    fn forgive(&mut self) {
        let mask = self.mask();
        let [a, b] = &mut self.ports;
        b.counts.lost += a.tx_tag.wrapping_sub(b.rx_tag) & mask;
        b.rx_tag = a.tx_tag;
        a.counts.lost += b.tx_tag.wrapping_sub(a.rx_tag) & mask;
        a.rx_tag = b.tx_tag;
    }

    /// Drives both ports for a time; returns the ticks in which there was something to do.
    fn drive(&mut self, time: Duration) -> Result<u64> {
        match self.config.rate {
            Some(rate) => self.drive_rate(time, rate),
            None => self.drive_full(time),
        }
    }

    fn drive_full(&mut self, time: Duration) -> Result<u64> {
        let (mask, len, touch) = (self.mask(), self.frame_len(), self.config.touch);
        let window = u64::from(self.config.bursts) * u64::from(BURST);
        let lost_after = self.clock.ticks(LOST_AFTER);
        let start = ticks();
        let end = start + self.clock.ticks(time);
        let (mut busy, mut last, mut heard) = (0, start, start);
        loop {
            let mut worked = false;
            for from in 0..2 {
                let [a, b] = &mut self.ports;
                let (port, peer) = if from == 0 { (a, b) } else { (b, a) };
                let flying = port.tx_tag.wrapping_sub(peer.rx_tag);
                if flying + u64::from(BURST) <= window && port.make_room(BURST)? >= BURST {
                    port.send(BURST, touch, mask, 0)?;
                    worked = true;
                }
                if port.receive(4 * BURST, len, mask, |_| {})? > 0 {
                    worked = true;
                    heard = last;
                }
                port.refill(BURST)?;
            }
            let now = ticks();
            if worked {
                busy += now - last;
            } else if now - heard > lost_after {
                self.forgive();
                heard = now;
            }
            last = now;
            if now >= end {
                return Ok(busy);
            }
        }
    }

    fn drive_rate(&mut self, time: Duration, rate: f64) -> Result<u64> {
        let (mask, len, clock) = (self.mask(), self.frame_len(), self.clock);
        let gap = clock.ticks(Duration::from_secs_f64(1.0 / rate));
        let start = ticks();
        let end = start + self.clock.ticks(time);
        let (mut busy, mut last, mut due) = (0, start, [start, start + gap / 2]);
        loop {
            let mut worked = false;
            for (port, due) in self.ports.iter_mut().zip(&mut due) {
                let now = ticks();
                if now >= *due {
                    // A load that was itself held up does not make up for it with a burst.
                    *due = (*due + gap).max(now);
                    if port.make_room(1)? > 0 {
                        port.send(1, true, mask, ticks() & 0xffff_ffff_ffff)?;
                        worked = true;
                    }
                }
                let latency = &mut self.latency;
                let got = port.receive(BURST, len, mask, |sent| {
                    let ticks = ticks().wrapping_sub(sent) & 0xffff_ffff_ffff;
                    latency.saturating_record(clock.whole_ns(ticks));
                })?;
                worked |= got > 0;
                port.refill(1)?;
            }
            let now = ticks();
            if worked {
                busy += now - last;
            }
            last = now;
            if now >= end {
                return Ok(busy);
            }
        }
    }
}
