//! A conversation's thread that fails is started again.
//!
//! Theory of operation. A panic is a fault of ours, and a peer may be able to bring it about again. It ends the conversation
//! that it happened in, not the port: [`run`] catches it, counts it at the port, and has the port listen again after a pause that
//! doubles each time, so that no peer can keep us busy with it. Locks that were held are whole enough to go on with:
//! what they guard is set up anew by the next conversation.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use super::wait::wait_for;
use crate::fault::Fault;
use crate::port::Port;

/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Runs `body` until it returns. After a panic `clean` gives back what the conversation held, and `body` runs again, unless
/// the owner has asked for the end (`stops`) meanwhile. `wake` ends a pause.
pub(super) fn run<H>(
    host: &mut H,
    port: &Port,
    wake: impl std::os::fd::AsFd,
    stops: impl Fn() -> bool,
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
        if !stops() {
            wait_for(&wake, Some(pause));
        }
        if stops() {
            return;
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{eventfd, EventfdFlags};

    use super::*;
    use crate::observe::CounterFile;
    use crate::port::{PortId, DEFAULT_MTU};

    #[test]
    #[allow(clippy::panic, reason = "it is what the test is about")]
    fn a_panic_ends_a_conversation_and_not_the_port() {
        let counters = CounterFile::anonymous().unwrap().open_slot(PortId(0), "a");
        let port = Arc::new(Port::new(PortId(0), "a", counters, DEFAULT_MTU).unwrap());
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut runs = 0;
        run(
            &mut runs,
            &port,
            &wake,
            || false,
            |_| panic!("a second one is caught, too"),
            |runs| {
                *runs += 1;
                assert!(*runs == 3, "a bug");
            },
        );
        assert_eq!((runs, port.fault.get()), (3, Some(Fault::Internal)));
        let mut stopped = 0;
        run(&mut stopped, &port, &wake, || true, |_| (), |_| panic!("a bug"));
        assert_eq!(stopped, 0);
    }
}
