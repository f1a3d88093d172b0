//! Reading from a socket whose other end may send descriptors, and receiving none.
//!
//! Without room for them the kernel drops what it would hand out: it gives its references back, and asks no server of a
//! file, as the close of a descriptor of ours does (FUSE). Only the last reference to a socket that lingers (SO_LINGER)
//! is waited for, which is why a door keeps its own until the message has been dropped here (`door::Closing`).

use std::io::IoSliceMut;
use std::os::unix::net::UnixStream;

use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvFlags, ReturnFlags};

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
