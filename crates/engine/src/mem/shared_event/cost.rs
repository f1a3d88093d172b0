//! Which signals are timed, and when what they took is too much for an I/O core.

use std::time::{Duration, Instant};

/// A signal that takes longer is slow: the usual one takes 0.3 µs, 4 with a cold cache, and tens where it interrupts a processor that
/// a hypervisor has to wake. With more debt than that, too, the bell thread takes over.
pub(in crate::mem) const SLOW: Duration = Duration::from_millis(1);
/// One slow signal is not enough: another thread may have had the processor meanwhile.
const SLOW_ONES: u32 = 3;
/// What slow signals may take of an I/O core's time in the long run: one part in so many.
const SHARE: u32 = 64;
/// While there is no debt at most so many signals pass from one that is timed to the next. A power of two.
const TIMED: u32 = 16;
/// Shortest and longest time at the bell.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);
/// An eventfd that is in debt again within so many times its last time at the bell stays for twice as long.
const AGAIN: u32 = 8;
/// Signals in a row that must have been quick before the I/O core signals again.
const QUICK_ONES: u32 = 32;

/// The thread that signals the eventfd.
enum Signaller {
    /// I/O cores, since it came back from the bell, if it ever was there.
    Core(Option<Instant>),
    /// The bell thread, since then.
    Bell(Instant),
}

/// What an eventfd's slow signals have taken.
pub(in crate::mem) struct SignalCost {
    /// Signals until the next one that is timed.
    until: u32,
    /// How many signals that one stands for.
    stands_for: u32,
    debt: Duration,
    /// Slow ones since there was no debt.
    slow_ones: u32,
    /// When one was last timed.
    last: Option<Instant>,
    signaller: Signaller,
    /// How long it stays at the bell.
    stay: Duration,
    quick_ones: u32,
}

impl Default for SignalCost {
    fn default() -> SignalCost {
        SignalCost {
            until: 0,
            stands_for: 1,
            debt: Duration::ZERO,
            slow_ones: 0,
            last: None,
            signaller: Signaller::Core(None),
            stay: SHORTEST,
            quick_ones: 0,
        }
    }
}

impl SignalCost {
    /// That of an eventfd whose port had one in debt a moment ago: the first slow signal is enough, so that a new
    /// conversation is no fresh start.
    pub(in crate::mem) fn suspect() -> SignalCost {
        SignalCost { debt: SLOW, slow_ones: SLOW_ONES, ..SignalCost::default() }
    }

    /// Signals go to another eventfd: its first one is timed. The debt stays, and so does the signalling thread: it is
    /// the same VMM's.
    pub(in crate::mem) fn renew(&mut self) {
        (self.until, self.stands_for, self.quick_ones) = (0, 1, 0);
    }

    pub(in crate::mem) fn is_at_bell(&self) -> bool {
        matches!(self.signaller, Signaller::Bell(_))
    }

    /// Whether this signal is to be timed.
    #[inline]
    pub(in crate::mem) fn is_due(&mut self) -> bool {
        match self.until.checked_sub(1) {
            Some(left) => {
                self.until = left;
                false
            }
            None => true,
        }
    }

    /// A signal that was due took so long, until `now`. True if the bell thread signals it from now on.
    pub(in crate::mem) fn took(&mut self, took: Duration, now: Instant) -> bool {
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = Some(now);
        self.debt = self.debt.saturating_sub(since / SHARE);
        if self.debt.is_zero() {
            self.slow_ones = 0;
        }
        if took > SLOW {
            self.debt = self.debt.saturating_add(took.saturating_mul(self.stands_for));
            self.slow_ones = self.slow_ones.saturating_add(1);
        }
        if self.debt > SLOW && self.slow_ones >= SLOW_ONES {
            let soon = |back: Instant| now.saturating_duration_since(back) < self.stay.saturating_mul(AGAIN);
            let again = matches!(self.signaller, Signaller::Core(Some(back)) if soon(back));
            self.stay = if again { self.stay.saturating_mul(2).min(LONGEST) } else { SHORTEST };
            (self.signaller, self.quick_ones) = (Signaller::Bell(now), 0);
            return true;
        }
        // In debt every signal is timed. Out of it a VMM must not foresee which is, or it would make just those quick:
        // what a clock says of nanoseconds decides.
        self.until = if self.debt.is_zero() { took.subsec_nanos() & (TIMED - 1) } else { 0 };
        self.stands_for = self.until.saturating_add(1);
        false
    }

    /// A signal of the bell thread took so long, until `now`. True if I/O cores signal it again from now on.
    pub(in crate::mem) fn rung(&mut self, took: Duration, now: Instant) -> bool {
        let Signaller::Bell(since) = self.signaller else { return false };
        self.quick_ones = if took > SLOW { 0 } else { self.quick_ones.saturating_add(1) };
        if self.quick_ones < QUICK_ONES || now.saturating_duration_since(since) < self.stay {
            return false;
        }
        self.signaller = Signaller::Core(Some(now));
        (self.debt, self.slow_ones) = (Duration::ZERO, 0);
        self.renew();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_nanos(300);
    const MS: Duration = Duration::from_millis(1);

    /// Signals that take what `took` says of the time since the start, one after another, until one moves it to the bell, or
    /// for `time`. When that was, and what the signals took together.
    fn drive(
        cost: &mut SignalCost,
        start: Instant,
        time: Duration,
        took: impl Fn(Duration, bool) -> Duration,
    ) -> (Option<Duration>, Duration) {
        let (mut now, mut sum) = (start, Duration::ZERO);
        while now < start + time {
            let due = cost.is_due();
            let this = took(now - start, due);
            now += this;
            sum += this;
            if due && cost.took(this, now) {
                return (Some(now - start), sum);
            }
            now += Duration::from_micros(20);
        }
        (None, sum)
    }

    #[test]
    fn an_eventfd_with_many_waiters_is_at_the_bell_after_three_signals() {
        let start = Instant::now();
        let (moved, sum) = drive(&mut SignalCost::default(), start, 1_000 * MS, |_, _| 5 * MS);
        assert!(moved.is_some() && sum <= 15 * MS, "{moved:?} {sum:?}");
        // It gets its waiters later.
        let later = |at, _| if at < 100 * MS { QUICK } else { 5 * MS };
        let (moved, sum) = drive(&mut SignalCost::default(), start, 1_000 * MS, later);
        assert!(moved.is_some() && sum <= 5 * MS * (TIMED + SLOW_ONES) + MS, "{moved:?} {sum:?}");
    }

    #[test]
    fn who_foresees_what_is_timed_in_debt_still_has_but_its_share() {
        // All that are not timed are slow, and no more than two that are.
        let start = Instant::now();
        let took = |_, due| if due { QUICK } else { 2 * MS };
        let (moved, _) = drive(&mut SignalCost::default(), start, 1_000 * MS, took);
        assert_eq!(moved, None, "that one has to be a seer");
        // Slow for as long as nothing is in debt, which it learns by being timed.
        let slow = std::cell::Cell::new(0u32);
        let took = |_, due: bool| {
            if due && slow.get() > 0 {
                slow.set(slow.get() - 1);
                return QUICK;
            }
            if due {
                slow.set(1_000);
            }
            5 * MS
        };
        let (_, sum) = drive(&mut SignalCost::default(), start, 10_000 * MS, took);
        assert!(sum < 10_000 * MS / 8, "{sum:?}");
    }

    #[test]
    fn interrupts_that_cost_what_a_hypervisor_takes_for_them_stay_on_the_core() {
        let took = |_, _| MS / 2;
        let (moved, _) = drive(&mut SignalCost::default(), Instant::now(), 10_000 * MS, took);
        assert_eq!(moved, None);
    }

    #[test]
    fn a_processor_that_others_have_now_and_then_moves_nobody() {
        let start = Instant::now();
        // 4 ms, once in five seconds.
        let took = |at: Duration, _| if at.as_millis() % 5_000 < 4 { 4 * MS } else { QUICK };
        let (moved, _) = drive(&mut SignalCost::default(), start, 30_000 * MS, took);
        assert_eq!(moved, None);
    }

    #[test]
    fn who_behaves_comes_back_and_who_does_not_stays_for_twice_as_long() {
        let mut cost = SignalCost::default();
        let mut now = Instant::now();
        let mut stays = Vec::new();
        for _ in 0..12 {
            let (moved, _) = drive(&mut cost, now, 1_000 * MS, |_, _| 5 * MS);
            now += moved.unwrap();
            let since = now;
            assert!(cost.is_at_bell() && !cost.rung(5 * MS, now));
            while !cost.rung(QUICK, now) {
                now += MS;
            }
            assert!(!cost.is_at_bell());
            stays.push((now - since).as_millis());
        }
        assert_eq!(stays[..4], [100, 200, 400, 800]);
        assert_eq!(stays[11], 60_000);
        // A long time of good behaviour is worth something.
        now += LONGEST * AGAIN;
        let (moved, _) = drive(&mut cost, now, 1_000 * MS, |_, _| 5 * MS);
        now += moved.unwrap();
        assert_eq!(cost.stay, SHORTEST);
        // Slow ones in between: it stays.
        for _ in 0..100 {
            now += 100 * MS;
            assert!((0..QUICK_ONES - 1).all(|_| !cost.rung(QUICK, now)) && !cost.rung(5 * MS, now));
        }
    }
}
