//! `sidecore bench`: measurements against real peers, in the same run.
//!
//! Every benchmark starts what it compares, loads all of it with the same load, alternates between
//! them, and prints medians with their spread and ratios. Nothing is compared with a stored number.

pub mod blk;
pub mod common;
pub mod distance;
pub mod draw;
pub mod e1000;
pub mod echo;
pub mod ends;
pub mod fib;
pub mod idle;
pub mod many;
pub mod matrix;
pub mod net;
pub mod ours;
pub mod peers;
pub mod ptnet;
pub mod pvp;
pub mod rfc2544;
pub mod router;
pub mod routes;
pub mod sched;
pub mod storage;
pub mod tap;
pub mod vale;
pub mod virtio_user;
mod wake;

use std::time::Duration;

/// The length of a measurement, from seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|e| e.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}
