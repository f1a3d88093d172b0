//! What zebra has said and is not in force yet.
//!
//! It takes effect together when zebra is silent for [`QUIET`], when the first of it has waited for
//! [`LONGEST`], or when there are [`BATCH`] changes. An update comes from some versions as a deletion and an
//! addition, in one frame or in two: so of one prefix the last word counts, and a deletion that ends what
//! takes effect while more may come waits for the next time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sidecore_engine::router::{Change, Net};

/// Silence after which what was said takes effect.
const QUIET: Duration = Duration::from_millis(2);
/// How long it waits for that at most.
const LONGEST: Duration = Duration::from_millis(10);
/// Changes that take effect together at most, but for what one read brings more.
pub(super) const BATCH: usize = 4096;

/// Changes that wait.
#[derive(Default)]
pub(super) struct Pending {
    changes: Vec<Change>,
    /// The place of the last word on a prefix.
    last: HashMap<Net, usize>,
    /// When zebra was heard last, and since when something may wait.
    heard: Option<Instant>,
    since: Option<Instant>,
}

impl Pending {
    /// Takes one more.
    pub fn push(&mut self, change: Change) {
        if let Change::Route(net, _) | Change::Gone(net) = &change {
            match self.last.get(net).and_then(|at| self.changes.get_mut(*at)) {
                Some(place) => return *place = change,
                None => drop(self.last.insert(*net, self.changes.len())),
            }
        }
        self.changes.push(change);
    }

    /// Zebra has said something `now`, whatever it was.
    pub fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
        self.since.get_or_insert(now);
    }

    /// Whether zebra is silent, and nothing waits.
    pub fn is_silent(&self) -> bool {
        self.heard.is_none() && self.changes.is_empty()
    }

    /// How long it is from `now` on until something takes effect. `None`: nothing waits.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let (heard, since) = (self.heard?, self.since?);
        if self.changes.len() >= BATCH {
            return Some(Duration::ZERO);
        }
        let (silent, waited) = (now - heard, now - since);
        Some(QUIET.saturating_sub(silent).min(LONGEST.saturating_sub(waited)))
    }

    /// What takes effect, if it is time `now`, or if it is `forced`: then it is all.
    pub fn take(&mut self, now: Instant, forced: bool) -> Vec<Change> {
        if !forced && self.wait(now) != Some(Duration::ZERO) {
            return Vec::new();
        }
        // More may come: a deletion at the end stays.
        let more = !forced && self.heard.is_some_and(|heard| now - heard < QUIET);
        self.last.clear();
        (self.since, self.heard) = (None, self.heard.filter(|_| more));
        let mut all = std::mem::take(&mut self.changes);
        if let (true, Some(Change::Gone(_))) = (more, all.last()) {
            if let Some(last) = all.pop() {
                self.push(last);
                self.since = Some(now);
            }
        }
        if self.changes.is_empty() {
            self.heard = None;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use sidecore_engine::router::Way;

    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    #[test]
    fn of_one_prefix_the_last_word_counts_and_a_last_deletion_waits() {
        let (mut pending, now) = (Pending::default(), Instant::now());
        let (a, b) = (net("10.0.0.0/8"), net("20.0.0.0/8"));
        for change in [
            Change::Gone(a),
            Change::Route(a, Way::Object(1)),
            Change::Route(b, Way::Blackhole),
            Change::Gone(b),
        ] {
            pending.push(change);
        }
        pending.heard(now);
        let now = now + LONGEST;
        pending.heard(now);
        assert_eq!(pending.take(now, false), [Change::Route(a, Way::Object(1))]);
        assert!(!pending.is_silent() && pending.wait(now).is_some(), "the deletion is not forgotten");
        pending.push(Change::Route(b, Way::Object(2)));
        let now = now + LONGEST;
        pending.heard(now);
        assert_eq!(pending.take(now, false), [Change::Route(b, Way::Object(2))]);
        assert!(pending.is_silent() && pending.wait(now).is_none());
        pending.push(Change::ObjectGone(7));
        pending.push(Change::Gone(a));
        assert_eq!(pending.take(now, true), [Change::ObjectGone(7), Change::Gone(a)]);
        assert!(pending.take(now, true).is_empty());
    }

    #[test]
    fn what_was_said_waits_for_silence_but_not_for_long() {
        let (mut pending, begun) = (Pending::default(), Instant::now());
        let change = || Change::Route(net("10.0.0.0/8"), Way::Blackhole);
        let at = |ms| begun + Duration::from_millis(ms);
        // Zebra is never silent.
        for ms in 0..10 {
            pending.push(change());
            pending.heard(at(ms));
            assert_eq!(pending.take(at(ms), false), []);
        }
        assert_eq!(pending.take(at(10), false), [change()]);
        assert!(pending.is_silent(), "all of it took effect");
        // It is.
        pending.push(change());
        pending.heard(at(20));
        assert_eq!((pending.wait(at(21)), pending.take(at(21), false)), (Some(QUIET / 2), Vec::new()));
        assert_eq!(pending.take(at(22), false), [change()]);
        // A full batch waits for nothing.
        (0..BATCH).for_each(|_| pending.push(Change::ObjectGone(1)));
        pending.heard(at(30));
        assert_eq!((pending.wait(at(30)), pending.take(at(30), false).len()), (Some(Duration::ZERO), BATCH));
    }
}
