//! The ends of a path: any kind of port, as one type, asked once for a burst.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use sidecore_driver::e1000::{Config, E1000};
use sidecore_driver::load;
use sidecore_driver::memory::Page;
use sidecore_driver::Frontend;
use sidecore_engine::packet::Sum;

use sidecore_pktgen::end::host::{self, HostLane};
use sidecore_pktgen::end::ring::{self, RingLane};
use sidecore_pktgen::end::{Lane, Opened, Result, Sink, Source, Taken, Want};

use super::common::text;

/// Bytes of a frame of [`Frames`], without check sequence.
pub const SIZE: usize = 60;
/// Frames sent at once.
const BURST: usize = 128;
/// Frames of a bare ring.
const BARE: usize = 1024;
/// Bytes of its buffers.
const BUFFER: usize = 2048;

/// One end.
pub enum End {
    /// A ring port's program.
    Ring(Box<RingLane>, #[expect(dead_code, reason = "stays while the lane does")] Box<dyn Send>),
    /// A guest's virtio driver.
    Virtio(Box<load::Lane>),
    /// An interface of the host, by one of its sockets.
    Host(Box<HostLane>, #[expect(dead_code, reason = "stays while the lane does")] Box<dyn Send>),
    /// A guest's driver of an e1000e.
    Card(Box<Card>),
    /// Both ends of a ring with nothing between them.
    Bare(Box<Bare>),
}

impl End {
    /// A guest behind this conversation, with rings of `entries`.
    ///
    /// # Errors
    /// The negotiation fails.
    pub fn virtio(frontend: Frontend, entries: u16, longest: usize, page: Page) -> Result<End> {
        let config = load::LaneConfig { entries, depth: [entries; 2], longest, mergeable: true, page };
        load::Lane::new(frontend, config).map(|lane| End::Virtio(Box::new(lane))).map_err(text)
    }

    /// A guest behind the card at this socket, with rings of `entries`.
    ///
    /// # Errors
    /// The card is not there.
    pub fn card(path: &Path, entries: u16) -> Result<End> {
        let config = Config { ring: entries, ..Config::default() };
        let driver = E1000::open(path, &config).map_err(text)?;
        Ok(End::Card(Box::new(Card { driver, entries })))
    }

    /// The program of the ring port at this name or path.
    ///
    /// # Errors
    /// No task serves it.
    pub fn ring(name: &str, longest: usize) -> Result<End> {
        let Opened { mut lanes, keep, .. } = ring::open(name, 1, None, longest)?;
        let lane = lanes.pop().ok_or("the ring port has no ring")?;
        Ok(End::Ring(Box::new(lane), keep))
    }

    /// An interface of this thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, or no permission.
    pub fn host(kind: host::Kind, interface: &str, longest: usize) -> Result<End> {
        let Opened { mut lanes, keep, .. } = host::open(kind, interface, 1, longest)?;
        let lane = lanes.pop().ok_or("the interface has no queue")?;
        Ok(End::Host(Box::new(lane), keep))
    }

    /// Goes on with a backend that has just been started.
    ///
    /// # Errors
    /// It is no virtio port, or the negotiation fails.
    pub fn reconnect(&mut self, path: &Path, limit: Duration) -> Result<()> {
        match self {
            End::Virtio(lane) => {
                let frontend = Frontend::connect(path, limit).map_err(text)?;
                lane.reconnect(frontend).map_err(text)
            }
            _ => Err("only virtio ports go on with another daemon".to_owned()),
        }
    }
}

/// One frame as it is, each time.
pub struct Once<'f>(pub &'f [u8]);

impl Source for Once<'_> {
    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        buffer[..self.0.len()].copy_from_slice(self.0);
        self.0.len()
    }
}

/// Frames by turns.
pub struct Frames<'f> {
    pub frames: &'f [[u8; SIZE]],
    pub next: usize,
}

impl Source for Frames<'_> {
    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        if let Some(frame) = self.frames.get(self.next) {
            buffer[..SIZE].copy_from_slice(frame);
        }
        self.next = if self.next + 1 < self.frames.len() { self.next + 1 } else { 0 };
        SIZE
    }
}

/// Nothing came for so long of what the other side has taken: what is missing is lost.
pub const LOST_AFTER: Duration = Duration::from_millis(20);

/// A closed loop: what it has sent so far, what of it has come, and what is lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    pub sent: u64,
    pub came: u64,
    pub lost: u64,
}

impl Flow {
    /// Sends for as long as `time`, while fewer than `window` frames are under way; how many seconds that
    /// took. `came` takes what has come, and says of how many frames since the first it is known that they
    /// are not under way any more.
    ///
    /// # Errors
    /// Either end fails.
    #[inline]
    pub fn run(
        &mut self,
        from: &mut impl Lane,
        source: &mut impl Source,
        window: u64,
        time: Duration,
        mut came: impl FnMut() -> Result<u64>,
    ) -> Result<f64> {
        let start = Instant::now();
        let mut heard = start;
        while start.elapsed() < time {
            for _ in 0..16 {
                let allowed = window.saturating_sub(self.sent.saturating_sub(self.came + self.lost));
                let burst = usize::try_from(allowed).map_or(BURST, |allowed| allowed.min(BURST));
                let room = if burst > 0 { from.room()?.min(burst) } else { 0 };
                if room > 0 {
                    self.sent += from.send(room, source)?.frames as u64;
                }
                let now = came()?;
                if now > self.came {
                    (self.came, heard) = (now, Instant::now());
                    self.lost = self.lost.min(self.sent.saturating_sub(now));
                } else if burst == 0 && heard.elapsed() > LOST_AFTER && from.is_drained()? {
                    self.lost = self.sent.saturating_sub(self.came);
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Makes `frame` a packet of UDP without a checksum: to and from these stations, from and to these addresses
/// and ports (RFC 791 §3.1, RFC 768).
pub fn datagram(frame: &mut [u8], stations: [[u8; 6]; 2], addresses: [Ipv4Addr; 2], ports: [u16; 2]) {
    let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    let (packet, message) = (word(frame.len() - 14), word(frame.len() - 34));
    frame[..12].copy_from_slice(stations.as_flattened());
    frame[12..26].copy_from_slice(&[8, 0, 0x45, 0, packet[0], packet[1], 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame[26..34].copy_from_slice(addresses.map(|it| it.octets()).as_flattened());
    frame[34..38].copy_from_slice(ports.map(u16::to_be_bytes).as_flattened());
    frame[38..40].copy_from_slice(&message);
    let sum = Sum::of(&frame[14..34]).checksum().to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
}

/// A short one.
pub fn udp(stations: [[u8; 6]; 2], addresses: [Ipv4Addr; 2], ports: [u16; 2]) -> [u8; SIZE] {
    let mut frame = [0; SIZE];
    datagram(&mut frame, stations, addresses, ports);
    frame
}

/// An e1000e's driver. It polls.
pub struct Card {
    driver: E1000,
    entries: u16,
}

impl Lane for Card {
    fn depth(&self) -> usize {
        self.entries.into()
    }

    /// Sending tells.
    fn room(&mut self) -> Result<usize> {
        Ok(self.depth())
    }

    #[inline]
    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        let mut bytes = 0;
        let write = |_: usize, buffer: &mut [u8]| {
            let len = source.write(buffer);
            bytes += len as u64;
            len
        };
        let frames = self.driver.send_with(limit, write).map_err(text)?;
        Ok(Taken { frames, bytes })
    }

    fn is_drained(&mut self) -> Result<bool> {
        self.driver.reclaim();
        Ok(self.driver.is_clean())
    }

    #[inline]
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        let mut bytes = 0;
        let look = |frame: &[u8]| {
            bytes += frame.len() as u64;
            sink.frame(frame);
        };
        let frames = self.driver.receive(limit, look).map_err(text)?;
        Ok(Taken { frames, bytes })
    }
}

/// A ring in private memory: what is sent lies there until it is taken.
pub struct Bare {
    slots: Vec<[u8; BUFFER]>,
    lens: Vec<usize>,
    /// Frames ever sent, and ever taken.
    sent: usize,
    taken: usize,
}

impl Default for Bare {
    fn default() -> Bare {
        Bare { slots: vec![[0; BUFFER]; BARE], lens: vec![0; BARE], sent: 0, taken: 0 }
    }
}

impl Lane for Bare {
    fn depth(&self) -> usize {
        BARE
    }

    fn room(&mut self) -> Result<usize> {
        Ok(BARE - (self.sent - self.taken))
    }

    #[inline]
    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        let mut done = Taken::default();
        for _ in 0..limit.min(self.room()?) {
            let at = self.sent % BARE;
            let len = source.write(&mut self.slots[at]);
            self.lens[at] = len;
            self.sent += 1;
            done.frames += 1;
            done.bytes += len as u64;
        }
        Ok(done)
    }

    fn is_drained(&mut self) -> Result<bool> {
        Ok(true)
    }

    #[inline]
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        let mut done = Taken::default();
        for _ in 0..limit.min(self.sent - self.taken) {
            let at = self.taken % BARE;
            let frame = &self.slots[at][..self.lens[at]];
            sink.frame(frame);
            self.taken += 1;
            done.frames += 1;
            done.bytes += frame.len() as u64;
        }
        Ok(done)
    }
}

/// Does something with the lane of an end, whatever it is.
macro_rules! each {
    ($end:expr, $lane:ident => $work:expr) => {
        match $end {
            End::Ring($lane, _) => $work,
            End::Virtio($lane) => $work,
            End::Host($lane, _) => $work,
            End::Card($lane) => $work,
            End::Bare($lane) => $work,
        }
    };
}

// By the trait's name: the driver's own functions are called alike.
impl Lane for End {
    fn depth(&self) -> usize {
        each!(self, lane => Lane::depth(&**lane))
    }

    #[inline]
    fn room(&mut self) -> Result<usize> {
        each!(self, lane => Lane::room(&mut **lane))
    }

    #[inline]
    fn send(&mut self, limit: usize, source: &mut impl Source) -> Result<Taken> {
        each!(self, lane => Lane::send(&mut **lane, limit.min(BURST), source))
    }

    fn is_drained(&mut self) -> Result<bool> {
        each!(self, lane => Lane::is_drained(&mut **lane))
    }

    #[inline]
    fn receive<S: Sink>(&mut self, limit: usize, sink: &mut S) -> Result<Taken> {
        each!(self, lane => Lane::receive(&mut **lane, limit, sink))
    }

    fn sleep(&mut self, want: Want, limit: Duration) -> Result<()> {
        each!(self, lane => Lane::sleep(&mut **lane, want, limit))
    }
}
