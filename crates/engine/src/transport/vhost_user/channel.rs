//! The way on which a back end speaks by itself (SET_BACKEND_REQ_FD), here to say that the configuration
//! space has changed.
//!
//! It is a socket of the VMM's choice. So nothing is read from it, what is written is the same few bytes for
//! every peer, a VMM that does not read is not waited for, and the end is that of a connection in which
//! anything may wait.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::net::{send, sockopt::socket_type, SendFlags};

use crate::sandbox::descriptors;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG: a header of version 1 without a payload.
const CONFIG_CHANGED: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// Descriptors that came with a message. Sockets may be among them, in which anything may wait: those that
/// the message does not take are hung up on, whatever is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Descriptors(pub(super) Vec<OwnedFd>);

impl Descriptors {
    /// Whether there are sockets among them.
    pub(super) fn has_sockets(&self) -> bool {
        self.0.iter().any(|fd| socket_type(fd).is_ok())
    }

    /// The only one.
    ///
    /// # Errors
    /// How many there are instead.
    pub(super) fn only(mut self) -> Result<OwnedFd, String> {
        let count = self.0.len();
        let only = if count == 1 { self.0.pop() } else { None };
        only.ok_or_else(|| format!("{count} descriptors came along instead of one"))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.0.iter().filter(|fd| socket_type(fd).is_ok()).for_each(descriptors::hang_up);
    }
}

/// The channel, if the VMM has given one.
#[derive(Debug, Default)]
pub(super) struct Channel(Mutex<Option<OwnedFd>>);

impl Channel {
    /// The VMM gives another one, or is gone.
    pub(super) fn set(&self, socket: Option<OwnedFd>) {
        let old = std::mem::replace(&mut *crate::lock(&self.0), socket);
        old.iter().for_each(descriptors::hang_up);
    }

    /// Tells the VMM that the configuration space has changed. False: it does not listen.
    pub(super) fn config_changed(&self) -> bool {
        let socket = crate::lock(&self.0);
        let Some(socket) = &*socket else { return false };
        match send(socket, &CONFIG_CHANGED, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => sent == CONFIG_CHANGED.len(),
            // Full of what says the same: it is still to be read.
            Err(e) => e == Errno::AGAIN,
        }
    }
}
