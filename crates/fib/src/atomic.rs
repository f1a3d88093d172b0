//! The atomics of the tables. A model of them has its own.

pub(crate) use std::sync::atomic::{fence, AtomicU16, AtomicU32, AtomicU64, Ordering};
