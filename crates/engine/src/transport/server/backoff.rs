//! How long a port admits no client after one that came for nothing.
//!
//! A client that comes and goes costs a set-up each time, and where connections are kept a process. It is let in again at
//! once, and later each time that it does so again; a client that had come for something is forgiven everything.

use std::time::Duration;

/// First and longest pause between two attempts at something that fails. The longest is also what a client has to wait that broke a rule.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The pauses of one port.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { next: PAUSES.0 }
    }

    /// Behind a client that had come for something, or had not: the pause, if there has to be one.
    pub(super) fn after(&mut self, worth: bool) -> Option<Duration> {
        if worth {
            self.next = PAUSES.0;
            return None;
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSES.1);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_for_nothing_waits_ever_longer() {
        let ms = |backoff: &mut Backoff, worth| backoff.after(worth).map(|pause| pause.as_millis());
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..7).map(|_| ms(&mut backoff, false)).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000].map(Some));
        assert_eq!(ms(&mut backoff, true), None);
        assert_eq!(ms(&mut backoff, false), Some(50));
    }
}
