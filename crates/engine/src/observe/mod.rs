//! Observation: counters in a shared file. Capture and latency histograms stand beside them.

pub mod capture;
mod counters;

pub use counters::{CoreBlock, CounterFile, PortCounters, Totals};
