//! Reading from a socket whose other end may send descriptors, and receiving none.
//!
//! Without room for them the kernel drops what it would hand out: it gives its references back and waits for nobody. (A
//! process that closes a descriptor of its own may have to wait for who serves the file.)

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
