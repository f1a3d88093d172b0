//! What arrives: each frame once, in its order or not, how late, and how long nothing came.
//!
//! Theory of operation. Frames of a trial are numbered from 0. The next number is expected; a greater one
//! passes over those between, which may still come. A bitmap of the last 65,536 numbers tells what came late
//! from what came twice. With several flows a frame is out of order only if a later one of its own flow was
//! there before it: a device may send flows by different ways. All time is the time stamp counter's.

use hdrhistogram::Histogram;

use super::traffic::{coarse, Traffic};
use sidecore_pktgen::end::Sink;

/// Numbers that are remembered.
const WINDOW: u32 = 1 << 16;

/// What has come in a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// Different frames.
    pub frames: u64,
    /// Frames that had come before.
    pub twice: u64,
    /// Frames that came after a later one of their flow.
    pub reordered: u64,
    /// Frames of a wrong length.
    pub corrupt: u64,
    /// Frames of others, and late ones of earlier trials.
    pub foreign: u64,
}

/// Tells the time stamp counter.
pub type Clock = fn() -> u64;

/// Looks at received frames.
pub struct Receiver<'t> {
    traffic: &'t Traffic,
    trial: u16,
    flows: u32,
    next: u32,
    seen: Box<[u64; WINDOW as usize / 64]>,
    pub came: Came,
    /// When the frames in hand were taken.
    now: u64,
    /// Delays in units of 16 ticks, if they are asked for. Each frame has a time of its own: one that arrives
    /// while others are taken is younger than their time.
    delays: Option<(Histogram<u64>, Clock)>,
    /// When the first and the last frame came, and the last one that followed a gap.
    pub first: Option<u64>,
    pub last: Option<u64>,
    pub after_gap: Option<u64>,
}

impl<'t> Receiver<'t> {
    /// For trial number `trial`, with delays by `clock` if there is one.
    ///
    /// # Errors
    /// No memory for delays.
    pub fn new(traffic: &'t Traffic, trial: u16, clock: Option<Clock>) -> Result<Receiver<'t>, String> {
        let delays = clock
            .map(|clock| Histogram::new_with_bounds(1, 1 << 32, 3).map(|delays| (delays, clock)))
            .transpose()
            .map_err(|e| e.to_string())?;
        Ok(Receiver {
            traffic,
            trial,
            flows: u32::try_from(traffic.flows()).unwrap_or(1).max(1),
            next: 0,
            seen: Box::new([0; WINDOW as usize / 64]),
            came: Came::default(),
            now: 0,
            delays,
            first: None,
            last: None,
            after_gap: None,
        })
    }

    /// Frames that are looked at from now on came at `now`.
    #[inline]
    pub fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// Delays from when frames were due to when they came.
    pub fn into_delays(self) -> Option<Histogram<u64>> {
        self.delays.map(|(delays, _)| delays)
    }

    #[inline]
    fn bit(seq: u32) -> (usize, u64) {
        let place = seq % WINDOW;
        ((place / 64) as usize, 1 << (place % 64))
    }

    #[inline]
    fn mark(&mut self, seq: u32, on: bool) {
        let (word, bit) = Self::bit(seq);
        let word = &mut self.seen[word];
        *word = if on { *word | bit } else { *word & !bit };
    }

    fn has(&self, seq: u32) -> bool {
        let (word, bit) = Self::bit(seq);
        self.seen[word] & bit != 0
    }

    /// A number other than the next one.
    #[cold]
    fn astray(&mut self, seq: u32) -> bool {
        let ahead = seq.wrapping_sub(self.next);
        if ahead < u32::MAX / 2 {
            // Those between have not come. Of more than the window remembers, the last ones count.
            let skipped = ahead.min(WINDOW);
            (1..=skipped).for_each(|back| self.mark(seq.wrapping_sub(back), false));
            self.mark(seq, true);
            self.next = seq.wrapping_add(1);
            self.after_gap = Some(self.now);
            return true;
        }
        let behind = self.next.wrapping_sub(seq);
        // A frame too late for the window is taken for one that came before.
        if behind > WINDOW || self.has(seq) {
            self.came.twice += 1;
            return false;
        }
        let mut later = seq.wrapping_add(self.flows);
        let of_flow = std::iter::from_fn(|| {
            let this = later;
            later = later.wrapping_add(self.flows);
            Some(this)
        });
        let until = behind.min(WINDOW) / self.flows;
        let overtaken =
            of_flow.take(until as usize).any(|later| later.wrapping_sub(seq) < behind && self.has(later));
        self.came.reordered += u64::from(overtaken);
        self.mark(seq, true);
        true
    }
}

impl Sink for Receiver<'_> {
    const READS: bool = true;

    #[inline]
    fn frame(&mut self, bytes: &[u8]) {
        let (seq, due) = match self.traffic.read(bytes, self.trial) {
            Some(Ok(it)) => it,
            Some(Err(())) => {
                self.came.corrupt += 1;
                return;
            }
            None => {
                self.came.foreign += 1;
                return;
            }
        };
        let counts = if seq == self.next {
            self.mark(seq, true);
            self.next = seq.wrapping_add(1);
            true
        } else {
            self.astray(seq)
        };
        if counts {
            self.came.frames += 1;
            self.first.get_or_insert(self.now);
            self.last = Some(self.now);
            if let Some((delays, clock)) = &mut self.delays {
                let delay = coarse(clock()).wrapping_sub(due);
                // A frame that came within the tick in which it was due.
                let delay = if delay > u32::MAX / 2 { 0 } else { delay };
                delays.saturating_record(u64::from(delay).max(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::super::target::Stations;
    use super::super::traffic::{Lengths, Maker};
    use super::*;
    use sidecore_pktgen::end::Source;

    fn traffic(flows: u64) -> Traffic {
        let stations = Stations { from: [2; 6], to: [4; 6] };
        Traffic::new(&Lengths::Fixed(64), stations, flows, [None, None]).unwrap()
    }

    fn numbered(traffic: &Traffic, count: usize) -> Vec<Vec<u8>> {
        let mut maker = Maker::new(traffic, 1);
        maker.gap = 1600.0;
        let mut buffer = [0; 64];
        let mut one = || {
            let len = maker.write(&mut buffer);
            buffer[..len].to_vec()
        };
        (0..count).map(|_| one()).collect()
    }

    fn play(flows: u64, order: &[usize]) -> Came {
        let traffic = traffic(flows);
        let frames = numbered(&traffic, order.iter().max().unwrap() + 1);
        let mut receiver = Receiver::new(&traffic, 1, None).unwrap();
        order.iter().for_each(|at| receiver.frame(&frames[*at]));
        receiver.came
    }

    #[test]
    fn each_frame_counts_once() {
        assert_eq!(play(1, &[0, 1, 2, 3]), Came { frames: 4, ..Came::default() });
        assert_eq!(play(1, &[0, 1, 1, 2, 0]), Came { frames: 3, twice: 2, ..Came::default() });
        assert_eq!(play(1, &[0, 3, 1, 1, 4]), Came { frames: 4, twice: 1, reordered: 1, ..Came::default() });
        // 1 and 2 are of different flows: only what overtakes its own flow is out of order.
        assert_eq!(play(2, &[0, 2, 1, 3]), Came { frames: 4, ..Came::default() });
        assert_eq!(play(2, &[0, 3, 1, 2]), Came { frames: 4, reordered: 1, ..Came::default() });
    }

    #[test]
    fn a_long_gap_is_remembered_as_far_as_it_matters() {
        let far = 3 * WINDOW as usize;
        let came = play(1, &[0, far, far - 1, far - 1, 1]);
        assert_eq!(came, Came { frames: 3, twice: 2, reordered: 1, ..Came::default() });
    }

    #[test]
    fn others_and_damaged_ones_do_not_count() {
        let traffic = traffic(1);
        let frames = numbered(&traffic, 1);
        let mut receiver = Receiver::new(&traffic, 1, None).unwrap();
        receiver.frame(&[0; 60]);
        receiver.frame(&frames[0][..50]);
        receiver.frame(&[&frames[0][..], &[0]].concat());
        let mut other = Receiver::new(&traffic, 2, None).unwrap();
        other.frame(&frames[0]);
        assert_eq!(receiver.came, Came { corrupt: 1, foreign: 2, ..Came::default() });
        assert_eq!(other.came, Came { foreign: 1, ..Came::default() });
    }

    #[test]
    fn delays_count_from_when_a_frame_was_due() {
        let traffic = traffic(1);
        let frames = numbered(&traffic, 3);
        thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });
        let mut receiver = Receiver::new(&traffic, 1, Some(|| NOW.get())).unwrap();
        // The third frame arrives while the second one's batch is taken.
        for (at, now, frame) in
            [(4800, 4800, 0), (1600, 1600, 1), (1600, 6400, 2)].map(|(at, now, n)| (at, now, &frames[n]))
        {
            receiver.at(at);
            NOW.set(now);
            receiver.frame(frame);
        }
        assert_eq!((receiver.first, receiver.last, receiver.after_gap), (Some(4800), Some(1600), None));
        let delays = receiver.into_delays().unwrap();
        // 300, 0 (which counts as 1) and 200 units of 16 ticks.
        assert_eq!((delays.len(), delays.min(), delays.max()), (3, 1, 300));
    }
}
