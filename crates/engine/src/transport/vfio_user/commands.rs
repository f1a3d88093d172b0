//! The protocol as a table: every command with the payload sizes and the number of descriptors that it may
//! have, and what a session does about it.
//!
//! After QEMU's `docs/interop/vfio-user.rst`. Commands that only servers send, and those of features that we
//! do not offer, are in the table too, so that their refusal has a reason.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sidecore_abi::vfio_user::{
    command, flags, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, OneWrite, RegionAccess, RegionInfo,
    SetIrqs, Version, WriteMulti, MAX_FDS,
};

use super::messages::{Answer, Handled, Refusal, Request, MAX_PAYLOAD};
use super::session::Session;

/// Longest JSON text of VERSION that we read.
const MAX_JSON: usize = 4096;
/// Most writes in a REGION_WRITE_MULTI.
const MAX_WRITES: usize = 1024;
/// Most booleans in a DEVICE_SET_IRQS: as many as MSI-X has vectors.
const MAX_BOOLS: usize = 2048;

/// A command.
struct Message {
    code: u16,
    name: &'static str,
    /// Bytes of payload: least and most.
    sizes: (usize, usize),
    /// Most descriptors.
    fds: usize,
    /// The function that answers.
    handler: fn(&mut Session, Request, &mut Answer) -> Handled,
}

/// A payload of one structure and nothing else.
const fn just(size: usize) -> (usize, usize) {
    (size, size)
}

/// Any payload: the command is refused anyway.
const ANY: (usize, usize) = (0, MAX_PAYLOAD);

macro_rules! table {
    ($($name:ident $sizes:expr, $fds:expr => $handler:ident;)*) => {
        &[$(Message {
            code: command::$name,
            name: stringify!($name),
            sizes: $sizes,
            fds: $fds,
            handler: Session::$handler,
        }),*]
    };
}

const TABLE: &[Message] = table! {
    VERSION (Version::SIZE, Version::SIZE + MAX_JSON), 0 => version;
    DMA_MAP just(DmaMap::SIZE), 1 => dma_map;
    DMA_UNMAP just(DmaUnmap::SIZE), 0 => dma_unmap;
    DEVICE_GET_INFO just(DeviceInfo::SIZE), 0 => device_info;
    DEVICE_GET_REGION_INFO just(RegionInfo::SIZE), 0 => region_info;
    DEVICE_GET_REGION_IO_FDS ANY, 0 => not_offered;
    DEVICE_GET_IRQ_INFO just(IrqInfo::SIZE), 0 => irq_info;
    DEVICE_SET_IRQS (SetIrqs::SIZE, SetIrqs::SIZE + MAX_BOOLS), MAX_FDS => set_irqs;
    REGION_READ just(RegionAccess::SIZE), 0 => region_read;
    REGION_WRITE (RegionAccess::SIZE, MAX_PAYLOAD), 0 => region_write;
    DMA_READ ANY, 0 => not_offered;
    DMA_WRITE ANY, 0 => not_offered;
    DEVICE_RESET just(0), 0 => reset;
    DIRTY_PAGES ANY, 0 => not_offered;
    REGION_WRITE_MULTI (WriteMulti::SIZE, WriteMulti::SIZE + MAX_WRITES * OneWrite::SIZE), 0 => write_multi;
    DEVICE_FEATURE ANY, 0 => not_offered;
    MIG_DATA_READ ANY, 0 => not_offered;
    MIG_DATA_WRITE ANY, 0 => not_offered;
};

/// Whether a command can go on: the conversation ends behind one that cannot, once its answer was sent.
pub(super) type Outcome = Result<(), String>;

/// Has `session` handle a command. The bytes of the answer are in `answer` then; the first value says whether
/// one is due.
pub(super) fn handle(
    session: &mut Session,
    header: &Header,
    payload: &[u8],
    fds: Vec<OwnedFd>,
    answer: &mut Answer,
) -> (bool, Outcome) {
    answer.clear();
    let message = find(header.command);
    let result = match message {
        _ if session.agreed.is_none() && header.command != command::VERSION => {
            Err(Refusal::fatal("the first command must be VERSION"))
        }
        None => Err(Refusal::new(Errno::NOTSUP, "unknown command")),
        Some(message) => {
            let request = Request { payload, fds };
            message.check(&request).and_then(|()| (message.handler)(session, request, answer))
        }
    };
    session.handled += 1;
    finish(session, header, result, answer)
}

/// Answers a command of which it is known already `why` it cannot be done.
pub(super) fn refuse(
    session: &mut Session,
    header: &Header,
    why: Refusal,
    answer: &mut Answer,
) -> (bool, Outcome) {
    answer.clear();
    let fatal = session.agreed.is_none();
    finish(session, header, Err(Refusal { fatal, ..why }), answer)
}

fn finish(session: &mut Session, header: &Header, result: Handled, answer: &mut Answer) -> (bool, Outcome) {
    answer.finish(header, result.as_ref().err().map(|refusal| refusal.errno));
    let due = header.flags & flags::NO_REPLY == 0;
    let Err(refusal) = result else { return (due, Ok(())) };
    let name = find(header.command).map_or("?", |message| message.name);
    if refusal.fatal {
        return (due, Err(format!("{name} ({}): {}", header.command, refusal.why)));
    }
    session.count_refusal(name, header.command, &refusal);
    (due, Ok(()))
}

/// The command with this number.
fn find(code: u16) -> Option<&'static Message> {
    TABLE.iter().find(|message| message.code == code)
}

impl Message {
    /// Whether a request has a size and a number of descriptors that the command may have.
    fn check(&self, request: &Request) -> Handled {
        let (size, (least, most)) = (request.payload.len(), self.sizes);
        if size < least || size > most {
            return Err(Refusal::invalid(format!("payload of {size} bytes; {least} to {most} are allowed")));
        }
        // The structures of linux/vfio.h begin with their length.
        if (command::DMA_MAP..=command::DEVICE_SET_IRQS).contains(&self.code) {
            let argsz = request.payload.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            if (argsz as usize) < least {
                return Err(Refusal::invalid(format!("argsz is {argsz}; {least} at least are needed")));
            }
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
