//! What a benchmark found: JSON, or for people the same in tables, whose columns have the names that keys
//! have in JSON.
//!
//! Theory of operation. A benchmark describes its rows once, as serialized structs. In JSON they are what
//! they are. In a table each field is a column: objects within are columns of their own (`full.mpps`), of
//! lists of numbers the least and the greatest are shown, and lists of objects are a table of their own.
//! Samples by distance (`modes`) are a second table. A line of either begins with the row's first columns,
//! those in front of its first figure.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::common::{text, Output, Result};
use super::distance::HEAD;
use super::draw::distinct;

/// Results in the making.
pub struct Results {
    json: Map<String, Value>,
    text: String,
}

impl Results {
    /// The results of this benchmark; `note` says to people how it was measured.
    pub fn new(bench: &str, note: &str) -> Results {
        let json = [("version", Value::from(1)), ("bench", bench.into())];
        let json = json.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Results { json, text: format!("{bench}: {note}\n") }
    }

    /// Settings, a summary, or rows: one of them is a line, several are a table.
    pub fn with<T: Serialize>(mut self, key: &str, value: &T) -> Result<Results> {
        let cell = serde_json::to_string(value).and_then(|text| serde_json::from_str(&text)).map_err(text)?;
        match cell {
            Cell::List(rows) => self.text += &tables(key, rows),
            Cell::Fields(fields) => self.text += &tables(key, vec![Cell::Fields(fields)]),
            cell => self.text += &format!("{key}: {}\n", cell.shown()),
        }
        self.json.insert(key.to_owned(), serde_json::to_value(value).map_err(text)?);
        Ok(self)
    }

    /// Draws its picture, if there is to be one, and prints it.
    pub fn give(self, output: &Output, picture: impl FnOnce() -> String) -> Result<()> {
        if let Some(path) = &output.svg {
            std::fs::write(path, picture()).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        self.print(output.json)
    }

    /// Prints it.
    pub fn print(self, json: bool) -> Result<()> {
        match json {
            true => sidecore_pktgen::print(&format!("{}\n", Value::Object(self.json))),
            false => sidecore_pktgen::print(&self.text),
        }
    }
}

/// A value, whose fields are in the order of the struct.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Cell {
    None(()),
    Flag(bool),
    Whole(i64),
    Figure(f64),
    Text(String),
    List(Vec<Cell>),
    Fields(Fields),
}

#[derive(Clone)]
struct Fields(Vec<(String, Cell)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Fields, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Fields, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Cell {
    /// Whether it is what samples come to by distance (`Modes`).
    fn is_modes(&self) -> bool {
        let is_mode = |(_, cell): &(String, Cell)| match cell {
            Cell::Fields(Fields(of)) => of.iter().any(|(key, _)| key == "decile"),
            _ => false,
        };
        matches!(self, Cell::Fields(Fields(modes)) if modes.iter().all(is_mode))
    }

    /// Whether it is a table within one.
    fn is_rows(&self) -> bool {
        matches!(self, Cell::List(all) if matches!(all.first(), Some(Cell::Fields(_))))
    }

    /// Whether it says what a row is about.
    fn is_name(&self) -> bool {
        matches!(self, Cell::Text(_) | Cell::Whole(_) | Cell::Flag(_))
    }

    fn number(&self) -> Option<f64> {
        match self {
            Cell::Whole(n) => Some(*n as f64),
            Cell::Figure(n) => Some(*n),
            _ => None,
        }
    }

    /// For people: four digits of a figure.
    fn shown(&self) -> String {
        match self {
            Cell::None(()) => "-".to_owned(),
            Cell::Flag(flag) => (if *flag { "yes" } else { "no" }).to_owned(),
            Cell::Whole(n) => n.to_string(),
            Cell::Figure(n) => figure(*n),
            Cell::Text(text) => text.clone(),
            Cell::List(all) => match all.iter().map(Cell::number).collect::<Option<Vec<f64>>>() {
                Some(all) if all.len() > 2 => {
                    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
                    format!(
                        "{} – {}",
                        figure(least),
                        figure(all.into_iter().fold(f64::NEG_INFINITY, f64::max))
                    )
                }
                _ => all.iter().map(Cell::shown).collect::<Vec<_>>().join(", "),
            },
            Cell::Fields(_) => String::new(),
        }
    }
}

fn figure(n: f64) -> String {
    match n.abs() {
        1000.0.. => format!("{n:.0}"),
        100.0.. => format!("{n:.1}"),
        10.0.. => format!("{n:.2}"),
        0.001.. | 0.0 => format!("{n:.3}"),
        _ => format!("{n:.1e}"),
    }
}

/// A table's line: what its columns are called, and what is there.
type Line = Vec<(String, Cell)>;

/// Columns that a table has at most, in characters: a wider one is shown the other way round.
const WIDEST: usize = 180;

/// A value's columns, those of objects within among them.
fn flat(cell: Cell) -> Line {
    let Cell::Fields(Fields(fields)) = cell else { return vec![(String::new(), cell)] };
    let mut line = Vec::new();
    for (key, cell) in fields {
        match cell {
            Cell::Fields(_) if !cell.is_modes() => {
                line.extend(flat(cell).into_iter().map(|(within, cell)| (format!("{key}.{within}"), cell)));
            }
            cell => line.push((key, cell)),
        }
    }
    line
}

/// The table of these rows, behind it those of lists and of samples by distance within them.
fn tables(title: &str, rows: Vec<Cell>) -> String {
    let rows: Vec<Line> = rows.into_iter().map(flat).collect();
    let mut within: Vec<(&str, Vec<Line>)> = Vec::new();
    for row in &rows {
        let names = || row.iter().take_while(|(_, cell)| cell.is_name()).cloned();
        for (key, cell) in row {
            let lines = match cell {
                Cell::Fields(modes) if !modes.0.is_empty() => {
                    vec![vec![(HEAD.to_owned(), Cell::Text(told(modes)))]]
                }
                Cell::List(all) if cell.is_rows() => all.iter().cloned().map(flat).collect(),
                _ => continue,
            };
            let lines = lines.into_iter().map(|line| names().chain(line).collect());
            match within.iter_mut().find(|(other, _)| other == key) {
                Some((_, all)) => all.extend(lines),
                None => within.push((key, lines.collect())),
            }
        }
    }
    let within = within.iter().map(|(key, lines)| table(key, lines));
    std::iter::once(table(title, &rows)).chain(within).collect()
}

fn table(title: &str, rows: &[Line]) -> String {
    let columns = rows.iter().flatten().filter(|(_, cell)| !cell.is_rows() && !cell.is_modes());
    let heads = distinct(columns.map(|(key, _)| key.as_str()));
    if heads.is_empty() {
        return String::new();
    }
    let cell = |row: &Line, head: &&str| {
        row.iter().find(|(key, _)| key == head).map_or(String::new(), |(_, cell)| cell.shown())
    };
    let mut lines = vec![heads.iter().map(|head| (*head).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| heads.iter().map(|head| cell(row, head)).collect()));
    let turned = |lines: &[Vec<String>]| -> Vec<Vec<String>> {
        (0..lines[0].len()).map(|at| lines.iter().map(|line| line[at].clone()).collect()).collect()
    };
    let widest = |column: &Vec<String>| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let mut columns = turned(&lines);
    if columns.iter().map(|column| widest(column) + 2).sum::<usize>() > WIDEST {
        std::mem::swap(&mut lines, &mut columns);
    }
    let is_text = |cell: &String| cell.starts_with(char::is_alphabetic);
    let styles: Vec<(usize, bool)> =
        columns.iter().map(|column| (widest(column), column.iter().skip(1).any(is_text))).collect();
    let mut text = format!("{title}:\n");
    for line in &lines {
        let cells = line.iter().zip(&styles).map(|(cell, (width, is_text))| match is_text {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        text += &format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// Samples by distance in words: `near 24.10 / 25.00 / 31.20 (3), 1.90 × testpmd; far 10.20 / 10.20 / 10.20
/// (1)`.
fn told(Fields(modes): &Fields) -> String {
    let one = |(mode, cell): &(String, Cell)| {
        let of = flat(cell.clone());
        let at =
            |key| of.iter().find(|(other, _)| other == key).map_or(String::new(), |(_, cell)| cell.shown());
        let ratio = |(key, cell): &(String, Cell)| {
            let whom = key.strip_prefix("ratio_to_").filter(|_| cell.number().is_some())?;
            Some(format!(", {} × {}", cell.shown(), whom.replace('_', " ")))
        };
        let ratios: String = of.iter().filter_map(ratio).collect();
        let [decile, quartile, median, samples] = ["decile", "quartile", "median", "samples"].map(at);
        format!("{mode} {decile} / {quartile} / {median} ({samples}){ratios}")
    };
    modes.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::distance::Mode;
    use super::super::modes::Modes;
    use super::*;

    #[derive(Serialize)]
    struct Row {
        way: &'static str,
        guests: u16,
        samples: Vec<f64>,
        rate: f64,
        ratio: Option<f64>,
        account: Account,
        points: Vec<Account>,
        modes: Modes,
    }

    #[derive(Clone, Copy, Serialize)]
    struct Account {
        sent: u64,
        lost: f64,
    }

    #[test]
    fn a_table_has_the_columns_of_the_rows_in_their_order() {
        let account = Account { sent: 3, lost: 0.00025 };
        let theirs = Modes::of(&[(Mode::Near, 20.0)], |sample| *sample);
        let ours = [(Mode::Near, 30.0), (Mode::Near, 40.0), (Mode::Near, 50.0), (Mode::Far, 12.0)];
        let modes = Modes::of(&ours, |sample| *sample).over("ratio_to_all_others", &theirs);
        let (samples, points) = (vec![1.0, 3.0, 2.0], vec![account; 2]);
        let row = Row { way: "ours", guests: 7, samples, rate: 12345.6, ratio: None, account, points, modes };
        let results = Results::new("share", "how").with("rows", &[row]).unwrap().with("lost", &4).unwrap();
        assert_eq!(
            results.text,
            "share: how\n\
             rows:\n  \
             way   guests        samples   rate  ratio  account.sent  account.lost\n  \
             ours       7  1.000 – 3.000  12346      -             3        2.5e-4\n\
             points:\n  \
             way   guests  sent    lost\n  \
             ours       7     3  2.5e-4\n  \
             ours       7     3  2.5e-4\n\
             modes:\n  \
             way   guests  lower decile / quartile / median (samples) by the distance of the two processors\n  \
             ours       7  near 32.00 / 35.00 / 40.00 (3), 2.000 × all others; far 12.00 / 12.00 / 12.00 (1)\n\
             lost: 4\n"
        );
        assert_eq!((&results.json["version"], &results.json["lost"]), (&1.into(), &4.into()));
        assert_eq!(results.json["rows"][0]["account"]["lost"], 0.00025);
    }

    #[test]
    fn a_wide_table_stands_the_other_way_round() {
        let row = || (0..40).map(|n| (format!("column_{n}"), Value::from(n))).collect::<Map<_, _>>();
        let results = Results::new("b", "n").with("rows", &[row(), row()]).unwrap();
        assert!(results.text.contains("\n  column_7    7   7\n"), "{}", results.text);
        assert!(results.text.lines().count() == 42);
    }
}
