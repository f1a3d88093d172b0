//! What zebra has said and is not in force yet.
//!
//! It takes effect together when zebra is silent for [`QUIET`], when the first of it has waited for [`LONGEST`], or when there are [`BATCH`]
//! changes. An update comes from some versions as a deletion and an addition, in one frame or in two: so of one prefix the last
//! word counts, and a deletion that ends what takes effect while more may come waits for the next time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::router::{Change, Net};

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

    /// Zebra has said something, whatever it was.
    pub fn heard(&mut self) {
        let now = Instant::now();
        self.heard = Some(now);
        self.since.get_or_insert(now);
    }

    /// Whether zebra is silent, and nothing waits.
    pub fn is_silent(&self) -> bool {
        self.heard.is_none() && self.changes.is_empty()
    }

    /// How long it is until something takes effect. `None`: nothing waits.
    pub fn wait(&self) -> Option<Duration> {
        let (heard, since) = (self.heard?, self.since?);
        if self.changes.len() >= BATCH {
            return Some(Duration::ZERO);
        }
        let (silent, waited) = (heard.elapsed(), since.elapsed());
        Some(QUIET.saturating_sub(silent).min(LONGEST.saturating_sub(waited)))
    }

    /// What takes effect, if it is time, or `now`: then it is all.
    pub fn take(&mut self, now: bool) -> Vec<Change> {
        if !now && self.wait() != Some(Duration::ZERO) {
            return Vec::new();
        }
        let more = !now && self.heard.is_some_and(|heard| heard.elapsed() < QUIET);
        self.take_all(more)
    }

    /// All of it; but for a deletion at the end, if `more` may come.
    fn take_all(&mut self, more: bool) -> Vec<Change> {
        self.last.clear();
        (self.since, self.heard) = (None, self.heard.filter(|_| more));
        let mut all = std::mem::take(&mut self.changes);
        if let (true, Some(Change::Gone(_))) = (more, all.last()) {
            if let Some(last) = all.pop() {
                self.push(last);
                self.since = Some(Instant::now());
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
    use super::*;
    use crate::router::Way;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    #[test]
    fn of_one_prefix_the_last_word_counts_and_a_last_deletion_waits() {
        let mut pending = Pending::default();
        let (a, b) = (net("10.0.0.0/8"), net("20.0.0.0/8"));
        for change in [
            Change::Gone(a),
            Change::Route(a, Way::Object(1)),
            Change::Route(b, Way::Blackhole),
            Change::Gone(b),
        ] {
            pending.push(change);
        }
        pending.heard();
        assert_eq!(pending.take_all(true), [Change::Route(a, Way::Object(1))]);
        assert!(!pending.is_silent() && pending.wait().is_some(), "the deletion is not forgotten");
        pending.push(Change::Route(b, Way::Object(2)));
        assert_eq!(pending.take_all(true), [Change::Route(b, Way::Object(2))]);
        assert!(pending.is_silent() && pending.wait().is_none());
        pending.push(Change::ObjectGone(7));
        pending.push(Change::Gone(a));
        assert_eq!(pending.take(true), [Change::ObjectGone(7), Change::Gone(a)]);
        assert!(pending.take(true).is_empty());
    }

    #[test]
    fn what_was_said_waits_for_silence_but_not_for_long() {
        let mut pending = Pending::default();
        let begun = Instant::now();
        // Zebra is never silent.
        let taken = loop {
            pending.push(Change::Route(net("10.0.0.0/8"), Way::Blackhole));
            pending.heard();
            let taken = pending.take(false);
            if !taken.is_empty() {
                break taken;
            }
        };
        assert!(taken.len() == 1 && begun.elapsed() >= QUIET);
        assert!(pending.is_silent(), "all of it took effect");
        // A full batch waits for nothing.
        (0..BATCH).for_each(|_| pending.push(Change::ObjectGone(1)));
        pending.heard();
        assert_eq!((pending.wait(), pending.take(false).len()), (Some(Duration::ZERO), BATCH));
    }
}
