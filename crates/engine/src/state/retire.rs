//! What stands behind a port ends outside the engine's lock, and within a bound.
//!
//! Theory of operation. Dropping an attachment takes its queues back, closes what it opened and joins its
//! thread. A part of that may take as long as a VMM likes: the last close of a file waits for the server of
//! that file. So an attachment ends on a thread of its own ([`end`]), and a request waits for it for
//! [`PATIENCE`] at most. An attachment that takes longer goes on ending by itself. Its port is out of the
//! graph by then and counts among those that leave ([`Leaving`]): its sums still count, and its number is not
//! given to another port before it has ended and a later request has found that out. The I/O cores give its
//! queues back meanwhile (`Graph::evict`): a VMM that keeps its thread from ending keeps no core with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::spec::{PortSpec, INSIDE};
use crate::observe::Totals;
use crate::port::{Attachment, Port};

/// How long a request, or the end of the daemon, waits for attachments. Ending one takes milliseconds; two
/// seconds are more than a loaded machine needs, and less than people and service managers wait.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// An attachment that is ending.
pub(super) struct Ending {
    name: String,
    done: Receiver<()>,
    ended: Arc<AtomicBool>,
}

/// Ends its attachment wherever it is dropped: on its thread, or at once where no thread could be started.
struct Rest {
    attachment: Option<Box<dyn Attachment>>,
    tell: SyncSender<()>,
    ended: Arc<AtomicBool>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        drop(self.attachment.take());
        self.ended.store(true, Ordering::Release);
        // The receiver is gone if nothing waits any more.
        let _ = self.tell.send(());
    }
}

/// Ends `attachment`, which stands behind port `name`, on a thread of its own.
pub(super) fn end(name: &str, attachment: Option<Box<dyn Attachment>>) -> Ending {
    let (tell, done) = sync_channel(1);
    let ended = Arc::new(AtomicBool::new(false));
    let rest = Rest { attachment, tell, ended: Arc::clone(&ended) };
    // Without a thread the closure is dropped here, and `rest` with it.
    let thread = std::thread::Builder::new().name("retire".to_owned()).spawn(move || drop(rest));
    if let Err(e) = thread {
        tracing::warn!(
            port = name,
            "the thread of the request ends it, because there is no other thread: {e}"
        );
    }
    Ending { name: name.to_owned(), done, ended }
}

impl Ending {
    /// Waits for the end, until `limit` at most; true if it has come. An end that has not come is logged.
    pub(super) fn wait(&self, limit: Instant) -> bool {
        let ended = self.done.recv_timeout(limit.saturating_duration_since(Instant::now())).is_ok();
        if !ended {
            tracing::error!(
                port = %self.name,
                "its threads have not ended within {PATIENCE:?}: they wait for its VMM or for a file that a VMM \
                 passed, and are left to end by themselves"
            );
        }
        ended
    }
}

/// Waits for all of `endings` within [`PATIENCE`]; the names of the ports that take longer.
pub(super) fn wait_for(endings: &[Ending]) -> Vec<String> {
    let limit = Instant::now() + PATIENCE;
    endings.iter().filter(|ending| !ending.wait(limit)).map(|ending| ending.name.clone()).collect()
}

/// A port that is out of the graph, and whose attachment is ending.
pub(super) struct Leaver {
    pub(super) port: Arc<Port>,
    pub(super) spec: PortSpec,
    /// It was deleted; else it never came to be.
    pub(super) deleted: bool,
    ended: Arc<AtomicBool>,
}

impl Leaver {
    /// What it has counted, as far as it counts for all ports: what has passed a port between two nodes
    /// stayed inside.
    pub(super) fn sums(&self) -> Totals {
        let all = self.port.counters.totals();
        match INSIDE.contains(&&*self.spec.kind) {
            true => Totals { in_frames: 0, in_bytes: 0, out_frames: 0, out_bytes: 0, ..all },
            false => all,
        }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Leaving(Vec<Leaver>);

impl Leaving {
    pub(super) fn enter(&mut self, port: Arc<Port>, spec: PortSpec, deleted: bool, ending: &Ending) {
        self.0.push(Leaver { port, spec, deleted, ended: Arc::clone(&ending.ended) });
    }

    /// The ports among them with one of these names.
    pub(super) fn named(&self, names: &[String]) -> Vec<Arc<Port>> {
        let its = self.0.iter().map(|leaver| &leaver.port).filter(|port| names.contains(&port.name));
        its.map(Arc::clone).collect()
    }

    /// Takes out those that have ended.
    pub(super) fn ended(&mut self) -> Vec<Leaver> {
        let (ended, still) = self.0.drain(..).partition(|leaver| leaver.ended.load(Ordering::Acquire));
        self.0 = still;
        ended
    }

    /// Adds what they have counted to `sums`.
    pub(super) fn add_to(&self, sums: &mut Totals) {
        self.0.iter().for_each(|leaver| sums.add(&leaver.sums()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::port::{AttachmentStatus, Peer};

    /// Its end waits for a word.
    struct Stuck(Receiver<()>);

    impl Attachment for Stuck {
        fn status(&self) -> AttachmentStatus {
            let queues = Vec::new();
            AttachmentStatus {
                peer: Peer::Waiting,
                detail: String::new(),
                hint: None,
                lack: None,
                features: Vec::new(),
                queues,
            }
        }

        fn set_link(&mut self, _: bool) -> Result<(), String> {
            Ok(())
        }
    }

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn an_end_that_takes_too_long_is_left_alone_and_still_comes() {
        let (word, waits) = channel();
        let ending = end("a", Some(Box::new(Stuck(waits))));
        assert!(!ending.wait(Instant::now()));
        assert!(!ending.ended.load(Ordering::Acquire));
        word.send(()).unwrap();
        assert!(ending.wait(Instant::now() + PATIENCE));
        assert!(ending.ended.load(Ordering::Acquire));
        assert!(wait_for(&[end("b", None)]).is_empty());
    }
}
