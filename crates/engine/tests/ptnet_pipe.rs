//! Pipes between ptnet ports from outside: native drivers at both ends of real sockets, an I/O core between
//! them.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidecore_driver::ptnet::{Config, Ptnet as Driver};
use sidecore_engine::device::ptnet::{self, PtnetConfig};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Attachment, Fault, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::slots::pipe::End;
use sidecore_engine::transport::vfio_user::{Endpoint, Functions, VfioUser};

const LIMIT: Duration = Duration::from_secs(20);

/// Two ports, the ends of one pipe.
struct Rig {
    dir: PathBuf,
    attachments: Vec<Functions>,
    ports: Vec<Arc<Port>>,
    _cores: Arc<Graph>,
    _counters: CounterFile,
}

impl Rig {
    fn new(name: &str) -> Rig {
        Rig::with(name, |_| {})
    }

    fn with(name: &str, change: impl Fn(&mut PtnetConfig)) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-pipe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let counters = CounterFile::anonymous().unwrap();
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let (mut attachments, mut ports) = (Vec::new(), Vec::new());
        for index in 0..2u8 {
            let (id, file) = (PortId(index.into()), format!("p{index}"));
            let slot = counters.open_slot(id, &file);
            let port = Arc::new(Port::new(id, &file, slot, DEFAULT_MTU).unwrap());
            let mut config = PtnetConfig::new(Mac([0x52, 0x54, 0, 0, 0xaa, index]));
            change(&mut config);
            config.pipe = Some(End::join(name, &config.geometry().of_pipe(), false).unwrap());
            let scheduler = Arc::clone(&cores) as Arc<dyn Scheduler>;
            let (nic, memory, beside) = ptnet::functions(config, &port, scheduler).unwrap();
            let at =
                |name: String| Endpoint::Listen { path: dir.join(name), mode: None, owner: (None, None) };
            let nic = VfioUser::start(at(file.clone()), Arc::clone(&port), Box::new(nic), None).unwrap();
            let memory = VfioUser::start(at(format!("{file}.mem")), beside, Box::new(memory), None).unwrap();
            attachments.push(Functions { nic, memory });
            ports.push(port);
        }
        let members: Vec<_> = ports.iter().map(|port| (Arc::clone(port), Attach::Nothing)).collect();
        cores.publish(&Arc::new(Topology::new(&members)));
        Rig { dir, attachments, ports, _cores: cores, _counters: counters }
    }

    /// What a driver asks for, it gets no header.
    fn driver(&self, index: usize) -> Driver {
        Driver::open(&self.dir.join(format!("p{index}")), &Config::default()).unwrap()
    }

    fn pair(&self) -> [Driver; 2] {
        [self.driver(0), self.driver(1)]
    }

    /// Waits until the daemon has seen all drivers leave.
    fn until_left(&self) {
        let functions = || self.attachments.iter().flat_map(|it| [&it.nic, &it.memory]);
        let left = |it: &VfioUser| matches!(it.status().peer, Peer::Waiting | Peer::Faulted);
        await_true("all have left", || functions().all(left));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.attachments.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn frame(n: u32, len: usize) -> Vec<u8> {
    let mut frame = [&[0x52; 12][..], &[0x88, 0xb5], &n.to_be_bytes()].concat();
    frame.extend((frame.len()..len).map(|i| (i as u32).wrapping_mul(n) as u8));
    frame
}

fn collect(driver: &mut Driver, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    await_true("frames", || {
        driver.receive(count - got.len(), |bytes| got.push(bytes.to_vec())).unwrap();
        got.len() == count
    });
    got
}

/// More frames than both rings hold, of all sizes, while the receiver takes its time.
fn exchange(a: &mut Driver, b: &mut Driver) {
    let frames: Vec<Vec<u8>> = (0..2500u32).map(|n| frame(n, 60 + (n as usize * 97) % 1400)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let (mut sent, mut got) = (0, Vec::new());
    await_true("all frames", || {
        sent += a.send(&slices[sent..(sent + 300).min(slices.len())]).unwrap();
        b.receive(97, |bytes| got.push(bytes.to_vec())).unwrap();
        got.len() == frames.len()
    });
    assert_eq!(got, frames);
    await_true("sent slots are given back", || a.is_clean());
}

#[test]
fn frames_stay_in_their_buffers() {
    let rig = Rig::new("buffers");
    let [mut a, mut b] = rig.pair();
    assert_eq!((a.header(), b.header()), (0, 0), "nobody could make up for offloads");
    for n in 0..3000u32 {
        let index = a.next_word().buf_idx();
        let sent = frame(n, 60 + n as usize % 1000);
        assert_eq!(a.send(&[&sent]).unwrap(), 1);
        let mut word = None;
        await_true("the frame", || {
            word = b.received_word();
            word.is_some()
        });
        assert_eq!(word.map(|word| word.buf_idx()), Some(index), "frame {n} was copied");
        assert_eq!(collect(&mut b, 1), [sent]);
    }
    exchange(&mut b, &mut a);
    // One memory, mapped by both: what a sender writes into its buffer its receiver finds there.
    for attachment in &rig.attachments {
        assert_eq!(attachment.status().peer, Peer::Running);
    }
    let totals = || rig.ports.iter().map(|port| port.counters.totals()).collect::<Vec<_>>();
    await_true("each frame is counted at both ends", || {
        let totals = totals();
        (totals[0].in_frames, totals[1].out_frames) == (3000, 3000)
            && (totals[1].in_frames, totals[0].out_frames) == (2500, 2500)
    });
}

#[test]
fn frames_of_all_sizes_cross_both_ways_on_all_rings() {
    let rig = Rig::with("sizes", |config| (config.pairs, config.slots, config.buf_size) = (4, 64, 512));
    let [mut a, mut b] = rig.pair();
    for pair in 0..4 {
        a.select(pair).unwrap();
        b.select(pair).unwrap();
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        for len in [512, 513, 5000, 9014] {
            let sent = frame(pair as u32, len);
            assert_eq!(a.send(&[&sent]).unwrap(), 1);
            assert_eq!(collect(&mut b, 1), [sent]);
        }
    }
}

#[test]
fn a_buffer_that_the_receiver_exchanges_becomes_the_senders() {
    let rig = Rig::with("exchange", |config| config.slots = 4);
    let [mut a, mut b] = rig.pair();
    // A buffer of the other direction's stands in for one that the receiver has of its own.
    let spare = b.next_word().buf_idx();
    let sent = a.next_word().buf_idx();
    a.send(&[&frame(1, 60)]).unwrap();
    await_true("the frame", || b.received_word().is_some());
    assert_eq!(b.exchange(spare), sent);
    b.receive(0, |_| {}).unwrap();
    // The ring goes round; then that slot is the sender's again.
    for n in 2..5 {
        await_true("room", || a.send(&[&frame(n, 60)]).unwrap() == 1);
        collect(&mut b, 1);
    }
    await_true("the slot is back", || a.is_clean());
    assert_eq!(a.next_word().buf_idx(), spare);
}

#[test]
fn who_sleeps_is_interrupted_for_frames_and_for_room() {
    let rig = Rig::with("sleep", |config| config.slots = 16);
    let [mut a, mut b] = rig.pair();
    for n in 0..50 {
        assert!(!b.arm(true));
        let sent = frame(n, 80);
        assert_eq!(a.send(&[&sent]).unwrap(), 1);
        assert!(b.wait(false, LIMIT).unwrap() > 0, "no interrupt for frame {n}");
        assert_eq!(collect(&mut b, 1), [sent]);
        b.arm(false);
    }
    // Full: nothing is dropped, and the sender hears of room.
    let many: Vec<Vec<u8>> = (0..40).map(|n| frame(n, 60)).collect();
    let slices: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    let mut sent = 0;
    await_true("the ring is full", || {
        sent += a.send(&slices[sent..]).unwrap();
        sent == 15
    });
    if !a.arm_sending(true) {
        collect(&mut b, 15);
        assert!(a.wait(true, LIMIT).unwrap() > 0, "no interrupt for room");
    }
    await_true("all room", || {
        sent += a.send(&slices[sent..]).unwrap();
        sent == 30
    });
}

#[test]
fn an_end_that_ends_and_begins_again_loses_nothing() {
    let rig = Rig::with("again", |config| config.slots = 64);
    let [mut a, mut b] = rig.pair();
    for round in 0..6u32 {
        let frames: Vec<Vec<u8>> = (0..20).map(|n| frame(20 * round + n, 100)).collect();
        let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        if round % 2 == 0 {
            // A release that no core has seen when an end stops is undone: its frames would come again.
            await_true("what was received is given back", || a.is_clean());
            b.stop().unwrap();
        }
        assert_eq!(a.send(&slices).unwrap(), 20);
        if round % 3 == 0 {
            a.stop().unwrap();
            a.start().unwrap();
        }
        if round % 2 == 0 {
            b.start().unwrap();
        }
        assert_eq!(collect(&mut b, 20), frames);
    }
    // Another VMM at one end, while the other one stays.
    drop(b);
    let mut b = rig.driver(1);
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    assert_eq!([rig.ports[0].fault.get(), rig.ports[1].fault.get()], [None; 2]);
}

#[test]
fn memory_is_nobodys_twice_but_the_pipes() {
    let rig = Rig::with("fresh", |config| config.slots = 16);
    let [mut a, mut b] = rig.pair();
    exchange(&mut a, &mut b);
    // In a buffer.
    let at = 0x10000;
    assert!(a.window().write32(at, 0x5a5a_5a5a));
    // The other end is there: an end that comes again has the same memory.
    drop(a);
    let again = rig.driver(0);
    assert_ne!(again.window().read32(at).unwrap(), 0);
    // Both ends are empty: it is new.
    drop((again, b));
    rig.until_left();
    let [mut a, mut b] = rig.pair();
    assert_eq!(a.window().read32(at).unwrap(), 0);
    exchange(&mut a, &mut b);
}

#[test]
fn a_lying_end_loses_its_own_port_alone() {
    let rig = Rig::with("lies", |config| config.slots = 16);
    let [mut a, mut b] = rig.pair();
    // No slot of the ring; and of a receiver, one more than came.
    for (sends, lie) in [(true, 16), (true, u32::MAX), (false, 16), (false, u32::MAX), (false, 0)] {
        exchange(&mut a, &mut b);
        let now = b.block(sends).load32(0, Ordering::Relaxed);
        b.block(sends).store32(0, if lie == 0 { (now + 1) % 16 } else { lie }, Ordering::Release);
        let faults = || [rig.ports[0].fault.get(), rig.ports[1].fault.get()];
        await_true("the lie is found", || faults() == [None, Some(Fault::BadHead)]);
        // Its partner's frames wait meanwhile; it goes on when it begins again.
        a.send(&[&frame(1, 60)]).unwrap();
        b.start().unwrap();
        assert_eq!(collect(&mut b, 1), [frame(1, 60)]);
        exchange(&mut b, &mut a);
        assert_eq!(faults(), [None; 2]);
    }
}

#[test]
fn a_partner_that_scribbles_over_all_of_the_pipe_harms_the_pipe_alone() {
    let rig = Rig::with("scribble", |config| config.slots = 16);
    let [mut a, b] = rig.pair();
    let window = Arc::clone(b.window());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut word = 0x9e37_79b9_7f4a_7c15u64;
            // Slots and words of both ends, not buffers alone.
            while !stop.load(Ordering::Relaxed) {
                for at in (0..32 * 1024u64).step_by(4) {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let _ = window.write32(at, (word >> 32) as u32 >> (word % 30));
                }
            }
        });
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            let _ = a.send_again(4);
            let _ = a.receive(16, |_| {});
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The daemon lives, and a pipe with both ends empty is whole again.
    drop((a, b));
    rig.until_left();
    let [mut a, mut b] = rig.pair();
    exchange(&mut a, &mut b);
}
