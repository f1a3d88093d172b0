//! A connection with a VMM or a client, which does not wait when it is dropped; and reading without receiving descriptors.
//!
//! Without room for them the kernel drops what it would hand out: it gives its references back, and asks no server of a
//! file, as the close of a descriptor of ours does (FUSE). Only the last reference to a socket that lingers (SO_LINGER)
//! is waited for, which is why a descriptor helper keeps its own until the message has been dropped here (`descriptors::dropped`).

use std::io::IoSliceMut;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvFlags, ReturnFlags};

use crate::sandbox::descriptors;

/// A connection. When it is dropped, the other end is hung up on, and unread messages are left to a descriptor helper
/// (`descriptors::hang_up`).
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
            descriptors::hang_up(&self.stream);
        }
    }
}

/// What was read.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Got {
    pub(in crate::transport) bytes: usize,
    /// Descriptors came along, and are lost; or with a look (MSG_PEEK), are still there.
    pub(in crate::transport) with_fds: bool,
}

/// Reads some bytes.
pub(in crate::transport) fn receive(
    stream: &UnixStream,
    into: &mut [u8],
    flags: RecvFlags,
) -> rustix::io::Result<Got> {
    let got = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut RecvAncillaryBuffer::default(), flags)?;
    Ok(Got { bytes: got.bytes, with_fds: got.flags.contains(ReturnFlags::CTRUNC) })
}
