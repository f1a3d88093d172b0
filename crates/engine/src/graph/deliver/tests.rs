//! Every frame of a batch is delivered or counted, whatever becomes of its receiver's queues meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::core::Lease;
use crate::graph::topology::{Attach, Topology};
use crate::graph::walk::Walk;
use crate::mem::CoreTime;
use crate::observe::CounterFile;
use crate::packet::ALL;
use crate::port::{EgressQueue, OverrunCount, DEFAULT_MTU};

/// What a queue does when it is given frames.
type Then = Box<dyn Fn() + Send>;

/// A queue that takes everything and notes in which order.
struct Sink {
    got: Arc<Mutex<Vec<(usize, u16)>>>,
    number: usize,
    /// Each frame, and each question for its room, has the kernel find new pages.
    pages: bool,
    /// What each frame takes without that.
    busy: Duration,
    is_a_peers: bool,
    /// The buffers of its ring, if they end.
    ring: Option<u32>,
    then: Option<Then>,
}

/// Has the kernel find pages, for some milliseconds: more than the allocator ever keeps.
fn find(pages: bool) {
    if pages {
        drop(std::hint::black_box(vec![1u8; 33 << 20]));
    }
}

/// Uses the processor for so long, without a page.
fn work(time: Duration) {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
    };
    let start = used();
    while !time.is_zero() && used() - start < time {
        std::hint::spin_loop();
    }
}

/// Runs `test` on a thread whose lost time is known, as that of an I/O core.
fn as_a_core(test: impl FnOnce(&CoreTime) + Send + 'static) {
    let core = std::thread::spawn(move || {
        let time = CoreTime::of_this_thread().unwrap();
        let notes = Arc::downgrade(&time);
        // As the thread that watches cores.
        std::thread::spawn(move || {
            while let Some(time) = notes.upgrade() {
                time.note();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        test(&time);
    });
    core.join().unwrap();
}

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for (done, pick) in picks.iter().enumerate() {
            if outcome.is_late(done) {
                outcome.dropped_all(&picks[done..], DropReason::ReceiverBusy);
                break;
            }
            find(self.pages);
            work(self.busy);
            let frame = &batch.frames()[usize::from(*pick)];
            outcome.delivered(frame.len);
            // In a private copy it has another number.
            let number = u16::from_be_bytes([frame.head[0], frame.head[1]]);
            self.got.lock().unwrap().push((self.number, number));
        }
        if let Some(then) = &self.then {
            then();
        }
    }

    fn room(&mut self) -> Option<Room> {
        find(self.pages);
        let size = self.ring?;
        let waiting = u32::try_from(self.got.lock().unwrap().len()).unwrap();
        Some(Room { free: size - waiting, size })
    }

    fn is_a_peers(&self) -> bool {
        self.is_a_peers
    }
}

struct Rig {
    from: Arc<Port>,
    to: Arc<Port>,
    got: Arc<Mutex<Vec<(usize, u16)>>>,
    topology: Topology,
    walk: Walk<crate::graph::effects::Live>,
    _sinks: Vec<Lease<Sink>>,
}

impl Rig {
    /// A wire to a port with `queues` queues.
    fn new(queues: usize, then: impl Fn(usize, &Arc<Port>) -> Option<Then>) -> Rig {
        let file = CounterFile::anonymous().unwrap();
        let port = |id, name| {
            let counters = file.open_slot(PortId(id), name);
            Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
        };
        let (from, to) = (port(0, "from"), port(1, "to"));
        let got = Arc::<Mutex<Vec<_>>>::default();
        let mut sinks = Vec::new();
        for number in 0..queues {
            let (got, then) = (Arc::clone(&got), then(number, &to));
            let sink =
                Sink { got, number, pages: false, busy: Duration::ZERO, is_a_peers: true, ring: None, then };
            sinks.push(to.lend(number, sink));
        }
        let wire = [(Arc::clone(&from), Attach::Wire(PortId(1))), (Arc::clone(&to), Attach::Wire(PortId(0)))];
        let topology = Topology::new(&wire);
        Rig { from, to, got, topology, walk: Walk::new(0, std::time::Instant::now()), _sinks: sinks }
    }

    /// Its only queue has the kernel find pages, or works without them.
    fn slow(pages: bool, busy: Duration, is_a_peers: bool) -> Rig {
        let mut rig = Rig::new(0, |_, _| None);
        let got = Arc::clone(&rig.got);
        let sink = Sink { got, number: 0, pages, busy, is_a_peers, ring: None, then: None };
        rig._sinks.push(rig.to.lend(0, sink));
        rig
    }

    /// A visit that forwards `batch`; both sides are dealt with apart behind it if it was slow.
    fn visit(&mut self, batch: &mut Batch) {
        let begun = self.walk.delivery.start(&self.from.overrun);
        self.forward(batch);
        self.walk.delivery.end(begun);
    }

    fn forward(&mut self, batch: &mut Batch) {
        self.walk.forward(Source { topology: &self.topology, port: &self.from }, batch, None);
    }

    /// Frames that were delivered, and frames that were dropped by name.
    fn counted(&self) -> (u64, Vec<(&'static str, u64)>) {
        let totals = self.to.counters.totals();
        (totals.out_frames, totals.named_drops().collect())
    }
}

/// A full batch of as many flows as frames.
fn flows() -> Batch {
    let mut batch = Batch::new();
    for i in 0..MAX_BATCH {
        let mut frame = [0; 60];
        frame[..2].copy_from_slice(&u16::try_from(i).unwrap().to_be_bytes());
        assert!(batch.push_short(&frame));
    }
    batch
}

#[test]
fn queues_share_the_flows_and_keep_their_order() {
    let mut rig = Rig::new(5, |_, _| None);
    rig.forward(&mut flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]));
    let got = rig.got.lock().unwrap();
    for number in 0..5 {
        let mine: Vec<u16> =
            got.iter().filter(|(queue, _)| *queue == number).map(|(_, pick)| *pick).collect();
        assert!(!mine.is_empty() && mine.is_sorted());
    }
}

#[test]
fn frames_for_queues_that_go_in_the_middle_of_a_batch_are_counted() {
    for left in 0..4 {
        // The first queue that gets frames takes the others away.
        let mut rig = Rig::new(4, |number, port| {
            let port = Arc::downgrade(port);
            let then = move || {
                let port = port.upgrade().unwrap();
                port.say_queues(left);
                (left.max(1)..4).for_each(|queue| drop(port.egress(queue).unwrap().take()));
            };
            (number == 0).then(|| Box::new(then) as Then)
        });
        rig.forward(&mut flows());
        let (delivered, dropped) = rig.counted();
        let sum: u64 = dropped.iter().map(|(_, n)| n).sum();
        assert_eq!(delivered + sum, MAX_BATCH as u64, "{left} queues left: {dropped:?}");
        assert_eq!(delivered, rig.got.lock().unwrap().len() as u64);
        assert_eq!(dropped, [("link_down", sum)]);
    }
}

#[test]
fn frames_for_queues_that_come_in_the_middle_of_a_batch_are_given_once() {
    let mut rig = Rig::new(4, |number, port| {
        let port = Arc::downgrade(port);
        (number == 0).then(|| Box::new(move || port.upgrade().unwrap().say_queues(4)) as Then)
    });
    rig.to.say_queues(2);
    rig.forward(&mut flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]));
}

/// A slow copy accuses nobody; what is slow apart from the sender's memory is the receiver's own.
#[test]
fn a_receiver_with_slow_pages_is_found_rests_and_each_frame_is_counted() {
    as_a_core(|time| {
        let mut rig = Rig::slow(true, Duration::ZERO, true);
        rig.visit(&mut flows());
        assert_eq!(rig.to.overrun.count(), OverrunCount::default(), "it may have been the sender's memory");
        let (mut batches, mut busy) = (1, 0);
        while !rig.to.overrun.rests() {
            time.note();
            rig.visit(&mut flows());
            batches += 1;
            busy += rig.walk.delivery.others_ns;
            assert!(rig.walk.delivery.apart && batches < 1_000);
        }
        let count = rig.to.overrun.count();
        assert!(count.rests == 1 && count.total_us >= 50_000 && busy >= 50_000_000, "{count:?} {busy}");
        rig.visit(&mut flows());
        let (delivered, dropped) = rig.counted();
        let lost: u64 = dropped.iter().map(|(_, n)| n).sum();
        assert_eq!(delivered + lost, (batches + 1) * MAX_BATCH as u64, "{dropped:?}");
        assert!(dropped.iter().any(|(name, n)| *name == "overrun" && *n >= MAX_BATCH as u64), "{dropped:?}");
        // On a wire they wait.
        assert_eq!(rig.walk.delivery.room(&rig.to, 0), Some(Room { free: 0, size: 1 }));
        assert_eq!(rig.from.overrun.count(), OverrunCount::default());
    });
}

#[test]
fn a_receiver_that_is_dealt_with_apart_gets_everything_in_order() {
    let mut rig = Rig::new(1, |_, _| None);
    rig.walk.delivery.apart = true;
    let mut batch = flows();
    batch.any_offload = false;
    rig.forward(&mut batch);
    let got: Vec<u16> = rig.got.lock().unwrap().iter().map(|(_, number)| *number).collect();
    assert_eq!(got, ALL);
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]));
}

/// A delivery ends after a millisecond of searching for pages, however much is left.
#[test]
fn a_delivery_ends_where_pages_take_long_and_goes_on_where_the_processor_was_another_ones() {
    as_a_core(|time| {
        let mut rig = Rig::slow(true, Duration::ZERO, true);
        rig.visit(&mut flows());
        let (delivered, dropped) = rig.counted();
        assert!(delivered < MAX_BATCH as u64 / 2, "{delivered}");
        assert_eq!(dropped, [("receiver_busy", MAX_BATCH as u64 - delivered)]);
        // No page is missing: a hypervisor had the processor, say.
        let mut batch = flows();
        let mut rig = Rig::slow(false, Duration::from_micros(20), true);
        let quiet = (0..20).any(|_| {
            // Its pages are there by now.
            rig.got.lock().unwrap().clear();
            let (delivered, _) = rig.counted();
            time.note();
            rig.walk.delivery.apart_until = 0;
            rig.visit(&mut batch);
            rig.counted().0 == delivered + MAX_BATCH as u64 && rig.walk.delivery.apart_until == 0
        });
        assert!(quiet);
    });
}

#[test]
fn what_the_host_takes_is_the_senders() {
    as_a_core(|_| {
        let mut rig = Rig::slow(true, Duration::ZERO, false);
        (0..3).for_each(|_| rig.visit(&mut flows()));
        assert_eq!(rig.counted(), (3 * MAX_BATCH as u64, vec![]));
        assert_eq!((rig.to.overrun.count(), rig.walk.delivery.others_ns), (OverrunCount::default(), 0));
    });
}

#[test]
fn no_more_frames_wait_than_the_port_allows() {
    let mut rig = Rig::new(0, |_, _| None);
    let got = Arc::clone(&rig.got);
    let sink = Sink {
        got,
        number: 0,
        pages: false,
        busy: Duration::ZERO,
        is_a_peers: true,
        ring: Some(300),
        then: None,
    };
    rig._sinks.push(rig.to.lend(0, sink));
    rig.to.set_queue(Some(100));
    rig.forward(&mut flows());
    assert_eq!(rig.counted(), (100, vec![("queue_full", MAX_BATCH as u64 - 100)]));
    rig.forward(&mut flows());
    assert_eq!(rig.counted().0, 100);
    // The receiver takes the first 30.
    rig.got.lock().unwrap().drain(..30);
    rig.forward(&mut flows());
    assert_eq!(rig.counted().0, 130);
    let room = rig.walk.delivery.room(&rig.to, 0).unwrap();
    assert_eq!((room.free, room.size), (0, 100), "senders on wires wait");
    rig.to.set_queue(Some(1000));
    let room = rig.walk.delivery.room(&rig.to, 0).unwrap();
    assert_eq!((room.free, room.size), (200, 300), "the ring is shorter");
}

#[test]
fn a_receiver_pays_for_looks_at_its_room() {
    as_a_core(|time| {
        let mut rig = Rig::slow(true, Duration::ZERO, true);
        rig.walk.delivery.apart = true;
        let mut ask = || {
            time.note();
            rig.walk.delivery.room(&rig.to, 0).is_none()
        };
        let asked = (0..1_000).take_while(|_| ask()).count();
        assert!((1..900).contains(&asked) && rig.to.overrun.rests(), "{asked} questions");
    });
}

/// A receiver that gives no buffers.
struct Full;

impl EgressQueue for Full {
    fn send(&mut self, _: &Batch, picks: &[u16], outcome: &mut Outcome) {
        outcome.dropped_all(picks, DropReason::RingFull);
    }
    fn is_full(&mut self) -> bool {
        true
    }
}

/// A capture at the receiver's port shows what it did not get, also where a frame was to be made plain for it
/// first.
#[test]
fn a_capture_sees_every_frame_that_its_port_does_not_get() {
    use crate::observe::capture::{start, CaptureOptions};
    use crate::packet::{Gso, Offload};

    let gso = Offload { flags: Offload::NEEDS_CSUM, gso: Gso::Tcp4, gso_size: 20, ..Offload::NONE };
    for (silent, full, name) in
        [(false, true, "ring_full"), (true, false, "link_down"), (false, false, "cannot_segment")]
    {
        let mut rig = Rig::new(usize::from(!full), |_, _| None);
        let _full = full.then(|| rig.to.lend(0, Full));
        rig.to.set_silent(silent);
        let capture = start(vec![Arc::clone(&rig.to) as _], CaptureOptions::default()).unwrap();
        let mut batch = Batch::new();
        for offload in [Offload::NONE, gso, gso] {
            let (frame, _) = batch.next_frame().unwrap();
            (frame.len, frame.offload) = (60, offload);
            batch.commit();
        }
        rig.forward(&mut batch);
        let (delivered, dropped) = rig.counted();
        let plain = u64::from(name == "cannot_segment");
        assert_eq!((delivered, dropped), (plain, vec![(name, 3 - plain)]));
        assert_eq!(capture.counts(), (3, 0), "{name}");
    }
}

/// A core stands still in a receiver's memory, with the receiver's lock. Another one that has frames for it
/// goes on: it waits once, for a bounded time, and its frames are dropped by name, or wait on their wire.
/// Then the receiver gets all again.
#[test]
fn a_core_does_not_wait_for_another_one_that_stands_still_in_a_receiver() {
    let mut rig = Rig::new(2, |_, _| None);
    let port = Arc::clone(&rig.to);
    let still = port.egress(0).unwrap();
    for batches in 1..4 {
        rig.forward(&mut flows());
        let (delivered, dropped) = rig.counted();
        assert!(delivered > 0, "its other queue is another one's");
        assert_eq!(dropped, [("receiver_busy", batches * MAX_BATCH as u64 - delivered)]);
    }
    assert_eq!(rig.walk.delivery.room(&port, 0).map(|room| room.free), Some(0));
    drop(still);
    let (before, lost) = rig.counted();
    rig.forward(&mut flows());
    assert_eq!(rig.counted(), (before + MAX_BATCH as u64, lost), "all of them again");
}
