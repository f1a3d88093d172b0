//! One picture in the making: ground, title, axes, legend and note. What is drawn between the axes is its
//! caller's.

use std::fmt::Write;

use super::scale::{number, Scale};
use super::Axis;

/// The whole picture, and the panel in it: left, top, right, bottom.
pub(super) const SIZE: (f64, f64) = (800.0, 440.0);
pub(super) const PANEL: (f64, f64, f64, f64) = (80.0, 44.0, 570.0, 385.0);
/// Told apart by those who see few colours, too (Okabe and Ito 2008).
pub(super) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

pub(super) fn at_x(share: f64) -> f64 {
    PANEL.0 + share * (PANEL.2 - PANEL.0)
}

pub(super) fn at_y(share: f64) -> f64 {
    PANEL.3 - share * (PANEL.3 - PANEL.1)
}

pub(super) struct Sheet {
    out: String,
}

impl Sheet {
    /// White ground with a title.
    pub(super) fn new(title: &str) -> Sheet {
        let mut sheet = Sheet { out: String::new() };
        sheet.put(format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="12">"#,
            SIZE.0, SIZE.1
        ));
        sheet.put(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##.to_owned());
        sheet.put(format!(r#"<text x="{}" y="24" font-size="15">{}</text>"#, PANEL.0, escape(title)));
        sheet
    }

    pub(super) fn put(&mut self, element: String) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{element}");
    }

    /// A text in the middle above or below `(x, y)`.
    pub(super) fn centred(&mut self, x: f64, y: f64, text: &str) {
        self.put(format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle">{}</text>"#, escape(text)));
    }

    /// Lines and numbers of the axis that goes to the right.
    pub(super) fn x_marks(&mut self, scale: &Scale) {
        for mark in &scale.marks {
            let Some(at) = scale.place(*mark).map(at_x) else { continue };
            self.put(format!(r##"<path d="M{at:.1} {}V{}" stroke="#dddddd"/>"##, PANEL.1, PANEL.3));
            self.centred(at, PANEL.3 + 16.0, &number(*mark));
        }
    }

    /// Lines and numbers of the axis that goes up.
    pub(super) fn y_marks(&mut self, scale: &Scale) {
        for mark in &scale.marks {
            let Some(at) = scale.place(*mark).map(at_y) else { continue };
            self.put(format!(r##"<path d="M{} {at:.1}H{}" stroke="#dddddd"/>"##, PANEL.0, PANEL.2));
            let (x, y) = (PANEL.0 - 6.0, at + 4.0);
            self.put(format!(r#"<text x="{x}" y="{y:.1}" text-anchor="end">{}</text>"#, number(*mark)));
        }
    }

    /// What the axes measure.
    pub(super) fn labels(&mut self, x: &str, y: Axis) {
        self.centred((PANEL.0 + PANEL.2) / 2.0, PANEL.3 + 34.0, x);
        self.put(format!(
            r#"<text transform="translate(18 {}) rotate(-90)" text-anchor="middle">{}</text>"#,
            (PANEL.1 + PANEL.3) / 2.0,
            escape(y.label)
        ));
    }

    /// Line `index` of the legend; `dash`: what makes its stroke a dashed one.
    pub(super) fn legend(&mut self, index: usize, name: &str, colour: &str, dash: &str) {
        let (x, y) = (PANEL.2 + 14.0, PANEL.1 + 8.0 + 18.0 * index as f64);
        self.put(format!(r#"<path d="M{x} {y}h18" stroke="{colour}" stroke-width="3"{dash}/>"#));
        self.put(format!(r#"<text x="{}" y="{}">{}</text>"#, x + 24.0, y + 4.0, escape(name)));
    }

    /// The picture, with the axes over what was drawn, and `note` in small print below.
    pub(super) fn finish(mut self, note: &str) -> String {
        let (left, top, right, bottom) = PANEL;
        self.put(format!(r##"<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#000000"/>"##));
        self.put(format!(
            r##"<text x="{left}" y="{}" font-size="10" fill="#555555">{}</text>"##,
            SIZE.1 - 8.0,
            escape(note)
        ));
        self.put("</svg>".to_owned());
        self.out
    }
}

/// The colour of line or bar `index`.
pub(super) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
