//! Deliveries to a receiver that has been seen to take long (`port::Pace`).
//!
//! Theory of operation. The time of a delivery may be due to the sender, whose pages are read, or to the receiver,
//! whose pages are written and whose descriptors are followed. So frames for a watched receiver are first copied to
//! private memory, a few at a time; the time to hand those over is the receiver's. When a batch has taken longer than
//! it may, or batches take longer than usual too often, the receiver gets nothing more until that time is paid for, and
//! its frames are dropped. That time is not charged to the sender.

use super::deliver::{of_bytes, Delivery};
use crate::frame::Batch;
use crate::mem::time_of;
use crate::port::{usual, DropReason, Outcome, Port};

impl Delivery {
    /// Hands `picks` of `batch` to queue `queue` of `port`, which is watched.
    #[cold]
    pub(super) fn send_watched(&mut self, port: &Port, queue: usize, batch: &Batch, picks: &[u16]) {
        let Some(mut private) = self.private.take() else { return };
        self.stand(self.limit);
        let bytes = of_bytes(batch, picks);
        let (limit, usual) = (self.limit.saturating_add(bytes), usual(picks.len()).saturating_add(bytes));
        let (mut rest, mut spent) = (picks, 0);
        while !rest.is_empty() {
            if self.rests(port) {
                self.refuse(port, batch, rest);
                break;
            }
            // It is the sender's memory that is waited for here.
            self.beat.towards(None);
            rest = private.fill(batch, rest);
            self.beat.elsewhere();
            while !private.picks.is_empty() {
                if self.rests(port) {
                    self.refuse(port, &private.batch, &private.picks);
                    break;
                }
                let left = limit.saturating_sub(spent);
                let (outcome, took) = self.hand_over(port, queue, &private.batch, &private.picks, left, true);
                private.picks = outcome.left;
                spent += took;
                if spent > limit {
                    // Other programs may have had the processor.
                    spent = spent.saturating_sub(self.lost());
                }
                if spent > limit {
                    self.was_slow(port, spent);
                    spent = 0;
                }
            }
        }
        self.private = Some(private);
        if spent > usual {
            spent = spent.saturating_sub(self.lost());
            self.lagged(port, spent.saturating_sub(usual));
        }
    }

    /// A look at what `port` has room for took so long. No page of a sender's is read for that.
    #[cold]
    pub(super) fn was_asked(&mut self, port: &Port, took: u64) {
        let own = took.saturating_sub(self.lost());
        if own > self.limit {
            self.was_slow(port, own);
        } else if own > self.usual {
            self.lagged(port, own - self.usual);
        }
    }

    /// A delivery to `port`, or a look at it, was slow for certain, and took so long.
    fn was_slow(&mut self, port: &Port, spent: u64) {
        self.owns(port, spent);
        if port.pace.was_slow(spent) {
            self.crowd.was_slow(spent);
        }
    }

    /// What one to `port` took beyond the usual, though not beyond the limit, is its own.
    #[cold]
    fn lagged(&mut self, port: &Port, more: u64) {
        let crowded = more > 0 && self.crowd.overlook(more);
        if port.pace.lagged_for_certain(more, crowded) {
            self.owns(port, more);
            self.crowd.was_slow(more);
        }
    }

    /// So many ticks were `port`'s, and are not charged to the sender.
    fn owns(&mut self, port: &Port, ticks: u64) {
        let time = time_of(ticks);
        port.slow.delivery(time);
        self.foreign_ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Drops `picks` of `batch`: `port` gets nothing now.
    #[cold]
    pub(super) fn refuse(&self, port: &Port, batch: &Batch, picks: &[u16]) {
        let mut outcome = Outcome::new();
        outcome.trace = port.capture.is_on().then(Vec::new);
        outcome.dropped_all(picks, DropReason::SlowReceiver);
        port.counters.block(self.core).add_outcome(&outcome);
        if let Some(drops) = &outcome.trace {
            port.capture.egress(batch, picks, drops);
        }
    }
}
