//! What is measured: I/O cores in this process, and pairs of ports with a wire between them.
//!
//! One port of each pair is a guest's, the other stands for the network behind it. Both are virtio-net over
//! vhost-user, with native drivers (`guest`) that one thread plays in turn. *Ours* has all queues on the
//! given I/O cores, which poll. *Thread per device* is the same engine as vhost uses the kernel: each pair
//! has a thread of its own, which serves both directions, sleeps as soon as there is nothing to do, and is
//! woken by kicks. All those threads share the processors of the I/O cores.

use std::path::PathBuf;
use std::sync::Arc;

use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::graph::{Attach, CoreOptions, Graph};
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Port, PortId, Tenant};
use sidecore_engine::switch::{Switch, SwitchOptions};

use super::cores::{Card, Cores, Way};
use super::guest::Players;
use crate::e1000::stage as e1000;
use crate::engine::{Device, Direct, Engine};
use crate::prelude::*;

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
        Stage::open(&way.options(cpus, pairs), way, pairs, None)
    }

    /// So many pairs on I/O cores with these options; this tenant pays for all of their ports, if there is
    /// one.
    pub fn open(
        options: &CoreOptions,
        way: Way,
        pairs: usize,
        tenant: Option<&Arc<Tenant>>,
    ) -> Result<Stage> {
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

    /// Joins the ports of each pair by a learning switch instead of a wire: no sender waits for its receiver
    /// then.
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

    /// Plays all ends with the drivers of guests and their peers themselves.
    pub fn drive<R: Send>(
        &self,
        core: usize,
        what: impl FnOnce(Vec<NetDriver>, Vec<NetDriver>, Cores) -> Result<R> + Send,
    ) -> Result<R> {
        let (graph, way, paths) = (&self.engine.graph, self.way, &self.paths);
        let cpus = [&[core], &self.cpus[..]].concat();
        on(core, move || {
            let cores = Cores { graph: Arc::clone(graph), way, cpus };
            // All guests, then all that is behind them: so a core that gets every so-manieth queue serves
            // whole pairs.
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
