//! ptnet from outside: native drivers at the other end of real sockets, a real switch and I/O core between
//! them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::cards::{assert_conserved, await_true, frame, LIMIT};
use sidecore_abi::netmap::{SlotWord, NS_MOREFRAG};
use sidecore_abi::ptnet::{reg, CREATE, DELETE};
use sidecore_driver::ptnet::{Config, Ptnet as Driver};
use sidecore_engine::device::ptnet::{self, PtnetConfig};
use sidecore_engine::graph::{Attach, CoreOptions, Graph, Scheduler, Topology};
use sidecore_engine::observe::CounterFile;
use sidecore_engine::packet::Mac;
use sidecore_engine::port::{Attachment, Fault, Peer, Port, PortId, DEFAULT_MTU};
use sidecore_engine::switch::{Switch, SwitchOptions};
use sidecore_engine::transport::vfio_user::{Endpoint, Functions, VfioUser};

const PLAIN: Config = Config { header: false, page: sidecore_driver::memory::Page::Small };

/// Devices on one switch.
struct Rig {
    dir: PathBuf,
    attachments: Vec<Functions>,
    ports: Vec<Arc<Port>>,
    cores: Arc<Graph>,
    _counters: CounterFile,
}

fn mac(index: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0xaa, index])
}

impl Rig {
    fn new(name: &str, count: usize) -> Rig {
        Rig::with(name, count, |_| {})
    }

    fn with(name: &str, count: usize, change: impl Fn(&mut PtnetConfig)) -> Rig {
        let dir = std::env::temp_dir().join(format!("sidecore-ptnet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let counters = CounterFile::anonymous().unwrap();
        let cores = Graph::start(&CoreOptions::default()).unwrap();
        let switch = Arc::new(Switch::new("lan", SwitchOptions::default()));
        let (mut attachments, mut ports) = (Vec::new(), Vec::new());
        for index in 0..count {
            let (id, name) = (PortId(index as u16), format!("p{index}"));
            let slot = counters.open_slot(id, &name);
            let port = Arc::new(Port::new(id, &name, slot, DEFAULT_MTU).unwrap());
            let mut config = PtnetConfig::new(mac(index as u8));
            change(&mut config);
            let scheduler = Arc::clone(&cores) as Arc<dyn Scheduler>;
            let (nic, memory, beside) = ptnet::functions(config, &port, scheduler).unwrap();
            let at =
                |name: String| Endpoint::Listen { path: dir.join(name), mode: None, owner: (None, None) };
            let nic = VfioUser::start(at(name.clone()), Arc::clone(&port), Box::new(nic), None).unwrap();
            let memory = VfioUser::start(at(format!("{name}.mem")), beside, Box::new(memory), None).unwrap();
            attachments.push(Functions { nic, memory });
            ports.push(port);
        }
        let members: Vec<_> =
            ports.iter().map(|port| (Arc::clone(port), Attach::Switch(Arc::clone(&switch)))).collect();
        cores.publish(&Arc::new(Topology::new(&members)));
        Rig { dir, attachments, ports, cores, _counters: counters }
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
    await_true("frames", || {
        driver.receive(count - got.len(), |bytes| got.push(bytes.to_vec())).unwrap();
        got.len() == count
    });
    got
}

/// Sends frames of all sizes from `a` to `b` and checks that they arrive as they were.
fn exchange(a: &mut Driver, b: &mut Driver) {
    let (to, from) = (Mac(b.mac()), Mac(a.mac()));
    let mut n = 0;
    // No more than the smallest ring of these tests has slots for.
    for burst in [1usize, 2, 31, 60, 63] {
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
    await_true("sent slots are given back", || a.is_clean());
}

#[test]
fn frames_cross_with_next_to_no_kick() {
    for config in [PLAIN, Config::default()] {
        let rig = Rig::new("cross", 2);
        let (mut a, mut b) = (rig.driver(0, &config), rig.driver(1, &config));
        assert_eq!([a.mac(), b.mac()], [mac(0).0, mac(1).0]);
        assert_eq!(a.header(), if config.header { 12 } else { 0 });
        // The switch learns where both are.
        b.send(&[&frame(mac(0), mac(1), 0, 60)]).unwrap();
        collect(&mut a, 1);
        let (traps, kicks) = ([a.traps(), b.traps()], a.kicks() + b.kicks());
        for _ in 0..20 {
            exchange(&mut a, &mut b);
            exchange(&mut b, &mut a);
        }
        // Only kicks leave the guest, and a core is kicked out of a sleep, not more often.
        let kicks = a.kicks() + b.kicks() - kicks;
        let writes = |now: [sidecore_driver::vfio::Traps; 2]| now[0].writes + now[1].writes;
        assert_eq!(writes([a.traps(), b.traps()]) - writes(traps), kicks);
        assert_eq!([a.traps().reads, b.traps().reads], [traps[0].reads, traps[1].reads]);
        let sleeps = rig.cores.status()[0].sleeps;
        assert!(kicks <= sleeps + 4, "{kicks} kicks, {sleeps} sleeps");
        assert_conserved(&rig.ports);
        for attachment in &rig.attachments {
            let status = attachment.status();
            assert_eq!((status.peer, status.hint), (Peer::Running, None));
            for queue in status.queues {
                assert_eq!((queue.kind, queue.state.as_str(), queue.size), ("ptnet", "running", 1024));
            }
        }
    }
}

#[test]
fn a_frame_that_asks_for_offloads_is_made_up_for_where_its_receiver_knows_none() {
    let rig = Rig::new("offload", 2);
    let (mut a, mut b) = (rig.driver(0, &Config::default()), rig.driver(1, &PLAIN));
    // UDP over IPv4 whose checksum is to be completed: the field holds the pseudo header's sum.
    let payload = [0x5a; 400];
    let mut bytes = [&mac(1).0[..], &mac(0).0, &[8, 0]].concat();
    let len = 8 + payload.len() as u16;
    bytes.extend([0x45, 0]);
    bytes.extend((20 + len).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = |parts: &[u8]| -> u16 {
        let words = parts.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(*p.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let header = !sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&header.to_be_bytes());
    let pseudo = sum(&[&bytes[26..34], &[0, 17], &len.to_be_bytes()].concat());
    bytes.extend([0x12, 0x34, 0x56, 0x78]);
    bytes.extend(len.to_be_bytes());
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend(payload);
    let mut wanted = bytes.clone();
    let done = !sum(&bytes[34..]);
    wanted[40..42].copy_from_slice(&done.to_be_bytes());
    // VIRTIO_NET_HDR_F_NEEDS_CSUM, from byte 34 on, at byte 6 of that.
    let header = [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0];
    assert!(a.queue(&header, &bytes).unwrap());
    a.publish().unwrap();
    assert_eq!(collect(&mut b, 1), [wanted]);
    // One that knows them gets the frame as it is, and is told.
    drop((a, b));
    let (mut c, mut d) = (rig.driver(0, &Config::default()), rig.driver(1, &Config::default()));
    assert!(c.queue(&header, &bytes).unwrap());
    c.publish().unwrap();
    let mut got = Vec::new();
    await_true("the frame", || {
        d.receive_with(1, |header, frame| got.push((header.to_vec(), frame.to_vec()))).unwrap();
        !got.is_empty()
    });
    assert_eq!((&got[0].0[..10], &got[0].1), (&header[..10], &bytes));
}

#[test]
fn large_frames_take_several_slots() {
    let rig = Rig::with("large", 2, |config| config.buf_size = 512);
    rig.ports.iter().for_each(|port| port.set_mtu(9000));
    let (mut a, mut b) = (rig.driver(0, &Config::default()), rig.driver(1, &PLAIN));
    for (n, len) in [500, 512, 513, 1024, 1500, 5000, 9014].into_iter().enumerate() {
        let sent = frame(mac(1), mac(0), n as u32, len);
        assert_eq!(a.send(&[&sent]).unwrap(), 1);
        assert_eq!(collect(&mut b, 1), [sent]);
    }
    assert_conserved(&rig.ports);
}

#[test]
fn interrupts_come_when_they_were_asked_for() {
    let rig = Rig::new("interrupts", 2);
    let (mut a, mut b) = (rig.driver(0, &PLAIN), rig.driver(1, &PLAIN));
    for n in 0..50 {
        for reverse in [false, true] {
            let (from, to) = if reverse { (&mut b, &mut a) } else { (&mut a, &mut b) };
            assert!(!to.arm(true));
            let sent = frame(Mac(to.mac()), Mac(from.mac()), n, 80);
            from.send(&[&sent]).unwrap();
            assert!(to.wait(false, LIMIT).unwrap() > 0, "no interrupt for frame {n}");
            assert_eq!(collect(to, 1), [sent]);
            to.arm(false);
        }
    }
}

#[test]
fn all_pairs_of_rings_send_and_receive() {
    let rig = Rig::with("pairs", 2, |config| (config.pairs, config.slots) = (ptnet::MAX_PAIRS, 64));
    let (mut a, mut b) = (rig.driver(0, &PLAIN), rig.driver(1, &PLAIN));
    assert_eq!(a.pairs(), ptnet::MAX_PAIRS);
    b.send(&[&frame(mac(0), mac(1), 0, 60)]).unwrap();
    let mut seen = 0;
    await_true("the first frame", || {
        for pair in 0..a.pairs() {
            a.select(pair).unwrap();
            seen += a.receive(8, |_| {}).unwrap();
        }
        seen == 1
    });
    // Each pair sends datagrams of flows of its own; flows are spread over the receiver's rings.
    let mut sent = Vec::new();
    for pair in 0..a.pairs() {
        a.select(pair).unwrap();
        for flow in 0..8u8 {
            let mut bytes =
                [&mac(1).0[..], &mac(0).0, &[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
            bytes.extend([10, 0, pair as u8, flow, 10, 0, 0, 2, 0x12, flow, 0x56, pair as u8, 0, 26, 0, 0]);
            bytes.resize(60, pair as u8);
            sent.push(bytes);
        }
        let slices: Vec<&[u8]> = sent[8 * pair..].iter().map(Vec::as_slice).collect();
        assert_eq!(a.send(&slices).unwrap(), 8);
    }
    let (mut got, mut used) = (Vec::new(), vec![0; b.pairs()]);
    await_true("all frames", || {
        for (pair, count) in used.iter_mut().enumerate() {
            b.select(pair).unwrap();
            *count += b.receive(64, |bytes| got.push(bytes.to_vec())).unwrap();
        }
        got.len() == sent.len()
    });
    sent.sort();
    got.sort();
    assert_eq!(got, sent);
    assert!(used.iter().filter(|count| **count > 0).count() > ptnet::MAX_PAIRS / 2, "{used:?}");
}

#[test]
fn beginning_and_ending_in_the_middle_of_traffic() {
    let rig = Rig::with("storm", 2, |config| config.slots = 64);
    let mut b = rig.driver(1, &PLAIN);
    for round in 0..6 {
        // A new VMM each time: the one before was dropped without a word.
        let mut a = rig.driver(0, &PLAIN);
        for n in 0..30 {
            let frames: Vec<Vec<u8>> = (0..20).map(|i| frame(mac(1), mac(0), 100 * n + i, 200)).collect();
            let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            a.send(&slices).unwrap();
            match (n + round) % 5 {
                0 => a.stop().unwrap(),
                1 => a.command(CREATE).unwrap(),
                2 => a.start().unwrap(),
                3 => a.command(DELETE).unwrap(),
                _ => a.kick().unwrap(),
            }
            b.receive(64, |bytes| assert_eq!(bytes[..6], mac(1).0)).unwrap();
        }
        if round % 3 == 2 {
            b.stop().unwrap();
            b.start().unwrap();
        }
    }
    let mut a = rig.driver(0, &PLAIN);
    let last = frame(mac(1), mac(0), u32::MAX, 300);
    a.send(&[&last]).unwrap();
    let mut seen = false;
    await_true("the last frame", || {
        b.receive(64, |bytes| seen |= bytes == last).unwrap();
        seen
    });
    exchange(&mut a, &mut b);
    assert_eq!(rig.ports[1].fault.get(), None);
    assert_conserved(&rig.ports);
}

#[test]
fn blocks_that_are_not_in_memory_are_refused_and_memory_that_goes_ends_the_service() {
    let rig = Rig::new("unmap", 2);
    let (mut a, mut b) = (rig.driver(0, &PLAIN), rig.driver(1, &PLAIN));
    exchange(&mut a, &mut b);
    let memory = Arc::clone(a.memory());
    a.client().unmap(memory.gpa(0), memory.size() as u64).unwrap();
    assert!(a.start().is_err(), "EFAULT");
    let status = rig.attachments[0].status();
    assert!(status.queues.iter().all(|queue| queue.state != "running"), "{status:?}");
    a.client().map_memory(&memory).unwrap();
    a.start().unwrap();
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    // Blocks at the end of memory, beyond it, not aligned, nowhere.
    for at in [memory.gpa(memory.size() - 64), memory.gpa(memory.size()), memory.gpa(4), u64::MAX, 0] {
        a.client().write32(0, reg::CSB_GH_BAH, (at >> 32) as u32).unwrap();
        a.client().write32(0, reg::CSB_GH_BAL, at as u32).unwrap();
        assert!(a.command(CREATE).is_err(), "{at:#x}");
    }
    a.start().unwrap();
    exchange(&mut a, &mut b);
    assert_eq!([rig.ports[0].fault.get(), rig.ports[1].fault.get()], [None; 2]);
}

#[test]
fn a_head_that_makes_no_sense_stops_its_port_until_its_driver_begins_again() {
    let rig = Rig::new("heads", 2);
    let (mut a, mut b) = (rig.driver(0, &PLAIN), rig.driver(1, &PLAIN));
    exchange(&mut a, &mut b);
    for (sends, head) in [(true, 1024), (true, u32::MAX), (false, 5000), (false, 0x8000_0000)] {
        a.block(sends).store32(0, head, Ordering::Release);
        let mut n = 0;
        await_true("the device is stopped", || {
            // A ring to receive into is looked at when something comes.
            n += 1;
            b.send(&[&frame(mac(0), mac(1), n, 60)]).unwrap();
            rig.ports[0].fault.get() == Some(Fault::BadHead)
        });
        assert_eq!(rig.ports[1].fault.get(), None);
        // The conversation takes the queues back; then the driver begins again.
        await_true("the queues are at home", || {
            rig.attachments[0].status().queues.iter().all(|queue| queue.state != "running")
        });
        a.start().unwrap();
        await_true("frames of before have passed", || b.is_clean());
        while a.receive(64, |_| {}).unwrap() > 0 {}
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
    }
    assert_conserved(&rig.ports);
}

#[test]
fn slots_that_make_no_sense_cost_their_frames_and_nothing_else() {
    let rig = Rig::with("slots", 2, |config| config.slots = 64);
    let (mut a, mut b) = (rig.driver(0, &PLAIN), rig.driver(1, &PLAIN));
    exchange(&mut a, &mut b);
    let good = a.next_word().buf_idx();
    let lies = [
        SlotWord::new(0, 60, 0),
        SlotWord::new(1, 60, 0),
        SlotWord::new(u32::MAX, 60, 0),
        SlotWord::new(good, u16::MAX, 0),
        SlotWord::new(good, 3, 0),
        SlotWord::new(good, 60, u16::MAX),
        // A chain without an end.
        SlotWord::new(good, 60, NS_MOREFRAG),
    ];
    let before = rig.ports[0].counters.totals().in_frames;
    for round in 0..200 {
        for word in lies {
            await_true("room", || a.queue_word(word));
        }
        if round % 3 == 0 {
            a.publish().unwrap();
        }
        b.receive(64, |_| {}).unwrap();
    }
    a.publish().unwrap();
    await_true("the slots are given back", || a.is_clean());
    assert!(rig.ports[0].counters.totals().in_frames > before);
    assert_eq!([rig.ports[0].fault.get(), rig.ports[1].fault.get()], [None; 2]);
    while b.receive(64, |_| {}).unwrap() > 0 {}
    // Its slots name what it wrote there; a reset gives it those that it had.
    drop(a);
    let mut a = rig.driver(0, &PLAIN);
    while b.receive(64, |_| {}).unwrap() > 0 {}
    exchange(&mut a, &mut b);
    assert_conserved(&rig.ports);
}

struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_guest_that_scribbles_over_all_its_memory_harms_itself_only() {
    let rig = Rig::with("scribble", 3, |config| config.slots = 64);
    let mut evil = rig.driver(0, &PLAIN);
    let (mut a, mut b) = (rig.driver(1, &PLAIN), rig.driver(2, &PLAIN));
    let (window, stop) = (Arc::clone(evil.window()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = SetAtTheEnd(&stop);
        scope.spawn(|| {
            let mut seed = 1u64;
            while !stop.load(Ordering::Relaxed) {
                // xorshift64 (Marsaglia 2003).
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let value = if seed & 1 == 0 { (seed >> 32) as u32 } else { (seed >> 32) as u32 % 300 };
                // Interfaces, ring heads and slots: all but the buffers.
                let _ = window.write32((seed % 0x8000) & !3, value);
            }
        });
        for n in 0..300 {
            for slot in 0..8 {
                evil.queue_word(SlotWord::new((n + slot) % 300, 60 + (n % 100) as u16, (n % 64) as u16));
            }
            evil.publish().unwrap();
            let sent = frame(mac(2), mac(1), n, 60 + n as usize % 1400);
            let flood = frame(Mac([0xff; 6]), mac(1), n, 60);
            a.send(&[&sent, &flood]).unwrap();
            // What else comes is the liar's, which may repeat what it has received.
            let (mut first, mut second) = (0, 0);
            await_true("the neighbour's frames", || {
                let see = |bytes: &[u8]| {
                    first += usize::from(bytes == sent);
                    second += usize::from(bytes == flood);
                };
                b.receive(64, see).unwrap();
                first > 0 && second > 0
            });
            a.receive(64, |_| {}).unwrap();
        }
    });
    assert_eq!([rig.ports[1].fault.get(), rig.ports[2].fault.get()], [None; 2]);
    // After a reset it is as new.
    drop(evil);
    let mut evil = rig.driver(0, &PLAIN);
    while a.receive(64, |_| {}).unwrap() + b.receive(64, |_| {}).unwrap() > 0 {}
    exchange(&mut evil, &mut a);
    exchange(&mut a, &mut evil);
    assert_conserved(&rig.ports);
}

#[test]
fn the_memory_device_is_missed_by_name() {
    let rig = Rig::new("alone", 1);
    let mut client = sidecore_driver::vfio::Client::connect(&rig.dir.join("p0")).unwrap();
    client.reset().unwrap();
    await_true("a hint", || {
        let hint = rig.attachments[0].status().hint;
        hint.is_some_and(|hint| hint.contains("p0.mem") && hint.contains("-device"))
    });
}
