//! How long a port listens to nobody behind a client that came for nothing.
//!
//! A client that comes and goes costs a set-up each time, and where connections are kept a process. It is let in again at
//! once, and later each time that it does so again; who stays is forgiven everything.

use std::time::Duration;

/// First and longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A visit that was shorter was for nothing.
const BRIEFLY: Duration = Duration::from_secs(1);

/// The pauses of one port.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { next: PAUSES.0 }
    }

    /// Behind a client that stayed for `stayed`, and asked for something or did not: the pause, if there has to be one.
    pub(super) fn after(&mut self, stayed: Duration, asked: bool) -> Option<Duration> {
        if asked && stayed >= BRIEFLY {
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
        let ms = |backoff: &mut Backoff, stayed, asked| {
            backoff.after(Duration::from_millis(stayed), asked).map(|pause| pause.as_millis())
        };
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..7).map(|_| ms(&mut backoff, 5000, false)).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000].map(Some));
        assert_eq!(ms(&mut backoff, 999, true), Some(1000), "too short to be a guest's life");
        assert_eq!(ms(&mut backoff, 1000, true), None);
        assert_eq!(ms(&mut backoff, 10, true), Some(50));
    }
}
