//! Guests: native drivers of disks, played by one thread in turn.
//!
//! A guest keeps as many requests in flight as its depth says. A *paced* guest starts so many a second at
//! most, as one whose processor has other things to do: the paper's guests had that limit. Guests poll for
//! answers and take no interrupts.

use std::path::PathBuf;

use hdrhistogram::Histogram;
use sidecore_driver::{Disk, DiskOptions, Request, Status};

use crate::fib::tables::Random;
use crate::prelude::*;

named! {
    /// What guests do.
    #[derive(Serialize, Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum Work {
        /// 4 KiB anywhere, read.
        Read = "read",
        /// 4 KiB anywhere, written.
        Write = "write",
        /// 128 KiB one after the other, read.
        SequentialRead = "sequential-read",
        /// 128 KiB one after the other, written.
        SequentialWrite = "sequential-write",
        /// 4 KiB anywhere, half of them read, half written, at the pace of the paper's guests.
        Paced = "paced",
    }
}

impl Work {
    /// Bytes of a request.
    pub fn bytes(self) -> usize {
        if self.is_sequential() {
            128 << 10
        } else {
            4 << 10
        }
    }

    /// Request after request.
    pub fn is_sequential(self) -> bool {
        matches!(self, Self::SequentialRead | Self::SequentialWrite)
    }
}

/// What one guest is and does.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its work.
    pub work: Work,
    /// Requests in flight.
    pub depth: u16,
    /// Requests a second, of paced work.
    pub rate: f64,
}

/// One guest.
struct Player {
    disk: Disk,
    part: Part,
    places: u64,
    next: u64,
    random: Random,
    /// When the request at each slot was started.
    started: Vec<Instant>,
    /// Answers, by slot.
    done: Vec<usize>,
    /// When the next request of paced work may start.
    due: Instant,
}

/// What was seen while it was looked.
pub struct Seen {
    /// Answers of each guest.
    pub answers: Vec<u64>,
    /// Nanoseconds from submission to answer.
    pub latency: Histogram<u64>,
    /// Share of the looks of the load's thread that found answers.
    pub load_busy: f64,
}

impl Player {
    fn connect(socket: &PathBuf, part: Part, size: u64, number: usize) -> Result<Player> {
        let entries = (part.depth * 4).next_power_of_two().max(128);
        let largest = part.work.bytes();
        let options = DiskOptions { depth: part.depth, largest, entries, ..DiskOptions::default() };
        let disk = Disk::connect(socket, options).map_err(text)?;
        let bytes = disk.geometry().bytes();
        if bytes < size {
            return Err(format!("{} has {bytes} bytes, not {size}", socket.display()));
        }
        let now = Instant::now();
        Ok(Player {
            disk,
            part,
            places: size / largest as u64,
            next: 0,
            random: Random::new(0x9e37_79b9_7f4a_7c15 ^ (number as u64) << 8),
            started: vec![now; part.depth.into()],
            done: Vec::new(),
            due: now,
        })
    }

    /// Starts what may be started.
    fn fill(&mut self, now: Instant) -> Result<()> {
        let Part { work, depth, rate } = self.part;
        while self.disk.in_flight() < usize::from(depth) {
            if work == Work::Paced {
                if now < self.due {
                    break;
                }
                // A guest that was held up does not make up for it.
                self.due = self.due.max(now - Duration::from_millis(1)) + Duration::from_secs_f64(1.0 / rate);
            }
            let place =
                if work.is_sequential() { self.next % self.places } else { self.random.below(self.places) };
            self.next += 1;
            let len = work.bytes();
            let sector = place * (len as u64 / 512);
            let writes = match work {
                Work::Read | Work::SequentialRead => false,
                Work::Write | Work::SequentialWrite => true,
                Work::Paced => self.random.below(2) == 1,
            };
            let request = match writes {
                true => Request::WriteAnything { sector, len },
                false => Request::Read { sector, len },
            };
            let tag = self.disk.submit(request).map_err(text)?;
            let Some(tag) = tag else { return Err("no room in a ring for the depth".to_owned()) };
            self.started[tag.slot()] = now;
        }
        self.disk.publish().map_err(text)
    }

    /// Takes answers: `each(nanoseconds)`.
    fn take(&mut self, now: Instant, mut each: impl FnMut(u64)) -> Result<u64> {
        let (done, mut failed) = (&mut self.done, None);
        let answers = self.disk.poll(|tag, status, _| {
            done.push(tag.slot());
            if status != Status::Ok {
                failed = Some(status);
            }
        });
        let answers = answers.map_err(text)?;
        if let Some(status) = failed {
            return Err(format!("a request failed: {status:?}"));
        }
        for slot in self.done.drain(..) {
            let took = now.saturating_duration_since(self.started[slot]);
            each(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(answers as u64)
    }
}

/// Longest time without an answer.
const STUCK: Duration = Duration::from_secs(10);

/// All guests of a measurement.
pub struct Players(Vec<Player>);

impl Players {
    /// Connects one to each socket.
    pub fn connect(sockets: &[PathBuf], part: Part, size: u64) -> Result<Players> {
        let players = sockets.iter().enumerate().map(|(n, socket)| Player::connect(socket, part, size, n));
        players.collect::<Result<_>>().map(Players)
    }

    /// Plays for as long as `window`, and until each guest has had an answer.
    pub fn play(&mut self, window: Duration) -> Result<Seen> {
        let failed = |e| format!("the histogram of latencies: {e}");
        let mut latency = Histogram::new_with_bounds(1, 100_000_000_000, 3).map_err(failed)?;
        let mut answers = vec![0; self.0.len()];
        let (mut looks, mut found) = (0u64, 0u64);
        let start = Instant::now();
        loop {
            let past = start.elapsed();
            if past >= window && answers.iter().all(|got| *got > 0) {
                break;
            }
            if past > window + STUCK {
                return Err(format!("a guest has no answer for {past:?}"));
            }
            for (player, answers) in self.0.iter_mut().zip(&mut answers) {
                let now = Instant::now();
                let got = player.take(now, |ns| latency.saturating_record(ns))?;
                player.fill(now)?;
                looks += 1;
                found += u64::from(got > 0);
                *answers += got;
            }
        }
        Ok(Seen { answers, latency, load_busy: found as f64 / looks.max(1) as f64 })
    }

    /// A look at each of them: answers, and new requests for them. Returns how many there were.
    pub fn turn(&mut self) -> Result<u64> {
        let mut answers = 0;
        for player in &mut self.0 {
            let now = Instant::now();
            answers += player.take(now, |_| {})?;
            player.fill(now)?;
        }
        Ok(answers)
    }

    /// Waits for what is still in flight.
    pub fn finish(&mut self) -> Result<()> {
        for player in &mut self.0 {
            until("all requests have answers", STUCK, Duration::ZERO, || {
                player.take(Instant::now(), |_| {})?;
                Ok((player.disk.in_flight() == 0).then_some(()))
            })?;
        }
        Ok(())
    }
}
