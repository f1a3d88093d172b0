//! What is measured: I/O cores in this process, and pairs of ports with a wire between them.
//!
//! Of each pair one port is a guest's, the other stands for the network behind it. Both are virtio-net over vhost-user, with
//! native drivers (`guest`) that one thread plays in turn. *Ours* has all queues on the given I/O cores, which poll. *Thread
//! per device* is the same engine as vhost uses the kernel: each pair has a thread of its own, which serves both directions,
//! sleeps as soon as there is nothing to do, and is woken by kicks. All those threads share the processors of the I/O cores.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_driver::net::NetDriver;
use sidecore_driver::session::{Config, Want};
use sidecore_driver::Frontend;
use sidecore_engine::core::Tuning;
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::graph::{Attach, CoreOptions, Graph};
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Port, PortId, Tenant, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};

use super::guest::Players;
use super::{on, text, Result};
use crate::distance::Distance;
use crate::e1000::stage as e1000;
use crate::engine::{Device, Direct, Engine};
use crate::ours::START;

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

/// The same for guests that poll as well, as the paper's replies without exits: no interrupt is written.
pub const POLLED: Way = Way { name: "guests poll", interrupts: false, ..OURS };

/// The same with frames of 9,000 bytes. An I/O core copies them, and drivers do not read them: so one thread that plays two guests
/// gives a core more than it can do.
pub const JUMBO: Way = Way { name: "jumbo frames", mtu: 9000, ..POLLED };

impl Way {
    fn options(self, cpus: &[usize], pairs: usize) -> CoreOptions {
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

/// I/O cores, and ports in pairs.
pub struct Stage {
    engine: Engine,
    /// The guests' cards, if they are [`Card::E1000e`].
    devices: Vec<Device>,
    way: Way,
    /// Processors of the I/O cores.
    cpus: Vec<usize>,
    /// Sockets of the guests and of what is behind them.
    paths: Vec<[PathBuf; 2]>,
}

impl Stage {
    /// So many pairs, served in this way on these processors.
    pub fn start(way: Way, cpus: &[usize], pairs: usize) -> Result<Stage> {
        Stage::with(&way.options(cpus, pairs), way, pairs)
    }

    /// The same on I/O cores with these options.
    pub fn with(options: &CoreOptions, way: Way, pairs: usize) -> Result<Stage> {
        Stage::open(options, way, pairs, None)
    }

    /// So many pairs, for all of whose ports this tenant pays.
    pub fn paid_by(tenant: &Arc<Tenant>, way: Way, cpus: &[usize], pairs: usize) -> Result<Stage> {
        Stage::open(&way.options(cpus, pairs), way, pairs, Some(tenant))
    }

    fn open(options: &CoreOptions, way: Way, pairs: usize, tenant: Option<&Arc<Tenant>>) -> Result<Stage> {
        let mut engine = Engine::start(options)?;
        let (mut devices, mut paths) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let mut port = |of_guest: bool| -> Result<PathBuf> {
                let (port, path) = engine.port(way.mtu, |port| match tenant {
                    Some(tenant) => port.paid_by(tenant),
                    None => port,
                })?;
                if way.card == Card::E1000e && of_guest {
                    let mac = Mac(e1000::mac(port.id.0.to_le_bytes()[0]));
                    let config = E1000Config::new(Model::E1000e, mac);
                    let device = E1000::new(config, Arc::clone(&port), engine.scheduler()).map_err(text)?;
                    devices.push(engine.card(port, &path, device)?);
                } else {
                    engine.virtio(port, &path)?;
                }
                Ok(path)
            };
            paths.push([port(true)?, port(false)?]);
        }
        let ids: Vec<PortId> = engine.ports.iter().map(|port| port.id).collect();
        engine.join(|number| Attach::Wire(ids[number ^ 1]));
        Ok(Stage { engine, devices, way, cpus: options.cpus.clone(), paths })
    }

    /// Joins the ports of each pair by a learning switch instead of a wire: no sender waits for its receiver then.
    pub fn join_by_switches(&self) {
        let pairs = 0..self.paths.len();
        let switch = |pair| Arc::new(Switch::new(&format!("s{pair}"), SwitchOptions::default()));
        let switches: Vec<_> = pairs.map(switch).collect();
        self.engine.join(|number| Attach::Switch(Arc::clone(&switches[number / 2])));
    }

    /// Sockets of the guest and of what is behind it, of each pair.
    pub fn paths(&self) -> &[[PathBuf; 2]] {
        &self.paths
    }

    /// What reaches the guest's card of a pair without messages, if that is a [`Card::E1000e`].
    pub fn direct(&self, pair: usize) -> Option<Direct> {
        self.devices.get(pair).map(|device| Direct(Arc::clone(device)))
    }

    /// The guest's port of a pair.
    pub fn guest(&self, pair: usize) -> &Arc<Port> {
        &self.engine.ports[2 * pair]
    }

    /// The I/O cores.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.engine.graph
    }

    /// Connects all drivers on a thread of its own on processor `core`, and has players with them do `what`.
    pub fn play<R: Send>(
        &self,
        core: usize,
        what: impl FnOnce(&mut Players) -> Result<R> + Send,
    ) -> Result<R> {
        self.drive(core, |guests, peers, cores| what(&mut Players::new(guests, peers, cores)?))
    }

    /// The same with the drivers of guests and their peers themselves.
    pub fn drive<R: Send>(
        &self,
        core: usize,
        what: impl FnOnce(Vec<NetDriver>, Vec<NetDriver>, Cores) -> Result<R> + Send,
    ) -> Result<R> {
        let (graph, way, paths) = (&self.engine.graph, self.way, &self.paths);
        let cpus = [&[core], &self.cpus[..]].concat();
        on(core, move || {
            let cores = Cores { graph: Arc::clone(graph), way, cpus };
            // All guests, then all that is behind them: so a core that gets every so-manieth queue serves whole pairs.
            let connect =
                |side: usize| paths.iter().map(|pair| cores.connect(&pair[side])).collect::<Result<Vec<_>>>();
            let (mut guests, peers) = (connect(0)?, connect(1)?);
            if way.interrupts {
                guests.iter_mut().for_each(NetDriver::ask_for_interrupts);
            }
            what(guests, peers, cores)
        })
    }
}

/// The I/O cores, seen from the players' thread.
pub struct Cores {
    graph: Arc<Graph>,
    way: Way,
    /// The players' processor, and those of the cores.
    cpus: Vec<usize>,
}

impl Cores {
    /// Connects a driver, and waits until a core serves it.
    fn connect(&self, path: &PathBuf) -> Result<NetDriver> {
        let features = sidecore_abi::virtio::features::EVENT_IDX;
        // A whole frame with its headers, and no odd size.
        let buffer = (self.way.mtu as usize + HEADERS).next_multiple_of(2048);
        let config = Config { want: Want::default().or(features), buffer, ..Config::default() };
        until_served(&self.graph, || {
            let frontend = Frontend::connect(path, START).map_err(text)?;
            NetDriver::start(frontend, config).map_err(text)
        })
    }

    /// Probes how far they are from the players.
    pub fn distance(&self) -> Distance {
        Distance::before(&self.cpus)
    }

    /// Nanoseconds of work so far: by the account of cores that poll, else what their threads had of processors.
    pub fn busy(&self) -> u64 {
        if self.way.polls {
            return self.graph.status().iter().map(|core| core.busy_ns).sum();
        }
        cores_ran()
    }
}

/// Has `connect` bring up a driver, and waits until a core serves it.
pub fn until_served<D>(graph: &Graph, connect: impl FnOnce() -> Result<D>) -> Result<D> {
    let served = || graph.status().iter().map(|core| core.queues).sum::<usize>();
    let (before, start) = (served(), Instant::now());
    let driver = connect()?;
    while served() == before {
        if start.elapsed() > START {
            return Err("no I/O core serves a driver".to_owned());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(driver)
}

/// Nanoseconds that the threads of I/O cores have had processors so far, by the kernel's account: without the time in which other
/// programs had them.
pub fn cores_ran() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ours = tasks
        .map(|task| task.path())
        .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("io-core-")));
    let ran = |task: PathBuf| {
        fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    ours.filter_map(ran).sum()
}
