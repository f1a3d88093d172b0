//! What a message consists of: a command's parts, the answer to it, or why there is none.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sidecore_abi::vfio_user::{command, flags, Header, RegionAccess, DEFAULT_MAX_TRANSFER, MAX_FDS};

use super::super::inbox::MessageHeader;
use crate::mem::Terms;

/// Longest payload of any message.
pub(super) const MAX_PAYLOAD: usize = RegionAccess::SIZE + DEFAULT_MAX_TRANSFER as usize;

/// A command's parts.
pub(super) struct Request<'a> {
    /// What follows the header.
    pub(super) payload: &'a [u8],
    /// The descriptors that came along.
    pub(super) fds: Vec<OwnedFd>,
}

/// Why a command was not done.
#[derive(Debug)]
pub(super) struct Refusal {
    /// For the peer.
    pub(super) errno: Errno,
    /// For the log.
    pub(super) why: String,
    /// Whether the conversation cannot go on after it.
    pub(super) fatal: bool,
}

impl Refusal {
    pub(super) fn new(errno: Errno, why: impl Into<String>) -> Refusal {
        Refusal { errno, why: why.into(), fatal: false }
    }

    pub(super) fn invalid(why: impl Into<String>) -> Refusal {
        Refusal::new(Errno::INVAL, why)
    }

    pub(super) fn fatal(why: impl Into<String>) -> Refusal {
        Refusal { fatal: true, ..Refusal::invalid(why) }
    }
}

/// What a command comes to.
pub(super) type Handled = Result<(), Refusal>;

impl MessageHeader for Header {
    const MAX_FDS: usize = MAX_FDS;

    fn read(bytes: &[u8]) -> Result<Option<(Header, usize)>, String> {
        let Some(header) = Header::parse(bytes) else { return Ok(None) };
        if header.flags & flags::TYPE != flags::COMMAND {
            return Err(format!("a message with flags {:#x} is no command", header.flags));
        }
        let (size, most) = (header.size as usize, Header::SIZE + MAX_PAYLOAD);
        if !(Header::SIZE..=most).contains(&size) {
            let (command, least) = (header.command, Header::SIZE);
            return Err(format!(
                "command {command} says that it has {size} bytes; {least} to {most} are possible"
            ));
        }
        Ok(Some((header, size)))
    }

    /// A message of vhost-user is shorter than a header, and has its version where sizes stand.
    fn is_foreign(bytes: &[u8]) -> bool {
        matches!(bytes, [_, 0, 0, 0, 1 | 9, 0, 0, 0, ..])
    }

    fn gives(header: Option<&Header>, _: &Terms) -> (bool, bool) {
        (header.is_none_or(|header| header.command == command::DMA_MAP), false)
    }
}

/// An answer in the making: room for the header, then the payload.
#[derive(Debug, Default)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    /// A descriptor that goes along.
    pub(super) fd: Option<OwnedFd>,
}

impl Answer {
    /// Starts anew.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(Header::SIZE, 0);
        self.fd = None;
    }

    /// Adds to the payload.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds `size` zero bytes to the payload, to be filled in.
    pub(super) fn space(&mut self, size: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + size, 0);
        self.bytes.get_mut(start..).unwrap_or_default()
    }

    /// Completes the message. An error has no payload and no descriptor.
    pub(super) fn finish(&mut self, request: &Header, error: Option<Errno>) {
        if error.is_some() {
            self.clear();
        }
        let header = Header {
            id: request.id,
            command: request.command,
            size: u32::try_from(self.bytes.len()).unwrap_or(u32::MAX),
            flags: if error.is_some() { flags::REPLY | flags::ERROR } else { flags::REPLY },
            error: error.map_or(0, |errno| errno.raw_os_error().unsigned_abs()),
        };
        // There is room for it from the beginning: `clear`.
        self.bytes.iter_mut().zip(header.bytes()).for_each(|(to, byte)| *to = byte);
    }

    /// The bytes of it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
