//! For tests of what a kill leaves behind: the thread's stores into memory that outlives a process are made up to some store,
//! and all later ones are lost.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// So many stores will be made, and no more.
pub(crate) fn after(stores: u64) {
    LEFT.set(stores);
}

/// How many are left.
pub(crate) fn left() -> u64 {
    LEFT.get()
}

/// Asked before each store: whether it is lost.
pub(crate) fn is_behind() -> bool {
    match LEFT.get() {
        0 => true,
        left => {
            LEFT.set(left - 1);
            false
        }
    }
}
