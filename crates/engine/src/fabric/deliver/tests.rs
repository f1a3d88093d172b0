//! Every frame of a batch is delivered or counted, whatever becomes of its receiver's queues meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::core::Lease;
use crate::fabric::topology::{Attach, Topology};
use crate::frame::ALL;
use crate::observe::CounterFile;
use crate::port::{EgressQueue, DEFAULT_MTU};
use crate::switch::Verdicts;

/// What a queue does when it is given frames.
type Then = Box<dyn Fn() + Send>;

/// A queue that takes everything and notes in which order.
struct Sink {
    got: Arc<Mutex<Vec<(usize, u16)>>>,
    number: usize,
    /// What each frame takes, and a question for its room.
    slow: Duration,
    asked: Duration,
    is_a_peers: bool,
    then: Option<Then>,
}

/// Uses the processor for so long.
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

impl EgressQueue for Sink {
    fn send(&mut self, batch: &Batch, picks: &[u16], outcome: &mut Outcome) {
        for (done, pick) in picks.iter().enumerate() {
            if outcome.is_late(done) {
                outcome.left.extend_from_slice(&picks[done..]);
                break;
            }
            work(self.slow);
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
        work(self.asked);
        None
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
    delivery: Delivery,
    verdicts: Verdicts,
    _sinks: Vec<Lease<Sink>>,
}

impl Rig {
    /// A wire to a port with `queues` queues.
    fn new(queues: usize, then: impl Fn(usize, &Arc<Port>) -> Option<Then>) -> Rig {
        Rig::slow(queues, [Duration::ZERO; 2], then)
    }

    /// Each frame takes the receiver so long, and each question for its room.
    fn slow(queues: usize, slow: [Duration; 2], then: impl Fn(usize, &Arc<Port>) -> Option<Then>) -> Rig {
        let [slow, asked] = slow;
        let file = CounterFile::anonymous().unwrap();
        let port = |id, name| {
            let counters = file.open_slot(PortId(id), name);
            Arc::new(Port::new(PortId(id), name, counters, DEFAULT_MTU).unwrap())
        };
        let (from, to) = (port(0, "from"), port(1, "to"));
        let got = Arc::<Mutex<Vec<_>>>::default();
        let mut sinks = Vec::new();
        for number in 0..queues {
            let sink = Sink {
                got: Arc::clone(&got),
                number,
                slow,
                asked,
                is_a_peers: true,
                then: then(number, &to),
            };
            sinks.push(to.lend(number, sink));
        }
        let wire = [(Arc::clone(&from), Attach::Wire(PortId(1))), (Arc::clone(&to), Attach::Wire(PortId(0)))];
        let topology = Topology::new(&wire);
        Rig {
            from,
            to,
            got,
            topology,
            delivery: Delivery::new(0, Arc::default(), std::time::Instant::now()),
            verdicts: Verdicts::new(),
            _sinks: sinks,
        }
    }

    fn forward(&mut self, batch: &Batch) {
        self.delivery.forward(&self.topology, &self.from, batch, 1, &mut self.verdicts);
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
    rig.forward(&flows());
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
        rig.forward(&flows());
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
    rig.forward(&flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]));
}

#[test]
fn a_slow_receiver_pays_for_its_time_and_each_frame_is_counted() {
    let each = Duration::from_micros(500);
    let mut rig = Rig::slow(1, [each, Duration::ZERO], |_, _| None);
    rig.forward(&flows());
    let (delivered, dropped) = rig.counted();
    // Four until the first look, and some more than its free time has room for.
    assert!((5..128).contains(&delivered), "{delivered} frames");
    assert_eq!(dropped, [("slow_receiver", MAX_BATCH as u64 - delivered)]);
    let slow = rig.to.slow.count();
    assert!(slow.deliveries > 0 && slow.deliveries_us >= 5_000, "{slow:?}");
    assert!(rig.delivery.foreign_ns / 1_000 >= slow.deliveries_us - slow.deliveries);
    assert!(rig.got.lock().unwrap().iter().map(|(_, number)| *number).is_sorted());
    // As long as it owes, it gets nothing, and is not asked for its room.
    rig.to.pace.was_slow(crate::mem::ticks_in(Duration::from_secs(60)));
    assert!(rig.to.pace.rests());
    assert_eq!(rig.delivery.room(&rig.to, 0).map(|room| room.free), Some(0));
    rig.forward(&flows());
    let (again, dropped) = rig.counted();
    assert_eq!((again, dropped), (delivered, vec![("slow_receiver", 2 * MAX_BATCH as u64 - delivered)]));
}

#[test]
fn a_receiver_that_is_only_suspected_gets_everything_in_order() {
    let mut rig = Rig::new(3, |_, _| None);
    rig.to.pace.suspect(0, false);
    let mut batch = flows();
    // And a long one, in two pieces.
    let mut memory = crate::mem::Arena::new(2, 1000);
    let bytes: Vec<u8> = (0..1000).map(|n| u8::try_from(n % 251).unwrap()).collect();
    batch.clear();
    for number in 0..100u16 {
        let (frame, pieces) = batch.next_frame().unwrap();
        frame.head[..2].copy_from_slice(&number.to_be_bytes());
        (frame.piece, frame.pieces, frame.len) = (u32::try_from(pieces.len()).unwrap(), 2, 64 + 1400);
        assert!(pieces.push(memory.put(0, &bytes, 500)) && pieces.push(memory.put(1, &bytes, 100)));
        batch.commit();
    }
    rig.forward(&batch);
    assert_eq!(rig.counted(), (100, vec![]));
    let got = rig.got.lock().unwrap();
    for number in 0..3 {
        assert!(got.iter().filter(|(queue, _)| *queue == number).map(|(_, pick)| *pick).is_sorted());
    }
}

/// One that is watched again and again because of one delivery, and takes a little less than the limit of all others.
#[test]
fn what_a_watched_receiver_takes_below_the_limit_adds_up() {
    let mut rig = Rig::slow(1, [Duration::from_micros(200), Duration::ZERO], |_, _| None);
    let mut batch = Batch::new();
    assert!(batch.push_short(&[0; 60]));
    for round in 0..1_000 {
        if round % 20 == 0 {
            rig.to.pace.suspect(0, false);
        }
        rig.forward(&batch);
    }
    let (delivered, dropped) = rig.counted();
    assert!((100..700).contains(&delivered), "{delivered} frames");
    assert_eq!(dropped, [("slow_receiver", 1_000 - delivered)]);
}

#[test]
fn a_receiver_is_given_time_for_its_own_bytes_alone() {
    let mut memory = crate::mem::Arena::new(1, 60_000);
    let piece = memory.put(0, &[0; 60_000], 0);
    let mut batch = Batch::new();
    assert!(batch.push_short(&[0; 60]));
    for _ in 0..12 {
        let (frame, pieces) = batch.next_frame().unwrap();
        (frame.piece, frame.pieces, frame.len) = (u32::try_from(pieces.len()).unwrap(), 1, 60_064);
        assert!(pieces.push(piece));
        batch.commit();
    }
    assert_eq!(of_bytes(&batch, &[0]), 2 * 60);
    assert_eq!(of_bytes(&batch, &[1, 2]), 4 * 60_064);
    assert_eq!(of_bytes(&batch, &ALL[..13]), 2 * u64::from(batch.cost()));
}

#[test]
fn those_who_pay_rest_while_others_were_slow() {
    let mut rig = Rig::new(1, |_, _| None);
    let ms = |ms| crate::mem::ticks_in(Duration::from_millis(ms));
    rig.delivery.crowd.was_slow(ms(60_000));
    rig.forward(&flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![]), "one that does not pay has nothing to do with it");
    // It has paid for what was its own, and still is one of those who do.
    assert!(rig.to.pace.was_slow(ms(6)));
    while rig.to.pace.rests() {
        std::hint::spin_loop();
    }
    assert_eq!(rig.delivery.room(&rig.to, 0).map(|room| room.free), Some(0));
    rig.forward(&flows());
    assert_eq!(rig.counted(), (MAX_BATCH as u64, vec![("slow_receiver", MAX_BATCH as u64)]));
}

/// A guest that floods an interface of the host's, whose kernel takes long, must not have others' frames dropped there.
#[test]
fn what_the_host_takes_is_the_senders() {
    let mut rig = Rig::new(1, |_, _| None);
    let sink = Sink {
        got: Arc::clone(&rig.got),
        number: 0,
        slow: Duration::from_micros(200),
        asked: Duration::ZERO,
        is_a_peers: false,
        then: None,
    };
    let _lease = rig.to.lend(0, sink);
    rig.forward(&flows());
    rig.forward(&flows());
    let (delivered, dropped) = rig.counted();
    assert_eq!((delivered, dropped), (2 * MAX_BATCH as u64, vec![]));
    assert!(!rig.to.pace.is_watched() && rig.delivery.foreign_ns == 0);
}

#[test]
fn a_receiver_pays_for_looks_at_its_room() {
    for slow in [Duration::from_micros(400), Duration::from_micros(150)] {
        let mut rig = Rig::slow(1, [Duration::ZERO, slow], |_, _| None);
        let asked = (0..1_000).take_while(|_| rig.delivery.room(&rig.to, 0).is_none()).count();
        assert!((10..900).contains(&asked), "{asked} questions of {slow:?}");
        assert!(rig.to.slow.count().deliveries > 0);
    }
}

/// Such time cannot be made here, only claimed.
#[test]
fn time_in_which_no_page_was_found_is_a_hypervisors() {
    let mut rig = Rig::new(1, |_, _| None);
    let [limit, spent] = [250, 20_000].map(|us| crate::mem::ticks_in(Duration::from_micros(us)));
    // A page of the test's own may be found at any time.
    let capped = (0..10).any(|_| {
        rig.delivery.stand(0);
        rig.delivery.own(spent, limit) == 2 * limit
    });
    assert!(capped);
    rig.delivery.stand(0);
    std::hint::black_box(vec![1u8; 16 << 20]);
    assert!(rig.delivery.own(spent, limit) > spent / 2, "pages take as long as they take");
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

/// A capture at the receiver's port shows what it did not get, also where a frame was to be made plain for it first.
#[test]
fn a_capture_sees_every_frame_that_its_port_does_not_get() {
    use crate::observe::capture::{start, CaptureOptions};
    use crate::wire::{Gso, Offload};

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
        rig.forward(&batch);
        let (delivered, dropped) = rig.counted();
        let plain = u64::from(name == "cannot_segment");
        assert_eq!((delivered, dropped), (plain, vec![(name, 3 - plain)]));
        assert_eq!(capture.counts(), (3, 0), "{name}");
    }
}

/// A core stands still in a receiver's memory, with the receiver's lock. Another one that has frames for it goes on: it waits
/// once, for a bounded time, and its frames are dropped by name, or wait on their wire. Then the receiver gets all again.
#[test]
fn a_core_does_not_wait_for_another_one_that_stands_still_in_a_receiver() {
    let mut rig = Rig::new(2, |_, _| None);
    let port = Arc::clone(&rig.to);
    let still = port.egress(0).unwrap();
    for batches in 1..4 {
        rig.forward(&flows());
        let (delivered, dropped) = rig.counted();
        assert!(delivered > 0, "its other queue is another one's");
        assert_eq!(dropped, [("slow_receiver", batches * MAX_BATCH as u64 - delivered)]);
    }
    assert_eq!(rig.delivery.room(&port, 0).map(|room| room.free), Some(0));
    drop(still);
    let (before, lost) = rig.counted();
    rig.forward(&flows());
    assert_eq!(rig.counted(), (before + MAX_BATCH as u64, lost), "all of them again");
}
