//! What a queue at the other end of a wire is taken for, and how many buffers a frame takes of it.

use std::time::{Duration, Instant};

use crate::packet::{Frame, Gso};
use crate::port::Wait;

/// Bytes that one buffer holds, for the estimate of what a large frame takes; one that is cut takes one for
/// each segment.
const BUFFER: u32 = 2048;
/// The part of its patience for which a sender waits for a second buffer, when a receiver gives one at a time
/// and the last frames were large.
const FOR_MORE: u32 = 10;

/// What a queue at the other end is taken for.
#[derive(Clone, Copy)]
pub(super) enum Receiver {
    /// It has buffers, as far as is known.
    Ready,
    /// It has had too few of them since then.
    Full(Instant),
    /// It gives none any more.
    Dead,
}

impl Receiver {
    /// It has room for all frames, or there is no telling. The wait that has ended with that.
    pub(super) fn is_ready(&mut self, now: Instant) -> Option<Wait> {
        match std::mem::replace(self, Receiver::Ready) {
            Receiver::Full(since) => {
                Some(Wait { time: now.saturating_duration_since(since), given_up: false })
            }
            Receiver::Ready | Receiver::Dead => None,
        }
    }

    /// It has room for `fit` frames only, fewer than there are, and for a smaller one if it has a `free`
    /// buffer. How many it is given all the same, and the wait that has ended with that.
    pub(super) fn is_full(
        &mut self,
        fit: usize,
        free: bool,
        patience: Duration,
        now: Instant,
    ) -> (usize, Option<Wait>) {
        let end = |since, given_up| Wait { time: now.saturating_duration_since(since), given_up };
        match *self {
            Receiver::Dead if !free => return (usize::MAX, None),
            Receiver::Full(since) if fit == 0 => {
                let patience = if free { patience / FOR_MORE } else { patience };
                if now.saturating_duration_since(since) < patience {
                    return (0, None);
                }
                // It gives one buffer at a time: it gets one frame at a time.
                *self = if free { Receiver::Full(now) } else { Receiver::Dead };
                return (if free { 1 } else { usize::MAX }, Some(end(since, !free)));
            }
            _ => {}
        }
        let before = std::mem::replace(self, Receiver::Full(now));
        let wait = if let Receiver::Full(since) = before { Some(end(since, false)) } else { None };
        (fit, wait)
    }
}

/// Buffers that `frame` takes: one for each segment, if it is one that is cut.
#[inline]
pub(super) fn buffers(frame: &Frame) -> u32 {
    let segment = match frame.offload.gso {
        Gso::None => BUFFER,
        _ => u32::from(frame.offload.gso_size).clamp(1, BUFFER),
    };
    frame.len.div_ceil(segment)
}
