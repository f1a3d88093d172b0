//! Tables for people: columns as wide as their widest cell, numbers to the right.

/// A table under construction.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings. One that starts with `>` stands over a column of numbers.
    pub fn new(headings: &[&str]) -> Table {
        Table { rows: vec![headings.iter().map(|&h| h.to_owned()).collect()] }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let dash = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
        self.rows.push(cells.into_iter().map(dash).collect());
    }

    /// The text, with no blanks at the ends of lines.
    pub fn text(&self) -> String {
        let Some((headings, rows)) = self.rows.split_first() else { return String::new() };
        let right: Vec<bool> = headings.iter().map(|h| h.starts_with('>')).collect();
        let headings: Vec<String> = headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        let all = || std::iter::once(&headings).chain(rows);
        let width = |column: usize| {
            all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..headings.len()).map(width).collect();
        let mut text = String::new();
        for row in all() {
            let mut line = String::new();
            for ((cell, &width), &right) in row.iter().zip(&widths).zip(&right) {
                let padded = if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(&padded);
                line.push_str("  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Bytes in decimal units, three digits.
pub fn bytes(n: u64) -> String {
    let mut unit = 1u64;
    for name in ["B", "kB", "MB", "GB", "TB"] {
        let next = unit.saturating_mul(1000);
        if n < next {
            let (whole, tenth) = (n / unit, n % unit * 10 / unit);
            return if unit > 1 && whole < 100 {
                format!("{whole}.{tenth} {name}")
            } else {
                format!("{whole} {name}")
            };
        }
        unit = next;
    }
    format!("{} PB", n / unit)
}

/// A share of a whole in percent with one digit behind the point; `-` if there is no whole.
pub fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1000;
    match tenths.checked_div(u128::from(whole)) {
        Some(tenths) => format!("{}.{} %", tenths / 10, tenths % 10),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["port", ">frames", "state"]);
        table.row(["a".into(), "12345678".into(), String::new()]);
        table.row(["longer".into(), "1".into(), "läuft".into()]);
        assert_eq!(table.text(), "port      frames  state\na       12345678  -\nlonger         1  läuft\n");
    }

    #[test]
    fn units() {
        assert_eq!(
            [0, 999, 1000, 12_345, 999_999, 1_000_000, u64::MAX].map(bytes),
            ["0 B", "999 B", "1.0 kB", "12.3 kB", "999 kB", "1.0 MB", "18446 PB"]
        );
        assert_eq!([percent(1, 3), percent(0, 0), percent(5, 5)], ["33.3 %", "-", "100.0 %"]);
    }
}
