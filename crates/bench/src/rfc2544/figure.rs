//! The figure: the rate without loss by size, then, size by size, what arrives and what is lost by what is
//! offered, and latency by load, of all candidates.

use super::report::{CurveRow, Row};
use crate::prelude::*;

const NOTE: &str =
    "sidecore bench rfc2544 --svg FILE; one tester, one processor for each target, repetitions by turns";

/// Draws these rows.
pub fn draw(rows: &[Row]) -> String {
    let sizes = distinct(rows.iter().map(|row| row.size.as_str()));
    let mut charts = Vec::new();
    if sizes.len() > 1 {
        charts.push(by_size(rows));
    }
    for size in sizes {
        let of: Vec<&Row> = rows.iter().filter(|row| row.size == size).collect();
        let curve = |value: fn(&CurveRow) -> f64| -> Vec<Line> {
            let line = |row: &&Row| {
                let points = row.curve.iter().map(|point| (point.asked_mpps, value(point))).collect();
                Line::new(row.candidate.to_owned(), points)
            };
            of.iter().map(line).collect()
        };
        let offered = Axis::linear("offered, million frames a second");
        charts.push(chart(
            &format!("Frames of {size} bytes that arrive"),
            NOTE,
            offered,
            Axis::linear("delivered, million frames a second"),
            &curve(|point| point.delivered_mpps),
        ));
        charts.push(chart(
            &format!("Frames of {size} bytes that are lost"),
            NOTE,
            offered,
            Axis::linear("lost, percent"),
            &curve(|point| 100.0 * point.loss_ratio.mean),
        ));
        let mut lines = Vec::new();
        for row in &of {
            for (name, value) in [("p50", 0), ("p99", 1)] {
                let point = |it: &super::report::LatencyRow| {
                    (f64::from(it.percent_of_ndr), [it.p50_us, it.p99_us][value])
                };
                let points = row.latency.iter().map(point).collect();
                lines.push(Line::new(format!("{}, {name}", row.candidate), points));
            }
        }
        charts.push(chart(
            &format!("Latency of frames of {size} bytes"),
            NOTE,
            Axis::linear("load, percent of the target's own NDR"),
            Axis::log("microseconds one way"),
            &lines,
        ));
    }
    stack(&charts)
}

/// The NDR by frame size (RFC 2544 §26.1).
fn by_size(rows: &[Row]) -> String {
    let points = rows.iter().filter_map(|row| {
        let size = row.size.parse().ok()?;
        Some((row.candidate.to_owned(), (size, row.ndr.mpps.mean)))
    });
    let mut lines = Line::all(points);
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    chart(
        "Rate without loss",
        NOTE,
        Axis::linear("bytes of a frame"),
        Axis::linear("million frames a second"),
        &lines,
    )
}
