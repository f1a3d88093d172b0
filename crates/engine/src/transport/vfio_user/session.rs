//! One client's session: what was agreed, what it gave us, and the answers to its commands.
//!
//! Nothing here touches the socket, so that tests and fuzzers can speak to it directly.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use sidecore_abi::vfio_user::{
    command, device, flags, irq, region, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, OneWrite,
    RegionAccess, RegionInfo, SetIrqs, WriteMulti,
};

use super::dma::DmaTable;
use super::irqs;
use super::messages::{self, Answer, Handled, Refusal, Request};
use super::regions::{self, Regions};
use super::version::{self, Agreed};
use crate::device::pci::{self, Command, Index, Interrupts, PciDevice};
use crate::mem::GuestMap;

/// Refusals of one session that are worth a warning; the rest is for whoever debugs.
const WARNINGS: u64 = 16;

/// A device, and the lock that holds while one of its methods runs.
pub(super) type SharedDevice = Arc<Mutex<Box<dyn PciDevice>>>;

/// The device under its lock.
pub(super) fn lock(device: &SharedDevice) -> MutexGuard<'_, Box<dyn PciDevice>> {
    // A panic in the device has ended its conversation; whoever looks at it afterwards may.
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session.
pub(super) struct Session {
    name: String,
    device: SharedDevice,
    interrupts: Arc<Interrupts>,
    regions: Regions,
    memory: DmaTable,
    agreed: Option<Agreed>,
    refused: u64,
    hinted: bool,
}

impl Session {
    /// Begins a session with `device`, which nobody else talks to. `name` is the port's.
    pub(super) fn new(name: &str, device: &SharedDevice) -> Session {
        let mut guard = lock(device);
        Session {
            name: name.to_owned(),
            device: Arc::clone(device),
            interrupts: Arc::clone(guard.interrupts()),
            regions: Regions::new(&mut **guard),
            memory: DmaTable::default(),
            agreed: None,
            refused: 0,
            hinted: false,
        }
    }

    /// Handles a command. The bytes of the answer, if one is due, are in `answer` then.
    ///
    /// # Errors
    /// Why the conversation has to end, after the answer was sent.
    pub(super) fn handle(
        &mut self,
        header: &Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        answer: &mut Answer,
    ) -> (bool, Result<(), String>) {
        answer.clear();
        let result = self.dispatch(header.command, Request { payload, fds }, answer);
        let errno = result.as_ref().err().map(|refusal| refusal.errno);
        answer.finish(header, errno);
        let due = header.flags & flags::NO_REPLY == 0;
        let Err(refusal) = result else { return (due, Ok(())) };
        let command = messages::find(header.command).map_or("?", |message| message.name);
        if refusal.fatal {
            return (due, Err(format!("{command} ({}): {}", header.command, refusal.why)));
        }
        self.refused += 1;
        let (port, number, why) = (&self.name, header.command, &refusal.why);
        if self.refused <= WARNINGS {
            tracing::warn!(%port, command, number, "refused ({}): {why}", refusal.errno);
        } else {
            tracing::debug!(%port, command, number, "refused ({}): {why}", refusal.errno);
        }
        (due, Ok(()))
    }

    fn dispatch(&mut self, code: u16, request: Request, answer: &mut Answer) -> Handled {
        if self.agreed.is_none() && code != command::VERSION {
            return Err(Refusal::fatal("the first command must be VERSION"));
        }
        let message = messages::find(code).ok_or_else(|| Refusal::new(Errno::NOTSUP, "unknown command"))?;
        message.check(&request)?;
        (message.handler)(self, request, answer)
    }

    /// Whether the client and we have agreed on a version.
    pub(super) fn is_agreed(&self) -> bool {
        self.agreed.is_some()
    }

    /// Commands that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// What keeps the device from working, if the operator can do something about it.
    pub(super) fn hint(&self) -> Option<&'static str> {
        self.memory.hint()
    }

    /// The eventfd by which the end of an interrupt is told, if there is one.
    pub(super) fn resample(&self) -> Option<Arc<OwnedFd>> {
        self.interrupts.resample()
    }

    /// That eventfd is readable.
    pub(super) fn resampled(&self, fd: &OwnedFd) {
        let mut count = [0; 8];
        let _ = rustix::io::read(fd, &mut count);
        self.interrupts.unmask();
    }

    pub(super) fn version(&mut self, request: Request, answer: &mut Answer) -> Handled {
        if self.agreed.is_some() {
            return Err(Refusal::fatal("it has been agreed upon already"));
        }
        let (agreed, reply) = version::agree(request.payload)?;
        self.agreed = Some(agreed);
        answer.put(&reply);
        Ok(())
    }

    pub(super) fn dma_map(&mut self, request: Request, _: &mut Answer) -> Handled {
        let ask = DmaMap::parse(request.payload).unwrap_or_default();
        at_least(ask.argsz, DmaMap::SIZE)?;
        let file = request.fds.into_iter().next();
        if file.is_none() {
            tracing::debug!(port = %self.name, address = ask.address, size = ask.size, "memory without a file");
        }
        if let Some(map) = self.memory.add(&ask, file)? {
            lock(&self.device).dma_changed(map);
        }
        Ok(())
    }

    pub(super) fn dma_unmap(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = DmaUnmap::parse(request.payload).unwrap_or_default();
        at_least(ask.argsz, DmaUnmap::SIZE)?;
        if let Some([old, new]) = self.memory.remove(&ask)? {
            self.swap(old, new);
        }
        answer.put(request.payload);
        Ok(())
    }

    /// Puts the device on `new` and sees to it that `old` is gone.
    fn swap(&self, old: Arc<GuestMap>, new: Arc<GuestMap>) {
        lock(&self.device).dma_changed(new);
        // We hold the last reference, and what it alone mapped goes with it. Anything else is a device that
        // does not keep its word; its guest's memory stays mapped, which harms nobody but is worth knowing.
        if Arc::strong_count(&old) > 1 {
            tracing::error!(port = %self.name, "the device still holds memory that the VMM took away");
        }
    }

    pub(super) fn device_info(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = DeviceInfo::parse(request.payload).unwrap_or_default();
        at_least(ask.argsz, DeviceInfo::SIZE)?;
        let info = DeviceInfo {
            argsz: size_of_reply(DeviceInfo::SIZE),
            flags: device::PCI | device::RESET,
            regions: region::COUNT,
            irqs: irq::COUNT,
        };
        answer.put(&info.bytes());
        Ok(())
    }

    pub(super) fn region_info(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = RegionInfo::parse(request.payload).unwrap_or_default();
        at_least(ask.argsz, RegionInfo::SIZE)?;
        self.regions.describe(&ask, self.agreed.is_some_and(|agreed| agreed.takes_fds), answer)
    }

    pub(super) fn irq_info(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = IrqInfo::parse(request.payload).unwrap_or_default();
        at_least(ask.argsz, IrqInfo::SIZE)?;
        let index = Index::new(ask.index);
        let index = index.ok_or_else(|| Refusal::invalid(format!("no interrupts of kind {}", ask.index)))?;
        let count = u32::try_from(self.interrupts.count(index)).unwrap_or(0);
        let info = IrqInfo {
            argsz: size_of_reply(IrqInfo::SIZE),
            flags: irqs::info(index),
            index: ask.index,
            count,
        };
        answer.put(&info.bytes());
        Ok(())
    }

    pub(super) fn set_irqs(&mut self, request: Request, _: &mut Answer) -> Handled {
        let set = SetIrqs::parse(request.payload).unwrap_or_default();
        at_least(set.argsz, SetIrqs::SIZE)?;
        irqs::set(&self.interrupts, &set, &request.payload[SetIrqs::SIZE..], request.fds)
    }

    pub(super) fn region_read(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let access = RegionAccess::parse(request.payload).unwrap_or_default();
        let most = self.agreed.map_or(0, |agreed| agreed.max_transfer);
        if access.count > most {
            return Err(Refusal::invalid(format!("{} bytes in one read; {most} were agreed", access.count)));
        }
        self.regions.check(&access)?;
        answer.put(request.payload);
        regions::read(&mut **lock(&self.device), &access, answer.space(access.count as usize));
        Ok(())
    }

    pub(super) fn region_write(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let access = RegionAccess::parse(request.payload).unwrap_or_default();
        let (head, data) = request.payload.split_at(RegionAccess::SIZE);
        if data.len() != access.count as usize {
            return Err(Refusal::invalid(format!("{} bytes came; it says {}", data.len(), access.count)));
        }
        self.regions.check(&access)?;
        regions::write(&mut **lock(&self.device), &access, data);
        self.look_at_memory();
        answer.put(head);
        Ok(())
    }

    pub(super) fn write_multi(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let WriteMulti { count } = WriteMulti::parse(request.payload).unwrap_or_default();
        let writes = &request.payload[WriteMulti::SIZE..];
        if count.checked_mul(OneWrite::SIZE as u64) != Some(writes.len() as u64) {
            return Err(Refusal::invalid(format!("{} bytes came for {count} writes", writes.len())));
        }
        let writes = || writes.chunks_exact(OneWrite::SIZE).filter_map(OneWrite::parse);
        let access =
            |one: &OneWrite| RegionAccess { offset: one.offset, region: one.region, count: one.count };
        // All of them are looked at before the first is done.
        for one in writes() {
            if one.count > 8 {
                return Err(Refusal::invalid(format!("{} bytes in a write of at most 8", one.count)));
            }
            self.regions.check(&access(&one))?;
        }
        let mut device = lock(&self.device);
        for one in writes() {
            regions::write(&mut **device, &access(&one), &one.data.to_le_bytes()[..one.count as usize]);
        }
        drop(device);
        self.look_at_memory();
        answer.put(&WriteMulti { count }.bytes());
        Ok(())
    }

    pub(super) fn reset(&mut self, _: Request, _: &mut Answer) -> Handled {
        pci::reset(&mut **lock(&self.device));
        Ok(())
    }

    pub(super) fn not_offered(&mut self, _: Request, _: &mut Answer) -> Handled {
        Err(Refusal::new(Errno::NOTSUP, "we do not offer it"))
    }

    pub(super) fn wrong_direction(&mut self, _: Request, _: &mut Answer) -> Handled {
        Err(Refusal::new(Errno::NOTSUP, "only servers send it"))
    }

    /// Tells the operator, once, that a device was turned on that can reach nothing.
    fn look_at_memory(&mut self) {
        if self.hinted {
            return;
        }
        let Some(hint) = self.hint() else { return };
        if lock(&self.device).config().command().has(Command::MASTER) {
            tracing::error!(port = %self.name, "the device cannot work: {hint}");
            self.hinted = true;
        }
    }
}

impl Drop for Session {
    /// The client is gone, and with it all that it gave us.
    fn drop(&mut self) {
        let mut device = lock(&self.device);
        device.config().reset();
        self.interrupts.disconnect();
        device.detached();
        device.dma_changed(Arc::default());
    }
}

fn at_least(argsz: u32, size: usize) -> Handled {
    if (argsz as usize) < size {
        return Err(Refusal::invalid(format!("argsz is {argsz}; {size} at least are needed")));
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "a few dozen bytes")]
const fn size_of_reply(size: usize) -> u32 {
    size as u32
}
