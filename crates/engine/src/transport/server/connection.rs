//! A connection with a VMM or a client, which does not wait when it is dropped.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::set_socket_oobinline;

use crate::door;

/// A connection. When it is dropped, the other end is hung up on, and unread messages are left to a door
/// (`door::hang_up`).
#[derive(Debug)]
pub(in crate::transport) struct Connection {
    stream: UnixStream,
    /// Another process goes on with it.
    left: bool,
}

impl Connection {
    /// Another process goes on with it: the other end notices nothing.
    pub(in crate::transport) fn leave(&mut self) {
        self.left = true;
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Connection {
        // Bytes out of band are bytes like others: the system counts them among what waits, and keeps them from readers
        // without this. A kernel that has no such bytes needs it not.
        let _ = set_socket_oobinline(&stream, true);
        Connection { stream, left: false }
    }
}

impl Deref for Connection {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        &self.stream
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.left {
            door::hang_up(&self.stream);
        }
    }
}
