//! What ports of the host's interfaces share: the thread beside them, and how their queues are shown.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};

use crate::mem::{start_helper, JoinedThread};
use crate::port::{Port, QueueStatus};

/// A thread that takes a port's queues back after a fault, and tells of changes. It ends with this.
pub(super) struct Watcher {
    stop: Arc<OwnedFd>,
    _thread: JoinedThread,
}

impl Watcher {
    /// Calls `changed` whenever `changes` is readable, and `end` after the port's first fault, which ends it.
    pub(super) fn start(
        name: String,
        port: &Arc<Port>,
        changes: Option<OwnedFd>,
        changed: impl Fn(&OwnedFd) + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Watcher> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (stopped, port) = (Arc::clone(&stop), Arc::clone(port));
        let body = move || loop {
            let fault = port.fault.event();
            let mut fds = vec![PollFd::new(&fault, PollFlags::IN), PollFd::new(&*stopped, PollFlags::IN)];
            fds.extend(changes.iter().map(|changes| PollFd::new(changes, PollFlags::IN)));
            // Interrupted by a signal, at worst.
            if poll(&mut fds, None).is_err() {
                continue;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            if let Some(fault) = port.fault.get() {
                tracing::error!(event = "fault", port = %port.name, "{fault}; the port stops");
                return end();
            }
            let readable = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
            changes.iter().filter(|_| readable).for_each(&changed);
        };
        Ok(Watcher { stop, _thread: start_helper(name, body)?.into() })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Fails only if the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

/// `count` pairs of queues of `kind`, of these sizes (ingress, egress), as the port's fault lets them be.
pub(super) fn pairs(
    kind: &'static str,
    count: usize,
    [ingress, egress]: [u32; 2],
    port: &Port,
) -> Vec<QueueStatus> {
    let state = port.fault.get().map_or_else(|| "running".to_owned(), |fault| fault.name());
    let queue = |index, (direction, size)| QueueStatus {
        index,
        direction,
        size,
        kind,
        state: state.clone(),
        interrupts: None,
    };
    (0..count)
        .flat_map(|index| [("ingress", ingress), ("egress", egress)].map(|way| queue(index, way)))
        .collect()
}
