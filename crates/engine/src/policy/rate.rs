//! How many frames and bits a second go out by a port.
//!
//! What comes *in* is limited by the scheduler, which leaves frames in their sender's ring
//! (`core/accounts.rs`). What goes out comes from many senders, none of which can wait for this port, so what
//! is beyond the limit is dropped: a policer. Its bucket (`util::bucket`) holds what the port may save up
//! while little comes. A frame that is to be segmented counts as its segments.
//!
//! A batch reads the buckets once and writes them once.

use std::time::{Duration, Instant};

use crate::packet::Frame;
use crate::util::bucket::{nanos, nanos_at, parts, time_of, Bucket};

/// The limits of one port.
#[derive(Debug)]
pub struct EgressRate {
    frames: Option<Limit>,
    bits: Option<Limit>,
    /// What may be saved up: time.
    burst: u64,
}

/// So many units a second.
#[derive(Debug)]
struct Limit {
    rate: u64,
    bucket: Bucket,
}

impl EgressRate {
    /// `None` if nothing is limited. At least one frame may be saved up.
    pub fn new(frames: Option<u64>, bits: Option<u64>, burst: Duration) -> Option<EgressRate> {
        let limit = |rate: Option<u64>| rate.map(|rate| Limit { rate, bucket: Bucket::new() });
        (frames.is_some() || bits.is_some()).then(|| EgressRate {
            frames: limit(frames),
            bits: limit(bits),
            burst: parts(nanos(burst)),
        })
    }

    /// How many of `frames`, the first ones, may go out at time `now`. They are taken from the limits, unless
    /// that is only asked.
    pub fn admit<'f>(&self, frames: impl Iterator<Item = &'f Frame>, now: Instant, spends: bool) -> usize {
        let now = parts(nanos_at(now));
        let limits = [&self.frames, &self.bits];
        let mut ahead = limits.map(|limit| limit.as_ref().map_or(0, |limit| limit.bucket.ahead(now)));
        let mut taken = [0; 2];
        let mut passed = 0;
        for frame in frames {
            let units = [frame.segments().into(), u64::from(frame.len) * 8];
            let costs: [u64; 2] =
                std::array::from_fn(|n| limits[n].as_ref().map_or(0, |limit| time_of(units[n], limit.rate)));
            // An empty bucket lets a frame through whose cost is more than all that it can hold.
            let full = |n: usize| ahead[n] > 0 && ahead[n].saturating_add(costs[n]) > self.burst;
            if full(0) || full(1) {
                break;
            }
            for n in 0..2 {
                ahead[n] = ahead[n].saturating_add(costs[n]);
                taken[n] = u64::saturating_add(taken[n], costs[n]);
            }
            passed += 1;
        }
        for (limit, taken) in limits.into_iter().zip(taken).filter(|(_, taken)| spends && *taken > 0) {
            limit.iter().for_each(|limit| {
                limit.bucket.add(taken, u64::MAX, now);
            });
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Batch;

    /// Frames that pass of 1,000 of this length, offered each millisecond for a second.
    fn passed(rate: &EgressRate, len: u32) -> usize {
        let mut batch = Batch::new();
        for _ in 0..200 {
            batch.next_frame().unwrap().0.len = len;
            batch.commit();
        }
        let start = Instant::now();
        (0..1000).map(|ms| rate.admit(batch.frames().iter(), start + Duration::from_millis(ms), true)).sum()
    }

    #[test]
    fn so_many_frames_and_bits_pass_in_a_second() {
        assert!(EgressRate::new(None, None, Duration::ZERO).is_none());
        let burst = Duration::from_millis(10);
        let limited = |frames, bits| EgressRate::new(frames, bits, burst).unwrap();
        let near = |got: usize, wanted: usize| assert!(got.abs_diff(wanted) <= wanted / 50, "{got} {wanted}");
        near(passed(&limited(Some(50_000), None), 60), 50_000 + 500);
        near(passed(&limited(None, Some(100_000_000)), 1250), 10_000 + 100);
        // The lower of the two holds.
        near(passed(&limited(Some(2_000), Some(100_000_000)), 1250), 2_000 + 20);
        near(passed(&limited(Some(50_000), Some(100_000_000)), 1250), 10_000 + 100);
        // Frames larger than the burst pass, and are paid for.
        near(passed(&limited(None, Some(1_000_000)), 12_500), 10);
    }

    #[test]
    fn a_large_frame_counts_as_its_segments() {
        let rate = EgressRate::new(Some(1000), None, Duration::from_millis(10)).unwrap();
        let mut batch = Batch::new();
        for _ in 0..3 {
            let frame = batch.next_frame().unwrap().0;
            frame.len = 6000;
            frame.offload.gso = crate::packet::Gso::Tcp4;
            frame.offload.gso_size = 1500;
            batch.commit();
        }
        // Ten are saved up.
        assert_eq!(rate.admit(batch.frames().iter(), Instant::now(), true), 2);
    }
}
