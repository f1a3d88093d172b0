//! The figure of `bench grants`: a panel for each knob.

use super::{Row, Rule, Setting};
use crate::bench::draw::{chart, stack, Axis, Line};

/// Received against granted rates, and latencies beside floods.
pub fn draw(rows: &[Row]) -> String {
    let axis = |label| Axis { label, log: false };
    let rate = |name: &str, value: fn(&Row) -> f64| {
        let point = |row: &Row| match row.setting {
            Setting::Rate { rate } => Some((f64::from(rate) / 1e3, value(row) / 1e3)),
            Setting::Class { .. } => None,
        };
        Line::new(name.to_owned(), rows.iter().filter_map(point).collect())
    };
    let rates = chart(
        "rate: frames that are taken from a guest that floods",
        "sidecore bench grants --svg FILE; one I/O core, frames of 1,500 bytes",
        axis("limit, thousand frames a second"),
        axis("received, thousand frames a second"),
        &[
            rate("received", |row| row.measured),
            rate("granted", |row| row.granted.unwrap_or(f64::NAN)).dashed(),
        ],
    );
    let latency = |wanted: Rule| {
        let point = |row: &Row| match row.setting {
            Setting::Class { rule, floods } if rule == wanted => Some((f64::from(floods), row.measured)),
            Setting::Class { .. } | Setting::Rate { .. } => None,
        };
        Line::new(wanted.name().to_owned(), rows.iter().filter_map(point).collect())
    };
    let classes = chart(
        "class: a guest that waits for answers beside guests that flood",
        "sidecore bench grants --svg FILE; one I/O core, no interrupts; 20 µs are the network's",
        axis("guests that flood"),
        axis("p99 from request to answer, µs"),
        &Rule::ALL.map(latency),
    );
    stack(&[rates, classes])
}
