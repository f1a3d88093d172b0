//! A router's port on a switch has no device. Frames pass it on their walk from node to node (`graph/walk`); this
//! module gives the port its link.

use std::sync::Arc;

use crate::account::{DropReason, Outcome};
use crate::core::Lease;
use crate::packet::Batch;
use crate::port::{Attachment, AttachmentStatus, EgressQueue, Peer, Port};

/// A port between a router and a switch.
pub struct Gateway {
    port: Arc<Port>,
    switch: String,
    link: Option<Lease<NoQueue>>,
}

/// An egress queue that no frame reaches: the walk takes those for its port another way.
struct NoQueue;

impl EgressQueue for NoQueue {
    fn send(&mut self, _: &Batch, picks: &[u16], outcome: &mut Outcome) {
        outcome.dropped_all(picks, DropReason::Reentry);
    }
}

impl Gateway {
    /// Gives `port`, which stands on the switch of this name, its link.
    pub fn open(port: &Arc<Port>, switch: &str) -> Gateway {
        Gateway { port: Arc::clone(port), switch: switch.to_owned(), link: Some(port.lend(0, NoQueue)) }
    }
}

impl Attachment for Gateway {
    fn status(&self) -> AttachmentStatus {
        AttachmentStatus {
            peer: if self.link.is_some() { Peer::Running } else { Peer::Waiting },
            detail: format!("stands on switch {}", self.switch),
            hint: None,
            lack: None,
            features: Vec::new(),
            queues: Vec::new(),
        }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        match up {
            true if self.link.is_none() => self.link = Some(self.port.lend(0, NoQueue)),
            true => {}
            false => self.link = None,
        }
        Ok(())
    }
}
