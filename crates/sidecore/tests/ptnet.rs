//! ptnet ports of the real program: two sockets for each, native drivers as guests, other kinds of ports
//! beside them, and guests that lie.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::rig::{Testbed, LIMIT};
use rustix::process::Signal;
use sidecore_abi::ptnet::{memdev, reg};
use sidecore_driver::e1000::{self, E1000};
use sidecore_driver::ptnet::{Config, Ptnet};

fn await_true(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn guest(bed: &Testbed, name: &str) -> Ptnet {
    Ptnet::open(&bed.path(name), &Config::default()).unwrap()
}

/// A broadcast with a number.
fn frame(from: u8, n: u32) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, from, 0x88, 0xb5], &n.to_be_bytes()].concat();
    bytes.resize(60 + n as usize % 1400, n as u8);
    bytes
}

fn exchange(a: &mut Ptnet, b: &mut Ptnet) {
    for n in 0..200 {
        let sent = frame(1, n);
        assert_eq!(a.send(&[&sent]).unwrap(), 1);
        let mut got = Vec::new();
        await_true("a frame", || {
            receive(b, &mut got);
            !got.is_empty()
        });
        assert_eq!(got, [sent]);
    }
}

/// By whichever pair of rings it comes.
fn receive(guest: &mut Ptnet, got: &mut Vec<Vec<u8>>) {
    for pair in 0..guest.pairs() {
        guest.select(pair).unwrap();
        guest.receive(64, |bytes| got.push(bytes.to_vec())).unwrap();
    }
    guest.select(0).unwrap();
}

#[test]
fn guests_talk_with_each_other_and_with_an_intel_card() {
    let bed = Testbed::new();
    let port = |name: &str, kind: &str, more: &str| format!("{name}={kind}:{}{more}", bed.at(name));
    let (a, b, c) = (port("a", "ptnet", ""), port("b", "ptnet", ",queues=2"), port("c", "e1000e", ""));
    let _daemon = bed.daemon(&["--port", &a, "--port", &b, "--port", &c]);
    let (mut a, mut b) = (guest(&bed, "a"), guest(&bed, "b"));
    assert_eq!((a.pairs(), b.pairs(), a.header()), (1, 2, 12));
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    let mut card = E1000::open(&bed.path("c"), &e1000::Config::default()).unwrap();
    let sent = frame(9, 7);
    card.send(&[&sent]).unwrap();
    for guest in [&mut a, &mut b] {
        let mut got = Vec::new();
        await_true("the card's frame", || {
            receive(guest, &mut got);
            !got.is_empty()
        });
        assert_eq!(got, std::slice::from_ref(&sent));
    }
    let status = bed.port("b");
    assert_eq!(status["state"]["peer"], "running", "{status:#}");
    let queues = bed.show("queues");
    let queues: Vec<_> =
        queues["queues"].as_array().unwrap().iter().filter(|queue| queue["port"] == "b").collect();
    assert_eq!(queues.len(), 4);
    assert!(
        queues.iter().all(|queue| queue["kind"] == "ptnet" && queue["state"] == "running"),
        "{queues:#?}"
    );
    assert!(status["state"]["features"].as_array().unwrap().iter().any(|f| f == "vnet-hdr"), "{status:#}");
}

#[test]
fn both_sockets_come_and_go_with_the_port() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&[]);
    bed.ok(&["add", &format!("vm=ptnet:{}", bed.at("vm"))]);
    assert!(bed.path("vm").exists() && bed.path("vm.mem").exists());
    // A port that would have one of the two is told which port has it.
    for (other, at) in [("ptnet", "vm"), ("e1000e", "vm.mem"), ("vhost-user", "vm")] {
        let why = bed.fails(&["add", &format!("other={other}:{}", bed.at(at))]);
        assert!(why.contains("port vm has this place"), "{why}");
    }
    let why = bed.fails(&["add", &format!("many=ptnet:{},queues=16", bed.at("many"))]);
    assert!(why.contains("allowed: 1 to 15"), "{why}");
    let why = bed.fails(&["add", &format!("odd=ptnet:{},buf-size=100", bed.at("odd"))]);
    assert!(why.contains("multiples of 64"), "{why}");
    assert!(!bed.path("many").exists() && !bed.path("odd.mem").exists());
    let driver = guest(&bed, "vm");
    assert_eq!(bed.port("vm")["state"]["peer"], "running");
    drop(driver);
    // Another VMM begins anew.
    drop(guest(&bed, "vm"));
    bed.ok(&["del", "vm"]);
    assert!(!bed.path("vm").exists() && !bed.path("vm.mem").exists());
}

#[test]
fn a_guest_that_lies_is_named_and_its_neighbours_go_on() {
    let bed = Testbed::new();
    let port = |name: &str| format!("{name}=ptnet:{}", bed.at(name));
    let (a, b, evil) = (port("a"), port("b"), port("evil"));
    let _daemon = bed.daemon(&["--port", &a, "--port", &b, "--port", &evil]);
    let (mut a, mut b, mut liar) = (guest(&bed, "a"), guest(&bed, "b"), guest(&bed, "evil"));
    exchange(&mut a, &mut b);
    liar.block(true).store32(0, 77_777, Ordering::Release);
    let _ = liar.kick();
    await_true("the fault", || {
        let status = bed.port("evil");
        status["state"]["fault"].as_str().is_some_and(|fault| fault.contains("bad_head"))
    });
    exchange(&mut b, &mut a);
    await_true("it begins again", || liar.start().is_ok() && bed.port("evil")["state"]["fault"].is_null());
    while liar.receive(64, |_| {}).unwrap() > 0 {}
    exchange(&mut a, &mut b);
    exchange(&mut liar, &mut b);
}

#[test]
fn guests_stay_connected_while_the_daemon_is_stopped_or_killed() {
    let bed = Testbed::new();
    let ports = ["a", "b"].map(|name| format!("{name}=ptnet:{}", bed.at(name)));
    let start = || bed.daemon(&["--port", &ports[0], "--port", &ports[1]]);
    let mut daemon = start();
    let (mut a, mut b) = (guest(&bed, "a"), guest(&bed, "b"));
    exchange(&mut a, &mut b);
    for signal in [Signal::TERM, Signal::KILL, Signal::KILL, Signal::TERM] {
        daemon.end(signal);
        // Meanwhile frames lie in the ring.
        let sent = frame(1, 500);
        a.send_unheard(&sent).unwrap();
        daemon = start();
        let mut got = Vec::new();
        await_true("the frame that waited", || {
            b.receive(1, |bytes| got.push(bytes.to_vec())).unwrap();
            !got.is_empty()
        });
        assert_eq!(got, [sent]);
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        assert_eq!(bed.port("a")["state"]["peer"], "running");
        // The memory device answers, too: a driver may look at it at any time.
        a.start().unwrap();
        exchange(&mut a, &mut b);
    }
    drop((a, b));
    await_true("the holders end", || {
        ["a", "b"].iter().all(|name| {
            !bed.path(&format!("{name}.hold")).exists() && !bed.path(&format!("{name}.mem.hold")).exists()
        })
    });
}

/// While there is no daemon a driver is answered at both of its functions: it kicks, ends, and is reset. What
/// it cannot do is begin.
#[test]
fn guests_are_answered_while_no_daemon_is_there() {
    let bed = Testbed::new();
    let ports = [("a", ",mtu=2000"), ("b", "")].map(|(n, more)| format!("{n}=ptnet:{}{more}", bed.at(n)));
    let start = || bed.daemon(&["--port", &ports[0], "--port", &ports[1]]);
    let mut daemon = start();
    let (mut a, mut b) = (guest(&bed, "a"), guest(&bed, "b"));
    exchange(&mut a, &mut b);
    // What drivers read when they look for a device.
    let registers = [reg::MAC_LO, reg::MAC_HI, reg::NIFP_OFS, reg::NUM_TX_SLOTS, reg::HOSTMEMID, reg::MTU];
    let pools = [memdev::MEMID, memdev::MEMSIZE_LO, memdev::IF_POOL, memdev::RING_POOL, memdev::BUF_POOL];
    let look = |it: &mut Ptnet| {
        let words = registers.map(|at| it.client().read32(0, at).unwrap());
        (words, pools.map(|at| it.memory_device().read32(0, at).unwrap()))
    };
    let found = look(&mut b);
    daemon.end(Signal::KILL);
    assert_eq!(look(&mut b), found);
    // A frame with its kick waits.
    let sent = frame(1, 500);
    assert_eq!(a.send(&[&sent]).unwrap(), 1);
    a.kick().unwrap();
    daemon = start();
    let mut got = Vec::new();
    await_true("the frame that waited", || {
        receive(&mut b, &mut got);
        !got.is_empty()
    });
    assert_eq!(got, [sent]);
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    // The driver goes, and comes back when the daemon is there: nothing comes twice.
    daemon.end(Signal::KILL);
    b.stop().unwrap();
    assert!(b.start().unwrap_err().to_string().contains("errno 11"), "nobody serves its rings");
    daemon = start();
    b.start().unwrap();
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    // A guest that is reset finds its device as new.
    daemon.end(Signal::KILL);
    b.client().reset().unwrap();
    assert_eq!(look(&mut b), found);
    drop(b);
    await_true("its holders end", || ["b.hold", "b.mem.hold"].iter().all(|name| !bed.path(name).exists()));
    daemon = start();
    let mut b = guest(&bed, "b");
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    drop(daemon);
}
