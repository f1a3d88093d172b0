//! The atomics of the MAC table. A model of it has its own.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
