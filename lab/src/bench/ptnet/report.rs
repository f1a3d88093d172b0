//! What `bench-ptnet` found: a table, JSON, and a figure of ratios.

use super::{Line, Sample, Test, CARDS};
use crate::bench::chart::{bars, Bar, Panel};
use crate::bench::spread;
use serde_json::{json, Map, Value};

/// The card that the summary is about, and those with which it is compared.
const ABOUT: &str = "ptnet";
const QEMU: &str = "qemu-virtio";

impl Line {
    fn rate(&self) -> (f64, f64, f64) {
        spread(self.samples.iter().map(|sample| sample.rate).collect())
    }

    fn median(&self, value: impl Fn(&Sample) -> f64) -> f64 {
        spread(self.samples.iter().map(value).collect()).0
    }

    /// Medians of what the sender has and of what the receiver has; nothing if it is not counted.
    fn both(&self, value: impl Fn(&Sample) -> Option<[f64; 2]>) -> Option<[f64; 2]> {
        let counted = self.samples.iter().all(|sample| value(sample).is_some());
        counted.then(|| [0, 1].map(|who| self.median(|sample| value(sample).map_or(0.0, |both| both[who]))))
    }

    /// Median, least and most of the ratios to `other`, round by round: both were measured within seconds of
    /// each other.
    fn beside(&self, other: &Line) -> (f64, f64, f64) {
        let pairs = self.samples.iter().zip(&other.samples);
        spread(pairs.map(|(sample, other)| sample.rate / other.rate).collect())
    }
}

fn find<'a>(lines: &'a [Line], card: &str, test: Test) -> Option<&'a Line> {
    lines.iter().find(|line| line.card.name == card && line.test == test)
}

/// The ratios of a line to the first card's.
fn ratio(lines: &[Line], line: &Line) -> Option<(f64, f64, f64)> {
    find(lines, CARDS[0].name, line.test).map(|first| line.beside(first))
}

fn three((median, least, most): (f64, f64, f64)) -> Value {
    json!({"median": median, "least": least, "most": most})
}

/// The rows of the JSON.
pub(super) fn lines_json(lines: &[Line]) -> Vec<Value> {
    let row = |line: &Line| {
        json!({
            "card": line.card.name,
            "test": line.test.name(),
            "bytes": line.test.bytes(),
            "unit": line.test.unit(),
            "rate": three(line.rate()),
            "ratio_to_virtio": ratio(lines, line).map(three),
            "kicks": line.both(|sample| sample.kicks),
            "traps": line.both(|sample| sample.traps),
            "interrupts": line.both(|sample| Some(sample.interrupts)),
            "lost": line.median(|sample| sample.lost),
        })
    };
    lines.iter().map(row).collect()
}

/// What programs look at first: how ptnet compares, in the order of the tests, and its notifications for each
/// of the smallest datagrams. A key whose card or test was not measured is left out.
pub(super) fn summary(lines: &[Line]) -> Value {
    let mut keys = Map::new();
    let mut least = f64::INFINITY;
    for line in lines.iter().filter(|line| line.card.name == ABOUT) {
        let bytes = line.test.bytes().map(|bytes| format!("_{bytes}")).unwrap_or_default();
        let name = format!("{}{bytes}", line.test.name());
        for (other, key) in [(CARDS[0].name, "virtio"), (QEMU, "qemu_virtio")] {
            if let Some(other) = find(lines, other, line.test) {
                let (median, ..) = line.beside(other);
                keys.insert(format!("{name}_vs_{key}"), median.into());
                if key == "virtio" {
                    least = least.min(median);
                }
            }
        }
    }
    if least.is_finite() {
        keys.insert("least_vs_virtio".to_owned(), least.into());
    }
    let datagrams =
        lines.iter().find(|line| line.card.name == ABOUT && matches!(line.test, Test::Datagrams(_)));
    if let Some(line) = datagrams {
        let sum = |both: Option<[f64; 2]>| both.map(|[sender, receiver]| sender + receiver);
        keys.insert("kicks_per_packet".to_owned(), sum(line.both(|sample| sample.kicks)).into());
        keys.insert("traps_per_packet".to_owned(), sum(line.both(|sample| sample.traps)).into());
        let interrupts = sum(line.both(|sample| Some(sample.interrupts)));
        keys.insert("interrupts_per_packet".to_owned(), interrupts.into());
    }
    Value::Object(keys)
}

/// The table for people.
pub(super) fn table(lines: &[Line]) -> String {
    let mut text = format!(
        "kicks, traps and interrupts: sender + receiver, for each transaction, datagram, or megabyte of the stream\n\
         {:4} {:>6}  {:12} {:>30} {:>20} {:>15} {:>15} {:>15} {:>5}\n",
        "test",
        "bytes",
        "card",
        "rate: median (least–most)",
        "to our virtio-net",
        "kicks",
        "traps",
        "interrupts",
        "lost"
    );
    let mut tests: Vec<Test> = Vec::new();
    for line in lines {
        if !tests.contains(&line.test) {
            tests.push(line.test);
        }
    }
    for line in tests.iter().flat_map(|test| lines.iter().filter(move |line| line.test == *test)) {
        let dash = || "–".to_owned();
        let two = |both: Option<[f64; 2]>| {
            both.map_or_else(dash, |[sender, receiver]| format!("{sender:.3} + {receiver:.3}"))
        };
        let (median, least, most) = line.rate();
        let digits = if line.test == Test::Stream { 2 } else { 1 };
        let unit = line.test.unit();
        text += &format!(
            "{:4} {:>6}  {:12} {:>30} {:>20} {:>15} {:>15} {:>15} {:>4.0}%\n",
            line.test.name(),
            line.test.bytes().map_or_else(dash, |bytes| bytes.to_string()),
            line.card.name,
            format!("{median:.digits$} ({least:.digits$}–{most:.digits$}) {unit}"),
            ratio(lines, line)
                .map_or_else(dash, |(median, least, most)| format!("{median:.2} ({least:.2}–{most:.2})")),
            two(line.both(|sample| sample.kicks)),
            two(line.both(|sample| sample.traps)),
            two(line.both(|sample| Some(sample.interrupts))),
            100.0 * line.median(|sample| sample.lost),
        );
    }
    text
}

/// The figure: percent of what the first card reached in the same round. Rates of emulated guests mean
/// nothing.
pub(super) fn draw(lines: &[Line], accel: &str) -> String {
    let panels = |tests: &dyn Fn(Test) -> bool| {
        let mut panels: Vec<Panel> = Vec::new();
        let first = lines.iter().filter(|line| line.card.name == CARDS[0].name && tests(line.test));
        for test in first.map(|line| line.test) {
            let title = match test {
                Test::Requests(bytes) => format!("requests over TCP, {bytes} B"),
                Test::Datagrams(bytes) => format!("datagrams, {bytes} B"),
                Test::Stream => "TCP stream".to_owned(),
            };
            let others = lines.iter().filter(|line| line.test == test && line.card.name != CARDS[0].name);
            let bar = |line: &Line| {
                let (value, least, most) = ratio(lines, line)?;
                let range = [100.0 * least, 100.0 * most];
                Some(Bar { name: line.card.name.to_owned(), value: 100.0 * value, range, mark: Some(100.0) })
            };
            panels.push(Panel { title, bars: others.filter_map(bar).collect() });
        }
        panels
    };
    let requests = panels(&|test| matches!(test, Test::Requests(_)));
    let rest = panels(&|test| !matches!(test, Test::Requests(_)));
    let title = format!("Cards in two guests on sidecore's learning switch ({accel})");
    bars(&title, "percent of our virtio-net in the same round", "our virtio-net", &[requests, rest])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        let sample =
            |rate| Sample { rate, kicks: Some([0.25, 0.5]), traps: None, interrupts: [0.0, 1.0], lost: 0.0 };
        let line = |card: usize, rates: &[f64]| Line {
            card: &CARDS[card],
            test: Test::Datagrams(64),
            samples: rates.iter().map(|rate| sample(*rate)).collect(),
        };
        vec![line(0, &[10.0, 20.0, 40.0]), line(1, &[30.0, 40.0, 40.0]), line(4, &[60.0, 10.0, 10.0])]
    }

    /// The median of the ratios, and not the ratio of the medians.
    #[test]
    fn ratios_are_those_of_one_round() {
        let summary = summary(&lines());
        assert_eq!(summary["udp_64_vs_virtio"], 2.0);
        assert_eq!(summary["udp_64_vs_qemu_virtio"], 4.0);
        assert_eq!(summary["least_vs_virtio"], 2.0);
        assert_eq!(summary["kicks_per_packet"], 0.75);
        assert_eq!(summary["traps_per_packet"], Value::Null, "nobody counted them");
        assert_eq!(lines_json(&lines())[1]["ratio_to_virtio"]["least"], 1.0);
        let figure = draw(&lines(), "tcg");
        assert_eq!((figure.matches(">ptnet<").count(), figure.matches("#56b4e9").count()), (1, 2));
    }
}
