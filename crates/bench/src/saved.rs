//! `sidecore bench draw`: the figure of a benchmark again, from what it printed with `--json`.
//!
//! A measurement takes minutes and two processors, a figure neither: so what was measured once can be drawn
//! on any machine and with later drawings. A benchmark that can be drawn reads its own rows back; this module
//! only knows whose they are.

use std::fs;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::prelude::*;
use crate::{blk, fib, group, idle, sched, vale, vsr};

/// `bench draw`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What a benchmark printed with `--json`.
    #[arg(value_name = "RESULT.json")]
    result: PathBuf,
    /// The picture to write.
    #[arg(value_name = "PICTURE.svg")]
    picture: PathBuf,
}

/// The part of a result that figures are drawn from.
#[derive(Deserialize)]
struct Saved {
    version: u32,
    bench: String,
    #[serde(default)]
    rows: Value,
}

/// Draws a benchmark's rows.
type Draw = fn(Value) -> Result<String>;

/// Benchmarks with a figure.
const DRAWN: [(&str, Draw); 12] = [
    ("share", |rows| redraw(rows, sched::share::draw)),
    ("mix", |rows| redraw(rows, sched::mix::draw)),
    ("parts", |rows| redraw(rows, sched::parts::draw)),
    ("budget", |rows| redraw(rows, sched::budget::draw)),
    ("grants", |rows| redraw(rows, sched::grants::draw)),
    ("move", |rows| redraw(rows, sched::moves::draw)),
    ("idle", |rows| redraw(rows, idle::draw)),
    ("blk", |rows| redraw(rows, blk::draw)),
    ("vale", |rows| redraw(rows, vale::draw)),
    ("fib", |rows| redraw(rows, fib::draw)),
    ("group", |rows| redraw(rows, group::draw)),
    ("vsr", |rows| redraw(rows, vsr::report::draw)),
];

/// `bench draw`.
pub fn run(args: &Args) -> Result<()> {
    let name = args.result.display();
    let text = fs::read_to_string(&args.result).map_err(|e| format!("cannot read {name}: {e}"))?;
    let picture = picture(&text).map_err(|e| format!("{name}: {e}"))?;
    fs::write(&args.picture, picture).map_err(|e| format!("cannot write {}: {e}", args.picture.display()))
}

fn picture(text: &str) -> Result<String> {
    let saved: Saved = serde_json::from_str(text).map_err(|e| format!("no result of a benchmark: {e}"))?;
    if saved.version != 1 {
        return Err(format!("version {} of a result; known: 1", saved.version));
    }
    let Some((_, draw)) = DRAWN.iter().find(|(name, _)| *name == saved.bench) else {
        let drawn = DRAWN.map(|(name, _)| name).join(", ");
        return Err(format!("`bench {}` has no figure; drawn are: {drawn}", saved.bench));
    };
    draw(saved.rows)
}

fn redraw<R: DeserializeOwned>(rows: Value, draw: fn(&[R]) -> String) -> Result<String> {
    let rows: Vec<R> = serde_json::from_value(rows).map_err(|e| format!("its rows: {e}"))?;
    Ok(draw(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_drawn_says_why() {
        for (text, why) in [
            ("pvp 24 Mpps", "no result of a benchmark"),
            (r#"{"version": 2, "bench": "mix"}"#, "version 2 of a result; known: 1"),
            (r#"{"version": 1, "bench": "pvp"}"#, "`bench pvp` has no figure; drawn are: share, mix, parts"),
            (r#"{"version": 1, "bench": "mix", "rows": [{"way": 1}]}"#, "its rows: "),
        ] {
            let error = picture(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn rows_are_read_back() {
        let row = r#"{"granted": 0.25, "time": 0.24, "frames": 0.26, "error": 0.01, "load_busy": 0.3}"#;
        let text = format!(r#"{{"version": 1, "bench": "budget", "period_ms": 2, "rows": [{row}]}}"#);
        let picture = picture(&text).unwrap();
        assert_eq!(picture.matches("<circle ").count(), 3, "{picture}");
    }
}
