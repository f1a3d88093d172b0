//! The atomics of buckets. A model of them has its own.

pub(super) use std::sync::atomic::{fence, AtomicU32, AtomicU8, Ordering};
