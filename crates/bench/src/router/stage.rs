//! What is measured: a router on one I/O core of this process between two ring ports or two virtio ports, and
//! one thread that is the sender and the receiver by turns.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sidecore_engine::core::Tuning;
use sidecore_engine::graph::{Attach, CoreOptions};
use sidecore_engine::port::DEFAULT_MTU;
use sidecore_engine::router::{Member, Net, Router, Rpf, Static, Target};
use sidecore_engine::transport::ring::{RingPort, RingPortConfig};

use super::super::engine::Engine;
use super::ends::{gateway4, gateway6, own4, own6, Ends, Kind, ROUTER};
use crate::prelude::*;

/// A route through the gateway of that number.
pub fn via(address: IpAddr, len: u8, number: u32) -> Static {
    let gateway = if address.is_ipv4() { gateway4(number).into() } else { gateway6(number).into() };
    Static { prefix: Net { address, len }, target: Target::Via(vec![gateway], None) }
}

named! {
    /// What is between the two ports.
    pub enum Between {
        Router = "sidecore",
        Wire = "wire",
    }
}

/// The engine with a router.
pub struct Stage {
    engine: Engine,
    router: Arc<Router>,
    members: Vec<Member>,
    kind: Kind,
    io_core: usize,
    paths: [PathBuf; 2],
}

impl Stage {
    /// A router without routes on processor `io_core`, between two ports of this kind.
    pub fn start(io_core: usize, kind: Kind) -> Result<Stage> {
        let tuning = Tuning { spin: Duration::from_secs(3600), balance: false, ..Tuning::default() };
        let options = CoreOptions { cpus: vec![io_core], tuning, ..CoreOptions::default() };
        let mut engine = Engine::start(&options)?;
        let router = Arc::new(Router::new("r").map_err(text)?);
        let (mut members, mut paths) = (Vec::new(), Vec::new());
        for (number, mac) in (0u8..).zip(ROUTER) {
            let (port, path) = engine.port(DEFAULT_MTU, |port| port)?;
            let addresses = vec![
                Net { address: own4(number).into(), len: 24 },
                Net { address: own6(number.into()).into(), len: 64 },
            ];
            members.push(Member { port, mac, addresses, control: None, rpf: Rpf::Off });
            paths.push(path);
        }
        router.configure(&members, &[], 1);
        for (member, path) in members.iter().zip(&paths) {
            let port = Arc::clone(&member.port);
            match kind {
                Kind::Virtio => engine.virtio(port, path)?,
                Kind::Ring => {
                    let config = RingPortConfig::new(path);
                    engine.attach(RingPort::start(config, port, engine.scheduler()).map_err(text)?);
                }
            }
        }
        let paths = paths.try_into().map_err(|_| "two ports")?;
        let stage = Stage { engine, router, members, kind, io_core, paths };
        stage.join(Between::Router);
        Ok(stage)
    }

    /// Puts this between the two ports.
    pub fn join(&self, between: Between) {
        self.engine.join(|number| match between {
            Between::Router => Attach::Router(Arc::clone(&self.router)),
            Between::Wire => Attach::Wire(self.members[1 - number].port.id),
        });
    }

    /// Has exactly these routes beside its own; how many seconds that took.
    pub fn routes(&self, routes: &[Static]) -> f64 {
        let begun = Instant::now();
        self.router.configure(&self.members, routes, self.engine.graph.seconds());
        begun.elapsed().as_secs_f64()
    }

    /// Bytes that the I/O core may touch of the tables.
    pub fn bytes(&self) -> usize {
        self.router.table_bytes()
    }

    /// Has one thread on processor `core` do `what` with both ends.
    pub fn play<R: Send>(&self, core: usize, what: impl FnOnce(Ends) -> Result<R> + Send) -> Result<R> {
        let (kind, cpus, paths, graph) = (self.kind, [core, self.io_core], &self.paths, &self.engine.graph);
        on(core, move || {
            let (from, to) = (kind.connect(&paths[0])?, kind.connect(&paths[1])?);
            what(Ends { cpus, graph: Some(graph), from, to })
        })
    }
}
