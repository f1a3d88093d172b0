//! Charts as SVG: what a benchmark's figure needs and no more.
//!
//! One panel with lines or with bars, axes that start at zero or count in decades, a legend in the order of
//! the lines. The text is plain SVG 1.1 with a white ground, so that it is read the same on a page, in an
//! editor and in print. `scale` places values, `sheet` draws all that is around the panel.

mod scale;
mod sheet;

use self::scale::{number, Scale};
use self::sheet::{at_x, at_y, colour, Sheet, PANEL, SIZE};

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What is measured, with its unit.
    pub label: &'a str,
    /// Decades instead of even steps; only what is above zero is drawn then.
    pub log: bool,
}

impl<'a> Axis<'a> {
    /// From zero on, in even steps.
    pub fn linear(label: &'a str) -> Axis<'a> {
        Axis { label, log: false }
    }

    /// In decades.
    pub fn log(label: &'a str) -> Axis<'a> {
        Axis { label, log: true }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    dashed: bool,
    /// It goes with the line before it, and has its colour.
    follows: bool,
}

impl Line {
    /// A line of a colour of its own.
    pub fn new(name: String, points: Vec<(f64, f64)>) -> Line {
        Line { name, points, dashed: false, follows: false }
    }

    /// Lines of points that say whose they are, in the order in which they first come.
    pub fn all(points: impl Iterator<Item = (String, (f64, f64))>) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for (name, point) in points {
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line::new(name, vec![point])),
            }
        }
        lines
    }

    /// This line as what the one before it is compared with: of that one's colour, dashed.
    pub fn dashed(self) -> Line {
        Line { dashed: true, follows: true, ..self }
    }

    /// Not measured: dashed, in a colour of its own.
    pub fn reckoned(self) -> Line {
        Line { dashed: true, ..self }
    }
}

/// Bars of one kind, one in each group.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Their name in the legend.
    pub name: String,
    /// Their heights, in the order of the groups.
    pub values: Vec<f64>,
}

/// What makes a stroke a dashed one.
const DASH: &str = r#" stroke-dasharray="5 4""#;

/// Draws `lines`. `note` stands below, in small print: where and how it was measured.
pub fn chart(title: &str, note: &str, x: Axis, y: Axis, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let (xs, ys) = (Scale::new(x.log, points().map(|p| p.0)), Scale::new(y.log, points().map(|p| p.1)));
    let mut sheet = Sheet::new(title);
    sheet.x_marks(&xs);
    sheet.y_marks(&ys);
    sheet.labels(x.label, y);
    let mut colours = 0;
    for (index, line) in lines.iter().enumerate() {
        colours += usize::from(!line.follows);
        let colour = colour(colours.max(1) - 1);
        let dash = if line.dashed { DASH } else { "" };
        let places = line.points.iter().filter_map(|p| Some((at_x(xs.place(p.0)?), at_y(ys.place(p.1)?))));
        let places: Vec<(f64, f64)> = places.collect();
        let all: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let all = all.join(" ");
        sheet.put(format!(
            r#"<polyline points="{all}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>"#
        ));
        for (x, y) in places {
            sheet.put(format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{colour}"/>"#));
        }
        sheet.legend(index, &line.name, colour, dash);
    }
    sheet.finish(note)
}

/// The part of a group's room that stays free between it and the next one.
const BETWEEN: f64 = 0.2;
/// A bar with its value above it is so wide.
const ROOM_FOR_VALUE: f64 = 34.0;

/// Draws groups of bars beside each other, `x` being what the groups are.
pub fn bars(title: &str, note: &str, x: &str, groups: &[String], y: Axis, all: &[Bars]) -> String {
    let ys = Scale::new(y.log, all.iter().flat_map(|bars| bars.values.iter().copied()));
    let mut sheet = Sheet::new(title);
    sheet.y_marks(&ys);
    sheet.labels(x, y);
    let room = (PANEL.2 - PANEL.0) / groups.len().max(1) as f64;
    let width = room * (1.0 - BETWEEN) / all.len().max(1) as f64;
    for (group, name) in groups.iter().enumerate() {
        sheet.centred(PANEL.0 + room * (group as f64 + 0.5), PANEL.3 + 16.0, name);
    }
    for (index, bars) in all.iter().enumerate() {
        for (group, value) in bars.values.iter().enumerate() {
            let Some(top) = ys.place(*value).map(at_y) else { continue };
            let left = PANEL.0 + room * (group as f64 + BETWEEN / 2.0) + width * index as f64;
            let height = PANEL.3 - top;
            sheet.put(format!(
                r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" fill="{}"/>"#,
                colour(index)
            ));
            if width >= ROOM_FOR_VALUE {
                sheet.centred(left + width / 2.0, top - 4.0, &number(*value));
            }
        }
        sheet.legend(index, &bars.name, colour(index), "");
    }
    sheet.finish(note)
}

/// Charts below each other in one picture.
pub fn stack(charts: &[String]) -> String {
    let height = SIZE.1 * charts.len() as f64;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{height}" viewBox="0 0 {0} {height}">"#,
        SIZE.0
    );
    for (number, chart) in charts.iter().enumerate() {
        // Each begins with its own element: only its place is missing.
        let at = format!("<svg y=\"{}\" ", SIZE.1 * number as f64);
        out += &format!("\n{}", chart.replacen("<svg ", &at, 1));
    }
    out + "</svg>\n"
}

/// Each of `values` once, in the order in which they first stand there.
pub fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line::new(name.to_owned(), points.to_vec())
    }

    /// An attribute of each element of this kind.
    fn attributes(picture: &str, element: &str, name: &str) -> Vec<f64> {
        let all = picture.lines().filter(|line| line.starts_with(&format!("<{element} ")));
        let value = |line: &str| line.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok();
        all.filter_map(value).collect()
    }

    #[test]
    fn charts_are_stacked() {
        let axis = Axis { label: "x", log: false };
        let text = stack(&["a", "b"].map(|title| chart(title, "n", axis, axis, &[])));
        assert!(text.contains(r#"height="880""#) && text.contains(r#"<svg y="440" "#), "{text}");
        assert_eq!((text.matches("<svg ").count(), text.matches("</svg>").count()), (3, 3));
    }

    #[test]
    fn a_chart_has_every_point_and_name_and_nothing_outside() {
        let lines =
            [line("a & b", &[(0.0, 1.0), (250.0, 30.0), (500.0, 90.5)]), line("c", &[(0.0, f64::NAN)])];
        let axis = Axis { label: "itr", log: false };
        let text = chart("<title>", "note", axis, Axis { label: "Kpps", log: false }, &lines);
        assert!(text.contains("a &amp; b") && text.contains("&lt;title&gt;") && text.contains(">note<"));
        let (x, y) = (attributes(&text, "circle", "cx"), attributes(&text, "circle", "cy"));
        assert_eq!((x.len(), y.len()), (3, 3), "what is no number is left out");
        assert!(x.iter().all(|x| (PANEL.0..=PANEL.2).contains(x)), "{x:?}");
        assert!(y.iter().all(|y| (PANEL.1..=PANEL.3).contains(y)), "{y:?}");
        // Nothing to draw is no reason to fail.
        assert!(chart("t", "n", axis, Axis { label: "y", log: true }, &[]).ends_with("</svg>\n"));
    }

    #[test]
    fn bars_stand_beside_each_other_and_are_as_high_as_their_values() {
        let all = [("a", [1.0, 4.0]), ("b", [2.0, f64::NAN])];
        let all = all.map(|(name, values)| Bars { name: name.to_owned(), values: values.to_vec() });
        let groups = ["one", "two"].map(str::to_owned);
        let axis = Axis { label: "Mpps", log: false };
        let text = bars("title", "note", "guests", &groups, axis, &all);
        assert!(["one", "two", "guests", "Mpps"].iter().all(|word| text.contains(&format!(">{word}<"))));
        // The ground's size is no number of pixels.
        let heights = attributes(&text, "rect", "height");
        let [one, four, two] = heights[..] else { panic!("{heights:?}") };
        assert!((four - 4.0 * one).abs() < 0.2 && (two - 2.0 * one).abs() < 0.2, "{heights:?}");
        let (x, width) = (attributes(&text, "rect", "x"), attributes(&text, "rect", "width"));
        assert!(x[0] >= PANEL.0 && x[1] + width[1] <= PANEL.2, "{x:?}");
        assert!((x[2] - x[0] - width[0]).abs() < 0.2, "the second of a group stands right beside the first");
        assert!(bars("t", "n", "x", &[], Axis { label: "y", log: true }, &[]).ends_with("</svg>\n"));
    }
}
