//! What the views of `top` show: the rates of the last second, and what people sort by.

use sidecore_engine::state::status::{CoreView, DropView, PortView, QueueView};

use crate::show::{ppm, troubles};
use crate::table::units;

/// What the daemon said.
#[derive(Default)]
pub struct Data {
    pub ports: Vec<PortView>,
    pub queues: Vec<QueueView>,
    pub cores: Vec<CoreView>,
    pub drops: Vec<DropView>,
}

/// A cell: what is shown, and what it is sorted by.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Cell {
    Text(String),
    Number(u64),
    /// Millionths.
    Part(u64),
}

impl Cell {
    fn shown(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => units(*number),
            Cell::Part(part) => ppm(*part),
        }
    }

    fn is_text(&self) -> bool {
        matches!(self, Cell::Text(_))
    }
}

pub type Row = Vec<Cell>;

/// A view.
pub struct View {
    pub name: &'static str,
    /// Which key chooses it.
    pub key: char,
    pub columns: &'static [&'static str],
    /// The column that it is sorted by at first.
    pub first: usize,
    rows: fn(&Data) -> Vec<Row>,
}

/// All of them.
pub static VIEWS: [View; 4] = [
    View {
        name: "ports",
        key: 'p',
        columns: &[
            "port",
            "kind",
            "peer",
            "link",
            "in/s",
            "in bit/s",
            "out/s",
            "out bit/s",
            "drops/s",
            "core",
            "trouble",
        ],
        first: 9,
        rows: ports,
    },
    View {
        name: "queues",
        key: 'u',
        columns: &["port", "direction", "queue", "kind", "state", "core", "visits", "frames", "busy ms"],
        first: 8,
        rows: queues,
    },
    View {
        name: "cores",
        key: 'c',
        columns: &["core", "cpu", "state", "queues", "busy", "idle", "asleep", "frames/s"],
        first: 4,
        rows: cores,
    },
    View {
        name: "drops",
        key: 'd',
        columns: &["port", "reason", "frames", "meaning"],
        first: 2,
        rows: drops,
    },
];

fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn ports(data: &Data) -> Vec<Row> {
    let row = |port: &PortView| {
        let state = port.state.as_ref()?;
        let flow = &state.flow;
        let rates = [flow.in_rate, flow.in_bit_rate, flow.out_rate, flow.out_bit_rate, flow.drop_rate];
        let mut row = [&port.name, &state.kind, &state.peer, &state.link].map(text).to_vec();
        row.extend(rates.map(|rate| Cell::Number(rate.unwrap_or(0))));
        row.push(Cell::Part(state.service.used_ppm.unwrap_or(0)));
        row.push(text(troubles(state)));
        Some(row)
    };
    data.ports.iter().filter_map(row).collect()
}

fn queues(data: &Data) -> Vec<Row> {
    let row = |queue: &QueueView| {
        let served = queue.served.as_ref();
        vec![
            text(&queue.port),
            text(&queue.direction),
            Cell::Number(queue.index as u64),
            text(&queue.kind),
            text(&queue.state),
            served.map_or_else(|| text(""), |task| Cell::Number(task.core as u64)),
            Cell::Number(served.map_or(0, |task| task.visits)),
            Cell::Number(served.map_or(0, |task| task.items)),
            Cell::Number(served.map_or(0, |task| task.busy_ns / 1_000_000)),
        ]
    };
    data.queues.iter().map(row).collect()
}

fn cores(data: &Data) -> Vec<Row> {
    let row = |core: &CoreView| {
        let last = core.last.unwrap_or_default();
        vec![
            Cell::Number(core.time.number as u64),
            core.time.cpu.map_or_else(|| text(""), |cpu| Cell::Number(cpu as u64)),
            text(if core.time.active { "active" } else { "resting" }),
            Cell::Number(core.time.queues as u64),
            Cell::Part(last.busy_ppm),
            Cell::Part(last.idle_ppm),
            Cell::Part(last.sleep_ppm),
            Cell::Number(last.frame_rate),
        ]
    };
    data.cores.iter().map(row).collect()
}

fn drops(data: &Data) -> Vec<Row> {
    let row = |drop: &DropView| {
        vec![text(&drop.port), text(&drop.reason), Cell::Number(drop.frames), text(&drop.meaning)]
    };
    data.drops.iter().map(row).collect()
}

impl View {
    /// The rows, by the cells of `column`; those that are equal stay in the daemon's order.
    pub fn sorted(&self, data: &Data, column: usize, falling: bool) -> Vec<Row> {
        let mut rows = (self.rows)(data);
        rows.sort_by(|a, b| {
            let order = a.get(column).partial_cmp(&b.get(column)).unwrap_or(std::cmp::Ordering::Equal);
            if falling {
                order.reverse()
            } else {
                order
            }
        });
        rows
    }

    fn widths(&self, rows: &[Row]) -> Vec<usize> {
        let width = |(number, head): (usize, &&str)| {
            let cells =
                rows.iter().filter_map(|row| row.get(number)).map(|cell| cell.shown().chars().count());
            // Room for the mark of the order.
            cells.max().unwrap_or(0).max(head.chars().count() + 1)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// The line of headings; that which rows are sorted by is marked.
    pub fn heading(&self, rows: &[Row], sorted: usize, falling: bool) -> String {
        let mark = |number: usize| match (number == sorted, falling) {
            (false, _) => "",
            (true, true) => "▼",
            (true, false) => "▲",
        };
        let cell = |(number, (head, width)): (usize, (&&str, usize))| {
            let head = format!("{head}{}", mark(number));
            let left = rows.first().and_then(|row| row.get(number)).is_none_or(Cell::is_text);
            if left {
                format!("{head:<width$}")
            } else {
                format!("{head:>width$}")
            }
        };
        let columns = self.columns.iter().zip(self.widths(rows)).enumerate();
        columns.map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }

    /// A line for each row.
    pub fn lines(&self, rows: &[Row]) -> Vec<String> {
        let widths = self.widths(rows);
        let cell = |(cell, width): (&Cell, &usize)| match cell.is_text() {
            true => format!("{:<width$}", cell.shown()),
            false => format!("{:>width$}", cell.shown()),
        };
        let line = |row: &Row| {
            row.iter().zip(&widths).map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_what_cells_mean() {
        let drop = |port: &str, frames| DropView {
            port: port.to_owned(),
            reason: "too_long".to_owned(),
            frames,
            meaning: String::new(),
        };
        let data = Data { drops: vec![drop("a", 900), drop("b", 12_000), drop("c", 7)], ..Data::default() };
        let view = VIEWS.iter().find(|view| view.name == "drops").unwrap();
        let names = |column, falling| {
            let rows = view.sorted(&data, column, falling);
            rows.iter().map(|row| row[0].shown()).collect::<String>()
        };
        assert_eq!([names(2, true), names(2, false), names(0, true)], ["bac", "cab", "cba"]);
        let rows = view.sorted(&data, 2, true);
        assert!(view.heading(&rows, 2, true).contains("frames▼"));
        assert!(view.lines(&rows)[0].contains("12.0 k"), "{:?}", view.lines(&rows));
        for view in &VIEWS {
            assert!(view.first < view.columns.len());
        }
    }
}
