//! What a port, and what the I/O cores, did of late: looked at once a second, by the counters that only grow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sidecore_abi::counters::{DROPS, DROP_PLACES};

use crate::core::{CoreStatus, Usage};
use crate::observe::Totals;

/// Looks that follow each other sooner tell too little.
pub(super) const SHORTEST: Duration = Duration::from_millis(500);

crate::util::form::view! {
    /// A port's traffic in the last second, and the time since its last frames. Rates are absent in the
    /// port's first second, times if there was no such frame.
    #[derive(Default)]
    FlowView {
        /// Frames a second that were taken from it.
        in_rate?: u64,
        /// Bits a second of those.
        in_bit_rate?: u64,
        /// Frames a second that were delivered to it.
        out_rate?: u64,
        /// Bits a second of those.
        out_bit_rate?: u64,
        /// Frames a second that were dropped.
        drop_rate?: u64,
        /// Milliseconds since a frame was taken from it, to the second.
        last_in_ms?: u64,
        /// Milliseconds since a frame was delivered to it, to the second.
        last_out_ms?: u64,
        /// Milliseconds since a frame was dropped, by the name of the reason.
        #[serde(default)]
        last_drop_ms: BTreeMap<String, u64>,
    }
}

/// What a port's counters were when they were looked at last, and when each was seen to grow.
#[derive(Debug, Default)]
pub(super) struct Flow {
    before: Option<(Instant, Totals, Usage)>,
    rates: Option<[u64; 5]>,
    /// Millionths of the time between the last two looks: of a core used, and throttled.
    pub parts: Option<(u64, u64)>,
    last_in: Option<Instant>,
    last_out: Option<Instant>,
    /// When frames were last dropped for each reason, once there was a look.
    last_drop: Vec<Option<Instant>>,
}

impl Flow {
    /// Takes the counters as they are `now`. Returns a text where the port begins to be throttled, or ends to
    /// be.
    pub fn note(&mut self, now: Instant, totals: &Totals, usage: Usage) -> Option<&'static str> {
        let was_throttled = self.is_throttled();
        let before = self.before.map_or_else(Totals::default, |(_, totals, _)| totals);
        if let Some((then, _, had)) = self.before {
            let time = now.saturating_duration_since(then);
            if time < SHORTEST {
                return None;
            }
            let rate = |now: u64, before: u64| per_second(now.saturating_sub(before), time);
            let part = |now: u64, before: u64| ppm(now.saturating_sub(before), time);
            self.parts = Some((part(usage.busy_ns, had.busy_ns), part(usage.throttled_ns, had.throttled_ns)));
            let drops = |totals: &Totals| totals.drops.iter().sum();
            self.rates = Some([
                rate(totals.in_frames, before.in_frames),
                rate(totals.in_bytes, before.in_bytes).saturating_mul(8),
                rate(totals.out_frames, before.out_frames),
                rate(totals.out_bytes, before.out_bytes).saturating_mul(8),
                rate(drops(totals), drops(&before)),
            ]);
        }
        let seen = |last: &mut Option<Instant>, now_at: u64, before: u64| {
            if now_at != before {
                *last = Some(now);
            }
        };
        seen(&mut self.last_in, totals.in_frames, before.in_frames);
        seen(&mut self.last_out, totals.out_frames, before.out_frames);
        self.last_drop.resize(DROP_PLACES, None);
        for (last, (n, old)) in self.last_drop.iter_mut().zip(totals.drops.iter().zip(before.drops)) {
            seen(last, *n, old);
        }
        self.before = Some((now, *totals, usage));
        match self.is_throttled() {
            throttled if throttled == was_throttled => None,
            true => Some("it is throttled: its budget or its rate is used up"),
            false => Some("it is not throttled any more"),
        }
    }

    fn is_throttled(&self) -> bool {
        self.parts.is_some_and(|(_, throttled)| throttled > 0)
    }

    /// For people and programs; the counters stand so now.
    pub fn view(&self, now: Instant, totals: &Totals) -> FlowView {
        let before = self.before.map_or_else(Totals::default, |(_, totals, _)| totals);
        let ago = |last: Option<Instant>, n: u64, old: u64| match last {
            _ if n != old => Some(0),
            last => last.map(|last| {
                u64::try_from(now.saturating_duration_since(last).as_millis()).unwrap_or(u64::MAX)
            }),
        };
        let last_drop = self.last_drop.iter().copied().chain(std::iter::repeat(None));
        let drops = DROPS.iter().zip(last_drop.zip(totals.drops.iter().zip(before.drops)));
        let drops = drops
            .filter_map(|((_, name, _), (last, (n, old)))| Some(((*name).to_owned(), ago(last, *n, old)?)));
        let rate = |place: usize| self.rates.and_then(|rates| rates.get(place).copied());
        FlowView {
            in_rate: rate(0),
            in_bit_rate: rate(1),
            out_rate: rate(2),
            out_bit_rate: rate(3),
            drop_rate: rate(4),
            last_in_ms: ago(self.last_in, totals.in_frames, before.in_frames),
            last_out_ms: ago(self.last_out, totals.out_frames, before.out_frames),
            last_drop_ms: drops.collect(),
        }
    }
}

fn per_second(n: u64, time: Duration) -> u64 {
    let ns = time.as_nanos().max(1);
    u64::try_from(u128::from(n) * 1_000_000_000 / ns).unwrap_or(u64::MAX)
}

/// What part of `time` `ns` nanoseconds are, in millionths.
pub(super) fn ppm(ns: u64, time: Duration) -> u64 {
    per_second(ns, time) / 1000
}

crate::util::form::view! {
    /// The last second of an I/O core.
    #[derive(Copy, Default)]
    LastSecond {
        /// Millionths in rounds that moved frames.
        busy_ppm: u64,
        /// Millionths in rounds that found nothing.
        idle_ppm: u64,
        /// Millionths asleep, or without a processor.
        sleep_ppm: u64,
        /// Frames that it moved a second.
        frame_rate: u64,
    }
}

/// What the I/O cores had done when they were looked at last, and in the second before.
#[derive(Debug, Default)]
pub(super) struct CoreFlow {
    before: Option<(Instant, Vec<CoreStatus>)>,
    last: Vec<LastSecond>,
}

impl CoreFlow {
    /// They have done so much by now.
    pub fn note(&mut self, now: Instant, cores: Vec<CoreStatus>) {
        if let Some((then, before)) = &self.before {
            let time = now.saturating_duration_since(*then);
            if time < SHORTEST {
                return;
            }
            let last = |(core, old): (&CoreStatus, &CoreStatus)| {
                // A core is read while it runs: its parts may add up to a little more than the whole.
                let busy_ppm = ppm(core.busy_ns.saturating_sub(old.busy_ns), time).min(1_000_000);
                let idle_ppm = ppm(core.idle_ns.saturating_sub(old.idle_ns), time).min(1_000_000 - busy_ppm);
                let frame_rate = per_second(core.frames.saturating_sub(old.frames), time);
                LastSecond { busy_ppm, idle_ppm, sleep_ppm: 1_000_000 - busy_ppm - idle_ppm, frame_rate }
            };
            self.last = cores.iter().zip(before).map(last).collect();
        }
        self.before = Some((now, cores));
    }

    /// The last second of core `number`, once there was one.
    pub fn of(&self, number: usize) -> Option<LastSecond> {
        self.last.get(number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_the_last_seconds_and_ages_count_from_the_look_that_saw_a_frame() {
        let (mut flow, start) = (Flow::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let totals = |n: u64, dropped: u64| {
            let mut totals = Totals { in_frames: n, in_bytes: 100 * n, ..Totals::default() };
            totals.drops[4] = dropped;
            totals
        };
        assert_eq!(flow.view(at(0), &totals(0, 0)), FlowView::default());
        assert_eq!(flow.view(at(0), &totals(1, 0)).last_in_ms, Some(0));
        flow.note(at(0), &totals(10, 0), Usage::default());
        flow.note(at(1), &totals(11, 0), Usage::default());
        let view = flow.view(at(250), &totals(10, 0));
        assert_eq!((view.in_rate, view.last_in_ms, view.last_out_ms), (None, Some(250), None));
        flow.note(at(2_000), &totals(30, 4), Usage::default());
        let view = flow.view(at(3_000), &totals(30, 4));
        assert_eq!((view.in_rate, view.in_bit_rate, view.drop_rate), (Some(10), Some(8_000), Some(2)));
        assert_eq!(view.last_drop_ms, BTreeMap::from([("too_long".to_owned(), 1_000)]));
        assert_eq!(flow.view(at(3_000), &totals(30, 5)).last_drop_ms["too_long"], 0);
    }

    #[test]
    fn what_a_port_had_of_late_is_a_part_of_that_time() {
        let (mut flow, start, totals) = (Flow::default(), Instant::now(), Totals::default());
        let usage = |busy_ms: u64, throttled_ms: u64| Usage {
            busy_ns: busy_ms * 1_000_000,
            throttled_ns: throttled_ms * 1_000_000,
        };
        flow.note(start, &totals, usage(5_000, 0));
        assert_eq!(flow.parts, None);
        flow.note(start + Duration::from_millis(1), &totals, usage(5_001, 0));
        assert_eq!(flow.parts, None);
        flow.note(start + Duration::from_secs(2), &totals, usage(5_400, 1_600));
        assert_eq!(flow.parts, Some((200_000, 800_000)));
        // Counters of cores are read one by one.
        flow.note(start + Duration::from_secs(3), &totals, usage(5_300, 1_600));
        assert_eq!(flow.parts, Some((0, 0)));
    }

    #[test]
    fn a_core_that_sleeps_through_the_second_was_asleep_all_of_it() {
        let core = |busy_ms: u64, frames| CoreStatus {
            number: 0,
            cpu: None,
            shared: false,
            queues: 0,
            active: true,
            busy_ns: busy_ms * 1_000_000,
            idle_ns: 0,
            sleep_ns: 0,
            busy_rounds: 0,
            frames,
            sleeps: 0,
        };
        let (mut flow, start) = (CoreFlow::default(), Instant::now());
        flow.note(start, vec![core(5_000, 5)]);
        assert_eq!(flow.of(0), None);
        flow.note(start + Duration::from_secs(1), vec![core(5_250, 205)]);
        let last = LastSecond { busy_ppm: 250_000, idle_ppm: 0, sleep_ppm: 750_000, frame_rate: 200 };
        assert_eq!(flow.of(0), Some(last));
        // It was busy for longer than the time between two looks: one of them came late.
        flow.note(start + Duration::from_secs(2), vec![core(7_000, 205)]);
        assert_eq!(flow.of(0).map(|last| (last.busy_ppm, last.sleep_ppm)), Some((1_000_000, 0)));
    }
}
