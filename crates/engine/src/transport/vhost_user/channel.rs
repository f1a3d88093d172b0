//! The way on which a back end speaks by itself (SET_BACKEND_REQ_FD), here to say that the configuration space has changed.
//!
//! It is a socket of the VMM's choice. So nothing is read from it, what is written is the same few bytes whoever has the other
//! end, a VMM that does not read is not waited for, and the end is that of a connection in which anything may wait.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{send, SendFlags};

use crate::door;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG: a header of version 1 without a payload.
const CONFIG_CHANGED: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// The channel, if the VMM has given one.
#[derive(Debug, Default)]
pub(super) struct Channel(Mutex<Option<OwnedFd>>);

impl Channel {
    /// The VMM gives another one, or is gone.
    pub(super) fn set(&self, socket: Option<OwnedFd>) {
        let old = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), socket);
        old.iter().for_each(door::hang_up);
    }

    /// Tells the VMM that the configuration space has changed. False: it does not listen.
    pub(super) fn config_changed(&self) -> bool {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = &*socket else { return false };
        match send(socket, &CONFIG_CHANGED, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => sent == CONFIG_CHANGED.len(),
            // Full of what says the same: it is still to be read.
            Err(e) => e == Errno::AGAIN,
        }
    }
}
