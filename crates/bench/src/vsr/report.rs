//! What was measured, as rows, numbers and pictures; and what of the paper stands beside it.

use super::super::rfc2544::stats::Figure;
use super::stage::Sample;
use crate::prelude::*;

/// What the points of a figure are at, if not at offered rates.
fn x_axis(figure: &str) -> Option<&'static str> {
    match figure {
        "10" | "11" | "12" => Some("reserved part of a processor"),
        "18" => Some("members"),
        _ => None,
    }
}

/// A line whose rate is that much of the greatest one has reached its peak.
const PEAK: f64 = 0.97;
/// Load of an overload, in loads of the peak.
const OVERLOAD: f64 = 1.5;

/// Where a line is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    #[default]
    Measured,
    /// Reckoned from what a frame costs each thread.
    Model,
}

row! {
    /// The row of a line with the samples of each point.
    pub fn row(name: [&str; 3], points: &[(f64, Vec<Sample>)], full: bool) -> Row {
        let all: Vec<Point> = points.iter().map(|(x, samples)| point(*x, samples, full)).collect();
        let most = (0..all.len()).max_by(|a, b| all[*a].forwarded_mpps.total_cmp(&all[*b].forwarded_mpps));
        let samples = most.map_or(&[][..], |most| &points[most].1);
        let kept = overload(&forwarded(name[0], &all));
    }

    /// A line of a figure.
    #[derive(Deserialize)]
    pub struct Row {
        pub figure: String = name[0].to_owned(),
        /// What of several pictures of the figure it is in: how ports are joined, or what is reserved.
        pub picture: String = name[1].to_owned(),
        pub line: String = name[2].to_owned(),
        #[serde(default)]
        pub how: How = How::Measured,
        /// Million frames a second at the most, and the part of that which is left in an overload.
        pub peak_mpps: f64 = all.iter().map(|point| point.forwarded_mpps).fold(f64::NAN, f64::max),
        pub overload: f64 = kept,
        /// How well a straight line fits, by samples of one distance of the processors.
        pub r2: Option<f64> = straightness(points),
        pub points: Vec<Point> = all,
        /// Million forwarded frames a second of the point at which that is the most.
        #[serde(skip_deserializing)]
        pub modes: Modes = Modes::of(samples, |sample| (sample.mode, sample.forwarded)),
    }
}

/// Rates forwarded by what the points of the figure are at.
fn forwarded(figure: &str, points: &[Point]) -> Vec<(f64, f64)> {
    let by_x = x_axis(figure).is_some();
    let x = |point: &Point| if by_x { point.x } else { point.offered_mpps };
    points.iter().map(|point| (x(point), point.forwarded_mpps)).collect()
}

row! {
    fn point(x: f64, samples: &[Sample], full: bool) -> Point {
        let figure = |value: fn(&Sample) -> f64| Figure::of(samples.iter().map(value)).unwrap_or_default();
        let middle = |value: fn(&Sample) -> f64| figure(value).median;
        let forwarded = figure(|sample| sample.forwarded);
    }

    /// A point of it: medians, or means if there is an interval.
    #[derive(Deserialize)]
    pub struct Point {
        /// Million frames a second that were to be offered, the part of a processor that was reserved, or the
        /// number of members.
        pub x: f64 = x,
        pub forwarded_mpps: f64 = if full { forwarded.mean } else { forwarded.median },
        /// Half the width of the 99 % interval of the mean.
        pub ci99: Option<f64> = forwarded.ci99.filter(|_| full),
        pub min: f64 = forwarded.min,
        pub max: f64 = forwarded.max,
        pub offered_mpps: f64 = middle(|sample| sample.offered),
        /// Parts of the offered frames: left outside, and routed for nothing as the ring behind the router
        /// was full.
        pub refused: f64 = middle(|sample| sample.refused),
        pub wasted: f64 = middle(|sample| sample.wasted),
        /// Parts of a processor that guest, I/O and load had; of a guest that takes turns with the load
        /// nothing is known apart.
        pub vcpu: Option<f64> = Some(middle(|sample| sample.vcpu)).filter(|part| part.is_finite()),
        pub io: f64 = middle(|sample| sample.io),
        pub load: f64 = middle(|sample| sample.load),
        /// Part of the frames that the load was late for, and did not offer.
        pub late: f64 = middle(|sample| sample.late),
    }
}

/// How straight a line is by the samples of one distance: of that which has most, among those that have some
/// at each point; of all samples, if none has.
fn straightness(points: &[(f64, Vec<Sample>)]) -> Option<f64> {
    let of = |mode: Option<Mode>| {
        let rate = |samples: &[Sample]| {
            let its = samples.iter().filter(|sample| mode.is_none_or(|mode| sample.mode == mode));
            Figure::of(its.map(|sample| sample.forwarded))
        };
        let figures: Option<Vec<_>> = points.iter().map(|(x, of)| Some((*x, rate(of)?))).collect();
        let figures = figures?;
        let samples = figures.iter().map(|(_, figure)| figure.samples.len()).sum::<usize>();
        Some((samples, figures.iter().map(|(x, figure)| (*x, figure.median)).collect::<Vec<_>>()))
    };
    let one = [Mode::Near, Mode::Far].into_iter().filter_map(|mode| of(Some(mode)));
    let (_, medians) = one.max_by_key(|(samples, _)| *samples).or_else(|| of(None))?;
    Some(r2(&medians)).filter(|fit| fit.is_finite())
}

/// How well a straight line fits: the part of the variance that it explains.
pub fn r2(points: &[(f64, f64)]) -> f64 {
    let n = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: fn(f64, f64) -> f64| points.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
    let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
    xy * xy / (xx * yy)
}

/// What is left of the greatest rate at half as much load again as it takes: between two loads on the line
/// between their rates, behind the last one as much as there.
pub fn overload(points: &[(f64, f64)]) -> f64 {
    let most = points.iter().map(|p| p.1).fold(f64::NAN, f64::max);
    let Some(peak) = points.iter().find(|p| p.1 >= PEAK * most) else { return f64::NAN };
    let load = OVERLOAD * peak.0;
    let behind = points.iter().position(|p| p.0 >= load).unwrap_or(points.len().saturating_sub(1));
    let Some((to, from)) = points.get(behind).zip(points.get(behind.saturating_sub(1))) else {
        return f64::NAN;
    };
    let part = if to.0 > from.0 { ((load - from.0) / (to.0 - from.0)).min(1.0) } else { 1.0 };
    (from.1 + part * (to.1 - from.1)) / most
}

/// The greatest part that any of these lines keeps in an overload, and which of them that is.
pub fn best<'r>(rows: impl Iterator<Item = &'r Row>) -> Option<(f64, String)> {
    let kept = rows.map(|row| (row.overload, format!("{}, {}", row.picture, row.line)));
    kept.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The least part that any of them keeps.
pub fn worst<'r>(rows: impl Iterator<Item = &'r Row>) -> Option<f64> {
    rows.map(|row| row.overload).min_by(f64::total_cmp)
}

/// The least straightness of these lines.
pub fn least_r2<'r>(rows: impl Iterator<Item = &'r Row>) -> Option<f64> {
    rows.filter_map(|row| row.r2).min_by(f64::total_cmp)
}

/// What the paper's text says of a figure, in numbers: loads and rates in million frames a second.
fn paper(figure: &str) -> Vec<Line> {
    let peak = |name: &str, mpps: f64| Line::new(format!("paper: {name}"), vec![(mpps, mpps)]);
    match figure {
        "2" => vec![peak("4 cores, bind", 0.9)],
        "3" => vec![peak("separate", 0.9)],
        "5" => vec![peak("1 vhost", 0.9)],
        // "The netmap results … around 650 kpps" do not fall with more load.
        "8" | "9" => {
            let with_vhost = if figure == "9" { "vhost-net, 4 cores" } else { "macvtap" };
            vec![
                peak(with_vhost, 0.9),
                Line::new("paper: netmap".to_owned(), vec![(0.65, 0.65), (1.4, 0.65)]),
            ]
        }
        // "More than 1100 kpps", and "not able to forward more than 1200".
        "18" => vec![Line::new("paper: 4 cores".to_owned(), vec![(1.0, 0.9), (2.0, 1.2)])],
        "19" => vec![
            Line::new("paper: 2 cores, bind A".to_owned(), vec![(0.25, 0.25), (1.4, 0.12)]),
            peak("2 cores, bind B", 0.2),
            peak("2 cores, no bind", 0.1),
        ],
        _ => Vec::new(),
    }
}

/// Draws these rows.
pub fn draw(rows: &[Row]) -> String {
    let pictures = distinct(rows.iter().map(|row| (row.figure.as_str(), row.picture.as_str())));
    let one = |(figure, picture): (&str, &str)| {
        let its = rows.iter().filter(|row| row.figure == figure && row.picture == picture);
        let line = |row: &Row| {
            let line = Line::new(row.line.clone(), forwarded(&row.figure, &row.points));
            match row.how {
                How::Measured => line,
                How::Model => line.reckoned(),
            }
        };
        let by_model = its.clone().any(|row| row.how == How::Model);
        let lines: Vec<Line> = its.map(line).chain(paper(figure)).collect();
        let how = if by_model { "(model): reckoned from what a frame costs; " } else { "" };
        // A stage that forwards more than ten times what members do.
        let axis = if figure == "19" { Axis::log } else { Axis::linear };
        chart(
            &format!("Figure {figure}: a router in a guest, {picture}"),
            &format!("sidecore bench vsr --figure {figure} --svg FILE; {how}native guest; paper: its text"),
            axis(x_axis(figure).unwrap_or("offered, million frames a second")),
            axis("forwarded, million frames a second"),
            &lines,
        )
    };
    stack(&pictures.into_iter().map(one).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_line_is_known() {
        assert!((r2(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]) - 1.0).abs() < 1e-12);
        // By hand: means 2 and 3, sums of products 2, 2 and 8/3… of (1,2), (2,3), (3,4) with one point off.
        assert!((r2(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]) - 0.25).abs() < 1e-12);
        assert!(r2(&[]).is_nan() && r2(&[(1.0, 1.0), (2.0, 1.0)]).is_nan());
    }

    #[test]
    fn an_overload_is_half_as_much_again_as_the_peak() {
        let falls = [(0.5, 0.5), (1.0, 1.0), (1.25, 0.8), (1.75, 0.4)];
        assert!((overload(&falls) - 0.6).abs() < 1e-12);
        // Rates that are the same but for noise: the peak is where the line first gets there.
        let flat = [(0.5, 0.5), (0.8, 0.78), (1.2, 0.8), (2.0, 0.79)];
        assert!((overload(&flat) - 1.0).abs() < 1e-12);
        // A peak at the greatest load has nothing behind it.
        assert_eq!(overload(&[(0.5, 0.5), (1.0, 1.0)]), 1.0);
        assert!(overload(&[]).is_nan());
    }

    #[test]
    fn samples_of_one_distance_are_a_line() {
        let sample = |forwarded: f64, mode: Mode| Sample {
            offered: 1.0,
            forwarded,
            refused: 0.0,
            wasted: 0.0,
            vcpu: 0.5,
            io: 0.3,
            load: 0.2,
            late: 0.0,
            mode,
        };
        let near = |x: f64| sample(x, Mode::Near);
        let mut points: Vec<_> =
            [0.3, 0.6, 0.9].map(|x| (x, vec![near(x), near(x), sample(0.1, Mode::Far)])).into();
        assert!(straightness(&points).is_some_and(|fit| (fit - 1.0).abs() < 1e-12));
        // Where one of the distances was not met, all samples count.
        points[1].1 = vec![sample(0.1, Mode::Mixed)];
        assert!(straightness(&points).is_some_and(|fit| fit < 0.9));
        assert_eq!(straightness(&[]), None);
    }

    #[test]
    fn figures_have_the_papers_numbers_beside_ours() {
        let sample = Sample {
            offered: 0.5,
            forwarded: 0.4,
            refused: 0.1,
            wasted: 0.1,
            vcpu: 0.5,
            io: 0.3,
            load: 0.2,
            late: 0.0,
            mode: Mode::Near,
        };
        let row = row(["3", "wires", "vc98,vh99"], &[(0.5, vec![sample; 5]), (0.9, vec![sample; 5])], true);
        assert_eq!((row.points[0].ci99, row.points[0].max), (Some(0.0), 0.4));
        let picture = draw(&[row]);
        assert_eq!(picture.matches("<circle ").count(), 3, "{picture}");
    }
}
