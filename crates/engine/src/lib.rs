//! Everything between one guest's doorbell and the next guest's interrupt.
//!
//! Modules in the order in which a packet meets them; each may use only those above it in this list
//! (`tests/house.rs` reads the `use` lines and holds it):
//!
//! `util` → `mem` → `sandbox` → `core` → `disk`, `virtq`, `ring` → `packet` → `observe` → `port` →
//! `policy`, `slots` → `switch` → `router` → `graph` → `device`, `host` → `transport`, `broker` → `state`.
//!
//! `unsafe` is only in `mem`, `virtq`, `ring`, `host` and `observe`.

// `form::view` takes the options of a port one by one.
#![recursion_limit = "256"]

// The macros of `util::form` write paths for serde, which are those of other crates.
extern crate self as sidecore_engine;

pub mod broker;
pub mod core;
pub mod device;
pub mod disk;
pub mod graph;
pub mod host;
pub mod mem;
pub mod observe;
pub mod packet;
pub mod policy;
pub mod port;
pub mod ring;
pub mod router;
pub mod sandbox;
pub mod slots;
pub mod state;
pub mod switch;
pub mod transport;
pub mod util;
pub mod virtq;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock of `mutex`, also after a thread has panicked under it: what a mutex guards here is whole behind
/// each statement.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds `n` to `counter`, which has one writer at a time: a load and a store are enough.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
