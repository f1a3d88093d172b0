//! e1000 and e1000e from outside: native drivers at the other end of real sockets, a real switch and I/O core
//! between them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cards::{assert_conserved, await_true, frame, LIMIT};
use sidecore_driver::e1000::{Config, Model as Part, E1000 as Driver, RSS_KEY};
use sidecore_engine::device::e1000::{E1000Config, Model, E1000};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Attachment, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};
use sidecore_engine::transport::vfio_user::{Endpoint, VfioUser};

/// Two devices on one switch.
struct Rig {
    dir: PathBuf,
    attachments: Vec<VfioUser>,
    ports: Vec<Arc<Port>>,
    _cores: Arc<Graph>,
    _counters: CounterFile,
}

fn mac(index: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0xe0, index])
}

impl Rig {
    fn new(name: &str, models: [Model; 2], exitless: bool) -> Rig {
        Rig::with(name, models, |config| config.exitless = exitless)
    }

    fn with(name: &str, models: [Model; 2], change: impl Fn(&mut E1000Config)) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-e1000-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let counters = CounterFile::anonymous().unwrap();
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
        let (mut attachments, mut ports) = (Vec::new(), Vec::new());
        for (index, model) in models.into_iter().enumerate() {
            let (id, name) = (PortId(index as u16), format!("p{index}"));
            let slot = counters.open_slot(id, &name);
            let port = Arc::new(Port::new(id, &name, slot, DEFAULT_MTU).unwrap());
            let mut config = E1000Config::new(model, mac(index as u8));
            change(&mut config);
            let scheduler = Arc::clone(&cores) as Arc<dyn Scheduler>;
            let device = E1000::new(config, Arc::clone(&port), scheduler).unwrap();
            let endpoint = Endpoint::Listen { path: dir.join(&name), mode: None, owner: (None, None) };
            attachments.push(VfioUser::start(endpoint, Arc::clone(&port), Box::new(device), None).unwrap());
            ports.push(port);
        }
        let members: Vec<_> =
            ports.iter().map(|port| (Arc::clone(port), Attach::Switch(Arc::clone(&switch)))).collect();
        cores.publish(&Arc::new(Topology::new(&members)));
        Rig { dir, attachments, ports, _cores: cores, _counters: counters }
    }

    fn driver(&self, index: usize, config: &Config) -> Driver {
        Driver::open(&self.dir.join(format!("p{index}")), config).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.attachments.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Receives until `count` frames have come; all of them, in order.
fn collect(driver: &mut Driver, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    await_true("frames come", || {
        driver.receive(count - got.len(), |bytes| got.push(bytes.to_vec())).unwrap();
        got.len() == count
    });
    if !driver.is_exitless() {
        // Buffers are given back by posted writes; a read on the same socket is answered behind them.
        driver.link().unwrap();
    }
    got
}

/// Sends frames of all sizes from `a` to `b` and checks that they arrive as they were.
fn exchange(a: &mut Driver, b: &mut Driver) {
    let (to, from) = (Mac(b.mac()), Mac(a.mac()));
    let mut n = 0;
    for burst in [1usize, 2, 31, 64, 200] {
        let frames: Vec<Vec<u8>> =
            (0..burst).map(|i| frame(to, from, n + i as u32, 60 + (i * 97) % 1400)).collect();
        n += burst as u32;
        let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let mut sent = 0;
        while sent < burst {
            sent += a.send(&slices[sent..]).unwrap();
        }
        assert_eq!(collect(b, burst), frames);
    }
    await_true("sent frames are given back", || a.reclaim());
}

#[test]
fn frames_cross_without_a_single_trap() {
    let rig = Rig::new("exitless", [Model::E1000, Model::E1000e], true);
    let (mut a, mut b) = (rig.driver(0, &Config::default()), rig.driver(1, &Config::default()));
    assert_eq!([a.model(), b.model()], [Part::E1000, Part::E1000e]);
    assert_eq!([a.mac(), b.mac()], [mac(0).0, mac(1).0]);
    assert!(a.is_exitless() && b.is_exitless() && a.link().unwrap());
    // The switch learns where both are.
    b.send(&[&frame(mac(0), mac(1), 0, 60)]).unwrap();
    collect(&mut a, 1);
    let before = [a.traps(), b.traps()];
    for _ in 0..20 {
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
    }
    assert_eq!([a.traps(), b.traps()], before);
    assert_conserved(&rig.ports);
    for attachment in &rig.attachments {
        let status = attachment.status();
        assert_eq!(status.peer, Peer::Running);
        for queue in status.queues {
            assert_eq!((queue.kind, queue.state.as_str(), queue.size), ("exitless", "running", 256));
        }
    }
}

#[test]
fn frames_cross_by_traps_where_nothing_is_mapped() {
    for exitless in [true, false] {
        let rig = Rig::new("trapping", [Model::E1000e, Model::E1000], exitless);
        let config = Config { map: !exitless, ..Config::default() };
        let (mut a, mut b) = (rig.driver(0, &config), rig.driver(1, &config));
        assert!(!a.is_exitless() && !b.is_exitless());
        let before = a.traps();
        exchange(&mut a, &mut b);
        assert!(a.traps().writes >= before.writes + 5, "a doorbell for every batch");
        assert_eq!(rig.attachments[0].status().queues[0].kind, "trapping");
        exchange(&mut b, &mut a);
    }
}

#[test]
fn interrupts_come_when_they_were_asked_for() {
    let rig = Rig::new("interrupts", [Model::E1000, Model::E1000e], true);
    let (mut a, mut b) = (rig.driver(0, &Config::default()), rig.driver(1, &Config::default()));
    for n in 0..50 {
        for reverse in [false, true] {
            let (from, to) = if reverse { (&mut b, &mut a) } else { (&mut a, &mut b) };
            to.arm().unwrap();
            let sent = frame(Mac(to.mac()), Mac(from.mac()), n, 80);
            from.send(&[&sent]).unwrap();
            let mut got = Vec::new();
            let end = Instant::now() + LIMIT;
            // The pin also tells of frames sent; what counts is that an interrupt comes with the frame.
            while got.is_empty() {
                assert!(to.wait(LIMIT).unwrap() && Instant::now() < end, "no interrupt for frame {n}");
                to.receive(8, |bytes| got.push(bytes.to_vec())).unwrap();
                to.arm().unwrap();
            }
            assert_eq!(got, [sent]);
        }
    }
}

#[test]
fn resets_and_departures_in_the_middle_of_traffic() {
    let rig = Rig::new("resets", [Model::E1000e, Model::E1000e], true);
    let config = Config { ring: 64, ..Config::default() };
    let mut b = rig.driver(1, &config);
    for round in 0..10 {
        // A new VMM each time: the one before was dropped without a word.
        let mut a = rig.driver(0, &config);
        for n in 0..20 {
            let frames: Vec<Vec<u8>> = (0..40).map(|i| frame(mac(1), mac(0), 100 * n + i, 200)).collect();
            let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            a.send(&slices).unwrap();
            if n % 7 == 3 {
                a.start().unwrap();
            }
            b.receive(64, |bytes| assert_eq!(bytes[..6], mac(1).0)).unwrap();
        }
        if round % 3 == 2 {
            b.start().unwrap();
        }
    }
    let mut a = rig.driver(0, &config);
    a.start().unwrap();
    b.start().unwrap();
    // Whatever was under way when the rings were new has passed when this frame comes.
    let last = frame(mac(1), mac(0), u32::MAX, 300);
    a.send(&[&last]).unwrap();
    let mut seen = false;
    await_true("the last frame comes", || {
        b.receive(64, |bytes| seen |= bytes == last).unwrap();
        seen
    });
    assert_eq!(rig.ports[0].fault.get(), None);
    assert_conserved(&rig.ports);
}

#[test]
fn memory_that_goes_away_stops_the_device_until_it_is_reset() {
    let rig = Rig::new("unmap", [Model::E1000e, Model::E1000e], true);
    let config = Config::default();
    let (mut a, mut b) = (rig.driver(0, &config), rig.driver(1, &config));
    exchange(&mut a, &mut b);
    let memory = Arc::clone(a.memory());
    a.client().unmap(memory.gpa(0), memory.size() as u64).unwrap();
    a.send(&[&frame(mac(1), mac(0), 1, 60)]).unwrap();
    await_true("the fault is noticed", || rig.ports[0].fault.get().is_some());
    a.client().map_memory(&memory).unwrap();
    a.start().unwrap();
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
}

/// Two 82540EM with status blocks, and drivers that use them; no page is mapped.
fn with_blocks(name: &str) -> (Rig, Driver, Driver) {
    let change = |config: &mut E1000Config| (config.csb, config.exitless) = (true, false);
    let rig = Rig::with(name, [Model::E1000, Model::E1000], change);
    let config = Config { csb: true, map: false, ..Config::default() };
    let drivers = [rig.driver(0, &config), rig.driver(1, &config)];
    let [a, b] = drivers;
    (rig, a, b)
}

#[test]
fn a_status_block_saves_the_traps() {
    let (rig, mut a, mut b) = with_blocks("csb");
    let before = [a.traps(), b.traps()].map(|traps| traps.writes);
    for _ in 0..20 {
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
    }
    // Some hundred bursts: a kick only for a core that sleeps.
    let kicks = a.traps().writes + b.traps().writes - before[0] - before[1];
    let sleeps = rig._cores.status()[0].sleeps;
    assert!(kicks <= sleeps + 4, "{kicks} kicks, {sleeps} sleeps");
    assert_eq!(rig.attachments[0].status().queues[0].kind, "csb");
    // Interrupts, when they are asked for.
    b.arm_all().unwrap();
    let sent = frame(Mac(b.mac()), Mac(a.mac()), 1, 80);
    a.send(&[&sent]).unwrap();
    let mut got = Vec::new();
    await_true("an interrupt comes", || {
        b.service(64, |bytes| got.push(bytes.to_vec())).unwrap();
        !got.is_empty()
    });
    assert_eq!(got, [sent]);
    // A reset, with the block where it was.
    a.start().unwrap();
    exchange(&mut a, &mut b);
    assert_conserved(&rig.ports);
}

#[test]
fn a_driver_that_scribbles_on_its_block_harms_itself_only() {
    let (rig, mut a, mut b) = with_blocks("scribble");
    let mut seed = 1u64;
    for _ in 0..2_000 {
        // xorshift64 (Marsaglia 2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let block = a.status_block().unwrap();
        let value = if seed & 1 == 0 { (seed >> 32) as u32 } else { (seed >> 32) as u32 % 300 };
        block.store32((seed >> 8) as usize % 26, value, std::sync::atomic::Ordering::Release);
        b.send(&[&frame(mac(0), mac(1), seed as u32, 100)]).unwrap();
        b.receive(64, |_| {}).unwrap();
    }
    // The other is as well as before, and so is this one once it starts anew. Nothing of it is under way
    // then, and what the other sent has been delivered when it gets its descriptors back.
    assert_eq!(rig.ports[1].fault.get(), None);
    a.start().unwrap();
    await_true("sent frames are given back", || b.reclaim());
    for driver in [&mut a, &mut b] {
        while driver.receive(64, |_| {}).unwrap() > 0 {}
    }
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    assert_conserved(&rig.ports);
}

/// Toeplitz's hash by the driver's key, bit by bit.
fn toeplitz(input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    (0..8 * input.len())
        .filter(|at| bit(input, *at) == 1)
        .fold(0, |sum, at| sum ^ (at..at + 32).fold(0, |word, at| word << 1 | u32::from(bit(&RSS_KEY, at))))
}

/// A packet of flow `flow` with number `n`, and the queue that it belongs in: TCP or UDP over IPv4 or IPv6,
/// with a tag or without, and one in nine is not IP.
fn packet(to: Mac, from: Mac, flow: u32, n: u32) -> (Vec<u8>, usize) {
    let mut bytes = [to.0, from.0].concat();
    let seed = flow.wrapping_mul(0x9e37_79b9).to_be_bytes();
    let (v6, tcp) = (flow & 1 != 0, flow & 2 != 0);
    if flow & 4 != 0 {
        bytes.extend([0x81, 0, 0, 7]);
    }
    let protocol = if tcp { 6 } else { 17 };
    let addresses = if v6 {
        [&[0xfd; 12], &seed[..], &[0xfe; 16]].concat()
    } else {
        [&seed[..], &[10, 0, 0, 1]].concat()
    };
    let ports = [seed[2], seed[0], 0, 80];
    let input = if tcp { [&addresses[..], &ports].concat() } else { addresses.clone() };
    let mut queue = (toeplitz(&input) & 1) as usize;
    if flow % 9 == 8 {
        bytes.extend([0x88, 0xb5]);
        queue = 0;
    } else if v6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
    } else {
        bytes.extend([8, 0, 0x45, 0, 0, 60, 0, 1, 0, 0, 64, protocol, 0, 0]);
    }
    bytes.extend([&addresses[..], &ports, &[0; 32]].concat());
    bytes.extend([flow.to_be_bytes(), n.to_be_bytes()].concat());
    (bytes, queue)
}

#[test]
fn flows_arrive_in_the_queue_that_their_hash_names_and_in_order() {
    let rig = Rig::new("scaling", [Model::E1000, Model::E1000e], true);
    let config = Config { queues: 2, ..Config::default() };
    let (mut a, mut b) = (rig.driver(0, &Config::default()), rig.driver(1, &config));
    b.send(&[&frame(mac(0), mac(1), 0, 60)]).unwrap();
    collect(&mut a, 1);
    let before = [a.traps(), b.traps()];
    let (mut last, mut came) = ([0; 100], [0; 2]);
    for round in 1..=20u32 {
        let packets: Vec<_> = (0..100).map(|flow| packet(mac(1), mac(0), flow, round)).collect();
        let slices: Vec<&[u8]> = packets.iter().map(|(bytes, _)| &bytes[..]).collect();
        let (mut sent, mut got) = (0, 0);
        let end = Instant::now() + LIMIT;
        while got < packets.len() {
            sent += a.send(&slices[sent..]).unwrap();
            for (queue, came) in came.iter_mut().enumerate() {
                b.select(queue).unwrap();
                let n = b.receive(64, |bytes| {
                    let (rest, n) = bytes.split_last_chunk().unwrap();
                    let flow = u32::from_be_bytes(*rest.last_chunk().unwrap());
                    let (packet, right) = &packets[flow as usize];
                    assert_eq!((bytes, queue), (&packet[..], *right), "flow {flow}");
                    assert_eq!(
                        std::mem::replace(&mut last[flow as usize], u32::from_be_bytes(*n)),
                        round - 1
                    );
                });
                let n = n.unwrap();
                (*came, got) = (*came + n, got + n);
            }
            assert!(Instant::now() < end, "{got} of {} came", packets.len());
            std::thread::yield_now();
        }
    }
    assert!(came.iter().all(|came| *came > 500), "{came:?}");
    assert_eq!([a.traps(), b.traps()], before, "not a trap");
    let status = rig.attachments[1].status().queues;
    let shown: Vec<_> = status.iter().map(|queue| (queue.direction, queue.index, queue.kind)).collect();
    let expected = [("ingress", 0), ("ingress", 1), ("egress", 0), ("egress", 1)];
    assert_eq!(shown, expected.map(|(direction, index)| (direction, index, "exitless")));
    assert_conserved(&rig.ports);
}

#[test]
fn both_transmit_queues_reach_the_switch_and_are_given_back() {
    for exitless in [true, false] {
        let rig = Rig::new("pair", [Model::E1000e, Model::E1000], exitless);
        let config = Config { queues: 2, map: exitless, ..Config::default() };
        let (mut a, mut b) = (rig.driver(0, &config), rig.driver(1, &Config { queues: 1, ..config.clone() }));
        for round in 0..10 {
            for burst in [1, 7, 200] {
                let mut numbers = Vec::new();
                for queue in [0, 1] {
                    let first = 1_000 * round + 500 * queue;
                    let frames: Vec<_> = (first..first + burst)
                        .map(|n| frame(mac(1), mac(0), n, 60 + n as usize % 900))
                        .collect();
                    a.select(queue as usize).unwrap();
                    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                    assert_eq!(a.send(&slices).unwrap(), frames.len());
                    numbers.extend(frames);
                    // Room for one burst at a time in the other's ring.
                    let got = collect(&mut b, burst as usize);
                    assert_eq!(got, numbers[numbers.len() - burst as usize..]);
                }
                for queue in [0, 1] {
                    a.select(queue).unwrap();
                    await_true("sent frames are given back", || a.reclaim());
                }
            }
        }
        // Both at once: each in its own order.
        let mut at = [0; 2];
        for queue in [0, 1] {
            a.select(queue).unwrap();
            let frames: Vec<_> =
                (0..100).map(|n| frame(mac(1), mac(0), 1_000 * queue as u32 + n, 80)).collect();
            a.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        }
        for got in collect(&mut b, 200) {
            let n = u32::from_be_bytes(*got[14..].first_chunk().unwrap());
            let expected = &mut at[(n / 1_000) as usize];
            assert_eq!(n % 1_000, *expected);
            *expected += 1;
        }
        let kind = if exitless { "exitless" } else { "trapping" };
        assert!(rig.attachments[0].status().queues[..2].iter().all(|queue| queue.kind == kind));
        assert_conserved(&rig.ports);
    }
}

#[test]
fn each_queue_has_a_message_of_its_own() {
    let rig = Rig::new("messages", [Model::E1000e, Model::E1000e], true);
    let config = Config { queues: 2, ..Config::default() };
    let (mut a, mut b) = (rig.driver(0, &config), rig.driver(1, &config));
    b.send(&[&frame(mac(0), mac(1), 0, 60)]).unwrap();
    let mut seen = [0; 2];
    for flow in 0..40 {
        let (bytes, queue) = packet(mac(1), mac(0), flow, 1);
        for queue in [0, 1] {
            b.select(queue).unwrap();
            b.arm().unwrap();
        }
        a.select(flow as usize & 1).unwrap();
        a.send(&[&bytes]).unwrap();
        b.select(queue).unwrap();
        let end = Instant::now() + LIMIT;
        let mut got = Vec::new();
        while got.is_empty() {
            assert!(b.wait(LIMIT).unwrap() && Instant::now() < end, "no interrupt for flow {flow}");
            b.receive(8, |bytes| got.push(bytes.to_vec())).unwrap();
            b.arm().unwrap();
        }
        assert_eq!(got, [bytes]);
        b.select(1 - queue).unwrap();
        assert!(!b.wait(Duration::ZERO).unwrap(), "flow {flow} interrupted for the other queue");
        seen[queue] += 1;
    }
    assert!(seen.iter().all(|n| *n > 5), "{seen:?}");
    assert!(Driver::open(&rig.dir.join("p0"), &Config { queues: 3, ..config }).is_err());
}
