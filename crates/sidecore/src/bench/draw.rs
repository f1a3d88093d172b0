//! Line charts as SVG: what a benchmark's figure needs and no more.
//!
//! One panel, axes that start at zero or count in decades, a legend in the order of the lines. The text is plain
//! SVG 1.1 with a white ground, so that it is read the same on a page, in an editor and in print.

use std::fmt::Write;

/// The whole picture, and the panel in it: left, top, right, bottom.
const SIZE: (f64, f64) = (760.0, 440.0);
const PANEL: (f64, f64, f64, f64) = (70.0, 44.0, 560.0, 385.0);
/// Told apart by those who see few colours, too (Okabe and Ito 2008).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What is measured, with its unit.
    pub label: &'a str,
    /// Decades instead of even steps; only what is above zero is drawn then.
    pub log: bool,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The least and greatest value of an axis, and where its marks are.
struct Scale {
    log: bool,
    from: f64,
    to: f64,
    marks: Vec<f64>,
}

impl Scale {
    fn new(log: bool, values: impl Iterator<Item = f64>) -> Scale {
        let (mut least, mut most) = (f64::MAX, 0.0f64);
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            (least, most) = (least.min(value), most.max(value));
        }
        if log {
            let (from, to) = (least.min(most).max(1e-12).log10().floor(), most.max(1e-12).log10().ceil());
            let to = to.max(from + 1.0);
            let mut marks = Vec::new();
            let mut at = from;
            while at <= to {
                marks.push(10f64.powf(at));
                at += 1.0;
            }
            return Scale { log, from, to, marks };
        }
        let most = if most > 0.0 { most } else { 1.0 };
        // Steps of 1, 2 or 5, five to ten of them.
        let rough = 10f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * rough).into_iter().find(|step| most / step <= 8.0);
        let step = step.unwrap_or(most);
        let mut marks = vec![0.0];
        while marks.last().is_some_and(|last| *last < most * (1.0 - 1e-9)) {
            marks.push(marks.len() as f64 * step);
        }
        Scale { log, from: 0.0, to: marks.last().copied().unwrap_or(most), marks }
    }

    /// Where a value is between the ends: 0 to 1. `None`: it cannot be drawn.
    fn place(&self, value: f64) -> Option<f64> {
        let value = if self.log { (value > 0.0).then(|| value.log10())? } else { value };
        value.is_finite().then(|| (value - self.from) / (self.to - self.from))
    }
}

/// A number as people write it.
fn number(value: f64) -> String {
    let text =
        if value.abs() >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws `lines`. `note` stands below, in small print: where and how it was measured.
pub fn chart(title: &str, note: &str, x: Axis, y: Axis, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let (xs, ys) = (Scale::new(x.log, points().map(|p| p.0)), Scale::new(y.log, points().map(|p| p.1)));
    let (left, top, right, bottom) = PANEL;
    let at_x = |share: f64| left + share * (right - left);
    let at_y = |share: f64| bottom - share * (bottom - top);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut put = |line: String| {
        let _ = writeln!(out, "{line}");
    };
    put(format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="12">"#,
        SIZE.0, SIZE.1
    ));
    put(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##.to_owned());
    put(format!(r#"<text x="{left}" y="24" font-size="15">{}</text>"#, escape(title)));
    for mark in &xs.marks {
        let Some(at) = xs.place(*mark).map(at_x) else { continue };
        put(format!(r##"<path d="M{at:.1} {top}V{bottom}" stroke="#dddddd"/>"##));
        put(format!(
            r#"<text x="{at:.1}" y="{}" text-anchor="middle">{}</text>"#,
            bottom + 16.0,
            number(*mark)
        ));
    }
    for mark in &ys.marks {
        let Some(at) = ys.place(*mark).map(at_y) else { continue };
        put(format!(r##"<path d="M{left} {at:.1}H{right}" stroke="#dddddd"/>"##));
        put(format!(
            r#"<text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 6.0,
            at + 4.0,
            number(*mark)
        ));
    }
    let middle = (left + right) / 2.0;
    put(format!(
        r#"<text x="{middle}" y="{}" text-anchor="middle">{}</text>"#,
        bottom + 34.0,
        escape(x.label)
    ));
    let height = (top + bottom) / 2.0;
    put(format!(
        r#"<text transform="translate(18 {height}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escape(y.label)
    ));
    for (line, (index, colour)) in
        lines.iter().zip(COLOURS.iter().cycle().enumerate().map(|(i, c)| (i as f64, c)))
    {
        let places = line.points.iter().filter_map(|p| Some((at_x(xs.place(p.0)?), at_y(ys.place(p.1)?))));
        let places: Vec<String> = places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let all = places.join(" ");
        put(format!(r#"<polyline points="{all}" fill="none" stroke="{colour}" stroke-width="2"/>"#));
        for place in &places {
            if let Some((x, y)) = place.split_once(',') {
                put(format!(r#"<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>"#));
            }
        }
        let (x, y) = (right + 14.0, top + 8.0 + 18.0 * index);
        put(format!(r#"<path d="M{x} {y}h18" stroke="{colour}" stroke-width="2"/>"#));
        put(format!(r#"<text x="{}" y="{}">{}</text>"#, x + 24.0, y + 4.0, escape(&line.name)));
    }
    put(format!(r##"<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#000000"/>"##));
    put(format!(
        r##"<text x="{left}" y="{}" font-size="10" fill="#555555">{}</text>"##,
        SIZE.1 - 8.0,
        escape(note)
    ));
    put("</svg>".to_owned());
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line { name: name.to_owned(), points: points.to_vec() }
    }

    #[test]
    fn marks_are_round_and_hold_all_values() {
        for most in [0.07, 1.0, 3.4, 20.0, 455.0, 1526.0, 99_999.0] {
            let scale = Scale::new(false, [0.0, most].into_iter());
            assert!((4..=10).contains(&scale.marks.len()), "{most}: {:?}", scale.marks);
            assert!(scale.place(most).is_some_and(|at| (0.5..=1.0 + 1e-9).contains(&at)), "{most}");
        }
        let scale = Scale::new(true, [0.1, 20.0].into_iter());
        assert_eq!(
            scale.marks.iter().map(|mark| number(*mark)).collect::<Vec<_>>(),
            ["0.1", "1", "10", "100"]
        );
        assert_eq!((scale.place(0.1), scale.place(0.0)), (Some(0.0), None));
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
        let circles: Vec<_> = text.lines().filter(|line| line.starts_with("<circle")).collect();
        assert_eq!(circles.len(), 3, "what is no number is left out");
        for circle in circles {
            let value = |name: &str| -> f64 {
                circle
                    .split(&format!("{name}=\""))
                    .nth(1)
                    .and_then(|rest| rest.split('"').next())
                    .unwrap()
                    .parse()
                    .unwrap()
            };
            assert!((PANEL.0..=PANEL.2).contains(&value("cx")) && (PANEL.1..=PANEL.3).contains(&value("cy")));
        }
        // Nothing to draw is no reason to fail.
        assert!(chart("t", "n", axis, Axis { label: "y", log: true }, &[]).ends_with("</svg>\n"));
    }
}
