//! Loads any vhost-user backend that listens on two sockets: `load A B [size=64] [core=0] [bursts=8] [packed]
//! [in_order] [plain] [fixed] [huge] [rate=100000] [seconds=1]`. `plain`: no mergeable buffers. `fixed`:
//! frames are not rewritten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use sidecore_driver::load::{Load, LoadConfig};
use sidecore_driver::memory::Page;
use sidecore_driver::Frontend;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut config = LoadConfig::default();
    for arg in &args[2..] {
        let (key, value) = arg.split_once('=').unwrap_or((arg, ""));
        match key {
            "size" => config.frame = value.parse().unwrap(),
            "core" => config.core = value.parse().unwrap(),
            "bursts" => config.bursts = value.parse().unwrap(),
            "rate" => config.rate = Some(value.parse().unwrap()),
            "seconds" => config.window = Duration::from_secs_f64(value.parse().unwrap()),
            "packed" => config.packed = true,
            "in_order" => config.in_order = true,
            "plain" => config.mergeable = false,
            "fixed" => config.touch = false,
            "huge" => config.page = Page::Huge,
            _ => panic!("unknown option {arg}"),
        }
    }
    let connect = |path: &String| Frontend::connect(path, Duration::from_secs(10)).unwrap();
    let mut load = Load::new(connect(&args[0]), connect(&args[1]), config).unwrap();
    let report = load.run().unwrap();
    println!(
        "{:.2} Mpps ({:?} in {:.2} s), lost {}, reordered {}, corrupt {}, load busy {:.0} %, {:.1} ns a frame",
        report.mpps(),
        report.received,
        report.seconds,
        report.lost,
        report.reordered,
        report.corrupt,
        report.busy * 100.0,
        report.busy_ns
    );
    if let Some(latency) = report.latency {
        let at = |q| latency.value_at_quantile(q);
        println!("latency ns: min {} p50 {} p99 {} p99.9 {}", latency.min(), at(0.5), at(0.99), at(0.999));
    }
}
