//! When cold tasks asked to be looked at: a heap.
//!
//! A task that is looked at earlier, or leaves, has its entry left behind: the code that takes an entry out compares
//! its time with what the task at that place asked for last.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Times, in nanoseconds of the core's clock, and places of tasks.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(u64, usize)>>);

impl Timers {
    /// The task at `place` is to be looked at when it is `due`.
    pub(super) fn add(&mut self, due: u64, place: usize) {
        self.0.push(Reverse((due, place)));
    }

    /// The first entry, if its time has come.
    pub(super) fn due(&mut self, now: u64) -> Option<(u64, usize)> {
        let Reverse((due, _)) = self.0.peek()?;
        if *due > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }

    /// When the first one comes.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_in_the_order_of_their_times() {
        let mut timers = Timers::default();
        assert_eq!((timers.first(), timers.due(u64::MAX)), (None, None));
        for (due, place) in [(30, 1), (10, 2), (20, 3)] {
            timers.add(due, place);
        }
        assert_eq!((timers.first(), timers.due(9), timers.due(10)), (Some(10), None, Some((10, 2))));
        assert_eq!((timers.due(25), timers.due(25), timers.due(99)), (Some((20, 3)), None, Some((30, 1))));
    }
}
