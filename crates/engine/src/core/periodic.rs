//! A thread that looks after the I/O cores now and then: the watchdog's, and the one that balances them.
//!
//! Between two looks it waits for the time of the next one, or for its end. It takes no lock that an I/O core takes while it
//! waits.

use std::io;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::mem::start_helper;

/// The thread. Dropping this ends it.
pub(super) struct PeriodicThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicThread {
    /// Calls `look` after `pause`, and again after each time that it returns. `None`: there is nothing to look after any more.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        name: &str,
        mut pause: Duration,
        mut look: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> io::Result<PeriodicThread> {
        let (stop, stopped) = channel::<()>();
        let body = move || {
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let Some(next) = look() else { return };
                pause = next;
            }
        };
        Ok(PeriodicThread { stop: Some(stop), thread: Some(start_helper(name.to_owned(), body)?) })
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        self.stop = None;
        let Some(thread) = self.thread.take() else { return };
        // The last owner of what it looks after may be this thread itself.
        if thread.thread().id() != std::thread::current().id() {
            // Its panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}
