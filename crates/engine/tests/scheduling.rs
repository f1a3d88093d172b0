//! I/O cores with threads: a disk beside a queue of frames, a flow whose task moves, wake-ups that must not
//! be lost.
//!
//! What each task gets to the microsecond is tested with a clock of our own (`core/tests`); here is what only
//! real threads and a real kernel show.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{opcode, IoUring};
use rustix::event::{eventfd, EventfdFlags};
use sidecore_engine::core::{Budget, Owner, Slow, Task, Tenant, Tuning, Visit, VisitEnd};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Local, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Batch;
use sidecore_engine::port::{EgressQueue, IngressQueue, Outcome, Port, PortId, Tally, DEFAULT_MTU};

const LIMIT: Duration = Duration::from_secs(60);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// A guest that always has a frame to send: each has the next number.
struct Source {
    next: u64,
    stop: Arc<AtomicBool>,
}

impl IngressQueue for Source {
    fn fetch(&mut self, batch: &mut Batch, tally: &mut Tally) {
        let mut frame = [0u8; 60];
        while batch.room() > 0 && !self.stop.load(Ordering::Relaxed) {
            frame[14..22].copy_from_slice(&self.next.to_le_bytes());
            if !batch.push_short(&frame) {
                break;
            }
            self.next += 1;
            tally.frames += 1;
            tally.bytes += 60;
        }
    }
    fn has_frames(&mut self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
    fn release(&mut self, _: &mut Tally) {}
    fn want_kicks(&mut self, _: bool) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A guest that takes all frames, and counts those that are not the next one.
struct Sink {
    got: Arc<AtomicU64>,
    wrong: Arc<AtomicU64>,
}

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for pick in picks {
            let frame = &batch.frames()[usize::from(*pick)];
            let mut number = [0; 8];
            number.copy_from_slice(&frame.head[14..22]);
            let next = self.got.load(Ordering::Relaxed);
            self.wrong.fetch_add(u64::from(u64::from_le_bytes(number) != next), Ordering::Relaxed);
            self.got.store(next + 1, Ordering::Relaxed);
            outcome.delivered(frame.len);
        }
    }
}

/// A wire, its ends, and what passed.
struct Wire {
    graph: Arc<Graph>,
    source: Arc<Port>,
    _sink: sidecore_engine::core::Lease<Sink>,
    got: Arc<AtomicU64>,
    wrong: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    _counters: CounterFile,
}

impl Wire {
    fn new(options: &CoreOptions) -> Wire {
        let counters = CounterFile::anonymous().unwrap();
        let port = |id, name| {
            Arc::new(Port::new(PortId(id), name, counters.open_slot(PortId(id), name), DEFAULT_MTU).unwrap())
        };
        let (source, sink) = (port(0, "source"), port(1, "sink"));
        let graph = Graph::start(options).unwrap();
        let ends =
            [(Arc::clone(&source), Attach::Wire(sink.id)), (Arc::clone(&sink), Attach::Wire(source.id))];
        graph.publish(&Arc::new(Topology::new(&ends)));
        let (got, wrong) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let lease = sink.lend(0, Sink { got: Arc::clone(&got), wrong: Arc::clone(&wrong) });
        Wire { graph, source, _sink: lease, got, wrong, stop: Arc::default(), _counters: counters }
    }

    fn serve(&self) -> sidecore_engine::core::Lease<Source> {
        let scheduler = Arc::clone(&self.graph) as Arc<dyn Scheduler>;
        scheduler.serve(&self.source, 0, Source { next: 0, stop: Arc::clone(&self.stop) })
    }
}

/// Two cores, wherever they may run.
fn two_cores(tuning: Tuning) -> CoreOptions {
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let mine: Vec<usize> = (0..1024).filter(|cpu| cpus.is_set(*cpu)).collect();
    CoreOptions { cpus: vec![mine[0], mine[mine.len() - 1]], tuning, ..CoreOptions::default() }
}

/// The owner of a disk.
#[derive(Default)]
struct Guest {
    tenant: Arc<Tenant>,
    slow: Slow,
}

impl Owner for Guest {
    fn number(&self) -> u16 {
        900
    }
    fn name(&self) -> &str {
        "disk"
    }
    fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }
    fn slow(&self) -> &Slow {
        &self.slow
    }
}

/// A disk that does nothing, as the kernel does it: requests are submitted in one visit and done in a later
/// one.
struct Disk {
    guest: Arc<Guest>,
    ring: IoUring,
    next: u64,
    under_way: HashSet<u64>,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// Requests that it has under way.
const DEPTH: usize = 32;

impl Task<Local> for Disk {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.guest) as Arc<dyn Owner>
    }

    fn has_work(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn visit(&mut self, _: &mut Local, budget: Budget) -> Visit {
        let mut done = 0;
        for entry in self.ring.completion().take(budget.items) {
            assert!(self.under_way.remove(&entry.user_data()), "completed twice, or never asked for");
            done += 1;
        }
        let mut begun = 0;
        while self.under_way.len() < DEPTH && !self.stop.load(Ordering::Relaxed) {
            let entry = opcode::Nop::new().build().user_data(self.next);
            // SAFETY: a request that touches no memory.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                break;
            }
            self.under_way.insert(self.next);
            self.next += 1;
            begun += 1;
        }
        if begun > 0 {
            self.ring.submit().unwrap();
        }
        self.done.fetch_add(done, Ordering::Relaxed);
        let items = usize::try_from(done).unwrap();
        Visit { moved: done, items, bytes: 4096 * done, cost: items, others_ns: 0, end: VisitEnd::Drained }
    }

    fn arm(&mut self) -> bool {
        !self.ring.completion().is_empty()
            || (self.under_way.is_empty() && !self.stop.load(Ordering::Relaxed))
    }
    fn disarm(&mut self) {}
    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>)) {
        // SAFETY: the ring is open as long as the task is.
        each(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) });
    }
    fn next_look(&self) -> Option<Duration> {
        None
    }
    fn settle(&mut self, _: &mut Local) {}
}

#[test]
fn a_disk_and_a_queue_of_frames_share_a_core() {
    let wire = Wire::new(&CoreOptions::default());
    let frames = wire.serve();
    let (guest, done, stop) =
        (Arc::<Guest>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let disk = Disk {
        guest: Arc::clone(&guest),
        ring: IoUring::new(64).unwrap(),
        next: 0,
        under_way: HashSet::new(),
        done: Arc::clone(&done),
        stop: Arc::clone(&stop),
    };
    let lease = wire.graph.place(disk);
    until("both are served", || {
        done.load(Ordering::Relaxed) > 1_000 && wire.got.load(Ordering::Relaxed) > 1_000
    });
    let used = || (guest.tenant.usage().busy_ns, wire.source.tenant.usage().busy_ns);
    let before = used();
    until("both have used the core", || {
        let now = used();
        now.0 - before.0 + now.1 - before.1 > 500_000_000
    });
    let after = used();
    let (disk, net) = (after.0 - before.0, after.1 - before.1);
    // The disk has work whenever it is looked at, and so has the sender: half for each.
    assert!(disk < 2 * net && net < 2 * disk, "disk {disk} ns, net {net} ns");
    stop.store(true, Ordering::Relaxed);
    wire.stop.store(true, Ordering::Relaxed);
    let tasks = wire.graph.tasks();
    assert_eq!(tasks.iter().map(|task| task.owner).collect::<Vec<_>>(), [0, 900]);
    let disk = lease.take_back().unwrap();
    assert!(disk.next - done.load(Ordering::Relaxed) == disk.under_way.len() as u64);
    frames.take_back().unwrap();
    assert_eq!(wire.wrong.load(Ordering::Relaxed), 0);
}

#[test]
fn a_flow_loses_no_frame_and_keeps_its_order_while_its_task_moves_and_cores_come_and_go() {
    let tuning = Tuning { balance: false, ..Tuning::default() };
    let wire = Wire::new(&two_cores(tuning));
    let lease = wire.serve();
    let task = wire.graph.tasks()[0].id;
    let mut moves = 0;
    for turn in 0..1_000usize {
        let before = wire.got.load(Ordering::Relaxed);
        moves += u64::from(wire.graph.move_task(task, turn % 2));
        if turn % 10 == 0 {
            wire.graph.set_active(1);
            assert_eq!(wire.graph.tasks()[0].core, 0);
            wire.graph.set_active(2);
        }
        until("frames pass", || wire.got.load(Ordering::Relaxed) > before);
    }
    wire.stop.store(true, Ordering::Relaxed);
    let status = &wire.graph.tasks()[0];
    assert!(moves >= 990 && status.moves >= moves, "{moves} {status:?}");
    let source = lease.take_back().unwrap();
    assert_eq!((wire.got.load(Ordering::Relaxed), wire.wrong.load(Ordering::Relaxed)), (source.next, 0));
    let totals = wire.source.counters.totals();
    assert_eq!((totals.in_frames, totals.drops.iter().sum::<u64>()), (source.next, 0));
}

/// A queue that is kicked: the producer looks at `armed` after it has published, the consumer at the count
/// after it has armed.
struct Kicked {
    guest: Arc<Guest>,
    state: Arc<Kicks>,
    event: OwnedFd,
}

#[derive(Default)]
struct Kicks {
    asked: AtomicU64,
    done: AtomicU64,
    armed: AtomicBool,
}

impl Task<Local> for Kicked {
    fn owner(&self) -> Arc<dyn Owner> {
        Arc::clone(&self.guest) as Arc<dyn Owner>
    }
    fn visit(&mut self, _: &mut Local, _: Budget) -> Visit {
        let asked = self.state.asked.load(Ordering::Acquire);
        let items = asked - self.state.done.swap(asked, Ordering::AcqRel);
        Visit { moved: items, items: usize::try_from(items).unwrap(), ..Visit::default() }
    }
    fn arm(&mut self) -> bool {
        self.state.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.state.asked.load(Ordering::Acquire) != self.state.done.load(Ordering::Relaxed)
    }
    fn disarm(&mut self) {
        self.state.armed.store(false, Ordering::Relaxed);
    }
    fn events<'t>(&'t self, each: &mut dyn FnMut(BorrowedFd<'t>)) {
        each(self.event.as_fd());
    }
    fn next_look(&self) -> Option<Duration> {
        None
    }
    fn settle(&mut self, _: &mut Local) {}
}

/// Wake-ups of a test run; `SIDECORE_WAKE_UPS=10000000` for more.
fn wake_ups() -> u64 {
    std::env::var("SIDECORE_WAKE_UPS").ok().map_or(30_000, |count| count.parse().unwrap())
}

#[test]
fn no_wake_up_is_lost_between_looks_messages_and_moves_and_while_cores_come_and_go() {
    // Cores that sleep at once, so that nearly each request finds one that does or is about to; and for ever,
    // so that one that was slept over is never answered.
    let tuning =
        Tuning { spin: Duration::ZERO, longest_sleep: 60 * LIMIT, balance: false, ..Tuning::default() };
    let graph = Graph::start(&two_cores(tuning)).unwrap();
    let state = Arc::<Kicks>::default();
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let kick = event.try_clone().unwrap();
    let lease = graph.place(Kicked { guest: Arc::default(), state: Arc::clone(&state), event });
    let task = graph.tasks()[0].id;
    for number in 1..=wake_ups() {
        state.asked.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        if state.armed.load(Ordering::Relaxed) {
            rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        }
        match number % 200 {
            // Messages come between looking and sleeping, too: one that moves the task, takes its core away,
            // or wants nothing.
            50 | 150 => _ = graph.move_task(task, usize::try_from(number / 50 % 2).unwrap()),
            100 => _ = graph.set_active(1),
            125 => _ = graph.set_active(2),
            175 => graph.rest(false),
            _ => {}
        }
        until("a request was slept over", || state.done.load(Ordering::Acquire) >= number);
    }
    lease.take_back().unwrap();
}
