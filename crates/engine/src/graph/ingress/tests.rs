//! A wire to a receiver of several queues, some of which give no buffers.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use super::*;
use crate::core::tests::by_hand::ByHand;
use crate::core::Home;
use crate::graph::{Attach, CoreOptions, Graph, Topology};
use crate::observe::CounterFile;
use crate::packet::MAX_BATCH;
use crate::policy::acl::{Acl, Action};
use crate::policy::Policy;
use crate::port::{DropReason, EgressQueue, Outcome, PortId, Room, DEFAULT_MTU};
use crate::router::Router;
use crate::switch::{Switch, SwitchOptions};

const QUEUES: usize = 4;
const SIZE: u32 = 1024;
/// The number of the only task.
const SOURCE: u64 = 1;

/// What the test and a sender share.
#[derive(Default)]
struct Sender {
    waiting: Mutex<VecDeque<u32>>,
    /// Frames fetched and not given back.
    out: AtomicUsize,
}

struct Source(Arc<Sender>);

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        assert_eq!(self.0.out.load(Ordering::Relaxed), 0, "asked for more while frames are held");
        let mut waiting = self.0.waiting.lock().unwrap();
        while batch.room() > 0 {
            let Some(number) = waiting.pop_front() else { break };
            let mut frame = [0; 60];
            // The flow, and its number.
            frame[0] = number.to_le_bytes()[0] & 0xfc;
            frame[50..54].copy_from_slice(&number.to_le_bytes());
            assert!(batch.push_short(&frame));
            tally.frames += 1;
            tally.bytes += 60;
        }
        self.0.out.store(batch.len(), Ordering::Relaxed);
    }

    fn has_frames(&mut self) -> bool {
        !self.0.waiting.lock().unwrap().is_empty()
    }

    fn release(&mut self, _: &mut Tally) {
        self.0.out.store(0, Ordering::Relaxed);
    }

    fn want_kicks(&mut self, _: bool) -> bool {
        false
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What the test and a queue of the receiver share.
#[derive(Default)]
struct Receiver {
    free: AtomicUsize,
    asked: AtomicUsize,
    got: Mutex<Vec<u32>>,
}

struct Sink(Arc<Receiver>);

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            let frame = &batch.frames()[usize::from(*pick)];
            let free = self.0.free.load(Ordering::Relaxed);
            if free == 0 {
                outcome.dropped(*pick, DropReason::RingFull);
                continue;
            }
            self.0.free.store(free - 1, Ordering::Relaxed);
            outcome.delivered(frame.len);
            let mut number = [0; 4];
            number.copy_from_slice(&frame.head[50..54]);
            self.0.got.lock().unwrap().push(u32::from_le_bytes(number));
        }
    }

    fn room(&mut self) -> Option<Room> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        let free = u32::try_from(self.0.free.load(Ordering::Relaxed)).unwrap();
        Some(Room { free, size: SIZE })
    }
}

struct Rig {
    core: ByHand<Local>,
    home: Option<Home<Source>>,
    _sinks: Vec<Lease<Sink>>,
    ports: [Arc<Port>; 2],
    sender: Arc<Sender>,
    queues: Vec<Arc<Receiver>>,
    offered: u32,
}

impl Rig {
    fn new(queues: usize, patience: Duration) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let ports = [(0, "a"), (1, "b")].map(|(id, name)| {
            let counters = file.open_slot(PortId(id), name);
            Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
        });
        let receivers: Vec<Arc<Receiver>> = (0..queues).map(|_| Arc::default()).collect();
        let mut sinks = Vec::new();
        for (number, receiver) in receivers.iter().enumerate() {
            receiver.free.store(SIZE as usize, Ordering::Relaxed);
            sinks.push(ports[1].lend(number, Sink(Arc::clone(receiver))));
        }
        let sender = Arc::<Sender>::default();
        let mut core = ByHand::new(Local::by_hand());
        let home = Home::of(|task| Some(task.downcast::<NetTask<Source>>().ok()?.queue));
        let task = NetTask::new(&ports[0], 0, Source(Arc::clone(&sender)), patience);
        assert_eq!(core.take(home.lend(Box::new(task) as _)), SOURCE);
        let wire = [(0, 1), (1, 0)].map(|(at, to)| (Arc::clone(&ports[at]), Attach::Wire(PortId(to))));
        core.local().topology = Arc::new(Topology::new(&wire));
        Rig { core, home: Some(home), _sinks: sinks, ports, sender, queues: receivers, offered: 0 }
    }

    fn offer(&mut self, frames: usize) {
        let mut waiting = self.sender.waiting.lock().unwrap();
        for _ in 0..frames {
            waiting.push_back(self.offered);
            self.offered += 1;
        }
    }

    fn got(&self) -> Vec<usize> {
        self.queues.iter().map(|queue| queue.got.lock().unwrap().len()).collect()
    }

    /// All that was taken was delivered or dropped, and each queue has its frames in order.
    fn check(&self) -> u64 {
        assert_eq!(self.sender.out.load(Ordering::Relaxed), 0);
        let (from, to) = (self.ports[0].counters.totals(), self.ports[1].counters.totals());
        let drops = |totals: &crate::observe::Totals| totals.named_drops().map(|(_, n)| n).sum::<u64>();
        assert_eq!(from.in_frames, to.out_frames + drops(&to) + drops(&from));
        assert!(self.queues.iter().all(|queue| queue.got.lock().unwrap().is_sorted()));
        drops(&to) + drops(&from)
    }
}

#[test]
fn one_stuck_queue_holds_its_own_frames_alone() {
    let mut rig = Rig::new(QUEUES, Duration::from_secs(1_000));
    rig.queues[2].free.store(3, Ordering::Relaxed);
    rig.offer(MAX_BATCH);
    let moved = rig.core.visit(0);
    let got = rig.got();
    assert!(got.iter().all(|n| *n > 0) && got[2] == 3, "{got:?}");
    let held = MAX_BATCH - got.iter().sum::<usize>();
    assert!(held > 0 && moved == got.iter().sum::<usize>() as u64);
    // The sender's frames stay its own, and are asked for again and again, but no more are taken.
    rig.offer(10);
    assert_eq!((rig.core.visit(0), rig.core.visit(0)), (0, 0));
    assert_eq!(rig.sender.out.load(Ordering::Relaxed), MAX_BATCH);
    rig.queues[2].free.store(1, Ordering::Relaxed);
    assert_eq!(rig.core.visit(0), 1);
    rig.queues[2].free.store(SIZE as usize, Ordering::Relaxed);
    assert_eq!(rig.core.visit(0), held as u64 - 1);
    assert_eq!(rig.core.visit(0), 10);
    assert_eq!(rig.check(), 0);
    assert_eq!(rig.got().iter().sum::<usize>(), MAX_BATCH + 10);
    let waits = rig.ports[0].waits.of(0);
    assert!(waits.count >= 1 && waits.given_up == 0, "{waits:?}");
}

#[test]
fn a_queue_that_is_given_up_costs_the_wire_one_wait() {
    // No patience: the second try gives up.
    let mut rig = Rig::new(QUEUES, Duration::ZERO);
    rig.queues[1].free.store(0, Ordering::Relaxed);
    rig.offer(MAX_BATCH);
    rig.core.visit(0);
    rig.core.visit(0);
    let lost = rig.check();
    assert!(lost > 0 && rig.got()[1] == 0);
    assert_eq!(rig.got().iter().sum::<usize>() as u64 + lost, MAX_BATCH as u64);
    assert_eq!(rig.ports[0].waits.of(0).given_up, 1);
    // From then on the wire goes on without it.
    for _ in 0..3 {
        rig.offer(64);
        assert_eq!(rig.core.visit(0), 64);
    }
    assert_eq!(rig.ports[0].waits.of(0).given_up, 1);
    let (lost, before) = (rig.check(), rig.got()[1]);
    // Until it gives buffers again.
    rig.queues[1].free.store(SIZE as usize, Ordering::Relaxed);
    rig.offer(MAX_BATCH);
    assert_eq!(rig.core.visit(0), MAX_BATCH as u64);
    assert!(rig.check() == lost && rig.got()[1] > before);
}

#[test]
fn what_is_held_is_settled_when_the_queue_goes_or_the_wire_does() {
    let stuck = || {
        let mut rig = Rig::new(QUEUES, Duration::from_secs(1_000));
        rig.queues[0].free.store(0, Ordering::Relaxed);
        rig.offer(MAX_BATCH);
        rig.core.visit(0);
        assert_eq!(rig.sender.out.load(Ordering::Relaxed), MAX_BATCH);
        rig
    };
    let mut rig = stuck();
    rig.core.give_back(SOURCE);
    assert!(rig.home.take().unwrap().lease(Box::new(|| ())).take_back().is_some());
    assert!(rig.check() > 0);

    let mut rig = stuck();
    rig.core.rest(true);
    assert!(rig.check() > 0);

    let mut rig = stuck();
    rig.core.local().topology = Arc::default();
    rig.core.visit(0);
    assert!(rig.check() > 0);
    assert!(rig.ports[0].counters.totals().named_drops().any(|(name, _)| name == "no_destination"));

    // The wire leads to a gateway meanwhile: what is held goes on to the switch there, where no other port
    // is.
    let mut rig = stuck();
    let (router, switch) = (Router::new("r").unwrap(), Switch::new("s", SwitchOptions::default()));
    let gateway = Attach::Gateway(Arc::new(router), Box::new(Attach::Switch(Arc::new(switch))));
    let [from, to] = &rig.ports;
    let joined = [(Arc::clone(from), Attach::Wire(PortId(1))), (Arc::clone(to), gateway)];
    rig.core.local().connect(&Arc::new(Topology::new(&joined)));
    rig.queues[0].free.store(SIZE as usize, Ordering::Relaxed);
    rig.core.visit(0);
    assert_eq!(rig.sender.out.load(Ordering::Relaxed), 0);
    assert!(rig.core.local().walk.delivery.work.is_empty());
    assert!(rig.ports[1].counters.totals().named_drops().any(|(name, _)| name == "no_destination"));

    // The receiver has fewer queues meanwhile: what is held waits for the one that is left.
    let mut rig = stuck();
    rig.ports[1].say_queues(1);
    assert_eq!(rig.core.visit(0), 0);
    rig.queues[0].free.store(SIZE as usize, Ordering::Relaxed);
    assert!(rig.core.visit(0) > 0);
    assert_eq!(rig.check(), 0);
    // A queue that comes to another core waits again.
    let mut rig = stuck();
    rig.core.rest(true);
    rig.core.rest(false);
    let lost = rig.check();
    rig.offer(MAX_BATCH);
    rig.core.visit(0);
    assert_eq!(rig.sender.out.load(Ordering::Relaxed), MAX_BATCH);
    rig.queues[0].free.store(SIZE as usize, Ordering::Relaxed);
    rig.core.visit(0);
    assert_eq!(rig.check(), lost);
}

#[test]
fn a_poll_that_finds_nothing_asks_no_receiver() {
    for queues in [1, QUEUES] {
        let mut rig = Rig::new(queues, Duration::from_secs(1));
        for _ in 0..10 {
            assert_eq!(rig.core.visit(0), 0);
        }
        let asked =
            |rig: &Rig| rig.queues.iter().map(|queue| queue.asked.load(Ordering::Relaxed)).sum::<usize>();
        assert_eq!(asked(&rig), 0);
        rig.offer(5);
        assert_eq!(rig.core.visit(0), 5);
        assert!(asked(&rig) > 0);
        rig.check();
    }
}

#[test]
fn a_single_queue_is_waited_for_in_the_senders_own_ring() {
    let mut rig = Rig::new(1, Duration::from_secs(1_000));
    rig.queues[0].free.store(100, Ordering::Relaxed);
    rig.offer(MAX_BATCH);
    let mut moved = 0;
    // The first frames of all are taken for large ones.
    while rig.queues[0].free.load(Ordering::Relaxed) > 1 {
        moved += rig.core.visit(0);
        assert_eq!(rig.sender.out.load(Ordering::Relaxed), 0);
        if moved == 0 {
            break;
        }
    }
    rig.queues[0].free.store(SIZE as usize, Ordering::Relaxed);
    while moved < MAX_BATCH as u64 {
        moved += rig.core.visit(0);
    }
    assert_eq!(rig.check(), 0);
}

/// A queue whose memory takes its time.
struct Slowly;

impl IngressQueue for Slowly {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        if batch.push_short(&[2; 60]) {
            tally.frames = 1;
        }
    }

    fn release(&mut self, _: &mut Tally) {}

    fn want_kicks(&mut self, _: bool) -> bool {
        true
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn a_sender_whose_memory_is_slow_rests_and_then_is_served_again() {
    let port = &Rig::new(1, PATIENCE).ports[0];
    let graph = Graph::start(&CoreOptions::default()).unwrap() as Arc<dyn Scheduler>;
    let lease = graph.serve(port, 0, Slowly);
    let await_true = |what: &str, so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::yield_now();
        }
    };
    await_true("it does not rest", &|| port.overrun.rests());
    let before = port.counters.totals().in_frames;
    await_true("its rest does not end", &|| port.counters.totals().in_frames > before + 1);
    assert!(port.overrun.count().rests >= 1);
    assert!(lease.take_back().is_some());
}

#[test]
fn an_evicted_port_has_no_queues_anywhere_and_its_leases_stay_good() {
    let file = CounterFile::anonymous().unwrap();
    let port = Arc::new(Port::new(PortId(0), "a", file.open_slot(PortId(0), "a"), DEFAULT_MTU).unwrap());
    let graph = Graph::start(&CoreOptions::default()).unwrap();
    let sender = Arc::<Sender>::default();
    let scheduler = Arc::clone(&graph) as Arc<dyn Scheduler>;
    let send = scheduler.serve(&port, 0, Source(Arc::clone(&sender)));
    let receive = port.lend(0, Sink(Arc::default()));
    assert!(port.link());
    graph.evict(&port);
    assert!(!port.link() && port.egress(0).unwrap().is_none());
    // No core asks it any more.
    sender.waiting.lock().unwrap().push_back(1);
    graph.publish(&Arc::default());
    graph.publish(&Arc::default());
    assert_eq!(sender.waiting.lock().unwrap().len(), 1);
    assert!(send.take_back().is_some() && receive.take_back().is_some());
}

/// Cores remember what access lists said from the topology on in which a port has one.
#[test]
fn each_core_has_room_for_what_lists_said_when_a_port_has_one() {
    let file = CounterFile::anonymous().unwrap();
    let port = Arc::new(Port::new(PortId(0), "a", file.open_slot(PortId(0), "a"), DEFAULT_MTU).unwrap());
    let graph = Graph::start(&CoreOptions::default()).unwrap();
    let open = |topology: Topology| {
        graph.publish(&Arc::new(topology));
        let open = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&open);
        graph.each(move |local| {
            count.fetch_add(local.walk.delivery.acl_cache.is_open().into(), Ordering::Relaxed);
        });
        open.load(Ordering::Relaxed)
    };
    let ports = [(port, Attach::Switch(Arc::new(Switch::new("s", SwitchOptions::default()))))];
    assert_eq!(open(Topology::new(&ports)), 0);
    let list = Some(Arc::new(Acl::compile(Vec::new(), Action::Permit, [7; 8])));
    let policy = Policy { acl: [list, None], ..Policy::default() }.compile();
    assert_eq!(open(Topology::with_policies(&ports, |_| policy.clone())), graph.status().len());
}

#[test]
fn a_port_whose_link_the_operator_puts_down_sends_and_receives_nothing() {
    for silent in [0, 1] {
        let mut rig = Rig::new(1, PATIENCE);
        rig.ports[silent].set_silent(true);
        rig.offer(10);
        rig.core.visit(0);
        assert_eq!((rig.got(), rig.check()), (vec![0], 10));
        rig.ports[silent].set_silent(false);
        rig.offer(5);
        rig.core.visit(0);
        assert_eq!((rig.got(), rig.check()), (vec![5], 10));
    }
}
