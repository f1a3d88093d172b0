//! What helper threads do first: those of the engine's lower layers that wait for events and talk with nobody.
//!
//! Each thread restricts itself to the system calls of its kind as its first act (`confine`). That module stands above
//! this one and above `core`, so the fabric says here once what that act is. Without it (tests) there is none.

use std::sync::OnceLock;

static FIRST_ACT: OnceLock<fn()> = OnceLock::new();

/// Says what helper threads that begin from now on do first. Only the first call counts.
pub fn set_first_act(act: fn()) {
    let _ = FIRST_ACT.set(act);
}

/// Called by such a thread as it begins.
pub fn first_act() {
    if let Some(act) = FIRST_ACT.get() {
        act();
    }
}
