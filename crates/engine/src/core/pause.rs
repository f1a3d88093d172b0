//! The sender on a wire waits for its receiver.
//!
//! Theory of operation. A frame that finds the receiver's ring full is lost, and a burst of TCP whose end is lost costs
//! the connection its timer, hundreds of milliseconds. Silicon has a FIFO and PAUSE frames for it (IEEE 802.3 annex 31B);
//! here the sender's own ring is the FIFO. A queue on a wire gives no more than its receiver has buffers for, and
//! nothing while it has none: its frames stay where they are, which costs nobody but the sender. Not forever: a receiver
//! that gives no buffers for [`PATIENCE`] is taken for dead, and frames for it are dropped until it gives some again.
//!
//! What frames will take is guessed from the last ones, and two cores that serve queues of one port see the same room: then
//! a few frames too many are taken, and dropped as elsewhere.
//!
//! On a switch nobody waits. A queue there has frames for many receivers, and one of them must not hold back those of the
//! others.

use std::time::{Duration, Instant};

use crate::frame::{Batch, Frame};
use crate::port::Room;
use crate::wire::Gso;

/// Longest time that a sender waits for a buffer, unless `CoreOptions` say otherwise.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// How long a core may sleep while a sender waits: nothing wakes it when buffers come.
pub(super) const NAP: Duration = Duration::from_micros(50);
/// Bytes that one buffer holds, for the estimate of what a large frame takes; one that is cut takes one for each segment.
const BUFFER: u32 = 2048;
/// The part of its patience for which a sender waits for a second buffer, when a receiver gives one at a time and the last
/// frames were large.
const FOR_MORE: u32 = 10;
/// Buffers that the largest frame takes.
const LARGEST: u32 = 65_536u32.div_ceil(1448);
/// The part of that estimate that a batch of small frames takes off.
const FORGOTTEN: u32 = 4;

/// What a queue on a wire knows of its receiver.
pub(super) struct Pause {
    patience: Duration,
    /// Since when there have been no buffers.
    since: Option<Instant>,
    /// Buffers that a large frame takes: what the largest of late took, forgotten slowly.
    cost: u32,
}

impl Pause {
    pub(super) fn new(patience: Duration) -> Pause {
        Pause { patience, since: None, cost: LARGEST }
    }

    /// How many frames may be taken now, if the receiver has this `room`.
    #[inline]
    pub(super) fn limit(&mut self, room: Room, now: impl Fn() -> Instant) -> usize {
        // A ring that never has room for such a frame is given it at half: it does with it what it can.
        let cost = self.cost.min(room.size / 2).max(1);
        let frames = room.free / cost;
        if frames > 0 {
            self.since = None;
            return frames as usize;
        }
        let now = now();
        let since = *self.since.get_or_insert(now);
        let patience = if room.free > 0 { self.patience / FOR_MORE } else { self.patience };
        if now - since < patience {
            return 0;
        }
        if room.free > 0 {
            self.since = None;
            return room.free as usize;
        }
        usize::MAX
    }

    /// Notes what was taken.
    #[inline]
    pub(super) fn took(&mut self, batch: &Batch) {
        if batch.is_empty() {
            return;
        }
        // Without offloads all are small, or few and large: a look at the last one does.
        let segment = |frame: &Frame| match frame.offload.gso {
            Gso::None => BUFFER,
            _ => u32::from(frame.offload.gso_size).clamp(1, BUFFER),
        };
        let costs = |frame: &Frame| frame.len.div_ceil(segment(frame));
        let frames = batch.frames().iter().rev();
        let looked = if batch.any_offload { batch.len() } else { 1 };
        let largest = frames.take(looked).map(costs).max().unwrap_or(1);
        self.cost = largest.max(self.cost - self.cost.div_ceil(FORGOTTEN));
    }

    /// Whether the sender waits.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() < self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_waits_for_buffers_but_not_forever() {
        let start = Instant::now();
        let at = |ms| move || start + Duration::from_millis(ms);
        let mut pause = Pause { cost: 1, ..Pause::new(PATIENCE) };
        let room = |free| Room { free, size: 256 };
        assert_eq!(pause.limit(room(255), at(0)), 255);
        assert_eq!(pause.limit(room(0), at(1)), 0);
        assert_eq!(pause.limit(room(0), at(100)), 0);
        assert!(pause.is_on());
        assert_eq!(pause.limit(room(0), at(101)), usize::MAX);
        // One buffer, and the receiver counts as alive again.
        assert_eq!(pause.limit(room(1), at(500)), 1);
        assert_eq!(pause.limit(room(0), at(600)), 0);
    }

    #[test]
    fn large_frames_wait_for_as_many_buffers_as_they_take() {
        let mut pause = Pause { cost: 46, ..Pause::new(PATIENCE) };
        assert_eq!(pause.limit(Room { free: 255, size: 256 }, Instant::now), 5);
        assert_eq!(pause.limit(Room { free: 45, size: 256 }, Instant::now), 0);
        assert_eq!(pause.limit(Room { free: 16, size: 32 }, Instant::now), 1);
    }

    #[test]
    fn a_receiver_that_gives_one_buffer_at_a_time_gets_one_frame_at_a_time() {
        let start = Instant::now();
        let at = |ms| move || start + Duration::from_millis(ms);
        let mut pause = Pause { cost: 4, ..Pause::new(PATIENCE) };
        let room = |free| Room { free, size: 8 };
        assert_eq!(pause.limit(room(1), at(0)), 0);
        assert_eq!(pause.limit(room(1), at(10)), 1);
        // It is filled, and then the sender waits again.
        assert_eq!(pause.limit(room(0), at(11)), 0);
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0; 60]));
        (0..4).for_each(|_| pause.took(&batch));
        assert_eq!(pause.limit(room(1), at(12)), 1);
    }
}
