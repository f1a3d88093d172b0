//! Observation: counters in a shared file, captures, and histograms of latency.

pub mod capture;
mod counters;

pub use counters::{CoreBlock, CounterFile, PortCounters, Totals};
