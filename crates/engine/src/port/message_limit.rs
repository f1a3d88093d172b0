//! What a port's conversation costs the others, and how much of that it may cost.
//!
//! Theory of operation. A VMM's messages are handled by a thread of their port, beside the I/O cores. Some
//! reach the cores all the same: a queue that is taken back and served again interrupts a core between two
//! batches, memory that is mapped or unmapped has the kernel interrupt every processor on which we run, and
//! makes the core fault its pages in again. Each such *change* is charged to the port whose thread makes it;
//! changes that others bring about there (the operator, the other end of a wire) are not. The port has a
//! token bucket of [`BURST`] changes that fills at [`RATE`]; whose bucket is empty has its next message wait
//! in its socket ([`MessageLimiter::hold`]) until there is something in it again.
//!
//! Every message takes processor time, too, whatever it changes: from other programs, and from the I/O cores
//! where they share their processor with everything else (`util::place`). So a conversation has a second
//! bucket, of processor time. Where I/O cores have processors of their own, what the peer's process has of it
//! in the same time is free: a VMM that has other programs ahead of it does not get its way by messages.
//!
//! The numbers. A change takes a few microseconds of a core, so that [`RATE`] is a percent or two of it. What
//! honest VMMs do at once is the start of a guest: firmware and drivers size BARs and have memory mapped and
//! unmapped around them, some hundred DMA_MAP and DMA_UNMAP, or as many memory tables of ten regions; each
//! queue is started, stopped and started again by firmware and driver; each interrupt gets its eventfd two or
//! three times. With sixteen pairs of queues that is less than half of [`BURST`]. Reading and writing
//! registers and configuration, tens of thousands of times in that start, costs nothing but the port's own
//! thread, and is not charged. Memory that is plugged into a running guest of sixteen pairs of queues costs
//! some hundred changes a region; sixty regions at once are not held back.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::time::{clock_gettime, ClockId};

use crate::mem::process_time;
use crate::util::bucket::{nanos, nanos_at, Bucket};

/// Changes that a conversation may make at once.
pub const BURST: u32 = 8192;
/// Changes a second that it may go on with.
pub const RATE: u32 = 2000;
/// Debts are no larger, so that no message waits for longer: VMMs give up after a few seconds.
const LONGEST: Duration = Duration::from_millis(500);

/// Time of a processor that a conversation may take at once, and its share of it in the long run: a tenth.
const TIME: Duration = Duration::from_millis(500);
const SHARE: u32 = 10;
/// How often that is looked at, where nothing was charged and no I/O core shares its processor.
const LOOK: Duration = Duration::from_millis(10);

crate::util::form::view! {
    /// The connections and messages of a port's VMMs, since the port was made.
    #[derive(Copy, Default)]
    ConversationCount {
        /// VMMs that have connected.
        connections: u64,
        /// VMMs that left within a second, or without a request. After each, the port accepts no client for
        /// 50 ms, up to 1 s if that continues.
        brief: u64,
        /// VMMs that were disconnected because they sent no first message within 10 s.
        silent: u64,
        /// VMMs that were refused, because another one was connected or no descriptor was left.
        refused: u64,
        /// Changes by their messages that I/O cores notice: queues taken back and served, memory mapped and
        /// unmapped, interrupts set up.
        changes: u64,
        /// How often messages were delayed because they caused too many changes.
        held: u64,
        /// Microseconds of these delays.
        held_us: u64,
    }
}

/// The token buckets that hold messages back, and what was counted.
#[derive(Debug, Default)]
pub struct MessageLimiter {
    /// Process id of the present peer; 0: none, or unknown.
    peer: AtomicU32,
    /// When it was met, in nanoseconds since the host's start.
    met: AtomicU64,
    /// When another client was turned away last because of it; 0: none was.
    second: AtomicU64,
    /// Whether anything was charged since the last look, and when that was, in nanoseconds.
    charged: AtomicBool,
    looked: AtomicU64,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    /// The thread that holds the conversation.
    thread: Option<ThreadId>,
    /// Nanoseconds in which one change fills up again, and those of all that it may make at once.
    one: u64,
    all: u64,
    changes: Bucket,
    time: Bucket,
    /// Time that the thread, and its peer's process, have had up to the last look.
    had: Option<(Duration, Duration)>,
    counts: ConversationCount,
    /// For how long messages were held back.
    held: Duration,
}

impl Buckets {
    /// One that holds `burst` changes, and fills at `rate`.
    fn of(burst: u32, rate: u32) -> Buckets {
        let one = 1_000_000_000 / u64::from(rate.max(1));
        Buckets {
            thread: None,
            one,
            all: one * u64::from(burst),
            changes: Bucket::new(),
            time: Bucket::new(),
            had: None,
            counts: ConversationCount::default(),
            held: Duration::ZERO,
        }
    }
}

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets::of(BURST, RATE)
    }
}

/// What a clock that starts at 0 tells.
fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let (secs, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(secs.unwrap_or(0), nanos.unwrap_or(0))
}

impl MessageLimiter {
    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        // Numbers: whole whatever happened.
        crate::lock(&self.buckets)
    }

    /// The calling thread holds the port's conversations from now on.
    pub fn is_held_here(&self) {
        let mut buckets = self.buckets();
        (buckets.thread, buckets.had) = (Some(thread::current().id()), None);
    }

    /// Other limits than [`BURST`] and [`RATE`]: for tests, which a slow machine must not make pass or fail.
    pub fn limit(&self, burst: u32, rate: u32) {
        let mut buckets = self.buckets();
        let (thread, counts) = (buckets.thread, buckets.counts);
        *buckets = Buckets { thread, counts, held: buckets.held, ..Buckets::of(burst, rate) };
    }

    /// The other end of `socket` is the peer from now on.
    pub fn meets(&self, socket: impl AsFd) {
        let pid =
            socket_peercred(socket).ok().and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
        self.met.store(nanos(time_of(ClockId::Boottime)), Ordering::Relaxed);
        self.peer.store(pid.unwrap_or(0), Ordering::Relaxed);
        self.buckets().had = None;
    }

    /// The peer is gone.
    pub fn parts(&self) {
        self.peer.store(0, Ordering::Relaxed);
        self.second.store(0, Ordering::Relaxed);
    }

    /// Another client was turned away because of the present peer; whether it is the first.
    pub fn refused_second(&self) -> bool {
        self.note(|counts| counts.refused += 1);
        self.second.swap(nanos(time_of(ClockId::Boottime)), Ordering::Relaxed) == 0
    }

    /// How long ago that was.
    pub fn since_second(&self) -> Option<Duration> {
        let at = self.second.load(Ordering::Relaxed);
        (at != 0).then(|| time_of(ClockId::Boottime).saturating_sub(Duration::from_nanos(at)))
    }

    /// The process of the present peer, if that is known.
    pub fn peer(&self) -> Option<u32> {
        Some(self.peer.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// When that peer was met, in nanoseconds since the host's start (CLOCK_BOOTTIME). A process with its
    /// number that started later is another one.
    pub fn met_ns(&self) -> Option<u64> {
        self.peer().map(|_| self.met.load(Ordering::Relaxed))
    }

    /// Counts something of the port's conversations.
    pub fn note(&self, note: impl FnOnce(&mut ConversationCount)) {
        note(&mut self.buckets().counts);
    }

    /// Charges `count` changes, if it is the conversation that makes them.
    pub fn changed(&self, count: usize) {
        let mut buckets = self.buckets();
        if buckets.thread != Some(thread::current().id()) {
            return;
        }
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        buckets.counts.changes += count;
        let most = buckets.all + nanos(LONGEST);
        buckets.changes.add(buckets.one.saturating_mul(count), most, nanos_at(Instant::now()));
        self.charged.store(true, Ordering::Relaxed);
    }

    /// How long the next message has to wait. Asked by the conversation behind each batch of them, and once:
    /// the wait counts.
    pub fn hold(&self) -> Option<Duration> {
        let (shared, now) = (crate::util::place::is_shared(), Instant::now());
        let looked = nanos_at(now).saturating_sub(self.looked.load(Ordering::Relaxed));
        if !self.charged.swap(false, Ordering::Relaxed) && !shared && looked < nanos(LOOK) {
            return None;
        }
        self.looked.store(nanos_at(now), Ordering::Relaxed);
        let free = if shared { Some(Duration::ZERO) } else { self.peer().and_then(process_time) };
        // Nothing is known of a peer in another namespace for processes.
        self.hold_at(now, free.map(|free| (time_of(ClockId::ThreadCPUTime), free)))
    }

    /// `had`: what the thread has had of a processor so far, and what of that is free.
    fn hold_at(&self, now: Instant, had: Option<(Duration, Duration)>) -> Option<Duration> {
        let (mut buckets, now) = (self.buckets(), nanos_at(now));
        let mut wait = buckets.changes.ahead(now).saturating_sub(buckets.all);
        if let Some((had, free)) = had {
            let before = buckets.had.replace((had, free)).unwrap_or((had, free));
            let took = had.saturating_sub(before.0).saturating_sub(free.saturating_sub(before.1));
            let all = nanos(TIME * SHARE);
            buckets.time.add(nanos(took * SHARE), all + nanos(LONGEST), now);
            wait = wait.max(buckets.time.ahead(now).saturating_sub(all));
        }
        if wait == 0 {
            return None;
        }
        let wait = Duration::from_nanos(wait);
        buckets.counts.held += 1;
        buckets.held += wait;
        Some(wait)
    }

    /// What was counted so far.
    pub fn count(&self) -> ConversationCount {
        let buckets = self.buckets();
        ConversationCount { held_us: nanos(buckets.held) / 1_000, ..buckets.counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_conversations_own_changes_are_charged_to_it() {
        let messages = MessageLimiter::default();
        messages.changed(1_000_000);
        assert_eq!((messages.hold(), messages.count()), (None, ConversationCount::default()), "nobody talks");
        messages.is_held_here();
        std::thread::scope(|scope| scope.spawn(|| messages.changed(1_000_000)).join().unwrap());
        assert_eq!(
            (messages.hold(), messages.count()),
            (None, ConversationCount::default()),
            "somebody else"
        );
        messages.changed(BURST as usize);
        assert_eq!(messages.hold(), None, "a guest's start is not held back");
        messages.changed(1_000_000);
        let wait = messages.hold().expect("there is nothing left");
        assert!(wait <= LONGEST, "{wait:?}");
        let count = messages.count();
        assert_eq!((count.changes, count.held), (1_000_000 + u64::from(BURST), 1));
        assert_eq!(u128::from(count.held_us), wait.as_micros());
    }

    /// A tenth of a processor in the long run, and what its peer has of one: none, a fifth as much, and as
    /// much.
    #[test]
    fn time_of_a_processor_is_limited() {
        for (peers, least, most) in [(0, 2_400, 2_700), (5, 3_000, 3_400), (1, 19_990, 20_001)] {
            let messages = MessageLimiter::default();
            let (mut now, mut had) = (Instant::now(), Duration::from_secs(5));
            let (start, step) = (now, Duration::from_millis(1));
            let free = |had: Duration| had.checked_div(peers).unwrap_or_default();
            assert_eq!(messages.hold_at(now, Some((had, free(had)))), None, "what was before does not count");
            while now < start + Duration::from_secs(20) {
                (now, had) = (now + step, had + step);
                now += messages.hold_at(now, Some((had, free(had)))).unwrap_or_default();
            }
            let took = had - Duration::from_secs(5);
            assert!((least..most).contains(&took.as_millis()), "{took:?} of 20 s, peers: {peers}");
        }
    }

    #[test]
    fn the_time_of_a_process_is_known() {
        let before = process_time(std::process::id()).unwrap();
        while process_time(std::process::id()).unwrap() == before {}
        assert!(before > Duration::ZERO && process_time(u32::MAX / 2).is_none());
    }
}
