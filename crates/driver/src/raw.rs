//! vhost-user messages as bytes, with no opinion about their sense: any request number, any claimed
//! size, any payload, any number of file descriptors. The orderly conversation is built on it in
//! [`crate::frontend`], the disorderly ones in [`crate::lying`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Bytes of a message's header: request, flags and payload size, each a u32.
pub const HEADER: usize = 12;
/// Protocol version, the low two bits of the flags.
pub const VERSION: u32 = 1;
/// The message is an answer.
pub const FLAG_REPLY: u32 = 4;
/// The sender wants an acknowledgement.
pub const FLAG_NEED_REPLY: u32 = 8;
/// Most file descriptors that one message is sent with here.
pub const MAX_FDS: usize = 32;

/// Request numbers, front end to backend.
#[allow(missing_docs)] // The names are the specification's own.
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// One message. `size` is what the header claims; it need not be the payload's length.
#[derive(Debug)]
pub struct Message {
    /// Request number.
    pub request: u32,
    /// Version and `FLAG_*`.
    pub flags: u32,
    /// Claimed payload size in bytes.
    pub size: u32,
    /// The payload that is really there.
    pub payload: Vec<u8>,
    /// File descriptors that travel with it.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// A well-formed message with this payload.
    pub fn new(request: u32, payload: Vec<u8>) -> Self {
        let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Self { request, flags: VERSION, size, payload, fds: Vec::new() }
    }

    /// A well-formed message of little-endian 64-bit words.
    pub fn words(request: u32, words: &[u64]) -> Self {
        Self::new(request, words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    /// A well-formed message of two little-endian 32-bit words: a vring's state.
    pub fn state(request: u32, index: u32, value: u32) -> Self {
        Self::words(request, &[u64::from(index) | u64::from(value) << 32])
    }

    /// Adds a file descriptor, by duplicating it.
    pub fn with_fd(mut self, fd: impl AsFd) -> io::Result<Self> {
        self.fds.push(fd.as_fd().try_clone_to_owned()?);
        Ok(self)
    }

    /// Claims another payload size.
    #[must_use]
    pub fn claiming(mut self, size: u32) -> Self {
        self.size = size;
        self
    }

    /// Sets further flags.
    #[must_use]
    pub fn flagged(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// The payload's word at `index`, counted in 64-bit words.
    pub fn word(&self, index: usize) -> Option<u64> {
        let bytes = self.payload.get(index * 8..index * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        for word in [self.request, self.flags, self.size] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Sends header, payload and file descriptors.
    pub fn send(&self, socket: &UnixStream) -> io::Result<()> {
        send_bytes(socket, &self.bytes(), &self.fds)
    }

    /// Receives one message. Blocks as long as the socket's read timeout says.
    pub fn receive(socket: &UnixStream) -> io::Result<Self> {
        let mut header = [0; HEADER];
        let mut fds = Vec::new();
        receive_exact(socket, &mut header, &mut fds)?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let size = word(8);
        if size > 0x1000 {
            return Err(io::Error::other(format!("answer claims {size} bytes of payload")));
        }
        let mut payload = vec![0; size as usize];
        receive_exact(socket, &mut payload, &mut fds)?;
        Ok(Self { request: word(0), flags: word(4), size, payload, fds })
    }
}

/// Sends any bytes with any file descriptors (at most [`MAX_FDS`]).
pub fn send_bytes(socket: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other(format!("{} file descriptors do not fit in one message", fds.len())));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut rest = bytes.get(sent..).unwrap_or_default();
    while !rest.is_empty() {
        let mut none = SendAncillaryBuffer::default();
        let sent = sendmsg(socket, &[IoSlice::new(rest)], &mut none, SendFlags::NOSIGNAL)?;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Fills `into`, collecting file descriptors on the way.
fn receive_exact(socket: &UnixStream, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut part = [IoSliceMut::new(&mut into[filled..])];
        let got = match recvmsg(socket, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the backend closed the connection"));
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        filled += got;
    }
    Ok(())
}
