//! When to send, and how to wait: rates, and the time between looking and sleeping.

use std::time::{Duration, Instant};

use super::end::{Lane, Result, Want};

/// How often a sleeping thread looks whether it shall end.
const NAP: Duration = Duration::from_millis(100);
/// How long a thread looks again and again before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);
/// A wait shorter than this is not worth a sleep.
const SHORT: Duration = Duration::from_micros(150);

/// A rate: so many frames at once, and a time between two batches.
#[derive(Debug)]
pub struct Pace {
    /// Frames of a batch.
    pub burst: usize,
    period: Option<Duration>,
    due: Instant,
}

impl Pace {
    /// As pkt-gen does it: batches of at most a 300th of the second's frames.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most `burst`, and positive"
    )]
    pub fn new(rate: Option<f64>, burst: usize) -> Pace {
        let Some(rate) = rate else { return Pace { burst, period: None, due: Instant::now() } };
        let burst = (rate / 300.0).min(burst as f64).max(1.0) as usize;
        let period = Some(Duration::from_secs_f64((burst as f64 / rate).min(1e6)));
        Pace { burst, period, due: Instant::now() }
    }

    /// Waits until the next batch is due; false if that is longer than a nap, to be asked again.
    pub fn wait(&mut self, busy: bool) -> bool {
        let Some(period) = self.period else { return true };
        let start = Instant::now();
        loop {
            let now = Instant::now();
            let Some(rest) = self.due.checked_duration_since(now).filter(|rest| !rest.is_zero()) else {
                break;
            };
            if now - start > NAP {
                return false;
            }
            if rest > SHORT && !busy {
                std::thread::sleep((rest - SHORT / 2).min(NAP));
            } else if busy {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // A sender that was held up for long does not catch up.
        self.due = (self.due + period).max(Instant::now() - Duration::from_secs(1).min(10 * period));
        true
    }
}

/// What a thread does that finds nothing to do.
#[derive(Debug)]
pub struct Idle {
    busy: bool,
    since: Option<Instant>,
}

impl Idle {
    /// `busy`: neither yields nor sleeps.
    pub fn new(busy: bool) -> Idle {
        Idle { busy, since: None }
    }

    /// There was something to do.
    #[inline]
    pub fn over(&mut self) {
        self.since = None;
    }

    /// Nothing to do for how long.
    pub fn time(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits a little: yields at first, so that others of the same processor get on, then sleeps.
    pub fn wait(&mut self, lane: &mut impl Lane, want: Want) -> Result<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let idle = since.elapsed();
        if self.busy {
            std::hint::spin_loop();
            // Also tells whether the other side is gone.
            let look = idle > NAP && idle.subsec_nanos() % 1000 == 0;
            return if look { lane.sleep(want, Duration::ZERO) } else { Ok(()) };
        }
        if idle < PATIENCE {
            std::thread::yield_now();
            return Ok(());
        }
        lane.sleep(want, NAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_become_bursts() {
        assert_eq!(Pace::new(None, 512).burst, 512);
        assert_eq!(Pace::new(Some(1e9), 512).burst, 512);
        assert_eq!(Pace::new(Some(3000.0), 512).burst, 10);
        let slow = Pace::new(Some(10.0), 512);
        assert_eq!((slow.burst, slow.period), (1, Some(Duration::from_millis(100))));
    }

    #[test]
    fn a_paced_sender_keeps_its_rate() {
        let mut pace = Pace::new(Some(100_000.0), 512);
        let start = Instant::now();
        let mut frames = 0;
        while frames < 5000 {
            if pace.wait(false) {
                frames += pace.burst;
            }
        }
        // The first batch is due at once; a busy machine makes it slower, nothing makes it faster.
        assert!(start.elapsed() >= Duration::from_micros(10 * (5000 - 333)), "{:?}", start.elapsed());
    }
}
