//! A router's port on a switch has no device, nor has an interface of a group. Frames pass it on their walk
//! from node to node (`graph/walk`); this module gives the port its link.

use std::sync::Arc;

use crate::core::Lease;
use crate::observe::account::{DropReason, Outcome};
use crate::packet::Batch;
use crate::port::{Attachment, AttachmentStatus, EgressQueue, Peer, Port};

/// A port between two nodes.
pub struct Gateway {
    port: Arc<Port>,
    detail: String,
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
    /// Gives `port` its link; `detail` says what it is, for people.
    pub fn open(port: &Arc<Port>, detail: String) -> Gateway {
        Gateway { port: Arc::clone(port), detail, link: Some(port.lend(0, NoQueue)) }
    }
}

impl Attachment for Gateway {
    fn status(&self) -> AttachmentStatus {
        AttachmentStatus {
            peer: if self.link.is_some() { Peer::Running } else { Peer::Waiting },
            detail: self.detail.clone(),
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
