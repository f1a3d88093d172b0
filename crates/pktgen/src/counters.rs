//! What threads count, where the main thread can read it: each on a cache line of its own, written by one
//! thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use super::end::Taken;
use super::ping::Rtt;
use super::verify::Findings;

/// One thread's counters.
#[derive(Debug)]
#[repr(align(128))]
pub struct ThreadCounters {
    frames: AtomicU64,
    bytes: AtomicU64,
    events: AtomicU64,
    least_room: AtomicU64,
    /// Round trip times, of a ping.
    pub rtt: Mutex<Option<Rtt>>,
    /// What `--verify` found.
    pub findings: Mutex<Option<Findings>>,
    /// When the first and the last frame passed.
    pub times: Mutex<Option<(Instant, Instant)>>,
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Batches.
    pub events: u64,
}

impl ThreadCounters {
    /// Nothing yet.
    pub fn new() -> ThreadCounters {
        ThreadCounters {
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            events: AtomicU64::new(0),
            least_room: AtomicU64::new(u64::MAX),
            rtt: Mutex::default(),
            findings: Mutex::default(),
            times: Mutex::default(),
        }
    }

    /// A batch that found `room`. Only the counters' own thread calls this.
    #[inline]
    pub fn batch(&self, taken: Taken, room: usize) {
        let add = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        add(&self.frames, taken.frames as u64);
        add(&self.bytes, taken.bytes);
        add(&self.events, 1);
        if (room as u64) < self.least_room.load(Ordering::Relaxed) {
            self.least_room.store(room as u64, Ordering::Relaxed);
        }
    }

    /// What has been counted.
    pub fn count(&self) -> Count {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Count { frames: get(&self.frames), bytes: get(&self.bytes), events: get(&self.events) }
    }

    /// The least room that a batch found since this was asked last, if there was a batch.
    pub fn take_least_room(&self) -> Option<u64> {
        Some(self.least_room.swap(u64::MAX, Ordering::Relaxed)).filter(|least| *least < u64::MAX)
    }
}

impl std::ops::Add for Count {
    type Output = Count;

    fn add(self, other: Count) -> Count {
        Count {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            events: self.events + other.events,
        }
    }
}

impl std::ops::Sub for Count {
    type Output = Count;

    fn sub(self, other: Count) -> Count {
        Count {
            frames: self.frames - other.frames,
            bytes: self.bytes - other.bytes,
            events: self.events - other.events,
        }
    }
}

/// One thread's part of the work.
#[derive(Debug)]
pub struct Job<'a> {
    /// Frames to be sent, or to be received by all threads together; `u64::MAX` for no end.
    pub count: u64,
    /// Most frames in a batch.
    pub burst: usize,
    /// Frames a second.
    pub rate: Option<f64>,
    /// Neither yield nor sleep.
    pub busy: bool,
    /// Where to count.
    pub counters: &'a ThreadCounters,
    /// Set when it is time to end.
    pub stop: &'a AtomicBool,
    /// Where all threads count.
    pub all: &'a [ThreadCounters],
}

impl Job<'_> {
    /// Whether it is time to end.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Frames that all threads together have yet to receive: it is unknown beforehand which of them a flow
    /// comes to.
    pub fn left(&self) -> u64 {
        match self.count {
            u64::MAX => u64::MAX,
            count => count.saturating_sub(self.all.iter().map(|counters| counters.count().frames).sum()),
        }
    }

    /// The first frame passes: rates are told for the time from here.
    pub fn started(&self) {
        let now = Instant::now();
        if let Ok(mut times) = self.counters.times.lock() {
            times.get_or_insert((now, now));
        }
    }

    /// The last frame passed at `last`.
    pub fn ended(&self, last: Instant) {
        if let Ok(mut times) = self.counters.times.lock() {
            if let Some((_, end)) = times.as_mut() {
                *end = last;
            }
        }
    }
}
