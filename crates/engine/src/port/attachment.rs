//! What stands behind a port.
//!
//! Word that the link of some port has changed, for a thread that waits for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::disk::Disk;

/// What stands behind a port: a conversation with a VMM, a host interface, a native program. Dropping
/// it takes all queues back from cores and port, closes what it opened and removes its socket.
pub trait Attachment: Send {
    /// How it is doing, for `show`.
    fn status(&self) -> AttachmentStatus;

    /// Puts the carrier up or down towards the peer. An error says what the kind of port can do instead.
    fn set_link(&mut self, up: bool) -> Result<(), String>;

    /// The carrier came or went because the other end of the wire did; [`Port::carrier`] says so already. An
    /// error says why the device cannot show it.
    fn follow(&mut self, up: bool) -> Result<(), String> {
        self.set_link(up)
    }

    /// What it waits for of its VMM and the guest, as far as that is known without a question to either.
    fn lack(&self) -> Option<Lack> {
        None
    }

    /// A second has passed: looks at what no event tells of.
    fn look(&self) {}

    /// The disk that it is, if it is one.
    fn disk(&self) -> Option<&Arc<Disk>> {
        None
    }

    /// What the disk's device says of itself has changed. Whether a VMM was told, which tells the guest.
    fn disk_changed(&self) -> bool {
        false
    }

    /// The daemon ends, and another one is meant to go on: what can outlive us shall be left behind when this
    /// is dropped.
    fn leave(&mut self) {}

    /// Takes over a new MTU where the peer of the port has to know; the port itself has it already. An error
    /// says why that cannot be while it runs.
    fn set_mtu(&mut self, mtu: u32) -> Result<(), String> {
        let _ = mtu;
        Ok(())
    }
}

/// Whether there is a peer at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// None yet, or not any more; the port waits or keeps trying.
    #[default]
    Waiting,
    /// A peer is there and sets its queues up.
    Connected,
    /// The port's queues run.
    Running,
    /// A fault ended the conversation; the port waits for the peer to start anew.
    Faulted,
}

/// What a device waits for before it can carry anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// No VMM is connected.
    Vmm,
    /// The VMM has a device of another kind than the port.
    Kind,
    /// The VMM shares no memory, and a driver has begun.
    Memory,
    /// The guest's driver has not turned the device on.
    Driver,
}

/// How an attachment is doing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AttachmentStatus {
    /// Whether there is a peer at the other end.
    pub peer: Peer,
    /// One line for people: where it listens, what it waits for.
    pub detail: String,
    /// What the operator can do if it does not work as it could.
    pub hint: Option<String>,
    /// What it waits for.
    pub lack: Option<Lack>,
    /// Names of what was negotiated.
    pub features: Vec<String>,
    /// Its queues.
    pub queues: Vec<QueueStatus>,
}

/// One queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueStatus {
    /// Number within its direction.
    pub index: usize,
    /// `ingress` or `egress`; `requests` of a disk; `monitor` for a program that sees copies.
    pub direction: &'static str,
    /// Entries.
    pub size: u32,
    /// `split`, `packed`, `tap`, …
    pub kind: &'static str,
    /// `running`, or why it is not.
    pub state: String,
    /// Its interrupts, where the device moderates them itself.
    pub interrupts: Option<InterruptCount>,
}

crate::util::form::view! {
    /// A queue's interrupts; absent before the first event.
    #[derive(Copy, Default)]
    InterruptCount {
        /// Interrupts that were sent.
        raised: u64,
        /// Events that moderation delayed until the next interrupt.
        held_back: u64,
        /// Events without an interrupt of their own, because the peer polled or one interrupt served several
        /// events.
        #[serde(default)]
        saved: u64,
    }
}

/// Raised by ports, awaited by threads of the control plane. Which port it was is not said: changes are rare,
/// and a waiting thread looks at all.
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

    /// Waits for changes beyond the first `seen`, for this long at most, and counts them there. False:
    /// closed.
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
