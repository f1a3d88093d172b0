//! A router's port on a switch has no device. Frames pass it in the fabric (`fabric/crossing`); this module gives the
//! port its link.

use std::sync::Arc;

use crate::account::{DropReason, Outcome};
use crate::core::Lease;
use crate::frame::Batch;
use crate::port::{Attachment, AttachmentStatus, EgressQueue, Peer, Port};

/// A port between a router and a switch.
pub struct Passage {
    port: Arc<Port>,
    switch: String,
    door: Option<Lease<Door>>,
}

/// An egress queue that no frame reaches: the fabric takes those for its port another way.
struct Door;

impl EgressQueue for Door {
    fn send(&mut self, _: &Batch, picks: &[u16], outcome: &mut Outcome) {
        outcome.dropped_all(picks, DropReason::Reentry);
    }
}

impl Passage {
    /// Gives `port`, which stands on the switch of this name, its link.
    pub fn open(port: &Arc<Port>, switch: &str) -> Passage {
        Passage { port: Arc::clone(port), switch: switch.to_owned(), door: Some(port.lend(0, Door)) }
    }
}

impl Attachment for Passage {
    fn status(&self) -> AttachmentStatus {
        AttachmentStatus {
            peer: if self.door.is_some() { Peer::Running } else { Peer::Waiting },
            detail: format!("stands on switch {}", self.switch),
            hint: None,
            lack: None,
            features: Vec::new(),
            queues: Vec::new(),
        }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        match up {
            true if self.door.is_none() => self.door = Some(self.port.lend(0, Door)),
            true => {}
            false => self.door = None,
        }
        Ok(())
    }
}
