//! Ingress queues: frames on their way into the switch.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::account::{Outcome, Tally};
use crate::observe::PortCounters;
use crate::packet::Batch;

/// Frames on their way into the switch. One I/O core owns it; nothing here blocks.
pub trait IngressQueue: Send {
    /// Describes waiting frames in `batch` (which is empty), as many as there are and fit. What has to
    /// be dropped at once is counted in `tally`. Zero frames: nothing to do, or the queue has stopped
    /// itself and left a fault in its port.
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally);

    /// Whether there may be frames: what costs no more than a look at the sender's index. Asked where work would have to be
    /// done before they are fetched; true if it is not known.
    fn has_frames(&mut self) -> bool {
        true
    }

    /// Called instead of `fetch` while frames of the last one wait for their receiver: what is to be done in time, but
    /// neither takes frames nor gives any back.
    fn tend(&mut self, tally: &mut Tally) {
        let _ = tally;
    }

    /// What the last `fetch` brought to another port by itself, without a frame in `batch`; for that port's counters.
    fn passed(&mut self) -> Option<(PortCounters, Outcome)> {
        None
    }

    /// Gives the sender back what the last `fetch` took: its frames have been delivered or dropped.
    /// Called after every `fetch` that took any (`graph::ingress` sees to it by type).
    fn release(&mut self, tally: &mut Tally);

    /// Asks for kicks (before the core sleeps) or declines them (while it polls). After asking, true
    /// means that frames are waiting already and the core must not sleep.
    fn want_kicks(&mut self, on: bool) -> bool;

    /// A descriptor that becomes readable when a kick or a frame arrives: what a sleeping core waits for,
    /// edge-triggered. `None` if there is none, or the queue has stopped itself.
    fn kick_fd(&self) -> Option<BorrowedFd<'_>>;

    /// A second descriptor of that kind: what else has to be looked at in time has come nearer.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How a poll that finds nothing compares with reading one cache line: true if it costs a system
    /// call, so that the core asks less often.
    fn poll_is_costly(&self) -> bool {
        false
    }

    /// How long a core that serves this queue may sleep without looking at it, for queues whose work can
    /// come without a kick, or at a set time. Asked after `want_kicks`; `None`: until it is kicked.
    fn longest_sleep(&self) -> Option<Duration> {
        None
    }
}
