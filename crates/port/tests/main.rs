//! The C library and netmap's API, in one process with the daemon's engine and beside it: one program for
//! all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    missing_docs
)]

mod rig;

mod c_api;
mod c_calls;
mod gone;
mod hostile;
mod monitor;
mod pipe;
mod switch;
