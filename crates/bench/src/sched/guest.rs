//! Guests, and the network behind them: what they send, and when.
//!
//! Theory of operation. One thread plays all guests and their peers in turn. A guest has a processor of its
//! own in real life, and the network takes its time, so both are paced by the clock, or a single guest would
//! take the whole thread: what one guest can do is bounded by its own work, and the sum grows with the number
//! of guests until something is full. Guests that wait for answers are looked at between any two turns of the
//! others, so that a stream does not delay their answers here.

use std::collections::VecDeque;

use hdrhistogram::Histogram;

use super::cores::Cores;
use crate::prelude::*;

/// The network and the remote host together hold a request for so long.
const REMOTE_NS: u64 = 20_000;
/// Frames a second that a guest's small writes make.
const WRITES: f64 = 250_000.0;
/// Frames a second that large writes make: 4.8 Gbit/s.
const SEGMENTS: f64 = 400_000.0;
/// Requests under way to a key-value server, and what its processor takes for one.
const REQUESTS: u32 = 32;
const SERVICE_NS: u64 = 10_000;
/// One request in so many stores a value.
const STORES: u32 = 10;
/// Frames in one turn of a stream: short enough for guests that wait, long enough to keep a ring full.
const BURST: usize = 16;
/// An answer that takes as long is lost.
const LOST_NS: u64 = 5_000_000_000;
/// So much longer does a measurement take where a guest has got nothing done.
const GRACE_NS: u64 = 5_000_000_000;
/// After so much silence nothing of an earlier work is under way; and after this at the latest.
const QUIET: Duration = Duration::from_millis(2);
const SETTLED: Duration = Duration::from_secs(1);
/// Bytes of frames.
const SMALL: usize = 64;
const VALUE: usize = 1000;
const LARGE: usize = 1500;
const JUMBO: usize = 9000;
/// Where two words of ours lie, behind addresses and type.
const WORDS: usize = 16;

named! {
    /// What a guest does.
    #[derive(PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Work {
        /// One request of 64 bytes, and its answer, at a time.
        RequestResponse = "request/response",
        /// Small writes: frames of 64 bytes, 250,000 a second.
        Stream = "small writes",
        /// A key-value server: 32 requests under way, answers of 1,000 bytes, 10 µs of the guest's time each.
        Memcached = "memcached-like",
        /// Large writes: frames of 1,500 bytes, 400,000 a second.
        Bulk = "large writes",
        /// Frames of 1,500 bytes, as many as go.
        Flood = "flood",
        /// Frames of 9,000 bytes, as many as go, where ports carry them.
        #[value(skip)]
        Jumbo = "flood of jumbo frames",
        /// Nothing.
        #[value(skip)]
        Nothing = "nothing",
    }
}

/// What was measured of one guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Answers or frames that arrived.
    pub done: u64,
    /// Nanoseconds from a request to its answer, or from one end of a stream to the other.
    pub latency: Histogram<u64>,
    /// Kicks that it gave, and interrupts that it was sent.
    pub notifications: [u64; 2],
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    pub seconds: f64,
    pub guests: Vec<Guest>,
    /// Frames of streams that are missing or out of order.
    pub lost: u64,
    /// Share of the time in which the players had something to do.
    pub load_busy: f64,
    /// Nanoseconds of the I/O cores.
    pub io_ns: u64,
    /// How far the I/O cores were from the players.
    pub mode: Mode,
}

impl Report {
    /// Answers or frames a second, of the guests `which`.
    pub fn rate(&self, which: std::ops::Range<usize>) -> f64 {
        self.guests[which].iter().map(|guest| guest.done).sum::<u64>() as f64 / self.seconds
    }

    /// Microseconds below which so many of each hundred latencies lie, of the guests `which`.
    pub fn latency(&self, which: std::ops::Range<usize>, percent: f64) -> f64 {
        let all = merged(self.guests[which].iter().map(|guest| guest.latency.clone()));
        all.map_or(f64::NAN, |all| all.value_at_percentile(percent) as f64 / 1e3)
    }

    /// Kicks and interrupts a second.
    pub fn notifications(&self) -> [f64; 2] {
        [0, 1].map(|i| self.guests.iter().map(|g| g.notifications[i]).sum::<u64>() as f64 / self.seconds)
    }

    /// Share of the time of so many I/O cores in which they were busy.
    pub fn io_busy(&self, cores: usize) -> f64 {
        self.io_ns as f64 / 1e9 / self.seconds / cores as f64
    }
}

/// Where a guest and its peer are in what they do.
enum Role {
    /// When the request under way was sent, and what the peer holds: when that was sent, and until when.
    Asks {
        sent: Option<u64>,
        held: Option<[u64; 2]>,
    },
    /// Frames sent, the next that is to arrive, and when the guest last had time to send.
    Streams {
        rate: Option<f64>,
        sent: u64,
        next: u64,
        since: u64,
        credit: f64,
    },
    /// Requests under way and sent in all, those at the guest, and when its processor is free again.
    Serves {
        flying: u32,
        count: u32,
        waiting: VecDeque<(u64, usize)>,
        free: u64,
    },
    Nothing,
}

/// A guest, and what is at the other end of its wire.
pub struct Pair {
    guest: NetDriver,
    peer: NetDriver,
    role: Role,
    len: usize,
    /// Answers or frames that have arrived since it counts.
    pub done: u64,
    lost: u64,
    latency: Histogram<u64>,
    kicks: u64,
}

/// All guests and their peers.
pub struct Players {
    pairs: Vec<Pair>,
    /// Guests that wait for answers, and all others.
    asking: Vec<usize>,
    others: Vec<usize>,
    cores: Cores,
    epoch: Instant,
    busy: u64,
}

impl Players {
    pub fn new(guests: Vec<NetDriver>, peers: Vec<NetDriver>, cores: Cores) -> Result<Players> {
        let pairs = guests.into_iter().zip(peers).map(|(guest, peer)| Pair::new(guest, peer));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let (asking, others) = (Vec::new(), Vec::new());
        Ok(Players { pairs, asking, others, cores, epoch: Instant::now(), busy: 0 })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Has each guest do its work for a while, and then for `time`, which counts.
    pub fn measure(&mut self, work: impl Fn(usize) -> Work, time: Duration) -> Result<Report> {
        self.measure_with(work, time, || []).map(|(report, [])| report)
    }

    /// Measures, and says how far these counters went in that time.
    pub fn measure_with<const N: usize>(
        &mut self,
        work: impl Fn(usize) -> Work,
        time: Duration,
        counters: impl Fn() -> [u64; N],
    ) -> Result<(Report, [u64; N])> {
        self.set(&work)?;
        let distance = self.cores.distance();
        self.run((time / 4).max(Duration::from_millis(10)))?;
        for pair in &mut self.pairs {
            pair.begin()?;
        }
        let (io, busy, before, start) = (self.cores.busy(), self.busy, counters(), Instant::now());
        self.run(time)?;
        let (elapsed, mut counts) = (start.elapsed(), counters());
        counts.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
        let io_ns = self.cores.busy() - io;
        let guests = self.pairs.iter_mut().map(Pair::end).collect::<Result<Vec<_>>>()?;
        let lost = self.pairs.iter().map(|pair| pair.lost).sum();
        let load_busy = (self.busy - busy) as f64 / elapsed.as_nanos() as f64;
        let mode = distance.after();
        let report = Report { seconds: elapsed.as_secs_f64(), guests, lost, load_busy, io_ns, mode };
        self.set(|_| Work::Nothing)?;
        Ok((report, counts))
    }

    /// Gives each guest its work, once nothing of an earlier one is under way.
    fn set(&mut self, work: impl Fn(usize) -> Work) -> Result<()> {
        let (start, mut heard) = (Instant::now(), Instant::now());
        while heard.elapsed() < QUIET && start.elapsed() < SETTLED {
            for pair in &mut self.pairs {
                if pair.drain()? {
                    heard = Instant::now();
                }
            }
        }
        let now = self.now();
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            pair.set(work(number), now);
        }
        let asks = |&number: &usize| work(number) == Work::RequestResponse;
        self.asking = (0..self.pairs.len()).filter(asks).collect();
        self.others = (0..self.pairs.len()).filter(|n| !asks(n)).collect();
        Ok(())
    }

    fn run(&mut self, time: Duration) -> Result<()> {
        let mut now = self.now();
        let end = now + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        while now < end || (now < end + GRACE_NS && !self.all_did()) {
            for number in 0..self.others.len().max(1) {
                if let Some(&other) = self.others.get(number) {
                    now = self.turn(other, now)?;
                }
                for number in 0..self.asking.len() {
                    now = self.turn(self.asking[number], now)?;
                }
            }
            if self.pairs.is_empty() {
                now = self.now();
            }
        }
        Ok(())
    }

    /// Whether each guest that works has got something done.
    fn all_did(&self) -> bool {
        self.pairs.iter().all(|pair| pair.done > 0 || matches!(pair.role, Role::Nothing))
    }

    /// One pair's turn, which begins at `now`; when it ended.
    #[inline]
    fn turn(&mut self, number: usize, now: u64) -> Result<u64> {
        let busy = self.pairs[number].turn(now)?;
        let end = self.now();
        if busy {
            self.busy += end - now;
        }
        Ok(end)
    }
}

impl Pair {
    /// With nothing to do.
    pub fn new(guest: NetDriver, peer: NetDriver) -> Result<Pair> {
        let latency = Histogram::new_with_max(10_000_000_000, 2).map_err(text)?;
        Ok(Pair { guest, peer, role: Role::Nothing, len: SMALL, done: 0, lost: 0, latency, kicks: 0 })
    }

    /// Gives it work, which begins anew.
    pub fn set(&mut self, work: Work, now: u64) {
        let streams = |rate| Role::Streams { rate, sent: 0, next: 0, since: now, credit: 0.0 };
        (self.role, self.len) = match work {
            Work::RequestResponse => (Role::Asks { sent: None, held: None }, SMALL),
            Work::Stream => (streams(Some(WRITES)), SMALL),
            Work::Bulk => (streams(Some(SEGMENTS)), LARGE),
            Work::Flood => (streams(None), LARGE),
            Work::Jumbo => (streams(None), JUMBO),
            Work::Memcached => {
                (Role::Serves { flying: 0, count: 0, waiting: VecDeque::new(), free: now }, SMALL)
            }
            Work::Nothing => (Role::Nothing, SMALL),
        };
        self.lost = 0;
    }

    /// Counts from here on.
    pub fn begin(&mut self) -> Result<()> {
        (self.done, self.lost) = (0, 0);
        self.latency.reset();
        self.interrupts()?;
        self.kicks = self.guest.stats().kicks;
        Ok(())
    }

    /// What it has counted.
    pub fn end(&mut self) -> Result<Guest> {
        let notifications = [self.guest.stats().kicks - self.kicks, self.interrupts()?];
        Ok(Guest { done: self.done, latency: self.latency.clone(), notifications })
    }

    /// Interrupts that the guest was sent since the last call.
    fn interrupts(&self) -> Result<u64> {
        let mut all = 0;
        for vring in &self.guest.session().vrings {
            let mut count = [0; 8];
            match rustix::io::read(&vring.call, &mut count) {
                Ok(_) => all += u64::from_ne_bytes(count),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(text(error)),
            }
        }
        Ok(all)
    }

    /// Takes what is still under way; whether anything was.
    fn drain(&mut self) -> Result<bool> {
        let guest = self.guest.receive(0, |_, _| {}).map_err(text)?;
        let peer = self.peer.receive(0, |_, _| {}).map_err(text)?;
        self.guest.complete(0).map_err(text)?;
        self.peer.complete(0).map_err(text)?;
        Ok(guest + peer > 0)
    }

    /// Does what is due; whether anything was.
    #[inline]
    pub fn turn(&mut self, now: u64) -> Result<bool> {
        match &mut self.role {
            Role::Asks { sent, held } => {
                let mut answer = None;
                receive(&mut self.guest, |words, _| answer = Some(words))?;
                if let Some([stamp, _]) = answer {
                    self.done += 1;
                    self.latency.saturating_record(now.saturating_sub(stamp));
                    *sent = None;
                }
                let asks = sent.is_none() && send(&mut self.guest, SMALL, [now, 0])?;
                if asks {
                    *sent = Some(now);
                }
                if sent.is_some_and(|sent| now - sent > LOST_NS) {
                    return Err("a request or its answer was lost".to_owned());
                }
                let mut came = false;
                receive(&mut self.peer, |[stamp, _], _| {
                    (*held, came) = (Some([stamp, now + REMOTE_NS]), true);
                })?;
                let due = held.is_some_and(|[_, until]| until <= now);
                if due {
                    if let Some([stamp, _]) = held.take() {
                        send(&mut self.peer, SMALL, [stamp, 0])?;
                    }
                }
                Ok(asks || came || due)
            }
            Role::Streams { rate, sent, next, since, credit } => {
                let most = match rate {
                    None => BURST,
                    Some(rate) => {
                        // A guest that found no room has lost its time.
                        *credit = (*credit + *rate * (now - *since) as f64 / 1e9).min(BURST as f64);
                        whole(*credit)
                    }
                };
                *since = now;
                let (len, mut number) = (self.len, *sent);
                let gone = if most == 0 {
                    0
                } else {
                    let put = |_, bytes: &mut [u8]| {
                        number += 1;
                        write(bytes, len, [now, number - 1])
                    };
                    self.guest.send_with(0, most, put).map_err(text)?
                };
                *sent = number;
                *credit -= gone as f64;
                let (mut last, mut wrong) = (None, 0);
                let came = receive(&mut self.peer, |[stamp, number], bytes| {
                    wrong += u64::from(number != *next || bytes != len);
                    *next = number + 1;
                    last = Some(stamp);
                })?;
                if let Some(stamp) = last {
                    self.latency.saturating_record(now.saturating_sub(stamp));
                }
                self.lost += wrong;
                self.done += came;
                Ok(gone > 0 || came > 0)
            }
            Role::Serves { flying, count, waiting, free } => {
                let (mut done, latency) = (0, &mut self.latency);
                receive(&mut self.peer, |[stamp, _], _| {
                    done += 1;
                    latency.saturating_record(now.saturating_sub(stamp));
                })?;
                self.done += u64::from(done);
                *flying -= done.min(*flying);
                let mut asked = 0;
                while *flying < REQUESTS {
                    let len = if *count % STORES == 0 { VALUE } else { SMALL };
                    if !send(&mut self.peer, len, [now, 0])? {
                        break;
                    }
                    (*flying, *count, asked) = (*flying + 1, count.wrapping_add(1), asked + 1);
                }
                let came = receive(&mut self.guest, |[stamp, _], len| {
                    waiting.push_back((stamp, if len == SMALL { VALUE } else { SMALL }));
                    if waiting.len() == 1 {
                        // The processor was idle.
                        *free = now.max(*free) + SERVICE_NS;
                    }
                })?;
                let mut served = 0;
                while let Some(&(stamp, len)) = waiting.front().filter(|_| *free <= now) {
                    if !send(&mut self.guest, len, [stamp, 0])? {
                        break;
                    }
                    waiting.pop_front();
                    served += 1;
                    if !waiting.is_empty() {
                        *free += SERVICE_NS;
                    }
                }
                Ok(done + asked + served > 0 || came > 0)
            }
            Role::Nothing => Ok(false),
        }
    }
}

/// Makes a frame of `len` bytes with two words in it.
#[inline]
pub(super) fn write(bytes: &mut [u8], len: usize, words: [u64; 2]) -> usize {
    const START: [u8; WORDS] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 0, 0];
    bytes[..WORDS].copy_from_slice(&START);
    bytes[WORDS..WORDS + 8].copy_from_slice(&words[0].to_le_bytes());
    bytes[WORDS + 8..WORDS + 16].copy_from_slice(&words[1].to_le_bytes());
    len
}

/// Sends one; false: there is no room.
#[inline]
fn send(driver: &mut NetDriver, len: usize, words: [u64; 2]) -> Result<bool> {
    Ok(driver.send_with(0, 1, |_, bytes| write(bytes, len, words)).map_err(text)? == 1)
}

/// Takes a burst or two: the words and length of each frame. Frames too short to be ours are none.
#[inline]
pub(super) fn receive(driver: &mut NetDriver, mut each: impl FnMut([u64; 2], usize)) -> Result<u64> {
    let mut ours = 0;
    let all = driver.receive_up_to(0, 2 * BURST, |_, bytes| {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        if let (Some(first), Some(second)) = (word(WORDS), word(WORDS + 8)) {
            ours += 1;
            each([first, second], bytes.len());
        }
    });
    all.map_err(text)?;
    Ok(ours)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a burst at most, and positive")]
fn whole(frames: f64) -> usize {
    frames as usize
}
