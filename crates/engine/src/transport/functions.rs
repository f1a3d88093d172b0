//! A device of two PCI functions, each on a socket of its own: vfio-user knows no other way.

use super::vfio_user::VfioUser;
use crate::port::{Attachment, AttachmentStatus, Peer};

/// A NIC and the function that has its memory.
pub struct Functions {
    /// The NIC, for which this stands.
    pub nic: VfioUser,
    /// The one with the memory.
    pub memory: VfioUser,
}

impl Attachment for Functions {
    fn status(&self) -> AttachmentStatus {
        let (status, memory) = (self.nic.status(), self.memory.status());
        let alone = status.peer != Peer::Waiting && memory.peer == Peer::Waiting;
        let hint = alone.then(|| {
            format!("no VMM has the memory device ({}): it is a second -device of the same VM", memory.detail)
        });
        AttachmentStatus { hint: status.hint.or(hint).or(memory.hint), ..status }
    }

    fn set_link(&mut self, up: bool) -> Result<(), String> {
        self.nic.set_link(up)
    }

    fn leave(&mut self) {
        self.nic.leave();
        self.memory.leave();
    }
}
