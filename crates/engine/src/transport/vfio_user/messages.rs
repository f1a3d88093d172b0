//! The protocol as a table: every command with the payload sizes and the number of descriptors that it may
//! have, and who answers it.
//!
//! After QEMU's `docs/interop/vfio-user.rst`. Commands that only servers send, and those of features that we
//! do not offer, are in the table too, so that their refusal has a reason.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sidecore_abi::vfio_user::{
    command, flags, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, OneWrite, RegionAccess, RegionInfo,
    SetIrqs, Version, WriteMulti, DEFAULT_MAX_TRANSFER, MAX_FDS,
};

use super::session::Session;

/// Longest JSON text of VERSION that we read.
const MAX_JSON: usize = 4096;
/// Most writes in a REGION_WRITE_MULTI.
const MAX_WRITES: usize = 1024;
/// Most booleans in a DEVICE_SET_IRQS: as many as MSI-X has vectors.
const MAX_BOOLS: usize = 2048;
/// Longest payload of any message.
const MAX_PAYLOAD: usize = RegionAccess::SIZE + DEFAULT_MAX_TRANSFER as usize;

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

/// A command.
pub(super) struct Message {
    pub(super) code: u16,
    pub(super) name: &'static str,
    /// Bytes of payload: least and most.
    sizes: (usize, usize),
    /// Most descriptors.
    fds: usize,
    /// Who answers.
    pub(super) handler: fn(&mut Session, Request, &mut Answer) -> Handled,
}

const fn message(
    code: u16,
    name: &'static str,
    sizes: (usize, usize),
    fds: usize,
    handler: fn(&mut Session, Request, &mut Answer) -> Handled,
) -> Message {
    Message { code, name, sizes, fds, handler }
}

/// A payload of one structure and nothing else.
const fn just(size: usize) -> (usize, usize) {
    (size, size)
}

/// Any payload: the command is refused anyway.
const ANY: (usize, usize) = (0, MAX_PAYLOAD);

const TABLE: &[Message] = &[
    message(command::VERSION, "VERSION", (Version::SIZE, Version::SIZE + MAX_JSON), 0, Session::version),
    message(command::DMA_MAP, "DMA_MAP", just(DmaMap::SIZE), 1, Session::dma_map),
    message(command::DMA_UNMAP, "DMA_UNMAP", just(DmaUnmap::SIZE), 0, Session::dma_unmap),
    message(command::DEVICE_GET_INFO, "DEVICE_GET_INFO", just(DeviceInfo::SIZE), 0, Session::device_info),
    message(
        command::DEVICE_GET_REGION_INFO,
        "DEVICE_GET_REGION_INFO",
        just(RegionInfo::SIZE),
        0,
        Session::region_info,
    ),
    message(
        command::DEVICE_GET_REGION_IO_FDS,
        "DEVICE_GET_REGION_IO_FDS",
        just(IrqInfo::SIZE),
        0,
        Session::not_offered,
    ),
    message(command::DEVICE_GET_IRQ_INFO, "DEVICE_GET_IRQ_INFO", just(IrqInfo::SIZE), 0, Session::irq_info),
    message(
        command::DEVICE_SET_IRQS,
        "DEVICE_SET_IRQS",
        (SetIrqs::SIZE, SetIrqs::SIZE + MAX_BOOLS),
        MAX_FDS,
        Session::set_irqs,
    ),
    message(command::REGION_READ, "REGION_READ", just(RegionAccess::SIZE), 0, Session::region_read),
    message(
        command::REGION_WRITE,
        "REGION_WRITE",
        (RegionAccess::SIZE, MAX_PAYLOAD),
        0,
        Session::region_write,
    ),
    message(command::DMA_READ, "DMA_READ", ANY, 0, Session::wrong_direction),
    message(command::DMA_WRITE, "DMA_WRITE", ANY, 0, Session::wrong_direction),
    message(command::DEVICE_RESET, "DEVICE_RESET", just(0), 0, Session::reset),
    message(command::DIRTY_PAGES, "DIRTY_PAGES", ANY, 0, Session::not_offered),
    message(
        command::REGION_WRITE_MULTI,
        "REGION_WRITE_MULTI",
        (WriteMulti::SIZE, WriteMulti::SIZE + MAX_WRITES * OneWrite::SIZE),
        0,
        Session::write_multi,
    ),
    message(command::DEVICE_FEATURE, "DEVICE_FEATURE", ANY, 0, Session::not_offered),
    message(command::MIG_DATA_READ, "MIG_DATA_READ", ANY, 0, Session::not_offered),
    message(command::MIG_DATA_WRITE, "MIG_DATA_WRITE", ANY, 0, Session::not_offered),
];

/// The command with this number.
pub(super) fn find(code: u16) -> Option<&'static Message> {
    TABLE.iter().find(|message| message.code == code)
}

impl Message {
    /// Whether a request has a size and a number of descriptors that the command may have.
    pub(super) fn check(&self, request: &Request) -> Handled {
        let (size, (least, most)) = (request.payload.len(), self.sizes);
        if size < least || size > most {
            return Err(Refusal::invalid(format!("payload of {size} bytes; {least} to {most} are allowed")));
        }
        if request.fds.len() > self.fds {
            let (got, most) = (request.fds.len(), self.fds);
            return Err(Refusal::invalid(format!(
                "{got} descriptors came along; {most} at most belong to it"
            )));
        }
        Ok(())
    }
}

/// The length of the payload that follows `header`, if what follows can be a message at all.
///
/// # Errors
/// What is wrong. Nobody can tell then where the next message begins.
pub(super) fn payload_size(header: &Header) -> Result<usize, String> {
    if header.flags & flags::TYPE != flags::COMMAND {
        return Err(format!("a message with flags {:#x} is no command", header.flags));
    }
    let size = (header.size as usize).checked_sub(Header::SIZE);
    match size {
        Some(size) if size <= MAX_PAYLOAD => Ok(size),
        _ => Err(format!(
            "command {} says that it has {} bytes; {} to {} are possible",
            header.command,
            header.size,
            Header::SIZE,
            Header::SIZE + MAX_PAYLOAD
        )),
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
