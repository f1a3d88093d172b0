//! The share of a task: its owner pays for copies.
//!
//! Theory of operation. A core's turns are visits of [`TURN`] items at most. An item that goes to several receivers is as
//! many deliveries as there are receivers, so a task that floods is given as many items at a time as make a turn's worth of
//! copies, by what its dearest visit of late cost. A visit that was dearer all the same is paid for: the task is passed over
//! for as many rounds as it took turns, while others have work. Nothing is dropped and nothing waits on a core that has
//! nothing else to do.

/// Items of one turn, and deliveries.
pub(crate) const TURN: usize = 256;

/// What a task owes.
#[derive(Debug)]
pub(super) struct Share {
    /// Deliveries beyond its turns.
    debt: usize,
    /// Copies of an item: what its dearest visit of late had, less an eighth with each cheaper one.
    copies: usize,
}

impl Share {
    pub(super) fn new() -> Share {
        Share { debt: 0, copies: 1 }
    }

    /// Whether the task is passed over in this round; `others`: other tasks have work.
    #[inline]
    pub(super) fn passes(&mut self, others: bool) -> bool {
        if self.debt == 0 {
            return false;
        }
        self.debt = if others { self.debt.saturating_sub(TURN) } else { 0 };
        others
    }

    /// Items of its next turn.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        if self.copies == 1 {
            return TURN;
        }
        (TURN / self.copies).max(1)
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
