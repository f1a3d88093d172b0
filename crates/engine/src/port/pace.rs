//! How long deliveries to a port take, and what that costs it.
//!
//! Theory of operation. A frame is copied into the receiver's memory by the I/O core of its sender. Where that memory has to
//! be found or cleared first, or is offered in hundreds of pieces, the copy takes as long as the receiver likes: huge pages that
//! were never touched take up to a millisecond each. So a delivery is timed, and ends after [`LIMIT`]; the receiver is *watched*
//! from then on, because the time may have been the sender's, or that of another program on the core's processor. A watched
//! receiver gets frames that were copied to private memory before, and what such a delivery takes beyond [`LIMIT`] is its own.
//! It pays with [`MULTIPLE`] times that time: until that has passed it gets no frames, so that a receiver has a fifth of
//! a core at most. It is not watched any more when it was not slow for [`LONG`] times as long as it was slow: a watched
//! receiver costs its senders a second copy, and the host's hypervisor makes any delivery slow now and then.
//!
//! A guest whose buffers are new is no attacker: [`FREE`] is not paid for, and that comes back in the long run.
//!
//! What deliveries take beyond the usual adds up, too: six receivers that each take a little less than [`LIMIT`] of every
//! broadcast cost its sender more than a millisecond. A receiver with more of it than [`OFTEN`] allows is watched *closely*:
//! then it pays for what is beyond the usual.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::mem::{ticks, ticks_in, time_of};

/// A batch that is delivered in less, beside what its bytes take, is usual: a full one of small frames takes some 0.02 ms.
pub const LIMIT: Duration = Duration::from_micros(250);
/// What a delivery usually takes at most, beside what its bytes take: so much, and so much for each frame.
const USUAL: Duration = Duration::from_micros(25);
const USUAL_OF_FRAME: Duration = Duration::from_micros(1);
/// So much beyond that is overlooked, and one part in [`OFTEN_RETURN`] of the time that passes comes back.
const OFTEN: Duration = Duration::from_millis(20);
const OFTEN_RETURN: u64 = 20;
/// A slow delivery is followed by so many times its time without one.
const MULTIPLE: u64 = 4;
/// So much is not paid for, and one part in [`RETURN`] of the time that passes comes back.
const FREE: Duration = Duration::from_millis(5);
const RETURN: u64 = 200;
/// How long a receiver is watched after a delivery that took long; after one that was slow for certain so many times as
/// long as that took, up to the longest.
const SUSPECTED: Duration = Duration::from_millis(10);
const LONG: u32 = 100;
const WATCHED: Duration = Duration::from_secs(10);

/// What is known of a receiver's pace. Cores share it; those that deliver to a port that is not watched only read a flag.
#[derive(Debug, Default)]
pub struct Pace {
    watched: AtomicBool,
    state: Mutex<WatchState>,
}

#[derive(Debug, Default)]
struct WatchState {
    /// For how long it is watched, and gets nothing.
    watch: Span,
    owes: Span,
    /// What of [`FREE`] was used up.
    free: Leak,
    /// And of [`OFTEN`].
    often: Leak,
    /// For how long it is watched closely.
    close: Span,
}

/// What was used of something that comes back with time: ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Leak {
    used: u64,
    at: u64,
}

impl Leak {
    /// Uses `took` more of `all`, one part of time in `part` of which comes back; what is beyond it.
    fn add(&mut self, took: u64, all: Duration, part: u64, now: u64) -> u64 {
        let back = now.saturating_sub(self.at) / part;
        let (used, all) = (self.used.saturating_sub(back).saturating_add(took), ticks_in(all));
        *self = Leak { used: used.min(all), at: now };
        used.saturating_sub(all)
    }
}

/// What a delivery of so many frames usually takes at most, beside what their bytes take: ticks.
#[inline]
pub fn usual(frames: usize) -> u64 {
    ticks_in(USUAL).saturating_add(ticks_in(USUAL_OF_FRAME).saturating_mul(frames as u64))
}

/// A time that ends: ticks. Clocks of two processors may differ a little; where they differ by more, it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    since: u64,
    long: u64,
}

impl Span {
    fn left(self, now: u64) -> u64 {
        self.long.saturating_sub(now.abs_diff(self.since))
    }
}

impl Pace {
    /// Whether deliveries to it need a closer look.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        // Numbers: whole whatever happened.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A delivery took longer than [`LIMIT`], for whatever reason: so many ticks beyond the usual.
    #[cold]
    pub fn suspect(&self, ticks_more: u64) {
        self.suspect_at(ticks_more, ticks());
    }

    fn suspect_at(&self, more: u64, now: u64) {
        self.watch(&mut self.state(), now, SUSPECTED);
        self.lagged_at(more, now);
    }

    /// A delivery took so many ticks beyond the usual, but not longer than [`LIMIT`].
    #[cold]
    pub fn lagged(&self, ticks_more: u64) {
        self.lagged_at(ticks_more, ticks());
    }

    fn lagged_at(&self, more: u64, now: u64) {
        let mut state = self.state();
        if state.often.add(more, OFTEN, OFTEN_RETURN, now) > 0 {
            self.watch(&mut state, now, WATCHED);
            state.close = Span { since: now, long: ticks_in(WATCHED) };
        }
    }

    /// Whether it is watched closely: what a delivery takes beyond the usual is its own.
    #[cold]
    pub fn is_closely_watched(&self) -> bool {
        self.state().close.left(ticks()) > 0
    }

    fn watch(&self, state: &mut WatchState, now: u64, time: Duration) {
        let long = ticks_in(time).max(state.watch.left(now));
        state.watch = Span { since: now, long };
        self.watched.store(true, Ordering::Relaxed);
    }

    /// Whether it gets no frames now, because it was slow.
    #[inline]
    pub fn rests(&self) -> bool {
        self.is_watched() && self.rests_at(ticks())
    }

    #[cold]
    fn rests_at(&self, now: u64) -> bool {
        let state = self.state();
        if state.watch.left(now) == 0 {
            self.watched.store(false, Ordering::Relaxed);
            return false;
        }
        state.owes.left(now) > 0
    }

    /// A delivery of frames that lay ready took so many ticks, more than [`LIMIT`]. True: it gets no more for now.
    #[cold]
    pub fn was_slow(&self, took: u64) -> bool {
        self.was_slow_at(took, ticks())
    }

    fn was_slow_at(&self, took: u64, now: u64) -> bool {
        let mut state = self.state();
        self.watch(&mut state, now, (time_of(took) * LONG).clamp(SUSPECTED, WATCHED));
        let beyond = state.free.add(took, FREE, RETURN, now);
        if beyond == 0 {
            return false;
        }
        let long = beyond.saturating_mul(MULTIPLE).saturating_add(state.owes.left(now));
        state.owes = Span { since: now, long };
        // For as long as it owes it is watched.
        self.watch(&mut state, now, time_of(long).saturating_add(WATCHED));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_is_slow_gets_a_fifth_of_a_core_and_what_is_new_is_free() {
        let (pace, ms) = (Pace::default(), ticks_in(MS));
        let mut now = ticks();
        assert!(!pace.is_watched() && !pace.rests_at(now));
        // A guest's first touch of its buffers.
        for _ in 0..4 {
            assert!(!pace.was_slow_at(ms, now));
        }
        assert!(pace.is_watched() && !pace.rests_at(now));
        let (start, mut spent) = (now, 0);
        while now < start + 10_000 * ms {
            if pace.rests_at(now) {
                now += ms / 4;
                continue;
            }
            (now, spent) = (now + 2 * ms, spent + 2);
            pace.was_slow_at(2 * ms, now);
        }
        assert!((1_900..2_300).contains(&spent), "{spent} of 10,000 ms");
        // It is believed again, and its free time has come back.
        now += ticks_in(2 * WATCHED);
        assert!(!pace.rests_at(now) && !pace.is_watched());
        assert!(!pace.was_slow_at(4 * ms, now) && pace.was_slow_at(4 * ms, now));
        // What takes very long is paid for however long that is.
        now += ticks_in(2 * WATCHED);
        assert!(pace.was_slow_at(20_000 * ms, now));
        assert!(pace.rests_at(now + 79_000 * ms) && !pace.rests_at(now + 81_000 * ms));
    }

    #[test]
    fn who_lags_a_little_very_often_is_watched_closely() {
        let (pace, ms) = (Pace::default(), ticks_in(MS));
        let mut now = ticks();
        // A twentieth of the time is overlooked for ever.
        for _ in 0..2_000 {
            now += 4 * ms;
            pace.lagged_at(ms / 5, now);
        }
        assert!(!pace.is_watched());
        // A tenth is not.
        let before = now;
        while !pace.is_watched() {
            now += 2 * ms;
            pace.lagged_at(ms / 5, now);
            assert!(now < before + 1_000 * ms);
        }
        assert!(now > before + 300 * ms && pace.state().close.left(now) > 0);
    }

    #[test]
    fn who_takes_long_whenever_it_is_not_watched_is_watched_closely() {
        let (pace, ms) = (Pace::default(), ticks_in(MS));
        let mut now = ticks();
        // A twentieth of the time.
        for _ in 0..500 {
            now += 40 * ms;
            assert!(!pace.rests_at(now) && !pace.is_watched());
            pace.suspect_at(2 * ms, now);
        }
        assert_eq!(pace.state().close.left(now), 0);
        for _ in 0..50 {
            now += 12 * ms;
            pace.suspect_at(2 * ms, now);
        }
        assert!(pace.state().close.left(now) > 0);
    }

    #[test]
    fn who_was_slow_is_watched_a_hundred_times_as_long() {
        let (pace, ms) = (Pace::default(), ticks_in(MS));
        let now = ticks();
        assert!(!pace.was_slow_at(ms, now));
        assert!(!pace.rests_at(now + 99 * ms) && pace.is_watched());
        assert!(!pace.rests_at(now + 101 * ms) && !pace.is_watched());
    }

    #[test]
    fn who_is_suspected_is_watched_for_a_moment() {
        let pace = Pace::default();
        pace.suspect(0);
        let now = ticks();
        assert!(pace.is_watched() && !pace.rests());
        assert!(!pace.rests_at(now + ticks_in(SUSPECTED / 2)) && pace.is_watched());
        assert!(!pace.rests_at(now + ticks_in(SUSPECTED)) && !pace.is_watched());
        // A clock that is a little behind is no way out; one that has nothing to do with it is not waited for.
        pace.was_slow_at(ticks_in(100 * MS), now);
        assert!(pace.rests_at(now) && pace.rests_at(now - 1) && !pace.rests_at(0));
    }
}
