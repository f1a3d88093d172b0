//! What a tenant's peers cost I/O cores beyond what is usual: one account for each tenant, which is a port or
//! several.
//!
//! Theory of operation. A peer (a VMM, a ring client) can make three acts of an I/O core take as long as it
//! likes: touching a page of the memory that it gave, which it may punch out all the time; raising one of its
//! eventfds, whose waiters the kernel walks; and the work of one of its messages. Each of these acts is
//! timed, and what it takes beyond [`USUAL`] is an *overrun* of the port. A port with more than [`MOST`] of
//! that in a second *rests* for [`REST`]: no I/O core serves it, and frames for it are dropped, or wait on
//! their wire. The rest number [`RESTS`] within [`LATELY`] stops it (`memory_stalled`). If the ports of one
//! core together have more than [`MOST_OF_CORE`] in a second, the one with the largest part of that rests.
//!
//! A port is accused only of what is certainly its own. An act within another one (an eventfd that is raised,
//! or the other end's memory that is touched, while a batch is given back) counts for its own port alone.
//! Time in which the thread had no processor is the host's (`lost`). A page of swapped memory is the host's,
//! too. The first clearing of huge pages is a guest's right: [`Overrun::expect_clearing`] says how long that
//! may take in all. A copy between two ports' memories accuses neither of them: after a slow one the core
//! touches both sides' memory apart for a while (`graph::deliver`).
//!
//! Threads that are no I/O cores are not timed: whoever has them wait has only its own conversation wait.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::{Duration, Instant};

use super::lost;
use super::ticks::{ticks, ticks_in, time_of};
use crate::util::bucket::Bucket;
use crate::util::fault::{Fault, FaultCell};

/// What an act may take.
const USUAL: Duration = Duration::from_millis(1);
/// Overruns of a port in a second, and of all ports of a core.
const MOST: Duration = Duration::from_millis(50);
const MOST_OF_CORE: Duration = Duration::from_millis(200);
/// How long a port rests.
const REST: Duration = Duration::from_secs(1);
/// A port that rests this often within that time is stopped.
const RESTS: usize = 8;
const LATELY: Duration = Duration::from_secs(3600);
/// The kernel clears a huge page of 2 MiB in less.
const CLEARING: Duration = Duration::from_millis(1);
const HUGE_PAGE: u64 = 2 << 20;
/// How often a peer's memory may be new.
const NEW: Duration = Duration::from_secs(600);
/// An act that takes less than this part of the usual is left to the one that it is within.
const BRIEF: u64 = 16;
/// Acts that are remembered: more than any other act has within it.
const REMEMBERED: usize = 16;

static TICKS_OF_USUAL: LazyLock<u64> = LazyLock::new(|| ticks_in(USUAL));

/// What an act may take: ticks.
fn usual() -> u64 {
    *TICKS_OF_USUAL
}

crate::util::form::view! {
    /// What a port's memory, eventfds and messages took of I/O cores beyond a millisecond each, since it was
    /// made.
    #[derive(Copy, Default)]
    OverrunCount {
        /// Microseconds in all.
        total_us: u64,
        /// Microseconds of the longest.
        longest_us: u64,
        /// How often the port was not served for a second, because it took more than 50 ms in a second.
        rests: u64,
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Its memory was touched: what takes long is a wait for pages.
    Touch,
    /// One of its eventfds was raised: what takes long is work of the kernel's.
    Work,
}

/// The account of one port. Copies are the same account.
#[derive(Clone, Debug, Default)]
pub struct Overrun(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    /// When its rest ends: ticks. 0: it does not rest.
    until: AtomicU64,
    name: String,
    /// Its ports' faults. They go with the ports: I/O cores keep accounts for longer, and a descriptor
    /// belongs to each fault.
    faults: Mutex<Vec<Weak<FaultCell>>>,
    tally: Mutex<Taken>,
    total_ns: AtomicU64,
    longest_ns: AtomicU64,
    rests: AtomicU64,
}

#[derive(Debug, Default)]
struct Taken {
    recent: Bucket,
    /// When its rests of late began.
    lately: Vec<u64>,
    /// Time that clearing of its memory may take, and has taken since its peer came.
    clearing: Duration,
    cleared: Duration,
    /// When a peer's memory was last taken for new.
    met: Option<Instant>,
}

/// Takes `more` at `now` of what is `allowed` in a second. True: that is more than all of it. All are ticks.
fn exceeds(bucket: &Bucket, more: u64, allowed: Duration, now: u64) -> bool {
    let second = ticks_in(REST);
    let cost = u128::from(more) * u128::from(second) / u128::from(ticks_in(allowed).max(1));
    bucket.add(u64::try_from(cost).unwrap_or(u64::MAX), second, now) > second
}

/// What the ports of one core had of it together in the present second.
#[derive(Default)]
struct OfCore {
    parts: Vec<(Overrun, u64)>,
    since: u64,
}

thread_local! {
    /// Acts of this core of late that no other one had within it, the last one last: when each began, and how
    /// long it was.
    static ACTS: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
    static OF_CORE: RefCell<OfCore> = RefCell::default();
}

/// What the acts took that were within the one that began at `begun` and took `took`. Each has its own
/// account, and from now on this one stands for them in `acts`. An act is within this one if it ended after
/// `begun`: a caller may have reckoned `begun` back from the end, and then it can lie a little after the
/// begin of an act within.
fn within(acts: &mut Vec<(u64, u64)>, begun: u64, took: u64) -> u64 {
    let first = acts
        .iter()
        .position(|(at, long)| at.wrapping_add(*long).wrapping_sub(begun) <= took)
        .unwrap_or(acts.len());
    let inner = acts.drain(first..).map(|(_, took)| took).sum();
    if acts.len() == REMEMBERED {
        acts.remove(0);
    }
    acts.push((begun, took));
    inner
}

impl Overrun {
    /// The account of the tenant called `name`.
    pub fn new(name: &str) -> Overrun {
        Overrun(Arc::new(Account { name: name.to_owned(), ..Account::default() }))
    }

    /// A port of the tenant stops by `fault` when that has rested too often.
    pub fn stops(&self, fault: &Arc<FaultCell>) {
        let mut faults = crate::lock(&self.0.faults);
        faults.retain(|fault| fault.strong_count() > 0);
        faults.push(Arc::downgrade(fault));
    }

    /// Whether it rests.
    pub fn rests(&self) -> bool {
        self.0.until.load(Ordering::Relaxed) != 0 && !self.left().is_zero()
    }

    /// How long it still rests.
    #[cold]
    pub fn left(&self) -> Duration {
        let until = self.0.until.load(Ordering::Relaxed);
        // Clocks of two processors may differ a little; where they differ by more, it ends.
        let left = until.wrapping_sub(ticks());
        if left <= ticks_in(REST) {
            return time_of(left);
        }
        let _ = self.0.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        Duration::ZERO
    }

    /// Does `act`, which is timed.
    #[inline]
    pub fn timed<T>(&self, act: Act, work: impl FnOnce() -> T) -> T {
        let begun = ticks();
        let done = work();
        self.took(act, begun);
        done
    }

    /// An act that began at `begun` (ticks) is done. What it took beyond the usual: ticks, which are the
    /// port's own.
    #[inline]
    pub fn took(&self, act: Act, begun: u64) -> u64 {
        let took = ticks().wrapping_sub(begun);
        if took <= usual() / BRIEF {
            return 0;
        }
        self.took_long(act, begun, took)
    }

    #[cold]
    fn took_long(&self, act: Act, begun: u64, took: u64) -> u64 {
        let others = ACTS.with_borrow_mut(|acts| within(acts, begun, took));
        if took <= usual() {
            return 0;
        }
        let Some(own) = lost::own(begun, act == Act::Touch) else { return 0 };
        let more = own.saturating_sub(others).saturating_sub(usual());
        if more > 0 {
            self.add(more, act, ticks());
        }
        more
    }

    fn add(&self, mut more: u64, act: Act, now: u64) {
        let account = &*self.0;
        let mut state = crate::lock(&account.tally);
        if act == Act::Touch {
            let free = state.clearing.saturating_sub(state.cleared).min(time_of(more));
            state.cleared += free;
            more = more.saturating_sub(ticks_in(free));
        }
        if more == 0 {
            return;
        }
        let ns = u64::try_from(time_of(more).as_nanos()).unwrap_or(u64::MAX);
        account.total_ns.fetch_add(ns, Ordering::Relaxed);
        account.longest_ns.fetch_max(ns, Ordering::Relaxed);
        let too_much = exceeds(&state.recent, more, MOST, now);
        drop(state);
        if too_much {
            self.rest(now);
        }
        let largest = OF_CORE.with_borrow_mut(|core| core.take(self, more, now));
        if let Some(largest) = largest {
            largest.rest(now);
        }
    }

    /// It rests from `now` on; too often, and it stops.
    fn rest(&self, now: u64) {
        let account = &*self.0;
        if self.rests() {
            return;
        }
        account.until.store(now.wrapping_add(ticks_in(REST)).max(1), Ordering::Relaxed);
        account.rests.fetch_add(1, Ordering::Relaxed);
        let mut state = crate::lock(&account.tally);
        let lately = ticks_in(LATELY);
        state.lately.retain(|then| now.wrapping_sub(*then) < lately);
        state.lately.push(now);
        let stops = state.lately.len() >= RESTS;
        drop(state);
        tracing::warn!(
            port = account.name,
            "its memory, its eventfds or its messages held I/O cores up for more than {MOST:?} in a second: it rests for {REST:?}"
        );
        if stops {
            let faults = crate::lock(&account.faults);
            faults.iter().filter_map(Weak::upgrade).for_each(|fault| fault.set(Fault::MemoryStalled));
        }
    }

    /// The port's peer has given `bytes` of huge pages in all, which the host's pool has for it. The kernel
    /// clears each when it is touched first.
    pub fn expect_clearing(&self, bytes: u64) {
        let pages = u32::try_from(bytes.div_ceil(HUGE_PAGE)).unwrap_or(u32::MAX);
        crate::lock(&self.0.tally).clearing = CLEARING.saturating_mul(pages);
    }

    /// Another peer has come, whose memory is new; one that comes again and again is not believed.
    pub fn meets(&self) {
        let mut state = crate::lock(&self.0.tally);
        if state.met.is_none_or(|met| met.elapsed() >= NEW) {
            (state.met, state.cleared) = (Some(Instant::now()), Duration::ZERO);
        }
    }

    /// What was counted so far.
    pub fn count(&self) -> OverrunCount {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OverrunCount {
            total_us: load(&self.0.total_ns) / 1_000,
            longest_us: load(&self.0.longest_ns) / 1_000,
            rests: load(&self.0.rests),
        }
    }
}

impl OfCore {
    /// The calling core has lost `more` ticks to the port of `overrun`. The port that rests because all of
    /// them together took too much.
    fn take(&mut self, overrun: &Overrun, more: u64, now: u64) -> Option<Overrun> {
        if now.wrapping_sub(self.since) > ticks_in(REST) {
            self.parts.clear();
            self.since = now;
        }
        match self.parts.iter_mut().find(|(other, _)| Arc::ptr_eq(&other.0, &overrun.0)) {
            Some((_, part)) => *part = part.saturating_add(more),
            None => self.parts.push((overrun.clone(), more)),
        }
        if self.parts.iter().map(|(_, part)| part).sum::<u64>() <= ticks_in(MOST_OF_CORE) {
            return None;
        }
        // Its part is paid for with that, also if it rests already: the others do not pay for it.
        let (largest, _) = self.parts.iter().enumerate().max_by_key(|(_, (_, part))| *part)?;
        Some(self.parts.swap_remove(largest).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn port() -> (Overrun, Arc<FaultCell>) {
        let fault = Arc::new(FaultCell::new().unwrap());
        let overrun = Overrun::new("p");
        overrun.stops(&fault);
        (overrun, fault)
    }

    #[test]
    fn a_port_that_has_gone_has_no_descriptor_though_a_core_knows_its_account() {
        let (port, fault) = port();
        port.add(ticks_in(2 * MS), Act::Work, ticks());
        assert_eq!(Arc::strong_count(&fault), 1);
    }

    #[test]
    fn who_takes_a_twentieth_works_and_who_takes_more_rests() {
        let ((port, _), ms) = (port(), ticks_in(MS));
        let mut now = ticks();
        for _ in 0..1_000 {
            now += 25 * ms;
            port.add(ms, Act::Work, now);
        }
        assert_eq!(port.count().rests, 0);
        for _ in 0..60 {
            now += 10 * ms;
            port.add(ms, Act::Work, now);
        }
        assert_eq!(port.count().rests, 0, "a second of a tenth");
        for _ in 0..1_000 {
            now += 10 * ms;
            port.add(ms, Act::Work, now);
        }
        assert!(port.count().rests > 0 && port.count().longest_us >= 999, "{port:?}");
    }

    #[test]
    fn the_eighth_rest_in_an_hour_stops_it() {
        let ((port, fault), start) = (port(), ticks());
        for n in 1..=8 {
            assert_eq!(fault.get(), None, "{n}");
            port.0.until.store(0, Ordering::Relaxed);
            port.add(ticks_in(100 * MS), Act::Work, start + n * ticks_in(REST) * 60);
        }
        assert_eq!((fault.get(), port.count().rests), (Some(Fault::MemoryStalled), 8));
        let ((port, fault), hour) = (self::port(), ticks_in(LATELY));
        for n in 1..=30 {
            port.0.until.store(0, Ordering::Relaxed);
            port.add(ticks_in(100 * MS), Act::Work, start + n * (hour / 7 + 1));
        }
        assert_eq!(fault.get(), None, "seven an hour are borne");
    }

    #[test]
    fn new_huge_pages_are_cleared_once_for_nothing() {
        let ((port, _), now) = (port(), ticks());
        port.expect_clearing(300 * HUGE_PAGE);
        for n in 0..3 {
            port.add(ticks_in(100 * MS), Act::Touch, now + n);
        }
        assert_eq!(port.count(), OverrunCount::default());
        // Memory that it gives once more is not new.
        port.expect_clearing(300 * HUGE_PAGE);
        port.add(ticks_in(100 * MS), Act::Touch, now + 4);
        assert_eq!(port.count().rests, 1);
        let other = Overrun::default();
        other.expect_clearing(300 * HUGE_PAGE);
        other.add(ticks_in(100 * MS), Act::Work, now);
        assert_eq!(other.count().rests, 1, "an eventfd has no pages");
    }

    /// As the kernel may need to clear one of 1 GiB: the second one is new memory, too, if it was given as
    /// well.
    #[test]
    fn a_new_page_of_a_gibibyte_may_take_300_ms() {
        for pages in [1, 2] {
            let ((port, _), now) = (port(), ticks());
            port.expect_clearing(pages << 30);
            (0..pages).for_each(|page| port.add(ticks_in(300 * MS), Act::Touch, now + page));
            assert_eq!(port.count(), OverrunCount::default());
            // Touched first a hundred times: no page is new so often.
            (0..100).for_each(|time| port.add(ticks_in(300 * MS), Act::Touch, now + 10 + time));
            assert_eq!(port.count().rests, 1);
        }
    }

    /// A port that takes much rests, and what it took is not held against one that takes little beside it.
    #[test]
    fn a_small_one_does_not_rest_for_a_large_one() {
        std::thread::spawn(|| {
            let ((large, _), (small, _), now) = (port(), port(), ticks());
            for time in 0..20 {
                large.add(ticks_in(210 * MS), Act::Work, now + time);
                small.add(ticks_in(MS), Act::Work, now + time);
            }
            assert_eq!((large.count().rests, small.count().rests), (1, 0));
        })
        .join()
        .unwrap();
    }

    /// Ten ports, none of which takes too much.
    #[test]
    fn the_largest_of_many_rests() {
        std::thread::spawn(|| {
            let (ms, now) = (ticks_in(MS), ticks());
            let ports: Vec<Overrun> = (0..10).map(|_| port().0).collect();
            for _ in 0..8 {
                for (n, port) in ports.iter().enumerate() {
                    port.add(if n == 4 { 4 * ms } else { 3 * ms }, Act::Work, now);
                }
            }
            let rests: Vec<u64> = ports.iter().map(|port| port.count().rests).collect();
            assert_eq!((rests[4], rests.iter().sum::<u64>() >= 1), (1, true), "{rests:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_act_within_another_counts_once() {
        let mut acts = Vec::new();
        assert_eq!(within(&mut acts, 100, 10), 0);
        // Two within one, one of which has another within it; what was before it stays out.
        assert_eq!(
            (within(&mut acts, 210, 5), within(&mut acts, 205, 15), within(&mut acts, 230, 20)),
            (0, 5, 0)
        );
        assert_eq!(within(&mut acts, 200, 60), 35);
        assert_eq!(acts, [(100, 10), (200, 60)]);
        // As many as one has at most, behind others; and the clock comes around.
        (0..20).for_each(|n| {
            within(&mut acts, 1_000 + 10 * n, 5);
        });
        assert_eq!(within(&mut acts, 1_000 + 10 * 4, 200), 16 * 5);
        assert_eq!((within(&mut acts, u64::MAX - 1, 1), within(&mut acts, u64::MAX - 2, 10)), (0, 1));
        // A begin that was reckoned back.
        assert_eq!(within(&mut vec![(95, 50)], 100, 50), 50);
    }

    /// Nothing is known of what threads other than I/O cores lose.
    #[test]
    fn other_threads_accuse_nobody() {
        let (port, _) = port();
        port.timed(Act::Work, || std::thread::sleep(60 * MS));
        assert_eq!(port.count(), OverrunCount::default());
    }
}
