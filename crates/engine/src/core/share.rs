//! The share of a task: its owner pays for copies, and for time.
//!
//! Theory of operation. A core's turns are visits of [`TURN`] items at most. An item that goes to several receivers is as
//! many deliveries as there are receivers, so a task that floods is given as many items at a time as make a turn's worth of
//! copies, by what its dearest visit of late cost. A visit that was dearer all the same is paid for: the task is passed over
//! for as many rounds as it took turns, while others have work.
//!
//! Items may also take time: pages of a guest that have to be found or cleared when they are touched. A task gets as many
//! items as fit into [`TIME`], again by its dearest visit of late, one at least. A visit beyond [`LONG`] is paid for, too:
//! the task waits until each other task that had work could have had as much, and for as long as the visit took where
//! the others leave the core idle in between, so that a guest who needs the core seldom meets it busy half of the time at most.
//!
//! Nothing is dropped.

use std::time::{Duration, Instant};

use super::slow::SLOW_VISIT;

/// Items of one turn, and deliveries.
pub(crate) const TURN: usize = 256;
/// Time of one turn: several times what 256 frames of the usual size take.
const TIME: Duration = Duration::from_micros(200);
/// For so long a dear visit is remembered: the core may have been kept from running by others, and a task that is seldom
/// visited would be cheap again only after minutes.
const MEMORY: Duration = Duration::from_millis(100);
/// Visits that take longer are paid for.
const LONG: Duration = SLOW_VISIT;

/// What a task owes.
#[derive(Debug)]
pub(super) struct Share {
    /// Deliveries beyond its turns.
    debt: usize,
    /// Copies of an item: what its dearest visit of late had, less an eighth with each cheaper one.
    copies: usize,
    /// Nanoseconds of an item: what its dearest visit of late took, less a 64th with each cheaper one. Zero: few.
    dear: u32,
    /// When that was.
    since: Option<Instant>,
    /// What is to be paid for a long visit.
    wait: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    /// When the core will have been busy for so long.
    busy: Duration,
    /// Or, where others leave it idle, at this time.
    until: Instant,
}

impl Share {
    pub(super) fn new() -> Share {
        Share { debt: 0, copies: 1, dear: 0, since: None, wait: None }
    }

    /// Whether the task still waits at `now` for what a long visit took; `others`: other tasks did something in the last
    /// round. The core has been `busy` so long.
    #[inline]
    pub(super) fn waits(&mut self, others: bool, busy: Duration, now: Instant) -> bool {
        self.wait.is_some() && self.still_waits(others, busy, now)
    }

    /// Whether the task is passed over in this round for its copies; `others`: other tasks have work.
    #[inline]
    pub(super) fn passes(&mut self, others: bool) -> bool {
        if self.debt == 0 {
            return false;
        }
        self.debt = if others { self.debt.saturating_sub(TURN) } else { 0 };
        others
    }

    #[cold]
    fn still_waits(&mut self, others: bool, busy: Duration, now: Instant) -> bool {
        let Some(wait) = &self.wait else { return false };
        let waits = busy < wait.busy && (others || now < wait.until);
        if !waits {
            self.wait = None;
        }
        waits
    }

    /// Items of its next turn.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        if self.copies == 1 && self.dear == 0 {
            return TURN;
        }
        let most = (TIME.subsec_nanos() / self.dear.max(1)) as usize;
        (TURN / self.copies).min(most).max(1)
    }

    /// Its visit of so many `items` took so many `deliveries`.
    #[inline]
    pub(super) fn took(&mut self, items: usize, deliveries: usize) {
        if deliveries > items || self.copies > 1 {
            self.took_copies(items, deliveries);
        }
    }

    #[cold]
    fn took_copies(&mut self, items: usize, deliveries: usize) {
        let less = self.copies - (self.copies / 8).max(1);
        self.copies = deliveries.div_ceil(items.max(1)).max(less).max(1);
        self.debt += deliveries.saturating_sub(TURN);
    }

    /// And so much time, until `now`, when the core has been `busy` so long and `others` have work.
    #[inline]
    pub(super) fn took_time(
        &mut self,
        items: usize,
        time: Duration,
        others: usize,
        busy: Duration,
        now: Instant,
    ) {
        if time > TIME || self.dear > 0 {
            self.took_long(items, time, others, busy, now);
        }
    }

    #[cold]
    fn took_long(&mut self, items: usize, time: Duration, others: usize, busy: Duration, now: Instant) {
        // Below this, a turn's worth of items fits into the time of a turn.
        const FEW: u32 = TIME.subsec_nanos() / 256;
        const _: () = assert!(TURN == 256);
        // Where a visit only ended what an earlier one began, nothing is known of items.
        if items > 0 {
            let each = u32::try_from(time.as_nanos() / items as u128).unwrap_or(u32::MAX);
            let remembers = self.since.is_some_and(|since| now.saturating_duration_since(since) < MEMORY);
            let kept = if remembers { self.dear - self.dear / 64 } else { 0 };
            if each >= kept {
                self.since = Some(now);
            }
            let dear = each.max(kept);
            self.dear = if dear > FEW { dear } else { 0 };
        }
        if time > LONG {
            let others = u32::try_from(others).unwrap_or(u32::MAX).max(1);
            self.wait = Some(Wait { busy: busy + time.saturating_mul(others), until: now + time });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_long_gets_few_items_and_waits_for_the_others() {
        let (ms, start) = (Duration::from_millis, Instant::now());
        let mut share = Share::new();
        share.took_time(256, Duration::from_micros(150), 3, ms(1), start);
        assert_eq!(share.limit(), TURN);
        // 16 items took 40 ms, beside three others.
        share.took_time(16, ms(40), 3, ms(100), start);
        assert_eq!(share.limit(), 1);
        assert!(share.waits(true, ms(219), start + ms(119)));
        assert!(!share.waits(true, ms(220), start + ms(120)));
        // The others leave the core idle: then it goes on, for half of the time.
        share.took_time(1, ms(2), 3, ms(300), start);
        assert!(share.waits(false, ms(300), start + ms(1)));
        assert!(share.waits(true, ms(301), start + ms(2)));
        assert!(!share.waits(false, ms(301), start + ms(2)));
        assert!(!share.waits(true, ms(301), start + ms(2)));
        // A visit that ends an earlier one says nothing of items; and after a while all is forgotten.
        share.took_time(0, Duration::from_micros(300), 3, ms(302), start);
        assert_eq!(share.limit(), 1);
        let mut other = Share::new();
        other.took_time(0, Duration::from_micros(300), 3, ms(302), start);
        assert_eq!(other.limit(), TURN);
        other.took_time(1, Duration::from_micros(300), 3, ms(302), start);
        assert_eq!(other.limit(), 1);
        other.took_time(1, Duration::from_nanos(300), 3, ms(302), start + MEMORY);
        assert_eq!(other.limit(), TURN);
        // It is believed again after many cheap ones.
        let visits = (0..10_000).take_while(|_| {
            share.took_time(share.limit(), Duration::from_micros(1), 3, ms(400), start);
            share.limit() < TURN
        });
        assert!((100..2000).contains(&visits.count()));
    }

    #[test]
    fn a_flood_to_many_gets_turns_of_as_many_copies() {
        let mut share = Share::new();
        assert_eq!(share.limit(), TURN);
        share.took(256, 256);
        assert!(!share.passes(true) && share.limit() == TURN);
        // The first flood to 64 others comes as a surprise, and is paid for: 64 turns in one.
        share.took(256, 256 * 64);
        assert_eq!((share.limit(), (0..1000).take_while(|_| share.passes(true)).count()), (4, 63));
        for _ in 0..10 {
            share.took(4, 256);
            assert!(!share.passes(true) && share.limit() == 4);
        }
        // Who takes turns with single frames and floods is not believed at once.
        share.took(4, 4);
        assert!(share.limit() < 5);
        let cheap = (0..1000)
            .take_while(|_| {
                share.limit() < TURN && {
                    share.took(4, 4);
                    true
                }
            })
            .count();
        assert!((8..40).contains(&cheap), "{cheap}");
    }

    #[test]
    fn nobody_waits_for_nobody() {
        let mut share = Share::new();
        share.took(256, 256 * 64);
        assert!(!share.passes(false) && !share.passes(true), "the debt was forgiven");
    }
}
