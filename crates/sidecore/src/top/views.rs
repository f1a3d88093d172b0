//! What the views of `top` show: the rates of the last second, and what people sort by.

use sidecore_engine::state::status::{CoreView, DropView, PortState, QueueView};

use crate::show::{ppm, troubles};
use crate::table::{units, Table};

/// What the daemon said.
#[derive(Default)]
pub struct Data {
    pub ports: Vec<(String, PortState)>,
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

/// A column: its heading, and its cell of each thing.
type Column<T> = (&'static str, fn(&T) -> Cell);

/// A view.
pub struct View {
    pub name: &'static str,
    /// Which key chooses it.
    pub key: char,
    /// The column that it is sorted by at first.
    pub first: usize,
    table: fn(&Data) -> (Vec<&'static str>, Vec<Row>),
}

/// All of them.
pub static VIEWS: [View; 4] = [
    View { name: "ports", key: 'p', first: 9, table: |data| table(&data.ports, &PORTS) },
    View { name: "queues", key: 'u', first: 8, table: |data| table(&data.queues, &QUEUES) },
    View { name: "cores", key: 'c', first: 4, table: |data| table(&data.cores, &CORES) },
    View { name: "drops", key: 'd', first: 2, table: |data| table(&data.drops, &DROPS) },
];

fn table<T>(things: &[T], columns: &[Column<T>]) -> (Vec<&'static str>, Vec<Row>) {
    let row = |thing| columns.iter().map(|(_, cell)| cell(thing)).collect();
    (columns.iter().map(|(heading, _)| *heading).collect(), things.iter().map(row).collect())
}

const PORTS: [Column<(String, PortState)>; 11] = [
    ("port", |(name, _)| text(name)),
    ("kind", |(_, port)| text(&port.kind)),
    ("peer", |(_, port)| text(&port.peer)),
    ("link", |(_, port)| text(&port.link)),
    ("in/s", |(_, port)| known(port.flow.in_rate)),
    ("in bit/s", |(_, port)| known(port.flow.in_bit_rate)),
    ("out/s", |(_, port)| known(port.flow.out_rate)),
    ("out bit/s", |(_, port)| known(port.flow.out_bit_rate)),
    ("drops/s", |(_, port)| known(port.flow.drop_rate)),
    ("core", |(_, port)| Cell::Part(port.service.used_ppm.unwrap_or(0))),
    ("trouble", |(_, port)| text(troubles(port))),
];

const QUEUES: [Column<QueueView>; 9] = [
    ("port", |queue| text(&queue.port)),
    ("direction", |queue| text(&queue.direction)),
    ("queue", |queue| Cell::Number(queue.index as u64)),
    ("kind", |queue| text(&queue.kind)),
    ("state", |queue| text(&queue.state)),
    ("core", |queue| queue.served.as_ref().map_or_else(|| text(""), |task| Cell::Number(task.core as u64))),
    ("visits", |queue| known(queue.served.as_ref().map(|task| task.visits))),
    ("frames", |queue| known(queue.served.as_ref().map(|task| task.items))),
    ("busy ms", |queue| known(queue.served.as_ref().map(|task| task.busy_ns / 1_000_000))),
];

const CORES: [Column<CoreView>; 8] = [
    ("core", |core| Cell::Number(core.time.number as u64)),
    ("cpu", |core| core.time.cpu.map_or_else(|| text(""), |cpu| Cell::Number(cpu as u64))),
    ("state", |core| text(if core.time.active { "active" } else { "resting" })),
    ("queues", |core| Cell::Number(core.time.queues as u64)),
    ("busy", |core| Cell::Part(core.last.unwrap_or_default().busy_ppm)),
    ("idle", |core| Cell::Part(core.last.unwrap_or_default().idle_ppm)),
    ("asleep", |core| Cell::Part(core.last.unwrap_or_default().sleep_ppm)),
    ("frames/s", |core| Cell::Number(core.last.unwrap_or_default().frame_rate)),
];

const DROPS: [Column<DropView>; 4] = [
    ("port", |drop| text(&drop.port)),
    ("reason", |drop| text(&drop.reason)),
    ("frames", |drop| Cell::Number(drop.frames)),
    ("meaning", |drop| text(&drop.meaning)),
];

fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn known(number: Option<u64>) -> Cell {
    Cell::Number(number.unwrap_or(0))
}

impl View {
    /// How many columns it has.
    pub fn columns(&self) -> usize {
        (self.table)(&Data::default()).0.len()
    }

    /// Its lines: headings, of which that of the `sorted` column is marked, and the rows by the cells of that
    /// column. Rows that are equal stay in the daemon's order.
    pub fn lines(&self, data: &Data, sorted: usize, falling: bool) -> Vec<String> {
        let (headings, mut rows) = (self.table)(data);
        rows.sort_by(|a, b| {
            let order = a.get(sorted).partial_cmp(&b.get(sorted)).unwrap_or(std::cmp::Ordering::Equal);
            if falling {
                order.reverse()
            } else {
                order
            }
        });
        let heading = |(number, heading): (usize, &&str)| {
            let is_text = rows.first().and_then(|row| row.get(number)).is_none_or(Cell::is_text);
            let side = if is_text { "" } else { ">" };
            // Each has room for the mark.
            let mark = match (number == sorted, falling) {
                (false, _) => ' ',
                (true, true) => '▼',
                (true, false) => '▲',
            };
            format!("{side}{heading}{mark}")
        };
        let headings: Vec<String> = headings.iter().enumerate().map(heading).collect();
        let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
        rows.iter().for_each(|row| table.row(row.iter().map(Cell::shown)));
        table.lines()
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
            let lines = view.lines(&data, column, falling);
            lines[1..].iter().map(|line| line.split(' ').next().unwrap()).collect::<String>()
        };
        assert_eq!([names(2, true), names(2, false), names(0, true)], ["bac", "cab", "cba"]);
        let lines = view.lines(&data, 2, true);
        assert_eq!(lines[0], "port   reason    frames▼  meaning");
        assert_eq!(lines[1], "b      too_long   12.0 k  -");
        for view in &VIEWS {
            assert!(view.first < view.columns());
        }
    }
}
