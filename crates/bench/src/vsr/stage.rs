//! What is measured: a guest router between two cards, an I/O core or a thread for each device that serves
//! them, and a load outside that sends at one port and receives at the other.
//!
//! The guest's ends of two pairs of ports (`sched::stage`) are the router's cards, the others are the
//! network's: *outside* is where the physical cards of the paper are. The load has a processor to itself.
//! Each pair is a wire, or has a switch of its own.
//!
//! A queue's length is the number of frames that its ring holds, which need not be a power of two: the driver
//! gives the device no more buffers than that ([`LaneConfig::depth`]).

use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::guest_router::{Config, GuestRouter, Hop, Vcpu, BUDGET};
use sidecore_driver::load::{Lane, LaneConfig};

use super::super::engine::Direct;
use super::super::lane::End;
use super::super::rfc2544::traffic::{Lengths, Traffic, FCS};
use super::super::rfc2544::trial::{Spell, Tester};
use super::super::sched::cores::{io_cores, until_served, Way, OURS, PER_DEVICE};
use super::super::sched::stage::Stage as Io;
use super::super::target::Stations;
use super::threads::{self, Class, Pinned};
use crate::prelude::*;

/// Entries of rings: QEMU's default of a guest's, and as many as a card outside may have.
pub const GUEST_RING: u16 = 256;
pub const OUTSIDE_RING: u16 = 1024;
/// Bytes of a frame, with check sequence.
pub const SIZE: usize = 64;
/// The load's real-time class: below that of the probes of distance.
const LOAD_PRIORITY: u8 = 10;
/// The class of one that has a processor to itself.
pub const ALONE: Class = Class::Fifo(LOAD_PRIORITY);
/// What the load sleeps between two turns, if others share its processor.
const NAP: Duration = Duration::from_micros(60);
/// The nap where each turn wakes several guests that have little of the processor.
const LONG_NAP: Duration = Duration::from_micros(200);
/// What the load is granted where guests have reservations: its deadline is before theirs.
const LOAD_SHARE: f64 = 0.35;
const LOAD_PERIOD: Duration = Duration::from_millis(1);
/// The station that sends, the router's two, and the one that receives.
const SENDER: [u8; 6] = [2, 0x73, 0x63, 0, 0, 1];
const ROUTER: [[u8; 6]; 2] = [[2, 0x73, 0x63, 0, 2, 1], [2, 0x73, 0x63, 0, 2, 2]];
const RECEIVER: [u8; 6] = [2, 0x73, 0x63, 0, 0, 2];

/// An I/O core that has no processor to itself: it sleeps when it has nothing to do, as with `spin = 0`.
pub const SHARED_CORE: Way = Way { name: "I/O core", polls: false, ..OURS };
/// A thread for each card.
pub const THREADS: Way = Way { name: "thread per device", ..PER_DEVICE };

/// How router and I/O are set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub way: Way,
    /// By switches instead of wires.
    pub switched: bool,
    /// Nanoseconds of the guest's time for a frame.
    pub cost_ns: f64,
    /// Frames that each of the guest's rings holds: to receive, to send.
    pub guest: [u16; 2],
    /// Frames that wait outside at most.
    pub outside: u16,
}

impl Setup {
    /// A router of this cost with rings as QEMU has them, behind wires.
    pub fn new(way: Way, cost_ns: f64) -> Setup {
        Setup { way, switched: false, cost_ns, guest: [GUEST_RING; 2], outside: OUTSIDE_RING }
    }
}

/// Where guest and I/O threads run, and in which classes.
#[derive(Clone, Copy, Debug)]
pub enum Placement {
    /// Both on the processor of I/O: the guest in the first class, I/O in the second one.
    Together(Class, Class),
    /// The guest on the load's processor, which it has whenever the load sleeps; I/O has its own alone.
    IoAlone(Class),
    /// The other way round: I/O is on the load's.
    GuestAlone(Class),
    /// All guests in this class on the load's processor, of which the load has a reservation that goes first;
    /// I/O has its own alone.
    Reserved(Class),
    /// Both with the load on one processor.
    One,
    /// Both on any of the two processors, as the kernel likes.
    Free,
}

/// The stations of router and outside.
pub fn hops() -> [Hop; 2] {
    [Hop { from: ROUTER[0], to: SENDER }, Hop { from: ROUTER[1], to: RECEIVER }]
}

/// A driver of a port.
pub fn lane(frontend: Frontend, entries: u16, depth: [u16; 2], longest: usize) -> Result<Lane> {
    let config = LaneConfig { entries, depth, longest, mergeable: true, page: Page::Small };
    Lane::new(frontend, config).map_err(text)
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Million frames a second: offered, and out of the router again.
    pub offered: f64,
    pub forwarded: f64,
    /// Parts of the offered frames: not taken from outside, routed for nothing.
    pub refused: f64,
    pub wasted: f64,
    /// Parts of a processor that the guest and the I/O threads had.
    pub vcpu: f64,
    pub io: f64,
    /// Part of its time in which the load had something to do, and of the frames that it was late for.
    pub load: f64,
    pub late: f64,
    pub mode: Mode,
}

/// Routers that run, and their load.
pub struct Bench<'t> {
    tester: Tester<'t>,
    pub vcpus: Vec<Vcpu>,
    /// Threads that do I/O.
    pub io: Vec<u32>,
    cpus: Processors,
}

/// Sets everything up, and has a thread on the load's processor do `what` with it.
///
/// # Errors
/// Something is missing, or `what` fails.
pub fn play<R: Send>(
    setup: &Setup,
    cpus: Processors,
    what: impl FnOnce(&mut Bench<'_>) -> Result<R> + Send,
) -> Result<R> {
    let _pinned = Pinned::new()?;
    let io = Io::start(setup.way, &[cpus.io_core], 2)?;
    if setup.switched {
        io.join_by_switches();
    }
    let traffic = traffic(1)?;
    let (graph, paths, direct) = (io.graph(), io.paths(), [io.direct(0), io.direct(1)]);
    on(cpus.load_core, || {
        let threads = io_cores();
        let longest = SIZE - FCS;
        let connect = |pair: usize, side: usize, entries: u16, depth: [u16; 2]| {
            until_served(Some(graph), || {
                let frontend = Frontend::connect(&paths[pair][side], START).map_err(text)?;
                lane(frontend, entries, depth, longest)
            })
        };
        let config = Config { hops: hops(), cost_ns: setup.cost_ns, budget: BUDGET };
        // Cards of the guest first: so a thread for each device serves a whole pair.
        let vcpu = match direct {
            [Some(first), Some(second)] => {
                let card = |pair: usize, direct: Direct| {
                    until_served(Some(graph), || {
                        let mut card =
                            E1000::open(&paths[pair][0], &e1000::Config::default()).map_err(text)?;
                        card.client().shortcut(Box::new(direct));
                        Ok(card)
                    })
                };
                GuestRouter::new([card(0, first)?, card(1, second)?], &config).and_then(GuestRouter::start)
            }
            _ => {
                let card = |pair: usize| connect(pair, 0, GUEST_RING.max(ring(setup.guest)), setup.guest);
                GuestRouter::new([card(0)?, card(1)?], &config).and_then(GuestRouter::start)
            }
        };
        let vcpu = vcpu.map_err(text)?;
        let outside = |pair: usize, depth: u16| {
            let lane = connect(pair, 1, OUTSIDE_RING, [OUTSIDE_RING, depth])?;
            Ok::<_, String>(End::Virtio(Box::new(lane)))
        };
        let (from, to) = (outside(0, setup.outside)?, outside(1, OUTSIDE_RING)?);
        what(&mut Bench::new(&traffic, [from, to], None, vec![vcpu], threads, cpus)?)
    })
}

/// What the load sends, in so many flows.
///
/// # Errors
/// None: it can be made.
pub fn traffic(flows: u64) -> Result<Traffic> {
    let stations = Stations { from: SENDER, to: ROUTER[0] };
    Traffic::new(&Lengths::Fixed(SIZE), stations, flows, [None, None])
}

/// The smallest ring that is as long as both depths.
fn ring(depth: [u16; 2]) -> u16 {
    depth[0].max(depth[1]).next_power_of_two()
}

impl<'t> Bench<'t> {
    /// Between these ends outside, of which the receiver may have to say something so that it is known; waits
    /// until frames pass. On the load's thread and processor.
    ///
    /// # Errors
    /// None passes, or real-time priorities are not allowed.
    pub fn new(
        traffic: &'t Traffic,
        ends: [End; 2],
        hello: Option<Vec<u8>>,
        vcpus: Vec<Vcpu>,
        io: Vec<u32>,
        cpus: Processors,
    ) -> Result<Bench<'t>> {
        let [from, to] = ends;
        let mut tester = Tester::new(traffic, from, Some(to), hello);
        tester.connect(START)?;
        // Other programs do not hold it up: what it could not offer would not count.
        threads::place(this_thread(), Class::Fifo(LOAD_PRIORITY), &[cpus.load_core])?;
        Ok(Bench { tester, vcpus, io, cpus })
    }

    /// Guest and I/O threads are there from now on.
    ///
    /// # Errors
    /// It is not allowed.
    pub fn place(&mut self, placement: Placement) -> Result<()> {
        // The load goes first: it is what comes from the network.
        let below = Class::Fifo(LOAD_PRIORITY - 1);
        let Processors { load_core: load, io_core: io } = self.cpus;
        let (load, io, any) = (&[load][..], &[io][..], &[load, io][..]);
        let (guest, others) = match placement {
            Placement::Together(guest, others) => ((guest, io), (others, io)),
            Placement::IoAlone(others) => ((below, load), (others, io)),
            Placement::GuestAlone(guest) => ((guest, io), (below, load)),
            Placement::Reserved(guests) => ((guests, load), (ALONE, io)),
            Placement::One => ((Class::Fair, io), (Class::Fair, io)),
            Placement::Free => ((Class::Fair, any), (Class::Fair, any)),
        };
        if !matches!(placement, Placement::Together(..)) {
            let longer = matches!(placement, Placement::Reserved(_));
            self.tester.naps(if longer { LONG_NAP } else { NAP });
        }
        match placement {
            Placement::One => threads::place(this_thread(), ALONE, io)?,
            Placement::Reserved(_) => {
                threads::place(this_thread(), Class::reserved(LOAD_SHARE, LOAD_PERIOD), load)?;
            }
            _ => {}
        }
        self.vcpus.iter().try_for_each(|vcpu| threads::place(vcpu.thread(), guest.0, guest.1))?;
        self.io.iter().try_for_each(|thread| threads::place(*thread, others.0, others.1))
    }

    /// Offers `mpps` million frames a second for `time`.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn offer(&mut self, mpps: f64, time: Duration) -> Result<Sample> {
        let distance = Distance::before(&self.cpus.pair());
        let (vcpus, io) = (self.vcpus.iter().map(Vcpu::thread).collect::<Vec<_>>(), self.io.clone());
        let (no_room, before) = (self.no_room(), [threads::ran(&vcpus), threads::ran(&io)]);
        let (spell, mut after) = (Spell::of(mpps * 1e6, time.as_secs_f64()), before);
        let trial =
            self.tester.run_with(&[spell], false, || after = [threads::ran(&vcpus), threads::ran(&io)])?;
        let of = |after: u64, before: u64| (after - before) as f64 / 1e9 / trial.seconds;
        let [vcpu, io] = [of(after[0], before[0]), of(after[1], before[1])];
        let offered = trial.offered().max(1) as f64;
        Ok(Sample {
            offered: offered / trial.seconds / 1e6,
            forwarded: trial.came.frames as f64 / trial.seconds / 1e6,
            refused: trial.refused as f64 / offered,
            wasted: (self.no_room() - no_room) as f64 / offered,
            vcpu,
            io,
            load: trial.busy,
            late: trial.late as f64 / trial.asked.max(1) as f64,
            mode: distance.after(),
        })
    }

    /// Frames that were routed for nothing so far.
    fn no_room(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.counts().no_room).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sidecore_engine::device::e1000::Model;
    use sidecore_pktgen::end::Source;

    use super::super::super::e1000::stage::{mac, Limits, Stage};
    use super::super::super::rfc2544::traffic::Maker;
    use super::*;

    #[test]
    fn a_guest_routes_between_emulated_cards() {
        for model in [Model::E1000, Model::E1000e] {
            let mut stage = Stage::that_sleeps(0).unwrap();
            let config = e1000::Config { ring: 64, ..e1000::Config::default() };
            // Stations 0 and 1 are the router's, 2 and 3 those outside, all on one switch.
            let mut card = || stage.guest(model, Limits::NONE, &config).unwrap();
            let cards = [card(), card()];
            let (mut from, mut to) = (stage.host().unwrap(), stage.host().unwrap());
            let hops = [Hop { from: mac(0), to: mac(2) }, Hop { from: mac(1), to: mac(3) }];
            let config = Config { hops, cost_ns: 100.0, budget: BUDGET };
            let vcpu = GuestRouter::new(cards, &config).unwrap().start().unwrap();
            let stations = Stations { from: mac(2), to: mac(0) };
            let traffic = Traffic::new(&Lengths::Fixed(SIZE), stations, 1, [None, None]).unwrap();
            let mut maker = Maker::new(&traffic, 1);
            let (start, mut came) = (Instant::now(), 0);
            while came < 500 {
                assert!(start.elapsed() < START, "{model:?}: {came} of 500, {:?}", vcpu.counts());
                from.send_with(0, 8, |_, buffer| maker.write(buffer)).unwrap();
                to.receive(0, |_, frame| {
                    // The switch floods until it knows the router: other frames may come, too.
                    if frame[..6] == mac(3) {
                        assert_eq!((&frame[6..12], frame[22]), (&mac(1)[..], 63));
                        came += 1;
                    }
                })
                .unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            // The guest counts at the end of its turn, when frames of that may have arrived.
            while vcpu.counts().forwarded < 500 {
                assert!(start.elapsed() < START, "{:?}", vcpu.counts());
                std::thread::yield_now();
            }
            assert!(vcpu.counts().interrupts > 0, "{:?}", vcpu.counts());
            vcpu.stop().unwrap();
        }
    }
}
