//! Observation: what is counted of frames, counters in a shared file, captures, and histograms of latency.

pub mod account;
pub mod capture;
mod counters;

pub use counters::{CoreBlock, CounterFile, PortCounters, Totals};
