//! Tables for people: columns as wide as their widest cell, numbers to the right. On a terminal that is too
//! narrow, a table goes on below itself, with its first column again.

/// A table under construction.
pub struct Table {
    rows: Vec<Vec<String>>,
}

/// A column of a table of things: its heading, and its cell of each.
pub type ColumnOf<T> = (&'static str, fn(&T) -> String);

impl Table {
    /// A table with these headings. One that starts with `>` stands over a column of numbers.
    pub fn new(headings: &[&str]) -> Table {
        Table { rows: vec![headings.iter().map(|&h| h.to_owned()).collect()] }
    }

    /// A table of `things`, with a heading and a cell for each column.
    pub fn of<T>(columns: &[ColumnOf<T>], things: &[T]) -> Table {
        let mut table = Table::new(&columns.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
        things.iter().for_each(|thing| table.row(columns.iter().map(|(_, cell)| cell(thing))));
        table
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let dash = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
        self.rows.push(cells.into_iter().map(dash).collect());
    }

    /// The text, for the terminal on standard output if there is one.
    pub fn text(&self) -> String {
        let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        self.text_within(terminal.map_or(usize::MAX, |size| size.ws_col.into()))
    }

    /// The lines, however wide they are.
    pub fn lines(&self) -> Vec<String> {
        self.text_within(usize::MAX).lines().map(str::to_owned).collect()
    }

    /// The text, with no blanks at the ends of lines, and lines of up to `limit` characters if the cells
    /// allow it.
    fn text_within(&self, limit: usize) -> String {
        let Some((headings, rows)) = self.rows.split_first() else { return String::new() };
        let columns: Vec<Column> =
            headings.iter().enumerate().map(|(n, head)| self.column(n, head)).collect();
        let Some((first, others)) = columns.split_first() else { return String::new() };
        let mut parts = vec![vec![first]];
        let mut used = first.width;
        for column in others {
            let more = GAP.len() + column.width;
            if used.saturating_add(more) > limit && parts.last().is_some_and(|part| part.len() > 1) {
                parts.push(vec![first]);
                used = first.width;
            }
            used += more;
            parts.last_mut().into_iter().for_each(|part| part.push(column));
        }
        let text = |part: &Vec<&Column>| {
            let line = |row: usize| part.iter().map(|column| column.cell(row)).collect::<Vec<_>>().join(GAP);
            (0..=rows.len()).map(|row| line(row).trim_end().to_owned() + "\n").collect::<String>()
        };
        parts.iter().map(text).collect::<Vec<_>>().join("\n")
    }

    fn column(&self, number: usize, heading: &str) -> Column<'_> {
        let right = heading.starts_with('>');
        let mut cells: Vec<&str> =
            self.rows.iter().map(|row| row.get(number).map_or("", String::as_str)).collect();
        if let Some(heading) = cells.first_mut() {
            *heading = heading.trim_start_matches('>');
        }
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        Column { cells, width, right }
    }
}

const GAP: &str = "  ";

struct Column<'t> {
    /// With its heading.
    cells: Vec<&'t str>,
    width: usize,
    right: bool,
}

impl Column<'_> {
    /// A cell, padded.
    fn cell(&self, row: usize) -> String {
        let (cell, width) = (self.cells.get(row).copied().unwrap_or(""), self.width);
        match self.right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        }
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

/// A number in decimal units, three digits.
pub fn units(n: u64) -> String {
    let text = bytes(n);
    let text = text.strip_suffix(" B").unwrap_or(text.strip_suffix('B').unwrap_or(&text));
    text.to_owned()
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
        let wide = "port      frames  state\na       12345678  -\nlonger         1  läuft\n";
        for limit in [usize::MAX, 23] {
            assert_eq!(table.text_within(limit), wide);
        }
        let narrow = "port      frames\na       12345678\nlonger         1\n\nport    state\na       -\nlonger  läuft\n";
        for limit in [22, 16, 0] {
            assert_eq!(table.text_within(limit), narrow);
        }
    }

    #[test]
    fn units() {
        assert_eq!(
            [0, 999, 1000, 12_345, 999_999, 1_000_000, u64::MAX].map(bytes),
            ["0 B", "999 B", "1.0 kB", "12.3 kB", "999 kB", "1.0 MB", "18446 PB"]
        );
        assert_eq!([0, 999, 1000, 12_345_678].map(super::units), ["0", "999", "1.0 k", "12.3 M"]);
        assert_eq!([percent(1, 3), percent(0, 0), percent(5, 5)], ["33.3 %", "-", "100.0 %"]);
    }
}
