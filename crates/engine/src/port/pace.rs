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
//! What deliveries take beyond the usual adds up, too, however little each takes. [`OFTEN`] says what is overlooked. It is kept
//! twice: for a receiver that is not watched, because a sender whose pages are slow makes any receiver seem so; and for one
//! that is, where the time is certainly its own. What goes beyond the first has it watched for [`WATCHED`], and costs it nothing.
//! What goes beyond the second it pays for. So no sender has another port's frames dropped.
//!
//! None of this is about interfaces of the host's: what a kernel does with frames there takes the time that these frames need, and
//! a guest that sends many must not have others' dropped (`EgressQueue::is_a_peers`).
//!
//! Receivers may be many, and each could stay just below what is overlooked, or have its fifth. So a core notes what all of them
//! had together ([`Crowd`](super::Crowd)). When too much was overlooked, each receiver is allowed one part in [`CROWDED`] of the usual: who is
//! slow now and then does not notice. And those who pay have a fifth of the core together, not each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::allowance::{Allowance, Leak, Span};
use crate::mem::{ticks, ticks_in, time_of};

/// A batch that is delivered in less, beside what its bytes take, is usual: a full one of small frames takes some 0.02 ms.
pub const LIMIT: Duration = Duration::from_micros(250);
/// What a delivery usually takes at most, beside what its bytes take: so much, and so much for each frame.
const USUAL: Duration = Duration::from_micros(25);
const USUAL_OF_FRAME: Duration = Duration::from_micros(1);
/// So much beyond that is overlooked.
const OFTEN: Allowance = Allowance { all: Duration::from_millis(20), part: 20 };
/// One part of that in so many is left to each receiver where too much was overlooked of all.
const CROWDED: u32 = 8;
/// A slow delivery is followed by so many times its time without one.
pub(super) const MULTIPLE: u64 = 4;
/// So much is not paid for.
const FREE: Allowance = Allowance { all: Duration::from_millis(5), part: 200 };
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
    /// For how long it is one of those who pay.
    pays: Span,
    /// What of [`FREE`] was used up.
    free: Leak,
    /// And of [`OFTEN`]: by what may have been its sender's, and by what was certainly its own.
    often: Leak,
    sure: Leak,
}

/// What a delivery of so many frames usually takes at most, beside what their bytes take: ticks.
#[inline]
pub fn usual(frames: usize) -> u64 {
    ticks_in(USUAL).saturating_add(ticks_in(USUAL_OF_FRAME).saturating_mul(frames as u64))
}

/// What is overlooked of a receiver; `crowded`: where too much was overlooked of all.
fn often(crowded: bool) -> Allowance {
    if crowded {
        OFTEN.divided(CROWDED)
    } else {
        OFTEN
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

    /// A delivery took longer than [`LIMIT`], for whatever reason: so many ticks beyond the usual. `crowded`: see [`Crowd`](super::Crowd).
    #[cold]
    pub fn suspect(&self, ticks_more: u64, crowded: bool) {
        self.suspect_at(ticks_more, crowded, ticks());
    }

    fn suspect_at(&self, more: u64, crowded: bool, now: u64) {
        self.watch(&mut self.state(), now, SUSPECTED);
        self.lagged_at(more, crowded, now);
    }

    /// A delivery took so many ticks beyond the usual, but not longer than [`LIMIT`], for whatever reason.
    #[cold]
    pub fn lagged(&self, ticks_more: u64, crowded: bool) {
        self.lagged_at(ticks_more, crowded, ticks());
    }

    fn lagged_at(&self, more: u64, crowded: bool, now: u64) {
        let mut state = self.state();
        if state.often.add(more, often(crowded), now) > 0 {
            self.watch(&mut state, now, WATCHED);
        }
    }

    /// The same of frames that lay ready, so that it certainly is its own time. True: it gets no more for now.
    #[cold]
    pub fn lagged_for_certain(&self, ticks_more: u64, crowded: bool) -> bool {
        self.lagged_for_certain_at(ticks_more, crowded, ticks())
    }

    fn lagged_for_certain_at(&self, more: u64, crowded: bool, now: u64) -> bool {
        let mut state = self.state();
        let beyond = state.sure.add(more, often(crowded), now);
        self.pay(&mut state, beyond, now)
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
        let beyond = state.free.add(took, FREE, now);
        self.pay(&mut state, beyond, now)
    }

    /// It pays for so many ticks, if there are any.
    fn pay(&self, state: &mut WatchState, ticks: u64, now: u64) -> bool {
        if ticks == 0 {
            return false;
        }
        let long = ticks.saturating_mul(MULTIPLE).saturating_add(state.owes.left(now));
        state.owes = Span { since: now, long };
        // For as long as it owes it is watched.
        let time = time_of(long).saturating_add(WATCHED);
        self.watch(state, now, time);
        state.pays = Span { since: now, long: ticks_in(time) };
        true
    }

    /// Whether it is one of those who have paid lately, and have a part of the core together.
    #[cold]
    pub fn pays(&self) -> bool {
        self.state().pays.left(ticks()) > 0
    }
}

#[cfg(test)]
mod tests;
