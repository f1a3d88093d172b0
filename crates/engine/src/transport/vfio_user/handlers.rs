//! What a session does about each command.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use sidecore_abi::vfio_user::{
    device, irq, region, DeviceInfo, DmaMap, DmaUnmap, IrqInfo, OneWrite, RegionAccess, RegionInfo, SetIrqs,
    WriteMulti,
};

use super::irqs;
use super::keep::key;
use super::messages::{Answer, Handled, Refusal, Request};
use super::regions;
use super::session::Session;
use super::version;
use crate::device::pci::{self, Index};
use crate::mem::GuestMap;

impl Session {
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
        let file = request.fds.into_iter().next();
        if file.is_none() {
            tracing::debug!(port = %self.name, address = ask.address, size = ask.size, "memory without a file");
        }
        let ours = file.as_ref().filter(|_| self.keep.is_some()).map(OwnedFd::try_clone);
        let name = self.memory.next;
        if self.memory.add(&ask, file)? {
            if let Some(file) = ours {
                self.hold(key::memory(name), file);
            }
            self.changes += 1;
            crate::lock(&self.device).dma_changed(Arc::clone(&self.memory.map));
        }
        Ok(())
    }

    pub(super) fn dma_unmap(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = DmaUnmap::parse(request.payload).unwrap_or_default();
        let before: Vec<u32> = self.keep.iter().flat_map(|_| self.memory.files()).collect();
        if let Some([old, new]) = self.memory.remove(&ask)? {
            let left: BTreeSet<u32> = self.keep.iter().flat_map(|_| self.memory.files()).collect();
            let gone = before.into_iter().filter(|name| !left.contains(name));
            self.orphans.extend(gone.map(key::memory));
            self.changes += old.len().saturating_sub(new.len()).max(1);
            self.swap(old, new);
        }
        answer.put(request.payload);
        Ok(())
    }

    /// Puts the device on `new` and sees to it that `old` is gone.
    fn swap(&self, old: Arc<GuestMap>, new: Arc<GuestMap>) {
        crate::lock(&self.device).dma_changed(new);
        // We hold the last reference, and what it alone mapped goes with it. Anything else is a device that
        // does not keep its word; its guest's memory stays mapped, which does no harm but is worth knowing.
        if Arc::strong_count(&old) > 1 {
            tracing::error!(port = %self.name, "the device still holds memory that the VMM took away");
        }
    }

    pub(super) fn device_info(&mut self, _: Request, answer: &mut Answer) -> Handled {
        let info = DeviceInfo {
            argsz: DeviceInfo::LEN,
            flags: device::PCI | device::RESET,
            regions: region::COUNT,
            irqs: irq::COUNT,
        };
        answer.put(&info.bytes());
        Ok(())
    }

    pub(super) fn region_info(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = RegionInfo::parse(request.payload).unwrap_or_default();
        self.regions.describe(&ask, self.agreed.is_some_and(|agreed| agreed.takes_fds), answer)
    }

    pub(super) fn irq_info(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let ask = IrqInfo::parse(request.payload).unwrap_or_default();
        let index = Index::new(ask.index);
        let index = index.ok_or_else(|| Refusal::invalid(format!("no interrupts of kind {}", ask.index)))?;
        let count = u32::try_from(self.interrupts.count(index)).unwrap_or(0);
        let info = IrqInfo { argsz: IrqInfo::LEN, flags: irqs::info(index), index: ask.index, count };
        answer.put(&info.bytes());
        Ok(())
    }

    pub(super) fn set_irqs(&mut self, request: Request, _: &mut Answer) -> Handled {
        let set = SetIrqs::parse(request.payload).unwrap_or_default();
        // Each one is watched anew, and a ring of io_uring made and ended for it.
        self.changes += 2 * request.fds.len();
        let ours = request.fds.iter().filter(|_| self.keep.is_some()).map(OwnedFd::try_clone).collect();
        irqs::set(
            &self.interrupts,
            &set,
            &request.payload[SetIrqs::SIZE..],
            request.fds,
            &self.memory.terms,
        )?;
        self.hold_triggers(&set, ours);
        Ok(())
    }

    /// Does to the holder what was done to the interrupts.
    fn hold_triggers(&mut self, set: &SetIrqs, fds: Vec<io::Result<OwnedFd>>) {
        let Some(index) = Index::new(set.index).filter(|_| self.keep.is_some()) else { return };
        let total = self.interrupts.count(index);
        let eventfds = set.flags & irq::DATA_EVENTFD != 0;
        let start = set.start as usize;
        let keys = match set.flags {
            _ if set.count == 0 => {
                if let Some(keep) = &mut self.keep {
                    keep.forget_triggers(index, total);
                }
                return;
            }
            flags if eventfds && flags & irq::ACTION_UNMASK != 0 => vec![key::RESAMPLE],
            flags if eventfds && flags & irq::ACTION_TRIGGER != 0 => {
                (start..start + set.count as usize).map(|number| key::trigger(index, number)).collect()
            }
            _ => return,
        };
        let mut fds = fds.into_iter();
        for key in keys {
            match fds.next() {
                Some(fd) => self.hold(key, fd),
                None => {
                    if let Some(keep) = &mut self.keep {
                        keep.forget(key);
                    }
                }
            }
        }
    }

    pub(super) fn region_read(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let access = RegionAccess::parse(request.payload).unwrap_or_default();
        let most = self.agreed.map_or(0, |agreed| agreed.max_transfer);
        if access.count > most {
            return Err(Refusal::invalid(format!("{} bytes in one read; {most} were agreed", access.count)));
        }
        self.regions.check(&access)?;
        answer.put(request.payload);
        regions::read(&mut **crate::lock(&self.device), &access, answer.space(access.count as usize));
        Ok(())
    }

    pub(super) fn region_write(&mut self, request: Request, answer: &mut Answer) -> Handled {
        let access = RegionAccess::parse(request.payload).unwrap_or_default();
        let (head, data) = request.payload.split_at(RegionAccess::SIZE);
        if data.len() != access.count as usize {
            return Err(Refusal::invalid(format!("{} bytes came; it says {}", data.len(), access.count)));
        }
        self.regions.check(&access)?;
        regions::write(&mut **crate::lock(&self.device), &access, data);
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
        let mut device = crate::lock(&self.device);
        for one in writes() {
            regions::write(&mut **device, &access(&one), &one.data.to_le_bytes()[..one.count as usize]);
        }
        drop(device);
        answer.put(&WriteMulti { count }.bytes());
        Ok(())
    }

    pub(super) fn reset(&mut self, _: Request, _: &mut Answer) -> Handled {
        pci::reset(&mut **crate::lock(&self.device));
        Ok(())
    }

    pub(super) fn not_offered(&mut self, _: Request, _: &mut Answer) -> Handled {
        Err(Refusal::new(Errno::NOTSUP, "we do not offer it, or only servers send it"))
    }
}
