//! Word that the link of some port has changed, for a thread that waits for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Raised by ports, awaited by threads of the control plane. Which port it was is not said: changes are rare, and a waiting
/// thread looks at all.
#[derive(Debug, Default)]
pub struct LinkEvents {
    flags: Mutex<LinkFlags>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LinkFlags {
    raised: u64,
    closed: bool,
}

impl LinkEvents {
    fn flags(&self) -> MutexGuard<'_, LinkFlags> {
        // Two flags: a panic leaves nothing half done.
        crate::lock(&self.flags)
    }

    /// Something has changed.
    pub fn raise(&self) {
        self.flags().raised += 1;
        self.changed.notify_all();
    }

    /// No thread will wait any more.
    pub fn close(&self) {
        self.flags().closed = true;
        self.changed.notify_all();
    }

    /// Waits for changes beyond the first `seen`, for this long at most, and counts them there. False: closed.
    pub fn wait(&self, seen: &mut u64, most: Option<Duration>) -> bool {
        let calm = |flags: &mut LinkFlags| flags.raised == *seen && !flags.closed;
        let flags = match most {
            None => self.changed.wait_while(self.flags(), calm).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.changed.wait_timeout_while(self.flags(), most, calm);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *seen = flags.raised;
        !flags.closed
    }
}
