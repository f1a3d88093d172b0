//! What is measured: an I/O core, a learning switch and ports of emulated cards in this process, with native
//! drivers.
//!
//! In this process, because a trap that is to cost 1.2 µs must not pay for a socket as well: the drivers set
//! their devices up over vfio-user like any VMM, and then reach them directly.

use std::path::PathBuf;
use std::sync::Arc;

use sidecore_driver::e1000::{Config, E1000 as Driver};
use sidecore_driver::rtl8169 as realtek;
use sidecore_driver::session;
use sidecore_engine::core::Tuning;
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::device::rtl8169::{Rtl8169, Rtl8169Config};
use sidecore_engine::graph::{Attach, CoreOptions};
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Port, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};

use super::nic::{Nic, Part, Setup};
use crate::engine::{Direct, Engine};
use crate::prelude::*;

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
    pub engine: Engine,
    switch: Arc<Switch>,
}

impl Stage {
    /// A switch without ports, served by a core on processor `io_core` that never sleeps.
    pub fn new(io_core: usize) -> Result<Stage, String> {
        Stage::with(io_core, Tuning { spin: Duration::from_secs(3600), ..Tuning::default() })
    }

    /// A stage with a core that sleeps when it has nothing to do, as the daemon's do.
    pub fn that_sleeps(io_core: usize) -> Result<Stage, String> {
        Stage::with(io_core, Tuning::default())
    }

    fn with(io_core: usize, tuning: Tuning) -> Result<Stage, String> {
        let options = CoreOptions { cpus: vec![io_core], tuning, ..CoreOptions::default() };
        let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
        Ok(Stage { engine: Engine::start(&options)?, switch })
    }

    /// A further port on the switch, and its number.
    pub fn port(&mut self) -> Result<(Arc<Port>, u8, PathBuf), String> {
        let number = u8::try_from(self.engine.ports.len()).map_err(text)?;
        let (port, path) = self.engine.port(DEFAULT_MTU, |port| port)?;
        self.engine.join(|_| Attach::Switch(Arc::clone(&self.switch)));
        Ok((port, number, path))
    }

    /// The driver of any card, set up like this.
    pub fn card(&mut self, part: Part, limits: Limits, setup: &Setup) -> Result<Nic, String> {
        let &Setup { ring, page, map, itr, csb } = setup;
        match part {
            Part::Intel(model) => {
                let config = Config { ring, page, map, itr, csb, ..Config::default() };
                Ok(Nic::Intel(Box::new(self.guest(model, limits, &config)?)))
            }
            Part::Rtl8169 => {
                let (port, number, path) = self.port()?;
                let moderation = limits.floor;
                let settings = Rtl8169Config { moderation, csb, ..Rtl8169Config::new(Mac(mac(number))) };
                let scheduler = self.engine.scheduler();
                let device = Rtl8169::new(settings, Arc::clone(&port), scheduler).map_err(text)?;
                let device = self.engine.card(port, &path, device)?;
                let config = realtek::Config { ring, page, csb };
                let mut driver = realtek::Rtl8169::open(&path, &config).map_err(text)?;
                driver.client().shortcut(Box::new(Direct(device)));
                Ok(Nic::Realtek(Box::new(driver)))
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
        let device = E1000::new(settings, Arc::clone(&port), self.engine.scheduler()).map_err(text)?;
        let device = self.engine.card(port, &path, device)?;
        let mut driver = Driver::open(&path, config).map_err(text)?;
        driver.client().shortcut(Box::new(Direct(device)));
        Ok(driver)
    }

    /// The host's end of the switch: a native virtio-net driver that never waits for anything.
    pub fn host(&mut self) -> Result<NetDriver, String> {
        let (port, _, path) = self.port()?;
        self.engine.virtio(port, &path)?;
        guest(&path, session::Config { entries: HOST_RING, ..session::Config::default() })
    }
}
