//! Deliveries to a receiver that has been seen to take long (`port::Pace`).
//!
//! Theory of operation. The time of a delivery may be due to the sender, whose pages are read, or to the receiver,
//! whose pages are written and whose descriptors are followed. So frames for a watched receiver are first copied to
//! private memory, a few at a time; the time to hand those over is the receiver's. When a batch has taken longer than
//! it may, the receiver gets nothing more until that time is paid for, and its frames are dropped. That time is not
//! charged to the sender.

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
        let (mut rest, mut spent) = (picks, 0);
        let close = port.pace.is_closely_watched();
        let limit =
            if close { usual(picks.len()).saturating_add(of_bytes(batch)) } else { self.limit_of(batch) };
        while !rest.is_empty() {
            if port.pace.rests() {
                self.refuse(port, batch, rest, DropReason::SlowReceiver);
                break;
            }
            // It is the sender's memory that is waited for here.
            self.beat.towards(None);
            rest = private.fill(batch, rest);
            self.beat.elsewhere();
            while !private.picks.is_empty() {
                if port.pace.rests() {
                    self.refuse(port, &private.batch, &private.picks, DropReason::SlowReceiver);
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
                    let time = time_of(spent);
                    port.slow.delivery(time);
                    self.foreign_ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    // One that is watched closely is not far beyond what is usual: that much is not its fault.
                    port.pace.was_slow(if close { spent - limit } else { spent });
                    spent = 0;
                }
            }
        }
        self.private = Some(private);
    }

    /// Drops `picks` of `batch`, which were for `port`: counted and captured there.
    #[cold]
    pub(super) fn refuse(&self, port: &Port, batch: &Batch, picks: &[u16], why: DropReason) {
        let mut outcome = Outcome::new();
        outcome.trace = port.capture.is_on().then(Vec::new);
        outcome.dropped_all(picks, why);
        port.counters.block(self.core).add_outcome(&outcome);
        if let Some(drops) = &outcome.trace {
            port.capture.egress(batch, picks, drops);
        }
    }
}
