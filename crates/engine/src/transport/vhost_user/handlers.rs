//! The messages that the `vhost` crate reads, each with what it changes. How a change is made under rings
//! that run is `backend`'s affair.

use std::fs::File;
use std::sync::Arc;

use sidecore_abi::virtio::features as bit;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures as Protocol, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::backend::{refuse, Backend, STATUS_RESET, TRANSPORT_FEATURES};
use super::journal::RingSlots;
use super::log::DirtyLog;
use super::ring::{Addresses, Base, Kick, Vring};
use crate::device::VirtioDevice;
use crate::mem::{eventfd, GuestMap, RegionSpec, SharedFile, Terms, MAX_REGIONS};
use crate::virtq::WriteLog;

fn event(file: Option<File>, terms: &Terms) -> Result<Option<File>> {
    file.map(|file| eventfd(file, terms)).transpose().or_else(|e| refuse(e.to_string()))
}

impl<D: VirtioDevice> VhostUserBackendReqHandlerMut for Backend<D> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    // Deprecated; front ends that lack RESET_DEVICE mean that by it.
    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        self.status = STATUS_RESET;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.device.features() | TRANSPORT_FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !(self.device.features() | TRANSPORT_FEATURES);
        if unknown != 0 {
            return refuse(format!("features {unknown:#x} were not offered"));
        }
        // QEMU says the same for each queue pair: rings that run need not notice.
        if Some(features) != self.acked {
            self.stopped(self.all(), |backend| {
                if (features ^ backend.features()) & bit::RING_PACKED != 0 {
                    // A place in one format says nothing in the other.
                    backend.rings.iter_mut().for_each(Vring::forget_place);
                }
                backend.acked = Some(features);
                backend.device.set_features(features & !TRANSPORT_FEATURES);
            });
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let regions: Vec<_> =
            table.iter().zip(files).map(|(region, file)| region_spec(region, file)).collect();
        match GuestMap::on(&self.terms, &regions) {
            Ok(map) => {
                let others = map.len() + self.map.as_deref().map_or(0, GuestMap::len);
                self.set_memory(map, others);
            }
            Err(e) => return refuse(e.to_string()),
        }
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let at = self.index(index)?;
        let Ok(size) = u16::try_from(num) else {
            return refuse(format!("ring {index} cannot have {num} entries"));
        };
        if self.rings[at].size != Some(size) {
            self.stopped(at..at + 1, |backend| backend.rings[at].size = Some(size));
        }
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        log: u64,
    ) -> Result<()> {
        let at = self.index(index)?;
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        let addresses = Some(Addresses { desc, driver: avail, device: used, log });
        if self.rings[at].addresses != addresses {
            self.stopped(at..at + 1, |backend| backend.rings[at].addresses = addresses);
        }
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let at = self.index(index)?;
        if self.rings[at].running {
            return refuse(format!("ring {index} runs; its start index can only be set while it is stopped"));
        }
        // The position that we gave ourselves is better than its echo.
        if self.rings[at].base.to_wire() != base || self.rings[at].base == Base::Unknown {
            self.rings[at].base = Base::Sent(base);
        }
        self.start(at);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let at = self.index(index)?;
        self.stop(at);
        self.rings[at].kick = Kick::Unknown;
        self.hand_over(at);
        Ok(VhostUserVringState::new(index, self.rings[at].base.to_wire()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let at = self.index(index.into())?;
        let kick = event(file, &self.terms)?.map_or(Kick::Polled, Kick::Event);
        self.stopped(at..at + 1, |backend| backend.rings[at].kick = kick);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let at = self.index(index.into())?;
        // A ring of io_uring is made for it, and one is ended.
        self.changes(2);
        self.rings[at].notifier.set(event(file, &self.terms)?.map(Into::into));
        // An interrupt that went to the old descriptor a moment ago may have been lost with it.
        if self.rings[at].running {
            self.rings[at].notifier.interrupt();
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let at = self.index(index.into())?;
        self.rings[at].error.set(event(file, &self.terms)?.map(Into::into));
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<Protocol> {
        Ok(self.protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.protocol_features().bits();
        if unknown != 0 {
            return refuse(format!("protocol features {unknown:#x} were not offered"));
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // QEMU and DPDK compare this with queue pairs for network devices; cloud-hypervisor compares it
        // with rings, of which even the smallest device has two.
        let rings = self.rings.len() as u64;
        Ok(if self.device.network().is_some() { (rings / 2).max(2) } else { rings })
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let at = self.index(index)?;
        if self.rings[at].enabled != Some(enable) {
            self.stopped(at..at + 1, |backend| backend.rings[at].enabled = Some(enable));
        }
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let Some(space) = self.device.config_space() else {
            return refuse("there is no configuration space here");
        };
        let (offset, size) = (offset as usize, size as usize);
        // Bytes behind the end read as zero: front ends ask for all that a device could ever have.
        let mut bytes: Vec<u8> = space.into_iter().skip(offset).take(size).collect();
        bytes.resize(size, 0);
        Ok(bytes)
    }

    // Little in a device's space can be written (nothing in a network device's, virtio 1.2 §5.1.4), and drivers that
    // try are used to being ignored.
    fn set_config(&mut self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        self.device.write_config(offset as usize, bytes);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        refuse("this is no graphics device")
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        refuse("shared objects were not offered")
    }

    fn get_inflight_fd(&mut self, ask: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        if usize::from(ask.num_queues) > self.rings.len() {
            return refuse(format!("{} rings do not exist, there are {}", ask.num_queues, self.rings.len()));
        }
        self.changes(2);
        match RingSlots::create(ask.num_queues, ask.queue_size) {
            Ok((file, bytes)) => Ok((VhostUserInflight::new(bytes, 0, ask.num_queues, ask.queue_size), file)),
            Err(e) => refuse(format!("no memory for the inflight region: {e}")),
        }
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *given;
        self.changes(2);
        match RingSlots::adopt(&file, mmap_offset, mmap_size, num_queues, queue_size, &self.terms) {
            Ok(slots) => self.stopped(self.all(), |backend| backend.inflight = Some(slots)),
            Err(e) => return refuse(format!("the inflight region is unusable: {e}")),
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        let before = self.map.as_deref();
        let spec = region_spec(region, file);
        let map = match before {
            Some(before) => before.with(&spec),
            None => GuestMap::on(&self.terms, &[spec]),
        };
        match map {
            Ok(map) => self.set_memory(map, 1),
            Err(e) => return refuse(e.to_string()),
        }
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (gpa, size, user) = (region.guest_phys_addr, region.memory_size, region.user_addr);
        match self.map.as_deref().filter(|map| map.has(gpa, size, user)) {
            Some(map) => {
                let map = map.without(gpa);
                self.set_memory(map, 1);
                Ok(())
            }
            None => refuse(format!("there is no memory region at {gpa:#x} of {size:#x} bytes")),
        }
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        refuse("the device has no state beside its rings")
    }

    fn check_device_state(&mut self) -> Result<()> {
        refuse("the device has no state beside its rings")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        refuse("there is no shared memory region here")
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let bits = match SharedFile::lent(&file, log.mmap_offset, log.mmap_size, &self.terms) {
            Ok(bits) => bits,
            Err(e) => return refuse(format!("the dirty log is unusable: {e}")),
        };
        self.changes(2);
        let log: Arc<dyn WriteLog> = Arc::new(DirtyLog::new(bits));
        if self.features() & bit::VHOST_LOG_ALL == 0 {
            self.log = Some(log);
        } else {
            self.stopped(self.all(), |backend| backend.log = Some(log));
        }
        Ok(())
    }
}

fn region_spec(region: &VhostUserMemoryRegion, file: File) -> RegionSpec {
    RegionSpec {
        gpa: region.guest_phys_addr,
        size: region.memory_size,
        user_addr: region.user_addr,
        offset: region.mmap_offset,
        file,
    }
}
