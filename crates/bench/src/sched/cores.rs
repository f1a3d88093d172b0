//! How I/O is done, and the I/O cores of a stage as the players' thread sees them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sidecore_driver::session::{Config, Want};
use sidecore_engine::core::Tuning;
use sidecore_engine::graph::{CoreOptions, Graph};
use sidecore_engine::port::DEFAULT_MTU;

use crate::peers;
use crate::prelude::*;

/// Bytes of a buffer beside a packet: Ethernet's header and virtio's, and some to spare.
const HEADERS: usize = 64;
/// A core that polls for as long does not sleep in a benchmark.
const ALWAYS: Duration = Duration::from_secs(3600);

/// What a guest has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Card {
    /// virtio-net, over vhost-user.
    #[default]
    Virtio,
    /// An 82574L, over vfio-user.
    E1000e,
}

/// How I/O is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its name in tables and JSON.
    pub name: &'static str,
    /// A thread for each device instead of one for each processor.
    pub per_device: bool,
    /// I/O cores look for work without being told of it.
    pub polls: bool,
    /// Guests ask for an interrupt when they have nothing to do.
    pub interrupts: bool,
    /// Queues that are stuck are looked at between two visits of others.
    pub urgent: bool,
    /// What ports carry.
    pub mtu: u32,
    /// What guests have; what is behind them is virtio-net.
    pub card: Card,
}

/// As vhost does.
pub const PER_DEVICE: Way =
    Way { name: "thread per device", per_device: true, polls: false, urgent: false, ..OURS };
/// As we do.
pub const OURS: Way = Way {
    name: "sidecore",
    per_device: false,
    polls: true,
    interrupts: true,
    urgent: true,
    mtu: DEFAULT_MTU,
    card: Card::Virtio,
};

/// As we do, with guests that poll as well, as the paper's replies without exits: no interrupt is written.
pub const POLLED: Way = Way { name: "guests poll", interrupts: false, ..OURS };

/// Frames of 9,000 bytes, and guests that poll. An I/O core copies them, and drivers do not read them: so one
/// thread that plays two guests gives a core more than it can do.
pub const JUMBO: Way = Way { name: "jumbo frames", mtu: 9000, ..POLLED };

impl Way {
    pub fn options(self, cpus: &[usize], pairs: usize) -> CoreOptions {
        let cpus = match self.per_device {
            true => cpus.iter().copied().cycle().take(pairs).collect(),
            false => cpus.to_vec(),
        };
        let tuning = Tuning {
            spin: if self.polls { ALWAYS } else { Duration::ZERO },
            urgent: self.urgent,
            // The benchmark chooses the core of each guest, and it stays there.
            balance: false,
            ..Tuning::default()
        };
        CoreOptions { cpus, tuning, ..CoreOptions::default() }
    }
}

/// The I/O cores, seen from the players' thread.
pub struct Cores {
    pub graph: Arc<Graph>,
    pub way: Way,
    /// The players' processor, and those of the cores.
    pub cpus: Vec<usize>,
}

impl Cores {
    /// Connects a driver, and waits until a core serves it.
    pub fn connect(&self, path: &Path) -> Result<NetDriver> {
        let features = sidecore_abi::virtio::features::EVENT_IDX;
        // A whole frame with its headers, and no odd size.
        let buffer = (self.way.mtu as usize + HEADERS).next_multiple_of(2048);
        let config = Config { want: Want::default().or(features), buffer, ..Config::default() };
        until_served(Some(&self.graph), || guest(path, config))
    }

    /// Probes how far they are from the players.
    pub fn distance(&self) -> Distance {
        Distance::before(&self.cpus)
    }

    /// Nanoseconds of work so far: by the account of cores that poll, else what their threads had of
    /// processors.
    pub fn busy(&self) -> u64 {
        if self.way.polls {
            return self.graph.status().iter().map(|core| core.busy_ns).sum();
        }
        cores_ran()
    }
}

/// Has `connect` bring up a driver, and waits until a core serves it, if they are of this process.
pub fn until_served<D>(graph: Option<&Graph>, connect: impl FnOnce() -> Result<D>) -> Result<D> {
    let Some(graph) = graph else { return connect() };
    let served = || graph.status().iter().map(|core| core.queues).sum::<usize>();
    let before = served();
    let driver = connect()?;
    let more = || Ok((served() != before).then_some(()));
    until("an I/O core serves a driver", START, Duration::from_micros(100), more)?;
    Ok(driver)
}

/// The threads of I/O cores in this process, in the order of their numbers.
pub fn io_cores() -> Vec<u32> {
    let of = std::process::id();
    let name = |thread: u32| fs::read_to_string(format!("/proc/{of}/task/{thread}/comm")).ok();
    let named = peers::threads(of).filter_map(|thread| Some((name(thread)?, thread)));
    let mut cores: Vec<_> = named.filter(|(name, _)| name.starts_with("io-core-")).collect();
    cores.sort();
    cores.into_iter().map(|(_, thread)| thread).collect()
}

/// Nanoseconds that they have had processors so far, by the kernel's account: without the time in which other
/// programs had them.
pub fn cores_ran() -> u64 {
    io_cores().into_iter().map(|thread| peers::ran(std::process::id(), thread)).sum()
}
