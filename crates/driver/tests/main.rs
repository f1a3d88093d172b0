//! The native driver beside models of devices and real ones: one program for all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    missing_docs
)]

mod model;
#[allow(dead_code, reason = "benchmarks use the rest")]
#[path = "../../bench/src/peers.rs"]
mod peers;
#[allow(dead_code, reason = "benchmarks use the rest")]
#[path = "../../bench/src/storage.rs"]
mod storage;

mod blk;
mod bound;
mod rings;
mod testpmd;
