//! Word that the link of some port has changed, for one who waits for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Raised by ports, awaited by the control plane. Which port it was is not said: changes are rare, and
/// whoever waits looks at all.
#[derive(Debug, Default)]
pub struct LinkEvents {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    raised: bool,
    closed: bool,
}

impl LinkEvents {
    fn state(&self) -> MutexGuard<'_, State> {
        // Two flags: a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has changed.
    pub fn raise(&self) {
        self.state().raised = true;
        self.changed.notify_all();
    }

    /// Nobody will wait any more.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Waits for a change since the last call. False: closed.
    pub fn wait(&self) -> bool {
        let calm = |state: &mut State| !state.raised && !state.closed;
        let mut state = self.changed.wait_while(self.state(), calm).unwrap_or_else(PoisonError::into_inner);
        state.raised = false;
        !state.closed
    }
}
