//! The engine in this process: I/O cores, ports, and what stands behind them. For what must not pay for a
//! daemon between.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidecore_driver::vfio::Shortcut;
use sidecore_engine::device::pci::PciDevice;
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::port::{Attachment, Port, PortId};
use sidecore_engine::transport::vfio_user::{self, VfioUser};
use sidecore_engine::transport::vhost_user::{Endpoint, VhostUser, VhostUserConfig};

use crate::prelude::*;

/// I/O cores and ports.
pub struct Engine {
    // In this order: attachments go before the cores that serve them.
    attachments: Vec<Box<dyn Attachment>>,
    /// By their numbers.
    pub ports: Vec<Arc<Port>>,
    /// The cores.
    pub graph: Arc<Graph>,
    counters: CounterFile,
    scratch: Scratch,
}

impl Engine {
    /// Without ports.
    pub fn start(options: &CoreOptions) -> Result<Engine> {
        Ok(Engine {
            attachments: Vec::new(),
            ports: Vec::new(),
            graph: Graph::start(options).map_err(text)?,
            counters: CounterFile::anonymous().map_err(text)?,
            scratch: Scratch::new("sc-engine")?,
        })
    }

    /// A further port, as `set` makes it, which is in no topology yet, and where its socket may be.
    pub fn port(&mut self, mtu: u32, set: impl FnOnce(Port) -> Port) -> Result<(Arc<Port>, PathBuf)> {
        let number = u16::try_from(self.ports.len()).map_err(text)?;
        let (id, name) = (PortId(number), format!("p{number}"));
        let slot = self.counters.open_slot(id, &name);
        let port = Arc::new(set(Port::new(id, &name, slot, mtu).map_err(text)?));
        self.ports.push(Arc::clone(&port));
        Ok((port, self.scratch.file(name)))
    }

    /// Joins all ports, each by its number.
    pub fn join(&self, attach: impl Fn(usize) -> Attach) {
        let members = self.ports.iter().enumerate().map(|(number, port)| (Arc::clone(port), attach(number)));
        self.graph.publish(&Arc::new(Topology::new(&members.collect::<Vec<_>>())));
    }

    /// What serves queues.
    pub fn scheduler(&self) -> Arc<dyn Scheduler> {
        Arc::clone(&self.graph) as Arc<dyn Scheduler>
    }

    /// What stands behind one of the ports, for as long as the engine is there.
    pub fn attach(&mut self, attachment: impl Attachment + 'static) {
        self.attachments.push(Box::new(attachment));
    }

    /// virtio-net over vhost-user, with one pair of queues.
    pub fn virtio(&mut self, port: Arc<Port>, path: &Path) -> Result<()> {
        let config = NetConfig { queue_pairs: 1, ..NetConfig::default() };
        let device = VirtioNet::new(&config, port, self.scheduler()).map_err(text)?;
        let endpoint = Endpoint::Listen { path: path.to_owned(), mode: None, owner: (None, None) };
        self.attach(VhostUser::start(VhostUserConfig { endpoint, journal: None }, device).map_err(text)?);
        Ok(())
    }

    /// A card over vfio-user; the card itself.
    pub fn card(&mut self, port: Arc<Port>, path: &Path, device: impl PciDevice + 'static) -> Result<Device> {
        let attachment = listen(path, port, Box::new(device))?;
        let device = attachment.device();
        self.attach(attachment);
        Ok(device)
    }

    /// Nanoseconds that the first I/O core has been busy, and frames that it has moved.
    pub fn busy(&self) -> (u64, u64) {
        self.graph.status().first().map_or((0, 0), |core| (core.busy_ns, core.frames))
    }
}

/// `device`, which listens at `path`.
pub fn listen(path: &Path, port: Arc<Port>, device: Box<dyn PciDevice>) -> Result<VfioUser> {
    let endpoint = vfio_user::Endpoint::Listen { path: path.to_owned(), mode: None, owner: (None, None) };
    VfioUser::start(endpoint, port, device, None).map_err(text)
}

/// A device as its conversation has it.
pub type Device = Arc<Mutex<Box<dyn PciDevice>>>;

/// A device in this process, which a driver reaches without messages.
pub struct Direct(pub Device);

impl Direct {
    fn lock(&self) -> MutexGuard<'_, Box<dyn PciDevice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shortcut for Direct {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        self.lock().read(region as usize, offset, data);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.lock().write(region as usize, offset, data);
    }

    fn end_of_interrupt(&mut self) {
        self.lock().interrupts().unmask();
    }
}
