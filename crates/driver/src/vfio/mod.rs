//! The other side of vfio-user: what a VMM does to a device in another process, and the register accesses of
//! the guest behind it.
//!
//! A [`Client`] is one conversation. [`Client::connect`] asks everything that does not change: version,
//! regions, interrupts. After that a driver needs four things of it, in the order in which a guest uses them:
//!
//! | for | call |
//! |---|---|
//! | memory that the device may reach | [`Client::map`], [`Client::unmap`] |
//! | registers | [`Client::read`], [`Client::write`], [`Client::post`]: a trap each; [`Window`]: none |
//! | interrupts | [`Client::wire`] and [`Event`]; [`Client::wire_pin`] for INTx |
//! | a new start | [`Client::reset`] |
//!
//! Every call but [`Client::post`] waits for the answer, as a vCPU would. [`Client::traps`] counts what would
//! have been traps of a guest. [`Channel`] is the layer below, for tests that want to send nonsense.

mod channel;
mod event;
mod shortcut;
mod window;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use sidecore_abi::pci::capability;
use sidecore_abi::vfio_user::{
    command, device, dma, irq, region, DeviceInfo, DmaMap, DmaUnmap, IrqInfo, OneWrite, RegionAccess,
    RegionInfo, SetIrqs, SparseArea, SparseCap, Version, WriteMulti,
};

pub use channel::{Channel, Reply};
pub use event::Event;
pub use shortcut::Shortcut;
pub use window::Window;

use crate::error::{Error, Result};
use crate::memory::Memory;

/// What we offer: 16 descriptors in a message, and everything else as the protocol has it by default.
const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,\
    \"max_dma_maps\":65535,\"pgsizes\":4096,\"write_multiple\":true}}\0";
/// Most descriptors that we put into one message; every server takes at least one.
const FDS_PER_MESSAGE: usize = 16;

/// A region as the device describes it.
#[derive(Debug)]
pub struct Region {
    /// Bytes; 0: there is no such region.
    pub size: u64,
    /// What can be done with it: `sidecore_abi::vfio_user::region`.
    pub flags: u32,
    /// The areas of it that can be mapped.
    pub areas: Vec<SparseArea>,
    file: Option<(OwnedFd, u64)>,
}

/// Accesses that would have left a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// Reads.
    pub reads: u64,
    /// Writes, posted ones and those in a batch included.
    pub writes: u64,
}

/// A conversation with a device.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    server: String,
    regions: Vec<Region>,
    irqs: Vec<IrqInfo>,
    traps: Traps,
    shortcut: Option<Box<dyn Shortcut>>,
}

impl Client {
    /// Connects to the device that listens at `path` and learns what it is.
    ///
    /// # Errors
    /// No server listens there, or it is no PCI device that speaks vfio-user 0.x.
    pub fn connect(path: &Path) -> Result<Client> {
        let mut client = Client {
            channel: Channel::connect(path)?,
            server: String::new(),
            regions: Vec::new(),
            irqs: Vec::new(),
            traps: Traps::default(),
            shortcut: None,
        };
        client.agree()?;
        let info = DeviceInfo { argsz: 16, ..DeviceInfo::default() };
        let reply = client.channel.ask(command::DEVICE_GET_INFO, &[&info.bytes()], &[])?;
        let info = DeviceInfo::parse(&reply.payload).ok_or_else(|| short("DEVICE_GET_INFO"))?;
        if info.flags & device::PCI == 0 {
            return Err(Error::Vfio("the device is no PCI device".to_owned()));
        }
        for index in 0..info.regions {
            let region = client.ask_region(index)?;
            client.regions.push(region);
        }
        for index in 0..info.irqs {
            let ask = IrqInfo { argsz: 16, index, ..IrqInfo::default() };
            let reply = client.channel.ask(command::DEVICE_GET_IRQ_INFO, &[&ask.bytes()], &[])?;
            client.irqs.push(IrqInfo::parse(&reply.payload).ok_or_else(|| short("DEVICE_GET_IRQ_INFO"))?);
        }
        Ok(client)
    }

    fn agree(&mut self) -> Result<()> {
        let ours = Version { major: 0, minor: 1 };
        let reply = self.channel.ask(command::VERSION, &[&ours.bytes(), CAPABILITIES], &[])?;
        let version = Version::parse(&reply.payload).ok_or_else(|| short("VERSION"))?;
        if version.major != 0 || version.minor > 1 {
            let Version { major, minor } = version;
            return Err(Error::Vfio(format!("the device speaks version {major}.{minor}, not 0.1 or 0.0")));
        }
        let text = reply.payload[Version::SIZE..].strip_suffix(&[0]).unwrap_or(&[]);
        self.server = String::from_utf8_lossy(text).into_owned();
        Ok(())
    }

    /// Asks twice if need be: the first answer says how long the second one will be.
    fn ask_region(&mut self, index: u32) -> Result<Region> {
        #[allow(clippy::cast_possible_truncation)] // 32
        let mut argsz = RegionInfo::SIZE as u32;
        loop {
            let ask = RegionInfo { argsz, index, ..RegionInfo::default() };
            let reply = self.channel.ask(command::DEVICE_GET_REGION_INFO, &[&ask.bytes()], &[])?;
            let info = RegionInfo::parse(&reply.payload).ok_or_else(|| short("DEVICE_GET_REGION_INFO"))?;
            if info.argsz > argsz {
                argsz = info.argsz;
                continue;
            }
            let areas = if info.flags & region::CAPS == 0 {
                Vec::new()
            } else {
                sparse_areas(&reply.payload, info.cap_offset)?
            };
            let file = reply.fds.into_iter().next().map(|fd| (fd, info.offset));
            return Ok(Region { size: info.size, flags: info.flags, areas, file });
        }
    }

    /// The capabilities that the server named, as JSON.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Region `index`: 0 to 5 the BARs, 6 the ROM, 7 configuration space.
    pub fn region(&self, index: u32) -> Option<&Region> {
        self.regions.get(index as usize).filter(|region| region.size > 0)
    }

    /// Interrupts of kind `index` (`sidecore_abi::vfio_user::irq`).
    pub fn irq(&self, index: u32) -> Option<&IrqInfo> {
        self.irqs.get(index as usize).filter(|info| info.count > 0)
    }

    /// Accesses so far that would have left a guest.
    pub fn traps(&self) -> Traps {
        self.traps
    }

    /// Lets the device reach all of `memory`, at the addresses that [`Memory::gpa`] names.
    pub fn map_memory(&mut self, memory: &Memory) -> Result<()> {
        self.map(memory.gpa(0), memory.size() as u64, dma::READ | dma::WRITE, Some((memory.fd(), 0)))
    }

    /// Lets the device reach `size` bytes at guest address `address`, which are those of `file` from its
    /// offset on. Without a file the device only learns that there is something.
    pub fn map(
        &mut self,
        address: u64,
        size: u64,
        flags: u32,
        file: Option<(BorrowedFd, u64)>,
    ) -> Result<()> {
        let offset = file.map_or(0, |(_, offset)| offset);
        #[allow(clippy::cast_possible_truncation)] // 32
        let map = DmaMap { argsz: DmaMap::SIZE as u32, flags, offset, address, size };
        let fds: Vec<BorrowedFd> = file.iter().map(|(fd, _)| *fd).collect();
        self.channel.ask(command::DMA_MAP, &[&map.bytes()], &fds).map(drop)
    }

    /// Takes it away again. When this returns the device touches it no more.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<()> {
        #[allow(clippy::cast_possible_truncation)] // 24
        let unmap = DmaUnmap { argsz: DmaUnmap::SIZE as u32, flags: 0, address, size };
        self.channel.ask(command::DMA_UNMAP, &[&unmap.bytes()], &[]).map(drop)
    }

    /// From now on accesses to regions are no messages: the device is in this process.
    pub fn shortcut(&mut self, device: Box<dyn Shortcut>) {
        self.shortcut = Some(device);
    }

    /// The guest ends an interrupt of the pin; true if the device was told directly, and need not be by an
    /// event.
    pub fn end_of_interrupt(&mut self) -> bool {
        self.shortcut.as_mut().map(|device| device.end_of_interrupt()).is_some()
    }

    /// Reads `data.len()` bytes of region `region`.
    pub fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<()> {
        self.traps.reads += 1;
        if let Some(device) = &mut self.shortcut {
            device.read(region, offset, data);
            return Ok(());
        }
        let access = RegionAccess { offset, region, count: length(data)? };
        let reply = self.channel.ask(command::REGION_READ, &[&access.bytes()], &[])?;
        let got = reply.payload.get(RegionAccess::SIZE..).unwrap_or(&[]);
        if got.len() != data.len() {
            return Err(short("REGION_READ"));
        }
        data.copy_from_slice(got);
        Ok(())
    }

    /// Writes `data` to region `region`.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        self.traps.writes += 1;
        if let Some(device) = &mut self.shortcut {
            device.write(region, offset, data);
            return Ok(());
        }
        let access = RegionAccess { offset, region, count: length(data)? };
        self.channel.ask(command::REGION_WRITE, &[&access.bytes(), data], &[]).map(drop)
    }

    /// Writes without waiting for an answer. The next call that waits tells that this one was done.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        if self.shortcut.is_some() {
            return self.write(region, offset, data);
        }
        self.traps.writes += 1;
        let access = RegionAccess { offset, region, count: length(data)? };
        self.channel.tell(command::REGION_WRITE, &[&access.bytes(), data])
    }

    /// Several writes of at most eight bytes each, as (region, offset, data), in one message.
    pub fn write_multi(&mut self, writes: &[(u32, u64, &[u8])]) -> Result<()> {
        self.traps.writes += writes.len() as u64;
        let mut payload = WriteMulti { count: writes.len() as u64 }.bytes().to_vec();
        for (region, offset, bytes) in writes {
            let mut data = [0; 8];
            let place = data.get_mut(..bytes.len());
            place
                .ok_or_else(|| Error::Config("a write in a batch has at most 8 bytes".into()))?
                .copy_from_slice(bytes);
            let data = u64::from_le_bytes(data);
            payload
                .extend(OneWrite { offset: *offset, region: *region, count: length(bytes)?, data }.bytes());
        }
        self.channel.ask(command::REGION_WRITE_MULTI, &[&payload], &[]).map(drop)
    }

    /// Reads a 32-bit register.
    pub fn read32(&mut self, region: u32, offset: u64) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read(region, offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes a 32-bit register and waits until it is done.
    pub fn write32(&mut self, region: u32, offset: u64, value: u32) -> Result<()> {
        self.write(region, offset, &value.to_le_bytes())
    }

    /// Writes a 32-bit register and goes on.
    pub fn post32(&mut self, region: u32, offset: u64, value: u32) -> Result<()> {
        self.post(region, offset, &value.to_le_bytes())
    }

    /// Reads 16 bits of configuration space.
    pub fn config16(&mut self, offset: usize) -> Result<u16> {
        let mut bytes = [0; 2];
        self.read(region::CONFIG, offset as u64, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Writes 16 bits of configuration space.
    pub fn set_config16(&mut self, offset: usize, value: u16) -> Result<()> {
        self.write(region::CONFIG, offset as u64, &value.to_le_bytes())
    }

    /// Where in configuration space the capability `id` is.
    pub fn capability(&mut self, id: u8) -> Result<Option<usize>> {
        let mut config = [0; sidecore_abi::pci::CONVENTIONAL_SIZE];
        self.read(region::CONFIG, 0, &mut config)?;
        let mut at = usize::from(config[sidecore_abi::pci::CAPABILITIES]);
        // A list has at most 48 links; more of them is a circle.
        for _ in 0..48 {
            match at {
                0 => return Ok(None),
                at if at + 1 < config.len() && config[at] == id => return Ok(Some(at)),
                _ => at = usize::from(*config.get(at + 1).unwrap_or(&0)),
            }
        }
        Ok(None)
    }

    /// Sets bits of the command register: `sidecore_abi::pci::command`.
    pub fn enable(&mut self, bits: u16) -> Result<()> {
        let command = self.config16(sidecore_abi::pci::COMMAND)?;
        self.set_config16(sidecore_abi::pci::COMMAND, command | bits)
    }

    /// Maps the areas of region `index` that can be mapped: accesses there are no traps. `None` if there are
    /// none.
    pub fn window(&self, index: u32) -> Result<Option<Window>> {
        match self.region(index) {
            Some(Region { file: Some((file, offset)), areas, size, flags }) if flags & region::MMAP != 0 => {
                let whole = [SparseArea { offset: 0, size: *size }];
                let areas = if areas.is_empty() { &whole } else { &areas[..] };
                Window::map(file.as_fd(), *offset, areas).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Wires interrupts `start` and following of kind `index` to `events`.
    pub fn wire(&mut self, index: u32, start: u32, events: &[Event]) -> Result<()> {
        let mut start = start;
        for events in events.chunks(FDS_PER_MESSAGE) {
            let fds: Vec<BorrowedFd> = events.iter().map(AsFd::as_fd).collect();
            #[allow(clippy::cast_possible_truncation)] // FDS_PER_MESSAGE
            let count = events.len() as u32;
            self.set_irqs(irq::DATA_EVENTFD | irq::ACTION_TRIGGER, index, start, count, &[], &fds)?;
            start += count;
        }
        Ok(())
    }

    /// Wires the interrupt pin: the device writes `trigger` when the level rises, and looks again at the
    /// level when it hears `resample`. The order of messages is the one in which QEMU sends them.
    pub fn wire_pin(&mut self, trigger: &Event, resample: Option<&Event>) -> Result<()> {
        self.wire(irq::INTX, 0, std::slice::from_ref(trigger))?;
        if let Some(resample) = resample {
            self.set_irqs(irq::DATA_NONE | irq::ACTION_MASK, irq::INTX, 0, 1, &[], &[])?;
            let flags = irq::DATA_EVENTFD | irq::ACTION_UNMASK;
            self.set_irqs(flags, irq::INTX, 0, 1, &[], &[resample.as_fd()])?;
        }
        self.unmask_pin()
    }

    /// The end of an interrupt of the pin.
    pub fn unmask_pin(&mut self) -> Result<()> {
        self.set_irqs(irq::DATA_NONE | irq::ACTION_UNMASK, irq::INTX, 0, 1, &[], &[])
    }

    /// Turns MSI-X on in configuration space and wires one event per vector, all of them.
    pub fn enable_msix(&mut self) -> Result<Vec<Event>> {
        let count = self.irq(irq::MSIX).map_or(0, |info| info.count);
        let Some(at) = self.capability(capability::MSIX)?.filter(|_| count > 0) else {
            return Err(Error::Missing("MSI-X".to_owned()));
        };
        let control = self.config16(at + capability::CONTROL)?;
        self.set_config16(at + capability::CONTROL, control | capability::MSIX_ENABLE)?;
        let events = (0..count).map(|_| Event::new()).collect::<Result<Vec<_>>>()?;
        self.wire(irq::MSIX, 0, &events)?;
        Ok(events)
    }

    /// Unwires all interrupts of kind `index`.
    pub fn unwire(&mut self, index: u32) -> Result<()> {
        self.set_irqs(irq::DATA_NONE | irq::ACTION_TRIGGER, index, 0, 0, &[], &[])
    }

    /// DEVICE_SET_IRQS with whatever is given.
    pub fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        bools: &[u8],
        fds: &[BorrowedFd],
    ) -> Result<()> {
        #[allow(clippy::cast_possible_truncation)] // SetIrqs::SIZE and a few bytes
        let argsz = (SetIrqs::SIZE + bools.len()) as u32;
        let set = SetIrqs { argsz, flags, index, start, count };
        self.channel.ask(command::DEVICE_SET_IRQS, &[&set.bytes(), bools], fds).map(drop)
    }

    /// Resets the device.
    pub fn reset(&mut self) -> Result<()> {
        self.channel.ask(command::DEVICE_RESET, &[], &[]).map(drop)
    }

    /// The layer below.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// The areas in the capability list that starts at `at` of a DEVICE_GET_REGION_INFO reply.
fn sparse_areas(reply: &[u8], at: u32) -> Result<Vec<SparseArea>> {
    let mut areas = Vec::new();
    let mut at = at as usize;
    while at != 0 {
        let bytes = reply.get(at..).unwrap_or(&[]);
        let cap = SparseCap::parse(bytes).ok_or_else(|| short("a region's capability"))?;
        if cap.id == region::CAP_SPARSE {
            let list = bytes[SparseCap::SIZE..].chunks_exact(SparseArea::SIZE);
            areas.extend(list.take(cap.areas as usize).filter_map(SparseArea::parse));
        }
        if cap.next as usize <= at && cap.next != 0 {
            return Err(Error::Vfio("the list of a region's capabilities goes backwards".to_owned()));
        }
        at = cap.next as usize;
    }
    Ok(areas)
}

fn short(what: &str) -> Error {
    Error::Vfio(format!("the answer to {what} has the wrong length"))
}

fn length(data: &[u8]) -> Result<u32> {
    u32::try_from(data.len()).map_err(|_| Error::Config("an access has at most 4 GiB".to_owned()))
}
