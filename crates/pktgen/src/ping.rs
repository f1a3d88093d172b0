//! Ping and pong: round trip times.
//!
//! As in netmap's pkt-gen, a ping carries at byte 42 its number and from byte 46 the time in seconds and
//! nanoseconds, 32 bits each, and a pong is the same frame with its addresses swapped. One ping is under way
//! at a time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::address::Mac;
use super::counters::Job;
use super::end::{Lane, Result, Sink, Source, Want};
use super::frame::{Maker, PAYLOAD};
use super::pace::{Idle, Pace};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that the histogram holds.
const MOST: u64 = 10_000_000_000;
/// A frame with number and time.
pub const SHORTEST: usize = 60;

/// Round trip times in nanoseconds.
#[derive(Debug)]
pub struct Rtt {
    /// Since the start.
    pub all: Histogram<u64>,
    /// Since the last progress line.
    pub interval: Histogram<u64>,
    /// Pings without an answer.
    pub lost: u64,
}

impl Rtt {
    /// None yet. All memory is taken here.
    fn new() -> Result<Rtt> {
        let new = || Histogram::new_with_max(MOST, 3).map_err(|e| e.to_string());
        Ok(Rtt { all: new()?, interval: new()?, lost: 0 })
    }
}

/// Sees whether the answer to a ping is among what comes.
struct Answer {
    number: u32,
    seen: bool,
    /// Our own address: no switch floods our ping back to us, but a wire's other end could reflect it
    /// unchanged.
    mac: [u8; 6],
}

impl Sink for Answer {
    const READS: bool = true;

    #[inline]
    fn frame(&mut self, bytes: &[u8]) {
        let number = bytes.get(PAYLOAD..PAYLOAD + 4);
        self.seen |= number == Some(&self.number.to_be_bytes()) && bytes[6..12] != self.mac;
    }
}

/// The next ping.
struct Ping<'a> {
    maker: &'a mut Maker,
    number: u32,
    start: Instant,
}

impl Source for Ping<'_> {
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.maker.write(buffer);
        let time = self.start.elapsed();
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        buffer[PAYLOAD..PAYLOAD + 4].copy_from_slice(&self.number.to_be_bytes());
        buffer[PAYLOAD + 4..PAYLOAD + 8].copy_from_slice(&seconds.to_ne_bytes());
        buffer[PAYLOAD + 8..PAYLOAD + 12].copy_from_slice(&time.subsec_nanos().to_ne_bytes());
        len
    }
}

/// Sends `job.count` pings, one after the other.
pub fn ping<L: Lane>(lane: &mut L, maker: &mut Maker, mac: Mac, job: &Job<'_>) -> Result<()> {
    let locked = || job.counters.rtt.lock().map_err(|e| e.to_string());
    *locked()? = Some(Rtt::new()?);
    let mut pace = Pace::new(job.rate, 1);
    let (start, mut left) = (Instant::now(), job.count);
    job.started();
    let mut answer = Answer { number: 0, seen: false, mac: mac.0 };
    while left > 0 && !job.is_over() {
        if !pace.wait(job.busy) {
            continue;
        }
        let mut idle = Idle::new(job.busy);
        while lane.room()? == 0 && !job.is_over() {
            idle.wait(lane, Want::Room)?;
        }
        answer.number = answer.number.wrapping_add(1);
        answer.seen = false;
        let sent = Instant::now();
        let taken = lane.send(1, &mut Ping { maker, number: answer.number, start })?;
        idle.over();
        while !answer.seen && sent.elapsed() < PATIENCE && !job.is_over() {
            if lane.receive(job.burst, &mut answer)?.frames == 0 {
                idle.wait(lane, Want::Frames)?;
            }
        }
        let time = sent.elapsed();
        if let Some(rtt) = locked()?.as_mut() {
            if answer.seen {
                let time = u64::try_from(time.as_nanos()).unwrap_or(MOST).min(MOST);
                rtt.all.saturating_record(time);
                rtt.interval.saturating_record(time);
                job.counters.batch(taken, 1);
            } else if !job.is_over() {
                rtt.lost += 1;
            }
        }
        left -= 1;
    }
    job.ended(Instant::now());
    Ok(())
}

/// Frames to be sent back, one behind the other.
struct Back {
    mac: [u8; 6],
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// Those sent.
    done: usize,
}

impl Sink for Back {
    const READS: bool = true;

    #[inline]
    fn frame(&mut self, bytes: &[u8]) {
        // An answer to one of ours, or too short for addresses: not to be answered.
        if bytes.len() < 14 || bytes[6..12] == self.mac {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        let frame = &mut self.bytes[start..];
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&self.mac);
        // IPv4: both addresses change places; the checksum does not mind.
        if frame.len() >= 34 && frame[12..14] == [8, 0] {
            let (source, destination) = frame[26..34].split_at_mut(4);
            source.swap_with_slice(destination);
        }
    }
}

impl Source for Back {
    #[inline]
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let start = self.done.checked_sub(1).map_or(0, |before| self.ends[before]);
        let frame = &self.bytes[start..self.ends[self.done]];
        let len = frame.len().min(buffer.len());
        buffer[..len].copy_from_slice(&frame[..len]);
        self.done += 1;
        len
    }
}

/// Sends back `job.count` frames.
pub fn pong<L: Lane>(lane: &mut L, mac: Mac, job: &Job<'_>) -> Result<()> {
    let room = job.burst * 2048;
    let (bytes, ends) = (Vec::with_capacity(room), Vec::with_capacity(job.burst));
    let mut back = Back { mac: mac.0, bytes, ends, done: 0 };
    let (mut idle, mut left) = (Idle::new(job.busy), job.count);
    while left > 0 && !job.is_over() {
        back.bytes.clear();
        back.ends.clear();
        back.done = 0;
        let limit = job.burst.min(usize::try_from(left).unwrap_or(usize::MAX));
        if lane.receive(limit, &mut back)?.frames == 0 {
            idle.wait(lane, Want::Frames)?;
            continue;
        }
        if left == job.count {
            job.started();
        }
        idle.over();
        while back.done < back.ends.len() && !job.is_over() {
            let room = lane.room()?;
            if room == 0 {
                idle.wait(lane, Want::Room)?;
                continue;
            }
            let sent = lane.send(room.min(back.ends.len() - back.done), &mut back)?;
            job.counters.batch(sent, room);
            left -= sent.frames as u64;
        }
        idle.over();
    }
    job.ended(Instant::now() - idle.time());
    Ok(())
}
