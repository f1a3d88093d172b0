//! Descriptors that go along with bytes on a Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{retry_on_intr, Errno, Result};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors that the kernel lets one message carry (SCM_MAX_FD).
pub(crate) const MAX_FDS: usize = 253;

/// Sends bytes, and descriptors with the first of them; how many bytes went.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd], flags: SendFlags) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    // A wait with a limit is not begun again by the system (signal(7)), also where it was no signal that interrupted it.
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL))
}

/// What was received.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) bytes: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// There was no room for all bytes of the record, or for all descriptors.
    pub(crate) cut: bool,
}

/// Receives bytes, and with them `most` descriptors at most: there is no room for more.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8], most: usize, flags: RecvFlags) -> Result<Got> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let room = rustix::cmsg_space!(ScmRights(most)).min(space.len());
    let mut control = RecvAncillaryBuffer::new(space.get_mut(..room).unwrap_or_default());
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags))?;
    let rights = |part| match part {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    };
    let fds = control.drain().filter_map(rights).flatten().collect();
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Got { bytes: got.bytes, fds, cut })
}
