//! `show queues`: a line for each queue, in 120 columns or in all there are.

use sidecore_engine::core::{Heat, TaskStatus};
use sidecore_engine::state::status::{QueueView, Queues};

use crate::table::Table;

/// A column: its heading, whether it is there without `--wide`, and what it says of a queue.
struct Column {
    heading: &'static str,
    shown: Shown,
    cell: fn(&QueueView) -> String,
}

/// Whether a column is there without `--wide`.
enum Shown {
    Always,
    Never,
    /// If it is so of any queue.
    If(fn(&QueueView) -> bool),
}

const fn usual(heading: &'static str, cell: fn(&QueueView) -> String) -> Column {
    Column { heading, shown: Shown::Always, cell }
}

const fn wide(heading: &'static str, cell: fn(&QueueView) -> String) -> Column {
    Column { heading, shown: Shown::Never, cell }
}

/// A column of what most queues have not got.
const fn rare(heading: &'static str, any: fn(&QueueView) -> bool, cell: fn(&QueueView) -> String) -> Column {
    Column { heading, shown: Shown::If(any), cell }
}

fn was_held_back(queue: &QueueView) -> bool {
    queue.interrupts.is_some_and(|count| count.held_back > 0)
}

fn has_waited(queue: &QueueView) -> bool {
    queue.waits.is_some_and(|waits| waits.count > 0)
}

const COLUMNS: &[Column] = &[
    usual("port", |queue| queue.port.clone()),
    usual("direction", |queue| queue.direction.clone()),
    usual(">queue", |queue| queue.index.to_string()),
    usual("kind", |queue| queue.kind.clone()),
    wide(">size", |queue| queue.size.to_string()),
    usual("state", |queue| queue.state.clone()),
    usual(">interrupts", |queue| of(queue.interrupts, |count| count.raised)),
    usual(">saved", |queue| of(queue.interrupts, |count| count.saved)),
    rare(">held back", was_held_back, |queue| of(queue.interrupts, |count| count.held_back)),
    rare(">waits", has_waited, |queue| of(queue.waits, |waits| waits.count)),
    rare(">waited ms", has_waited, |queue| of(queue.waits, |waits| waits.total_us / 1_000)),
    rare(">given up", has_waited, |queue| of(queue.waits, |waits| waits.given_up)),
    usual(">core", |queue| task(queue, |task| task.core.to_string())),
    wide("class", |queue| queue.class.clone().unwrap_or_default()),
    usual("heat", |queue| task(queue, |task| heat(task.heat).to_owned())),
    usual(">visits", |queue| task(queue, |task| task.visits.to_string())),
    wide(">empty", |queue| task(queue, |task| task.empty.to_string())),
    wide(">drained", |queue| task(queue, |task| task.drained.to_string())),
    wide(">turn over", |queue| task(queue, |task| task.budget.to_string())),
    wide(">time over", |queue| task(queue, |task| task.time.to_string())),
    wide(">no room", |queue| task(queue, |task| task.waits.to_string())),
    wide(">early", |queue| task(queue, |task| task.early.to_string())),
    wide(">wait p50", |queue| task(queue, |task| us(task.wait_p50_ns))),
    usual(">wait p99", |queue| task(queue, |task| us(task.wait_p99_ns))),
    wide(">moves", |queue| task(queue, |task| task.moves.to_string())),
];

/// What is counted of a queue, if it is.
fn of<T>(count: Option<T>, number: impl Fn(T) -> u64) -> String {
    count.map_or_else(String::new, |count| number(count).to_string())
}

/// What became of a queue on its core, if one serves it.
fn task(queue: &QueueView, cell: impl Fn(&TaskStatus) -> String) -> String {
    queue.served.as_ref().map_or_else(String::new, cell)
}

fn heat(heat: Heat) -> &'static str {
    match heat {
        Heat::Polled => "polled",
        Heat::Cold => "cold",
        Heat::Throttled => "throttled",
    }
}

pub(super) fn us(ns: u64) -> String {
    format!("{}.{} µs", ns / 1_000, ns % 1_000 / 100)
}

/// All queues, with all columns if it may be `wide`.
pub(super) fn table(answer: &Queues, wide: bool) -> String {
    text(&answer.queues, wide)
}

/// These queues.
pub(super) fn text(queues: &[QueueView], wide: bool) -> String {
    let shown = |column: &&Column| match column.shown {
        Shown::Always => true,
        Shown::Never => wide,
        Shown::If(any) => wide || queues.iter().any(any),
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(shown).collect();
    let mut table = Table::new(&columns.iter().map(|column| column.heading).collect::<Vec<_>>());
    for queue in queues {
        table.row(columns.iter().map(|column| (column.cell)(queue)));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_columns_fit_a_terminal_and_wide_has_all() {
        let queue: QueueView = serde_json::from_value(serde_json::json!({
            "port": "guest-of-16-chrs", "direction": "requests", "index": 15, "size": 1024, "kind": "packed",
            "state": "running", "interrupts": { "raised": 9_999_999_999u64, "held_back": 0, "saved": 9_999_999_999u64 },
            "class": "throughput",
            "served": { "id": 1, "owner": 0, "index": 15, "core": 15, "heat": "throttled", "visits": 99_999_999_999u64,
                "empty": 1, "drained": 2, "budget": 3, "time": 4, "waits": 5, "early": 6, "moves": 7, "wakes": 8,
                "busy_ns": 9, "items": 1, "bytes": 1, "wait_p50_ns": 1_500, "wait_p99_ns": 999_999_900 },
        }))
        .unwrap();
        let usual = text(std::slice::from_ref(&queue), false);
        assert!(usual.lines().all(|line| line.chars().count() <= 120), "{usual}");
        assert!(usual.contains("throttled") && usual.contains("999999.9 µs") && !usual.contains("turn over"));
        let wide = text(&[queue], true);
        for column in COLUMNS {
            assert!(wide.contains(column.heading.trim_start_matches('>')), "{}: {wide}", column.heading);
        }
    }
}
