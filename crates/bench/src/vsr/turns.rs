//! Load and guest on one processor without threads: the load sends, the router has a turn, the load receives,
//! and so on.
//!
//! Nothing sleeps and nothing is switched, so this is what two processors can show of an I/O core that has
//! one to itself. No more frames are under way than rings hold, so a loss is that of what is between.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_driver::guest_router::{Config, GuestRouter, Hop, BUDGET};
use sidecore_driver::load::Lane;
use sidecore_driver::Frontend;
use sidecore_engine::graph::Graph;
use sidecore_engine::port::Tenant;

use super::super::common::{self, text, Result};
use super::super::distance::Distance;
use super::super::ends::Side;
use super::super::ours::START;
use super::super::sched::cores::{until_served, Way, JUMBO};
use super::super::sched::stage::Stage as Io;
use super::stage::{lane, Cpus, Sample};

/// Nothing came for so long: what is missing is lost.
const LOST_AFTER: Duration = Duration::from_millis(300);
/// Large frames: without check sequence, their packets have 9,000 bytes. The guest does no more than copy
/// them; all buffers of a ring stay in the processors' caches.
const JUMBOS: Frames = Frames { bytes: 9014, cost_ns: 0.0, ring: 256 };
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
    cpus: Cpus,
    /// The I/O cores, if they are of this process.
    graph: Option<&'g Graph>,
    sent: u64,
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
        cpus: Cpus,
        frames: Frames,
        graph: Option<&'g Graph>,
    ) -> Result<Turns<'g>> {
        let Frames { bytes, cost_ns, ring } = frames;
        let card = |pair: usize| {
            served(graph, || {
                let frontend = Frontend::connect(&paths[pair][0], START).map_err(text)?;
                lane(frontend, ring, [ring; 2], bytes)
            })
        };
        let cards = [card(0)?, card(1)?];
        let end =
            |pair: usize, number: u8| served(graph, || Side::virtio(&paths[pair][1], number, (ring, bytes)));
        let (from, to) = (end(0, 0)?, end(1, 1)?);
        let hop = |port: usize| Hop { from: STATIONS[1 - port], to: STATIONS[port] };
        let config = Config { hops: [hop(0), hop(1)], cost_ns, budget: BUDGET };
        let router = GuestRouter::new(cards, &config).map_err(text)?;
        let window = u64::from(ring / 2);
        let mut turns = Turns { from, to, router, cpus, graph, sent: 0, window };
        let (start, first) = (Instant::now(), turns.to.received()?);
        while turns.to.received()? == first {
            turns.turn()?;
            if start.elapsed() > START {
                return Err("no frame passes the router".to_owned());
            }
        }
        Ok(turns)
    }

    /// Has I/O cores of this process serve the router in this way, and a thread on the load's processor do
    /// `what` with it.
    ///
    /// # Errors
    /// Something is missing, or `what` fails.
    pub fn with<R: Send>(
        way: Way,
        cpus: Cpus,
        frames: Frames,
        what: impl FnOnce(&mut Turns<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        on(&Io::start(way, &[cpus.io], 2)?, cpus, frames, what)
    }

    /// As [`with`](Self::with), with large frames: the I/O core has more to copy of them than the guest has.
    /// `tenant` pays for all.
    ///
    /// # Errors
    /// Something is missing, or `what` fails.
    pub fn jumbo<R: Send>(
        tenant: &Arc<Tenant>,
        cpus: Cpus,
        what: impl FnOnce(&mut Turns<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        on(&Io::paid_by(tenant, JUMBO, &[cpus.io], 2)?, cpus, JUMBOS, what)
    }

    /// Load and router as fast as they go for a quarter of this time, and then for all of it, which counts.
    ///
    /// # Errors
    /// The other side is gone, or frames are lost or changed.
    pub fn measure(&mut self, window: Duration) -> Result<Sample> {
        let cpus = [self.cpus.load, self.cpus.io];
        let distance = Distance::before(&cpus);
        self.run(window / 4)?;
        let (came, io, sent) = (self.to.received()?, self.io_ns(), self.sent);
        let (counts, start) = (self.router.counters().load(), Instant::now());
        self.run(window)?;
        let seconds = start.elapsed().as_secs_f64();
        let counts = self.router.counters().load().since(&counts);
        let rate = |frames: u64| frames as f64 / seconds / 1e6;
        let sent = self.sent - sent;
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

    fn run(&mut self, window: Duration) -> Result<()> {
        let start = Instant::now();
        let (mut seen, mut heard) = (self.to.received()?, start);
        while start.elapsed() < window {
            (0..16).try_for_each(|_| self.turn())?;
            let came = self.to.received()?;
            if came != seen {
                (seen, heard) = (came, Instant::now());
            } else if heard.elapsed() > LOST_AFTER {
                // Nothing is under way any more.
                self.sent = self.gone()?;
                heard = Instant::now();
            }
        }
        Ok(())
    }

    /// Frames of those sent that are not under way.
    fn gone(&self) -> Result<u64> {
        Ok(self.to.received()? + self.to.lost_and_wrong().0)
    }

    #[inline]
    fn turn(&mut self) -> Result<()> {
        let room = self.window.saturating_sub(self.sent.saturating_sub(self.gone()?));
        self.sent += self.from.send(usize::try_from(room).unwrap_or(0))? as u64;
        self.router.turn().map_err(text)?;
        self.to.receive()
    }
}

/// Connects everything to these I/O cores, on a thread on the load's processor, which does `what` with it.
fn on<R: Send>(
    io: &Io,
    cpus: Cpus,
    frames: Frames,
    what: impl FnOnce(&mut Turns<'_>) -> Result<R> + Send,
) -> Result<R> {
    let (graph, paths) = (io.graph(), io.paths());
    common::on(cpus.load, || what(&mut Turns::connect(paths, cpus, frames, Some(graph))?))
}

/// Connects a driver, and waits until a core of this process serves it, if that is where they are.
fn served<D>(graph: Option<&Graph>, connect: impl FnOnce() -> Result<D>) -> Result<D> {
    match graph {
        Some(graph) => until_served(graph, connect),
        None => connect(),
    }
}
