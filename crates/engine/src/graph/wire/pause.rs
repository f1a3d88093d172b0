//! The sender's side of a wire to a receiver with one queue: how many frames are taken.

use std::time::{Duration, Instant};

use super::receiver::{buffers, Receiver};
use crate::packet::Batch;
use crate::port::{Room, Wait};

/// Buffers that the largest frame takes.
const LARGEST: u32 = 65_536u32.div_ceil(1448);

/// What a queue on a wire knows of its receiver.
pub(in crate::graph) struct Pause {
    patience: Duration,
    receiver: Receiver,
    /// A wait that has just ended, until it is known whether there was anything to send.
    over: Option<Wait>,
    /// Buffers that a large frame takes: what the largest of late took. Each batch of smaller ones takes one
    /// off, so that the frames of one connection, which come in all sizes, do not have it forgotten between
    /// two large ones.
    cost: u32,
}

impl Pause {
    pub(in crate::graph) fn new(patience: Duration) -> Pause {
        Pause { patience, receiver: Receiver::Ready, over: None, cost: LARGEST }
    }

    /// How many frames may be taken now, if the receiver has this `room`; all, if there is no telling.
    #[inline]
    pub(in crate::graph) fn limit(&mut self, room: Option<Room>, now: impl Fn() -> Instant) -> usize {
        let Some(room) = room else {
            (self.receiver, self.over) = (Receiver::Ready, None);
            return usize::MAX;
        };
        // A ring that never has room for such a frame is given it at half: it does with it what it can.
        let cost = self.cost.min(room.size / 2).max(1);
        let frames = room.free / cost;
        if frames > 0 {
            if !matches!(self.receiver, Receiver::Ready) {
                self.over = self.receiver.is_ready(now());
            }
            return frames as usize;
        }
        let (most, over) = match self.receiver {
            // Given up before: whatever it gives now is used at once.
            Receiver::Dead if room.free > 0 => (1, None),
            _ => self.receiver.is_full(0, room.free > 0, self.patience, now()),
        };
        self.over = over.or(self.over.take());
        if most == 1 {
            // Frames may be smaller than the last ones: it gets as many as it has buffers, and is waited for
            // again behind them.
            self.receiver = Receiver::Ready;
            return room.free as usize;
        }
        most
    }

    /// The wait that has ended, if frames were found behind it: `batch` is what was taken then.
    #[inline]
    pub(in crate::graph) fn over(&mut self, batch: &Batch) -> Option<Wait> {
        let wait = self.over.take()?;
        if !batch.is_empty() {
            return Some(wait);
        }
        // Nothing waited. But a receiver that is dead when a frame comes later has been given up all the
        // same.
        self.over = wait.given_up.then_some(Wait { time: Duration::ZERO, ..wait });
        None
    }

    /// Notes what was taken.
    #[inline]
    pub(in crate::graph) fn took(&mut self, batch: &Batch) {
        if batch.is_empty() {
            return;
        }
        // Without offloads all are small, or few and large: a look at the last one does.
        let frames = batch.frames().iter().rev();
        let looked = if batch.any_offload { batch.len() } else { 1 };
        let largest = frames.take(looked).map(buffers).max().unwrap_or(1);
        self.cost = largest.max(self.cost - 1);
    }

    /// Whether the sender waits.
    pub(in crate::graph) fn is_on(&self) -> bool {
        matches!(self.receiver, Receiver::Full(since) if since.elapsed() < self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PATIENCE;
    use super::*;
    use crate::packet::{Gso, Offload};

    fn room(free: u32, size: u32) -> Option<Room> {
        Some(Room { free, size })
    }

    /// A batch of one small frame.
    fn small() -> Batch {
        let mut batch = Batch::new();
        assert!(batch.push_short(&[0; 60]));
        batch
    }

    fn clock() -> impl Fn(u64) -> Box<dyn Fn() -> Instant> {
        let start = Instant::now();
        move |ms| Box::new(move || start + Duration::from_millis(ms))
    }

    #[test]
    fn a_sender_waits_for_buffers_but_not_forever() {
        let at = clock();
        let mut pause = Pause { cost: 1, ..Pause::new(PATIENCE) };
        assert_eq!(pause.limit(room(255, 256), || panic!("a look at the clock")), 255);
        assert_eq!(pause.limit(room(0, 256), at(1)), 0);
        assert_eq!(pause.limit(room(0, 256), at(100)), 0);
        assert!(pause.is_on());
        assert_eq!(pause.limit(room(0, 256), at(101)), usize::MAX);
        // One buffer, and the receiver counts as alive again.
        assert_eq!(pause.limit(room(1, 256), at(500)), 1);
        assert_eq!(pause.limit(room(0, 256), at(600)), 0);
    }

    #[test]
    fn large_frames_wait_for_as_many_buffers_as_they_take() {
        let mut pause = Pause { cost: 46, ..Pause::new(PATIENCE) };
        assert_eq!(pause.limit(room(255, 256), Instant::now), 5);
        assert_eq!(pause.limit(room(45, 256), Instant::now), 0);
        assert_eq!(pause.limit(room(16, 32), Instant::now), 1);
    }

    #[test]
    fn a_large_frame_is_remembered_for_as_many_batches_as_it_took_buffers() {
        let mut large = Batch::new();
        let (frame, _) = large.next_frame().unwrap();
        (frame.len, frame.offload) =
            (54 + 32 * 1_448, Offload { gso: Gso::Tcp4, gso_size: 1_448, ..Offload::NONE });
        large.commit();
        let mut pause = Pause { cost: 1, ..Pause::new(PATIENCE) };
        pause.took(&large);
        for cost in (1..=33).rev() {
            assert_eq!(pause.limit(room(66, 256), Instant::now), 66 / cost);
            pause.took(&small());
        }
        assert_eq!(pause.limit(room(66, 256), Instant::now), 66);
    }

    #[test]
    fn a_receiver_that_gives_one_buffer_at_a_time_gets_one_frame_at_a_time() {
        let at = clock();
        let mut pause = Pause { cost: 4, ..Pause::new(PATIENCE) };
        assert_eq!(pause.limit(room(1, 8), at(0)), 0);
        assert_eq!(pause.limit(room(1, 8), at(10)), 1);
        // It is filled, and then the sender waits again.
        assert_eq!(pause.limit(room(0, 8), at(11)), 0);
        (0..4).for_each(|_| pause.took(&small()));
        assert_eq!(pause.limit(room(1, 8), at(12)), 1);
    }

    #[test]
    fn buffers_that_are_too_few_for_a_large_frame_are_given_as_many_frames() {
        let at = clock();
        let mut pause = Pause { cost: 45, ..Pause::new(PATIENCE) };
        assert_eq!([0, 9, 10, 11, 21].map(|ms| pause.limit(room(20, 256), at(ms))), [0, 0, 20, 0, 20]);
        // One that was given up, too, and at once.
        assert_eq!([30, 129, 130].map(|ms| pause.limit(room(0, 256), at(ms))), [0, 0, usize::MAX]);
        assert_eq!(pause.limit(room(20, 256), at(131)), 20);
        assert!(!pause.is_on());
    }

    #[test]
    fn a_wait_counts_when_frames_are_found_behind_it() {
        let at = clock();
        let wait = |ms, given_up| Some(Wait { time: Duration::from_millis(ms), given_up });
        let (nothing, some) = (Batch::new(), small());
        let mut pause = Pause { cost: 1, ..Pause::new(PATIENCE) };
        pause.limit(room(0, 8), at(0));
        assert_eq!(pause.over(&nothing), None);
        pause.limit(room(8, 8), at(7));
        assert_eq!(pause.over(&some), wait(7, false));
        assert_eq!(pause.over(&some), None);
        // Nothing to send: the sender did not wait.
        pause.limit(room(0, 8), at(10));
        pause.limit(room(8, 8), at(20));
        assert_eq!(pause.over(&nothing), None);
        assert_eq!(pause.over(&some), None);
        // Given up with frames there; without, it shows when some come.
        pause.limit(room(0, 8), at(100));
        pause.limit(room(0, 8), at(200));
        assert_eq!(pause.over(&some), wait(100, true));
        pause.limit(room(8, 8), at(300));
        assert_eq!(pause.over(&some), None);
        pause.limit(room(0, 8), at(400));
        pause.limit(room(0, 8), at(500));
        assert_eq!(pause.over(&nothing), None);
        assert_eq!(pause.over(&some), wait(0, true));
        // Off the wire in the middle of a wait.
        pause.limit(room(8, 8), at(600));
        pause.limit(room(0, 8), at(601));
        assert_eq!(pause.limit(None, at(700)), usize::MAX);
        pause.limit(room(8, 8), at(800));
        assert_eq!(pause.over(&some), None);
    }
}
