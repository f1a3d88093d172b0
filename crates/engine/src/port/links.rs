//! Word that the link of some port has changed, for a thread that waits for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Raised by ports, awaited by the control plane. Which port it was is not said: changes are rare, and the waiting
/// thread looks at all.
#[derive(Debug, Default)]
pub struct LinkEvents {
    flags: Mutex<LinkFlags>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LinkFlags {
    raised: bool,
    closed: bool,
}

impl LinkEvents {
    fn flags(&self) -> MutexGuard<'_, LinkFlags> {
        // Two flags: a panic leaves nothing half done.
        crate::lock(&self.flags)
    }

    /// Something has changed.
    pub fn raise(&self) {
        self.flags().raised = true;
        self.changed.notify_all();
    }

    /// No thread will wait any more.
    pub fn close(&self) {
        self.flags().closed = true;
        self.changed.notify_all();
    }

    /// Waits for a change since the last call. False: closed.
    pub fn wait(&self) -> bool {
        let calm = |flags: &mut LinkFlags| !flags.raised && !flags.closed;
        let mut flags = self.changed.wait_while(self.flags(), calm).unwrap_or_else(PoisonError::into_inner);
        flags.raised = false;
        !flags.closed
    }
}
