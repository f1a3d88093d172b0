//! Sockets at which others reach us: one way to listen, to let in, to talk and to end, whatever is spoken
//! there.
//!
//! Theory of operation. Each socket has a thread ([`Running`]) that blocks on nothing but its own `poll`, in
//! which its owner's [`OwnerLine`] always is: so it can always be stopped. A protocol says what its messages
//! come to, and nothing else. There are two shapes:
//!
//! * one client at a time ([`single`]): a VMM that plugs a device of ours into its guest, for as long as the
//!   guest lives. Others that connect meanwhile are refused. The conversation itself is [`conversation`], its
//!   messages come by a `super::inbox`;
//! * many at a time ([`many`]): programs with requests of one size, each of which is answered at once.
//!
//! What a client may not do is the same everywhere: keep the thread from hearing its owner, keep the next one
//! out by saying nothing, have it spin by coming and going ([`single`]) or when no descriptor is left
//! ([`socket`]), send us a descriptor unasked ([`connection`]), or end more than its own conversation by a
//! bug of ours ([`supervise()`]).
//!
//! A panic is a fault of ours, and a peer may be able to bring it about again. It ends the conversation that
//! it happened in, not the port: [`supervise()`] catches it, counts it at the port, and has the port listen
//! again after a pause that doubles each time, so that no peer can keep us busy with it. Locks that were held
//! are whole enough to go on with: what they guard is set up anew by the next conversation.
//!
//! | | vfio-user | vhost-user | ring port | netmap socket |
//! |---|---|---|---|---|
//! | shape | one client | one client | many; one has the rings | many |
//! | caller | the VMM | either | the program | the program |
//! | first message | VERSION, in 10 s | any, in 10 s; no limit where we call | no limit; the oldest of 8 that have nothing goes | in 10 s |
//! | rest of a message | 2 s | 2 s | no limit | 10 s |
//! | a visit for nothing | under 1 s, or only VERSION: pause | no ring ran: pause | free | free |
//! | a second client | is refused | is refused | is told that it is busy | is served |
//! | a broken rule | pause of 1 s; an errno where the protocol has one | pause of 1 s | hangs up | hangs up |
//! | a fault of a queue | stops the device, not the conversation | ends the conversation | – | – |
//! | its fault is shown until | the next client | the next fault | – | – |
//! | link down | is the device's affair | hangs up, and does not listen | frames are dropped | – |
//! | a daemon that ends | leaves client and device to the next one | hangs up | hangs up | hangs up |

pub(super) mod connection;
pub(super) mod conversation;
pub(super) mod many;
pub(super) mod single;
pub(super) mod socket;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

use crate::mem::JoinedThread;
use crate::port::Port;
use crate::sandbox::filters::{enter, Kinds};
use crate::util::fault::Fault;
use crate::util::wait_for;

/// What the owner of a socket wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    /// The end.
    pub(super) stop: bool,
    /// The client is to be left to the next daemon.
    pub(super) leave: bool,
    /// The carrier, where it is the connection's.
    pub(super) link: bool,
}

/// The owner's line to the thread.
pub(super) struct OwnerLine {
    wishes: Mutex<Wishes>,
    /// Readable when the owner calls.
    wake: OwnedFd,
}

impl OwnerLine {
    pub(super) fn new() -> io::Result<Arc<OwnerLine>> {
        let wishes = Mutex::new(Wishes { stop: false, leave: false, link: true });
        Ok(Arc::new(OwnerLine { wishes, wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? }))
    }

    /// That of an owner who wants nothing but that the client is left, when `wake` is readable.
    pub(super) fn leaving(wake: OwnedFd) -> OwnerLine {
        OwnerLine { wishes: Mutex::new(Wishes { stop: false, leave: true, link: true }), wake }
    }

    pub(super) fn wishes(&self) -> Wishes {
        *crate::lock(&self.wishes)
    }

    /// A wish for later: the thread is not called.
    pub(super) fn wish(&self, change: impl FnOnce(&mut Wishes)) {
        change(&mut crate::lock(&self.wishes));
    }

    /// A wish for now.
    pub(super) fn call(&self, change: impl FnOnce(&mut Wishes)) {
        self.wish(change);
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The call was heard: what the owner wants.
    pub(super) fn heard(&self) -> Wishes {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.wishes()
    }
}

impl AsFd for OwnerLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A thread that serves a socket. Dropping this ends it.
pub(super) struct Running {
    pub(super) line: Arc<OwnerLine>,
    _thread: JoinedThread,
}

impl Running {
    /// Starts it under `name`, of which the kernel shows 15 bytes.
    pub(super) fn start(
        line: &Arc<OwnerLine>,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Running> {
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            enter(Kinds::CONVERSATION);
            body();
        });
        let thread = thread.map_err(|e| io::Error::new(e.kind(), format!("cannot start its thread: {e}")))?;
        Ok(Running { line: Arc::clone(line), _thread: thread.into() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.line.call(|wishes| wishes.stop = true);
    }
}

/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Runs `body` until it returns. After a panic `clean` gives back what the conversation held, and `body` runs
/// again after a pause, unless the owner has asked for the end meanwhile.
pub(super) fn supervise<H>(
    host: &mut H,
    port: &Port,
    line: &OwnerLine,
    mut clean: impl FnMut(&mut H),
    mut body: impl FnMut(&mut H),
) {
    let mut pause = PAUSES.0;
    while catch_unwind(AssertUnwindSafe(|| body(host))).is_err() {
        port.fault.set(Fault::Internal);
        tracing::error!(
            port = %port.name,
            "its conversation has failed: a bug in sidecore (the lines above say where); the port listens again in {pause:?}"
        );
        // What is not whole any more fails once more, and is left as it is.
        let _ = catch_unwind(AssertUnwindSafe(|| clean(host)));
        let stops = || line.wishes().stop;
        if stops() || wait_for(line, Some(pause)) && stops() {
            return;
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::observe::CounterFile;
    use crate::port::{PortId, DEFAULT_MTU};

    #[test]
    #[allow(clippy::panic, reason = "it is what the test is about")]
    fn a_panic_ends_a_conversation_and_not_the_port() {
        let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "a");
        let port = Arc::new(Port::new(PortId(0), "a", counters, DEFAULT_MTU).unwrap());
        let line = OwnerLine::new().unwrap();
        let mut runs = 0;
        supervise(
            &mut runs,
            &port,
            &line,
            |_| panic!("a second one is caught, too"),
            |runs| {
                *runs += 1;
                assert!(*runs == 3, "a bug");
            },
        );
        assert_eq!((runs, port.fault.get()), (3, Some(Fault::Internal)));
        let mut stopped = 0;
        line.call(|wishes| wishes.stop = true);
        supervise(&mut stopped, &port, &line, |_| (), |_| panic!("a bug"));
        assert_eq!(stopped, 0);
    }
}
