//! rtl8169 ports of the real program: native drivers as guests, another kind of port beside them, restarts,
//! and guests that lie.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::rig::{Daemon, Testbed, LIMIT};
use rustix::process::Signal;
use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::rtl8169::{Config, Rtl8169};

/// Registers of memory: interrupt mask and status, the word with `CR`, where the counters are dumped.
const MEMORY: u32 = 1;
const CR: u64 = 0x37;
const CR_ON: u8 = 0xc;
const RST: u8 = 0x10;
/// A register that keeps all its bits, and does nothing until the driver says so.
const TNPDS: u64 = 0x20;
const THPDS: u64 = 0x28;
const DTCCR: u64 = 0x10;
const DUMP: u32 = 8;
const OWN: u64 = 1 << 31;
const LS: u64 = 1 << 28;

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

struct Rig {
    bed: Testbed,
    daemon: Option<Daemon>,
}

impl Rig {
    fn new() -> Rig {
        let mut rig = Rig { bed: Testbed::new(), daemon: None };
        rig.start();
        rig
    }

    fn start(&mut self) {
        let at = |name| self.bed.at(name);
        let [a, b] = ["a", "b"].map(|name| format!("{name}=rtl8169:{}", at(name)));
        let c = format!("c=e1000e:{}", at("c"));
        self.daemon = Some(self.bed.daemon(&["--port", &a, "--port", &b, "--port", &c]));
    }

    fn restart(&mut self, signal: Signal) {
        self.daemon.take().unwrap().end(signal);
        self.start();
    }

    fn card(&self, name: &str) -> Rtl8169 {
        Rtl8169::open(&self.bed.path(name), &Config { ring: 64, ..Config::default() }).unwrap()
    }
}

/// Broadcast `n` from the station `from`, of a length of its own; shorter ones than a wire has are among
/// them.
fn frame(from: u8, n: u32) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, from, 0x88, 0xb5], &n.to_be_bytes()].concat();
    bytes.resize(40 + n as usize * 37 % 1475, n as u8);
    bytes
}

/// As it arrives: not shorter than a wire's.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[14..18].try_into().unwrap())
}

/// Frames `from` and following go from `a` to `b`, in order, none lost.
fn stream(a: &mut Rtl8169, b: &mut Rtl8169, numbers: std::ops::Range<u32>) {
    let (mut sent, mut seen) = (numbers.start, numbers.start);
    await_true("all frames of a stream", || {
        while sent < numbers.end && sent < seen + 32 && a.send(&[&frame(1, sent)]).unwrap() == 1 {
            sent += 1;
        }
        b.receive(64, |bytes| {
            assert_eq!(bytes, padded(frame(1, seen)), "frame {seen} became {}", number(bytes));
            seen += 1;
        })
        .unwrap();
        seen == numbers.end
    });
    await_true("all descriptors come back", || a.reclaim());
}

#[test]
fn guests_talk_with_each_other_and_with_an_intel_card() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.card("a"), rig.card("b"));
    let mut c = E1000::open(&rig.bed.path("c"), &e1000::Config::default()).unwrap();
    assert_ne!(a.mac(), b.mac());
    assert!(a.link().unwrap() && b.link().unwrap());
    stream(&mut a, &mut b, 0..2000);
    stream(&mut b, &mut a, 2000..3000);
    let mut got = Vec::new();
    await_true("what the Intel card has of it", || {
        c.receive(256, |bytes| got.push(bytes.to_vec())).unwrap() == 0 && !got.is_empty()
    });
    a.receive(64, |_| ()).unwrap();
    b.receive(64, |_| ()).unwrap();
    assert_eq!(c.send(&[&frame(3, 7)]).unwrap(), 1);
    for card in [&mut a, &mut b] {
        let mut got = Vec::new();
        await_true("a frame from the Intel card", || {
            card.receive(1, |bytes| got.push(bytes.to_vec())).unwrap();
            !got.is_empty()
        });
        assert_eq!(got, [padded(frame(3, 7))]);
    }
    // Unicast for another station is not for us, and frames for ours are.
    let port = rig.bed.port("a");
    assert_eq!(
        (&port["state"]["peer"], &port["state"]["kind"]),
        (&"running".into(), &"rtl8169".into()),
        "{port:#}"
    );
    let features = port["state"]["features"].to_string();
    assert!(features.contains("doorbells trap"), "{features}");
}

#[test]
fn frames_come_by_interrupts_and_few_of_them() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.card("a"), rig.card("b"));
    b.arm_all().unwrap();
    let (mut sent, mut seen, mut interrupts) = (0, 0, 0u32);
    await_true("all frames by interrupts", || {
        while sent < 2000 && sent < seen + 32 && a.send(&[&frame(1, sent)]).unwrap() == 1 {
            sent += 1;
        }
        if b.service(64, |_| seen += 1).unwrap().is_some() {
            interrupts += 1;
        }
        seen == 2000
    });
    assert!(interrupts > 0);
}

#[test]
fn the_carrier_is_the_operators_and_counters_are_dumped() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.card("a"), rig.card("b"));
    stream(&mut a, &mut b, 0..100);
    b.arm_all().unwrap();
    b.service(64, |_| ()).unwrap();
    rig.bed.ok(&["set", "b", "link=down"]);
    await_true("the link is down", || !b.link().unwrap());
    rig.bed.ok(&["set", "b", "link=up"]);
    await_true("the link is up", || b.link().unwrap());
    assert!(b.wait(Duration::from_secs(10)).unwrap(), "the link's interrupt");
    stream(&mut a, &mut b, 100..200);
    // Into the first descriptors' buffers, which are not in use now.
    let (memory, room) = (std::sync::Arc::clone(a.memory()), a.memory().alloc(64, 64).unwrap());
    let to = memory.gpa(room);
    a.client().write32(MEMORY, DTCCR + 4, (to >> 32) as u32).unwrap();
    a.client().write32(MEMORY, DTCCR, to as u32 | DUMP).unwrap();
    assert_eq!(a.client().read32(MEMORY, DTCCR).unwrap() & DUMP, 0);
    let mut sent = [0; 8];
    memory.read(room, &mut sent);
    assert_eq!(u64::from_le_bytes(sent), 200);
}

#[test]
fn a_card_goes_on_after_a_restart() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (rig.card("a"), rig.card("b"));
    let mut next = 0;
    for (round, signal) in [Signal::TERM, Signal::KILL, Signal::KILL, Signal::TERM].into_iter().enumerate() {
        a.client().write32(MEMORY, THPDS, round as u32 + 1).unwrap();
        stream(&mut a, &mut b, next..next + 300);
        stream(&mut b, &mut a, next..next + 10);
        next += 300;
        rig.restart(signal);
        let value = a.client().read32(MEMORY, THPDS);
        let log = rig.daemon.as_ref().unwrap().rest_of_log();
        assert_eq!(value.ok(), Some(round as u32 + 1), "a register was forgotten, or the VMM\n{log}");
        stream(&mut a, &mut b, next..next + 300);
        next += 300;
        let port = rig.bed.port("a");
        assert_eq!(port["state"]["peer"], "running", "{port:#}");
    }
}

/// With a status block: a steady sender rings no doorbell, and its receiver is told by its wishes.
#[test]
fn a_status_block_takes_the_place_of_doorbells() {
    let bed = Testbed::new();
    let [a, b] = ["a", "b"].map(|name| format!("{name}=rtl8169:{},csb=on", bed.at(name)));
    let _daemon = bed.daemon(&["--port", &a, "--port", &b]);
    let config = Config { ring: 64, csb: true, ..Config::default() };
    let [mut a, mut b] = ["a", "b"].map(|name| Rtl8169::open(&bed.path(name), &config).unwrap());
    stream(&mut a, &mut b, 0..100);
    let before = a.traps().writes;
    stream(&mut a, &mut b, 100..3100);
    let doorbells = a.traps().writes - before;
    assert!(doorbells < 1500, "{doorbells} doorbells for 3000 frames");
    let heads = a.heads().unwrap();
    assert_eq!(heads[0], 3100 % 64);
    // Asleep, the device asks for one.
    let seen = &mut 0;
    b.arm_all().unwrap();
    for n in 0..20 {
        std::thread::sleep(Duration::from_millis(n));
        stream_by_interrupts(&mut a, &mut b, n as u32, seen);
    }
    assert_eq!(*seen, 20);
    // A block that lies: outside of the memory, and no page.
    for low in [0xffff_f000u32, 0x123] {
        a.client().write32(MEMORY, 0x70, low).unwrap();
        a.client().write(MEMORY, 0x38, &[0x40]).unwrap();
        await_true("the port stops", || bed.port("a").to_string().contains("\"fault\":\""));
        a.start().unwrap();
        stream(&mut a, &mut b, 0..10);
    }
}

/// One frame, for which the receiver waits.
fn stream_by_interrupts(a: &mut Rtl8169, b: &mut Rtl8169, n: u32, seen: &mut u32) {
    assert_eq!(a.send(&[&frame(1, n)]).unwrap(), 1);
    let before = *seen;
    await_true("a frame by an interrupt", || {
        b.service(64, |_| *seen += 1).unwrap();
        *seen > before
    });
    await_true("the sender's descriptor", || a.reclaim());
}

/// Killed again and again while frames are under way: what is lost or comes twice is at most what was under
/// way.
#[test]
fn a_card_lives_through_a_storm() {
    const KILLS: u32 = 10;
    const BATCH: u64 = 256;
    let mut rig = Rig::new();
    let (mut a, mut b) = (rig.card("a"), rig.card("b"));
    b.arm_all().unwrap();
    let (mut next, mut last, mut odd) = (0u32, None::<u32>, 0u64);
    for kill in 0..=KILLS {
        let (from, mut given_up) = (last.map_or(0, |last| last + 1), 0);
        let (begun, mut quiet) = (Instant::now(), Instant::now());
        let enough = from + 200 + kill * 17;
        while last.map_or(0, |last| last + 1) < enough {
            let seen = last.map_or(0, |last| last + 1);
            // What was lost by the kill does not come; as many others go after a while.
            if quiet.elapsed() > Duration::from_millis(300) {
                (given_up, quiet) = (next, Instant::now());
            }
            if next < seen.max(given_up) + 32 {
                next += a.send(&[&frame(1, next)]).unwrap() as u32;
            }
            let serviced = b.service(64, |bytes| {
                let n = number(bytes);
                assert_eq!(bytes, padded(frame(1, n)), "frame {n} was changed on its way");
                let due = last.map_or(0, |last| last + 1);
                odd += u64::from(n.abs_diff(due));
                last = Some(n);
                quiet = Instant::now();
            });
            if serviced.unwrap().is_none() {
                std::thread::yield_now();
            }
            assert!(
                begun.elapsed() < 3 * LIMIT,
                "the rings stand still after {kill} kills: {last:?} of {next}"
            );
        }
        if kill < KILLS {
            rig.restart(Signal::KILL);
        }
    }
    assert!(odd <= u64::from(KILLS) * BATCH, "{odd} frames lost or repeated by {KILLS} kills");
    println!("{KILLS} kills: {odd} of {next} frames lost or repeated");
}

/// Each of them costs the guest that does it its own frames, and no other guest anything.
#[test]
fn what_a_lying_guest_does_harms_only_itself() {
    let rig = Rig::new();
    let (mut a, mut b) = (rig.card("a"), rig.card("b"));
    let mut c = E1000::open(&rig.bed.path("c"), &e1000::Config::default()).unwrap();
    // A ring without an end, all of it the device's, and none of its packets ends.
    let fill = |card: &Rtl8169, word: u64| {
        let tx = card.descriptors()[0];
        (0..tx.size() / 16).for_each(|at| tx.store64(2 * at, word, Ordering::Release));
    };
    let ring = |card: &mut Rtl8169| card.client().write(MEMORY, 0x38, &[0x40]).unwrap();
    for word in [OWN, OWN | 0xffff, OWN | LS, OWN | LS | 0xffff, OWN | LS | 0x0fff_0000 | 60, u64::MAX] {
        fill(&a, word);
        ring(&mut a);
        a.client().read32(MEMORY, TNPDS).unwrap();
    }
    // Buffers, and a ring, outside of its memory: it stops until its driver resets it. On a slow machine the
    // card may be beyond its ring by now, which has no end, and would wait there: it begins anew.
    let base = a.client().read32(MEMORY, TNPDS).unwrap();
    a.client().write32(MEMORY, TNPDS, base).unwrap();
    let tx = a.descriptors()[0];
    (0..tx.size() / 16).for_each(|at| tx.store64(2 * at + 1, u64::MAX - 4096, Ordering::Relaxed));
    let mut told = String::new();
    let end = Instant::now() + LIMIT;
    while !told.contains("address_out_of_range") {
        // Again: the card may still give back a descriptor that it has read before, and stop there.
        fill(&a, OWN | LS | 100);
        ring(&mut a);
        told = rig.bed.port("a").to_string();
        assert!(Instant::now() < end, "the fault is not told: {told}");
    }
    for offset in 0..256u64 {
        a.client().write(MEMORY, offset, &[0xff]).unwrap();
        a.client().read(MEMORY, offset, &mut [0]).unwrap();
    }
    a.client().write32(MEMORY, 0x50, 0).unwrap();
    for _ in 0..200 {
        a.client().write(MEMORY, CR, &[RST]).unwrap();
        a.client().write(MEMORY, CR, &[CR_ON]).unwrap();
        ring(&mut a);
    }
    // Others have not noticed, and a driver that behaves gets a card that does.
    b.send(&[&frame(2, 1)]).unwrap();
    let mut got = 0;
    await_true("others' frames", || {
        c.receive(64, |_| got += 1).unwrap();
        got > 0
    });
    drop(a);
    let mut a = rig.card("a");
    stream(&mut a, &mut b, 0..100);
}
