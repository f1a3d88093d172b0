//! Figures: lines over two logarithmic axes, as SVG that needs nothing else.

use std::fmt::Write as _;

/// A line of the figure.
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Its points; both numbers are positive.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
/// Left, right, top and bottom of the axes' inside.
const INSIDE: [f64; 4] = [70.0, 520.0, 40.0, 390.0];
const COLOURS: [&str; 6] = ["#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6c4f9e", "#555555"];

/// One axis: its ends, in logarithms, and where they are drawn.
struct Axis {
    ends: [f64; 2],
    drawn: [f64; 2],
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let share = (value.ln() - self.ends[0]) / (self.ends[1] - self.ends[0]).max(1e-9);
        self.drawn[0] + share * (self.drawn[1] - self.drawn[0])
    }
}

/// A figure with both axes logarithmic. Ticks of the first are where points are, of the second 1, 2 and 5 of each decade.
pub fn log_log(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|s| s.points.iter());
    let least = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(f64::INFINITY, f64::min);
    let most = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(0.0, f64::max);
    let [left, right, top, bottom] = INSIDE;
    let x = Axis { ends: [least(|p| p.0).ln(), most(|p| p.0).ln()], drawn: [left, right] };
    let y = Axis { ends: [(least(|p| p.1) / 1.3).ln(), (most(|p| p.1) * 1.3).ln()], drawn: [bottom, top] };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"{right}\" y=\"430\" text-anchor=\"end\">{x_label}</text>\n\
         <text x=\"16\" y=\"{bottom}\" transform=\"rotate(-90 16 {bottom})\">{y_label}</text>\n"
    );
    // Writing into a text cannot fail.
    let mut line = |from: (f64, f64), to: (f64, f64), colour: &str| {
        let _ = writeln!(
            text,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            from.0, from.1, to.0, to.1
        );
    };
    let mut labels = String::new();
    let mut ticks: Vec<f64> = points().map(|p| p.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        let at = x.at(tick);
        line((at, bottom), (at, top), "#eeeeee");
        let _ = writeln!(labels, "<text x=\"{at:.1}\" y=\"408\" text-anchor=\"middle\">{tick}</text>");
    }
    for decade in -3..9 {
        for step in [1.0, 2.0, 5.0] {
            let tick: f64 = step * 10f64.powi(decade);
            if (y.ends[0]..=y.ends[1]).contains(&tick.ln()) {
                let at = y.at(tick);
                line((left, at), (right, at), "#eeeeee");
                let down = at + 4.0;
                let _ = writeln!(labels, "<text x=\"62\" y=\"{down:.1}\" text-anchor=\"end\">{tick}</text>");
            }
        }
    }
    line((left, bottom), (right, bottom), "black");
    line((left, bottom), (left, top), "black");
    text.push_str(&labels);
    for (number, Series { name, points }) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1))).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for point in points {
            let (cx, cy) = (x.at(point.0), y.at(point.1));
            let _ = writeln!(text, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let down = 60 + 20 * number;
        let _ = writeln!(text, "<text x=\"535\" y=\"{down}\" fill=\"{colour}\">{name}</text>");
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_all_points_inside() {
        let series =
            |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
        let text = log_log(
            "t",
            "x",
            "y",
            &[series("a", &[(1.0, 10.0), (250.0, 40.0)]), series("b", &[(8.0, 200.0)])],
        );
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
        assert_eq!((text.matches("<circle").count(), text.matches("<polyline").count()), (3, 2));
        for circle in text.split("<circle cx=\"").skip(1) {
            let x: f64 = circle.split('"').next().unwrap().parse().unwrap();
            let y: f64 = circle.split("cy=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
            assert!((70.0..=520.0).contains(&x) && (40.0..=390.0).contains(&y), "{circle}");
        }
        assert!(text.contains(">250</text>") && text.contains(">50</text>"), "{text}");
    }
}
