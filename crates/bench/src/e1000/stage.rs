//! What is measured: an I/O core, a learning switch and ports of emulated cards in this process, with native drivers.
//!
//! In this process, because a trap that is to cost 1.2 µs must not pay for a socket as well: the drivers set
//! their devices up over vfio-user like any VMM, and then reach them directly.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidecore_driver::e1000::{Config, E1000 as Driver};
use sidecore_driver::net::NetDriver;
use sidecore_driver::rtl8169 as realtek;
use sidecore_driver::vfio::Shortcut;
use sidecore_driver::{session, Frontend};
use sidecore_engine::core::Tuning;
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::device::pci::PciDevice;
use sidecore_engine::device::rtl8169::{Rtl8169, Rtl8169Config};
use sidecore_engine::device::virtio_net::{NetConfig, VirtioNet};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Attachment, Port, PortId, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};
use sidecore_engine::transport::vfio_user::{Endpoint, VfioUser};
use sidecore_engine::transport::vhost_user::{VhostUser, VhostUserConfig};

use super::nic::{Nic, Part, Setup};
use super::text;
use crate::ours::START;
use crate::peers::Scratch;

/// Entries of the host's rings.
const HOST_RING: u16 = 1024;

/// The station at port `index`.
pub fn mac(index: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, 1 + index]
}

/// A frame of `len` bytes from station `from` to station `to`.
pub fn frame(from: u8, to: u8, len: usize) -> Vec<u8> {
    let mut frame = [&mac(to)[..], &mac(from), &[0x88, 0xb5]].concat();
    frame.resize(len, 0x5a);
    frame
}

/// What the operator allows a guest.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The least gap between interrupts.
    pub floor: Duration,
    /// Percent of its time for receive interrupts.
    pub share: u32,
}

impl Limits {
    /// Everything that the driver wants.
    pub const NONE: Limits = Limits { floor: Duration::ZERO, share: 100 };
}

/// I/O core, switch and ports.
pub struct Stage {
    // In this order: attachments go before the cores that serve it.
    attachments: Vec<Box<dyn Attachment>>,
    ports: Vec<Arc<Port>>,
    cores: Arc<Graph>,
    switch: Arc<Switch>,
    counters: CounterFile,
    scratch: Scratch,
}

impl Stage {
    /// A switch without ports, served by a core on processor `io_core` that never sleeps.
    pub fn new(io_core: usize) -> Result<Stage, String> {
        Stage::with(io_core, Tuning { spin: Duration::from_secs(3600), ..Tuning::default() })
    }

    /// The same with a core that sleeps when it has nothing to do, as the daemon's do.
    pub fn that_sleeps(io_core: usize) -> Result<Stage, String> {
        Stage::with(io_core, Tuning::default())
    }

    fn with(io_core: usize, tuning: Tuning) -> Result<Stage, String> {
        let options = CoreOptions { cpus: vec![io_core], tuning, ..CoreOptions::default() };
        Ok(Stage {
            attachments: Vec::new(),
            ports: Vec::new(),
            cores: Graph::start(&options).map_err(text)?,
            switch: Arc::new(Switch::new("lan", SwitchOptions::default())),
            counters: CounterFile::anonymous().map_err(text)?,
            scratch: Scratch::new("sc-e1000").map_err(text)?,
        })
    }

    /// A further port on the switch, and its number.
    pub fn port(&mut self) -> Result<(Arc<Port>, u8, PathBuf), String> {
        let number = u8::try_from(self.ports.len()).map_err(text)?;
        let (id, name) = (PortId(number.into()), format!("p{number}"));
        let slot = self.counters.open_slot(id, &name);
        let port = Arc::new(Port::new(id, &name, slot, DEFAULT_MTU).map_err(text)?);
        self.ports.push(Arc::clone(&port));
        let joined = |port: &Arc<Port>| (Arc::clone(port), Attach::Switch(Arc::clone(&self.switch)));
        let members: Vec<_> = self.ports.iter().map(joined).collect();
        self.cores.publish(&Arc::new(Topology::new(&members)));
        Ok((port, number, self.scratch.file(name)))
    }

    /// What stands behind one of the ports, for as long as the stage is there.
    pub fn attach(&mut self, attachment: Box<dyn Attachment>) {
        self.attachments.push(attachment);
    }

    /// The scheduler, which serves queues.
    pub fn scheduler(&self) -> Arc<dyn Scheduler> {
        Arc::clone(&self.cores) as Arc<dyn Scheduler>
    }

    /// The same for any card, set up like this.
    pub fn card(&mut self, part: Part, limits: Limits, setup: &Setup) -> Result<Nic, String> {
        let &Setup { ring, page, map, itr, csb } = setup;
        match part {
            Part::Intel(model) => {
                let config = Config { ring, page, map, itr, csb, ..Config::default() };
                Ok(self.guest(model, limits, &config)?.into())
            }
            Part::Rtl8169 => {
                let (port, number, path) = self.port()?;
                let moderation = limits.floor;
                let settings = Rtl8169Config { moderation, csb, ..Rtl8169Config::new(Mac(mac(number))) };
                let device = Rtl8169::new(settings, Arc::clone(&port), self.scheduler()).map_err(text)?;
                let attachment = start(&path, port, Box::new(device))?;
                let config = realtek::Config { ring, page, csb };
                let mut driver = realtek::Rtl8169::open(&path, &config).map_err(text)?;
                driver.client().shortcut(Box::new(Direct(attachment.device())));
                self.attachments.push(Box::new(attachment));
                Ok(driver.into())
            }
        }
    }

    /// A guest's NIC and its driver, which reaches it without messages from now on.
    pub fn guest(&mut self, model: Model, limits: Limits, config: &Config) -> Result<Driver, String> {
        let (port, number, path) = self.port()?;
        let settings = E1000Config {
            moderation: limits.floor,
            receive_share: limits.share,
            csb: config.csb,
            ..E1000Config::new(model, Mac(mac(number)))
        };
        let device = E1000::new(settings, Arc::clone(&port), self.scheduler()).map_err(text)?;
        let attachment = start(&path, port, Box::new(device))?;
        let mut driver = Driver::open(&path, config).map_err(text)?;
        driver.client().shortcut(Box::new(Direct(attachment.device())));
        self.attachments.push(Box::new(attachment));
        Ok(driver)
    }

    /// The host's end of the switch: a native virtio-net driver that never waits for anything.
    pub fn host(&mut self) -> Result<NetDriver, String> {
        let (port, _, path) = self.port()?;
        let net = NetConfig { queue_pairs: 1, ..NetConfig::default() };
        let device = VirtioNet::new(&net, port, self.scheduler()).map_err(text)?;
        let endpoint = sidecore_engine::transport::vhost_user::Endpoint::Listen {
            path: path.clone(),
            mode: None,
            owner: (None, None),
        };
        let config = VhostUserConfig { endpoint, journal: None };
        self.attachments.push(Box::new(VhostUser::start(config, device).map_err(text)?));
        let frontend = Frontend::connect(&path, START).map_err(text)?;
        let config = session::Config { entries: HOST_RING, ..session::Config::default() };
        NetDriver::start(frontend, config).map_err(text)
    }

    /// Nanoseconds that the I/O core has been busy, and frames that it has moved.
    pub fn busy(&self) -> (u64, u64) {
        let core = self.cores.status();
        core.first().map_or((0, 0), |core| (core.busy_ns, core.frames))
    }
}

/// `device`, which listens at `path`.
pub fn start(path: &Path, port: Arc<Port>, device: Box<dyn PciDevice>) -> Result<VfioUser, String> {
    let endpoint = Endpoint::Listen { path: path.to_owned(), mode: None, owner: (None, None) };
    VfioUser::start(endpoint, port, device, None).map_err(text)
}

/// A device as its conversation has it.
pub type Device = Arc<Mutex<Box<dyn PciDevice>>>;

/// A device in this process.
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
