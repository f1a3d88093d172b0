//! A connection with a VMM or a client, which does not wait when it is dropped; and reading without receiving
//! descriptors.
//!
//! Without room for them the kernel drops what it would hand out: it gives its references back, and asks no
//! server of a file, as the close of a descriptor of ours does (FUSE). Only the last reference to a socket
//! that lingers (SO_LINGER) is waited for, which is why a descriptor helper keeps its own until the message
//! has been dropped here (`descriptors::dropped`).

use std::io::IoSliceMut;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvFlags, ReturnFlags};

use crate::sandbox::descriptors;
use crate::util::wait;

/// A connection. When it is dropped, the other end is hung up on, and unread messages are left to a
/// descriptor helper (`descriptors::hang_up`).
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
        // Bytes out of band are bytes like others: the system counts them among what waits, and keeps them
        // from readers without this. A kernel that has no such bytes needs it not.
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

/// What is said of a port whose VMM has left a file behind that is still being closed.
pub(in crate::transport) const CLOSING: &str =
    "a file that its VMM gave is still being closed, because its file server does not answer; the port accepts no VMM until then";

/// Waits until a file is closed; true if it is, false if `wake` is readable first. If it takes longer than a
/// moment, `told` is called once.
pub(in crate::transport) fn await_close(closing: &OwnedFd, wake: impl AsFd, told: impl FnOnce()) -> bool {
    descriptors::dropped(closing);
    let mut fds = [PollFd::new(&wake, PollFlags::IN), PollFd::new(closing, PollFlags::IN)];
    let (mut told, mut time) = (Some(told), Some(Duration::from_millis(100)));
    loop {
        let closed = wait(&mut fds, time).is_err() || !fds[1].revents().is_empty();
        if closed || !fds[0].revents().is_empty() {
            return closed;
        }
        told.take().into_iter().for_each(|told| told());
        time = None;
    }
}
