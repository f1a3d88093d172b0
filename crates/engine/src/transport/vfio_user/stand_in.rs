//! The conversation with a VMM while there is no daemon: its holder's process answers in the daemon's place.
//!
//! Theory of operation. A VMM gives an answer up after some seconds (QEMU after five) and takes one that
//! comes later for the end of the conversation. So while no daemon is there, the holder goes on with what is
//! kept as the next daemon would ([`Session::stand_in`]): the same device model, the same messages, each done
//! exactly once (`keep`). The device stands still: it has neither rings nor guest memory nor interrupts here.
//! Its registers work, so a driver that resets it reads back what it wrote. Its link stays up: if the link
//! went, the driver would throw away the frames that it has to send, and the guest its routes, for an outage
//! of a second as well.
//!
//! Memory and eventfds that the VMM gives meanwhile are kept beside the earlier ones, and the next daemon
//! maps and wires them. The next daemon interrupts for all that the guest may have missed, as after every
//! take-over, so interrupts need not be noted.

use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::server::connection::Connection;
use super::super::server::conversation::{self, ConversationEnd};
use super::super::server::OwnerLine;
use super::conversation::Conversation;
use super::keep::key;
use super::session::{Session, SharedDevice};
use crate::core::Recall;
use crate::device::pci::PciDevice;
use crate::graph::{QueueHandle, Scheduler};
use crate::port::Port;
use crate::sandbox::holder::{self, Store};
use crate::util::wait_for;

/// Serves no queue: each stays where it is until it is taken back.
pub struct Still;

impl Scheduler for Still {
    fn serve_queue(self: Arc<Self>, handle: QueueHandle) -> Recall {
        let handle = Mutex::new(Some(handle));
        Box::new(move || {
            if let Some(handle) = crate::lock(&handle).take() {
                handle.return_to_owner();
            }
        })
    }
}

/// Stands in for the daemon at the device of a port.
pub struct StandIn {
    port: Arc<Port>,
    device: SharedDevice,
    /// The session could not be resumed here; the next daemon will try, and log why it cannot.
    failed: bool,
}

impl StandIn {
    /// Stands in at `device`, a new one behind `port` whose queues are [`Still`].
    pub fn new(port: Arc<Port>, device: Box<dyn PciDevice>) -> StandIn {
        StandIn { port, device: Arc::new(Mutex::new(device)), failed: false }
    }

    /// The conversation from where the daemon left it.
    fn resume(&self, store: &Store) -> Result<Conversation, String> {
        let (session, stream) = Session::stand_in(&self.port.name, &self.device, &self.port.terms, store)?;
        let mut stream = Connection::from(stream);
        // However this process ends the conversation, the connection is not shut: the next daemon goes on
        // with it.
        stream.leave();
        Conversation::resume(stream, session, &self.port, &self.device).map_err(|e| e.to_string())
    }

    /// As [`holder::StandIn::answer`]. An error: the session cannot be resumed here.
    fn converse(&self, store: &Store, line: &OwnerLine) -> Result<bool, String> {
        let mut exchange = self.resume(store)?;
        match conversation::run(&mut exchange, &self.port, line, None, false, |_| ()) {
            ConversationEnd::Called | ConversationEnd::Left => Ok(true),
            ConversationEnd::Closed | ConversationEnd::Silent | ConversationEnd::Fault(..) => Ok(false),
        }
    }
}

impl holder::StandIn for StandIn {
    fn connection(&self) -> u64 {
        key::STREAM
    }

    fn answer(&mut self, store: &Store, called: OwnedFd) -> bool {
        if self.failed {
            return true;
        }
        // A daemon that calls already needs no stand-in. Without one the stand-in begins at once, not when
        // the VMM says more: the daemon may have been killed between taking a message and answering it.
        if wait_for(&called, Some(Duration::ZERO)) {
            return true;
        }
        let line = OwnerLine::leaving(called);
        // If a VMM's message makes this code panic, the VMM gets no more answers, and its descriptors stay
        // kept.
        let answered = catch_unwind(AssertUnwindSafe(|| self.converse(store, &line)));
        let go_on = answered.unwrap_or_else(|_| Err("it panicked".to_owned()));
        self.failed = go_on.is_err();
        go_on.unwrap_or(true)
    }
}
