//! The figure of `bench grants`: a panel for each knob.

use super::{Row, Rule, Setting};
use crate::prelude::*;

const NOTE: &str = "sidecore bench grants --svg FILE; one I/O core";

/// Received against granted, and latencies beside floods.
pub fn draw(rows: &[Row]) -> String {
    stack(&[rates(rows), weights(rows), reclaims(rows), classes(rows)])
}

/// A line with a point for each row of which `number` has one, at what `value` has of it.
fn line(
    name: &str,
    rows: &[Row],
    number: fn(Setting) -> Option<f64>,
    value: impl Fn(&Row) -> Option<f64>,
) -> Line {
    let points = rows.iter().filter_map(|row| Some((number(row.setting)?, value(row)?)));
    Line::new(name.to_owned(), points.collect())
}

fn rates(rows: &[Row]) -> String {
    let rate = |setting| match setting {
        Setting::Rate { rate } => Some(f64::from(rate) / 1e3),
        _ => None,
    };
    chart(
        "rate: frames that are taken from a guest that floods",
        &format!("{NOTE}, frames of 1,500 bytes"),
        Axis::linear("limit, thousand frames a second"),
        Axis::linear("received, thousand frames a second"),
        &[
            line("received", rows, rate, |row| Some(row.measured / 1e3)),
            line("granted", rows, rate, |row| Some(row.granted? / 1e3)).dashed(),
        ],
    )
}

fn weights(rows: &[Row]) -> String {
    let weight = |setting| match setting {
        Setting::Weight { weight } => Some(f64::from(weight)),
        _ => None,
    };
    chart(
        "weight: the share of a guest that floods, beside one of weight 100",
        &format!("{NOTE}, two guests that flood; by time: the core's account, by frames: what arrives"),
        Axis::linear("weight"),
        Axis::linear("% of what both receive"),
        &[
            line("by time", rows, weight, |row| Some(100.0 * row.measured)),
            line("by frames", rows, weight, |row| Some(100.0 * row.frames?)),
            line("granted", rows, weight, |row| Some(100.0 * row.granted?)),
        ],
    )
}

fn reclaims(rows: &[Row]) -> String {
    let its: Vec<(&Row, String)> = rows
        .iter()
        .filter(|row| matches!(row.setting, Setting::Reclaim { .. }))
        .map(|row| (row, row.setting.name()))
        .collect();
    let bar = |name: &str, value: fn(&Row) -> Option<f64>| Bars {
        name: name.to_owned(),
        values: its.iter().map(|(row, _)| value(row).map_or(f64::NAN, |part| 100.0 * part)).collect(),
    };
    let groups: Vec<String> = its.iter().map(|(_, name)| name.clone()).collect();
    bars(
        "reclaim: what a guest with budget=20% receives of a core that is idle or busy",
        &format!(
            "{NOTE}, one guest that floods, alone and beside another; granted: what the core had time for"
        ),
        "reclaim",
        &groups,
        Axis::linear("% of the time"),
        &[
            bar("by time", |row| Some(row.measured)),
            bar("by frames", |row| row.frames),
            bar("granted", |row| row.granted),
        ],
    )
}

fn classes(rows: &[Row]) -> String {
    let of = |wanted: Rule| {
        let point = |row: &Row| match row.setting {
            Setting::Class { rule, floods } if rule == wanted => Some((f64::from(floods), row.measured)),
            _ => None,
        };
        Line::new(wanted.name().to_owned(), rows.iter().filter_map(point).collect())
    };
    chart(
        "class: a guest that waits for answers beside guests that flood",
        &format!("{NOTE}, no interrupts; 20 µs are the network's"),
        Axis::linear("guests that flood"),
        Axis::linear("p99 from request to answer, µs"),
        &Rule::ALL.map(of),
    )
}
