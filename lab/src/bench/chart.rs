//! Bars on a logarithmic axis, in panels, as SVG that needs nothing else.

use std::fmt::Write;

/// A bar with its range and, where others measured the same, a mark.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) range: [f64; 2],
    pub(super) mark: Option<f64>,
}

/// Bars under a heading.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) bars: Vec<Bar>,
}

/// Names stand in the first `NAMES` of each column of `COLUMN`; a bar has `ROW`, a heading two of them.
const NAMES: f64 = 175.0;
const COLUMN: f64 = 470.0;
const ROW: f64 = 17.0;
/// Above the panels.
const TOP: f64 = 64.0;
/// The axis: from 1 to this.
const MOST: f64 = 3_000.0;

/// A figure of columns of panels. `mark` says what the marks are.
pub(super) fn bars(title: &str, unit: &str, mark: &str, columns: &[Vec<Panel>]) -> String {
    // Panels of one place in their columns begin at one height.
    let count = columns.iter().map(Vec::len).max().unwrap_or(0);
    let mut heights = vec![TOP];
    for place in 0..count {
        let bars = columns.iter().filter_map(|panels| Some(panels.get(place)?.bars.len())).max().unwrap_or(0);
        heights.push(heights[place] + rows(bars) + 2.0 * ROW);
    }
    let height = heights[count];
    let width = COLUMN * columns.iter().fold(0.0, |sum, _| sum + 1.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"10\" y=\"44\">{unit}; thin line: least to most; red: {mark}</text>\n"
    );
    let mut left = 0.0;
    for panels in columns {
        for (panel, y) in panels.iter().zip(&heights) {
            draw(&mut text, panel, left, *y);
        }
        left += COLUMN;
    }
    text.push_str("</svg>\n");
    text
}

fn rows(count: usize) -> f64 {
    ROW * f64::from(u16::try_from(count).unwrap_or(u16::MAX))
}

/// Where a value is in a column that begins at `left`.
fn place(left: f64, value: f64) -> f64 {
    let share = value.max(1.0).ln() / MOST.ln();
    left + NAMES + share.min(1.0) * (COLUMN - NAMES - 20.0)
}

/// Draws a panel from `y` on. Writing into a text cannot fail.
fn draw(text: &mut String, panel: &Panel, left: f64, y: f64) {
    let (top, bottom) = (y + ROW, y + ROW + rows(panel.bars.len()));
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        left + 10.0,
        y + 11.0,
        panel.title
    );
    for tick in [1.0, 10.0, 100.0, 1_000.0] {
        let x = place(left, tick);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#dddddd\"/>"
        );
        // The first one would stand in the heading.
        if tick > 1.0 {
            let down = y + 11.0;
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"{down}\" fill=\"#777777\" text-anchor=\"middle\">{tick}</text>"
            );
        }
    }
    let mut at = top;
    for Bar { name, value, range, mark } in &panel.bars {
        let (zero, end) = (place(left, 1.0), place(left, *value));
        let _ = writeln!(text, "<text x=\"{}\" y=\"{}\">{name}</text>", left + 10.0, at + 13.0);
        let _ = writeln!(
            text,
            "<rect x=\"{zero:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" fill=\"#56b4e9\"/>",
            at + 3.0,
            end - zero,
            ROW - 6.0
        );
        let middle = at + ROW / 2.0;
        let [least, most] = range.map(|value| place(left, value));
        let _ = writeln!(
            text,
            "<line x1=\"{least:.1}\" y1=\"{middle}\" x2=\"{most:.1}\" y2=\"{middle}\" stroke=\"black\"/>"
        );
        if let Some(mark) = mark {
            let x = place(left, *mark);
            let _ = writeln!(
                text,
                "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"#d1495b\" stroke-width=\"3\"/>",
                at + 1.0,
                at + ROW - 1.0
            );
        }
        at += ROW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_drawn_in_its_column() {
        let bar =
            |value| Bar { name: "a".to_owned(), value, range: [value / 2.0, value * 2.0], mark: Some(30.0) };
        let panel = || Panel { title: "t".to_owned(), bars: vec![bar(0.2), bar(100.0), bar(1e6)] };
        let text = bars("title", "kpps", "somebody", &[vec![panel(), panel()], vec![panel()]]);
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
        assert_eq!((text.matches("#56b4e9").count(), text.matches("#d1495b").count()), (9, 9));
        for x in text.split("x1=\"").skip(1) {
            let x: f64 = x.split('"').next().unwrap().parse().unwrap();
            assert!((NAMES..=2.0 * COLUMN).contains(&x), "{x} in {text}");
        }
    }
}
