//! Descriptors that go along with bytes on a Unix socket, and the records in which processes of ours speak to
//! each other.
//!
//! A record (SOCK_SEQPACKET) has two words, a text and descriptors. Broker, descriptor helper and holder have
//! records of this one form; what a first word means is for each of them to say.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{retry_on_intr, Errno, Result};
use rustix::net::sockopt::{set_socket_timeout, socket_domain, socket_type, Timeout};
use rustix::net::{
    recvmsg, sendmsg, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType,
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
    // A wait with a limit is not begun again by the system (signal(7)), also where it was no signal that
    // interrupted it.
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL))
}

/// What was received.
pub(crate) struct Got {
    pub(crate) bytes: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// There was no room for all bytes of the record, or for all descriptors.
    pub(crate) cut: bool,
    /// There was no room for all descriptors.
    pub(crate) fds_cut: bool,
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
    Ok(Got { bytes: got.bytes, fds, cut, fds_cut: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// Longest text of a record: a path of the longest kind, quoted.
pub(crate) const MAX_TEXT: usize = 8192;
/// Bytes of the two words in front of it.
const WORDS: usize = 16;

/// A record, as it came. What is missing of its words is zero.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) what: u64,
    pub(crate) number: u64,
    pub(crate) text: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// There was no room for all of the text, or for all descriptors.
    pub(crate) cut: bool,
}

/// Sends a record.
pub(crate) fn say(
    socket: impl AsFd,
    what: u64,
    number: u64,
    text: &[u8],
    fds: &[BorrowedFd],
) -> io::Result<()> {
    if text.len() > MAX_TEXT {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
    }
    let bytes = [&what.to_ne_bytes(), &number.to_ne_bytes(), text].concat();
    send(socket, &bytes, fds, SendFlags::empty())?;
    Ok(())
}

/// The next record, with `most` descriptors at most. `UnexpectedEof`: the other end is gone.
pub(crate) fn hear(socket: impl AsFd, most: usize) -> io::Result<Record> {
    let mut bytes = [0; WORDS + MAX_TEXT];
    let got = receive(socket, &mut bytes, most, RecvFlags::empty())?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let [what, number] = [0, 8].map(|at| {
        let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
        word.copied().map_or(0, u64::from_ne_bytes)
    });
    let text = bytes.get(WORDS..got.bytes).unwrap_or_default().to_vec();
    Ok(Record { what, number, text, fds: got.fds, cut: got.cut })
}

/// Has nothing wait for the other end of `socket` for longer than `most`.
pub(crate) fn limit(socket: &OwnedFd, most: Duration) -> Result<()> {
    set_socket_timeout(socket, Timeout::Recv, Some(most))?;
    set_socket_timeout(socket, Timeout::Send, Some(most))
}

/// Whether `socket` is one on which records come, from a process of this host.
pub(crate) fn is_for_records(socket: impl AsFd) -> bool {
    socket_domain(&socket) == Ok(AddressFamily::UNIX) && socket_type(&socket) == Ok(SocketType::SEQPACKET)
}
