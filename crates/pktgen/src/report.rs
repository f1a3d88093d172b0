//! What pkt-gen says: progress and summary in the form that netmap's users and their scripts read, or JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::Function;
use super::counters::Count;
use super::units::scaled;
use super::verify::Findings;

/// Preamble, gap and check sequence: bytes that a frame takes on a wire beside its own.
const FRAMING: u64 = 24;
/// Intervals that `-A` looks back.
const BACK: usize = 15;

/// How numbers are written.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Without K, M and G.
    pub plain: bool,
    /// Bit rates with framing.
    pub framing: bool,
    /// With average and deviation.
    pub average: bool,
}

fn per_second(amount: f64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        amount / seconds
    } else {
        0.0
    }
}

fn bits(count: Count, framing: bool) -> f64 {
    8.0 * (count.bytes + if framing { FRAMING * count.frames } else { 0 }) as f64
}

/// The rates of intervals.
#[derive(Clone, Debug, Default)]
pub struct Intervals {
    rates: Vec<f64>,
}

/// How rates are spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub intervals: usize,
    /// The middle.
    pub median: f64,
    /// The slowest.
    pub min: f64,
    /// The fastest.
    pub max: f64,
    /// Average.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
}

fn spread(rates: &[f64]) -> Option<Spread> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (intervals, middle) = (sorted.len(), sorted.len() / 2);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let median =
        if intervals % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
    let mean = sorted.iter().sum::<f64>() / intervals as f64;
    let variance = sorted.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / intervals as f64;
    Some(Spread { intervals, median, min, max, mean, deviation: variance.sqrt() })
}

impl Intervals {
    /// The line for an interval of `time` in which `count` passed; `room` is the least that a batch found.
    pub fn line(&mut self, count: Count, time: Duration, room: Option<u64>, style: Style) -> String {
        let rate = per_second(count.frames as f64, time);
        self.rates.push(rate);
        let show = |value, unit| scaled(value, unit, style.plain);
        let average = if style.average {
            let last = &self.rates[self.rates.len().saturating_sub(BACK)..];
            let s = spread(last).map_or((0.0, 0.0), |s| (s.mean, s.deviation));
            format!("[avg/std {}/{}] ", show(s.0, "").trim_end(), show(s.1, "pps"))
        } else {
            String::new()
        };
        format!(
            "{} {average}({} {} in {} usec) {:.2} avg_batch {} min_space",
            show(rate, "pps"),
            show(count.frames as f64, "pkts"),
            show(per_second(bits(count, style.framing), time), "bps"),
            time.as_micros(),
            count.frames as f64 / count.events.max(1) as f64,
            room.unwrap_or(0),
        )
    }

    /// Their spread, of those in which anything passed. The first and the last of them are cut short by start
    /// and end, and left out if others remain.
    pub fn spread(&self) -> Option<Spread> {
        let busy: Vec<f64> = self.rates.iter().copied().filter(|rate| *rate > 0.0).collect();
        match busy.len() {
            0..=2 => spread(&busy),
            n => spread(&busy[1..n - 1]),
        }
    }
}

/// Percentiles of round trip times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Round trips.
    pub count: u64,
    /// Pings without answer.
    pub lost: u64,
    /// The shortest.
    pub min: u64,
    /// The average.
    pub mean: f64,
    /// Half are shorter.
    pub p50: u64,
    /// 90 of 100 are shorter.
    pub p90: u64,
    /// 99 of 100 are shorter.
    pub p99: u64,
    /// 999 of 1000 are shorter.
    #[serde(rename = "p99.9")]
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Times {
    /// What a histogram says.
    pub fn of(h: &Histogram<u64>, lost: u64) -> Times {
        let at = |quantile| h.value_at_quantile(quantile);
        let (p50, p90, p99, p999) = (at(0.5), at(0.9), at(0.99), at(0.999));
        Times { count: h.len(), lost, min: h.min(), mean: h.mean(), p50, p90, p99, p999, max: h.max() }
    }
}

/// netmap's line for an interval of pings, and one line of counts by powers of two.
pub fn ping_lines(h: &Histogram<u64>) -> String {
    let mut text = format!("count {} RTT: min {} av {:.0} ns\n", h.len(), h.min(), h.mean());
    let power = |value: u64| u64::BITS - value.leading_zeros();
    let (low, high) = (power(h.min()), power(h.max()));
    if !h.is_empty() {
        text.push_str(&format!("{low}: {} .. {high}:", 1u64 << low.saturating_sub(1)));
        for k in low..=high {
            let start = if k == 0 { 0 } else { 1u64 << (k - 1) };
            let end = (1u64 << k) - 1;
            let count = h.iter_recorded().filter(|v| (start..=end).contains(&v.value_iterated_to()));
            text.push_str(&format!(" {}", count.map(|v| v.count_at_value()).sum::<u64>()));
        }
        text.push('\n');
    }
    text
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this form.
    pub version: u32,
    /// What was done.
    pub function: &'static str,
    /// Where.
    pub interface: String,
    pub threads: usize,
    /// Frames.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Batches.
    pub events: u64,
    /// From the first frame to the last.
    pub seconds: f64,
    /// Frames a second.
    pub pps: f64,
    /// Bits a second.
    pub bps: f64,
    /// Bits a second with framing.
    pub raw_bps: f64,
    /// Frames in a batch.
    pub average_batch: f64,
    /// Rates over intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Round trip times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Times>,
    /// What `--verify` found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Findings>,
}

impl Report {
    /// What was counted in `time`.
    pub fn new(function: Function, interface: &str, threads: usize, count: Count, time: Duration) -> Report {
        let function = match function {
            Function::Tx => "tx",
            Function::Rx => "rx",
            Function::Ping => "ping",
            Function::Pong => "pong",
        };
        Report {
            version: 1,
            function,
            interface: interface.to_owned(),
            threads,
            packets: count.frames,
            bytes: count.bytes,
            events: count.events,
            seconds: time.as_secs_f64(),
            pps: per_second(count.frames as f64, time),
            bps: per_second(bits(count, false), time),
            raw_bps: per_second(bits(count, true), time),
            average_batch: count.frames as f64 / count.events.max(1) as f64,
            spread: None,
            rtt_ns: None,
            verify: None,
        }
    }

    /// As netmap's pkt-gen ends, and behind that what it has not.
    pub fn text(&self, style: Style) -> String {
        let show = |value, unit| scaled(value, unit, style.plain);
        let verb = if self.function == "rx" { "Received" } else { "Sent" };
        let Report { packets, bytes, events, seconds, .. } = self;
        let mut text = match packets {
            0 => format!("{verb} nothing.\n"),
            _ => format!(
                "{verb} {packets} packets {bytes} bytes {events} events {} bytes each in {seconds:.2} seconds.\n\
                 Speed: {} Bandwidth: {} (raw {}). Average batch: {:.2} pkts\n",
                bytes / packets,
                show(self.pps, "pps"),
                show(self.bps, "bps"),
                show(self.raw_bps, "bps"),
                self.average_batch,
            ),
        };
        if let Some(Spread { intervals, median, min, max, deviation, .. }) = &self.spread {
            text.push_str(&format!(
                "Rate over {intervals} intervals: median {} min {} max {} std {}\n",
                show(*median, "pps"),
                show(*min, "pps"),
                show(*max, "pps"),
                show(*deviation, "pps"),
            ));
        }
        if let Some(Times { count, lost, min, mean, p50, p90, p99, p999, max }) = &self.rtt_ns {
            text.push_str(&format!(
                "RTT over {count} packets: min {min} av {mean:.0} ns\n\
                 RTT percentiles: p50 {p50} p90 {p90} p99 {p99} p99.9 {p999} max {max} ns, {lost} lost\n"
            ));
        }
        if let Some(findings) = &self.verify {
            text.push_str(&format!("{findings}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style { plain: false, framing: false, average: false };

    #[test]
    fn lines_are_those_of_netmap() {
        let count = Count { frames: 14_880_000, bytes: 892_800_000, events: 29_063 };
        let mut intervals = Intervals::default();
        let line = intervals.line(count, Duration::from_secs(1), Some(7), STYLE);
        assert_eq!(
            line,
            "14.880 Mpps (14.880 Mpkts 7.142 Gbps in 1000000 usec) 511.99 avg_batch 7 min_space"
        );
        let report = Report::new(Function::Tx, "a", 1, count, Duration::from_secs(2));
        assert_eq!(
            report.text(STYLE),
            "Sent 14880000 packets 892800000 bytes 29063 events 60 bytes each in 2.00 seconds.\n\
             Speed: 7.440 Mpps Bandwidth: 3.571 Gbps (raw 5.000 Gbps). Average batch: 511.99 pkts\n"
        );
        let nothing = Report::new(Function::Rx, "a", 1, Count::default(), Duration::ZERO);
        assert_eq!(nothing.text(STYLE), "Received nothing.\n");
        let style = Style { plain: true, framing: true, average: true };
        let line = intervals.line(count, Duration::from_secs(2), None, style);
        assert_eq!(
            line,
            "7440000 pps [avg/std 11160000/3720000 pps] (14880000 pkts 4999680000 bps in 2000000 usec) \
             511.99 avg_batch 0 min_space"
        );
    }

    #[test]
    fn rates_are_spread() {
        let of = |rates: &[f64]| Intervals { rates: rates.to_vec() }.spread();
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[0.0; 5]), None);
        let s = of(&[0.0, 0.0, 1.0, 3.0, 0.0, 2.0, 10.0, 0.5, 0.0]).unwrap();
        assert_eq!((s.intervals, s.min, s.max, s.median, s.mean), (3, 2.0, 10.0, 3.0, 5.0));
    }

    #[test]
    fn round_trips_are_shown_by_powers_of_two() {
        let mut h = Histogram::new_with_max(1_000_000, 3).unwrap();
        [600u64, 700, 1000, 2000].iter().for_each(|ns| h.record(*ns).unwrap());
        assert_eq!(ping_lines(&h), "count 4 RTT: min 600 av 1075 ns\n10: 512 .. 11: 3 1\n");
        h.reset();
        assert_eq!(ping_lines(&h), "count 0 RTT: min 0 av 0 ns\n");
    }
}
