//! The rows of Figure 4 as a table, as JSON, and as a picture.

use super::{Kind, Sample, Way, PATHS, SIZES};
use crate::bench::chart::{bars, Bar, Panel};
use crate::bench::spread;
use serde_json::{json, Value};

/// A line of the table.
pub(super) struct Line {
    pub(super) kind: &'static Kind,
    pub(super) model: &'static str,
    pub(super) path: usize,
    pub(super) size: usize,
    pub(super) samples: Vec<Sample>,
}

impl Line {
    fn median(&self, value: impl Fn(&Sample) -> f64) -> f64 {
        spread(self.samples.iter().map(value).collect()).0
    }

    fn both(&self, value: impl Fn(&Sample) -> [f64; 2]) -> [f64; 2] {
        [0, 1].map(|index| self.median(|sample| value(sample)[index]))
    }

    fn traps(&self) -> Option<[f64; 2]> {
        (self.kind.way != Way::Qemu).then(|| self.both(|sample| sample.traps))
    }

    fn paper(&self) -> Option<u32> {
        self.kind.paper.map(|paper| paper[self.path][self.size])
    }

    pub(super) fn json(&self) -> Value {
        let (median, least, most) = spread(self.samples.iter().map(|sample| sample.kpps).collect());
        json!({
            "model": self.model,
            "path": PATHS[self.path],
            "bytes": SIZES[self.size],
            "row": self.kind.name,
            "kpps": {"median": median, "least": least, "most": most},
            "traps": self.traps(),
            "interrupts": self.both(|sample| sample.interrupts),
            "lost": self.median(|sample| sample.lost),
            "paper_kpps": self.paper(),
        })
    }
}

/// The table for people.
pub(super) fn table(lines: &[Line]) -> String {
    let mut text = format!(
        "{:7} {:4} {:>5}  {:24} {:>18} {:>13} {:>13} {:>5} {:>6}\n",
        "device", "path", "bytes", "row", "kpps", "traps", "interrupts", "lost", "paper"
    );
    for line in lines {
        let (median, least, most) = spread(line.samples.iter().map(|sample| sample.kpps).collect());
        let two = |[sender, receiver]: [f64; 2]| {
            if line.path == 0 {
                format!("{sender:.2}")
            } else {
                format!("{sender:.2} + {receiver:.2}")
            }
        };
        let dash = || "–".to_owned();
        text += &format!(
            "{:7} {:4} {:>5}  {:24} {:>18} {:>13} {:>13} {:>4.0}% {:>6}\n",
            line.model,
            PATHS[line.path],
            SIZES[line.size],
            line.kind.name,
            format!("{median:.0} ({least:.0}–{most:.0})"),
            line.traps().map_or_else(dash, two),
            two(line.both(|sample| sample.interrupts)),
            100.0 * line.median(|sample| sample.lost),
            line.paper().map_or_else(dash, |kpps| kpps.to_string()),
        );
    }
    text
}

/// The figure: a column for each card, a panel for each path and size.
pub(super) fn draw(lines: &[Line], accel: &str) -> String {
    let columns = ["e1000", "e1000e"].map(|model| {
        let mut panels: Vec<Panel> = Vec::new();
        for line in lines.iter().filter(|line| line.model == model) {
            let to = ["to the host", "to a guest"][line.path];
            let title = format!("{model} {to}, {} bytes", SIZES[line.size]);
            let (value, least, most) = spread(line.samples.iter().map(|sample| sample.kpps).collect());
            let (name, mark) = (line.kind.name.to_owned(), line.paper().map(f64::from));
            let bar = Bar { name, value, range: [least, most], mark };
            match panels.last_mut().filter(|panel| panel.title == title) {
                Some(panel) => panel.bars.push(bar),
                None => panels.push(Panel { title, bars: vec![bar] }),
            }
        }
        panels
    });
    let title = format!("UDP from a guest over sidecore's learning switch ({accel})");
    bars(&title, "thousands of datagrams received a second", "what the paper measured", &columns)
}
