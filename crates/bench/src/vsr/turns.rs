//! Load and guest on one processor without threads: the load sends, the router has a turn, the load receives,
//! and so on.
//!
//! Nothing sleeps and nothing is switched, so this is what two processors can show of an I/O core that has
//! one to itself. No more frames are under way than rings hold, so a loss is that of what is between.

use std::path::PathBuf;

use sidecore_driver::guest_router::{Config, GuestRouter, Hop, BUDGET};
use sidecore_driver::load::Lane;
use sidecore_engine::graph::Graph;

use super::super::ends::Side;
use super::super::sched::cores::until_served;
use super::super::sched::stage::Stage as Io;
use super::stage::{lane, Sample};
use crate::prelude::*;

/// Large frames: without check sequence, their packets have 9,000 bytes. The guest does no more than copy
/// them; all buffers of a ring stay in the processors' caches.
pub const JUMBOS: Frames = Frames { bytes: 9014, cost_ns: 0.0, ring: 256 };
/// The stations of the load, to which frames go as they came.
const STATIONS: [[u8; 6]; 2] = [[2, 0x73, 0x63, 0, 0, 1], [2, 0x73, 0x63, 0, 0, 2]];

/// What is sent, and by which rings.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    /// Bytes of each, without check sequence.
    pub bytes: usize,
    /// What each costs of the guest's time.
    pub cost_ns: f64,
    /// Entries of all rings.
    pub ring: u16,
}

/// Both ends of the load, and the router between them.
pub struct Turns<'g> {
    from: Side,
    to: Side,
    router: GuestRouter<Lane>,
    cpus: Processors,
    /// The I/O cores, if they are of this process.
    graph: Option<&'g Graph>,
    /// Frames under way at most.
    window: u64,
}

impl<'g> Turns<'g> {
    /// Connects everything to these sockets: of each pair the guest's and the one outside. On the load's
    /// processor.
    ///
    /// # Errors
    /// A socket does not take us.
    pub fn connect(
        paths: &[[PathBuf; 2]],
        cpus: Processors,
        frames: Frames,
        graph: Option<&'g Graph>,
    ) -> Result<Turns<'g>> {
        let Frames { bytes, cost_ns, ring } = frames;
        let card = |pair: usize| {
            until_served(graph, || {
                let frontend = Frontend::connect(&paths[pair][0], START).map_err(text)?;
                lane(frontend, ring, [ring; 2], bytes)
            })
        };
        let cards = [card(0)?, card(1)?];
        let end = |pair: usize, number: u8| {
            until_served(graph, || Side::virtio(&paths[pair][1], number, (ring, bytes)))
        };
        let (from, to) = (end(0, 0)?, end(1, 1)?);
        let hop = |port: usize| Hop { from: STATIONS[1 - port], to: STATIONS[port] };
        let config = Config { hops: [hop(0), hop(1)], cost_ns, budget: BUDGET };
        let router = GuestRouter::new(cards, &config).map_err(text)?;
        let window = u64::from(ring / 2);
        let mut turns = Turns { from, to, router, cpus, graph, window };
        let first = turns.to.received()?;
        until("a frame passes the router", START, Duration::ZERO, || {
            turns.run(Duration::from_millis(1))?;
            Ok((turns.to.received()? != first).then_some(()))
        })?;
        Ok(turns)
    }

    /// Connects everything to these I/O cores, on a thread on the load's processor, which does `what` with
    /// it.
    ///
    /// # Errors
    /// An I/O core does not take us, or `what` fails.
    pub fn on<R: Send>(
        io: &Io,
        cpus: Processors,
        frames: Frames,
        what: impl FnOnce(&mut Turns<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        let (graph, paths) = (io.graph(), io.paths());
        on(cpus.load_core, || what(&mut Turns::connect(paths, cpus, frames, Some(graph))?))
    }

    /// Load and router as fast as they go for a quarter of this time, and then for all of it, which counts.
    ///
    /// # Errors
    /// The other side is gone, or frames are lost or changed.
    pub fn measure(&mut self, window: Duration) -> Result<Sample> {
        let distance = Distance::before(&self.cpus.pair());
        self.run(window / 4)?;
        let (came, io, sent) = (self.to.received()?, self.io_ns(), self.from.sent());
        let (counts, start) = (self.router.counters().load(), Instant::now());
        self.run(window)?;
        let seconds = start.elapsed().as_secs_f64();
        let counts = self.router.counters().load().since(&counts);
        let sent = self.from.sent() - sent;
        let rate = |frames: u64| frames as f64 / seconds / 1e6;
        Ok(Sample {
            offered: rate(sent),
            forwarded: rate(self.to.received()? - came),
            refused: 0.0,
            wasted: counts.no_room as f64 / sent.max(1) as f64,
            vcpu: f64::NAN,
            io: (self.io_ns() - io) as f64 / 1e9 / seconds,
            load: 1.0,
            late: 0.0,
            mode: distance.after(),
        })
    }

    /// Nanoseconds that the I/O cores were busy.
    fn io_ns(&self) -> u64 {
        self.graph.map_or(0, |graph| graph.status().iter().map(|core| core.busy_ns).sum())
    }

    /// Sends for as long as `time`.
    fn run(&mut self, time: Duration) -> Result<()> {
        let Turns { from, to, router, window, .. } = self;
        let turn = || {
            router.turn().map_err(text)?;
            to.receive()?;
            Ok(to.gone())
        };
        from.run(*window, time, turn).map(drop)
    }
}
