//! The figure of `bench grants`: a panel for each knob.

use super::{Row, Rule, Setting};
use crate::bench::draw::{bars, chart, distinct, stack, Axis, Bars, Line};

/// A panel for each knob.
pub fn draw(rows: &[Row]) -> String {
    let note = "sidecore bench grants --svg FILE; one I/O core, guests that flood with frames of 1,500 bytes";
    let axis = |label, log| Axis { label, log };
    // The points of one knob: the setting's number, and what `value` has of its row.
    let points = |number: fn(&Setting) -> Option<f64>, value: &dyn Fn(&Row) -> f64| -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> =
            rows.iter().filter_map(|row| Some((number(&row.setting)?, value(row)))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let both = |number: fn(&Setting) -> Option<f64>, unit: f64| {
        let line = |name: &str, points| Line::new(name.to_owned(), points);
        [
            line("received", points(number, &|row| unit * row.measured)),
            line("granted", points(number, &|row| unit * row.granted.unwrap_or(f64::NAN))),
        ]
    };
    let weight = |setting: &Setting| match setting {
        Setting::Weight { weight } => Some(f64::from(*weight)),
        _ => None,
    };
    let rate = |setting: &Setting| match setting {
        Setting::Rate { rate } => Some(f64::from(*rate) / 1e3),
        _ => None,
    };
    let weights = chart(
        "weight: the share of a guest beside one with weight 100",
        note,
        axis("weight", true),
        axis("% of the frames of both", false),
        &both(weight, 100.0),
    );
    let rates = chart(
        "rate: frames that are taken from a guest",
        note,
        axis("limit, thousand frames a second", false),
        axis("received, thousand frames a second", false),
        &both(rate, 1e-3),
    );
    let reclaims = [false, true].map(|on| {
        let its = |wanted: bool| {
            let of = Setting::Reclaim { reclaim: on, beside_another: wanted };
            rows.iter().find(|row| row.setting == of).map_or(f64::NAN, |row| 100.0 * row.measured)
        };
        let name = if on { "reclaim=on" } else { "reclaim=off" };
        Bars { name: name.to_owned(), values: [false, true].map(its).to_vec() }
    });
    let reclaim = bars(
        "reclaim: what a guest with budget=20% receives",
        note,
        "guests",
        &["alone on the core", "beside a guest without a budget"].map(str::to_owned),
        axis("% of what the core moves", false),
        &reclaims,
    );
    let of_rule = |rule: Rule| {
        let its = rows.iter().filter_map(|row| match row.setting {
            Setting::Class { rule: of, floods } if of == rule => Some((f64::from(floods), row.measured)),
            _ => None,
        });
        Line::new(rule.name().to_owned(), its.collect())
    };
    let rules = distinct(rows.iter().filter_map(|row| match row.setting {
        Setting::Class { rule, .. } => Some(rule),
        _ => None,
    }));
    let class = chart(
        "class: latency of a guest that waits for answers beside floods, 20 µs of it outside",
        note,
        axis("guests that flood", false),
        axis("p99 in µs", false),
        &rules.into_iter().map(of_rule).collect::<Vec<_>>(),
    );
    stack(&[weights, rates, reclaim, class])
}
